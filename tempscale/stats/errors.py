"""Standard errors of means over pairs of texts, and their correction for a finite population."""

from __future__ import annotations

import numpy as np

Z_95 = 1.96
"""Standard errors on either side of an estimate that contain 95 % of a normal distribution."""


def within_error(variance: float, texts: float) -> float:
    """Standard error of the mean over all pairs inside one set of texts: 2·sd(per-text means)/√n.

    Each pair counts in the means of two texts, hence the 2 (the first-order term of a U-statistic of degree 2).

    Args:
        variance: sample variance of the texts' mean cosines with the others.
        texts: n ≥ 1.

    Returns:
        ≥ 0, in the unit of the mean; for a sample of a finite population see `finite_population`.
    """
    return float(2.0 * np.sqrt(variance / texts))


def between_error(row_variance: float, rows: float, column_variance: float, columns: float) -> float:
    """Standard error of the mean over all pairs between two sets: √(var(row means)/n_a + var(column means)/n_b).

    Args:
        row_variance: sample variance of the mean cosines of one set's texts with the other set.
        rows: n_a ≥ 1.
        column_variance: the same for the texts of the other set.
        columns: n_b ≥ 1.

    Returns:
        ≥ 0, in the unit of the mean.
    """
    return float(np.sqrt(row_variance / rows + column_variance / columns))


def finite_population(texts: float, population: float) -> float:
    """√(1 − n/N): the factor of a standard error if the figure is about the N texts from which the n texts were drawn.

    Args:
        texts: n.
        population: N.

    Returns:
        In [0, 1]; 0 if all texts were drawn, or there are none.
    """
    return float(np.sqrt(max(0.0, 1.0 - texts / population))) if population > 0 else 0.0
