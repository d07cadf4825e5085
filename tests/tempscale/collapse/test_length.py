"""Length collapse in closed form against every pair one by one, and standard errors that cover what they claim."""

import itertools
import math

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.collapse.length import (
    CosineSums,
    Moments,
    effective_rank,
    gap_intervals,
    interval_of,
    text_means,
    top_component,
)
from tempscale.stats.errors import between_error, finite_population, within_error

seeds = st.integers(0, 2**32)


def units(texts, dim=5, seed=0, offset=0.5):
    rows = np.random.default_rng(seed).normal(size=(texts, dim)) + offset
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def some_intervals(texts, intervals, seed=0):
    return np.random.default_rng(seed + 1).integers(0, intervals, texts)


# --- intervals --------------------------------------------------------------------------------------------------------


def test_an_interval_holds_its_lower_edge_and_not_its_upper_one():
    tokens = np.array([0, 2, 31, 32, 33, 63, 64, 99, 100, 199, 200, 499, 500, 512, 100_000])
    edges = [0, 32, 64, 100, 200, 300, 400, 500]
    assert interval_of(tokens, edges).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 7, 7]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 600), max_size=8, unique=True), st.lists(st.integers(0, 700), max_size=20))
def test_every_length_is_in_the_one_interval_whose_edges_enclose_it(inner, tokens):
    edges = [0, *sorted(inner)]
    for length, k in zip(tokens, interval_of(np.array(tokens), edges), strict=True):
        assert edges[k] <= length
        assert k == len(edges) - 1 or length < edges[k + 1]


# --- closed form ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.integers(1, 6), st.integers(1, 4), seeds)
def test_the_sums_equal_those_of_every_pair(texts, dim, intervals, seed):
    embeddings, interval = units(texts, dim, seed), some_intervals(texts, intervals, seed)
    sums = CosineSums.of(embeddings, interval, intervals)
    first, second = sums.sums()
    for (a, b), cosines in oracles.cell_cosines(embeddings, interval, intervals).items():
        assert sums.pairs()[a, b] == sums.pairs()[b, a] == len(cosines)
        assert first[a, b] == pytest.approx(sum(cosines), abs=1e-10)
        assert second[a, b] == pytest.approx(sum(cosine**2 for cosine in cosines), abs=1e-10)
    np.testing.assert_allclose(first, first.T, atol=1e-12)
    np.testing.assert_allclose(second, second.T, atol=1e-12)


def test_the_sums_by_hand():
    # Interval 0: east and north; interval 1: north-east and west.
    h = 0.5**0.5
    embeddings = np.array([[1, 0], [0, 1], [h, h], [-1, 0]])
    sums = CosineSums.of(embeddings, np.array([0, 0, 1, 1]), 3)
    first, second = sums.sums()
    assert sums.pairs().tolist() == [[1, 4, 0], [4, 1, 0], [0, 0, 0]]
    np.testing.assert_allclose(first, [[0, 2 * h - 1, 0], [2 * h - 1, -h, 0], [0, 0, 0]], atol=1e-15)
    np.testing.assert_allclose(second, [[0, 2, 0], [2, 0.5, 0], [0, 0, 0]], atol=1e-15)


def test_single_precision_embeddings_take_off_their_own_norms_not_one():
    # Σ over pairs is (‖s‖² − Σ‖u_i‖²)/2; with n instead, 3,000 norms off by 1e-7 would leave a trace.
    embeddings = units(3000, 8).astype(np.float32) * np.float32(1 + 1e-4)
    first, second = CosineSums.of(embeddings, np.zeros(3000, dtype=int), 1).sums()
    exact = embeddings.astype(np.float64)
    gram = exact @ exact.T
    upper = np.triu_indices(3000, 1)
    assert first[0, 0] == pytest.approx(gram[upper].sum(), rel=1e-12)
    assert second[0, 0] == pytest.approx((gram[upper] ** 2).sum(), rel=1e-12)


def test_texts_alike_have_mean_one_and_no_variance():
    sums = CosineSums.of(np.tile(units(1, 4), (9, 1)), np.array([0] * 4 + [1] * 5), 2)
    first, second = sums.sums()
    np.testing.assert_allclose(first / sums.pairs(), 1.0)
    np.testing.assert_allclose(second / sums.pairs(), 1.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 25), seeds, st.data())
def test_any_split_merges_to_the_same_sums_and_rotation_and_order_leave_them(texts, seed, data):
    embeddings, interval = units(texts, 4, seed), some_intervals(texts, 3, seed)
    cut = data.draw(st.integers(0, texts))
    whole = CosineSums.of(embeddings, interval, 3)
    parts = [CosineSums.of(embeddings[rows], interval[rows], 3) for rows in (slice(cut), slice(cut, None))]
    for merged in (parts[0].merged(parts[1]), parts[1].merged(parts[0])):
        np.testing.assert_array_equal(merged.texts, whole.texts)
        for name in ("vectors", "squares", "norms"):
            np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), atol=1e-12)
    turn = np.linalg.qr(np.random.default_rng(seed + 2).normal(size=(4, 4)))[0]
    order = np.random.default_rng(seed + 3).permutation(texts)
    turned = CosineSums.of((embeddings @ turn)[order], interval[order], 3)
    np.testing.assert_allclose(turned.sums(), whole.sums(), atol=1e-10)


