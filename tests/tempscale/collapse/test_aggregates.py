"""Tiles of cosine: every unordered pair once however they are cut, and the same answer whatever was merged first."""

import weakref
from unittest import mock

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.collapse import cosine, gpu, tiles
from tempscale.collapse.aggregates import BINS, Block, CosineCells, cosine_reached, merge_tree, pairs_above
from tempscale.collapse.cosine import cosine_tile
from tempscale.collapse.tiles import blocks, upper_triangle

seeds = st.integers(0, 2**32)
on_both = pytest.mark.parametrize("device", ["cpu", "cpu:0"])
"""The fused pass, and torch's own operations, which serve a GPU."""


def corpus(texts, intervals, seed=0, dim=5):
    """Unit embeddings in double precision, sorted by interval."""
    random = np.random.default_rng(seed)
    rows = random.normal(size=(texts, dim)) + 0.3
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), np.sort(random.integers(0, intervals, texts))


def block(embeddings, interval):
    return Block(embeddings, np.asarray(interval), np.arange(len(embeddings), dtype=np.int32))


def cells_of(rows, columns, intervals, *, diagonal, device="cpu"):
    return cosine_tile(rows, columns, intervals, diagonal=diagonal, device=device).cells


def tiled(embeddings, interval, intervals, size, device="cpu"):
    """The cells of each tile of the i ≤ j grid."""
    parts = [block(embeddings[start:stop], interval[start:stop]) for start, stop in blocks(len(embeddings), size)]
    return [cells_of(parts[i], parts[j], intervals, diagonal=i == j, device=device) for i, j in upper_triangle(len(parts))]


def merged(cells):
    return merge_tree(cells, CosineCells.merged)


# --- every pair once --------------------------------------------------------------------------------------------------


@on_both
@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 30), st.integers(1, 4), st.integers(1, 35), st.sampled_from([1, 2, 3, 1024]),
    st.sampled_from([1, 2, 5, 1024]), seeds,
)  # fmt: skip
def test_every_unordered_pair_is_in_its_cell_exactly_once(device, texts, intervals, size, inner, across, seed):
    # `inner` and `across` cut the tile itself, as more rows and columns than a block of the product would.
    embeddings, interval = corpus(texts, intervals, seed)
    module = cosine if device == "cpu" else gpu
    with mock.patch.object(module, "ROWS", inner), mock.patch.object(module, "COLUMNS", across):
        cells = merged(tiled(embeddings, interval, intervals, size, device))
    for (a, b), cosines in oracles.cell_cosines(embeddings, interval, intervals).items():
        assert cells.pairs[a, b] == len(cosines)
        assert cells.first[a, b] == pytest.approx(sum(cosines), abs=1e-10)
        assert cells.second[a, b] == pytest.approx(sum(cosine**2 for cosine in cosines), abs=1e-10)
        bins = np.clip(np.floor((np.array(cosines) + 1) / 2 * BINS), 0, BINS - 1).astype(int)
        np.testing.assert_array_equal(np.repeat(np.arange(BINS), cells.histogram[a, b]), np.sort(bins))
    np.testing.assert_array_equal(cells.histogram.sum(-1), cells.pairs)
    assert cells.pairs.sum() == texts * (texts - 1) // 2
    assert not np.tril(cells.pairs, -1).any()


@on_both
def test_a_tile_by_hand(device):
    # Cosines of east with north-east and west, north with north-east and west.
    h = 0.5**0.5
    rows, columns = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[h, h], [-1.0, 0.0]])
    cells = cells_of(block(rows, [0, 1]), block(columns, [1, 2]), 3, diagonal=False, device=device)
    assert cells.pairs.tolist() == [[0, 1, 1], [0, 1, 1], [0, 0, 0]]
    np.testing.assert_allclose(cells.first, [[0, h, -1], [0, h, 0], [0, 0, 0]], atol=1e-15)
    np.testing.assert_allclose(cells.second, [[0, 0.5, 1], [0, 0.5, 0], [0, 0, 0]], atol=1e-15)
    assert cells.histogram[0, 2, 0] == 1
    assert cells.histogram[1, 2, BINS // 2] == 1


# --- merging ----------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 25), st.integers(1, 9), seeds)
def test_any_order_of_merging_gives_the_same_counts_and_histograms(texts, size, seed):
    embeddings, interval = corpus(texts, 3, seed)
    cells = tiled(embeddings, interval, 3, size)
    usual = merged(cells)
    for shuffle in range(3):
        order = np.random.default_rng(shuffle).permutation(len(cells))
        other = merged([cells[k] for k in order])
        np.testing.assert_array_equal(other.pairs, usual.pairs)
        np.testing.assert_array_equal(other.histogram, usual.histogram)
        np.testing.assert_allclose(other.first, usual.first, atol=1e-12)
        np.testing.assert_allclose(other.second, usual.second, atol=1e-12)
    again = merged(tiled(embeddings, interval, 3, size))
    np.testing.assert_array_equal(again.first, usual.first)
    np.testing.assert_array_equal(again.second, usual.second)


def test_no_pairs_are_the_neutral_element_and_merging_changes_neither_part():
    embeddings, interval = corpus(9, 2)
    (cells,) = tiled(embeddings, interval, 2, 9)
    before = cells.histogram.copy()
    for other in (cells.merged(CosineCells.empty(2)), CosineCells.empty(2).merged(cells)):
        for name in ("pairs", "first", "second", "histogram", "duplicates"):
            np.testing.assert_array_equal(getattr(other, name), getattr(cells, name))
            assert getattr(other, name).dtype == (np.float64 if name in ("first", "second") else np.int64)
    assert cells.merged(cells).pairs.sum() == 2 * cells.pairs.sum() == 72
    np.testing.assert_array_equal(cells.histogram, before)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=3), min_size=1, max_size=20))
