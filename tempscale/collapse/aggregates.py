"""Mergeable aggregates of pairwise cosines; the result does not depend on which parts are finished first.

Counts and histograms are integers, whose sums are exact; float64 sums are merged along a fixed tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Int

from tempscale.collapse.neighbours import Nearest

BINS = 4096
"""Histogram bins over [−1, 1]: a percentile is known to 1/2048."""

T = TypeVar("T")
"""The type of the parts."""


def merge_tree(parts: Iterable[T], merge: Callable[[T, T], T]) -> T:
    """Merge parts pairwise along a fixed balanced tree in the given order; at most one part a tree level is in memory.

    Args:
        parts: in their canonical order, at least one.
        merge: merges two neighbours, given in their order.

    Returns:
        The whole; equal to the bit for equal parts in the same order.

    Raises:
        ValueError: there is no part.
    """
    waiting: list[tuple[int, T]] = []  # Merged runs of 2^k neighbours, longest first.
    for part in parts:
        size = 1
        while waiting and waiting[-1][0] == size:
            part = merge(waiting.pop()[1], part)
            size *= 2
        waiting.append((size, part))
    if not waiting:
        raise ValueError("nothing to merge")
    _, merged = waiting.pop()
    while waiting:
        merged = merge(waiting.pop()[1], merged)
    return merged


@dataclass(frozen=True)
class CosineCells:
    """Count, Σcos, Σcos² and histogram of the unordered pairs in each cell (a ≤ b) of length intervals."""

    pairs: Int[np.ndarray, "interval interval"]
    """Number of pairs, int64; 0 below the diagonal, as in all fields."""
    first: Float[np.ndarray, "interval interval"]
    """Σ cos, float64."""
    second: Float[np.ndarray, "interval interval"]
    """Σ cos², float64."""
    histogram: Int[np.ndarray, "interval interval bin"]
    """Number of pairs by cosine, int64, in `BINS` equal bins from −1 to 1."""
    duplicates: Int[np.ndarray, "interval interval"]
    """Number of pairs whose cosine reaches the near-duplicate threshold."""

    @classmethod
    def empty(cls, intervals: int) -> CosineCells:
        """The aggregates of no pairs: zeros."""
        shape = (intervals, intervals)
        counts, bins = np.zeros(shape, np.int64), np.zeros((*shape, BINS), np.int64)
        return cls(counts, np.zeros(shape), np.zeros(shape), bins, counts.copy())

    def merged(self, other: CosineCells) -> CosineCells:
        """The aggregates of two sets of pairs over the same intervals."""
        return CosineCells(
            self.pairs + other.pairs, self.first + other.first, self.second + other.second,
            self.histogram + other.histogram, self.duplicates + other.duplicates,
        )  # fmt: skip

    def percentile(self, a: int, b: int, share: float) -> float:
        """The `percentile` of one cell of intervals a ≤ b."""
        return percentile(self.histogram[a, b], share)

    def overall_percentile(self, share: float) -> float:
        """The `percentile` of the pairs of all cells."""
        return percentile(self.histogram.sum((0, 1)), share)


def percentile(counts: Int[np.ndarray, " bin"], share: float) -> float:
    """The percentile of a histogram: the cosine below which a share of its pairs is, interpolated inside a bin.

    Args:
        counts: pairs in `BINS` equal bins from −1 to 1.
        share: from 0 to 1.

    Returns:
        A cosine in [−1, 1], accurate to 1/2048; −1 without pairs.
    """
    cumulative = np.cumsum(counts)
    target = share * cumulative[-1]
    index = int(np.searchsorted(cumulative, target))
    below = cumulative[index - 1] if index > 0 else 0
    inside = (target - below) / counts[index] if counts[index] else 0.0
    return float(-1.0 + (index + inside) * 2.0 / BINS)


def pairs_above(counts: Int[np.ndarray, " bin"], cosine: float) -> float:
    """The number of a histogram's pairs that reach a cosine, interpolated inside a bin.

    Args:
        counts: pairs in `BINS` equal bins from −1 to 1.
        cosine: from −1 to 1.

    Returns:
        From 0 to the number of pairs; a whole number at the edge of a bin.
    """
    place = (cosine + 1.0) * BINS / 2.0
    index = min(int(place), BINS - 1)
    return float(counts[index + 1 :].sum() + (index + 1 - place) * counts[index])


def cosine_reached(counts: Int[np.ndarray, " bin"], pairs: float) -> float:
    """The largest cosine that so many pairs of a histogram reach, interpolated inside a bin: the inverse of `pairs_above`.

    Args:
        counts: pairs in `BINS` equal bins from −1 to 1.
        pairs: above 0, to the number of pairs.

    Returns:
        A cosine in [−1, 1], accurate to 1/2048.
    """
    above = np.cumsum(counts[::-1])
    index = min(int(np.searchsorted(above, pairs)), BINS - 1)
    inside = 1.0 - (above[index] - pairs) / counts[::-1][index]
    return float(1.0 - (index + inside) * 2.0 / BINS)


Precision = Literal["float32", "tf32", "bfloat16"]
"""The precision that a product's factors are rounded to; sums are float32 in each product, float64 over products."""


@dataclass(frozen=True)
class Block:
    """The texts on one side of a super-tile, in canonical order."""

    embeddings: Float[np.ndarray, "text dim"]
    """Unit norm, float32."""
    interval: Int[np.ndarray, " text"]
    """Length interval of each text, ascending."""
    labels: Int[np.ndarray, " text"]
    """A number of each text of the corpus, int32, which breaks ties: its rank in a pseudo-random order."""

    def __len__(self) -> int:
        return len(self.embeddings)


@dataclass(frozen=True)
class Duplicates:
    """The near-duplicate pairs of largest cosine, in that order; ties by labels."""

    cosine: Float[np.ndarray, " pair"]
    """Float32, descending."""
    labels: Int[np.ndarray, "pair 2"]
    """The two texts of each pair, the smaller label first."""

    def merged(self, other: Duplicates) -> Duplicates:
        """Both lists, unsorted."""
        return Duplicates(np.concatenate([self.cosine, other.cosine]), np.concatenate([self.labels, other.labels]))

    def first(self, size: int) -> Duplicates:
        """At most `size` pairs of largest cosine, in that order; ties by labels."""
        order = np.lexsort((self.labels[:, 1], self.labels[:, 0], -self.cosine))[:size]
        return Duplicates(self.cosine[order], self.labels[order])


class Tile(NamedTuple):
    """One super-tile: two blocks of texts and their numbers, which are equal if a block is compared with itself."""

    row: int
    """The number of the block of its rows."""
    rows: Block
    """The texts of this block."""
    column: int
    """The number of the block of its columns."""
    columns: Block
    """The texts of this block."""


@dataclass(frozen=True)
class CosineTiles:
    """The results of some super-tiles together."""

    cells: CosineCells
    """Counts and sums by cell of length intervals."""
    duplicates: Duplicates
    """The near-duplicates of largest cosine."""
    near: dict[int, Nearest]
    """The nearest neighbours of each block's texts, by the block's number; empty lists unless requested."""


@dataclass(frozen=True)
class CosineTile:
    """The results of one super-tile."""

    cells: CosineCells
    """Counts and sums by cell of length intervals."""
    duplicates: Duplicates
    """The near-duplicates of largest cosine."""
    rows: Nearest
    """The nearest columns of each row; empty lists unless requested."""
    columns: Nearest
    """The nearest rows of each column. On the diagonal this is the same object as `rows`, which then contains both."""
