"""Means over all pairs from small groups: cases by hand, and how often their intervals hold the truth."""

import numpy as np
import pytest
from scipy import stats

from tempscale.stats.errors import documents_error
from tempscale.stats.groups import (
    GroupSums,
    between_strata,
    covariance_of_shares,
    jackknife_error,
    quantile,
    shares_of_pairs,
    texts_of_a_group,
)


@pytest.mark.parametrize(
    ("texts", "groups", "expected"),
    [
        ([1000] * 8, 32, [3] * 4 + [2] * 4), ([1000], 32, [20]), ([1000, 0], 32, [20, 0]), ([1000] * 4, 32, [5] * 4),
        ([1000, 100, 3], 32, [16, 2, 2]), ([600, 400], 32, [12, 8]), ([600, 395, 5], 32, [11, 7, 2]), ([200], 32, [6]),
        ([40], 32, [2]), ([1] * 20, 32, [2] * 20), ([], 32, []),
    ],
)  # fmt: skip
def test_how_many_texts_a_group_gets_by_hand(texts, groups, expected):
    assert texts_of_a_group(np.array(texts), groups).tolist() == expected


def test_shares_of_pairs_by_hand():
    """Three and two texts: 3 pairs inside, 6 between, 1 inside."""
    np.testing.assert_allclose(shares_of_pairs(np.array([3, 2])), [0.3, 0.6, 0.1], rtol=1e-15)


def test_the_jackknife_of_a_plain_mean_is_its_standard_error():
    values = np.random.default_rng(0).normal(3, 2, 25)
    left = (values.sum() - values) / 24
    assert jackknife_error(left) == pytest.approx(values.std(ddof=1) / 5, rel=1e-12)
    assert np.isnan(jackknife_error(left[:9]))


def test_groups_of_two_cells_by_hand():
    """Cell 0 has 1, 3 in group 0 and 5 in group 1; cell 1 has 8 in group 1; cell 2 none. Weights .5, .25, .25."""
    found = GroupSums.of(np.array([1.0, 3.0, 5.0, 8.0]), np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), (2, 3))
    weights = np.array([0.5, 0.25, 0.25])
    np.testing.assert_allclose([found.estimate(weights, [k])[0] for k in range(3)], [3, 8, np.nan])
    np.testing.assert_allclose(found.estimate(weights, [0, 1])[0], (0.5 * 3 + 0.25 * 8) / 0.75)
    assert found.weighted(weights) == pytest.approx((0.5 * 3 + 0.25 * 8) / 0.75)
    # Without group 0: 5 and 8; without group 1: 2 alone.
    np.testing.assert_allclose(found.replicates(weights), [(0.5 * 5 + 0.25 * 8) / 0.75, 2.0])
    assert np.isnan([found.estimate(weights, [k])[1] for k in range(3)]).all()  # Two groups are too few.


def test_a_group_without_pairs_is_left_out_of_the_replicates():
    values, group = np.random.default_rng(1).normal(size=36), np.repeat(np.arange(12), 3)
    cell = np.zeros(36, dtype=int)
    plain, gaps = (GroupSums.of(values, own, cell, (size, 1)) for own, size in ((group, 12), (2 * group, 24)))
    weights = np.ones(1)
    np.testing.assert_allclose(gaps.replicates(weights), plain.replicates(weights), rtol=1e-12)
    np.testing.assert_allclose(gaps.estimate(weights, [0]), plain.estimate(weights, [0]), rtol=1e-12)


def test_a_quantile_by_hand():
    """Of 0 … 99, one value a group: the median 49.5 and the binomial error of a half, √(.25/99), in values."""
    values = np.arange(100.0)
    at, error = quantile(values, np.arange(100), 0.5)
    assert at == 49.5
    assert error == pytest.approx(99 * np.sqrt(0.25 / 99), rel=1e-9)
    assert np.isnan(quantile(values, np.arange(100) % 9, 0.5)[1])


def test_an_extreme_quantile_of_few_values_has_no_error():
    """Of 16 values the error of the share .95 is √(.0625·.9375/15) or more, and .95 + 1.96·.06 is beyond 1."""
    values = np.arange(16.0)
    assert np.isnan(quantile(values, np.arange(16), 0.95)[1])
    assert np.isnan(quantile(values, np.arange(16), 0.02)[1])
    assert quantile(values, np.arange(16), 0.5)[1] > 0
    # One value has most of the weight: it is every quantile, which is no certainty.
    assert quantile(values, np.arange(16), 0.9, np.r_[np.ones(15), 100])[0] == 15
    assert np.isnan(quantile(values, np.arange(16), 0.9, np.r_[np.ones(15), 100])[1])
    assert quantile(np.ones(16), np.arange(16), 0.5) == (1, 0)


