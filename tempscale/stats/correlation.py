"""Spearman's rank correlation, and its exact p for as few models as papers compare.

S2 (arXiv 2604.27398) Fig 5, Table 2: SOCM against the mean score of MTEB(eng, v2) over 12 models, ρ = −0.678, p = .015 by
the t approximation. With midranks r, the same for equal values,

    ρ = Σ_i (r_a(i) − r̄)(r_b(i) − r̄) / √(Σ_i (r_a(i) − r̄)² · Σ_i (r_b(i) − r̄)²)

    p_t      from t = ρ·√((n − 2)/(1 − ρ²)), Student's t with n − 2 degrees of freedom
    p_exact  the share of the n! pairings π of the same ranks whose |ρ_π| ≥ |ρ|, ties included

The pairings are not enumerated: only s_π = Σ_i r_a(i)·r_b(π(i)) changes, and the number of pairings for each s follows from
the subsets of the ranks of b: 2ⁿ steps instead of n!. Ranks are doubled, so that all numbers are whole and rounding hides no
tie of |ρ_π| with |ρ|.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtr
from scipy.stats import rankdata

from tempscale.stats.enough import VALUES_FOR_AN_ERROR

MOST_EXACT = 14
"""Most items that the exact p is computed for: about a second."""


class Correlation(NamedTuple):
    """A rank correlation and its p: how often chance alone gives one as far from 0, on either side."""

    rho: float | None
    """ρ in [−1, 1]."""
    n: int
    """How many items were ranked."""
    p_exact: float | None
    """Two-sided, over all n! pairings, in (0, 1]."""
    p_t: float | None
    """Two-sided, by the t approximation, in [0, 1]; 0 at ρ = ±1."""


def rho(a: Float[np.ndarray, " item"], b: Float[np.ndarray, " item"]) -> float:
    """Spearman's rank correlation: Pearson's of the midranks.

    Args:
        a: one value of each item, (n,).
        b: the other, (n,), in the same order.

    Returns:
        ρ in [−1, 1]; NaN where one side is constant.
    """
    x, y = (ranks - ranks.mean() for ranks in (rankdata(a), rankdata(b)))
    norm = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / norm if norm else math.nan


def spearman(
    a: Sequence[float] | Float[np.ndarray, " item"], b: Sequence[float] | Float[np.ndarray, " item"]
) -> Correlation:
    """Spearman's ρ of two values of the same items, with both two-sided p (S2 Fig 5).

    Args:
        a: one value of each item, (n,).
        b: the other, (n,), in the same order.

    Returns:
        ρ in [−1, 1] and its p. All three are None if ρ is undefined: fewer than 3 items, a value that is not finite, or all
        values of one side equal. p_exact is also None above 14 items.

    Raises:
        ValueError: the two differ in length, or are not one-dimensional.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"two lists of one length are ranked, not arrays of shapes {first.shape} and {second.shape}")
    n = len(first)
    if n < VALUES_FOR_AN_ERROR or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return Correlation(None, n, None, None)
    r_a, r_b = ((2 * rankdata(values)).astype(np.int64) for values in (first, second))
    shared = _covariance(r_a, r_b)
    scale = _covariance(r_a, r_a) * _covariance(r_b, r_b)
    if not scale:
        return Correlation(None, n, None, None)
    # 1 − ρ² from whole numbers, so that it is 0 exactly where ρ is ±1.
    unexplained = scale - shared**2
    t = math.sqrt(shared**2 * (n - 2) / unexplained) if unexplained else math.inf
    p_t = float(2 * stdtr(n - 2, -t))
    return Correlation(rho(first, second), n, _exact(r_a, r_b) if n <= MOST_EXACT else None, p_t)


def _covariance(a: Int[np.ndarray, " item"], b: Int[np.ndarray, " item"]) -> int:
    """n²·cov(a, b) = n·Σab − Σa·Σb, a whole number of any size."""
    return len(a) * int(a @ b) - int(a.sum()) * int(b.sum())


def _exact(a: Int[np.ndarray, " item"], b: Int[np.ndarray, " item"]) -> float:
    """The share of all pairings of two lists of ranks whose covariance is at least as far from 0 as the given one."""
    a, b = _steps(a), _steps(b)
    ascending = np.sort(a)
    values, copies = (column.tolist() for column in np.unique(b, return_counts=True))
    # How many of each value of b are used -> the number of ways in which their sum of products is 0, 1, 2, … Equal values of
    # b are one state, which divides the count of every sum equally. 14! fits into 64 bits.
    ways = {(0,) * len(values): np.ones(1, dtype=np.int64)}
    for k, rank in enumerate(ascending.tolist(), 1):
        next_ways: dict[tuple[int, ...], np.ndarray] = {}
        for taken, counts in ways.items():
            for j, value in enumerate(values):
                if taken[j] == copies[j]:
                    continue
                state = (*taken[:j], taken[j] + 1, *taken[j + 1 :])
                if state not in next_ways:  # The largest sum pairs large with large.
                    next_ways[state] = np.zeros(1 + int(ascending[:k] @ np.repeat(values, state)), dtype=np.int64)
                next_ways[state][rank * value : rank * value + len(counts)] += counts
        ways = next_ways
    (counts,) = ways.values()
    distance = np.abs(len(a) * np.arange(len(counts)) - int(a.sum()) * int(b.sum()))
    return int(counts[distance >= abs(_covariance(a, b))].sum()) / int(counts.sum())


def _steps(ranks: Int[np.ndarray, " item"]) -> Int[np.ndarray, " item"]:
    """The ranks from 0, divided by their common divisor: fewer sums, and every covariance scaled equally."""
    above: np.ndarray = ranks - ranks.min()
    return np.asarray(above // np.gcd.reduce(above))
