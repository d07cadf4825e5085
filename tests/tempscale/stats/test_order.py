"""Whether neighbours are alike: a series by hand, independent texts, documents, and a slow drift."""

import math

import numpy as np
import pytest

from tempscale.stats.order import serial_correlation


def test_pairs_of_equal_neighbours_by_hand():
    """a, a, b, b, …: half of all neighbours are equal, so ρ_1 is about ½ and the factor √2."""
    own = np.repeat(np.random.default_rng(0).normal(size=20_000), 2)
    found = serial_correlation([own - own.mean()])
    assert found.correlation == pytest.approx(0.5, abs=0.02)
    assert found.error == pytest.approx(1 / math.sqrt(39_999), rel=1e-12)
    assert found.factor == pytest.approx(math.sqrt(2), abs=0.03)


def test_the_factor_is_that_of_the_error_of_the_mean():
    """Over series drawn again: the spread of their means against s/√n of independent values."""
    random, means, factors, errors = np.random.default_rng(1), [], [], []
    for _ in range(400):
        sizes = random.integers(1, 12, 300)
        own = np.repeat(random.normal(size=300), sizes) + random.normal(size=sizes.sum())
        means.append(own.mean())
        errors.append(own.std(ddof=1) / math.sqrt(len(own)))
        factors.append(serial_correlation([own - own.mean()]).factor)
    assert np.mean(errors) * np.mean(factors) == pytest.approx(np.std(means), rel=0.1)
    assert np.mean(factors) > 1.6


def test_documents_longer_than_what_is_looked_at_are_told():
    random = np.random.default_rng(6)
    for size, whole in ((5, True), (500, False)):
        own = np.repeat(random.normal(size=4000 // size), size) + random.normal(size=4000)
        assert serial_correlation([own - own.mean()]).whole is whole


def test_independent_texts_are_not_alike():
    random = np.random.default_rng(2)
    found = [serial_correlation([random.normal(size=500), random.normal(size=300)]) for _ in range(300)]
    assert sum(one.correlation > 4 * one.error for one in found) == 0
    assert np.median([one.factor for one in found]) == 1


def test_stretches_do_not_touch():
    """The last of one stretch and the first of the next are no neighbours."""
    random = np.random.default_rng(3)
    pairs = np.repeat(random.normal(size=400), 2)
    apart = [pairs[k : k + 1] for k in range(len(pairs))]
    assert serial_correlation(apart) is None
    assert serial_correlation([pairs[k : k + 2] for k in range(0, 800, 2)]).correlation == pytest.approx(1, abs=1e-12)


def test_too_few_or_equal_values_tell_nothing():
    assert serial_correlation([np.arange(100.0) - 49.5]) is None
    assert serial_correlation([np.zeros(200)]) is None
    assert serial_correlation([]) is None
