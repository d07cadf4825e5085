"""A super-tile's nearest neighbours and near-duplicates against brute force, on both paths, however the pairs are cut.

Embeddings on a lattice: entries are multiples of 1/8, so that every product is exact in float32 in whatever order it is
summed, ties are true ties, and nothing but the comparison itself is tested.
"""

from dataclasses import replace
from unittest import mock

import numpy as np
import oracles
import pytest
import torch
from blocks_of_texts import part, same, texts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.collapse import cosine, gpu
from tempscale.collapse.aggregates import Block, CosineCells, Duplicates, Tile, merge_tree
from tempscale.collapse.cosine import cosine_tile, cosine_tiles, nearest_corrected, rounded, rounding_error, truncation_error
from tempscale.collapse.length import CosineSums
from tempscale.collapse.neighbours import NOBODY, Nearest
from tempscale.collapse.tiles import blocks, upper_triangle

DEVICES = ["cpu", "cpu:0"]
"""The fused pass, and torch's own operations, which serve a GPU."""
on_both = pytest.mark.parametrize("device", DEVICES)
seeds = st.integers(0, 2**32)


def all_pairs(rows, columns, diagonal):
    """Cosines in double precision and which of them are between two different texts."""
    cosines = rows.embeddings.astype(np.float64) @ columns.embeddings.astype(np.float64).T
    return cosines, ~np.eye(*cosines.shape, dtype=bool) if diagonal else np.ones(cosines.shape, dtype=bool)


def check_nearest(found, expected, k):
    assert found.cosine.dtype == np.float32
    assert found.label.dtype == np.int32
    for cosines, labels, own in zip(found.cosine, found.label, expected, strict=True):
        missing = k - len(own)
        assert labels.tolist() == [label for _, label in own] + [NOBODY] * missing
        assert cosines.tolist() == [c for c, _ in own] + [-np.inf] * missing


def check_duplicates(found, expected):
    assert [tuple(pair) for pair in found.labels.tolist()] == [(a, b) for _, a, b in expected]
    assert found.cosine.tolist() == [c for c, _, _ in expected]


def count_by_cell(pairs, block):
    """How many of the listed pairs lie in each cell of one block's texts."""
    interval = dict(zip(block.labels.tolist(), block.interval.tolist(), strict=True))
    counts = np.zeros((block.interval.max() + 1,) * 2, dtype=np.int64)
    for _, one, other in pairs:
        counts[tuple(sorted((interval[one], interval[other])))] += 1
    return counts


# --- one tile against brute force -------------------------------------------------------------------------------------


@on_both
@pytest.mark.parametrize("diagonal", [True, False])
@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 30), st.integers(0, 45), st.sampled_from([-2.0, 0.0, 0.25, 0.5, 2.0]),
    st.one_of(st.integers(0, 30), st.integers(300, 900)), st.sampled_from([(512, 2048), (16, 7), (3, 5)]), seeds,
)  # fmt: skip
def test_a_tile_against_every_pair(device, diagonal, height, width, k, threshold, listed, block, seed):
    """However its product is cut into blocks."""
    both = texts_of(height if diagonal else height + width, seed)
    rows, columns = (both, both) if diagonal else (part(both, 0, height), part(both, height, height + width))
    module = cosine if device == "cpu" else gpu
    how = {"neighbours": k, "duplicate": threshold, "listed": listed, "device": device}
    with mock.patch.object(module, "ROWS", block[0]), mock.patch.object(module, "COLUMNS", block[1]):
        tile = cosine_tile(rows, columns, 3, diagonal=diagonal, **how)
    cosines, counted = all_pairs(rows, columns, diagonal)
    check_nearest(tile.rows, oracles.nearest(cosines, columns.labels, counted, k), k)
    check_nearest(tile.columns, oracles.nearest(cosines.T, rows.labels, counted.T, k), k)
    once = np.triu(counted) if diagonal else counted
    pairs = oracles.near_duplicates(cosines, rows.labels, columns.labels, once, threshold)
    check_duplicates(tile.duplicates, pairs[:listed])
    expected = count_by_cell(pairs, both)
    np.testing.assert_array_equal(tile.cells.duplicates[: len(expected), : len(expected)], expected)
    assert tile.cells.duplicates.sum() == len(pairs)


