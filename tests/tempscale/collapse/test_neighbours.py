"""Nearest neighbours merged, k-occurrence, hubness, and the exposure of length intervals."""

import itertools
import math

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tempscale.collapse import neighbours
from tempscale.collapse.neighbours import NOBODY, Nearest, exposure, occurrences, skewness

seeds = st.integers(0, 2**32)


def graph(texts, k, seed=0, queries=None, missing=0.0):
    """k different neighbours of each text other than itself, or of each query; some of them absent, the last first."""
    random = np.random.default_rng(seed)
    own = queries is None
    label = np.full((texts if own else queries, k), NOBODY, dtype=np.int64)
    for row in range(len(label)):
        others = random.permutation([j for j in range(texts) if not own or j != row])[:k]
        kept = others[: int(np.ceil(len(others) * (1 - missing * random.random())))]
        label[row, : len(kept)] = kept
    return label


def some_intervals(texts, intervals, seed=0):
    return np.random.default_rng(seed + 1).integers(0, intervals, texts)


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


# --- k-occurrence and hubness -----------------------------------------------------------------------------------------


def test_occurrences_by_hand():
    label = np.array([[1, 2], [2, NOBODY], [1, 0], [NOBODY, NOBODY]])
    assert occurrences(label, 5).tolist() == [1, 2, 2, 0, 0]
    assert occurrences(label[:, :1], 4).tolist() == [0, 2, 1, 0]
    assert occurrences(np.empty((3, 0), dtype=np.int32), 3).tolist() == [0, 0, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 30), st.integers(1, 5), seeds)
def test_occurrences_add_up_to_the_slots(texts, k, seed):
    label = graph(texts, k, seed, missing=0.5)
    found = occurrences(label, texts)
    assert found.sum() == (label != NOBODY).sum()
    assert found.tolist() == [int((label == j).sum()) for j in range(texts)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=2, max_size=50))
def test_skewness_is_scipys(occurrence):
    expected = stats.skew(np.array(occurrence, dtype=float)) if len(set(occurrence)) > 1 else 0.0
    assert skewness(np.array(occurrence)) == pytest.approx(expected, abs=1e-12)


def test_skewness_by_hand():
    # One hub that all three others point to: N = 3, 0, 0, 1, mean 1, deviations 2, −1, −1, 0.
    assert skewness(np.array([3, 0, 0, 1])) == pytest.approx((8 - 1 - 1) / 4 / (6 / 4) ** 1.5)
    assert skewness(np.array([2, 2, 2])) == 0.0
    assert skewness(np.array([0, 1])) == pytest.approx(0.0)


# --- exposure ---------------------------------------------------------------------------------------------------------


def test_exposure_by_hand():
    # Texts 0 and 1 are short, 2 and 3 long. Of seven slots text 0 fills three, text 1 two, the long ones one each.
    label = np.array([[1, 2], [0, 3], [0, 1], [0, NOBODY]])
    found = exposure(label, np.array([0, 0, 2, 2]), 3)
    assert found.texts_share.tolist() == [0.5, 0.0, 0.5]
    np.testing.assert_allclose(found.slots_share, [5 / 7, 0, 2 / 7])
    np.testing.assert_allclose(found.exposure, [10 / 7, np.nan, 4 / 7])
    assert np.isnan(found.error[1])
    assert (found.error[[0, 2]] > 0).all()


def test_queries_of_their_own_by_hand():
    # Three queries on four texts: the short text 0 answers all of them, the long text 3 one.
    found = exposure(np.array([[0], [0], [3]]), np.array([0, 1, 1, 1]), 2, own=False)
    np.testing.assert_allclose(found.slots_share, [2 / 3, 1 / 3])
    np.testing.assert_allclose(found.exposure, [8 / 3, 4 / 9])


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 25), st.integers(1, 6), st.integers(1, 4), st.booleans(), seeds)
def test_exposure_equals_a_count_of_every_slot(texts, k, intervals, own, seed):
    label, interval = graph(texts, k, seed, None if own else 9, 0.6), some_intervals(texts, intervals, seed)
    found = exposure(label, interval, intervals, own)
    neighbours = [[j for j in row if j != NOBODY] for row in label.tolist()]
    np.testing.assert_allclose(found.exposure, oracles.exposure(neighbours, interval.tolist(), intervals), atol=1e-12)
    assert found.slots_share.sum() == pytest.approx(1.0)
    assert found.texts_share.sum() == pytest.approx(1.0)
    # Weighted by their texts, exposures are 1 on average.
    assert np.nansum(found.exposure * found.texts_share) == pytest.approx(1.0)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 15), st.integers(1, 4), st.booleans(), st.floats(1, 9), seeds)
def test_its_error_is_that_of_slots_that_share_texts(texts, k, own, more, seed):
    label, interval = graph(texts, k, seed, None if own else 9, 0.4), some_intervals(texts, 3, seed)
    found = exposure(label, interval, 3, own, population=more * texts)
    neighbours = [[j for j in row if j != NOBODY] for row in label.tolist()]
    for b in np.unique(interval):
        variance, dyads = oracles.exposure_variance(neighbours, interval, b, own)
        if abs(variance) < 1e-9:  # On either side of 0 by rounding alone.
            continue
        variance = variance if variance > 0 else dyads
        assert found.error[b] == pytest.approx(variance**0.5)
        # Its square is a difference of 1 and a share of at most 1, exact to 1e-15 or so.
        expected = (1 - 1 / more) * (variance + dyads / more)
        assert found.corrected[b] ** 2 == pytest.approx(expected, abs=1e-13)


