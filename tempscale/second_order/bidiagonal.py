"""Singular values of many small matrices at once: sixteen matrices in SIMD lanes, each decomposed with the steps of LAPACK.

A block holds sixteen matrices of m×n, with the lane as the innermost dimension. Householder reflections from both sides
(Golub & Kahan 1965) give the bidiagonal B in float32. They are backward stable: a singular value moves by about 1e-7 of the
largest. The eigenvalues of the tridiagonal BᵀB then follow in float64 from the root-free QL iteration with Wilkinson's shift
(Pal, Walker & Kahan; LAPACK's sterf), which needs a few steps for each eigenvalue. All lanes take the same number of steps,
until the last one has converged. LAPACK, one matrix at a time, is eight times slower at 32×32: see benchmarks/NOTES.md.
"""

from __future__ import annotations

import numpy as np

from tempscale.compiled import compiled
from tempscale.lanes import LANES, copysign, fabs, largest, load, splat, sqrt, store, where_positive, widen

# numba notices a change of this file only; lanes.py and compiled.py: b07b0cab0b6b

_STEPS = 100
"""Most QL steps for one eigenvalue; two or three are usual."""
_FLOOR = np.float32(1e-30)
"""A column whose squared norm is below this counts as zero, because float32 squares near underflow give no valid reflection.
The dropped norm is below 1e-15, and d_Σ of unit-mean texts is of order 1.
"""


@compiled
def nuclear_norms(block: np.ndarray, starts: np.ndarray, rank: int, epsilon: float, norms: np.ndarray) -> None:
    """Σ√(s² + ε) over the singular values s of the matrices in consecutive lane blocks; the blocks are overwritten.

    Args:
        block: flat float32: block k holds (starts[k+1] − starts[k]) × rank × 16 numbers, lane innermost.
        starts: first row of each block, and the end of the last: (blocks + 1,) int64.
        rank: columns of every matrix.
        epsilon: ε ≥ 0. A block of m rows has min(m, rank) singular values, some of them 0.
        norms: (blocks·16,) float64, the output; NaN if the iteration did not converge.
    """
    longest = rank
    for k in range(len(starts) - 1):
        longest = max(longest, starts[k + 1] - starts[k])
    diagonal, above = np.empty(longest * LANES, np.float32), np.empty(longest * LANES, np.float32)
    products, reflector = np.empty(longest * LANES, np.float32), np.empty(longest * LANES, np.float32)
    eigenvalues, squares = np.empty(longest * LANES, np.float64), np.empty(longest * LANES, np.float64)
    for k in range(len(starts) - 1):
        rows = starts[k + 1] - starts[k]
        base = starts[k] * rank * LANES
        # The decomposition needs rows ≥ columns, so a wide block is read as its transpose.
        if rows >= rank:
            _bidiagonalise(block, base, rows, rank, rank * LANES, LANES, diagonal, above, products, reflector)
        else:
            _bidiagonalise(block, base, rank, rows, LANES, rank * LANES, diagonal, above, products, reflector)
        _sum_of_roots(diagonal, above, min(rows, rank), epsilon, eigenvalues, squares, norms, k)


@compiled
def _bidiagonalise(
    block: np.ndarray, base: int, rows: int, columns: int, row_step: int, column_step: int,
    diagonal: np.ndarray, above: np.ndarray, products: np.ndarray, reflector: np.ndarray,
) -> None:  # fmt: skip
    """B = UᵀAV of sixteen m×n matrices, m ≥ n: |diagonal| and |superdiagonal|, since signs change no singular value."""
    zero = splat(load(block, base), np.float32(0.0))
    one, floor = splat(zero, np.float32(1.0)), splat(zero, _FLOOR)
    for k in range(columns):
        pivot_row, pivot = base + k * row_step, base + k * row_step + k * column_step
        # From the left: v = x + sign(x₁)‖x‖e₁ on column k; H = I − vvᵀ/(‖x‖(‖x‖ + |x₁|)).
        total = zero
        for i in range(k, rows):
            x = load(block, base + i * row_step + k * column_step)
            total = total + x * x
        norm = sqrt(total)
        x = load(block, pivot)
        store(diagonal, k * LANES, norm)
        store(block, pivot, x + copysign(norm, x))
        scale = norm * (norm + fabs(x))
        left = where_positive(total - floor, one / scale, zero)
        if k + 1 == columns:
            store(above, k * LANES, zero)
            break
        _products_with_column(block, base, k, rows, columns, row_step, column_step, products, zero)
        # From the right, on row k after the left reflection.
        total = zero
        v = load(block, pivot)
        for j in range(k + 1, columns):
            y = load(products, j * LANES) * left
            store(products, j * LANES, y)
            y = load(block, pivot_row + j * column_step) - v * y
            store(reflector, j * LANES, y)
            total = total + y * y
        norm = sqrt(total)
        x = load(reflector, (k + 1) * LANES)
        store(above, k * LANES, norm)
        store(reflector, (k + 1) * LANES, x + copysign(norm, x))
        scale = norm * (norm + fabs(x))
        right = where_positive(total - floor, one / scale, zero)
        # Both reflections in one pass over the rows below, so that a row is still in the cache for the second.
        for i in range(k + 1, rows):
            row = base + i * row_step
            v = load(block, row + k * column_step)
            even, odd = zero, zero
            j = k + 1
            while j + 2 <= columns:
                place = row + j * column_step
                x = load(block, place) - v * load(products, j * LANES)
                store(block, place, x)
                even = even + x * load(reflector, j * LANES)
                place += column_step
                x = load(block, place) - v * load(products, (j + 1) * LANES)
                store(block, place, x)
                odd = odd + x * load(reflector, (j + 1) * LANES)
                j += 2
            if j < columns:
                place = row + j * column_step
                x = load(block, place) - v * load(products, j * LANES)
                store(block, place, x)
                even = even + x * load(reflector, j * LANES)
            factor = (even + odd) * right
            for j in range(k + 1, columns):
                place = row + j * column_step
                store(block, place, load(block, place) - factor * load(reflector, j * LANES))


