"""Super-tiles of the pair grid: every cosine of two blocks of texts, aggregated in one pass over the product.

On a CPU the product is computed in blocks that fit in the caches, and each block is scanned at once (`kernel`). On a GPU
torch operations compute the same aggregates (`gpu`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from tempscale.collapse.aggregates import (
    Block,
    CosineCells,
    CosineTile,
    CosineTiles,
    Duplicates,
    Precision,
    Tile,
    merge_tree,
)
from tempscale.collapse.neighbours import Nearest

ROWS, COLUMNS = 512, 2048
"""One block of the product: 4 MB of float32, which stay in the caches until they are scanned."""

COUNTED = 1 << 31
"""Counts are moved from uint32 to int64 after this many pairs, so that the next block cannot overflow."""
_DROPPED = {"float32": 0, "tf32": 13, "bfloat16": 16}
"""Bits of float32's mantissa that are rounded off."""


def rounded(embeddings: Float[np.ndarray, "text dim"], precision: Precision) -> Float[np.ndarray, "text dim"]:
    """Float32 embeddings as a tensor core reads them: rounded to nearest in that precision, ties to even.

    Their products are exact in float32, so the cosines of two devices differ only by the order of summation and by the
    truncation of sums in tensor cores: see `truncation_error`.

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


def truncation_error(precision: Precision, dim: int) -> float:
    """The largest relative error of a cosine by truncation in a GPU's tensor cores, d/4·2⁻²³.

    They truncate a sum by up to 2⁻²³ of it at least after every fourth product, so that cosines are too near 0. The largest
    error measured on an H100 is a third of the bound: 7·10⁻⁶ for tf32 and 3·10⁻⁶ for bfloat16 at 768 dimensions.

    Args:
        precision: products in float32 are rounded to nearest, and not truncated.
        dim: d, the dimensions of the embeddings.

    Returns:
        0 for float32; 2.3e-5 for 768 dimensions otherwise.
    """
    return 0.0 if precision == "float32" else dim / 4 * 2.0**-23


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
        duplicate: the cosine from which a pair counts as a near-duplicate; above 1 no pair does.
        listed: how many near-duplicates to list; all are counted.
        device: where the product is computed.
        precision: the precision of the embeddings, which must already be `rounded` to it; only a GPU becomes faster.

    Returns:
        The aggregates; `aggregates` says how super-tiles are merged.
    """
    if diagonal:
        columns = rows
    tile = Tile(0, rows, 0 if diagonal else 1, columns)
    result = cosine_tiles(
        [tile], intervals, neighbours=neighbours, duplicate=duplicate, listed=listed, device=device, precision=precision
    )
    return CosineTile(result.cells, result.duplicates, result.near[tile.row], result.near[tile.column])


def cosine_tiles(
    tiles: Iterable[Tile],
    intervals: int,
    *,
    neighbours: int = 0,
    duplicate: float = 2.0,
    listed: int = 0,
    device: str = "cpu",
    precision: Precision = "float32",
) -> CosineTiles:
    """Aggregate several super-tiles into the same counts and lists; the lists of one tile shorten the search of the next.

    Args:
        tiles: at least one, none of them twice; they are consumed one at a time.
        intervals: how many length intervals there are.
        neighbours: how many nearest texts to keep for every text, over all blocks that it is compared with.
        duplicate: as in `cosine_tile`.
        listed: how many near-duplicates of all tiles to list.
        device: where the products are computed.
        precision: as in `cosine_tile`.

    Returns:
        The merged results of the single tiles, to the bit: sums along the tree of `aggregates.merge_tree`.

    Raises:
        ValueError: there is no tile.
    """
    if device != "cpu":
        from tempscale.collapse.gpu import Search, cosine_tiles_on

        return cosine_tiles_on(device, precision, tiles, Search(intervals, neighbours, duplicate, listed))
    results = _TileResults(intervals, neighbours, duplicate, listed)
    first, second = merge_tree(map(results.add, tiles), lambda left, right: (left[0] + right[0], left[1] + right[1]))
    return results.result(first, second)