def test_the_tree_merges_neighbours_and_keeps_every_part_in_its_place(parts):
    assert merge_tree(parts, lambda left, right: left + right) == "".join(parts)


def test_the_tree_is_balanced_and_fixed():
    assert merge_tree(list("abcde"), lambda left, right: f"({left}{right})") == "(((ab)(cd))e)"
    assert merge_tree(["a"], lambda left, right: pytest.fail("one part needs no merging")) == "a"


def test_the_tree_holds_one_part_a_level_however_many_there_are():
    class Part:
        pass

    alive, counts = weakref.WeakSet(), []

    def part(*merged):
        own = Part()
        alive.add(own)
        counts.append(len(alive))
        return own

    merge_tree((part() for _ in range(1000)), part)
    assert 10 <= max(counts) <= 14  # Ten levels, what is being merged, and the newest.


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(1, 70))
def test_runs_merged_by_themselves_and_then_together_are_merged_in_the_same_order(count, most):
    runs = tiles.runs(count, most)
    assert [k for own in runs for k in own] == list(range(count))
    assert len(runs) <= most

    def together(parts):
        return merge_tree(parts, lambda left, right: f"({left}{right})")

    names = [f"<{k}>" for k in range(count)]
    assert together(together(names[k] for k in own) for own in runs) == together(names)


# --- percentiles ------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 40), st.sampled_from([0.05, 0.25, 0.5, 0.9, 0.95, 1.0]), seeds)
def test_a_percentile_is_within_a_bin_of_numpys(texts, share, seed):
    embeddings, interval = corpus(texts, 2, seed)
    cells = merged(tiled(embeddings, interval, 2, 7))
    for (a, b), cosines in oracles.cell_cosines(embeddings, interval, 2).items():
        if cosines:
            expected = np.quantile(cosines, share, method="inverted_cdf")
            assert cells.percentile(a, b, share) == pytest.approx(expected, abs=2 / BINS + 1e-9)


def test_a_percentile_by_hand_is_linear_inside_its_bin():
    # Four pairs in bin 0, four in the last: the median is the upper end of bin 0, a quarter lies in its middle.
    cells = CosineCells.empty(1)
    cells.pairs[0, 0], cells.histogram[0, 0, 0], cells.histogram[0, 0, -1] = 8, 4, 4
    assert cells.percentile(0, 0, 0.25) == pytest.approx(-1 + 1 / BINS)
    assert cells.percentile(0, 0, 0.5) == pytest.approx(-1 + 2 / BINS)
    assert cells.percentile(0, 0, 0.75) == pytest.approx(1 - 1 / BINS)
    assert cells.percentile(0, 0, 1.0) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 40), st.floats(-1, 1), seeds)
def test_pairs_that_reach_a_cosine_are_counted_to_a_bin_and_give_it_back(texts, cosine, seed):
    embeddings, interval = corpus(texts, 1, seed)
    counts = merged(tiled(embeddings, interval, 1, 7)).histogram[0, 0]
    cosines = np.array(oracles.cell_cosines(embeddings, interval, 1)[0, 0])
    reached = pairs_above(counts, cosine)
    assert (cosines >= cosine + 2 / BINS).sum() <= reached <= (cosines >= cosine - 2 / BINS).sum()
    if reached > 0.01:
        back = cosine_reached(counts, reached)
        assert pairs_above(counts, back) == pytest.approx(reached, abs=1e-6)
        assert back >= cosine - 1e-9  # The largest cosine that so many pairs reach.


def test_pairs_above_a_cosine_by_hand():
    # Four pairs in bin 0, four in the last: the middle of the last bin has two above it, all between the bins have four.
    counts = np.zeros(BINS, np.int64)
    counts[0], counts[-1] = 4, 4
    assert [pairs_above(counts, cosine) for cosine in (1.0, 1 - 1 / BINS, 0.3, -1.0)] == [0, 2, 4, 8]
    assert cosine_reached(counts, 2) == pytest.approx(1 - 1 / BINS)
    assert cosine_reached(counts, 4) == pytest.approx(1 - 2 / BINS)
    assert cosine_reached(counts, 6) == pytest.approx(-1 + 1 / BINS)
    assert cosine_reached(counts, 8) == pytest.approx(-1)


def test_the_percentile_of_all_cells_is_that_of_all_pairs_and_ascends():
    embeddings, interval = corpus(60, 3)
    whole, parted = merged(tiled(embeddings, np.zeros(60, dtype=int), 1, 60)), merged(tiled(embeddings, interval, 3, 25))
    found = [parted.overall_percentile(share) for share in np.linspace(0.01, 1.0, 50)]
    assert found == [whole.percentile(0, 0, share) for share in np.linspace(0.01, 1.0, 50)] == sorted(found)
    assert found[-1] - found[0] > 0.5
