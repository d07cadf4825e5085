"""Mergeable aggregates of pairwise cosine: the same answer whatever was merged first.

Counts and histograms are integers, which merge exactly; float64 sums are merged along a fixed tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

BINS = 4096
"""Histogram bins over [−1, 1]: a percentile is known to 1/2048."""
_TILE_ROWS = 1024

T = TypeVar("T")


def merge_tree(parts: Sequence[T], merge: Callable[[T, T], T]) -> T:
    """Merge parts pairwise along the fixed balanced tree that their order gives.

    Raises:
        ValueError: no part.
    """
    if not parts:
        raise ValueError("nothing to merge")
    level = list(parts)
    while len(level) > 1:
        level = [merge(level[i], level[i + 1]) if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
    return level[0]


@dataclass(frozen=True)
class CosineCells:
    """Count, Σcos, Σcos² and histogram of the unordered pairs of each cell (a ≤ b) of length intervals."""

    pairs: Int[np.ndarray, "interval interval"]
    first: Float[np.ndarray, "interval interval"]
    second: Float[np.ndarray, "interval interval"]
    histogram: Int[np.ndarray, "interval interval bin"]

    @classmethod
    def empty(cls, intervals: int) -> CosineCells:
        """No pairs."""
        shape = (intervals, intervals)
        return cls(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape), np.zeros((*shape, BINS), np.int64))

    def merged(self, other: CosineCells) -> CosineCells:
        """The aggregates of both sets of pairs."""
        return CosineCells(
            self.pairs + other.pairs, self.first + other.first, self.second + other.second, self.histogram + other.histogram
        )

    def percentile(self, a: int, b: int, share: float) -> float:
        """The cosine below which `share` of the pairs of cell (a, b) lie, to one bin; linear inside the bin."""
        counts = self.histogram[a, b]
        cumulative = np.cumsum(counts)
        target = share * cumulative[-1]
        index = int(np.searchsorted(cumulative, target))
        below = cumulative[index - 1] if index > 0 else 0
        inside = (target - below) / counts[index] if counts[index] else 0.0
        return float(-1.0 + (index + inside) * 2.0 / BINS)


def cosine_tile(
    rows: Float[Tensor, "row dim"],
    row_interval: Int[np.ndarray, " row"],
    columns: Float[Tensor, "column dim"],
    column_interval: Int[np.ndarray, " column"],
    intervals: int,
    *,
    diagonal: bool,
) -> CosineCells:
    """Aggregate the cosines of all pairs of two blocks of unit embeddings.

    Products are in the embeddings' precision, sums in float64. Rows and columns must be sorted by interval, and no
    interval of `rows` may lie after one of `columns` unless `diagonal`, so that each cell has a ≤ b.

    Args:
        rows, columns: unit embeddings.
        row_interval, column_interval: their intervals, ascending.
        intervals: how many intervals there are.
        diagonal: both blocks are the same: each unordered pair counts once, and no text with itself.
    """
    cells = CosineCells.empty(intervals)
    segments = list(_segments(column_interval))
    for a, row_start, row_stop in _segments(row_interval):
        for start in range(row_start, row_stop, _TILE_ROWS):
            stop = min(start + _TILE_ROWS, row_stop)
            for b, column_start, column_stop in segments:
                first = max(column_start, start) if diagonal else column_start
                for left in range(first, column_stop, 4 * _TILE_ROWS):
                    right = min(left + 4 * _TILE_ROWS, column_stop)
                    cosines = rows[start:stop] @ columns[left:right].mT
                    kept = cosines.flatten()
                    if diagonal and left < stop:
                        # Above the diagonal only: row start+i, column left+j, kept where column > row.
                        above = torch.ones_like(cosines, dtype=torch.bool).triu(start - left + 1)
                        kept = cosines[above]
                    _add(cells, a, b, kept)
    return cells


def _add(cells: CosineCells, a: int, b: int, cosines: Tensor) -> None:
    exact = cosines.double()
    cells.pairs[a, b] += exact.numel()
    cells.first[a, b] += float(exact.sum())
    cells.second[a, b] += float(torch.dot(exact, exact))
    bins = ((cosines + 1.0) * (BINS / 2)).long().clamp_(0, BINS - 1)
    cells.histogram[a, b] += torch.bincount(bins, minlength=BINS).numpy()


def _segments(interval: Int[np.ndarray, " text"]) -> list[tuple[int, int, int]]:
    """(interval, start, stop) of each run of equal values."""
    edges = np.flatnonzero(np.diff(interval)) + 1
    starts = [0, *edges.tolist()] if len(interval) else []
    return [(int(interval[s]), s, e) for s, e in zip(starts, [*edges.tolist(), len(interval)], strict=False)]
