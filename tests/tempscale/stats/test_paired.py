"""Means, rank correlations and their errors against formulas typed here, and how often their intervals hold the truth."""

import math

import numpy as np
import pytest
from scipy import stats

from tempscale.stats import correlation, paired


def test_a_mean_has_the_error_of_its_textbook_also_where_each_value_is_its_own_cluster():
    values = np.array([0.1, 0.4, 0.4, 0.9, 0.0, 0.35])
    expected = pytest.approx((np.mean(values), np.std(values, ddof=1) / math.sqrt(6)))
    assert paired.mean(values) == expected
    assert paired.mean(values, np.array([f"d{k}" for k in range(6)])) == expected


def test_clusters_by_hand():
    # The mean is 3; deviations −2, 0 | 1, 3 | −2: sums of clusters −2, 4, −2, their squares 24.
    found = paired.mean(np.array([1.0, 3.0, 4.0, 6.0, 1.0]), np.array(["a", "a", "b", "b", "c"]))
    assert found.value == pytest.approx(3)
    assert found.se == pytest.approx(math.sqrt(3 / 2 * 24) / 5)


def test_the_clustered_error_is_that_of_a_regression_on_a_constant_whatever_the_order():
    generator = np.random.default_rng(1)
    clusters = generator.integers(0, 12, 70)
    values = generator.normal(size=12)[clusters] + generator.normal(size=70)
    # White's sandwich with clusters: (XᵀX)⁻¹ (Σ_g X_gᵀe_g e_gᵀX_g) (XᵀX)⁻¹, times G/(G−1).
    x, bread = np.ones((70, 1)), np.array([[1 / 70]])
    residuals = values - values.mean()
    filling = sum(np.outer(part := x[clusters == g].T @ residuals[clusters == g], part) for g in set(clusters))
    expected = math.sqrt(12 / 11 * (bread @ filling @ bread)[0, 0])
    assert paired.mean(values, clusters).se == pytest.approx(expected)
    assert expected > 1.3 * paired.mean(values).se
    order = generator.permutation(70)
    assert paired.mean(values[order], clusters[order]).se == pytest.approx(expected)


def test_what_cannot_have_an_error_has_none():
    assert paired.mean(np.array([])) == (None, None)
    assert paired.mean(np.array([0.5])) == (0.5, None)
    assert paired.mean(np.array([0.5, 0.7]), np.array(["a", "a"])) == (pytest.approx(0.6), None)
    assert paired.mean(np.zeros(4)) == (0, 0)
    few = np.array([0.1, 0.2])
    assert paired.rank_correlation(few, few) == (pytest.approx(1), None)
    assert paired.rank_correlation(np.full(9, 0.3), np.arange(9.0)) == (None, None)
    assert math.isnan(correlation.rho(np.ones(5), np.arange(5.0)))


def test_intervals_of_clustered_means_hold_the_truth_where_plain_ones_do_not():
    """Forty clusters of one to nine values, 600 times; 95 % intervals from 1.96 errors hold it a little less often."""
    generator, inside = np.random.default_rng(2), np.zeros(2)
    for _ in range(600):
        sizes = generator.integers(1, 10, 40)
        clusters = np.repeat(np.arange(40), sizes)
        values = generator.normal(size=40)[clusters] + 0.5 * generator.normal(size=len(clusters))
        for k, found in enumerate((paired.mean(values, clusters), paired.mean(values))):
            inside[k] += abs(found.value) < 1.96 * found.se
    clustered, plain = inside / 600
    assert 0.915 < clustered < 0.97
    assert plain < 0.75


def tied(n, rho, seed):
    """Predictions and gold scores that agree more or less, gold with ties as people give them."""
    generator = np.random.default_rng(seed)
    gold = generator.normal(size=n)
    predicted = rho * gold + math.sqrt(1 - rho**2) * generator.normal(size=n)
    return predicted, np.round(gold, 0)


@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.6])
def test_rho_is_scipys_ties_included(rho):
    predicted, gold = tied(120, rho, 3)
    expected = stats.spearmanr(predicted, gold).statistic
    assert correlation.rho(predicted, gold) == pytest.approx(expected, abs=1e-12)
    assert paired.rank_correlation(predicted, gold).value == pytest.approx(expected, abs=1e-12)
    assert correlation.rho(np.exp(predicted), gold) == pytest.approx(expected, abs=1e-12)
    assert correlation.rho(-predicted, gold) == pytest.approx(-expected, abs=1e-12)


def jackknife(figure, n):
    """√((n−1)/n·Σ(θ_i − θ̄)²) over the figure without each item in turn."""
    left = np.array([figure(np.delete(np.arange(n), k)) for k in range(n)])
    return math.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum())


def test_the_error_of_a_correlation_is_the_jackknifes():
    predicted, gold = tied(150, 0.6, 4)
    found = paired.rank_correlation(predicted, gold, seed=5)
    assert found.se == pytest.approx(jackknife(lambda p: stats.spearmanr(predicted[p], gold[p]).statistic, 150), rel=0.15)
    assert found.se == paired.rank_correlation(predicted, gold, seed=5).se
    assert found.se != paired.rank_correlation(predicted, gold, seed=6).se


@pytest.mark.proof
def test_the_error_of_a_difference_of_correlations_is_that_of_pairs():
    predicted, gold = tied(150, 0.6, 7)
    other = predicted + 0.3 * np.random.default_rng(8).normal(size=150)

    def difference(places):
        return np.subtract(*(stats.spearmanr(x[places], gold[places]).statistic for x in (predicted, other)))

    found = paired.rank_correlation(predicted, gold, other)
    assert found.value == pytest.approx(difference(np.arange(150)), abs=1e-12)
    assert found.value != 0
    assert found.se == pytest.approx(jackknife(difference, 150), rel=0.15)
    # The same pairs: much less than of two that know nothing of one another.
    apart = math.hypot(paired.rank_correlation(predicted, gold).se, paired.rank_correlation(other, gold).se)
    assert found.se < 0.5 * apart
    assert paired.rank_correlation(predicted, gold, predicted) == (0, 0)


def test_the_error_without_correlation_is_one_over_the_root_of_the_pairs():
    predicted, gold = np.random.default_rng(9).normal(size=(2, 400))
    assert paired.rank_correlation(predicted, gold).se == pytest.approx(1 / math.sqrt(399), rel=0.15)
