"""Super-tiles of cosines from torch operations, for a GPU: the same aggregates as the single pass on a CPU.

Where Triton is there, one kernel counts a block without writing its product (`fused`), and only parts of it are multiplied
again. Blocks, lists of neighbours and counts stay on the device until the last tile. Of a product only the pairs that reach
the last neighbour so far of one of their texts, or the near-duplicate threshold, are looked at one by one. Neighbours are
exact, ties included: a cosine and a label are packed into one integer that sorts by both.
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

_ROWS, _COLUMNS = 8192, 16_384
"""One block of the product: 512 MB of float32."""
_LOOKED = 1 << 22
"""Pairs of a product that are looked at one by one at once: 200 MB of places, labels and sorted integers."""
_BLOCKS_BYTES = 1 << 30
"""Size of the blocks of texts that stay on a device, where they are more than two."""
_NONE = -(1 << 63)
_LARGEST = 1.0 + 1e-5
"""No cosine of unit vectors is larger, whatever its rounding."""
_PART = 0.2
"""Share of the tiles of a block, from which on the whole block is multiplied again, not those tiles alone."""
FUSED = "TEMPSCALE_FUSED"
"""The variable that switches the kernel off (0), or on where it would not be used (1)."""


def cosine_tiles_on(
    device: str, precision: Precision, tiles: Iterable[Tile], intervals: int, neighbours: int, duplicate: float, listed: int
) -> CosineTiles:
    """The same as `collapse.cosine.cosine_tiles`, computed on a device such as «cuda»; the result is on the CPU."""
    found = _Found(device, precision, intervals, neighbours, duplicate, listed)
    sums = merge_tree(map(found.add, tiles), torch.add)
    return found.result(sums)


@lru_cache(maxsize=8)
def serves(device: str, precision: Precision) -> bool:
    """Whether the fused kernel counts on a device: Triton is there, and the kernel gives there what the product gives."""
    wanted = os.environ.get(FUSED, "")
    if wanted == "0" or (not device.startswith("cuda") and wanted != "1"):
        return False
    try:
        from tempscale.collapse import fused

        rows = torch.linspace(-1, 1, 200 * 40, device=device).view(200, 40).sin().bfloat16()
        rows = rows if precision == "bfloat16" else rows.float()
        floors = torch.full((200,), 0.5, device=device)
        found = fused.block(rows, rows, precision, floors, floors, 2.0, 1)
        cosines = _product(rows, rows.mT, precision).double().triu(1)
        counted = int(found.histogram.sum()) == 200 * 199 // 2
        return counted and bool(torch.isclose(found.first, cosines.sum(), rtol=1e-3, atol=1e-2))
    except Exception:  # Whatever Triton misses, or raises when it compiles: torch's own operations serve as well.
        return False


class _Block(NamedTuple):
    """The texts of one side of a tile, on a device."""

    embeddings: Tensor
    labels: Tensor


_uploaded: dict[tuple[int, str, str], tuple[Block, _Block]] = {}
"""Blocks on a device by the identity of what was uploaded, which is kept beside them; the last used last."""


def _on_device(block: Block, device: str, precision: Precision) -> _Block:
    """A block on a device: tiles share their blocks, and so do the tasks of a process."""
    key = id(block), device, precision
    if key in _uploaded:
        kept = _uploaded.pop(key)
    else:
        embeddings = torch.tensor(block.embeddings, device=device)
        if precision == "bfloat16":
            embeddings = embeddings.bfloat16()
        kept = block, _Block(embeddings, torch.tensor(block.labels, dtype=torch.int64, device=device))
    _uploaded[key] = kept
    while len(_uploaded) > 2 and sum(own.embeddings.nbytes for _, own in _uploaded.values()) > _BLOCKS_BYTES:
        del _uploaded[next(iter(_uploaded))]
    return kept[1]


class _Found:
    """What is found in tiles, on a device; all but the sums, which are merged along a tree."""

    def __init__(
        self, device: str, precision: Precision, intervals: int, neighbours: int, duplicate: float, listed: int
    ) -> None:
        self._device, self._precision, self._intervals = device, precision, intervals
        self._neighbours, self._duplicate, self._listed = neighbours, duplicate, listed
        self._pairs = np.zeros((intervals, intervals), np.int64)
        self._duplicates = np.zeros((intervals, intervals), np.int64)
        self._histogram = torch.zeros((intervals, intervals, BINS), dtype=torch.int64, device=device)
        self._near: dict[int, Tensor] = {}
        self._listing = Duplicates(np.empty(0, np.float32), np.empty((0, 2), np.int32))
        self._fused = serves(device, precision)

    def add(self, tile: Tile) -> Tensor:
        """Σcos and Σcos² of a tile by cell, on the device; everything else is added to what was found."""
        rows, columns = (_on_device(own, self._device, self._precision) for own in (tile.rows, tile.columns))
        near, other = self._lists(tile.row, rows), self._lists(tile.column, columns)
        diagonal = tile.row == tile.column
        sums = torch.zeros((2, self._intervals, self._intervals), dtype=torch.float64, device=self._device)
        for a, top, bottom in _segments(tile.rows.interval, _ROWS):
            for b, begin, end in _segments(tile.columns.interval, _COLUMNS):
                if diagonal and end <= top + 1:
                    continue
                left, right = rows.embeddings[top:bottom], columns.embeddings[begin:end]
                below = top - begin + 1 if diagonal and begin < bottom else None
                sides = _Side(near[top:bottom], rows.labels[top:bottom]), _Side(other[begin:end], columns.labels[begin:end])
                if self._fused and self._counted(sums, (a, b), left, right, sides, below):
                    continue
                cosines = _product(left, right.mT, self._precision)
                if not self._fused:
                    self._count(sums, a, b, cosines, below)
                if below is not None:  # A pair below the diagonal is above it too, and reaches nothing here.
                    cosines = cosines.masked_fill(_below(cosines, below), -torch.inf)
                self._look(cosines, *sides, (a, b))
        return sums

    def _counted(
        self, sums: Tensor, cell: tuple[int, int], left: Tensor, right: Tensor, sides: tuple[_Side, _Side], below: int | None
    ) -> bool:  # fmt: skip
        """Count a block by the kernel, and look at its tiles that reach a floor; False where they are too many."""
        from tempscale.collapse import fused

        floors = [self._floor(side) for side in sides]
        found = fused.block(left, right, self._precision, floors[0], floors[1], self._duplicate, below)
        self._pairs[cell] += _pairs_of(len(left), len(right), below)
        sums[0][cell] += found.first
        sums[1][cell] += found.second
        self._histogram[cell] += found.histogram
        if not self._neighbours and self._duplicate > _LARGEST:
            return True
        tiles = found.reached.nonzero()
        if len(tiles) > _PART * found.reached.numel():
            return False
        most = max(1, _LOOKED // fused.SIDE**2)
        for start in range(0, len(tiles), most):
            self._look_at(tiles[start : start + most], fused.SIDE, left, right, sides, cell, below)
        return True

    def _floor(self, side: _Side) -> Tensor:
        """The least cosine that each text's list still takes; infinite if nobody looks for neighbours."""
        if self._neighbours:
            return _unpacked(side.near[:, -1])
        return torch.full((len(side.labels),), torch.inf, device=side.labels.device)

    def _look_at(
        self, tiles: Tensor, side: int, left: Tensor, right: Tensor, sides: tuple[_Side, _Side], cell: tuple[int, int],
        below: int | None,
    ) -> None:  # fmt: skip
        """Multiply some tiles of a block again, and look for neighbours and near-duplicates in them."""
        inside = torch.arange(side, device=left.device)
        row, column = (tiles[:, k, None] * side + inside for k in (0, 1))
        there = (row < len(left))[:, :, None] & (column < len(right))[:, None, :]
        if below is not None:
            there &= column[:, None, :] >= row[:, :, None] + below
        row, column = row.clamp_max(len(left) - 1), column.clamp_max(len(right) - 1)
        cosines = _product(left[row], right[column].mT, self._precision).masked_fill(~there, -torch.inf)
        reach = cosines >= self._duplicate
        if self._neighbours:
            floors = [_unpacked(own.near[:, -1]) for own in sides]
            reach |= (cosines >= floors[0][row][:, :, None]) | (cosines >= floors[1][column][:, None, :])
        where = (reach & there).nonzero()
        if len(where):
            number, i, j = where.unbind(1)
            self._found(cosines[number, i, j], row[number, i], column[number, j], *sides, cell)

    def _lists(self, number: int, block: _Block) -> Tensor:
        """The nearest texts so far of those of a block, packed."""
        if number not in self._near:
            shape = len(block.labels), self._neighbours
            self._near[number] = torch.full(shape, _NONE, dtype=torch.int64, device=self._device)
        return self._near[number]

    def _count(self, sums: Tensor, a: int, b: int, cosines: Tensor, below: int | None) -> None:
        """Count, sum and bin the cosines of one block, all of one cell; but for those `below` a diagonal."""
        bins = ((cosines + 1.0) * (BINS / 2)).int().clamp_(0, BINS - 1)
        if below is not None:
            outside = _below(cosines, below)
            cosines, bins = cosines.masked_fill(outside, 0.0), bins.masked_fill_(outside, BINS)
        self._pairs[a, b] += _pairs_of(len(cosines), cosines.shape[1], below)
        sums[0, a, b] += cosines.sum(dtype=torch.float64)
        sums[1, a, b] += torch.linalg.vector_norm(cosines, dtype=torch.float64) ** 2
        self._histogram[a, b] += torch.bincount(bins.flatten(), minlength=BINS + 1)[:BINS]

    def _look(self, cosines: Tensor, rows: _Side, columns: _Side, cell: tuple[int, int]) -> None:
        """Look for neighbours and near-duplicates among the cosines of one block; −∞ where there is no pair."""
        if not self._neighbours and self._duplicate > _LARGEST:
            return
        reach = self._reach(cosines, rows, columns, sharply=False)
        if int(reach.sum()) > _LOOKED:
            reach = self._reach(cosines, rows, columns, sharply=True)
            if int(reach.sum()) > _LOOKED and len(cosines) > 1:
                half = len(cosines) // 2
                for part in (slice(half), slice(half, None)):
                    self._look(cosines[part], rows.part(part), columns, cell)
                return
        where = reach.nonzero()
        if not len(where):
            return
        row, column = where.unbind(1)
        self._found(cosines[row, column], row, column, rows, columns, cell)

    def _found(
        self, value: Tensor, row: Tensor, column: Tensor, rows: _Side, columns: _Side, cell: tuple[int, int]
    ) -> None:  # fmt: skip
        """Keep the pairs of some rows and columns of a block that reach a list or the threshold."""
        if self._neighbours:
            _keep(rows.near, row, _packed(value, columns.labels[column]))
            _keep(columns.near, column, _packed(value, rows.labels[row]))
        twins = value >= self._duplicate
        if number := int(twins.sum()):
            self._duplicates[cell] += number
            self._list(value[twins], rows.labels[row[twins]], columns.labels[column[twins]])

    def _reach(self, cosines: Tensor, rows: _Side, columns: _Side, *, sharply: bool) -> Tensor:
        """Which cosines reach the list of either text or the threshold; `sharply`: a list with what is in this block."""
        reach = cosines >= self._duplicate
        if self._neighbours:
            floors = []
            for side, own in ((rows, cosines), (columns, cosines.mT)):
                floor = _unpacked(side.near[:, -1])
                if sharply and own.shape[1] >= self._neighbours:
                    floor = torch.maximum(floor, own.topk(self._neighbours, dim=1).values[:, -1])
                floors.append(floor)
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
        """What was found, with the sums of all tiles, on the CPU."""
        first, second = sums.cpu().numpy()
        cells = CosineCells(self._pairs, first, second, self._histogram.cpu().numpy(), self._duplicates)
        near = {}
        for number, packed in self._near.items():
            label = (NOBODY - (packed & 0xFFFFFFFF)).masked_fill(packed == _NONE, NOBODY).int()
            near[number] = Nearest(_unpacked(packed).cpu().numpy(), label.cpu().numpy())
        return CosineTiles(cells, self._listing, near)


