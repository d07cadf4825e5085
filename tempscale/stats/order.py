"""Whether consecutive texts of a source are similar, and by what factor this makes errors too small."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MOST_LAGS = 64
_NOISE = 2.0
"""A correlation below this many of its errors under independence ends the sum."""


class SerialCorrelation(NamedTuple):
    """The correlation of consecutive texts of a source."""

    correlation: float
    """ρ_1, of a text's value with the next one's."""
    error: float
    """Standard error of ρ_1 if texts are independent: 1/√pairs."""
    factor: float
    """≥ 1: the error of independent texts is too small by this factor."""
    whole: bool
    """Whether the correlations end within the largest lag; otherwise the factor is larger."""


def serial_correlation(stretches: Sequence[Float[np.ndarray, " text"]]) -> SerialCorrelation | None:
    """The correlation of consecutive texts, and the factor of the error of a mean over a series with such correlations.

        factor = √(1 + 2·Σ_k ρ_k)

    over the lags k = 1, 2, … up to the first whose ρ_k is at most two errors above 0, and at most 64 (a truncated sum of
    autocorrelations, Geyer 1992). For longer documents the sum is cut off, and `whole` is false.

    Args:
        stretches: values of consecutive texts with mean 0, one array for each stretch of the source.

    Returns:
        None if fewer than a hundred texts have a next one, or all values are equal.
    """
    squares = sum(float(stretch @ stretch) for stretch in stretches)
    texts = sum(map(len, stretches))
    if sum(max(0, len(stretch) - 1) for stretch in stretches) < 100 or squares == 0:
        return None
    first, total, whole = 0.0, 0.0, False
    for lag in range(1, MOST_LAGS + 1):
        pairs = sum(max(0, len(stretch) - lag) for stretch in stretches)
        if not pairs:
            break  # All stretches are shorter.
        products = sum(float(stretch[:-lag] @ stretch[lag:]) for stretch in stretches if len(stretch) > lag)
        rho = products / pairs / (squares / texts)
        first = rho if lag == 1 else first
        if rho <= _NOISE / np.sqrt(pairs):
            whole = True
            break
        total += rho
    error = 1 / np.sqrt(sum(max(0, len(stretch) - 1) for stretch in stretches))
    return SerialCorrelation(first, float(error), float(np.sqrt(1 + 2 * total)), whole)
