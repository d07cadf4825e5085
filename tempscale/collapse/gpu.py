"""Super-tiles of cosines from torch operations, for a GPU: the same aggregates as the single pass on a CPU.

Blocks, lists of neighbours and counts stay on the device until the last tile. Only those pairs of a product are handled one
by one that reach the near-duplicate threshold or the current last neighbour of one of their texts; with Triton one kernel
finds them and sums in one reading of the product (`fused`). Neighbours are exact, ties included: a cosine and a label are
packed into one integer that sorts by both.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tempscale.collapse.aggregates import (
    BINS,
    Block,
    CosineCells,
    CosineTiles,
    Duplicates,
    Precision,
    Tile,
    merge_tree,
)
from tempscale.collapse.neighbours import NOBODY, Nearest
from tempscale.tf32 import tf32_products

ROWS, COLUMNS = 16_384, 16_384
"""One block of the product: 1 GB of float32."""
LOOKED = 1 << 22
"""Pairs of a product that are handled together, one by one: 200 MB of places, labels and sorted integers."""
BLOCKS_BYTES = 1 << 30, 3 << 30
"""The least and the most bytes of blocks that stay on a device if they are more than two; else an eighth of the device. The
most holds a panel and half of another.
"""
_NONE = -(1 << 63)
_LARGEST = 1.0 + 1e-5
"""No cosine of unit vectors is larger, whatever its rounding."""
_PART = 8
"""A list that is not full takes its floor from at least one in so many of a block's pairs; see `_TileResults._floors`."""
WAITING = 4
"""Pairs wait until they are a quarter of the entries of their lists, and are then sorted into the lists together."""
EXACT = 1 << 24
"""torch counts in float32, which is exact below this."""
FUSED = "TEMPSCALE_FUSED"
"""The environment variable that switches the kernel off (0), or on where it would not be used (1)."""


class Search(NamedTuple):
    """What `collapse.cosine.cosine_tiles` searches for in tiles."""

    intervals: int
    neighbours: int
    duplicate: float
    listed: int


def cosine_tiles_on(device: str, precision: Precision, tiles: Iterable[Tile], wanted: Search) -> CosineTiles:
    """`collapse.cosine.cosine_tiles` on a device such as «cuda»; the result is on the CPU."""
    results = _TileResults(device, precision, wanted)
    sums = merge_tree(map(results.add, tiles), torch.add)
    return results.result(sums)


@lru_cache(maxsize=8)
def serves(device: str) -> bool:
    """Whether the kernel is used on a device: Triton is installed, and the kernel's results equal torch's."""
    setting = os.environ.get(FUSED, "")
    if setting == "0" or (not device.startswith("cuda") and setting != "1"):
        return False
    try:
        from tempscale.collapse import fused

        cosines = torch.linspace(-1, 1, 70 * 600, device=device).view(70, 600).sin()
        cosines[3:] = cosines[3:].masked_fill(cosines[3:] > 0.5, -torch.inf)
        row_floor, column_floor = (torch.full((n,), 0.4, device=device) for n in cosines.shape)
        result = fused.scan(cosines, row_floor, column_floor, 2.0, cosines.numel())
        expected = (cosines.flatten() >= 0.4).nonzero()[:, 0]
        finite = cosines.double().masked_fill(cosines == -torch.inf, 0.0)
        sums = bool(torch.isclose(result.first, finite.sum()) & torch.isclose(result.second, finite.square().sum()))
        return sums and torch.equal(result.places[: int(result.number)].sort().values.long(), expected)
    except Exception:  # Whatever Triton lacks, or raises when it compiles: torch's operations replace it.
        return False


class _Block(NamedTuple):
    """The texts of one side of a tile, on a device."""

    embeddings: Tensor
    labels: Tensor


uploaded_blocks: dict[tuple[int, str, str], tuple[Block, _Block]] = {}
"""Blocks on a device by the identity of the original, which is kept with them; the last used last."""


