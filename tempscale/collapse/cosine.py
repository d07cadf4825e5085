"""One super-tile of the pair grid: every cosine of two blocks of texts, aggregated in one pass over the product.

On a CPU the product is computed in blocks that fit in the caches, and each block is scanned at once (`kernel`). On a GPU
torch operations compute the same aggregates (`gpu`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float

from tempscale.collapse.aggregates import Block, CosineCells, CosineTile, Duplicates, Precision
from tempscale.collapse.neighbours import Nearest

_ROWS, _COLUMNS = 512, 2048
"""One block of the product: 4 MB of float32, which stay in the caches until they are scanned."""

_COUNTED = 1 << 31
"""Counts are moved from uint32 to int64 after this many pairs, so that the next block cannot overflow."""
_DROPPED = {"float32": 0, "tf32": 13, "bfloat16": 16}
"""Bits of float32's mantissa that are rounded off."""


def rounded(embeddings: Float[np.ndarray, "text dim"], precision: Precision) -> Float[np.ndarray, "text dim"]:
    """Float32 embeddings as a tensor core reads them: rounded to nearest in that precision, ties to even.

    Their products are exact in float32, so the cosines of two devices differ only by the order of summation.

    Args:
        embeddings: float32.
        precision: float32 changes nothing.

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
    """The largest change of the cosine of any two unit vectors by `rounded`: 2u + u², u the unit roundoff.

    |Σ x̂ŷ − Σ xy| ≤ Σ |xy|·(2u + u²), and Σ |xy| ≤ 1 for unit vectors.

    Args:
        precision: u is 2⁻¹¹ for tf32 and 2⁻⁸ for bfloat16; float32 is not rounded.

    Returns:
        0 for float32, 0.00098 for tf32, 0.0078 for bfloat16.
    """
    unit = 2.0 ** (_DROPPED[precision] - 24)
    return 2 * unit + unit**2 if _DROPPED[precision] else 0.0


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

    Products are in the embeddings' precision, sums in float64. Unless `diagonal`, no interval of `rows` may be after an
    interval of `columns`, so that each cell has a ≤ b.

    Args:
        rows, columns: texts in canonical order.
        intervals: how many length intervals there are.
        diagonal: both blocks are the same texts; each unordered pair then counts once, and no text is paired with itself.
        neighbours: how many nearest texts of the other block to keep for every text.
        duplicate: cosine from which a pair counts as a near-duplicate; above 1 no pair does.
        listed: how many near-duplicates to list; all are counted.
        device: where the product is computed.
        precision: the precision of the embeddings, which must already be `rounded` to it; only a GPU becomes faster.

    Returns:
        The aggregates; `aggregates` says how super-tiles are merged.
    """
    if device != "cpu":
        from tempscale.collapse.gpu import cosine_tile_on

        return cosine_tile_on(device, precision, rows, columns, intervals, diagonal, neighbours, duplicate, listed)
    from tempscale.collapse.kernel import scan

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
    bins = np.empty(max(1, min(_COLUMNS, len(columns))), np.int32)
    for start, begin, product in _products(rows, columns, diagonal):
        if counted > _COUNTED:
            np.add(cells.histogram, counts, out=cells.histogram)
            counts[:] = counted = 0
        scan(
            product, start, begin, diagonal, row_interval, starts,
            cells.first, cells.second, cells.pairs, counts, bins,
            near.cosine, near.label, other.cosine, other.label, rows.labels, columns.labels, row_floor, column_floor,
            kind.type(duplicate), cells.duplicates, pair_cosine, pair_ids, kept,
        )  # fmt: skip
        counted += product.size
    np.add(cells.histogram, counts, out=cells.histogram)
    pairs = Duplicates(pair_cosine[: kept[0]], pair_ids[: kept[0]]).first(listed)
    return CosineTile(cells, pairs, near, other)


def nearest(asking: Block, block: Block, neighbours: int) -> Nearest:
    """The nearest texts of a block to each of some texts that ask: what `cosine_tile` keeps for its rows, and nothing else.

    Args:
        asking: the texts that ask; only their embeddings are looked at.
        block: the texts that are asked.
        neighbours: how many to keep for every asking text, at least 1.

    Returns:
        The same to the bit as from `cosine_tile`.
    """
    from tempscale.collapse.kernel import search

    found = Nearest.empty(len(asking), neighbours)
    floor = np.full(len(asking), -np.inf, asking.embeddings.dtype)
    for start, begin, product in _products(asking, block, diagonal=False):
        search(product, start, found.cosine, found.label, block.labels[begin : begin + product.shape[1]], floor)
    return found


def _products(rows: Block, columns: Block, diagonal: bool) -> Iterator[tuple[int, int, np.ndarray]]:
    """Blocks of the product, with their first row and column: each is gone when the next comes. `diagonal` leaves out those
    that are below the diagonal.
    """
    height, width = max(1, min(_ROWS, len(rows))), max(1, min(_COLUMNS, len(columns)))
    buffer = np.empty(height * width, rows.embeddings.dtype)
    for start in range(0, len(rows), height):
        left = rows.embeddings[start : start + height]
        for begin in range(start if diagonal else 0, len(columns), width):
            right = columns.embeddings[begin : begin + width]
            product = buffer[: len(left) * len(right)].reshape(len(left), len(right))
            np.dot(left, right.T, out=product)
            yield start, begin, product
