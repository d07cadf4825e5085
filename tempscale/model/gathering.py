"""Bring the results of micro-batches into the order of the texts, and merge chunks into their texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tempscale.model.sequences import Tokens
from tempscale.second_order.moments import Scatter, TokenMoments, TokenSums

Finish = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From pooled token embeddings to unit embeddings and the norms before."""
Factor = tuple[Float[Tensor, " dim"], Float[Tensor, "rank dim"]]
"""Unit mean and covariance factor of a text."""


@dataclass(frozen=True)
class Encoded:
    """The result of `Encoder.encode`, one entry a text, in the order of the texts, on the CPU."""

    embeddings: Float[Tensor, "text dim"]
    """Unit norm, float32."""
    norms: Float[Tensor, " text"]
    """The norm of each embedding as the checkpoint's own stages give it, 1 where its last stage normalises: the vector of
    `SentenceTransformer.encode` is norms·embeddings.
    """
    tokens: Int[Tensor, " text"]
    """How many tokens the model saw: special tokens included, after truncation; the total of all chunks of a text."""
    truncated: Bool[Tensor, " text"]
    """Whether the text was cut."""
    moments: TokenMoments | None
    """‖μ‖, spread and within-text cosine, each (text,); None unless requested."""
    factors: list[Factor] | None
    """Unit mean (d,) and covariance factor (min(tokens, d), d) of each text; None unless requested."""
    failed: dict[int, str] = field(default_factory=dict)
    """With `isolate`, the texts that the tokenizer or the model failed on, with the reason; their numbers are NaN."""
    halved: list[list[int]] = field(default_factory=list)
    """Texts of the micro-batches that did not fit in memory and ran in halves."""


class Pass(NamedTuple):
    """The result of one micro-batch, on the CPU, one entry a sequence."""

    sequences: list[int]
    """The sequences that ran."""
    pooled: Tensor
    """Text embeddings; for chunks, pooled token embeddings."""
    norms: Tensor | None
    """Norms of the embeddings of texts that are not chunked."""
    sums: TokenSums | None
    """Sums of chunks; also of texts, unless `moments` is set."""
    moments: TokenMoments | None
    """Moments of texts that are not chunked."""
    factors: dict[int, Factor]
    """By text, of texts that are not chunked."""


class Request(NamedTuple):
    """The results that `Encoder.encode_tokens` was asked for."""

    width: int
    """Dimensions of an embedding."""
    finish: Finish
    """The last stages of the checkpoint, for texts in chunks."""
    moments: bool
    factors: bool


class Troubles(NamedTuple):
    """Failures of micro-batches."""

    failed: dict[int, str]
    """Sequences that the model failed on, with the reason."""
    halved: list[list[int]]
    """Sequences of the micro-batches that ran in halves."""

    def by_text(self, tokens: Tokens) -> Troubles:
        """The same of texts that are parts of sequences."""
        failed = {text: reason for i, reason in self.failed.items() for text in tokens.texts_of(i)}
        return Troubles(failed, [[text for i in batch for text in tokens.texts_of(i)] for batch in self.halved])


def apart(
    tokens: Tokens, batch: Sequence[int], hidden: Float[Tensor, "sequence token dim"]
) -> tuple[list[int], Float[Tensor, "text part dim"], Bool[Tensor, "text part"]]:
    """The token embeddings of the texts that are parts of these sequences, as a micro-batch of their own; see `Spans`."""
    assert tokens.spans is not None
    texts, pieces = list[int](), list[Tensor]()
    for row, sequence in enumerate(batch):
        for text in tokens.texts_of(sequence):
            texts.append(text)
            pieces.append(hidden[row, tokens.spans.start[text] : tokens.spans.stop[text]])
    sizes = torch.tensor([len(piece) for piece in pieces], device=hidden.device)
    padded = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True)
    return texts, padded, torch.arange(padded.shape[1], device=hidden.device) < sizes[:, None]


