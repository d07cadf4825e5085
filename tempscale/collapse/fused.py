"""A kernel that reads a block of cosines once: Σcos, Σcos², and the pairs that reach a list or a threshold.

torch's operations read the block five times for this. The product itself is the library's, four times as fast in float32 as
a kernel of Triton. The histogram is torch's, which counts in shared memory; Triton cannot, and counts in the GPU's memory
took twenty times as long as the product in bfloat16 (benchmarks/NOTES.md). Triton is a part of torch for CUDA.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE_ROWS, TILE_COLUMNS = 1, 2048
"""Rows and columns of a program's tile: the fastest of the shapes that were tried on an H100 (benchmarks/NOTES.md)."""


class Scan(NamedTuple):
    """The results of the kernel for one block."""

    first: Tensor
    """Σcos, float64 ()."""
    second: Tensor
    """Σcos²."""
    number: Tensor
    """How many pairs reach a floor, int32 (1,)."""
    places: Tensor
    """Their places row · columns + column, int32 (most,), in no order; the first `number` are valid."""


@triton.jit
def _scan(
    cosines, row_floor, column_floor, first, second, number, places, rows, columns, duplicate, most,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One tile; −∞ is no pair."""
    i, j = tl.program_id(0), tl.program_id(1)
    row, column = i * ROWS + tl.arange(0, ROWS), j * COLUMNS + tl.arange(0, COLUMNS)
    flat = row[:, None] * columns + column[None, :]
    own = tl.load(cosines + flat, mask=(row[:, None] < rows) & (column[None, :] < columns), other=float("-inf"))
    counted = own > float("-inf")
    wide = tl.where(counted, own, 0.0).to(tl.float64)
    tile = i * tl.num_programs(1) + j
    tl.store(first + tile, tl.sum(tl.sum(wide, axis=1), axis=0))
    tl.store(second + tile, tl.sum(tl.sum(wide * wide, axis=1), axis=0))
    of_row = tl.load(row_floor + row, mask=row < rows, other=float("inf"))
    of_column = tl.load(column_floor + column, mask=column < columns, other=float("inf"))
    reach = (counted & (own >= tl.minimum(tl.minimum(of_row[:, None], of_column[None, :]), duplicate))).to(tl.int32)
    by_row = tl.sum(reach, axis=1)
    reached = tl.sum(by_row, axis=0)
    if reached > 0:
        start = tl.atomic_add(number, reached, sem="relaxed")
        before = tl.cumsum(by_row, axis=0) - by_row
        place = start + before[:, None] + tl.cumsum(reach, axis=1) - 1
        tl.store(places + place, flat, mask=(reach > 0) & (place < most))


def scan(cosines: Tensor, row_floor: Tensor, column_floor: Tensor, duplicate: float, most: int) -> Scan:
    """Sum a contiguous float32 block of cosines, −∞ for no pair, and list `most` pairs that reach a floor or `duplicate`."""
    (rows, columns), device = cosines.shape, cosines.device
    tiles = triton.cdiv(rows, TILE_ROWS), triton.cdiv(columns, TILE_COLUMNS)
    sums = torch.zeros((2, *tiles), dtype=torch.float64, device=device)
    number = torch.zeros(1, dtype=torch.int32, device=device)
    places = torch.empty(most, dtype=torch.int32, device=device)
    kernel: Any = _scan[tiles]
    kernel(
        cosines, row_floor, column_floor, sums[0], sums[1], number, places, rows, columns, duplicate, most,
        ROWS=TILE_ROWS, COLUMNS=TILE_COLUMNS,
    )  # fmt: skip
    return Scan(sums[0].sum(), sums[1].sum(), number, places)
