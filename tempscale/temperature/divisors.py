"""τ of each text and head, in shapes that divide a query or a position bias (S1, arXiv 2410.24200, eq. 6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature


def divided(values: Tensor, tau: Tensor | float) -> Tensor:
    """Values divided by τ, in the precision of the values; τ itself is not rounded to half precision."""
    return (values / tau).to(values.dtype)


def head_temperatures(taus: tuple[float, ...], layout: str, output: Tensor) -> Tensor:
    """Float32 τ of each head in the shape that divides a query of this layout: (head, 1), (head, 1, 1) or (head·width,)."""
    tau = torch.tensor(taus, dtype=torch.float32, device=output.device)
    if layout == "token_head":
        return tau[:, None]
    if layout == "head_token":
        return tau[:, None, None]
    width = output.shape[-1] // (3 if layout == "fused" else 1)
    return tau.repeat_interleave(width // len(taus))


def text_temperatures(temperature: Temperature, given: Mapping[str, Any]) -> Tensor:
    """Float32 τ of each text of a batch (text, 1), or of each token of an unpadded batch (1, token), from the arguments of
    the model's forward: attention_mask, or cu_seq_lens_q of an unpadded batch, or neither.
    """
    mask, packed = given.get("attention_mask"), given.get("cu_seq_lens_q")
    if packed is not None:
        lengths = packed.diff()
        return _of_lengths(temperature, lengths.repeat_interleave(lengths))[None]
    tokens = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
    if mask is None and tokens is not None:
        return _of_lengths(temperature, torch.full((len(tokens),), tokens.shape[1], device=tokens.device))[:, None]
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        raise TemperatureError("a temperature by length needs a mask (texts, tokens) to tell how long each text is")
    return _of_lengths(temperature, (mask != 0).sum(-1))[:, None]


def _of_lengths(temperature: Temperature, lengths: Tensor) -> Tensor:
    """`Temperature.of_length` for many lengths at once, on their device."""
    if temperature.n0 is not None:
        n0 = torch.tensor(float(temperature.n0), device=lengths.device)
        return n0.log() / torch.maximum(lengths.float(), n0).log()
    edges = torch.tensor([edge for edge, _ in temperature.steps[1:]], device=lengths.device)
    taus = torch.tensor([tau for _, tau in temperature.steps], device=lengths.device)
    return taus[torch.bucketize(lengths, edges, right=True)]
