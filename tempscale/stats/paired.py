"""Scores over items with their errors: means, rank correlations, and differences between two runs over the same items."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tempscale.stats.correlation import rho
from tempscale.stats.enough import VALUES_FOR_AN_ERROR

_RESAMPLES = 999
"""Enough for a standard error: its own relative error is about 1/√(2·999) = 2 %."""


class Error(NamedTuple):
    """A figure and its standard error; None where it is undefined."""

    value: float | None
    """The figure."""
    se: float | None
    """Its standard error, ≥ 0."""


def mean(values: np.ndarray, clusters: np.ndarray | None = None) -> Error:
    """The mean of independent values (n,), or of values in clusters, and its standard error.

    Without clusters sd/√n. With G clusters √(G/(G−1)·Σ_g (Σ_{i∈g} (x_i − x̄))²)/n, which is the same for clusters of one.

    Args:
        values: float (n,).
        clusters: the cluster of each value, (n,).

    Returns:
        The mean and its standard error: no error for fewer than two clusters, neither without values.
    """
    n = len(values)
    if n == 0:
        return Error(None, None)
    value = float(values.mean())
    _, groups = np.unique(np.arange(n) if clusters is None else clusters, return_inverse=True)
    sums = np.bincount(groups, values - value)
    g = len(sums)
    return Error(value, math.sqrt(g / (g - 1) * float((sums**2).sum())) / n if g > 1 else None)


def rank_correlation(predicted: np.ndarray, gold: np.ndarray, first: np.ndarray | None = None, seed: int = 0) -> Error:
    """Spearman's correlation of predictions with gold scores, or its difference from that of other predictions.

    The standard error comes from a paired bootstrap over pairs of texts.

    Args:
        predicted: cosines (n,).
        gold: scores (n,).
        first: cosines (n,) of the same pairs to compare with.
        seed: of the bootstrap.

    Returns:
        ρ in [−1, 1], or the difference of two; no error for fewer than three pairs, neither if one side is constant.
    """
    columns = [predicted, gold] if first is None else [predicted, gold, first]

    def figure(places: np.ndarray) -> float:
        scores, target, *others = (column[places] for column in columns)
        return rho(scores, target) - (rho(others[0], target) if others else 0.0)

    n = len(gold)
    value = figure(np.arange(n))
    if n < VALUES_FOR_AN_ERROR or not math.isfinite(value):
        return Error(value if math.isfinite(value) else None, None)
    generator = np.random.default_rng(seed)
    drawn = [figure(generator.integers(0, n, n)) for _ in range(_RESAMPLES)]
    return Error(value, float(np.nanstd(drawn, ddof=1)))