# --- per-text means ---------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 4), seeds)
def test_text_means_equal_those_of_every_pair_also_of_a_part_of_the_texts(texts, intervals, seed):
    embeddings, interval = units(texts, 4, seed), some_intervals(texts, intervals, seed)
    sums, expected = CosineSums.of(embeddings, interval, intervals), oracles.text_means(embeddings, interval, intervals)
    for rows in (slice(None), slice(texts // 3, texts // 3 + 4)):
        np.testing.assert_allclose(text_means(embeddings[rows], interval[rows], sums), expected[rows], atol=1e-12)


def test_text_means_by_hand_leave_the_text_itself_out():
    embeddings = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    found = text_means(embeddings, np.array([0, 0, 1]), CosineSums.of(embeddings, np.array([0, 0, 1]), 3))
    np.testing.assert_allclose(found, [[0.6, 0.0, np.nan], [0.6, 0.8, np.nan], [0.4, np.nan, np.nan]], atol=1e-15)


# --- moments ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.lists(st.integers(0, 30), max_size=4), seeds, st.floats(-1e6, 1e6))
def test_moments_of_any_split_are_those_of_numpy(count, cuts, seed, offset):
    values = np.random.default_rng(seed).normal(size=(count, 2)) + offset
    edges = [0, *sorted(min(cut, count) for cut in cuts), count]
    parts = [Moments.of(values[start:stop]) for start, stop in itertools.pairwise(edges)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merged(part)
    assert merged.values.tolist() == [count, count]
    np.testing.assert_allclose(merged.mean, values.mean(0), rtol=1e-10, atol=1e-10)
    if count > 1:
        np.testing.assert_allclose(merged.variance(), values.var(0, ddof=1), rtol=1e-7)


def test_moments_leave_nan_out_column_by_column():
    values = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan], [8.0, 9.0, np.nan], [np.nan, np.nan, 2.0]])
    found = Moments.of(values)
    assert found.values.tolist() == [3, 2, 1]
    assert found.mean.tolist() == [4.0, 7.0, 2.0]
    assert found.variance()[:2].tolist() == [13.0, 8.0]
    assert np.isnan([found.variance()[2], *Moments.of(np.zeros((0, 2))).variance()]).all()


def test_a_million_alike_values_far_from_zero_have_no_variance():
    parts = [Moments.of(np.full((n, 1), 0.1)) for n in (1, 999_999)]
    assert parts[0].merged(parts[1]).variance()[0] == pytest.approx(0.0, abs=1e-20)


# --- standard errors --------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 20), st.integers(2, 20), seeds)
def test_errors_equal_the_typed_formulas(rows, columns, seed):
    embeddings = units(rows + columns, 4, seed)
    interval = np.array([0] * rows + [1] * columns)
    means = oracles.text_means(embeddings, interval, 2)
    moments = [Moments.of(means[interval == k]) for k in range(2)]
    for k, count in enumerate((rows, columns)):
        expected = oracles.within_error(means[interval == k, k])
        assert within_error(moments[k].variance()[k], count) == pytest.approx(expected)
    expected = oracles.between_error(means[:rows, 1].tolist(), means[rows:, 0].tolist())
    found = between_error(moments[0].variance()[1], rows, moments[1].variance()[0], columns)
    assert float(found) == pytest.approx(expected)