@on_both
def test_a_tile_by_hand(device):
    # Text 7 and its copy 3 tie for text 5 and for text 1; the smaller label comes first.
    rows = Block(np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), np.array([0, 0]), np.array([5, 1], np.int32))
    columns = Block(
        np.array([[0.5, 0.25], [0.5, 0.25], [-1.0, 0.0]], np.float32), np.array([0, 1, 1]), np.array([7, 3, 9], np.int32)
    )
    tile = cosine_tile(rows, columns, 2, diagonal=False, neighbours=2, duplicate=0.25, listed=3, device=device)
    assert tile.rows.label.tolist() == [[3, 7], [3, 7]]
    assert tile.rows.cosine.tolist() == [[0.5, 0.5], [0.25, 0.25]]
    assert tile.columns.label.tolist() == [[5, 1], [5, 1], [1, 5]]
    assert tile.columns.cosine.tolist() == [[0.5, 0.25], [0.5, 0.25], [0.0, -1.0]]
    # The threshold itself counts. Four pairs reach it; the list has room for three.
    assert tile.duplicates.labels.tolist() == [[3, 5], [5, 7], [1, 3]]
    assert tile.cells.duplicates.tolist() == [[2, 2], [0, 0]]


@on_both
@pytest.mark.parametrize("count", [0, 1])
def test_no_text_and_one_text_have_no_neighbour(device, count):
    texts = texts_of(5)
    few = part(texts, 0, count)
    alone = cosine_tile(few, few, 3, diagonal=True, neighbours=2, duplicate=-2.0, listed=3, device=device)
    assert alone.rows.label.tolist() == [[NOBODY, NOBODY]] * count
    assert len(alone.duplicates.cosine) == alone.cells.pairs.sum() == alone.cells.histogram.sum() == 0
    beside = cosine_tile(few, part(texts, 1, 5), 3, diagonal=False, neighbours=1, device=device)
    assert beside.columns.label.tolist() == [[few.labels[0] if count else NOBODY]] * 4


# --- how a tile is cut ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize(("height", "width"), [(512, 2048), (3, 70), (16, 7)])
@pytest.mark.parametrize("k", [1, 5, 80])
def test_those_that_ask_find_the_nearest_that_a_tile_keeps_for_its_rows(kind, height, width, k):
    both = texts_of(400, seed=5)
    rows, columns = part(both, 0, 61), part(both, 61, 400)
    rows, columns = (replace(own, embeddings=own.embeddings.astype(kind)) for own in (rows, columns))
    with mock.patch.object(cosine, "ROWS", height), mock.patch.object(cosine, "COLUMNS", width):
        found = cosine.nearest(rows, [columns], k)
        expected = cosine_tile(rows, columns, 3, diagonal=False, neighbours=k).rows
    np.testing.assert_array_equal(found.label, expected.label)
    np.testing.assert_array_equal(found.cosine, expected.cosine)
    exact = rows.embeddings.astype(np.float64) @ columns.embeddings.astype(np.float64).T
    order = np.lexsort((np.broadcast_to(columns.labels, exact.shape), -exact), axis=1)[:, :k]
    np.testing.assert_array_equal(columns.labels[order], found.label)


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_both_paths_agree_on_rounded_embeddings(precision):
    both = texts_of(300, seed=4)
    random = np.random.default_rng(3).normal(size=both.embeddings.shape).astype(np.float32)
    both = replace(both, embeddings=rounded(random / 8, precision))
    settings = {"diagonal": True, "neighbours": 10, "duplicate": 0.5, "listed": 100, "precision": precision}
    same(*(cosine_tile(both, both, 3, **settings, device=device) for device in DEVICES))


@pytest.mark.parametrize("name", ["embeddings", "interval", "labels"])
def test_what_a_table_lends_may_not_be_written_to(name):
    texts = texts_of(30)
    expected = cosine_tile(texts, texts, 3, diagonal=True, neighbours=3)
    getattr(texts, name).flags.writeable = False
    same(cosine_tile(texts, texts, 3, diagonal=True, neighbours=3), expected)


# --- precision --------------------------------------------------------------------------------------------------------


