"""The error of a mean over values that share things: against the double sum, by hand, in its limits, by its coverage."""

import math

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.stats import paired
from tempscale.stats.dyads import dyadic_error
from tempscale.stats.sharing import Sharing, mean

lists = st.lists(
    st.tuples(st.integers(-50, 50), st.sets(st.integers(0, 6), min_size=1, max_size=3)), min_size=2, max_size=12
)


def sharing(things):
    pairs = [(k, thing) for k, own in enumerate(things) for thing in own]
    return Sharing(*(np.array(column) for column in zip(*pairs, strict=True)))


@settings(max_examples=200, deadline=None)
@given(lists)
def test_it_equals_the_double_sum(rows):
    values, things = [float(value) for value, _ in rows], [own for _, own in rows]
    found, expected = mean(np.array(values), sharing(things)), oracles.sharing_error(values, things)
    assert found.value == pytest.approx(sum(values) / len(values))
    assert found.se == (None if expected is None else pytest.approx(expected, rel=1e-6, abs=1e-9))


def test_three_values_by_hand():
    # Mean 4, residuals −3, −1, 4; the first two share: V = (9 + 1 + 16 + 2·3)/9 = 32/9.
    # Degrees 2, 2, 1, so 1ᵀA1 = 5 and c = 5/(5 − 2·9/3 + 25/9) = 45/16: cV = 10.
    found = mean(np.array([1.0, 3.0, 8.0]), sharing([{"a", "b"}, {"b"}, {"c"}]))
    assert found == (pytest.approx(4.0), pytest.approx(math.sqrt(10)))


def test_without_anything_shared_and_in_clusters_it_is_the_usual_error():
    generator = np.random.default_rng(1)
    values = generator.normal(size=24)
    assert mean(values, sharing([{k} for k in range(24)])).se == pytest.approx(values.std(ddof=1) / math.sqrt(24))
    clusters = np.repeat(np.arange(6), 4)
    assert mean(values, sharing([{k} for k in clusters])).se == pytest.approx(paired.mean(values, clusters).se)
    # A second thing of its own changes nothing.
    assert mean(values, sharing([{k, f"own {n}"} for n, k in enumerate(map(str, clusters))])).se == pytest.approx(
        paired.mean(values, clusters).se
    )


def test_neither_order_nor_names_nor_shift_matter():
    generator = np.random.default_rng(2)
    things = [set(generator.integers(0, 30, 2).tolist()) for _ in range(40)]
    values, order = generator.normal(size=40), generator.permutation(40)
    error = mean(values, sharing(things)).se
    assert mean(values[order], sharing([{f"d{k}" for k in things[i]} for i in order])).se == pytest.approx(error)
    assert mean(7 - 3 * values, sharing(things)).se == pytest.approx(3 * error)


def test_where_each_value_has_two_things_it_is_near_the_error_of_pairs():
    generator = np.random.default_rng(3)
    first, second = generator.integers(0, 60, 90), generator.integers(60, 120, 90)
    values = generator.normal(size=120)[first] + generator.normal(size=90)
    found = mean(values, sharing([{a, b} for a, b in zip(first.tolist(), second.tolist(), strict=True)])).se
    assert found == pytest.approx(dyadic_error(values, first, second), rel=0.02)


def test_what_cannot_have_an_error_has_none():
    assert mean(np.array([]), Sharing(np.array([], int), np.array([], int))) == (None, None)
    assert mean(np.array([0.5]), sharing([{1}])) == (0.5, None)
    assert mean(np.array([0.5, 0.7]), sharing([{1}, {1, 2}])) == (pytest.approx(0.6), None)
    assert mean(np.zeros(3), sharing([{1}, {1}, {2}])) == (0, 0)
    # A chain in which every two neighbours differ has a double sum below 0.
    chain = mean(np.array([1.0, -1.0] * 6), sharing([{k, k + 1} for k in range(12)]))
    assert chain.se == pytest.approx(math.sqrt(12 / 11 / 12))


@pytest.mark.parametrize("most", [1, 3])
def test_intervals_hold_the_truth_in_a_thousand_draws_where_those_of_independent_queries_do_not(most):
    """Questions about 35 meetings, about seven each, some of them about several; meetings are drawn anew."""
    generator, inside = np.random.default_rng(4), np.zeros(2)
    for _ in range(1000):
        of_meeting = generator.normal(size=35)
        things = [set(generator.integers(0, 35, generator.integers(1, most + 1)).tolist()) for _ in range(245)]
        values = np.array([np.mean([of_meeting[k] for k in own]) for own in things]) + generator.normal(size=245)
        for k, found in enumerate((mean(values, sharing(things)), paired.mean(values))):
            inside[k] += abs(found.value) < 1.96 * found.se
    assert 0.91 < inside[0] / 1000 < 0.97
    assert inside[1] / 1000 < 0.78