@compiled
def _products_with_column(
    block: np.ndarray, base: int, k: int, rows: int, columns: int, row_step: int, column_step: int,
    products: np.ndarray, zero: np.ndarray,
) -> None:  # fmt: skip
    """The products of column k with every later column, four rows at a time."""
    for j in range(k + 1, columns):
        store(products, j * LANES, zero)
    i = k
    while i + 4 <= rows:
        row0 = base + i * row_step
        row1, row2, row3 = row0 + row_step, row0 + 2 * row_step, row0 + 3 * row_step
        own = k * column_step
        v0, v1, v2, v3 = load(block, row0 + own), load(block, row1 + own), load(block, row2 + own), load(block, row3 + own)
        for j in range(k + 1, columns):
            at = j * column_step
            first = load(products, j * LANES) + v0 * load(block, row0 + at) + v1 * load(block, row1 + at)
            store(products, j * LANES, first + (v2 * load(block, row2 + at) + v3 * load(block, row3 + at)))
        i += 4
    while i < rows:
        row0 = base + i * row_step
        v0 = load(block, row0 + k * column_step)
        for j in range(k + 1, columns):
            store(products, j * LANES, load(products, j * LANES) + v0 * load(block, row0 + j * column_step))
        i += 1


@compiled
def _sum_of_roots(
    diagonal: np.ndarray, above: np.ndarray, size: int, epsilon: float, eigenvalues: np.ndarray, squares: np.ndarray,
    norms: np.ndarray, place: int,
) -> None:  # fmt: skip
    """Write Σ√(λ + ε) of the tridiagonal BᵀB to norms[place]; `squares` holds the squares of its off-diagonal."""
    zero = splat(widen(load(diagonal, 0)), 0.0)
    one, half, tiny = splat(zero, 1.0), splat(zero, 0.5), splat(zero, 1e-200)
    trace, before = zero, zero
    for k in range(size):
        a, b = widen(load(diagonal, k * LANES)), widen(load(above, k * LANES))
        value = a * a + before
        before = b * b
        trace = trace + value
        store(eigenvalues, k * LANES, value)
        store(squares, k * LANES, a * a * before)
    negligible = trace * trace * splat(zero, 1e-32) + tiny
    total, missed, spoilt, shift = zero, zero, zero, splat(zero, epsilon)
    for l in range(size):  # noqa: E741 - the name of this index in the literature
        steps = 0
        while l + 1 < size and largest(load(squares, l * LANES) - negligible) > 0.0:
            if steps == _STEPS:
                missed = one
                break
            _ql_step(eigenvalues, squares, l, size, zero, one, half, tiny)
            steps += 1
        x = load(eigenvalues, l * LANES)
        total = total + sqrt(where_positive(x, x, zero) + shift)
        spoilt = spoilt + (x - x)
    # where_positive turns NaN into 0, so the trace and each eigenvalue must pass values that are not finite to the result.
    total = total + where_positive(missed, zero / zero, (trace - trace) + spoilt)
    store(norms, place * LANES, total)


@compiled
def _ql_step(
    eigenvalues: np.ndarray, squares: np.ndarray, l: int, size: int,  # noqa: E741
    zero: np.ndarray, one: np.ndarray, half: np.ndarray, tiny: np.ndarray,
) -> None:  # fmt: skip
    """One root-free QL step on rows l and below of the tridiagonal."""
    first = load(squares, l * LANES)
    root, p = sqrt(first), load(eigenvalues, l * LANES)
    ratio = (load(eigenvalues, (l + 1) * LANES) - p) * half / where_positive(first, root, one)
    shift = where_positive(first, p - root / (ratio + copysign(sqrt(ratio * ratio + one), ratio)), p)
    c, s = one, zero
    gamma = load(eigenvalues, (size - 1) * LANES) - shift
    p = gamma * gamma
    i = size - 2
    while i >= l:
        square = load(squares, i * LANES)
        r = p + square
        if i != size - 2:
            store(squares, (i + 1) * LANES, s * r)
        # In a lane that converged before the others, r may be so small that 1/r is infinite.
        before, inverse = c, where_positive(r - tiny, one / r, zero)
        c = where_positive(r - tiny, p * inverse, one)
        s = square * inverse
        last, alpha = gamma, load(eigenvalues, i * LANES)
        gamma = c * (alpha - shift) - s * last
        store(eigenvalues, (i + 1) * LANES, last + (alpha - gamma))
        p = where_positive(c - tiny, gamma * gamma / c, before * square)
        i -= 1
    store(squares, l * LANES, s * p)
    store(eigenvalues, l * LANES, shift + gamma)
