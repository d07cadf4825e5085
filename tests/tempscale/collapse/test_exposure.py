"""The exposure of length intervals, its errors, and how they are counted."""

import math

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.collapse import exposure as module
from tempscale.collapse.exposure import QueryNeighbours, Slots, Units, change, exposure, exposures, slots
from tempscale.collapse.neighbours import NOBODY

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


def test_exposure_by_hand():
    # Texts 0 and 1 are short, 2 and 3 long. Of seven slots text 0 fills three, text 1 two, the long ones one each.
    label = np.array([[1, 2], [0, 3], [0, 1], [0, NOBODY]])
    found = exposure(label, np.array([0, 0, 2, 2]), 3)
    assert found.texts_share.tolist() == [0.5, 0.0, 0.5]
    np.testing.assert_allclose(found.slots_share, [5 / 7, 0, 2 / 7])
    np.testing.assert_allclose(found.exposure, [10 / 7, np.nan, 4 / 7])
    assert np.isnan(found.error[1])
    assert (found.error[[0, 2]] > 0).all()


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
@given(
    st.integers(3, 15), st.integers(1, 4), st.booleans(), st.one_of(st.just(1), st.just(math.inf), st.floats(1, 9)), seeds
)
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
    found = exposure(np.zeros((4, 1), dtype=int), np.array([0, 1]), 2, from_corpus=False, population=4)
    np.testing.assert_allclose(found.exposure, [2, 0])
    np.testing.assert_allclose(found.error, [2**0.5, 0], atol=1e-15)
    np.testing.assert_allclose(found.corrected, [1, 0], atol=1e-15)


@pytest.mark.parametrize("own", [True, False])
def test_one_interval_has_all_the_exposure_there_is_and_no_error(own):
    label = graph(20, 3, queries=None if own else 11)
    found = exposure(label, np.full(20, 1), 3, own)
    np.testing.assert_allclose(found.exposure, [np.nan, 1.0, np.nan])
    np.testing.assert_allclose(found.error, [np.nan, 0.0, np.nan], atol=1e-12)


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


@pytest.mark.parametrize("queries", [None, 75])
@pytest.mark.parametrize("documents", [False, True])
def test_a_graph_that_is_counted_in_steps_gives_the_same(monkeypatch, queries, documents):
    label, interval = graph(120, 5, 3, queries, missing=0.3).astype(np.int32), some_intervals(120, 4, 3).astype(np.int16)
    own = queries is None
    of_queries = None if own else np.arange(queries) // 3
    how = {"documents": np.arange(120) // 4, "query_documents": of_queries} if documents else {}
    whole = exposure(label, interval, 4, own, population=200, **how)
    assert whole.slots_share.max() > 0
    for step in (1, 7, 64):
        monkeypatch.setattr(module, "AT_ONCE", step)
        for one, other in zip(exposure(label, interval, 4, own, population=200, **how), whole, strict=True):
            np.testing.assert_array_equal(one, other)


# --- counted in ranges ------------------------------------------------------------------------------------------------


def test_slots_by_hand():
    # Texts 0 and 1 are short, 2 is long; 0 and 1 find each other, and 2 finds 0.
    neighbours = QueryNeighbours(np.arange(3), np.array([[1], [0], [0]]))
    counts, filled = slots([neighbours], np.array([0, 0, 1]), 2, range(3), count=3)
    assert counts.texts.tolist() == [2, 1]
    assert counts.filled.tolist() == [3, 0]
    assert filled.tolist() == [2, 1, 0]
    # 0 fills two slots and asks one, 1 fills one and asks one, 2 asks one.
    rows = np.array([[3, 0, 1, 0], [2, 0, 1, 0], [1, 0, 0, 1]])
    assert (counts.units == rows.T @ rows).all()
    assert counts.asked.tolist() == [[3, 0], [0, 0]]
    assert counts.pairs.tolist() == [[2**2 + 1, 0], [0, 0]]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 30), st.integers(1, 5), st.booleans(), st.booleans(), st.integers(1, 9), seeds)