def nearest(x, bits):
    """x rounded to so many significant bits, ties to even, by exact float64 arithmetic."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits).astype(np.float32)


@pytest.mark.parametrize(("precision", "bits"), [("tf32", 11), ("bfloat16", 8)])
def test_rounding_is_to_nearest_and_ties_to_even(precision, bits):
    random = np.random.default_rng(0)
    values = random.normal(size=(200, 16)).astype(np.float32) * np.logspace(-6, 2, 16, dtype=np.float32)
    unit = 2.0 ** (1 - bits)
    by_hand = np.float32([[1 + unit / 2, 1 + 3 * unit / 2, 1 + unit / 2 + 2.0**-23, -1 - unit / 2, 2 - unit / 4, 0.0]])
    np.testing.assert_array_equal(rounded(by_hand, precision), np.float32([[1, 1 + 2 * unit, 1 + unit, -1, 2, 0]]))
    np.testing.assert_array_equal(rounded(values, precision), nearest(values, bits))
    assert (rounded(values, precision) != values).mean() > 0.9
    assert rounded(values, "float32") is values


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_no_cosine_moves_further_than_stated_and_the_worst_ones_get_there(precision):
    texts = np.random.default_rng(2).normal(size=(300, 24)).astype(np.float32)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    seen, bound = rounded(texts, precision).astype(np.float64), rounding_error(precision)
    moved = np.abs(seen @ seen.T - texts.astype(np.float64) @ texts.T.astype(np.float64))
    assert bound / 50 < moved.max() <= bound
    # A component just above a power of two and half a step loses almost u of itself; one dimension attains the bound.
    worst = np.float32([[1 + bound / 2 / (1 + bound)]])
    lost = abs(float(rounded(worst, precision)[0, 0]) ** 2 - float(worst[0, 0]) ** 2) / float(worst[0, 0]) ** 2
    assert 0.9 * bound < lost <= bound
    assert rounding_error("float32") == 0.0


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
@pytest.mark.parametrize("depth", [4, 8, 16])
def test_sums_that_are_cut_off_lose_no_more_than_stated(precision, depth):
    """Emulated: after every few products the sum is cut to 24 bits, towards 0."""
    rows = np.abs(np.random.default_rng(4).normal(size=(60, 768))).astype(np.float32)
    rows = rounded(rows / np.linalg.norm(rows, axis=1, keepdims=True), precision).astype(np.float64)
    exact, total = rows @ rows.T, np.zeros((60, 60))
    for start in range(0, 768, depth):
        total += rows[:, start : start + depth] @ rows[:, start : start + depth].T
        step = 2.0 ** (np.floor(np.log2(total)) - 23)
        total = np.floor(total / step) * step
    bound, lost = truncation_error(precision, 768), (exact - total) / exact
    assert lost.min() >= 0
    assert bound / 20 < lost.max() <= bound
    assert truncation_error("float32", 768) == 0.0


# --- merging ----------------------------------------------------------------------------------------------------------


def together(near):
    """The lists of all blocks' texts, one after the other."""
    return Nearest(np.concatenate([own.cosine for own in near]), np.concatenate([own.label for own in near]))


def gridded(parts, **how):
    """Cells, neighbours and near-duplicates of the whole, merged over the i ≤ j grid as the job merges them."""
    tiles = {(i, j): cosine_tile(parts[i], parts[j], 3, diagonal=i == j, **how) for i, j in upper_triangle(len(parts))}
    near = [
        merge_tree((tiles[own, k].rows if own <= k else tiles[k, own].columns for k in range(len(parts))), Nearest.merged)
        for own in range(len(parts))
    ]
    listed = how["listed"]
    pairs = merge_tree((tile.duplicates for tile in tiles.values()), lambda one, other: one.merged(other).first(listed))
    return merge_tree((tile.cells for tile in tiles.values()), CosineCells.merged), together(near), pairs


@on_both
@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), st.integers(3, 45), st.integers(0, 12), st.integers(0, 40), st.sampled_from([1, 9, 4000]), seeds)
def test_any_grid_finds_what_one_tile_finds_merged_or_into_the_same_lists(device, count, size, k, listed, looked, seed):
    texts = texts_of(count, seed)
    how = {"neighbours": k, "duplicate": 0.25, "listed": listed, "device": device}
    whole = cosine_tile(texts, texts, 3, diagonal=True, **how)
    parts = [part(texts, *bounds) for bounds in blocks(len(texts), size)]
    cells, near, pairs = gridded(parts, **how)
    tiles = [Tile(i, parts[i], j, parts[j]) for i, j in upper_triangle(len(parts))]
    with mock.patch.object(gpu, "LOOKED", looked), mock.patch.object(cosine, "COUNTED", 0):
        found = cosine_tiles(iter(tiles), 3, **how)
    assert sorted(found.near) == list(range(len(parts)))
    for lists in (near, together([found.near[i] for i in range(len(parts))])):
        np.testing.assert_array_equal(lists.label, whole.rows.label)
        np.testing.assert_array_equal(lists.cosine, whole.rows.cosine)
    for own in (pairs, found.duplicates):
        np.testing.assert_array_equal(own.labels, whole.duplicates.labels)
        np.testing.assert_array_equal(own.cosine, whole.duplicates.cosine)
    for name in ("pairs", "histogram", "duplicates"):
        np.testing.assert_array_equal(getattr(cells, name), getattr(whole.cells, name))
    for name in ("pairs", "first", "second", "histogram", "duplicates"):
        np.testing.assert_array_equal(getattr(found.cells, name), getattr(cells, name))


