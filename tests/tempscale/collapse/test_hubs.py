"""The count from which a text is a hub: binomial tails as exact fractions, a case by hand, and vectors without hubs."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempscale.collapse.hubs import hub_counts

EVERY = 30
"""An interval of fewer texts is judged with all texts."""


def by_definition(slots, texts, every):
    """The least count that is five times the mean, and that Binomial(S, 1/n) reaches with a chance of 0.01/N at most."""
    p, count = Fraction(1, texts), 1
    while count <= slots:
        tail = sum(comb(slots, x) * p**x * (1 - p) ** (slots - x) for x in range(count, slots + 1))
        if count >= Fraction(5 * slots, texts) and tail <= Fraction(1, 100 * every):
            return count
        count += 1
    return None


@given(st.integers(0, 60), st.integers(EVERY, 400), st.integers(0, 60), st.integers(EVERY, 400))
def test_the_least_count_is_that_of_its_definition(slots, texts, others, other_texts):
    found = hub_counts(np.array([slots, others]), np.array([texts, other_texts]))
    expected = by_definition(slots, texts, texts + other_texts)
    assert found[0] > slots if expected is None else found[0] == expected


def test_cases_by_hand():
    assert hub_counts(np.array([1000]), np.array([100])).tolist() == [50]  # Mean 10: chance gives 30 at most.
    assert hub_counts(np.array([100]), np.array([100])).tolist() == [
        7
    ]  # Mean 1: 7 or more have a chance of 8·10⁻⁵, 6 of 6·10⁻⁴.
    assert hub_counts(np.array([0]), np.array([100]))[0] > 0  # Nothing was found.


def test_few_texts_of_a_length_are_judged_with_all_texts():
    assert hub_counts(np.array([900, 100]), np.array([99, 1])).tolist() == [46, 50]
    assert hub_counts(np.array([100]), np.array([1]))[0] > 100


def test_texts_that_are_found_equally_often_are_no_hubs():
    for texts, times in ((30, 1), (30, 900), (1000, 3)):
        assert hub_counts(np.array([texts * times]), np.array([texts]))[0] > times


@pytest.mark.parametrize(("dim", "askers"), [(3, 0), (16, 0), (64, 0), (16, 40), (16, 4000), (64, 4000)])
def test_vectors_without_a_direction_have_no_hubs(dim, askers):
    """In 20 draws one text may be called a hub with a chance of 0.2; a planted one always is."""
    called = 0
    for draw in range(20):
        random = np.random.default_rng(draw)
        texts = random.normal(size=(300, dim))
        texts /= np.linalg.norm(texts, axis=1, keepdims=True)
        asking = random.normal(size=(askers, dim)) if askers else texts
        similarity = asking @ texts.T
        if not askers:
            np.fill_diagonal(similarity, -np.inf)
        times = np.bincount(np.argsort(-similarity, axis=1)[:, :10].ravel(), minlength=300)
        interval = random.integers(0, 2, 300)
        filled, many = np.bincount(interval, times).astype(int), np.bincount(interval)
        called += int((times >= hub_counts(filled, many)[interval]).sum())
    assert called <= 1
