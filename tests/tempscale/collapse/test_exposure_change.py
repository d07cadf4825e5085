"""What another search does to exposures: the difference of two exposures, and the error that both graphs have together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_exposure import graph, some_intervals

from tempscale.collapse import exposure as module
from tempscale.collapse.exposure import Units, change, exposure
from tempscale.collapse.neighbours import NOBODY

seeds = st.integers(0, 2**32)


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
    found = change(first, second, interval, 3, units, np.arange(texts) if own else None)
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
    nothing = change(label, label, interval, 3, units, numbers)
    assert (nothing.change.tolist(), nothing.error.tolist()) == ([0.0] * 3, [0.0] * 3)
    there, back = change(label, other, interval, 3, units, numbers), change(other, label, interval, 3, units, numbers)
    np.testing.assert_allclose(there.change, -back.change, atol=1e-12)
    np.testing.assert_allclose(there.error, back.error, rtol=1e-9)


def test_units_that_are_counted_in_steps_give_the_same(monkeypatch):
    label, other, interval = graph(60, 4, 1), graph(60, 4, 2), some_intervals(60, 3)
    whole = change(label, other, interval, 3, Units.of(60), np.arange(60))
    monkeypatch.setattr(module, "_UNITS", 7)
    for one, part in zip(whole, change(label, other, interval, 3, Units.of(60), np.arange(60)), strict=True):
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
        found = change(*nearest, interval, 2, Units.of(texts), np.arange(texts))
        changes.append(found.change[1])
        errors.append(found.error[1])
    assert np.mean(changes) < -0.1
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(changes), rel=0.2)
