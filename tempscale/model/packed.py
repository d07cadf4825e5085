"""Texts one after the other without padding: attention stays inside each text.

    texts of 3, 5 and 2 tokens:  ids (1, 10), positions 0 1 2 0 1 2 3 4 0 1, cumulative lengths 0 3 8 10

On a GPU torch's kernel for sequences of different lengths computes it, in bfloat16 or float16. On a CPU the attention of
each text is computed separately: a reference for tests, and no faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tempscale.temperature.families import UnsupportedArchitecture, base_model, family_of, places, supported

KERNEL = "tempscale_packed"
"""Its name among the attention kernels of transformers."""
_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert")
"""Families that count positions from the padding index on."""
_PROBE, _TOLERANCE = (3, 9, 5), {torch.float32: 1e-4}
"""Lengths of the texts that test whether a model can be packed, and the largest relative difference; else 5 %."""


def attend(
    module: nn.Module, query: Float[Tensor, "1 head token width"], key: Float[Tensor, "1 group token width"],
    value: Float[Tensor, "1 group token width"], attention_mask: Any, scaling: float | None = None, dropout: float = 0.0,
    is_causal: bool | None = None, sliding_window: int | None = None, cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None, **_: Any,
) -> tuple[Float[Tensor, "1 token head width"], None]:  # fmt: skip
    """Attention of packed texts, as transformers calls a kernel."""
    if cu_seq_lens_q is None or max_length_q is None:
        raise ValueError(f"{KERNEL} needs the cumulative lengths of packed texts")
    causal = bool(getattr(module, "is_causal", False)) if is_causal is None else is_causal
    left = -1 if sliding_window is None else sliding_window - 1
    right = 0 if causal else left
    queries, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
    shared = query.shape[1] != key.shape[1]
    if query.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        if shared:  # torch 2.11's kernel wants a key for every head.
            keys, values = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (keys, values))
        output = varlen_attn(
            queries, keys, values, cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q, scale=scaling,
            window_size=(left, right),
        )  # fmt: skip
        assert isinstance(output, Tensor)
        return output[None], None
    parts = []
    for start, stop in pairwise(cu_seq_lens_q.tolist()):
        q, k, v = (x[start:stop].transpose(0, 1)[None] for x in (queries, keys, values))
        distances = torch.arange(stop - start)[:, None] - torch.arange(stop - start)
        visible = torch.ones_like(distances, dtype=torch.bool)
        if left >= 0:
            visible &= distances <= left
        if right >= 0:
            visible &= -distances <= right
        part = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scaling, enable_gqa=shared)
        parts.append(part[0].transpose(0, 1))
    return torch.cat(parts)[None], None


class Packed:
    """A model that runs padded batches without their padding; other callers of the model notice nothing."""

    def __init__(self, model: Any, arguments: dict[str, Any]) -> None:
        from transformers import AttentionInterface, AttentionMaskInterface

        AttentionInterface.register(KERNEL, attend)
        AttentionMaskInterface.register(KERNEL, lambda *_, **__: None)
        self._model, self._arguments = base_model(model), arguments
        family, weight = family_of(self._model), next(self._model.parameters())
        if supported(family).bias:
            raise UnsupportedArchitecture(f"{family} adds a position bias to its attention and cannot be packed")
        if weight.is_cuda and weight.dtype not in (torch.bfloat16, torch.float16):
            raise ValueError("packed texts need bfloat16 or float16 on a GPU: precision=«bfloat16»")
        base: Any = self._model
        configs = [base.config, *(getattr(place.attention, "config", None) for place in places(model))]
        self._configs: list[Any] = list({id(config): config for config in configs if config is not None}.values())
        self._first = int(base.config.pad_token_id) + 1 if family in _AFTER_PADDING else 0
        ids = torch.arange(3, 3 + len(_PROBE) * max(_PROBE), device=weight.device) % base.config.vocab_size
        mask = torch.arange(max(_PROBE), device=weight.device) < torch.tensor(_PROBE, device=weight.device)[:, None]
        ids = ids.view(mask.shape)
        with torch.inference_mode():
            expected = base(input_ids=ids, attention_mask=mask.long(), **arguments).last_hidden_state[mask].float()
            try:
                packed = self(ids, mask, sum(_PROBE))[mask].float()
            except (ImportError, TypeError, ValueError, RuntimeError) as error:
                raise UnsupportedArchitecture(f"{family} cannot be packed: {error}") from None
        difference = float((packed - expected).norm() / expected.norm())
        if not difference <= _TOLERANCE.get(weight.dtype, 0.05):
            raise UnsupportedArchitecture(f"{family} cannot be packed: its token embeddings differ by {difference:.2g}")

    def __call__(
        self, ids: Int[Tensor, "text token"], mask: Bool[Tensor, "text token"], tokens: int
    ) -> Float[Tensor, "text token dim"]:
        """Last-layer token embeddings of a right-padded batch, 0 at padding; `tokens` is the number of all its tokens."""
        texts, width = ids.shape
        index = torch.nonzero_static(mask.flatten(), size=tokens)[:, 0]
        lengths = nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)).int()
        positions = torch.arange(self._first, self._first + width, device=ids.device).expand(texts, width).flatten()
        packing = {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths, "max_length_q": width, "max_length_k": width}
        with self._kernel():
            out = self._model(
                input_ids=ids.flatten()[index][None], position_ids=positions[index][None], **packing, **self._arguments
            )
        hidden: Tensor = out.last_hidden_state[0]
        padded = hidden.new_zeros(texts * width, hidden.shape[-1])
        return padded.index_copy_(0, index, hidden).view(texts, width, -1)

    @contextmanager
    def _kernel(self) -> Iterator[None]:
        """A context in which the model's attention kernel is that of packed texts."""
        before = [config._attn_implementation for config in self._configs]
        for config in self._configs:
            config._attn_implementation = KERNEL
        try:
            yield
        finally:
            for config, kernel in zip(self._configs, before, strict=True):
                config._attn_implementation = kernel
