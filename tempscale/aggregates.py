"""Mergeable aggregates of pairwise cosine: the same answer whatever was merged first.

Counts and histograms are integers, which merge exactly; float64 sums are merged along a fixed tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Int

BINS = 4096
"""Histogram bins over [−1, 1]: a percentile is known to 1/2048."""

T = TypeVar("T")
"""What is merged."""


def merge_tree(parts: Iterable[T], merge: Callable[[T, T], T]) -> T:
    """Merge parts pairwise along the fixed balanced tree that their order gives, holding one part a level of it.

    Args:
        parts: in their canonical order, at least one.
        merge: of two neighbours, the first of them first.

    Returns:
        The whole: equal to the bit for equal parts in the same order.

    Raises:
        ValueError: no part.
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
    _, whole = waiting.pop()
    while waiting:
        whole = merge(waiting.pop()[1], whole)
    return whole


@dataclass(frozen=True)
class CosineCells:
    """Count, Σcos, Σcos² and histogram of the unordered pairs of each cell (a ≤ b) of length intervals."""

    pairs: Int[np.ndarray, "interval interval"]
    """How many, int64; 0 below the diagonal, as in all of these."""
    first: Float[np.ndarray, "interval interval"]
    """Σ cos, float64."""
    second: Float[np.ndarray, "interval interval"]
    """Σ cos², float64."""
    histogram: Int[np.ndarray, "interval interval bin"]
    """Pairs by cosine, int64, in `BINS` equal bins from −1 to 1."""
    duplicates: Int[np.ndarray, "interval interval"]
    """Pairs whose cosine reaches the threshold of a near-duplicate."""

    @classmethod
    def empty(cls, intervals: int) -> CosineCells:
        """No pairs.

        Args:
            intervals: how many length intervals there are.

        Returns:
            Zeros.
        """
        shape = (intervals, intervals)
        counts, bins = np.zeros(shape, np.int64), np.zeros((*shape, BINS), np.int64)
        return cls(counts, np.zeros(shape), np.zeros(shape), bins, counts.copy())

    def merged(self, other: CosineCells) -> CosineCells:
        """The aggregates of both sets of pairs.

        Args:
            other: of other pairs, over the same intervals.

        Returns:
            Sums of both; the integers exactly.
        """
        return CosineCells(
            self.pairs + other.pairs, self.first + other.first, self.second + other.second,
            self.histogram + other.histogram, self.duplicates + other.duplicates,
        )  # fmt: skip

    def percentile(self, a: int, b: int, share: float) -> float:
        """The cosine below which a share of the pairs of one cell lie, to one bin; linear inside the bin.

        Args:
            a: one interval, from 0.
            b: the other, ≥ a.
            share: from 0 to 1.

        Returns:
            In [−1, 1], right to 1/2048; −1 for a cell without pairs.
        """
        return _percentile(self.histogram[a, b], share)

    def overall_percentile(self, share: float) -> float:
        """The same of the pairs of all cells.

        Args:
            share: from 0 to 1.

        Returns:
            In [−1, 1], right to 1/2048.
        """
        return _percentile(self.histogram.sum((0, 1)), share)


def _percentile(counts: Int[np.ndarray, " bin"], share: float) -> float:
    cumulative = np.cumsum(counts)
    target = share * cumulative[-1]
    index = int(np.searchsorted(cumulative, target))
    below = cumulative[index - 1] if index > 0 else 0
    inside = (target - below) / counts[index] if counts[index] else 0.0
    return float(-1.0 + (index + inside) * 2.0 / BINS)