def test_counts_of_ranges_and_parts_add_up_to_those_of_all(texts, k, own, grouped, width, seed):
    random = np.random.default_rng(seed)
    label, interval = graph(texts, k, seed, None if own else 9, 0.4), some_intervals(texts, 3, seed)
    unit = random.integers(0, max(1, texts // 3), texts) if grouped else None
    first = texts if unit is None else int(unit.max()) + 1
    asker = first + np.arange(9) if not own else np.arange(texts) if unit is None else unit
    count = first if own else first + 9
    whole, filled = slots([QueryNeighbours(asker, label)], interval, 3, range(count), count=count, unit=unit)
    order = random.permutation(len(label))  # In any order, and in parts.
    parts = [QueryNeighbours(asker[own], label[own]) for own in np.array_split(order, 3)]
    ranges = [range(start, min(start + width, count)) for start in range(0, count, width)]
    found = [slots(parts, interval, 3, here, count=count, unit=unit) for here in ranges]
    added = found[0][0]
    for other, _ in found[1:]:
        added = added.merged(other)
    for name in ("texts", "filled", "units", "asked", "pairs"):
        np.testing.assert_array_equal(getattr(added, name), getattr(whole, name))
    np.testing.assert_array_equal(np.concatenate([own for _, own in found]), filled)
    assert filled.sum() == (label != NOBODY).sum()
    if unit is None:
        np.testing.assert_array_equal(filled[:texts], [(label == j).sum() for j in range(texts)])


# --- a sample of the texts asks ---------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 14), st.integers(1, 3), st.integers(2, 9), st.floats(1, 4), seeds)
def test_the_error_of_a_sample_is_that_of_slots_kept_by_chance(texts, k, asking, more, seed):
    asking = min(asking, texts)
    label, interval = graph(texts, k, seed, missing=0.3), some_intervals(texts, 3, seed)
    sample = np.sort(np.random.default_rng(seed + 3).permutation(texts)[:asking])
    found = exposure(label[sample], interval, 3, population=more * texts, sample=sample)
    near = {int(t): [j for j in label[t].tolist() if j != NOBODY] for t in sample}
    for b in np.unique(interval):
        elsewhere, here = oracles.sampled_exposure_variance(near, interval, b, 1 / more, asking / texts)
        if elsewhere < 1e-9:  # Not above 0 but by rounding; the sum of the dyads' squares is used instead.
            continue
        assert found.error[b] ** 2 == pytest.approx(elsewhere)
        assert found.corrected[b] ** 2 == pytest.approx(max(0.0, here), abs=1e-13)


def test_where_all_texts_ask_the_error_is_that_of_no_sample():
    label, interval, documents = graph(40, 4, 1), some_intervals(40, 3, 1), np.arange(40) // 3
    for how in ({}, {"documents": documents}):
        whole = exposure(label, interval, 3, population=60, **how)
        order = np.random.default_rng(2).permutation(40)
        drawn = exposure(label[order], interval, 3, population=60, sample=order, **how)
        for one, other in zip(whole, drawn, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("population", [400, 1600])
def test_the_errors_of_samples_are_how_far_their_exposures_are_apart(population):
    random = np.random.default_rng(5)
    everything = random.standard_normal((population, 6)) + np.where(np.arange(population) % 4 == 0, 0.8, 0)[:, None]
    lengths = np.where(np.arange(population) % 4 == 0, 0, np.where(np.arange(population) % 3 == 0, 1, 2))

    def asked(texts):
        """The exposures that 60 of these texts find among all of them."""
        points, interval = everything[texts], lengths[texts]
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
        sample = random.permutation(len(texts))[:60]
        cosine = points[sample] @ points.T
        cosine[np.arange(60), sample] = -2
        label = np.argsort(-cosine, axis=1)[:, :5]
        return exposure(label, interval, 3, population=population, sample=sample)

    found = [asked(random.permutation(population)[:400]) for _ in range(300)]
    truth = np.std([own.exposure for own in found], axis=0, ddof=1)
    told = np.sqrt(np.mean([own.corrected**2 for own in found], axis=0))
    np.testing.assert_allclose(told, truth, rtol=0.12)


def test_exposures_of_counts_by_hand():
    # Ten of a hundred texts ask for one each; eight find a short text, of which there are half. The queries alone are drawn.
    asked = np.array([[8, 0], [0, 2]])
    nodes = np.zeros((4, 4), np.int64)
    nodes[:2, :2] = 2 * asked  # Each filler once, and none of them asks.
    counts = Slots(np.array([50, 50]), np.array([8, 2]), nodes, asked, asked)
    found = exposures(counts, population=100, query_share=0.1)
    np.testing.assert_allclose(found.exposure, [1.6, 0.4])
    # e = (1 − .8)/(.5·10) = .04 eight times, −.16 twice.
    np.testing.assert_allclose(found.corrected, np.sqrt(0.9 * (8 * 0.04**2 + 2 * 0.16**2)))


# --- what another search does to exposures -----------------------------------------------------------------------------


def by_slots(first, second, interval, b, unit_of_text, unit_of_query):
    """The change and its variance from a list of slots, one at a time: Σ(S − D)² over units less ΣT² over their pairs."""
    n, p = len(interval), float((interval == b).mean())
    weights, value = {}, 0.0
    between, sums = {}, {}
    for sign, graph_ in ((-1, first), (1, second)):
        filled = [(q, int(t)) for q, row in enumerate(graph_) for t in row if t != NOBODY]
        s = sum(interval[t] == b for _, t in filled) / len(filled)
        value += sign * s / p
        weights[sign] = [(q, t, sign * (float(interval[t] == b) - s) / (p * len(filled))) for q, t in filled]
    for q, t, e in weights[-1] + weights[1]:
        asking, filling = unit_of_query(q), unit_of_text(t)
        sums[filling] = sums.get(filling, 0.0) + e
        if asking != filling:
            sums[asking] = sums.get(asking, 0.0) + e
            pair = min(asking, filling), max(asking, filling)
            between[pair] = between.get(pair, 0.0) + e
    for t in range(n):
        unit = unit_of_text(t)
        sums[unit] = sums.get(unit, 0.0) - value * (float(interval[t] == b) - p) / (p * n)
    dyads = sum(e**2 for e in between.values())
    nodes = sum(e**2 for e in sums.values())
    return value, nodes - dyads, dyads


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 15), st.integers(1, 4), st.booleans(), st.booleans(), seeds)
def test_change_and_error_are_those_of_all_slots(texts, k, own, in_documents, seed):
    queries = None if own else 7
    first, second = graph(texts, k, seed, queries, 0.4), graph(texts, k, seed + 5, queries, 0.4)
    interval = some_intervals(texts, 3, seed)
    documents = np.arange(texts) // 2 if in_documents else None
    units = Units.of(texts, 0 if own else 7, documents, None)
    found = change((first, second), interval, 3, units, np.arange(texts) if own else None)
    before, after = (exposure(label, interval, 3, own) for label in (first, second))
    np.testing.assert_allclose(found.change, after.exposure - before.exposure, atol=1e-12)
    of_text = (lambda t: t // 2) if in_documents else (lambda t: t)
    of_query = of_text if own else (lambda q: 1000 + q)
    for b in np.unique(interval):
        value, variance, dyads = by_slots(first, second, interval, b, of_text, of_query)
        assert found.change[b] == pytest.approx(value, abs=1e-12)
        if abs(variance) > 1e-9:  # Otherwise on either side of 0 by rounding alone.
            assert found.error[b] == pytest.approx((variance if variance > 0 else dyads) ** 0.5)


def test_the_same_search_changes_nothing_for_certain_and_turned_round_it_changes_the_opposite():
    label, other, interval = graph(30, 4, 1), graph(30, 4, 2), some_intervals(30, 3)
    units, numbers = Units.of(30), np.arange(30)
    nothing = change((label, label), interval, 3, units, numbers)
    assert (nothing.change.tolist(), nothing.error.tolist()) == ([0.0] * 3, [0.0] * 3)
    there, back = change((label, other), interval, 3, units, numbers), change((other, label), interval, 3, units, numbers)
    np.testing.assert_allclose(there.change, -back.change, atol=1e-12)
    np.testing.assert_allclose(there.error, back.error, rtol=1e-9)


def test_units_that_are_counted_in_steps_give_the_same(monkeypatch):
    label, other, interval = graph(60, 4, 1), graph(60, 4, 2), some_intervals(60, 3)
    whole = change((label, other), interval, 3, Units.of(60), np.arange(60))
    monkeypatch.setattr(module, "_COUNTS", 42)
    for one, part in zip(whole, change((label, other), interval, 3, Units.of(60), np.arange(60)), strict=True):
        assert one.tolist() == part.tolist()


def test_its_error_is_the_spread_over_corpora():
    # Texts of two lengths ask for their three nearest by two similarities, one of which favours long texts.
    random, changes, errors = np.random.default_rng(0), [], []
    for _ in range(250):
        texts = 80
        interval = (random.random(texts) < 0.4).astype(int)
        rows = random.normal(size=(texts, 4)) + 0.5 * interval[:, None]
        plain, moved = rows @ rows.T, rows @ rows.T - 1.2 * interval
        nearest = []
        for similarity in (plain, moved):
            np.fill_diagonal(similarity, -np.inf)
            nearest.append(np.argsort(-similarity, axis=1)[:, :3])
        found = change(tuple(nearest), interval, 2, Units.of(texts), np.arange(texts))
        changes.append(found.change[1])
        errors.append(found.error[1])
    assert np.mean(changes) < -0.1
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(changes), rel=0.2)