class _Side(NamedTuple):
    """The texts of the rows or of the columns of one block of a product."""

    near: Tensor
    """Their nearest texts so far, packed; written to in place,"""
    labels: Tensor
    """and their own labels."""

    def part(self, rows: slice) -> _Side:
        """Some of them."""
        return _Side(self.near[rows], self.labels[rows])


def _product(left: Tensor, right: Tensor, precision: Precision) -> Tensor:
    """Cosines from factors in the given precision; the product itself is at least float32."""
    if not left.is_cuda:  # A CPU would round the product to bfloat16 too.
        return left.float() @ right.float() if precision == "bfloat16" else left @ right
    if precision == "bfloat16":
        return torch.mm(left, right, out_dtype=torch.float32)
    with tf32_products(precision == "tf32"):
        return left @ right


def _segments(interval: np.ndarray, most: int) -> list[tuple[int, int, int]]:
    """(interval, start, stop) of each run of equal values; a run longer than `most` is split."""
    edges = [0, *(np.flatnonzero(np.diff(interval)) + 1).tolist(), len(interval)]
    return [
        (int(interval[start]), place, min(place + most, stop))
        for start, stop in pairwise(edges)
        for place in range(start, stop, most)
    ]


def _pairs_of(rows: int, columns: int, below: int | None) -> int:
    """How many pairs of a block count; see `_below`."""
    return rows * columns if below is None else sum(max(0, columns - max(0, i + below)) for i in range(rows))


def _below(cosines: Tensor, offset: int) -> Tensor:
    """Where a block is below the diagonal that leaves `offset` of its first row out, which belongs to no pair itself."""
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
    """One integer each: larger for a larger cosine, and for equal cosines larger for a smaller label."""
    bits = cosines.contiguous().view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered << 32) + (NOBODY - labels)


def _unpacked(packed: Tensor) -> Tensor:
    """The cosines in such integers; −∞ for none."""
    ordered = packed >> 32
    bits = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).int()
    return bits.view(torch.float32).masked_fill(packed == _NONE, -torch.inf)