@pytest.mark.parametrize("cosines", ["different", "ties", "all the same"])
@pytest.mark.parametrize("looked", [1, 50, 3000])
def test_on_a_device_few_pairs_are_looked_at_at_once_and_none_is_missed(cosines, looked):
    texts = texts_of(150, seed=6)
    if cosines == "different":
        texts = replace(texts, embeddings=np.random.default_rng(1).normal(size=(150, 8)).astype(np.float32) / 4)
    elif cosines == "all the same":
        texts = replace(texts, embeddings=np.full((150, 4), 0.5, np.float32))
    settings = {"diagonal": True, "neighbours": 4, "duplicate": 0.9, "listed": 20, "device": "cpu:0"}
    whole = cosine_tile(texts, texts, 3, **settings)
    with (
        mock.patch.object(gpu, "LOOKED", looked),
        mock.patch.object(gpu.Side, "keep", autospec=True, side_effect=gpu.Side.keep) as keep,
    ):
        same(cosine_tile(texts, texts, 3, **settings), whole)
        kept = [len(call.args[1]) for call in keep.call_args_list]
    assert 0 < max(kept) <= max(looked, 150)  # A row is not cut further.


@pytest.mark.parametrize("exact", [1, 60, 1 << 24])
@pytest.mark.parametrize("turned", [0, 15])
@pytest.mark.parametrize("value", [0.5, 1.0])
def test_cosines_beyond_one_by_rounding_are_in_the_outermost_bins(exact, turned, value, monkeypatch):
    monkeypatch.setattr(gpu, "EXACT", exact)
    rows = np.zeros((40, 3), np.float32)
    rows[:, 0], rows[:, 1] = value, 1e-3
    rows[:turned] *= -1
    texts = Block(rows, np.zeros(40, int), np.arange(40, dtype=np.int32))
    found, expected = (cosine_tile(texts, texts, 1, diagonal=True, device=device).cells for device in ("cpu:0", "cpu"))
    np.testing.assert_array_equal(found.histogram, expected.histogram)
    assert found.pairs.sum() == 780
    assert sorted(found.histogram[found.histogram > 0]) == ([780] if not turned else [375, 405])
    if value == 1.0:
        assert found.histogram[0, 0, [0, -1]].tolist() == [15 * 25 if turned else 0, 780 - 375 * (turned > 0)]


def test_a_bin_with_more_pairs_than_float32_counts_has_them_all():
    count = 5803  # Of an odd number of pairs above 2²⁴, which float32 cannot hold.
    texts = Block(np.full((count, 1), 0.5, np.float32), np.zeros(count, int), np.arange(count, dtype=np.int32))
    found = cosine_tile(texts, texts, 1, diagonal=True, device="cpu:0").cells
    assert found.histogram.max() == found.pairs.sum() == count * (count - 1) // 2


@pytest.mark.parametrize("waiting", [0, 1, 10**9])
def test_pairs_that_wait_for_their_lists_are_not_lost(waiting, monkeypatch):
    monkeypatch.setattr(gpu, "WAITING", waiting)
    monkeypatch.setattr(gpu, "ROWS", 30)
    monkeypatch.setattr(gpu, "COLUMNS", 20)
    texts = texts_of(300, seed=8)
    settings = {"diagonal": True, "neighbours": 3, "duplicate": 0.5, "listed": 30}
    same(*(cosine_tile(texts, texts, 3, **settings, device=device) for device in ("cpu:0", "cpu")))


def test_a_device_gets_a_block_once_for_all_its_tiles():
    texts = texts_of(120, seed=7)
    parts = [part(texts, *bounds) for bounds in blocks(120, 30)]
    tiles = [Tile(i, parts[i], j, parts[j]) for i, j in upper_triangle(4)]
    with mock.patch.object(gpu.torch, "tensor", wraps=torch.tensor) as uploaded:
        cosine_tiles(tiles, 3, neighbours=2, device="cpu:0")
        assert uploaded.call_count == 2 * len(parts)  # Embeddings and labels.
    with mock.patch.object(gpu, "BLOCKS_BYTES", (0, 0)), mock.patch.object(gpu.torch, "tensor", wraps=torch.tensor) as again:
        cosine_tiles(
            [tile._replace(rows=replace(tile.rows), columns=replace(tile.columns)) for tile in tiles],
            3,
            neighbours=2,
            device="cpu:0",
        )
        assert again.call_count > 2 * len(parts)
        assert len(gpu.uploaded_blocks) == 2


