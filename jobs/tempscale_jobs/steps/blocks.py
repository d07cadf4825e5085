"""Durable blocks of texts in canonical order, and the input and output of tile tasks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.collapse import tiles
from tempscale.collapse.aggregates import Block, CosineCells, Duplicates, Precision, Tile, merge_tree
from tempscale.collapse.cosine import cosine_tiles, rounded
from tempscale.collapse.neighbours import Nearest
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import BEGUN, dimensions, numbered, tile
from tempscale_jobs.runs.memory import return_freed
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables import parts
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import results

GATHERED_BYTES = 256 << 20
"""About the bytes of embeddings that a task gathers into blocks."""
_RESULTS = 64
"""The most results of tasks that the driver merges."""
_computing = threading.Lock()
"""An actor with a GPU has two panels: it writes the results of one while it compares the other."""
_KEPT_BYTES = 32 << 20
"""The most bytes of blocks that a process caches, if they are more than two: tiles share their blocks."""

HELD_BYTES = 3 << 30
"""Bytes of blocks that a process with a GPU caches: 1.5 million texts of 384 dimensions, or a panel and half of another."""
_READERS = 6
"""Threads that read blocks for a GPU: object storage limits the rate of each connection."""

COSINE = "partials/cosine"
"""The folder of a grid and of its results."""


@dataclass(frozen=True)
class Tiling:
    """Folder and settings of one grid of blocks; it is small, because every task receives it."""

    storage: Storage
    place: str
    intervals: int
    neighbours: int
    duplicate: float
    listed: int
    count: int
    """The number of blocks."""
    together: int = 1
    """Blocks of a panel."""
    precision: Precision = "float32"
    run: str = ""
    """It distinguishes this run from an earlier one in the same folder, whose blocks a process may have cached."""
    gathered: int = 0
    """About the number of texts that a task gathers into blocks."""
    labelled: bool = True
    """Whether texts have labels, which only compared pairs need."""

    @property
    def panels(self) -> int:
        """The number of panels."""
        return -(-self.count // self.together)

    def panel(self, number: int) -> range:
        """The blocks of one panel."""
        return range(number * self.together, min((number + 1) * self.together, self.count))

    def block(self, number: int) -> str:
        """The name of one block of texts."""
        return f"{self.place}/blocks/block-{number:08d}.parquet"

    def cells(self, i: int, j: int) -> str:
        """The name of the aggregates of two panels, which are written last."""
        return tile(self.place, i, j)

    def written(self, i: int, j: int, near: bool) -> list[str]:
        """The names of all files of two compared panels; without `near`, only those that remain after their merge."""
        if not near:
            return [self.cells(i, j)]
        sides = (["rows", "columns"] if i != j else ["rows"]) if self.neighbours else []
        return [self.cells(i, j), self.duplicates(i, j), *(self.near(i, j, side) for side in sides)]

    def near(self, i: int, j: int, side: str) -> str:
        """The name of the neighbours from two panels, for the texts of the `rows` or `columns`."""
        return tile(f"{self.place}/near", i, j, side)

    def found(self, who: str, number: int) -> str:
        """The name of a part of the merged nearest texts of the `corpus` or of `queries`."""
        return numbered(f"{self.place}/near/{who}", number)

    def duplicates(self, i: int, j: int) -> str:
        """The name of the near-duplicates of two panels."""
        return tile(f"{self.place}/near", i, j, "duplicates")


def tiling(scope: Embedded, temperature: Temperature) -> tuple[Tiling, list[tuple[int, int]]]:
    """The grid of one model and temperature, and [start, stop) of each of its blocks in canonical order."""
    run, model, layout, analysis = scope.run, scope.model, scope.texts, scope.analysis
    texts = len(layout)
    dim = dimensions(run, model, temperature)
    bounds, place = tiles.blocks(texts, tiles.block_size(texts, dim)), run.place(COSINE, model, temperature)
    grid = Tiling(
        run.storage, place, len(layout.edges), analysis.neighbours, analysis.near_duplicate, analysis.worst_duplicates,
        len(bounds), kept_panel_size(run.storage, place, len(bounds), scope.cluster.gpus > 0),
        analysis.cosine_precision, str(run.storage.read_object(BEGUN)["run"]), GATHERED_BYTES // (4 * dim),
        analysis.compares,
    )  # fmt: skip
    return grid, bounds


def kept_panel_size(storage: Storage, place: str, count: int, on_gpus: bool) -> int:
    """Blocks of a panel; for a large grid a file keeps the number, so that a run can be resumed on any machine."""
    of_cpus, of_gpus = tiles.panel_size(count), tiles.panel_size(count, tiles.LARGEST_PANEL_OF_GPUS)
    if of_cpus == of_gpus:
        return of_cpus
    name = f"{place}/panels.json"
    if not storage.exists(name):
        storage.write_json(name, {"blocks": of_gpus if on_gpus else of_cpus})
    return int(storage.read_json(name)["blocks"])


class Merging(NamedTuple):
    """The two functions that merge the results of blocks, or of pairs of panels."""

    function: Callable[..., Any]
    """Merges those of consecutive items in a task: `function(grid, items, *shared)`."""
    merge: Callable[[Any, Any], Any]
    """Merges two results of tasks."""
    name: str
    shared: tuple[Any, ...] = ()


def merged(cluster: Cluster, grid: Tiling, items: Sequence[Any], how: Merging) -> Any:
    """Merge the results of blocks, or of pairs of panels, in tasks and then here; the same to the bit as `merge_tree`."""
    work = [(grid, items[span.start : span.stop], *how.shared) for span in tiles.runs(len(items), _RESULTS)]
    return merge_tree(results(cluster, how.function, work, how.name), how.merge)


class Gathered(NamedTuple):
    """The texts of consecutive blocks, in canonical order."""

    part: np.ndarray
    """The part of texts/ that has each text."""
    row: np.ndarray
    """The row in that part."""
    interval: np.ndarray
    label: np.ndarray


def write_blocks(
    tiling: Tiling, names: dict[int, str], first: int, bounds: list[tuple[int, int]], given: Gathered
) -> None:  # fmt: skip
    """Write consecutive blocks from number `first` on, each of the texts [start, stop), from the parts `names` by number."""
    part, row, interval, labels = given
    gathered: np.ndarray | None = None
    tables, order = list[pa.Table](), list[np.ndarray]()
    for number, name in names.items():
        places = np.flatnonzero(part == number)
        table = tiling.storage.take(name, ["embedding", "text_id", "document"], row[places])
        matrix = parts.matrix(table, "embedding")
        if gathered is None:
            gathered = np.empty((len(part), matrix.shape[1]), dtype=np.float32)
        gathered[places] = matrix
        tables.append(table.select(["text_id", "document"]))
        order.append(places)
    assert gathered is not None, "a block has at least one text"
    texts = pa.concat_tables(tables).take(pa.array(np.argsort(np.concatenate(order))))
    for k, (start, stop) in enumerate(bounds):
        vectors = gathered[start:stop]
        columns = {"embedding": parts.row_bytes(vectors), "interval": interval[start:stop], "label": labels[start:stop]}
        columns |= {name: texts.column(name)[start:stop] for name in texts.column_names}
        # Uncompressed: embeddings compress badly, and a block is read for every tile of its row and column.
        tiling.storage.write_table(tiling.block(first + k), parts.blocks(vectors.shape[1]).build(columns), "none")
    del gathered, vectors, matrix, table, columns
    return_freed()  # Ray reuses the process for other steps.


_held: dict[tuple[str, str, str, Precision], Block] = {}
"""Blocks that a process with a GPU caches, in the order in which they were read."""
_read: dict[tuple[str, str, str, Precision], Block] = {}
"""Blocks that `read_block` caches, by folder, run, name and precision; the last used last."""


def kept(size: float) -> int:
    """The number of blocks of `size` bytes that a process caches."""
    return max(2, int(_KEPT_BYTES // size))


def read_block(tiling: Tiling, number: int, precision: Precision = "float32") -> Block:
    """A block of texts, rounded to `precision`, from the cache or from storage."""
    key = tiling.storage.root, tiling.run, tiling.block(number), precision
    block = _read.pop(key) if key in _read else _from_storage(tiling, number, precision)
    _read[key] = block
    while len(_read) > kept(max(cached.embeddings.nbytes for cached in _read.values())):
        del _read[next(iter(_read))]
    return block


def _from_storage(tiling: Tiling, number: int, precision: Precision) -> Block:
    table = tiling.storage.read_table(tiling.block(number), ["embedding", "interval", "label"])
    embeddings = rounded(parts.matrix_of_bytes(table, "embedding"), precision)
    return Block(embeddings, table.column("interval").to_numpy(), table.column("label").to_numpy())


def compare_panels(tiling: Tiling, i: int, j: int, device: str = "cpu") -> int:
    """Compute the super-tiles of two panels, write their results (the aggregates last); return the number of pairs."""
    tiles = _tiles_of(tiling, i, j) if device == "cpu" else tiles_read_once(tiling, i, j)
    with _computing:
        result = cosine_tiles(
            tiles, tiling.intervals, neighbours=tiling.neighbours, duplicate=tiling.duplicate, listed=tiling.listed,
            device=device, precision=tiling.precision,
        )  # fmt: skip
    cells, pairs = result.cells, result.duplicates
    if tiling.neighbours:
        for side, panel in {"columns": j, "rows": i}.items() if i != j else [("rows", i)]:
            tiling.storage.write_table(tiling.near(i, j, side), near_table([result.near[k] for k in tiling.panel(panel)]))
    listed = {"cosine": pairs.cosine, "first": pairs.labels[:, 0], "second": pairs.labels[:, 1]}
    tiling.storage.write_table(tiling.duplicates(i, j), parts.DUPLICATE_TILE.build(listed))
    cell_rows: list[dict[str, Any]] = [
        {"a": a, "b": b, "pairs": int(cells.pairs[a, b]), "first": cells.first[a, b], "second": cells.second[a, b]}
        | {"duplicates": int(cells.duplicates[a, b]), "histogram": cells.histogram[a, b]}
        for a in range(tiling.intervals)
        for b in range(a, tiling.intervals)
        if cells.pairs[a, b]
    ]
    tiling.storage.write_table(tiling.cells(i, j), parts.COSINE_TILE.build_rows(cell_rows))
    return int(cells.pairs.sum())


def _tiles_of(tiling: Tiling, i: int, j: int) -> Iterator[Tile]:
    """The super-tiles of two panels, row by row, for a CPU: a tile takes a hundred times as long to compute as to read."""
    for a in tiling.panel(i):
        rows = read_block(tiling, a, tiling.precision)
        for b in (b for b in tiling.panel(j) if a <= b):
            yield Tile(a, rows, b, rows if a == b else read_block(tiling, b, tiling.precision))


def tiles_read_once(tiling: Tiling, i: int, j: int) -> Iterator[Tile]:
    """The super-tiles of two panels for a GPU, which is faster than storage: each block is read once.

    The second panel's blocks stay in memory, and as many others as fit, which the next panels may share.
    """
    first, second = tiling.panel(i), tiling.panel(j)
    keys = {
        number: (tiling.storage.root, tiling.run, tiling.block(number), tiling.precision) for number in {*first, *second}
    }
    order = list(dict.fromkeys([first[0], *second, *first]))
    read = _read_ahead(tiling, [number for number in order if keys[number] not in _held])
    staying, coming = {keys[number] for number in second}, set(keys.values())

    def block(number: int) -> Block:
        key = keys[number]
        coming.discard(key)
        if key not in _held:
            _held[key] = next(read)
            _make_room(staying | coming | {key})
        return _held[key]

    for a in first:
        rows = block(a)
        for b in (b for b in second if a <= b):
            yield Tile(a, rows, b, rows if a == b else block(b))


def _make_room(needed: set[tuple[str, str, str, Precision]]) -> None:
    """Remove unneeded blocks from the cache, the oldest first, until the others fit."""
    size = sum(block.embeddings.nbytes for block in _held.values())
    for key in [key for key in _held if key not in needed]:
        if size <= HELD_BYTES:
            return
        size -= _held.pop(key).embeddings.nbytes


def _read_ahead(tiling: Tiling, numbers: Sequence[int]) -> Iterator[Block]:
    """Blocks in this order; a few threads read ahead."""
    with ThreadPoolExecutor(_READERS) as threads:
        flying = deque[Future[Block]]()
        for number in numbers:
            flying.append(threads.submit(_from_storage, tiling, number, tiling.precision))
            if len(flying) > _READERS:
                yield flying.popleft().result()
        while flying:
            yield flying.popleft().result()


def near_table(near: Sequence[Nearest]) -> pa.Table:
    """The neighbours of the texts of consecutive blocks."""
    cosine, label = (np.concatenate([getattr(block, name) for block in near]) for name in ("cosine", "label"))
    return parts.near_tile(cosine.shape[1]).build({"cosine": parts.fixed_lists(cosine), "label": parts.fixed_lists(label)})


def read_near(tiling: Tiling, i: int, j: int, side: str) -> Nearest:
    """The neighbours from two panels for the texts of one of them."""
    table = tiling.storage.read_table(tiling.near(i, j, side))
    return Nearest(parts.matrix(table, "cosine"), parts.matrix(table, "label"))


def read_duplicates(tiling: Tiling, i: int, j: int) -> Duplicates:
    """The near-duplicates of two panels."""
    table = tiling.storage.read_table(tiling.duplicates(i, j))
    first, second = (table.column(name).to_numpy() for name in ("first", "second"))
    return Duplicates(table.column("cosine").to_numpy(), np.stack([first, second], axis=1))


def read_cells(tiling: Tiling, i: int, j: int) -> CosineCells:
    """The aggregates of two finished panels."""
    cells = CosineCells.empty(tiling.intervals)
    table = tiling.storage.read_table(tiling.cells(i, j))
    if table.num_rows:
        index = table.column("a").to_numpy(), table.column("b").to_numpy()
        for name in ("pairs", "first", "second", "duplicates"):
            getattr(cells, name)[index] = table.column(name).to_numpy()
        cells.histogram[index] = parts.matrix(table, "histogram")
    return cells
