"""Which pairs: the grid of blocks, and samples that stay put."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.collapse.tiles import LARGEST_BLOCK, LARGEST_BLOCK_BYTES, SMALLEST_BLOCK, block_size, blocks, upper_triangle
from tempscale.stats.sample import keyed_hash, seeded_sample

ids = st.lists(st.text(max_size=6), max_size=40, unique=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.integers(1, 35))
def test_blocks_hold_every_row_in_order_and_their_grid_every_unordered_pair_of_texts_once(texts, size):
    parts = blocks(texts, size)
    assert [row for start, stop in parts for row in range(start, stop)] == list(range(texts))
    assert all(stop - start == size for start, stop in parts[:-1])
    assert all(0 < stop - start <= size for start, stop in parts)
    pairs = []
    for i, j in upper_triangle(len(parts)):
        rows, columns = range(*parts[i]), range(*parts[j])
        pairs += [(row, column) for row in rows for column in columns if i != j or row < column]
    assert sorted(pairs) == list(itertools.combinations(range(texts), 2))


def test_the_grid_by_hand():
    assert upper_triangle(3) == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
    assert upper_triangle(0) == []
    assert blocks(7, 3) == [(0, 3), (3, 6), (6, 7)]


@pytest.mark.parametrize(
    ("texts", "dim", "rows"),
    [
        (0, 384, 1024), (2000, 384, 1024), (16_384, 384, 1024), (16_385, 384, 2048), (100_000, 384, 7168),
        (1_000_000, 384, 63_488), (10**7, 384, 65_536), (10**8, 1, 65_536), (10**8, 512, 65_536), (10**8, 768, 43_008),
        (10**8, 1024, 32_768), (10**8, 4096, 8192),
    ],
)  # fmt: skip
def test_a_block_is_about_a_sixteenth_of_the_texts_and_no_more_than_128_megabytes(texts, dim, rows):
    assert block_size(texts, dim) == rows
    assert rows * dim * 4 <= LARGEST_BLOCK_BYTES == 128 * 2**20


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**8), st.integers(1, 40_000))
def test_blocks_stay_between_their_limits_and_grow_with_the_texts(texts, dim):
    size = block_size(texts, dim)
    assert SMALLEST_BLOCK <= size <= LARGEST_BLOCK
    assert size % SMALLEST_BLOCK == 0
    assert size * dim * 4 <= LARGEST_BLOCK_BYTES or size == SMALLEST_BLOCK
    assert size <= block_size(texts + 1, dim)
    assert size >= block_size(texts, dim + 1)
    largest = block_size(10**12, dim)
    assert size == largest or len(blocks(texts, size)) <= 16


# --- samples ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text_id", "seed", "expected"),
    [
        ("", 0, 14_100_770_264_707_963_708),
        ("a", 0, 13_364_973_569_777_140_538),
        ("a", 1, 7_988_131_329_266_320_445),
        ("a", -1, 8_734_054_494_394_547_624),
        ("scipy.stats:42", 20260101, 17_837_408_993_362_023_101),
        ("naïve – 文", 7, 11_844_427_826_064_249_207),
        ("\ud800", 0, 12_754_766_908_844_179_647),
    ],
)
def test_the_hash_is_frozen(text_id, seed, expected):
    # Another value would draw another sample from every corpus: these numbers may not change.
    assert keyed_hash(text_id, seed) == expected


@settings(max_examples=60, deadline=None)
@given(ids, st.integers(0, 45), st.integers(0, 2**32))
def test_a_sample_has_the_smallest_hashes_in_order_whatever_the_order_of_ids(texts, size, seed):
    found = seeded_sample(texts, size, seed)
    assert found == sorted(texts, key=lambda text_id: keyed_hash(text_id, seed))[:size]
    assert found == seeded_sample(reversed(texts), size, seed)
    assert len(found) == min(size, len(texts))
    assert all(0 <= keyed_hash(text_id, seed) < 2**64 for text_id in texts)


@settings(max_examples=60, deadline=None)
@given(ids.filter(len), st.integers(1, 20), st.integers(0, 2**32))
def test_adding_or_removing_a_text_changes_at_most_one(texts, size, seed):
    before = set(seeded_sample(texts[1:], size, seed))
    after = set(seeded_sample(texts, size, seed))
    assert len(before - after) <= 1
    assert after - before <= {texts[0]}


def test_every_text_is_drawn_equally_often_and_pairs_independently():
    texts, size, draws = [f"doc-{k}" for k in range(30)], 10, 3000
    drawn = np.zeros((draws, 30))
    for seed in range(draws):
        drawn[seed, [texts.index(text_id) for text_id in seeded_sample(texts, size, seed)]] = 1
    # Each text has probability 1/3; five standard deviations of a share over 3,000 draws.
    share = drawn.mean(0)
    assert np.abs(share - 1 / 3).max() < 5 * (1 / 3 * 2 / 3 / draws) ** 0.5
    together = (drawn.T @ drawn / draws)[np.triu_indices(30, 1)]
    expected = 10 / 30 * 9 / 29
    assert np.abs(together - expected).max() < 5 * (expected * (1 - expected) / draws) ** 0.5
