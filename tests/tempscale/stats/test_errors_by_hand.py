"""Standard errors of means over pairs, by hand and in their limits."""

import numpy as np
import pytest

from tempscale.stats.errors import between_error, finite_population, within_error


def test_an_error_inside_a_set_counts_each_text_twice():
    assert within_error(0.04, 100) == pytest.approx(0.04, rel=1e-15)  # 2 · 0.2/10


def test_an_error_between_two_sets_adds_the_variances_of_both():
    assert between_error(0.09, 100, 0.16, 100) == pytest.approx(0.05, rel=1e-15)  # √(0.0009 + 0.0016)
    assert between_error(0.09, 100, 0.0, 7) == pytest.approx(0.03, rel=1e-15)


def test_a_sample_of_a_finite_population_has_less_error_and_all_of_it_none():
    assert finite_population(64, 100) == pytest.approx(0.6, rel=1e-15)
    assert finite_population(1, 10**12) == pytest.approx(1)
    assert (finite_population(100, 100), finite_population(0, 100), finite_population(0, 0)) == (0, 1, 0)
    assert finite_population(101, 100) == 0  # Never the root of something negative.


def test_the_factor_is_that_of_samples_without_replacement():
    """Means of 30 of 40 values: their standard deviation, over that of 30 of infinitely many."""
    random = np.random.default_rng(0)
    values = random.normal(size=40)
    means = [random.permutation(values)[:30].mean() for _ in range(20_000)]
    assert np.std(means) == pytest.approx(values.std(ddof=1) / np.sqrt(30) * finite_population(30, 40), rel=0.03)
