"""The count from which a text is a hub, against exact binomial tails; the share of neighbour relations of both ways."""

import itertools
from fractions import Fraction
from functools import reduce
from math import comb

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempscale.collapse.exposure import QueryNeighbours, Slots, slots
from tempscale.collapse.hubs import hub_counts, reciprocity
from tempscale.collapse.neighbours import NOBODY

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


# --- reciprocity ------------------------------------------------------------------------------------------------------


def both_ways(nearest, interval=None, ranges=1):
    """The reciprocity of these lists, counted over several ranges of texts."""
    nearest = np.array(nearest, dtype=np.int32)
    interval = np.zeros(len(nearest), int) if interval is None else interval
    edges, asking = np.linspace(0, len(nearest), ranges + 1).astype(int), QueryNeighbours(np.arange(len(nearest)), nearest)
    counts = [
        slots([asking], interval, 3, range(start, stop), count=len(nearest))[0]
        for start, stop in itertools.pairwise(edges.tolist())
    ]
    return reciprocity(reduce(Slots.merged, counts))


def lists(texts, k, seed):
    """The k nearest of random vectors, in float64; empty places where there are fewer others."""
    rows = np.random.default_rng(seed).normal(size=(texts, 4)) + 0.5
    cosine = (rows @ rows.T) / np.outer(*2 * [np.linalg.norm(rows, axis=1)])
    nearest = [[b for b in np.argsort(-cosine[a]) if b != a][:k] for a in range(texts)]
    return np.array([[*own, *[NOBODY] * (k - len(own))] for own in nearest], dtype=np.int32)


@given(st.integers(2, 30), st.integers(1, 8), st.integers(1, 5), st.integers(0, 2**32))
def test_reciprocity_is_the_share_of_relations_that_hold_both_ways_however_texts_are_divided(texts, k, ranges, seed):
    nearest, interval = lists(texts, k, seed), np.random.default_rng(seed).integers(0, 3, texts)
    assert both_ways(nearest, interval, min(ranges, texts)) == oracles.reciprocity(nearest)


@given(st.integers(2, 30), st.integers(1, 8), st.integers(0, 2**32))
def test_reciprocity_does_not_depend_on_the_order_of_texts_or_of_lists(texts, k, seed):
    nearest, random = lists(texts, k, seed), np.random.default_rng(seed)
    order = random.permutation(texts)
    number = np.argsort(order)  # The new number of each text.
    moved = [[NOBODY if b == NOBODY else number[b] for b in random.permutation(nearest[a])] for a in order]
    assert both_ways(moved) == both_ways(nearest)


def test_reciprocity_by_hand():
    # 0 ⇄ 1, 2 → 0, 3 → 1: two of four relations.
    assert both_ways([[1], [0], [0], [1]]) == 0.5
    # 0 ⇄ 1, 0 ⇄ 2, 1 → 2, 2 → 3, 3 → 0, 3 → 1: four of eight.
    assert both_ways([[1, 2], [0, 2], [0, 3], [0, 1]]) == 0.5


def test_reciprocity_in_its_limits():
    """A circle has none, a star the hub's own, pairs and lists of all others everything; without relations it is 0."""
    assert both_ways([[(a + 1) % 7] for a in range(7)]) == 0.0
    assert both_ways([[1], *[[0]] * 9]) == 0.2
    assert both_ways([[a ^ 1] for a in range(8)]) == 1.0
    assert both_ways(lists(6, 5, 0)) == both_ways(lists(6, 9, 0)) == 1.0
    assert both_ways([[NOBODY], [NOBODY]]) == 0.0