def test_no_tile_is_no_result():
    for device in DEVICES:
        with pytest.raises(ValueError, match="nothing to merge"):
            cosine_tiles([], 3, device=device)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40), st.integers(0, 20), seeds, st.data())
def test_lists_of_near_duplicates_merge_in_any_order(count, listed, seed, data):
    random = np.random.default_rng(seed)
    pairs = np.stack(np.triu_indices(12, 1), axis=1)[random.permutation(66)[:count]].astype(np.int32)
    every = Duplicates((random.integers(0, 4, len(pairs)) / 4).astype(np.float32), pairs)
    cut = data.draw(st.integers(0, len(pairs)))
    halves = [Duplicates(every.cosine[rows], every.labels[rows]) for rows in (slice(cut), slice(cut, None))]
    whole = every.first(listed)
    ranked = sorted((-c, *pair) for c, pair in zip(every.cosine.tolist(), pairs.tolist(), strict=True))
    check_duplicates(whole, [(-c, a, b) for c, a, b in ranked[:listed]])
    for one, other in (halves, halves[::-1]):
        found = one.first(listed).merged(other.first(listed)).first(listed)
        np.testing.assert_array_equal(found.labels, whole.labels)
        np.testing.assert_array_equal(found.cosine, whole.cosine)


# --- real numbers -----------------------------------------------------------------------------------------------------


@on_both
def test_of_real_numbers_sums_histogram_and_neighbours_are_those_of_double_precision(device):
    random = np.random.default_rng(8)
    rows = random.normal(size=(1300, 32)) + 1.0
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    texts = Block(rows, np.sort(random.integers(0, 3, 1300)), random.permutation(1300).astype(np.int32))
    tile = cosine_tile(texts, texts, 3, diagonal=True, neighbours=4, duplicate=0.8, listed=20, device=device)
    upper = np.triu_indices(3)
    for found, closed in zip(
        (tile.cells.first, tile.cells.second), CosineSums.of(rows, texts.interval, 3).sums(), strict=True
    ):
        np.testing.assert_allclose(found[upper], closed[upper], rtol=1e-9)
    cosines, counted = all_pairs(texts, texts, True)
    best = np.sort(np.where(counted, cosines, -np.inf), axis=1)[:, ::-1]
    # Single precision may swap only what is nearer than it can tell apart.
    clear = (best[:, :4] - best[:, 1:5]).min(1) > 1e-6
    assert clear.mean() > 0.99
    expected = np.argsort(np.where(counted, -cosines, np.inf), axis=1)[:, :4]
    np.testing.assert_array_equal(tile.rows.label[clear], texts.labels[expected][clear])
    np.testing.assert_allclose(tile.rows.cosine, best[:, :4], atol=1e-6)
    pairs = oracles.near_duplicates(cosines, texts.labels, texts.labels, np.triu(counted), 0.8)
    assert tile.cells.duplicates.sum() == len(pairs) > 100
    assert tile.duplicates.labels.tolist() == [[a, b] for _, a, b in pairs[:20]]
    exact = np.histogram(cosines[np.triu(counted)], bins=4096, range=(-1, 1))[0]
    # A cosine on the edge of a bin may fall to either side; the counts up to any edge are otherwise equal.
    assert np.abs(np.cumsum(tile.cells.histogram.sum((0, 1)) - exact)).max() <= 4


def test_nearest_by_corrected_cosine_are_those_of_a_plain_search():
    """s(q, d) = ⟨q, d⟩ − f_d over several blocks, so that what one list keeps out does not keep out of the other."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((900, 16)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    taken = random.normal(0, 0.3, 900).astype(np.float32)
    labels = random.permutation(900).astype(np.int32)
    asking = Block(rows[:200], np.zeros(200, np.int64), labels[:200])
    cuts = [slice(0, 350), slice(350, 360), slice(360, 900)]
    blocks = [(Block(rows[own], np.zeros(len(rows[own]), np.int64), labels[own]), taken[own]) for own in cuts]
    plain, moved = nearest_corrected(asking, iter(blocks), 7)
    exact = rows[:200].astype(np.float64) @ rows.T.astype(np.float64)
    for found, scores in ((plain, exact), (moved, exact - taken)):
        order = np.argsort(-scores, axis=1)[:, :7]
        np.testing.assert_array_equal(found.label, labels[order])
        np.testing.assert_allclose(found.cosine, np.take_along_axis(scores, order, 1), atol=1e-6)
    assert (plain.label != moved.label).mean() > 0.5
    same = cosine.nearest(asking, (block for block, _ in blocks), 7)
    np.testing.assert_array_equal(same.label, plain.label)
    np.testing.assert_array_equal(same.cosine, plain.cosine)
