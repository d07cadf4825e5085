"""What micro-batches leave, brought into the order of the texts; chunks merged into the texts they are of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tempscale.moments import Scatter, TokenMoments, TokenSums
from tempscale.tokens import Tokens

Factor = tuple[Float[Tensor, " dim"], Float[Tensor, "rank dim"]]
"""Unit mean and covariance factor of a text."""


@dataclass(frozen=True)
class Encoded:
    """What `Encoder.encode` returns, one entry a text, in the order of the texts, on the CPU."""

    embeddings: Float[Tensor, "text dim"]
    """Unit norm, float32."""
    tokens: Int[Tensor, " text"]
    """What the model saw of each: special tokens included, after truncation; those of all its chunks."""
    truncated: Bool[Tensor, " text"]
    """Whether it saw less than the text."""
    moments: TokenMoments | None
    """‖μ‖, spread and within-text cosine, each (text,); None where they were not asked for."""
    factors: list[Factor] | None
    """Unit mean (d,) and covariance factor (min(tokens, d), d) of each; None where they were not asked for."""
    failed: dict[int, str] = field(default_factory=dict)
    """Texts that the tokenizer or the model failed on and why, where that was asked for; all their numbers are NaN."""
    halved: list[list[int]] = field(default_factory=list)
    """Texts of the micro-batches that memory did not hold and that ran in halves."""


class Pass(NamedTuple):
    """What one micro-batch leaves, on the CPU, one entry a sequence."""

    sequences: list[int]
    """Which ran."""
    pooled: Tensor
    """Embeddings of texts; pooled token embeddings of chunks."""
    sums: TokenSums | None
    """Of chunks, and of texts unless `moments` are there."""
    moments: TokenMoments | None
    """Of texts that are whole."""
    factors: dict[int, Factor]
    """By text, of texts that are whole."""


def gather(
    tokens: Tokens, passes: Sequence[Pass], width: int, failed: dict[int, str], halved: list[list[int]],
    finish: Callable[[Tensor], Tensor], wanted: tuple[bool, bool], chunked: Mapping[int, Scatter],
) -> Encoded:  # fmt: skip
    """Results by text.

    Args:
        tokens: what ran.
        passes: what it left; sequences that failed, or were left out, are in none, and their texts get NaN.
        width: dimensions of an embedding.
        failed, halved: by sequence, see `batches.run_batches`.
        finish: from pooled token embeddings (sequence, dim) to embeddings (text, out).
        wanted: whether moments and factors were asked for.
        chunked: of texts in chunks, what their factors follow from.

    Returns:
        One entry a text, in the order of `tokens`.
    """
    texts = len(tokens)
    owner = torch.arange(texts) if tokens.text is None else torch.tensor(tokens.text, dtype=torch.long)
    embeddings, moments = torch.full((texts, width), torch.nan), None
    order = torch.tensor([i for out in passes for i in out.sequences], dtype=torch.long)
    if passes:
        together = _whole if tokens.text is None else _merged
        embeddings, moments = together(tokens, passes, order, owner[order], texts, finish)
    if wanted[0] and moments is None:
        moments = TokenMoments(*torch.full((3, texts), torch.nan))
    ran = torch.zeros(len(owner), dtype=torch.bool).index_fill_(0, order, True)
    absent = set(owner[~ran].tolist())
    for text in absent:
        for column in (embeddings, *(moments or ())):
            column[text] = torch.nan
    found = {text: factor for out in passes for text, factor in out.factors.items()}
    found |= {text: scatter.factor() for text, scatter in chunked.items() if text not in absent}
    lost = tokens.failed | {int(owner[i]): reason for i, reason in failed.items()}
    lengths, truncated = (torch.tensor(column) for column in (tokens.lengths, tokens.truncated))
    texts_halved = [sorted({int(owner[i]) for i in batch}) for batch in halved]
    factors = _listed(found, texts) if wanted[1] else None
    return Encoded(embeddings, lengths.long(), truncated.bool(), moments, factors, lost, texts_halved)


def _whole(
    tokens: Tokens, passes: Sequence[Pass], order: Tensor, owner: Tensor, texts: int, finish: Callable[[Tensor], Tensor]
) -> tuple[Tensor, TokenMoments | None]:
    """Every sequence is a text."""

    def placed(values: Sequence[Tensor]) -> Tensor:
        column = torch.cat(list(values))
        return torch.full((texts, *column.shape[1:]), torch.nan, dtype=column.dtype).index_copy_(0, order, column)

    parts = [out.moments for out in passes if out.moments is not None]
    moments = TokenMoments(*(placed(column) for column in zip(*parts, strict=True))) if parts else None
    return placed([out.pooled for out in passes]), moments


def _merged(
    tokens: Tokens, passes: Sequence[Pass], order: Tensor, owner: Tensor, texts: int, finish: Callable[[Tensor], Tensor]
) -> tuple[Tensor, TokenMoments | None]:
    """Every sequence is a chunk: moments are those of all tokens, embeddings the mean of chunks by tokens."""
    count = torch.tensor([len(tokens.ids[i]) for i in order.tolist()], dtype=torch.float64).unsqueeze(-1)
    pooled = torch.cat([out.pooled for out in passes]).double()
    total = torch.zeros(texts, pooled.shape[1], dtype=torch.float64).index_add_(0, owner, count * pooled)
    weight = torch.zeros(texts, 1, dtype=torch.float64).index_add_(0, owner, count)
    parts = [out.sums for out in passes if out.sums is not None]
    moments = None
    if parts:
        sums = TokenSums(*(torch.cat(column) for column in zip(*parts, strict=True))).merged(owner, texts)
        moments = TokenMoments(*(column.float() for column in sums.moments()))
    return finish((total / weight).float()), moments


def _listed(found: Mapping[int, Factor], texts: int) -> list[Factor]:
    """Factors by text, NaN where a text has none."""
    if not found:
        return []
    mean, factor = next(iter(found.values()))
    nothing = (torch.full_like(mean, torch.nan), torch.full_like(factor[:1], torch.nan))
    return [found.get(text, nothing) for text in range(texts)]