def population(texts=400, seed=5):
    """Embeddings with an effect of each text: some point along the common direction, some away from it."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(texts, 6)) + np.outer(random.uniform(0.0, 4.0, texts), [1, 1, 0, 0, 0, 0])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def inside(embeddings):
    """Mean over all pairs, its standard error, and the one that takes pairs for independent."""
    zeros = np.zeros(len(embeddings), dtype=int)
    sums = CosineSums.of(embeddings, zeros, 1)
    first, second = (float(total[0, 0]) for total in sums.sums())
    pairs = int(sums.pairs()[0, 0])
    means = Moments.of(text_means(embeddings, zeros, sums))
    naive = math.sqrt((second / pairs - (first / pairs) ** 2) / pairs)
    return first / pairs, float(within_error(means.variance()[0], len(embeddings))), naive


@pytest.mark.parametrize("whole", [False, True])
def test_the_interval_inside_covers_the_truth_and_others_do_not(whole):
    """Of texts drawn with replacement, which are independent: ‖E u‖². Of 150 of 200 texts drawn once: that of the 200."""
    rows, random = population(200 if whole else 400), np.random.default_rng(0)
    truth = inside(rows)[0] if whole else float((rows.mean(0) ** 2).sum())
    covered, naive_covered, twice = np.zeros(3)
    for _ in range(300):
        drawn = random.permutation(200)[:150] if whole else random.integers(0, 400, 60)
        mean, error, naive = inside(rows[drawn])
        error *= finite_population(150, 200) if whole else 1.0
        covered += abs(mean - truth) <= 1.96 * error
        naive_covered += abs(mean - truth) <= 1.96 * naive
        twice += abs(mean - truth) <= 1.96 * 2 * error
    assert 0.90 <= covered / 300 <= 0.99
    assert twice / 300 > 0.995 if whole else naive_covered / 300 < 0.6


def test_the_interval_between_covers_the_truth():
    rows, others = population(seed=5), population(seed=6) @ np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    truth = float(rows.mean(0) @ others.mean(0))
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        drawn = np.concatenate([rows[random.integers(0, 400, 50)], others[random.integers(0, 400, 80)]])
        interval = np.array([0] * 50 + [1] * 80)
        sums = CosineSums.of(drawn, interval, 2)
        means = text_means(drawn, interval, sums)
        row_means, column_means = Moments.of(means[:50]), Moments.of(means[50:])
        error = float(between_error(row_means.variance()[1], 50, column_means.variance()[0], 80))
        covered += abs(sums.sums()[0][0, 1] / 4000 - truth) <= 1.96 * error
    assert 0.90 <= covered / 300 <= 0.99


# --- the gap and the rank ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([30, 30], (0, 1)), ([29, 30, 500, 30, 29], (1, 3)), ([100, 0, 0, 100, 0], (0, 3)), ([29, 1000, 29], None),
        ([29, 29], None), ([1000], None), ([], None),
    ],
)  # fmt: skip
def test_the_gap_compares_the_shortest_and_longest_intervals_with_enough_texts(texts, expected):
    assert gap_intervals(texts) == expected


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 8), seeds)
def test_the_effective_rank_equals_that_of_the_gram_matrix(texts, dim, seed):
    embeddings = units(texts, dim, seed)
    found = effective_rank(CosineSums.of(embeddings, some_intervals(texts, 3, seed), 3).spectrum())
    assert found == pytest.approx(oracles.effective_rank(embeddings), rel=1e-8)
    assert 1 - 1e-9 <= found <= min(texts, dim) + 1e-9


def test_the_effective_rank_in_its_limits():
    def rank(rows):
        return effective_rank(CosineSums.of(rows, np.zeros(len(rows), dtype=int), 1).spectrum())

    assert rank(np.tile(units(1, 6), (9, 1))) == pytest.approx(1.0)
    for n in (1, 3, 6):
        assert rank(np.eye(n, 6)) == pytest.approx(n)
    assert rank(np.tile(np.eye(4, 6), (5, 1))) == pytest.approx(4.0)
    # Three texts along one axis, one along another: shares ¾ and ¼.
    expected = math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert rank(np.eye(4)[[0, 0, 0, 1]]) == pytest.approx(expected)


def top(rows):
    return top_component(CosineSums.of(rows, np.zeros(len(rows), dtype=int), 1).spectrum())


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 8), seeds)
def test_the_top_component_equals_that_of_the_singular_values(texts, dim, seed):
    embeddings = units(texts, dim, seed)
    found = top_component(CosineSums.of(embeddings, some_intervals(texts, 3, seed), 3).spectrum())
    assert found == pytest.approx(oracles.top_component(embeddings), rel=1e-9)
    assert max(1 / min(texts, dim), (embeddings.mean(0) ** 2).sum()) - 1e-6 <= found <= 1 + 1e-9


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(1, 8), seeds)
def test_the_top_component_does_not_depend_on_axes_order_or_signs(texts, dim, seed):
    random, embeddings = np.random.default_rng(seed), units(texts, dim, seed).astype(np.float64)
    turned = embeddings @ np.linalg.qr(random.normal(size=(dim, dim)))[0]
    signs = random.choice([-1.0, 1.0], size=(texts, 1))
    assert top(random.permutation(turned * signs)) == pytest.approx(top(embeddings), rel=1e-9)


def test_the_top_component_by_hand_and_in_its_limits():
    # Three texts along one axis, one along another: shares ¾ and ¼.
    assert top(np.eye(4)[[0, 0, 0, 1]]) == pytest.approx(0.75)
    # Two texts of cosine c: eigenvalues (1 ± c)/2.
    for cosine in (-0.6, 0.0, 0.6):
        assert top(np.array([[1.0, 0.0], [cosine, 0.8 if cosine else 1.0]])) == pytest.approx((1 + abs(cosine)) / 2)
    assert top(np.tile(units(1, 6), (9, 1))) == pytest.approx(1.0)
    for n in (1, 3, 6):
        assert top(np.eye(n, 6)) == pytest.approx(1 / n)
    # Whatever all have in common counts, since nothing is centred.
    common = np.concatenate([np.full((50, 1), 0.8), 0.6 * np.eye(50)], axis=1)
    assert top(common) == pytest.approx(0.64 + 0.36 / 50)