class _TileResults:
    """The results of tiles on a CPU, without the sums, which are merged along a tree."""

    def __init__(self, intervals: int, neighbours: int, duplicate: float, listed: int) -> None:
        self._intervals, self._neighbours, self._duplicate, self._listed = intervals, neighbours, duplicate, listed
        self._cells = CosineCells.empty(intervals)
        self._near: dict[int, Nearest] = {}
        self._pair_cosine, self._pair_ids = np.empty(listed, np.float32), np.empty((listed, 2), np.int32)
        self._kept = np.zeros(1, np.int64)
        self._counts, self._counted = np.zeros(self._cells.histogram.shape, np.uint32), 0
        self._bins = np.empty(COLUMNS, np.int32)

    def add(self, tile: Tile) -> tuple[np.ndarray, np.ndarray]:
        """Σcos and Σcos² of a tile, by cell; all other results are added to those of earlier tiles."""
        from tempscale.collapse.kernel import scan

        rows, columns, diagonal = tile.rows, tile.columns, tile.row == tile.column
        row_lists, row_floor = self._lists(tile.row, rows)
        column_lists, column_floor = (row_lists, row_floor) if diagonal else self._lists(tile.column, columns)
        first, second = np.zeros((2, self._intervals, self._intervals))
        starts = np.searchsorted(columns.interval, np.arange(self._intervals + 1)).astype(np.int64)
        row_interval, duplicate = rows.interval.astype(np.int64), rows.embeddings.dtype.type(self._duplicate)
        for start, begin, product in _products(rows, columns, diagonal):
            if self._counted > COUNTED:
                self._move()
            scan(
                product, start, begin, diagonal, row_interval, starts,
                first, second, self._cells.pairs, self._counts, self._bins,
                row_lists.cosine, row_lists.label, column_lists.cosine, column_lists.label,
                rows.labels, columns.labels, row_floor, column_floor,
                duplicate, self._cells.duplicates, self._pair_cosine, self._pair_ids, self._kept,
            )  # fmt: skip
            self._counted += product.size
        return first, second

    def _lists(self, number: int, block: Block) -> tuple[Nearest, np.ndarray]:
        """The nearest texts found so far for a block, and the least cosine that each list still accepts."""
        if number not in self._near:
            self._near[number] = Nearest.empty(len(block), self._neighbours)
        near, kind = self._near[number], block.embeddings.dtype
        return near, near.cosine[:, -1].astype(kind) if self._neighbours else np.full(len(block), np.inf, kind)

    def _move(self) -> None:
        """Add the counts of 32 bits to those of 64, and reset them."""
        np.add(self._cells.histogram, self._counts, out=self._cells.histogram)
        self._counts[:] = self._counted = 0

    def result(self, first: np.ndarray, second: np.ndarray) -> CosineTiles:
        """The results of all tiles, with their merged sums."""
        self._move()
        count = int(self._kept[0])
        pairs = Duplicates(self._pair_cosine[:count], self._pair_ids[:count]).first(self._listed)
        return CosineTiles(replace(self._cells, first=first, second=second), pairs, self._near)


def nearest(queries: Block, blocks: Iterable[Block], neighbours: int) -> Nearest:
    """The nearest texts of some blocks to each query: the same lists, to the bit, as `cosine_tiles` keeps for its rows.

    Args:
        queries: only their embeddings are used.
        blocks: the texts, none of them twice; they are consumed one at a time.
        neighbours: how many texts to keep for every query, at least 1.

    Returns:
        One list a query.
    """
    from tempscale.collapse.kernel import search

    result = Nearest.empty(len(queries), neighbours)
    floor = np.full(len(queries), -np.inf, queries.embeddings.dtype)
    for block in blocks:
        for start, begin, product in _products(queries, block, diagonal=False):
            search(product, start, result.cosine, result.label, block.labels[begin : begin + product.shape[1]], floor)
    return result


def nearest_corrected(
    queries: Block, blocks: Iterable[tuple[Block, Float[np.ndarray, " text"]]], neighbours: int
) -> tuple[Nearest, Nearest]:
    """The nearest texts by cosine, and by cosine minus a number of each text: see `correction.values.Length`.

        s(q, d) = ⟨q, d⟩ − f_d

    Args:
        queries: only their embeddings are used.
        blocks: the texts, none of them twice, each block with f of its texts, float32.
        neighbours: how many texts to keep for every query, at least 1.

    Returns:
        The lists by cosine, and those by s, which have s instead of cosines.
    """
    from tempscale.collapse.kernel import search

    plain, moved = (Nearest.empty(len(queries), neighbours) for _ in range(2))
    floor, floor_moved = (np.full(len(queries), -np.inf, queries.embeddings.dtype) for _ in range(2))
    for block, offsets in blocks:
        for start, begin, product in _products(queries, block, diagonal=False):
            window = slice(begin, begin + product.shape[1])
            search(product, start, plain.cosine, plain.label, block.labels[window], floor)
            np.subtract(product, offsets[window], out=product)
            search(product, start, moved.cosine, moved.label, block.labels[window], floor_moved)
    return plain, moved


def _products(rows: Block, columns: Block, diagonal: bool) -> Iterator[tuple[int, int, np.ndarray]]:
    """Blocks of the product with their first row and column, in one buffer; `diagonal` skips those below the diagonal."""
    height, width = max(1, min(ROWS, len(rows))), max(1, min(COLUMNS, len(columns)))
    buffer = np.empty(height * width, rows.embeddings.dtype)
    for start in range(0, len(rows), height):
        left = rows.embeddings[start : start + height]
        for begin in range(start if diagonal else 0, len(columns), width):
            right = columns.embeddings[begin : begin + width]
            product = buffer[: len(left) * len(right)].reshape(len(left), len(right))
            np.dot(left, right.T, out=product)
            yield start, begin, product
