"""What micro-batches leave, brought into the order of the texts; chunks merged into the texts they are of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tempscale.moments import TokenMoments, TokenSums, covariance_factor
from tempscale.tokens import Tokens

Factor = tuple[Float[Tensor, " dim"], Float[Tensor, "rank dim"]]
"""Unit mean and covariance factor of a text."""


@dataclass(frozen=True)
class Encoded:
    """What `Encoder.encode` returns, one entry a text, in the order of the texts, on the CPU."""

    embeddings: Float[Tensor, "text dim"]
    """Unit norm, float32."""
    tokens: Int[Tensor, " text"]
    truncated: Bool[Tensor, " text"]
    moments: TokenMoments | None
    factors: list[Factor] | None
    """Of each text, where asked for."""
    failed: dict[int, str] = field(default_factory=dict)
    """Texts that the model failed on and why, where that was asked for; all their numbers are NaN."""
    halved: list[list[int]] = field(default_factory=list)
    """Texts of the micro-batches that memory did not hold and that ran in halves."""


class Pass(NamedTuple):
    """What one micro-batch leaves, on the CPU, one entry a sequence."""

    sequences: list[int]
    pooled: Tensor
    """Embeddings of texts; pooled token embeddings of chunks."""
    sums: TokenSums | None
    """Of chunks, and of texts unless `moments` are there."""
    moments: TokenMoments | None
    factors: list[Factor]
    hidden: list[Tensor]
    """Token embeddings of chunks, where factors are asked for."""


def gather(
    tokens: Tokens, passes: Sequence[Pass], width: int, failed: dict[int, str], halved: list[list[int]],
    finish: Callable[[Tensor], Tensor], wanted: tuple[bool, bool],
) -> Encoded:  # fmt: skip
    """Results by text.

    Args:
        tokens: what ran.
        passes: what it left; sequences that failed are in none.
        width: dimensions of an embedding.
        failed, halved: by sequence, see `batches.run_batches`.
        finish: from pooled token embeddings to embeddings.
        wanted: whether moments and factors were asked for.
    """
    texts = len(tokens.truncated)
    owner = torch.arange(texts) if tokens.text is None else torch.tensor(tokens.text)
    lost = {int(owner[i]): reason for i, reason in failed.items()}
    embeddings, moments, factors = torch.full((texts, width), torch.nan), None, None
    if passes:
        order = torch.tensor([i for out in passes for i in out.sequences])
        together = _whole if tokens.text is None else _merged
        embeddings, moments, factors = together(tokens, passes, order, owner[order], texts, finish)
    for text in lost:
        for column in (embeddings, *(moments or ())):
            column[text] = torch.nan
    lengths, truncated = (torch.tensor(column) for column in (tokens.lengths, tokens.truncated))
    texts_halved = [sorted({int(owner[i]) for i in batch}) for batch in halved]
    if wanted[0] and moments is None:
        moments = TokenMoments(*torch.full((3, texts), torch.nan))
    if wanted[1] and factors is None:
        factors = []
    return Encoded(embeddings, lengths.long(), truncated.bool(), moments, factors, lost, texts_halved)


Columns = tuple[Tensor, TokenMoments | None, list[Factor] | None]


def _whole(
    tokens: Tokens, passes: Sequence[Pass], order: Tensor, owner: Tensor, texts: int, finish: Callable[[Tensor], Tensor]
) -> Columns:
    """Every sequence is a text."""

    def placed(values: Sequence[Tensor]) -> Tensor:
        column = torch.cat(list(values))
        return torch.full((texts, *column.shape[1:]), torch.nan, dtype=column.dtype).index_copy_(0, order, column)

    embeddings = placed([out.pooled for out in passes])
    parts = [out.moments for out in passes if out.moments is not None]
    moments = TokenMoments(*(placed(column) for column in zip(*parts, strict=True))) if parts else None
    found = dict(zip(order.tolist(), (factor for out in passes for factor in out.factors), strict=False))
    return embeddings, moments, _listed(found, texts)


def _merged(
    tokens: Tokens, passes: Sequence[Pass], order: Tensor, owner: Tensor, texts: int, finish: Callable[[Tensor], Tensor]
) -> Columns:
    """Every sequence is a chunk: moments and factors are those of all tokens, embeddings the mean of chunks by tokens."""
    count = torch.tensor([len(tokens.ids[i]) for i in order.tolist()], dtype=torch.float64).unsqueeze(-1)
    pooled = torch.cat([out.pooled for out in passes]).double()
    total = torch.zeros(texts, pooled.shape[1], dtype=torch.float64).index_add_(0, owner, count * pooled)
    weight = torch.zeros(texts, 1, dtype=torch.float64).index_add_(0, owner, count)
    embeddings = finish((total / weight).float())
    parts = [out.sums for out in passes if out.sums is not None]
    moments = None
    if parts:
        sums = TokenSums(*(torch.cat(column) for column in zip(*parts, strict=True))).merged(owner, texts)
        moments = TokenMoments(*(column.float() for column in sums.moments()))
    hidden = dict(zip(order.tolist(), (chunk for out in passes for chunk in out.hidden), strict=False))
    chunks: dict[int, list[Tensor]] = {}
    for i in sorted(hidden):
        assert tokens.text is not None
        chunks.setdefault(tokens.text[i], []).append(hidden[i])
    return embeddings, moments, _listed({text: covariance_factor(torch.cat(own)) for text, own in chunks.items()}, texts)


def _listed(found: dict[int, Factor], texts: int) -> list[Factor] | None:
    """Factors by text, NaN where a text has none; None where no text has one."""
    if not found:
        return None
    mean, factor = next(iter(found.values()))
    nothing = (torch.full_like(mean, torch.nan), torch.full_like(factor[:1], torch.nan))
    return [found.get(text, nothing) for text in range(texts)]
