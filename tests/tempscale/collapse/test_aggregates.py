"""Tiles of cosine: every unordered pair once however they are cut, and the same answer whatever was merged first."""

import gc
import weakref
from unittest import mock

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.collapse import cosine, gpu
from tempscale.collapse import grid as tiles
from tempscale.collapse.aggregates import BINS, Block, CosineCells, merge_tree
from tempscale.collapse.cosine import cosine_tile
from tempscale.collapse.grid import blocks, upper_triangle
from tempscale.collapse.length import CosineSums

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
    with mock.patch.object(module, "_ROWS", inner), mock.patch.object(module, "_COLUMNS", across):
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
def test_more_texts_than_a_block_of_the_product_equal_the_closed_form(device):
    embeddings, interval = corpus(2500, 3, dim=4)
    cells = merged(tiled(embeddings, interval, 3, 1700, device))
    sums = CosineSums.of(embeddings, interval, 3)
    upper = np.triu_indices(3)
    np.testing.assert_array_equal(cells.pairs[upper], sums.pairs()[upper])
    for found, closed in zip((cells.first, cells.second), sums.sums(), strict=True):
        np.testing.assert_allclose(found[upper], closed[upper], rtol=1e-10)
    np.testing.assert_array_equal(cells.histogram.sum(-1), cells.pairs)


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


@on_both
def test_one_text_and_no_text_have_no_pairs(device):
    for count in (0, 1):
        texts = block(np.ones((count, 1)), np.zeros(count, dtype=int))
        cells = cells_of(texts, texts, 2, diagonal=True, device=device)
        assert cells.pairs.sum() == cells.histogram.sum() == 0


@on_both
def test_the_ends_of_the_range_are_in_the_first_and_last_bin(device):
    # Rounding takes the cosine of a text with its copy past 1.
    texts = block(np.array([[1.0 + 1e-6, 0.0], [1.0, 0.0], [-1.0 - 1e-6, 0.0]], np.float32), [0, 0, 0])
    cells = cells_of(texts, texts, 1, diagonal=True, device=device)
    assert cells.histogram[0, 0, -1] == 1
    assert cells.histogram[0, 0, 0] == 2
    assert cells.histogram.sum() == 3


@on_both
def test_sums_of_single_precision_cosines_are_taken_in_double_precision(device):
    embeddings, interval = corpus(2000, 1)
    rows = embeddings.astype(np.float32)
    cells = cells_of(block(rows, interval), block(rows, interval), 1, diagonal=True, device=device)
    gram = (rows @ rows.T)[np.triu_indices(2000, 1)].astype(np.float64)
    assert cells.first[0, 0] == pytest.approx(float(gram.sum()), rel=1e-9)
    assert cells.second[0, 0] == pytest.approx(float((gram**2).sum()), rel=1e-9)


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

    alive, most = weakref.WeakSet(), 0

    def parts():
        nonlocal most
        for _ in range(1000):
            part = Part()
            alive.add(part)
            most = max(most, len(alive))
            yield part
            del part

    def merge(left, right):
        whole = Part()
        alive.add(whole)
        return whole

    gc.disable()
    try:
        merge_tree(parts(), merge)
    finally:
        gc.enable()
    assert most <= 14  # Ten levels, what is being merged, and the newest.


def test_nothing_to_merge_is_refused():
    with pytest.raises(ValueError, match="nothing to merge"):
        merge_tree([], CosineCells.merged)


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


def test_counts_are_64_bit():
    cells = CosineCells.empty(1)
    assert cells.pairs.dtype == cells.histogram.dtype == cells.duplicates.dtype == np.int64
    assert cells.first.dtype == cells.second.dtype == np.float64
    assert cells.merged(cells).pairs.dtype == np.int64


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


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_of_many_pairs_it_is_within_a_bin_of_numpys_own_percentile(share):
    embeddings, interval = corpus(300, 1)
    cells = merged(tiled(embeddings, interval, 1, 100))
    cosines = (embeddings @ embeddings.T)[np.triu_indices(300, 1)]
    assert cells.percentile(0, 0, share) == pytest.approx(np.percentile(cosines, 100 * share), abs=2 / BINS)
    assert cells.first[0, 0] / cells.pairs[0, 0] == pytest.approx(cosines.mean())
    variance = cells.second[0, 0] / cells.pairs[0, 0] - (cells.first[0, 0] / cells.pairs[0, 0]) ** 2
    assert variance**0.5 == pytest.approx(cosines.std())


def test_a_percentile_by_hand_is_linear_inside_its_bin():
    # Four pairs in bin 0, four in the last: the median is the upper end of bin 0, a quarter lies in its middle.
    cells = CosineCells.empty(1)
    cells.pairs[0, 0], cells.histogram[0, 0, 0], cells.histogram[0, 0, -1] = 8, 4, 4
    assert cells.percentile(0, 0, 0.25) == pytest.approx(-1 + 1 / BINS)
    assert cells.percentile(0, 0, 0.5) == pytest.approx(-1 + 2 / BINS)
    assert cells.percentile(0, 0, 0.75) == pytest.approx(1 - 1 / BINS)
    assert cells.percentile(0, 0, 1.0) == pytest.approx(1.0)


def test_the_percentile_of_all_cells_is_that_of_all_pairs():
    embeddings, interval = corpus(60, 3)
    whole, parted = merged(tiled(embeddings, np.zeros(60, dtype=int), 1, 60)), merged(tiled(embeddings, interval, 3, 25))
    for share in (0.01, 0.5, 0.99):
        assert parted.overall_percentile(share) == whole.percentile(0, 0, share)


def test_percentiles_ascend():
    embeddings, interval = corpus(40, 1)
    cells = merged(tiled(embeddings, interval, 1, 13))
    found = [cells.percentile(0, 0, share) for share in np.linspace(0.01, 1.0, 50)]
    assert found == sorted(found)
    assert found[-1] - found[0] > 0.5


@pytest.mark.parametrize("cosine", [-1.0, -0.25, 0.0, 0.7, 1.0])
def test_pairs_alike_have_all_percentiles_there(cosine):
    columns = np.tile([[cosine, (1 - cosine**2) ** 0.5]], (5, 1))
    cells = cells_of(block(np.array([[1.0, 0.0]]), [0]), block(columns, [0] * 5), 1, diagonal=False)
    for share in (0.05, 0.5, 0.95):
        assert cells.percentile(0, 0, share) == pytest.approx(cosine, abs=2 / BINS)
