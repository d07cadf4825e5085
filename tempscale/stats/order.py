"""Whether texts that stand beside each other in a source are alike, and by how much errors are too small if that is so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MOST_LAGS = 64
_NOISE = 2.0
"""A correlation below so many of its errors under independence ends the sum."""


class Beside(NamedTuple):
    """What the order of a source tells of its texts."""

    correlation: float
    """ρ_1, of a text's value with its neighbour's."""
    error: float
    """Standard error of ρ_1 if texts are independent: 1/√pairs."""
    factor: float
    """≥ 1: by how much the error of independent texts is too small if only neighbours are alike."""
    whole: bool
    """Whether the correlations end within the lags that are looked at; otherwise the factor is larger."""


def beside(stretches: Sequence[Float[np.ndarray, " text"]]) -> Beside | None:
    """The correlation of neighbours, and the factor of the error of a mean over a series with such correlations.

        factor = √(1 + 2·Σ_k ρ_k)

    over the lags k = 1, 2, … up to the first whose ρ_k is no more than two errors above 0, 64 at most (a truncated sum of
    autocorrelations, Geyer 1992). Documents longer than that are seen in part, and `whole` is false.

    Args:
        stretches: values of consecutive texts, one array for each stretch of the source, about a mean of 0.

    Returns:
        None where fewer than a hundred texts have a neighbour, or all values are equal.
    """
    squares = sum(float(stretch @ stretch) for stretch in stretches)
    texts = sum(map(len, stretches))
    if sum(max(0, len(stretch) - 1) for stretch in stretches) < 100 or squares == 0:
        return None
    first, total, whole = 0.0, 0.0, False
    for lag in range(1, MOST_LAGS + 1):
        pairs = sum(max(0, len(stretch) - lag) for stretch in stretches)
        if not pairs:
            break  # No text is so far from another.
        products = sum(float(stretch[:-lag] @ stretch[lag:]) for stretch in stretches if len(stretch) > lag)
        rho = products / pairs / (squares / texts)
        first = rho if lag == 1 else first
        if rho <= _NOISE / np.sqrt(pairs):
            whole = True
            break
        total += rho
    error = 1 / np.sqrt(sum(max(0, len(stretch) - 1) for stretch in stretches))
    return Beside(first, float(error), float(np.sqrt(1 + 2 * total)), whole)
