"""The error of a mean over pairs that share texts: against the double sum, by hand, in its limits, and by its coverage."""

import math

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.stats.dyads import dyadic_error

pair_lists = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(-50, 50)), min_size=2, max_size=14
)  # Few texts: duplicates, swapped duplicates and texts beside themselves come often.


@settings(max_examples=200, deadline=None)
@given(pair_lists)
def test_it_equals_the_double_sum(pairs):
    first, second, values = (np.array(column) for column in zip(*pairs, strict=True))
    expected = oracles.dyadic_error(values.tolist(), first.tolist(), second.tolist())
    assert dyadic_error(values, first, second) == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)


def test_three_pairs_by_hand():
    # Means 4, residuals −3, −1, 4; the first two share text b: V = (9 + 1 + 16 + 2·3)/9 = 32/9.
    # Degrees 1, 2, 1, 1, 1; pairs share with 2, 2, 1: c = 8/(8 − 2·14/3 + 8·5/9) = 18/7. cV = 64/7.
    found = dyadic_error(np.array([1.0, 3.0, 8.0]), np.array(["a", "b", "d"]), np.array(["b", "c", "e"]))
    assert found == pytest.approx(math.sqrt(64 / 7))


def test_without_shared_texts_it_is_the_ordinary_standard_error():
    values = np.random.default_rng(0).normal(size=9)
    expected = values.std(ddof=1) / 3
    assert dyadic_error(values, np.arange(9), np.arange(9, 18)) == pytest.approx(expected)
    assert dyadic_error(values, np.arange(9), np.arange(9)) == pytest.approx(expected)


def test_for_queries_with_negatives_of_their_own_it_is_the_cluster_error():
    values, query = np.random.default_rng(1).normal(size=24), np.repeat(np.arange(6), 4)
    sums = [(values[query == k] - values.mean()).sum() for k in range(6)]
    expected = math.sqrt(6 / 5 * sum(total**2 for total in sums)) / 24
    assert dyadic_error(values, query, np.arange(10, 34)) == pytest.approx(expected)


def test_order_direction_and_names_do_not_matter_shift_and_scale_do_as_they_must():
    rng = np.random.default_rng(3)
    values, first, second = rng.normal(size=40), rng.integers(0, 12, 40), rng.integers(0, 12, 40)
    error = dyadic_error(values, first, second)
    assert error > 0
    order, swapped = rng.permutation(40), rng.random(40) < 0.5
    assert dyadic_error(values[order], first[order], second[order]) == pytest.approx(error)
    assert dyadic_error(values, np.where(swapped, second, first), np.where(swapped, first, second)) == pytest.approx(error)
    names = np.array([f"text {k}" for k in range(12)], dtype=object)
    assert dyadic_error(values, names[first], names[second]) == pytest.approx(error)
    assert dyadic_error(7 - 3 * values, first, second) == pytest.approx(3 * error)


def test_a_double_sum_below_zero_gives_the_error_of_independent_pairs():
    values = np.array([1.0, -1.0] * 6)  # A chain a–b–c–…: every two neighbours differ.
    plain = pytest.approx(oracles.standard_error(values))
    assert oracles.dyadic_error(values.tolist(), range(12), range(1, 13)) == plain
    assert dyadic_error(values, np.arange(12), np.arange(1, 13)) == plain


def test_what_the_pairs_cannot_tell_is_not_a_number_and_equal_values_have_no_error():
    rng = np.random.default_rng(4)
    assert math.isnan(dyadic_error(rng.normal(size=6), np.zeros(6), np.arange(1, 7)))  # All about one text.
    assert math.isnan(dyadic_error(rng.normal(size=3), np.array([0, 1, 2]), np.array([1, 2, 0])))
    assert math.isnan(dyadic_error(np.array([1.0]), np.array([0]), np.array([1])))
    assert math.isnan(dyadic_error(np.array([]), np.array([]), np.array([])))
    assert dyadic_error(np.full(5, 3.0), np.arange(5), np.arange(5, 10)) == 0.0


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="3 values, 3 and 2 texts"):
        dyadic_error(np.zeros(3), np.arange(3), np.arange(2))
    with pytest.raises(ValueError, match="not finite"):
        dyadic_error(np.array([1.0, np.nan]), np.arange(2), np.arange(2, 4))


def query_negatives(rng):
    """40 queries, each with one of its own and seven negatives of a pool of 60: queries and negatives have effects."""
    query = np.repeat(np.arange(40), 8)
    negative = 40 + rng.integers(0, 60, 320)
    effect = np.concatenate([rng.normal(size=40), 0.5 * rng.normal(size=60)])
    return effect[query] + effect[negative] + rng.normal(size=320), query, negative


def any_pairs(rng):
    """300 random pairs of 80 texts, duplicates among them."""
    first = rng.integers(0, 80, 300)
    second = (first + rng.integers(1, 80, 300)) % 80
    effect = rng.normal(size=80)
    return effect[first] + effect[second] + rng.normal(size=300), first, second


@pytest.mark.parametrize("draw", [query_negatives, any_pairs])
def test_ninety_five_per_cent_intervals_cover(draw):
    rng, covered, plain, times = np.random.default_rng(5), 0, 0, 2000
    for _ in range(times):
        values, first, second = draw(rng)
        covered += abs(values.mean()) < 1.96 * dyadic_error(values, first, second)
        plain += abs(values.mean()) < 1.96 * values.std(ddof=1) / math.sqrt(len(values))
    assert 0.92 <= covered / times <= 0.98
    assert plain / times < 0.85  # What the sharing costs, and a pair-level error does not see.
