"""One super-tile of the pair grid: every cosine of two blocks of texts, aggregated in one pass over the product.

On a CPU the product is made in blocks that stay in the caches and each is scanned at once (`cosine_kernel`). On a GPU the
same aggregates come from torch's own operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from tempscale.aggregates import CosineCells
from tempscale.neighbours import Nearest

_ROWS, _COLUMNS = 512, 2048
"""A block of the product: 4 MB of float32, which stay in the caches until they are scanned."""

_COUNTED = 1 << 31
"""Pairs after which counts are moved from uint32 to int64: a further row of blocks still fits."""

Precision = Literal["float32", "tf32", "bfloat16"]
"""What a product's factors are rounded to. Sums are float32 in each product and float64 over the products."""
_DROPPED = {"float32": 0, "tf32": 13, "bfloat16": 16}
"""Bits of float32's mantissa that are rounded away."""


def rounded(embeddings: Float[np.ndarray, "text dim"], precision: Precision) -> Float[np.ndarray, "text dim"]:
    """Float32 embeddings as a tensor core sees them: nearest in that precision, ties to even.

    Their products are exact in float32, so that every device finds the same cosines but for the order of its sums.

    Args:
        embeddings: float32.
        precision: float32 leaves them as they are.

    Returns:
        Float32 whose last 13 (tf32) or 16 (bfloat16) bits are 0.
    """
    dropped = _DROPPED[precision]
    if not dropped:
        return embeddings
    bits = embeddings.view(np.uint32)
    to_nearest = np.uint32((1 << (dropped - 1)) - 1) + ((bits >> dropped) & 1)
    return ((bits + to_nearest) >> dropped << dropped).view(np.float32)


def rounding_error(precision: Precision) -> float:
    """How far the cosine of any two unit vectors can move by `rounded`: 2u + u², u the unit roundoff.

    |Σ x̂ŷ − Σ xy| ≤ Σ |xy|·(2u + u²), and Σ |xy| ≤ 1 for unit vectors.

    Args:
        precision: u is 2⁻¹¹ for tf32 and 2⁻⁸ for bfloat16; float32 is not rounded.

    Returns:
        0 for float32, 0.00098 for tf32, 0.0078 for bfloat16.
    """
    unit = 2.0 ** (_DROPPED[precision] - 24)
    return 2 * unit + unit**2 if _DROPPED[precision] else 0.0


@dataclass(frozen=True)
class Block:
    """Texts of one side of a super-tile, in canonical order."""

    embeddings: Float[np.ndarray, "text dim"]
    """Unit norm, float32."""
    interval: Int[np.ndarray, " text"]
    """Length interval of each, ascending."""
    labels: Int[np.ndarray, " text"]
    """Each text's rank by id, int32: what ties are broken by."""

    def __len__(self) -> int:
        return len(self.embeddings)


@dataclass(frozen=True)
class Duplicates:
    """Near-duplicate pairs of largest cosine, in that order; ties by ids."""

    cosine: Float[np.ndarray, " pair"]
    """Float32, descending."""
    labels: Int[np.ndarray, "pair 2"]
    """Ranks by id, the smaller first."""

    def merged(self, other: Duplicates) -> Duplicates:
        """Both lists, unsorted.

        Args:
            other: of other pairs.

        Returns:
            These pairs, then those.
        """
        return Duplicates(np.concatenate([self.cosine, other.cosine]), np.concatenate([self.labels, other.labels]))

    def first(self, size: int) -> Duplicates:
        """The pairs of largest cosine, in that order; ties by ids.

        Args:
            size: how many.

        Returns:
            So many, or all where there are fewer.
        """
        order = np.lexsort((self.labels[:, 1], self.labels[:, 0], -self.cosine))[:size]
        return Duplicates(self.cosine[order], self.labels[order])


@dataclass(frozen=True)
class CosineTile:
    """What one super-tile leaves."""

    cells: CosineCells
    """Counts and sums by cell of length intervals."""
    duplicates: Duplicates
    """The near-duplicates of largest cosine."""
    rows: Nearest
    """The nearest columns of each row; empty lists where none were asked for."""
    columns: Nearest
    """The nearest rows of each column. On the diagonal the same object as `rows`, which then holds both."""


def cosine_tile(
    rows: Block,
    columns: Block,
    intervals: int,
    *,
    diagonal: bool,
    neighbours: int = 0,
    duplicate: float = 2.0,
    listed: int = 0,
    device: str = "cpu",
    precision: Precision = "float32",
) -> CosineTile:
    """Aggregate the cosines of all pairs of two blocks of unit embeddings: Σ cos and Σ cos² by cell (S1 Fig 1c).

    Products are in the embeddings' precision, sums in float64. No interval of `rows` may lie after one of `columns`
    unless `diagonal`, so that each cell has a ≤ b.

    Args:
        rows, columns: texts in canonical order.
        intervals: how many length intervals there are.
        diagonal: both blocks are the same: each unordered pair counts once, and no text with itself.
        neighbours: how many nearest texts of the other block to keep of every text.
        duplicate: cosine from which a pair counts as a near-duplicate; above 1 none does.
        listed: how many near-duplicates to list; all are counted.
        device: where the product is made.
        precision: of its factors, which must be `rounded` to it already; only a GPU is faster for it.

    Returns:
        The aggregates: the same whichever super-tile is merged first, as `aggregates` says.
    """
    if device != "cpu":
        from tempscale.cosine_torch import cosine_tile_on

        return cosine_tile_on(device, precision, rows, columns, intervals, diagonal, neighbours, duplicate, listed)
    from tempscale.cosine_kernel import scan

    cells = CosineCells.empty(intervals)
    near = Nearest.empty(len(rows), neighbours)
    other = near if diagonal else Nearest.empty(len(columns), neighbours)
    kind, lowest = rows.embeddings.dtype, -np.inf if neighbours else np.inf
    row_floor = np.full(len(rows), lowest, kind)
    column_floor = row_floor if diagonal else np.full(len(columns), lowest, kind)
    pair_cosine, pair_ids = np.empty(listed, np.float32), np.empty((listed, 2), np.int32)
    kept = np.zeros(1, np.int64)
    counts = np.zeros(cells.histogram.shape, np.uint32)
    starts = np.searchsorted(columns.interval, np.arange(intervals + 1)).astype(np.int64)
    row_interval, counted = rows.interval.astype(np.int64), 0
    height, width = max(1, min(_ROWS, len(rows))), max(1, min(_COLUMNS, len(columns)))
    buffer, bins = np.empty(height * width, kind), np.empty(width, np.int32)
    for start in range(0, len(rows), height):
        left = rows.embeddings[start : start + height]
        for begin in range(start if diagonal else 0, len(columns), width):
            right = columns.embeddings[begin : begin + width]
            product = buffer[: len(left) * len(right)].reshape(len(left), len(right))
            np.dot(left, right.T, out=product)
            scan(
                product, start, begin, diagonal, row_interval, starts,
                cells.first, cells.second, cells.pairs, counts, bins,
                near.cosine, near.label, other.cosine, other.label, rows.labels, columns.labels, row_floor, column_floor,
                kind.type(duplicate), cells.duplicates, pair_cosine, pair_ids, kept,
            )  # fmt: skip
        counted += len(left) * len(columns)
        if counted > _COUNTED or start + height >= len(rows):
            np.add(cells.histogram, counts, out=cells.histogram)
            counts[:] = counted = 0
    pairs = Duplicates(pair_cosine[: kept[0]], pair_ids[: kept[0]]).first(listed)
    return CosineTile(cells, pairs, near, other)
