"""Intervals of shares against sums of the binomial, their coverage."""

import math

import pytest

from tempscale.stats.shares import clopper_pearson


def at_least(k, n, p):
    """P(X ≥ k) of a binomial, term by term."""
    return math.fsum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize(("k", "n"), [(1, 5), (3, 40), (20, 40), (39, 40), (2, 300)])
def test_the_ends_are_where_a_tail_is_two_and_a_half_per_cent(k, n):
    low, high = clopper_pearson(k, n)
    assert at_least(k, n, low) == pytest.approx(0.025, rel=1e-9)
    assert 1 - at_least(k + 1, n, high) == pytest.approx(0.025, rel=1e-9)
    assert low < k / n < high


def test_none_and_all_have_one_open_end():
    assert clopper_pearson(0, 3000) == (0.0, pytest.approx(1 - 0.025 ** (1 / 3000)))
    assert clopper_pearson(7, 7) == (pytest.approx(0.025 ** (1 / 7)), 1.0)
    assert clopper_pearson(0, 3000, 0.9)[1] == pytest.approx(0.000998, abs=1e-6)  # One-sided 95 %: at most .1 %.


@pytest.mark.parametrize("p", [0.001, 0.01, 0.1, 0.37, 0.5])
@pytest.mark.parametrize("n", [20, 200])
def test_it_contains_any_share_with_its_probability_at_least(n, p):
    covered = [k for k in range(n + 1) if clopper_pearson(k, n)[0] <= p <= clopper_pearson(k, n)[1]]
    assert math.fsum(math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in covered) >= 0.95


def test_it_is_symmetric():
    low, high = clopper_pearson(3, 40)
    assert clopper_pearson(37, 40) == (pytest.approx(1 - high), pytest.approx(1 - low))


@pytest.mark.parametrize(("k", "n"), [(-1, 4), (5, 4), (0, 0)])
def test_what_is_no_share_is_refused(k, n):
    with pytest.raises(ValueError, match="no share"):
        clopper_pearson(k, n)
