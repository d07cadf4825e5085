"""A super-tile of cosines from torch operations, for a GPU: the same aggregates as the single pass on a CPU.

Neighbours are exact, ties included: a cosine and a label are packed into one integer that sorts by both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tempscale.collapse.aggregates import BINS, Block, CosineCells, CosineTile, Duplicates, Precision
from tempscale.collapse.neighbours import NOBODY, Nearest

_ROWS, _COLUMNS = 8192, 16_384
"""One block of the product: 512 MB of float32."""
_NONE = -(1 << 63)


def cosine_tile_on(
    device: str, precision: Precision, rows: Block, columns: Block, intervals: int, diagonal: bool, neighbours: int,
    duplicate: float, listed: int,
) -> CosineTile:  # fmt: skip
    """The same as `collapse.cosine.cosine_tile`, computed on a device such as «cuda»; the result is on the CPU."""
    left, right = (torch.tensor(block.embeddings, device=device) for block in (rows, columns))
    if precision == "bfloat16":
        left, right = left.bfloat16(), right.bfloat16()
    row_labels, column_labels = (torch.tensor(b.labels, dtype=torch.int64, device=device) for b in (rows, columns))
    cells = CosineCells.empty(intervals)
    near = torch.full((len(rows), neighbours), _NONE, device=device)
    other = near if diagonal else torch.full((len(columns), neighbours), _NONE, device=device)
    pairs = Duplicates(np.empty(0, np.float32), np.empty((0, 2), np.int32))
    for a, top, bottom in _segments(rows.interval, _ROWS):
        for b, begin, end in _segments(columns.interval, _COLUMNS):
            if diagonal and end <= top + 1:
                continue
            cosines = _product(left[top:bottom], right[begin:end].mT, precision)
            counted: Tensor | None = None
            if diagonal and begin < bottom:
                counted = torch.ones_like(cosines, dtype=torch.bool).triu(top - begin + 1)
            _add(cells, a, b, cosines if counted is None else cosines[counted])
            near_pairs = cosines >= duplicate
            if counted is not None:
                near_pairs &= counted
            found = near_pairs.nonzero()
            if len(found):
                cells.duplicates[a, b] += len(found)
                ids = torch.stack([row_labels[top + found[:, 0]], column_labels[begin + found[:, 1]]], 1).sort(1).values
                more = Duplicates(cosines[near_pairs].cpu().numpy(), ids.int().cpu().numpy())
                pairs = pairs.merged(more).first(listed)
            if neighbours:
                near[top:bottom] = _nearest(near[top:bottom], cosines, column_labels[begin:end], counted)
                turned = None if counted is None else counted.mT
                other[begin:end] = _nearest(other[begin:end], cosines.mT, row_labels[top:bottom], turned)
    lists = _unpacked(near)
    return CosineTile(cells, pairs, lists, lists if diagonal else _unpacked(other))


def _product(left: Tensor, right: Tensor, precision: Precision) -> Tensor:
    """Cosines from factors in the given precision; the product itself is at least float32."""
    if not left.is_cuda:  # A CPU would round the product to bfloat16 too.
        return left.float() @ right.float() if precision == "bfloat16" else left @ right
    if precision == "bfloat16":
        return torch.mm(left, right, out_dtype=torch.float32)
    with tf32_products(precision == "tf32"):
        return left @ right


@contextmanager
def tf32_products(wanted: bool) -> Iterator[None]:
    """Let float32 products on a GPU be computed in TF32, or not; what was set before is restored.

    torch has an old and a new setting for it, and reading the old one raises where anything has set the new one.
    """
    matmul: Any = torch.backends.cuda.matmul
    new = hasattr(matmul, "fp32_precision")
    name, value = ("fp32_precision", "tf32" if wanted else "ieee") if new else ("allow_tf32", wanted)
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def _segments(interval: np.ndarray, most: int) -> list[tuple[int, int, int]]:
    """(interval, start, stop) of each run of equal values; a run longer than `most` is split."""
    edges = [0, *(np.flatnonzero(np.diff(interval)) + 1).tolist(), len(interval)]
    return [
        (int(interval[start]), place, min(place + most, stop))
        for start, stop in pairwise(edges)
        for place in range(start, stop, most)
    ]


def _add(cells: CosineCells, a: int, b: int, cosines: Tensor) -> None:
    """Count, sum and bin the cosines of one block; all belong to one cell."""
    flat = cosines.flatten()
    cells.pairs[a, b] += flat.numel()
    cells.first[a, b] += float(flat.sum(dtype=torch.float64))
    cells.second[a, b] += float(torch.linalg.vector_norm(flat, dtype=torch.float64)) ** 2
    bins = ((flat + 1.0) * (BINS / 2)).int().clamp_(0, BINS - 1)
    cells.histogram[a, b] += torch.bincount(bins, minlength=BINS).cpu().numpy()


def _nearest(best: Tensor, cosines: Tensor, labels: Tensor, counted: Tensor | None) -> Tensor:
    """The best k of the neighbours so far and the columns of a block, as packed integers."""
    packed = _packed(cosines, labels)
    if counted is not None:
        packed = packed.masked_fill(~counted, _NONE)
    return torch.cat([best, packed], 1).topk(best.shape[1], dim=1).values


def _packed(cosines: Tensor, labels: Tensor) -> Tensor:
    """One integer each: larger for a larger cosine, and for equal cosines larger for a smaller label."""
    bits = cosines.contiguous().view(torch.int32).long()
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ordered << 32) + (NOBODY - labels)


def _unpacked(packed: Tensor) -> Nearest:
    empty = packed == _NONE
    ordered, rest = packed >> 32, packed & 0xFFFFFFFF
    bits = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).int()
    cosine = bits.view(torch.float32).masked_fill(empty, -torch.inf)
    label = (NOBODY - rest).masked_fill(empty, NOBODY)
    return Nearest(cosine.cpu().numpy(), label.int().cpu().numpy())
