"""The texts in canonical order as durable blocks, and the super-tiles of their grid: what a tile task reads and leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from jobs import parts
from jobs.layout import Layout, folder
from jobs.runs import Model, Run
from jobs.storage import Storage
from tempscale.aggregates import CosineCells
from tempscale.cosine import Block, CosineTile, Duplicates, Precision, cosine_tile, rounded
from tempscale.neighbours import Nearest
from tempscale.temperature import Temperature


@dataclass(frozen=True)
class Tiling:
    """One grid of super-tiles: where it lies and what is asked of it. Small: sent to every task."""

    storage: Storage
    place: str
    intervals: int
    neighbours: int
    duplicate: float
    listed: int
    precision: Precision = "float32"

    def block(self, number: int) -> str:
        """The name of one block of texts."""
        return f"{self.place}/blocks/block-{number:05d}.parquet"

    def cells(self, i: int, j: int) -> str:
        """The name of a finished tile's aggregates, which are written last."""
        return f"{self.place}/tile-{i:05d}-{j:05d}.parquet"

    def near(self, i: int, j: int, side: str) -> str:
        """The name of a tile's neighbours of its `rows` or `columns`."""
        return f"{self.place}/near/tile-{i:05d}-{j:05d}-{side}.parquet"

    def duplicates(self, i: int, j: int) -> str:
        """The name of a tile's near-duplicates."""
        return f"{self.place}/near/tile-{i:05d}-{j:05d}-duplicates.parquet"


def tiling(run: Run, model: Model, temperature: Temperature, layout: Layout) -> Tiling:
    """The grid of one model and temperature."""
    analysis = run.config.analysis
    return Tiling(
        run.storage, folder(run, "cosine", model, temperature), len(layout.edges), analysis.neighbours,
        analysis.near_duplicate, analysis.worst_duplicates, analysis.cosine_precision,
    )  # fmt: skip


def dimensions(run: Run, model: Model, temperature: Temperature) -> int:
    """Dimensions of the embeddings in texts/."""
    table = run.storage.read_table(run.storage.list(run.place("texts", model, temperature))[0], ["embedding"])
    return int(table.schema.field("embedding").type.list_size)


def write_blocks(
    tiling: Tiling, texts: str, first: int, bounds: list[tuple[int, int]], part: np.ndarray, row: np.ndarray,
    interval: np.ndarray, labels: np.ndarray,
) -> None:  # fmt: skip
    """Gather consecutive blocks in one pass over the parts of texts/ and leave them.

    Args:
        tiling: the grid.
        texts: the folder of the parts.
        first: number of the first of these blocks.
        bounds: [start, stop) of each, counted from the first one's start.
        part, row, interval, labels: of every text of these blocks, in canonical order.
    """
    names = tiling.storage.list(texts)
    gathered: np.ndarray | None = None
    for number in np.unique(part):
        matrix = parts.matrix(tiling.storage.read_table(names[number], ["embedding"]), "embedding")
        if gathered is None:
            gathered = np.empty((len(part), matrix.shape[1]), dtype=np.float32)
        here = np.flatnonzero(part == number)
        gathered[here] = matrix[row[here]]
    assert gathered is not None, "a block has at least one text"
    for k, (start, stop) in enumerate(bounds):
        own = gathered[start:stop]
        columns = {"embedding": parts.row_bytes(own), "interval": interval[start:stop], "label": labels[start:stop]}
        # Embeddings hardly shrink, and each block is read once for every tile of its row and column.
        tiling.storage.write_table(tiling.block(first + k), parts.blocks(own.shape[1]).build(columns), "none")


@lru_cache(maxsize=2)
def read_block(storage_root: str, name: str, precision: Precision = "float32") -> Block:
    """A block of texts, rounded to a precision. The last two stay in memory: a row of tiles shares its rows."""
    table = Storage(storage_root).read_table(name)
    embeddings = rounded(parts.matrix_of_bytes(table, "embedding"), precision)
    return Block(embeddings, table.column("interval").to_numpy(), table.column("label").to_numpy())


def work(tiling: Tiling, i: int, j: int, device: str = "cpu") -> int:
    """Work through one super-tile and leave its parts, its aggregates last; returns its pairs."""
    rows = read_block(tiling.storage.root, tiling.block(i), tiling.precision)
    columns = rows if i == j else read_block(tiling.storage.root, tiling.block(j), tiling.precision)
    tile = cosine_tile(
        rows, columns, tiling.intervals, diagonal=i == j, neighbours=tiling.neighbours, duplicate=tiling.duplicate,
        listed=tiling.listed, device=device, precision=tiling.precision,
    )  # fmt: skip
    _write(tiling, i, j, tile)
    return int(tile.cells.pairs.sum())


def _write(tiling: Tiling, i: int, j: int, tile: CosineTile) -> None:
    storage = tiling.storage
    if tiling.neighbours:
        for side, near in (("rows", tile.rows), ("columns", tile.columns))[: 1 if i == j else 2]:
            storage.write_table(tiling.near(i, j, side), _near_table(near))
    pairs = {"cosine": tile.duplicates.cosine, "first": tile.duplicates.labels[:, 0], "second": tile.duplicates.labels[:, 1]}
    storage.write_table(tiling.duplicates(i, j), parts.DUPLICATE_TILE.build(pairs))
    cells = tile.cells
    found: list[dict[str, Any]] = [
        {"a": a, "b": b, "pairs": int(cells.pairs[a, b]), "first": cells.first[a, b], "second": cells.second[a, b]}
        | {"duplicates": int(cells.duplicates[a, b]), "histogram": cells.histogram[a, b]}
        for a in range(tiling.intervals)
        for b in range(a, tiling.intervals)
        if cells.pairs[a, b]
    ]
    storage.write_table(tiling.cells(i, j), parts.COSINE_TILE.build_rows(found))


def _near_table(near: Nearest) -> pa.Table:
    lists = {"cosine": parts.fixed_lists(near.cosine), "label": parts.fixed_lists(near.label)}
    return parts.near_tile(near.cosine.shape[1]).build(lists)


def read_near(tiling: Tiling, i: int, j: int, side: str) -> Nearest:
    """The neighbours that one tile found for its rows or columns."""
    table = tiling.storage.read_table(tiling.near(i, j, side))
    return Nearest(parts.matrix(table, "cosine"), parts.matrix(table, "label"))


def read_duplicates(tiling: Tiling, i: int, j: int) -> Duplicates:
    """The near-duplicates that one tile found."""
    table = tiling.storage.read_table(tiling.duplicates(i, j))
    first, second = (table.column(name).to_numpy() for name in ("first", "second"))
    return Duplicates(table.column("cosine").to_numpy(), np.stack([first, second], axis=1))


def read_cells(tiling: Tiling, i: int, j: int) -> CosineCells:
    """The aggregates of one finished tile."""
    cells = CosineCells.empty(tiling.intervals)
    table = tiling.storage.read_table(tiling.cells(i, j))
    if table.num_rows:
        here = table.column("a").to_numpy(), table.column("b").to_numpy()
        for name in ("pairs", "first", "second", "duplicates"):
            getattr(cells, name)[here] = table.column(name).to_numpy()
        cells.histogram[here] = parts.matrix(table, "histogram")
    return cells