def gather(
    tokens: Tokens, passes: Sequence[Pass], wanted: Request, troubles: Troubles, chunked: Mapping[int, Scatter]
) -> Encoded:  # fmt: skip
    """Results by text, in the order of `tokens`; NaN for a text that failed or whose sequences are in no pass."""
    width, (failed, halved) = wanted.width, troubles
    texts = len(tokens)
    owner = torch.tensor(tokens.owner, dtype=torch.long)
    embeddings, norms, moments = torch.full((texts, width), torch.nan), torch.full((texts,), torch.nan), None
    order = torch.tensor([i for out in passes for i in out.sequences], dtype=torch.long)
    if passes:
        if tokens.text is None:
            embeddings, norms, moments = _whole(passes, order, texts)
        else:
            embeddings, norms, moments = _merged(tokens, passes, order, owner[order], wanted.finish)
    if wanted.moments and moments is None:
        moments = TokenMoments(*torch.full((3, texts), torch.nan))
    ran = torch.zeros(len(owner), dtype=torch.bool).index_fill_(0, order, True)
    missing = set(owner[~ran].tolist())
    for text in missing:
        for column in (embeddings, norms, *(moments or ())):
            column[text] = torch.nan
    factors_by_text = {text: factor for out in passes for text, factor in out.factors.items()}
    factors_by_text |= {text: scatter.factor() for text, scatter in chunked.items() if text not in missing}
    failures = tokens.failed | {int(owner[i]): reason for i, reason in failed.items()}
    lengths, truncated = (torch.tensor(column) for column in (tokens.lengths, tokens.truncated))
    texts_halved = [sorted({int(owner[i]) for i in batch}) for batch in halved]
    factors = _listed(factors_by_text, texts) if wanted.factors else None
    return Encoded(embeddings, norms, lengths.long(), truncated.bool(), moments, factors, failures, texts_halved)


def _whole(passes: Sequence[Pass], order: Tensor, texts: int) -> tuple[Tensor, Tensor, TokenMoments | None]:
    """Embeddings, norms and moments when every sequence is a text."""

    def placed(values: Sequence[Tensor]) -> Tensor:
        column = torch.cat(list(values))
        return torch.full((texts, *column.shape[1:]), torch.nan, dtype=column.dtype).index_copy_(0, order, column)

    parts = [out.moments for out in passes if out.moments is not None]
    moments = TokenMoments(*(placed(column) for column in zip(*parts, strict=True))) if parts else None
    norms = placed([out.norms for out in passes if out.norms is not None])
    return placed([out.pooled for out in passes]), norms, moments


def _merged(
    tokens: Tokens, passes: Sequence[Pass], order: Tensor, owner: Tensor, finish: Finish
) -> tuple[Tensor, Tensor, TokenMoments | None]:
    """The same when every sequence is a chunk: means of chunks weighted by tokens, and moments of all tokens."""
    texts = len(tokens)
    count = torch.tensor([len(tokens.ids[i]) for i in order.tolist()], dtype=torch.float64).unsqueeze(-1)
    pooled = torch.cat([out.pooled for out in passes]).double()
    total = torch.zeros(texts, pooled.shape[1], dtype=torch.float64).index_add_(0, owner, count * pooled)
    weight = torch.zeros(texts, 1, dtype=torch.float64).index_add_(0, owner, count)
    parts = [out.sums for out in passes if out.sums is not None]
    moments = None
    if parts:
        sums = TokenSums(*(torch.cat(column) for column in zip(*parts, strict=True))).merged(owner, texts)
        moments = TokenMoments(*(column.float() for column in sums.moments(torch.finfo(torch.float32).eps)))
    return *finish((total / weight).float()), moments


def _listed(factors: Mapping[int, Factor], texts: int) -> list[Factor]:
    """Factors by text, NaN for a text without one."""
    if not factors:
        return []
    mean, factor = next(iter(factors.values()))
    nothing = (torch.full_like(mean, torch.nan), torch.full_like(factor[:1], torch.nan))
    return [factors.get(text, nothing) for text in range(texts)]