def test_the_covariance_of_shares_gives_the_variance_between_strata_and_that_of_documents():
    random = np.random.default_rng(4)
    stratum, means = random.integers(0, 3, 200), np.array([0.2, 0.5, 0.9])
    own = covariance_of_shares(stratum, 3)
    assert means @ own @ means == pytest.approx(between_strata(np.bincount(stratum), means, 200), rel=1e-12)
    document = np.repeat(np.arange(25), 8)
    own = covariance_of_shares(stratum, 3, document)
    assert means @ own @ means == pytest.approx(documents_error([means[stratum]], [2.0], [document]) ** 2, rel=1e-12)
    assert (means + 7) @ own @ (means + 7) == pytest.approx(means @ own @ means, rel=1e-9)


def test_the_variance_between_strata_by_hand():
    """Shares ¾ and ¼, means 1 and 3: m̄ = 1.5, ¾·.25 + ¼·2.25 = .75; 4·.75/40. A stratum of unknown mean is left out."""
    assert between_strata(np.array([30, 10]), np.array([1.0, 3.0]), 40) == pytest.approx(0.075)
    assert between_strata(np.array([30, 10, 5]), np.array([1.0, 3.0, np.nan]), 40) == pytest.approx(0.075)
    assert between_strata(np.array([30]), np.array([1.0]), 40) == 0


STRATA, MEANS, SPREADS = 4, np.array([0.0, 0.5, 1.0, 2.0]), np.array([1.0, 0.7, 1.2, 0.5])
TEXTS = np.array([4000, 2000, 1000, 500])


def drawn(groups, random):
    """h(x, y) = (x − y)², x normal in its stratum: every pair of groups of four texts of each of four strata."""
    x = MEANS[:, None] + SPREADS[:, None] * random.standard_normal((groups, STRATA, 4))
    x, stratum = x.reshape(groups, -1), np.repeat(np.arange(STRATA), 4)
    first, second = np.triu_indices(x.shape[1], 1)
    low, high = stratum[first], stratum[second]  # Already in order.
    cell = low * STRATA + high - low * (low + 1) // 2
    group = np.repeat(np.arange(groups), len(first))
    return np.square(x[:, first] - x[:, second]).ravel(), group, np.tile(cell, groups)


@pytest.mark.proof
@pytest.mark.parametrize("groups", [16, 32, 128])
def test_intervals_hold_the_truth_as_often_as_they_say(groups):
    """By cell and over all pairs, 1,000 draws each: 95 % of Student's t intervals, within what so few draws tell."""
    random, draws, weights = np.random.default_rng(groups), 1000, shares_of_pairs(TEXTS)
    low, high = np.triu_indices(STRATA)
    truth = np.square(MEANS[low] - MEANS[high]) + np.square(SPREADS[low]) + np.square(SPREADS[high])
    reach = stats.t.ppf(0.975, groups - 1)
    held, means, totals, errors = np.zeros(len(truth)), [], [], []
    held_total = 0
    for _ in range(draws):
        values, group, cell = drawn(groups, random)
        found = GroupSums.of(values, group, cell, (groups, len(truth)))
        estimates, own = np.array([found.estimate(weights, [k]) for k in range(len(truth))]).T
        held += np.abs(estimates - truth) <= reach * own
        totals.append(found.weighted(weights))
        errors.append(jackknife_error(found.replicates(weights)))
        held_total += abs(totals[-1] - (weights * truth).sum()) <= reach * errors[-1]
        means.append(estimates)
    assert 0.93 <= held_total / draws <= 0.97
    # Squares of normals are skewed, which costs a cell of few pairs some coverage.
    assert (held / draws >= 0.91).all()
    assert (held / draws <= 0.975).all()
    np.testing.assert_allclose(np.mean(means, 0), truth, rtol=0.02)
    assert np.mean(errors) == pytest.approx(np.std(totals), rel=0.08)


@pytest.mark.proof
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_intervals_of_a_percentile_hold_it(share):
    """Inside one stratum (x − y)²/2σ² is χ² with one degree of freedom."""
    random, truth, held, groups = np.random.default_rng(5), 2 * stats.chi2.ppf(share, 1), 0, 32
    for _ in range(1000):
        x = random.standard_normal((groups, 6))
        first, second = np.triu_indices(6, 1)
        at, error = quantile(np.square(x[:, first] - x[:, second]).ravel(), np.repeat(np.arange(groups), 15), share)
        held += abs(at - truth) <= stats.t.ppf(0.975, groups - 1) * error
    assert 0.92 <= held / 1000 <= 0.98
