"""Rule out pairs of texts that cannot be among the most collapsed: from their traces alone, then from a few rows of factors.

Since d_Σ ≤ (tr Σ_1 + tr Σ_2)/4 and 1 − d_μ = (1 + cos)/2, a pair can be among the most collapsed only if

    ((1 + cos)/2)^α · ((tr Σ_1 + tr Σ_2)/4)^β ≥ θ        (ranking `socm`)
    cos ≥ c and (tr Σ_1 + tr Σ_2)/4 ≥ θ'                 (ranking `same_mean`: largest d_Σ among pairs of high cosine)

for thresholds θ, θ' that enough known pairs reach. `survivors` selects these from a block of cosines, directly after its
matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tempscale.compiled import compiled

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# numba notices a change of this file only; lanes.py and compiled.py: b07b0cab0b6b

SLACK = 1e-5
"""Relative margin of every comparison, because cosines, traces and factors are float32."""
ROWS, COLUMNS = 512, 2048


def survivors(
    rows: np.ndarray, row_trace: np.ndarray, columns: np.ndarray, column_trace: np.ndarray, *, diagonal: bool,
    socm: float, same_mean: float, cosine: float, alpha: float = 1.0, beta: float = 1.0, means: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """The pairs of two blocks of unit embeddings that the bound from the traces does not rule out.

    Args:
        rows, columns: unit embeddings (texts, d), float32.
        row_trace, column_trace: tr Σ of every text (texts,), float32.
        diagonal: both blocks are the same texts; each unordered pair is then tested once.
        socm, same_mean: θ and θ'.
        cosine: c.
        alpha, beta: exponents of S2 eq. 30.
        means: the embeddings are the unit token means, so their cosine gives d_μ; otherwise only d_μ ≥ 0 is used.

    Returns:
        Rows and columns (pairs, 2) int32; cosines (pairs,) float32; rankings (pairs,) uint8: 1 for `socm`, 2 for
        `same_mean`, 3 for both.
    """
    parts = []
    for start in range(0, len(rows), ROWS):
        left = rows[start : start + ROWS]
        for begin in range(0, len(columns), COLUMNS):
            if diagonal and begin + COLUMNS <= start:
                continue
            product = left @ columns[begin : begin + COLUMNS].T
            arguments = (
                product, start, begin, diagonal, row_trace, column_trace, socm * (1 - SLACK), same_mean * (1 - SLACK),
                cosine, alpha, beta, means,
            )  # fmt: skip
            count = _pick(*arguments, np.empty((0, 2), np.int32), np.empty(0, np.float32), np.empty(0, np.uint8))
            if count:
                places, cosines = np.empty((count, 2), np.int32), np.empty(count, np.float32)
                ranking = np.empty(count, np.uint8)
                _pick(*arguments, places, cosines, ranking)
                parts.append((places, cosines, ranking))
    if not parts:
        return np.empty((0, 2), np.int32), np.empty(0, np.float32), np.empty(0, np.uint8)
    places, cosines, ranking = (np.concatenate(part) for part in zip(*parts, strict=True))
    return places, cosines, ranking


def d_sigma_bound(
    factors: Sequence[Float[Tensor, "rank dim"]], first: np.ndarray, second: np.ndarray, rows: int
) -> Float[np.ndarray, " pair"]:
    """Upper bounds of d_Σ of listed pairs, from the first rows of factors: d_Σ ≤ (tr Σ_1 + tr Σ_2 − 2‖P_kF_1(P_kF_2)ᵀ‖_*)/4.

    Args:
        factors: covariance factors (rank_i, d) from `nuclear.principal_rows`.
        first, second: indices of each pair into `factors`, (pairs,).
        rows: k. Factors of at most so many rows give d_Σ itself, and the margin.

    Returns:
        Float64 (pairs,), > 0 unless both traces are 0; with a margin of SLACK·(tr Σ_1 + tr Σ_2), more than float32 loses.
    """
    from tempscale.second_order.nuclear import paired_nuclear_norms
    from tempscale.second_order.socm import traces

    trace = traces(factors).numpy()
    norms = paired_nuclear_norms([factor[:rows] for factor in factors], first.tolist(), second.tolist()).numpy()
    both = trace[first] + trace[second]
    bounds: np.ndarray = np.maximum((both - 2 * norms) / 4, 0.0) + SLACK * both
    return bounds


@compiled
def _pick(
    product: np.ndarray, first_row: int, first_column: int, diagonal: bool, row_trace: np.ndarray, column_trace: np.ndarray,
    socm: float, same_mean: float, cosine: float, alpha: float, beta: float, means: bool,
    places: np.ndarray, cosines: np.ndarray, ranking: np.ndarray,
) -> int:  # fmt: skip
    """Count the pairs that are not ruled out, and store as many as fit in the output arrays."""
    count, plain = 0, alpha == 1.0 and beta == 1.0
    for i in range(len(product)):
        row = product[i]
        own = row_trace[first_row + i]
        begin = max(0, first_row + i + 1 - first_column) if diagonal else 0
        for j in range(begin, len(row)):
            most = (own + column_trace[first_column + j]) / 4
            near = (1 + row[j]) / 2 if means else np.float32(1.0)
            bound = near * most if plain else max(near, 0.0) ** alpha * most**beta
            kept = 0
            if bound >= socm:
                kept = 1
            if row[j] >= cosine and most >= same_mean:
                kept += 2
            if kept:
                if count < len(places):
                    places[count, 0], places[count, 1] = first_row + i, first_column + j
                    cosines[count], ranking[count] = row[j], kept
                count += 1
    return count
