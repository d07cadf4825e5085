"""One kernel for a block of cosines of one cell: Σcos, Σcos², histogram, and which parts of it must be looked at.

The product is not written to the GPU's memory: 4 bytes a pair, read again by each of five passes. Instead each program of
the kernel keeps its tile of 64 × 64 cosines in registers, and says of it in one byte whether a cosine may reach the last
neighbour of one of its texts, or the near-duplicate threshold. Only those tiles are multiplied again, by `gpu`, which finds
neighbours exactly. Needs Triton, which torch brings for CUDA.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from tempscale.collapse.aggregates import BINS, Precision

SIDE = 64
"""Rows and columns of a program's tile."""
_DEPTH = 32
"""Dimensions that are multiplied at once."""
_COPIES = 32
"""Histograms that programs add to in turn: all to one would wait for one another at its few full bins."""
MARGIN = 2.0**-18
"""How much below a floor a cosine is still looked at: the other product of it sums in another order."""


class Fused(NamedTuple):
    """What the kernel found in one block."""

    first: Tensor
    """Σcos, float64 ();"""
    second: Tensor
    """Σcos²;"""
    histogram: Tensor
    """pairs by cosine, int64 (bin,);"""
    reached: Tensor
    """the tiles that must be looked at, bool (tile of rows, tile of columns)."""


@triton.jit
def _block(
    left, right, row_floor, column_floor, first, second, histogram, reached,
    rows, columns, dim, below, duplicate, half, margin,
    left_stride, right_stride,
    SIDE: tl.constexpr, DEPTH: tl.constexpr, BINS: tl.constexpr, COPIES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile; `below` is by how much a row's own place is right of the block's first column, far below 0 for none."""
    i, j = tl.program_id(0), tl.program_id(1)
    row, column = i * SIDE + tl.arange(0, SIDE), j * SIDE + tl.arange(0, SIDE)
    sums = tl.zeros((SIDE, SIDE), dtype=tl.float32)
    for start in range(0, dim, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        a = tl.load(
            left + row[:, None] * left_stride + depth[None, :],
            mask=(row[:, None] < rows) & (depth[None, :] < dim), other=0.0,
        )  # fmt: skip
        b = tl.load(
            right + column[:, None] * right_stride + depth[None, :],
            mask=(column[:, None] < columns) & (depth[None, :] < dim), other=0.0,
        )  # fmt: skip
        sums = tl.dot(a, tl.trans(b), sums, input_precision=PRECISION)
    counted = (row[:, None] < rows) & (column[None, :] < columns) & (column[None, :] >= row[:, None] + below)
    cosines = tl.where(counted, sums, 0.0)
    wide = cosines.to(tl.float64)
    place = i * tl.num_programs(1) + j
    tl.store(first + place, tl.sum(tl.sum(wide, axis=1), axis=0))
    tl.store(second + place, tl.sum(tl.sum(wide * wide, axis=1), axis=0))
    bins = ((cosines + 1.0) * half).to(tl.int32)
    bins = tl.minimum(tl.maximum(bins, 0), BINS - 1)
    where = histogram + (place % COPIES) * BINS + bins
    tl.atomic_add(where, tl.full((SIDE, SIDE), 1, tl.int32), mask=counted, sem="relaxed")
    of_row = tl.load(row_floor + row, mask=row < rows, other=float("inf"))
    of_column = tl.load(column_floor + column, mask=column < columns, other=float("inf"))
    floor = tl.minimum(tl.minimum(of_row[:, None], of_column[None, :]), duplicate) - margin
    any_of_it = tl.max(tl.max((counted & (sums >= floor)).to(tl.int32), axis=1), axis=0)
    tl.store(reached + place, any_of_it.to(tl.int8))


def block(
    left: Tensor, right: Tensor, precision: Precision, row_floor: Tensor, column_floor: Tensor, duplicate: float,
    below: int | None = None,
) -> Fused:  # fmt: skip
    """Count the cosines of two runs of texts, float32 or bfloat16 (text, dim), all of one cell.

    A pair counts if its column is at least its row plus `below`. `row_floor` and `column_floor` are the least cosine that
    each text's list still takes.
    """
    (rows, dim), columns, device = left.shape, len(right), left.device
    tiles = triton.cdiv(rows, SIDE), triton.cdiv(columns, SIDE)
    sums = torch.zeros((2, *tiles), dtype=torch.float64, device=device)
    histogram = torch.zeros((_COPIES, BINS), dtype=torch.int32, device=device)
    reached = torch.zeros(tiles, dtype=torch.int8, device=device)
    kernel: Any = _block[tiles]
    kernel(
        left, right, row_floor, column_floor, sums[0], sums[1], histogram, reached,
        rows, columns, dim, -(1 << 30) if below is None else below, duplicate, BINS / 2, MARGIN,
        left.stride(0), right.stride(0),
        SIDE=SIDE, DEPTH=_DEPTH, BINS=BINS, COPIES=_COPIES, PRECISION="tf32" if precision == "tf32" else "ieee",
    )  # fmt: skip
    return Fused(sums[0].sum(), sums[1].sum(), histogram.sum(0, dtype=torch.int64), reached.bool())