def test_its_error_by_hand():
    # All four queries find text 0, so that only the shares of the texts are uncertain: 2 ± √(1² + 1²).
    found = exposure(np.zeros((4, 1), dtype=int), np.array([0, 1]), 2, own=False, population=4)
    np.testing.assert_allclose(found.exposure, [2, 0])
    np.testing.assert_allclose(found.error, [2**0.5, 0], atol=1e-15)
    np.testing.assert_allclose(found.corrected, [1, 0], atol=1e-15)


def test_a_corpus_drawn_whole_has_no_error_of_its_own():
    found = exposure(graph(20, 3), some_intervals(20, 3), 3, population=20)
    assert (found.corrected == 0).all()
    assert (found.error > 0).all()
    unlimited = exposure(graph(20, 3), some_intervals(20, 3), 3)
    np.testing.assert_array_equal(unlimited.corrected, unlimited.error)


@pytest.mark.parametrize("own", [True, False])
def test_one_interval_has_all_the_exposure_there_is_and_no_error(own):
    label = graph(20, 3, queries=None if own else 11)
    found = exposure(label, np.full(20, 1), 3, own)
    np.testing.assert_allclose(found.exposure, [np.nan, 1.0, np.nan])
    np.testing.assert_allclose(found.error, [np.nan, 0.0, np.nan], atol=1e-12)


def test_an_interval_that_nobody_finds_has_exposure_zero():
    label = np.array([[1], [0], [0], [1]])
    found = exposure(label, np.array([0, 0, 1, 1]), 2)
    assert found.exposure.tolist() == [2.0, 0.0]


@settings(max_examples=30, deadline=None)
@given(st.integers(4, 25), st.integers(1, 5), st.booleans(), seeds)
def test_names_of_texts_and_of_intervals_and_the_order_of_neighbours_do_not_matter(texts, k, own, seed):
    label, interval = graph(texts, k, seed, None if own else 7, 0.3), some_intervals(texts, 3, seed)
    before = exposure(label, interval, 3, own)
    random = np.random.default_rng(seed + 2)
    # Text j becomes text turn[j].
    turn = random.permutation(texts)
    renamed = np.where(label == NOBODY, NOBODY, turn[np.where(label == NOBODY, 0, label)])
    moved = np.empty_like(interval)
    moved[turn] = interval
    if own:
        rows = np.empty_like(renamed)
        rows[turn] = renamed
    else:
        rows = renamed[random.permutation(len(renamed))]
    shuffled = random.permuted(rows, axis=1)
    for after in (exposure(rows, moved, 3, own), exposure(shuffled, moved, 3, own)):
        for one, other in zip(before, after, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12)
    names = random.permutation(3)
    for one, other in zip(before, exposure(label, names[interval], 3, own), strict=True):
        np.testing.assert_allclose(one, other[names], atol=1e-12)


@pytest.mark.parametrize("own", [True, False])
def test_a_slot_that_nobody_fills_is_as_if_it_were_not_there(own):
    label, interval = graph(15, 3, queries=None if own else 8), some_intervals(15, 3)
    padded = np.concatenate([label, np.full((len(label), 4), NOBODY)], axis=1)
    for one, other in zip(exposure(label, interval, 3, own), exposure(padded, interval, 3, own), strict=True):
        np.testing.assert_array_equal(one, other)


def test_more_queries_leave_less_error():
    # Every text is found equally often, so that nothing but the queries' own share tells intervals apart.
    interval = np.repeat([0, 1], 50)
    label = np.concatenate([np.arange(100)[:, None]] * 4)
    few = exposure(label[:100], interval, 2, own=False).error
    many = exposure(label, interval, 2, own=False).error
    assert math.isfinite(few[0])
    assert (many < few).all()


@pytest.mark.parametrize("queries", [None, 75])
@pytest.mark.parametrize("documents", [False, True])
def test_a_graph_that_is_counted_in_steps_gives_the_same(monkeypatch, queries, documents):
    label, interval = graph(120, 5, 3, queries, missing=0.3).astype(np.int32), some_intervals(120, 4, 3).astype(np.int16)
    own = queries is None
    how = {"documents": np.arange(120) // 4, "asking": None if own else np.arange(queries) // 3} if documents else {}
    whole = exposure(label, interval, 4, own, population=200, **how)
    occurrence = occurrences(label, 120)
    assert whole.slots_share.max() > 0
    for step in (1, 7, 64):
        monkeypatch.setattr(neighbours, "_AT_ONCE", step)
        monkeypatch.setattr(neighbours, "_LINKED", 3 * step)
        assert (occurrences(label, 120) == occurrence).all()
        for one, other in zip(exposure(label, interval, 4, own, population=200, **how), whole, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)
