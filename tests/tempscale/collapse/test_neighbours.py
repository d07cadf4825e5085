"""Nearest neighbours merged, and hubness."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tempscale.collapse.neighbours import NOBODY, Nearest, PowerSums, skewness

seeds = st.integers(0, 2**32)

# --- merging ----------------------------------------------------------------------------------------------------------


def lists_of(pool, k, rows=3):
    """The k nearest of a pool of (cosine, label) pairs, for each of some texts."""
    nearest = Nearest.empty(rows, k)
    for row in range(rows):
        ranked = sorted((-c, label) for c, label in pool[row])[:k]
        for place, (cosine, label) in enumerate(ranked):
            nearest.cosine[row, place], nearest.label[row, place] = -cosine, label
    return nearest


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 6), st.lists(st.integers(0, 15), max_size=3), seeds)
def test_any_split_merged_in_any_order_gives_the_nearest_of_all(k, cuts, seed):
    random = np.random.default_rng(seed)
    labels = [random.permutation(15) for _ in range(3)]
    # Five different cosines among fifteen neighbours: most are ties.
    pool = [[(float(random.integers(-2, 3)) / 4, int(label)) for label in own] for own in labels]
    edges = [0, *sorted(cuts), 15]
    parts = [lists_of([own[a:b] for own in pool], k) for a, b in itertools.pairwise(edges)]
    expected = lists_of(pool, k)
    for order in (parts, parts[::-1], [parts[i] for i in random.permutation(len(parts))]):
        left = Nearest.empty(3, k)
        for part in order:
            left = left.merged(part)
        right = Nearest.empty(3, k)
        for part in order:
            right = part.merged(right)
        for merged in (left, right):
            np.testing.assert_array_equal(merged.label, expected.label)
            np.testing.assert_array_equal(merged.cosine, expected.cosine)
            assert merged.cosine.dtype == np.float32
            assert merged.label.dtype == np.int32


def test_merging_by_hand():
    one = Nearest(np.float32([[0.5, 0.25], [0.5, -np.inf]]), np.int32([[8, 2], [4, NOBODY]]))
    other = Nearest(np.float32([[0.5, 0.5], [-np.inf, -np.inf]]), np.int32([[3, 9], [NOBODY, NOBODY]]))
    merged = one.merged(other)
    assert merged.label.tolist() == [[3, 8], [4, NOBODY]]
    assert merged.cosine.tolist() == [[0.5, 0.5], [0.5, -np.inf]]


# --- hubness ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=50), st.integers(0, 50))
def test_skewness_is_scipys_however_the_texts_are_divided(occurrence, cut):
    expected = stats.skew(np.array(occurrence, dtype=float)) if len(set(occurrence)) > 1 else 0.0
    assert skewness(PowerSums.of(np.array(occurrence))) == pytest.approx(expected, abs=1e-12)
    parts = (PowerSums.of(np.array(own, dtype=int)) for own in (occurrence[:cut], occurrence[cut:]))
    assert next(parts).merged(next(parts)) == PowerSums.of(np.array(occurrence))


def test_skewness_by_hand():
    # One hub that all three others point to: N = 3, 0, 0, 1, mean 1, deviations 2, −1, −1, 0.
    assert skewness(PowerSums.of(np.array([3, 0, 0, 1]))) == pytest.approx((8 - 1 - 1) / 4 / (6 / 4) ** 1.5)
    assert skewness(PowerSums.of(np.array([2, 2, 2]))) == 0.0
    assert skewness(PowerSums.of(np.array([0, 1]))) == pytest.approx(0.0)


def test_a_hub_of_a_corpus_of_a_hundred_million_texts_is_counted_to_the_last_one():
    one, all_others = PowerSums.of(np.array([10**8])), PowerSums(10**8 - 1, 10**9 - 10**8, 10**10, 10**11)
    assert one.merged(all_others).third == 10**24 + 10**11
    assert skewness(one.merged(all_others)) == pytest.approx(10**4, rel=1e-5)  # One text of n has (n − 2)/√(n − 1).