def _room(device: str) -> int:
    """Bytes of the blocks that stay on a device."""
    least, most = BLOCKS_BYTES
    if not device.startswith("cuda"):
        return least
    return max(least, min(most, torch.cuda.get_device_properties(device).total_memory // 8))


def _on_device(block: Block, device: str, precision: Precision) -> _Block:
    """A block on a device: tiles share their blocks, and so do the tasks of a process."""
    key = id(block), device, precision
    if key in uploaded_blocks:
        entry = uploaded_blocks.pop(key)
    else:
        embeddings = torch.tensor(block.embeddings, device=device)
        if precision == "bfloat16":
            embeddings = embeddings.bfloat16()
        entry = block, _Block(embeddings, torch.tensor(block.labels, dtype=torch.int64, device=device))
    uploaded_blocks[key] = entry
    room = _room(device)
    while len(uploaded_blocks) > 2 and sum(kept.embeddings.nbytes for kept, _ in uploaded_blocks.values()) > room:
        del uploaded_blocks[next(iter(uploaded_blocks))]
    return entry[1]


class _TileResults:
    """The results of tiles on a device, without the sums, which are merged along a tree."""

    def __init__(self, device: str, precision: Precision, wanted: Search) -> None:
        self._device, self._precision = device, precision
        self._intervals, self._neighbours, self._duplicate, self._listed = wanted
        intervals = wanted.intervals
        self._pairs = np.zeros((intervals, intervals), np.int64)
        self._duplicates = np.zeros((intervals, intervals), np.int64)
        self._histogram = torch.zeros((intervals, intervals, BINS), dtype=torch.int64, device=device)
        self._near: dict[int, Tensor] = {}
        self._sides: dict[tuple[int, int, int], Side] = {}
        self._listing = Duplicates(np.empty(0, np.float32), np.empty((0, 2), np.int32))
        self._fused = serves(device)

    def add(self, tile: Tile) -> Tensor:
        """Σcos and Σcos² of a tile by cell, on the device; all other results are added to those of earlier tiles."""
        rows, columns = (_on_device(block, self._device, self._precision) for block in (tile.rows, tile.columns))
        self._lists(tile.row, rows)
        self._lists(tile.column, columns)
        diagonal = tile.row == tile.column
        sums = torch.zeros((2, self._intervals, self._intervals), dtype=torch.float64, device=self._device)
        for a, top, bottom in _segments(tile.rows.interval, ROWS):
            for b, begin, end in _segments(tile.columns.interval, COLUMNS):
                if diagonal and end <= top + 1:
                    continue
                below = top - begin + 1 if diagonal and begin < bottom else None
                cosines = cosine_product(rows.embeddings[top:bottom], columns.embeddings[begin:end].mT, self._precision)
                if below is not None:  # A pair below the diagonal is also above it, and must not count twice.
                    cosines = cosines.masked_fill(_below(cosines, below), -torch.inf)
                counts, pairs = torch.histc(cosines, BINS, -1, 1), _pairs_of(len(cosines), cosines.shape[1], below)
                sides = self._side(tile.row, rows, top, bottom), self._side(tile.column, columns, begin, end)
                self._scan(sums[:, a, b], cosines, sides, (a, b), whole=below is None)
                self._pairs[a, b] += pairs
                self._histogram[a, b] += _counted(counts, cosines, pairs)
        return sums

    def _lists(self, number: int, block: _Block) -> None:
        """Create the packed lists of a block's nearest texts, if they are missing."""
        if number not in self._near:
            shape = len(block.labels), self._neighbours
            self._near[number] = torch.full(shape, _NONE, dtype=torch.int64, device=self._device)

    def _side(self, number: int, block: _Block, start: int, stop: int) -> Side:
        """Some texts of a block, with the nearest texts found so far."""
        key = number, start, stop
        if key not in self._sides:
            self._sides[key] = Side(self._near[number][start:stop], block.labels[start:stop])
        return self._sides[key]

    def _scan(
        self, sums: Tensor, cosines: Tensor, sides: tuple[Side, Side], cell: tuple[int, int], *, whole: bool
    ) -> None:  # fmt: skip
        """Sum one cell's block of cosines, find neighbours and near-duplicates; −∞, not in a `whole` block, is no pair."""
        looking, (rows, columns) = self._neighbours > 0 or self._duplicate <= _LARGEST, sides
        floors = self._floors(cosines, rows, columns)
        if not self._fused:
            finite = cosines if whole else cosines.masked_fill(cosines == -torch.inf, 0.0)
            sums[0] += finite.sum(dtype=torch.float64)
            sums[1] += torch.linalg.vector_norm(finite, dtype=torch.float64) ** 2
            if looking:
                self._look(cosines, floors, rows, columns, cell)
            return
        from tempscale.collapse import fused

        result = fused.scan(cosines, *floors, self._duplicate, LOOKED if looking else 1)
        sums += torch.stack([result.first, result.second])
        if not looking:
            return
        number = int(result.number)
        if number > LOOKED:
            self._look(cosines, floors, rows, columns, cell)
        elif number:
            places = result.places[:number].sort().values.long()
            self._found(cosines, (places // cosines.shape[1], places % cosines.shape[1]), rows, columns, cell)

    def _look(
        self, cosines: Tensor, floors: tuple[Tensor, Tensor], rows: Side, columns: Side, cell: tuple[int, int]
    ) -> None:  # fmt: skip
        """Find neighbours and near-duplicates among the cosines of one block, in parts if they are many."""
        reach = self._reach(cosines, floors)
        if int(reach.sum()) > LOOKED:
            reach = self._reach(cosines, self._floors(cosines, rows, columns, sharply=True))
            if int(reach.sum()) > LOOKED and len(cosines) > 1:
                half = len(cosines) // 2
                for part in (slice(half), slice(half, None)):
                    side = rows.part(part)
                    self._look(cosines[part], self._floors(cosines[part], side, columns), side, columns, cell)
                    side.merge()
                return
        places = reach.nonzero()
        if len(places):
            self._found(cosines, (places[:, 0], places[:, 1]), rows, columns, cell)

    def _found(
        self, cosines: Tensor, places: tuple[Tensor, Tensor], rows: Side, columns: Side, cell: tuple[int, int]
    ) -> None:  # fmt: skip
        """Keep the pairs at some places of a block that reach a list or the threshold."""
        row, column = places
        value = cosines[row, column]
        if self._neighbours:
            rows.keep(row, _packed(value, columns.labels[column]))
            columns.keep(column, _packed(value, rows.labels[row]))
        twins = value >= self._duplicate
        if number := int(twins.sum()):
            self._duplicates[cell] += number
            self._list(value[twins], rows.labels[row[twins]], columns.labels[column[twins]])

    def _floors(
        self, cosines: Tensor, rows: Side, columns: Side, *, sharply: bool = False
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The least cosine that each text's list still accepts, of both sides; infinite without neighbours.

        For lists that are not full, the k-th best of a part of the block is a floor too. The part is so large that about
        half of the pairs that fit together reach the floor; `sharply` takes the whole block for all lists.
        """
        reaching = 2 * self._neighbours * sum(cosines.shape)
        part = 1 if sharply else max(1, min(_PART, LOOKED // max(1, reaching)))
        height, width = (max(self._neighbours, n // part) for n in cosines.shape)
        # A block on the diagonal has pairs in the last columns of each row, and in the first rows of each column.
        parts = (rows, cosines[:, -width:]), (columns, cosines[:height].mT)
        floors = []
        for side, part_cosines in parts:
            floor = side.floor
            if part_cosines.shape[1] >= self._neighbours > 0 and (sharply or not side.full):
                floor = torch.maximum(floor, part_cosines.topk(self._neighbours, dim=1).values[:, -1])
            floors.append(floor)
        return floors[0], floors[1]

    def _reach(self, cosines: Tensor, floors: tuple[Tensor, Tensor]) -> Tensor:
        """Which cosines reach the floor of either text or the threshold."""
        reach = cosines >= self._duplicate
        if self._neighbours:
            reach |= (cosines >= floors[0][:, None]) | (cosines >= floors[1])
            reach &= cosines > -torch.inf
        return reach

    def _list(self, value: Tensor, row: Tensor, column: Tensor) -> None:
        """Keep the near-duplicates of largest cosine."""
        if not self._listed:
            return
        full = len(self._listing.cosine) == self._listed
        still = value >= float(self._listing.cosine[-1]) if full else torch.ones_like(value, dtype=torch.bool)
        ids = torch.stack([row[still], column[still]], 1).sort(1).values
        more = Duplicates(value[still].cpu().numpy(), ids.int().cpu().numpy())
        self._listing = self._listing.merged(more).first(self._listed)

    def result(self, sums: Tensor) -> CosineTiles:
        """The results of all tiles, with their merged sums, on the CPU."""
        first, second = sums.cpu().numpy()
        cells = CosineCells(self._pairs, first, second, self._histogram.cpu().numpy(), self._duplicates)
        near = {}
        for side in self._sides.values():
            side.merge()
        for number, packed in self._near.items():
            label = (NOBODY - (packed & 0xFFFFFFFF)).masked_fill(packed == _NONE, NOBODY).int()
            near[number] = Nearest(_unpacked(packed).cpu().numpy(), label.cpu().numpy())
        return CosineTiles(cells, self._listing, near)


class Side:
    """The texts of the rows or columns of one block of a product, and the nearest texts found so far."""

    def __init__(self, near: Tensor, labels: Tensor) -> None:
        self.labels, self._near = labels, near
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._read()

    def _read(self) -> None:
        """Update the least cosine that each list still accepts, infinite without lists, and whether all lists are full."""
        if self._near.shape[1]:
            self.floor = _unpacked(self._near[:, -1])
            self.full = bool((self.floor > -torch.inf).all())
        else:
            self.floor, self.full = torch.full((len(self.labels),), torch.inf, device=self.labels.device), True

    def part(self, rows: slice) -> Side:
        """Some of these texts, with the same lists."""
        return Side(self._near[rows], self.labels[rows])

    def keep(self, owner: Tensor, packed: Tensor) -> None:
        """Add packed neighbours of some texts to their lists, now or later; until then their floors are lower."""
        self._waiting.append((owner, packed))
        if not self.full or WAITING * sum(len(owners) for owners, _ in self._waiting) > self._near.numel():
            self.merge()

    def merge(self) -> None:
        """Add the waiting neighbours to their lists."""
        if self._waiting:
            _keep(self._near, *map(torch.cat, zip(*self._waiting, strict=True)))
            self._waiting.clear()
            self._read()


def cosine_product(left: Tensor, right: Tensor, precision: Precision) -> Tensor:
    """Cosines from factors in the given precision; the product itself is at least float32."""
    if not left.is_cuda:  # A CPU would round the product to bfloat16 too.
        return left.float() @ right.float() if precision == "bfloat16" else left @ right
    if precision == "bfloat16":
        return torch.mm(left, right, out_dtype=torch.float32)
    with tf32_products(precision == "tf32"):
        return left @ right


def _counted(counts: Tensor, cosines: Tensor, pairs: int) -> Tensor:
    """The int64 histogram of `pairs` pairs from torch's float32 counts, with cosines beyond ±1 in the outermost bins."""
    total, most = torch.stack([counts.sum(dtype=torch.float64), counts.max().double()]).tolist()
    counts_by_bin = counts.long()
    if most >= EXACT:  # Count again in parts.
        parts = torch.split(cosines, max(1, EXACT // cosines.shape[1]))
        counts_by_bin = torch.stack([torch.histc(part, BINS, -1, 1).long() for part in parts]).sum(0)
        total = int(counts_by_bin.sum())
    missing = pairs - int(total)
    if missing:
        above = int((cosines > 1).sum())
        counts_by_bin[0] += missing - above
        counts_by_bin[-1] += above
    return counts_by_bin


def _segments(interval: np.ndarray, most: int) -> list[tuple[int, int, int]]:
    """(interval, start, stop) of each run of equal values; a run longer than `most` is split."""
    edges = [0, *(np.flatnonzero(np.diff(interval)) + 1).tolist(), len(interval)]
    return [
        (int(interval[start]), place, min(place + most, stop))
        for start, stop in pairwise(edges)
        for place in range(start, stop, most)
    ]


def _pairs_of(rows: int, columns: int, below: int | None) -> int:
    """The number of pairs of a block that count; see `_below`."""
    return rows * columns if below is None else sum(max(0, columns - max(0, i + below)) for i in range(rows))


def _below(cosines: Tensor, offset: int) -> Tensor:
    """The entries of a block that are no pairs: those before column `offset` of the first row, one more in each next row."""
    return torch.ones_like(cosines, dtype=torch.bool).tril(offset - 1)


def _keep(near: Tensor, owner: Tensor, packed: Tensor) -> None:
    """Add packed neighbours of some rows of `near` to their lists, in place."""
    texts, k = near.shape
    everyone = torch.arange(texts, device=near.device)
    value, order = torch.cat([near.flatten(), packed]).sort(descending=True)
    owner, place = torch.cat([everyone.repeat_interleave(k), owner])[order].sort(stable=True)
    start = torch.searchsorted(owner, everyone)
    near.copy_(value[place][start[:, None] + torch.arange(k, device=near.device)])


def _packed(cosines: Tensor, labels: Tensor) -> Tensor:
    """One integer for each pair: larger for a larger cosine, and for equal cosines larger for a smaller label."""
    bits = cosines.contiguous().view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered << 32) + (NOBODY - labels)


def _unpacked(packed: Tensor) -> Tensor:
    """The cosines in such integers; −∞ for none."""
    ordered = packed >> 32
    bits = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).int()
    return bits.view(torch.float32).masked_fill(packed == _NONE, -torch.inf)
