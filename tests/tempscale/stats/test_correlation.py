"""Spearman's ρ and its p (S2 Fig 5) against every pairing listed, printed tables and scipy."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.stats.correlation import MOST_EXACT, Correlation, spearman

# --- oracles: the definitions, in fractions ---------------------------------------------------------------------------


def midranks(values):
    """The mean of the places, from 1, at which a value stands when all are sorted."""
    ordered = sorted(values)
    return [Fraction(sum(k + 1 for k, other in enumerate(ordered) if other == v), ordered.count(v)) for v in values]


def covariance(a, b):
    n = len(a)
    return sum((x - sum(a) / n) * (y - sum(b) / n) for x, y in zip(a, b, strict=True))


def listed(a, b):
    """ρ and the share of all n! pairings as far from 0, each looked at."""
    a, b = midranks(a), midranks(b)
    own = covariance(a, b)
    # ρ of a pairing is its covariance over a constant; fractions know no rounding.
    far = sum(abs(covariance(a, pairing)) >= abs(own) for pairing in itertools.permutations(b))
    rho = float(own) / math.sqrt(covariance(a, a) * covariance(b, b))
    return rho, far / math.factorial(len(a))


def with_squares(n, total):
    """A pairing of 1..n with itself whose Σd² is `total`, from swaps of neighbours and a seeded walk."""
    random, places = np.random.default_rng(n), np.arange(n)
    now = 0
    while now != total:
        i, j = random.choice(n, 2, replace=False)
        other = places.copy()
        other[[i, j]] = other[[j, i]]
        there = int(((other - np.arange(n)) ** 2).sum())
        if abs(there - total) <= abs(now - total) or random.random() < 0.1:
            places, now = other, there
    return places


# --- every pairing ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(3, 5))
def test_every_pairing_of_a_few_items_is_counted_ties_and_all(data, n):
    a, b = (data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)) for _ in range(2))
    found = spearman(a, b)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert found == (None, n, None, None)
        return
    rho, p = listed(a, b)
    assert found.rho == pytest.approx(rho, abs=1e-12)
    assert found.p_exact == p


def test_a_correlation_worked_by_hand():
    # Ranks 1, 2, 3 against 2, 1, 3: Σd² = 2, ρ = 1 − 6·2/24 = ½. Of the six pairings ρ is 1, ½, ½, −½, −½, −1: all reach ½.
    assert spearman([10, 20, 30], [5, 4, 8]) == pytest.approx((0.5, 3, 1.0, 2 / 3))
    # t = ½·√(1/¾) = 1/√3; at one degree of freedom p = 1 − (2/π)·arctan t = 2/3.
    # Ties: ranks 1, 2, 3 against 1½, 1½, 3: Σ of products 1½ of √(2·1½), ρ = √¾; in 4 of 6 pairings 3 stands at an end.
    tied = spearman([10, 20, 30], [4, 4, 8])
    assert (tied.rho, tied.p_exact) == pytest.approx((math.sqrt(0.75), 4 / 6))


# --- what is printed elsewhere ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "level", "critical"),
    [
        (5, 0.05, 1.0), (6, 0.05, 0.886), (7, 0.05, 0.786), (8, 0.05, 0.738), (9, 0.05, 0.700), (10, 0.05, 0.648),
        (12, 0.05, 0.587), (6, 0.01, 1.0), (7, 0.01, 0.929), (8, 0.01, 0.881), (9, 0.01, 0.833), (10, 0.01, 0.794),
    ],
)  # fmt: skip
def test_critical_values_are_those_of_the_tables(n, level, critical):
    # The smallest ρ with a two-sided p of at most the level (Zar 1972); Σd² goes in steps of 2.
    squares = round((1 - critical) * n * (n * n - 1) / 6)
    least, below = (spearman(range(n), with_squares(n, total)) for total in (squares, squares + 2))
    assert round(least.rho, 3) == critical
    assert least.p_exact <= level < below.p_exact


def test_the_published_correlation_has_its_published_p():
    # S2: 12 models, ρ = −0.678, p = .015. Σd² = 480 gives −0.6783.
    found = spearman(range(12), with_squares(12, 480))
    assert (round(found.rho, 3), found.n) == (-0.678, 12)
    assert round(found.p_t, 3) == 0.015
    assert found.p_exact == pytest.approx(found.p_t, abs=0.004)


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(3, MOST_EXACT + 1))
def test_two_pairings_in_all_are_perfect(n):
    values = np.random.default_rng(n).permutation(n)
    for sign in (1, -1):
        assert spearman(values, sign * values) == (sign, n, 2 / math.factorial(n), 0.0)


def test_for_many_items_only_the_approximation_is_told():
    random = np.random.default_rng(1)
    a = random.normal(size=100_000)
    b = a + 200 * random.normal(size=len(a))
    found, own = spearman(a, b), scipy.stats.spearmanr(a, b)
    assert found.p_exact is None
    assert (found.rho, found.p_t) == pytest.approx((own.statistic, own.pvalue), rel=1e-6)
    assert spearman(range(15), [*range(1, 15), 0]).p_exact is None


@pytest.mark.parametrize(
    ("a", "b"),
    [([], []), ([1, 2], [2, 1]), ([1, 1, 1, 1], [1, 2, 3, 4]), ([1, 2, 3], [math.nan, 1, 2]), ([1, math.inf, 3], [1, 2, 3])],
)
def test_where_there_is_no_correlation_none_is_told(a, b):
    assert spearman(a, b) == Correlation(None, len(a), None, None)
    assert spearman(b, a) == Correlation(None, len(a), None, None)


@pytest.mark.parametrize(("a", "b"), [([1, 2, 3], [1, 2]), ([[1, 2, 3]], [[1, 2, 3]])])
def test_lists_that_do_not_belong_together_are_refused(a, b):
    with pytest.raises(ValueError, match="length"):
        spearman(a, b)


# --- invariance -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
def test_only_the_order_counts(ties):
    random = np.random.default_rng(7)
    a, b = (random.integers(0, 5, 11) if ties else random.permutation(11) for _ in range(2))
    found = spearman(a, b)
    assert 0.05 < abs(found.rho) < 0.95
    assert spearman(np.exp(a.astype(float)), b.astype(float) ** 3 - 7) == found  # Any increasing transform.
    assert spearman(b, a) == found
    order = random.permutation(11)
    assert spearman(a[order], b[order]) == found
    assert spearman(a, -b) == found._replace(rho=-found.rho)
