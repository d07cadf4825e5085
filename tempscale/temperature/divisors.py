"""τ of each text and head, in shapes that divide a query or a position bias (S1, arXiv 2410.24200, eq. 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature


class Constants:
    """Numbers as tensors on a device, each uploaded once: an upload in every micro-batch would make the GPU wait."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, numbers: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
        """These numbers (number,)."""
        key = (numbers, device, dtype)
        if key not in self._tensors:
            with torch.inference_mode(False):  # An inference tensor cannot be used in a pass with gradients.
                self._tensors[key] = torch.tensor(numbers, dtype=dtype, device=device)
        return self._tensors[key]


def divided(values: Tensor, tau: Tensor | float) -> Tensor:
    """Values divided by τ, in the precision of the values; τ itself is not rounded to half precision."""
    return (values / tau).to(values.dtype)


def of_heads(tau: Tensor, layout: str, output: Tensor) -> Tensor:
    """τ of each head (head,) in the shape that divides a query of this layout; one τ for all heads () stays as it is."""
    if not tau.ndim:
        return tau
    if layout == "token_head":
        return tau[:, None]
    if layout == "head_token":
        return tau[:, None, None]
    width = output.shape[-1] // (3 if layout == "fused" else 1)
    return tau.repeat_interleave(width // len(tau))


def text_temperatures(temperature: Temperature, arguments: Mapping[str, Any], constants: Constants) -> Tensor:
    """Float32 τ of each text (text, 1), or of each token of an unpadded batch (1, token), from the arguments of forward."""
    mask, packed = arguments.get("attention_mask"), arguments.get("cu_seq_lens_q")
    if packed is not None:
        lengths = packed.diff()
        return _of_lengths(temperature, lengths.repeat_interleave(lengths), constants)[None]
    tokens = arguments.get("input_ids") if arguments.get("input_ids") is not None else arguments.get("inputs_embeds")
    if mask is None and tokens is not None:
        lengths = torch.full((len(tokens),), tokens.shape[1], device=tokens.device)
        return _of_lengths(temperature, lengths, constants)[:, None]
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        raise TemperatureError("a temperature by length needs a mask (texts, tokens), which gives the length of each text")
    return _of_lengths(temperature, (mask != 0).sum(-1), constants)[:, None]


def _of_lengths(temperature: Temperature, lengths: Tensor, constants: Constants) -> Tensor:
    """`Temperature.of_length` for many lengths at once, on their device."""
    if temperature.n0 is not None:
        n0 = constants((float(temperature.n0),), lengths.device)
        return n0.log() / torch.maximum(lengths.float(), n0).log()
    edges = constants(tuple(edge for edge, _ in temperature.steps[1:]), lengths.device, torch.int64)
    taus = constants(tuple(tau for _, tau in temperature.steps), lengths.device)
    return taus[torch.bucketize(lengths, edges, right=True)]
