"""Blocks of texts on a lattice, whose products are exact in float32, and whether two tiles of them are the same."""

import numpy as np

from tempscale.collapse.aggregates import Block


def texts_of(count, seed=0, intervals=3, first_label=0):
    """A block of lattice embeddings, some of them copies of others, with labels in no order."""
    random = np.random.default_rng(seed)
    rows = random.integers(-4, 5, (count, 4)) / 8
    copies = random.random(count) < 0.3
    rows[copies] = rows[random.integers(0, count, int(copies.sum()))]
    labels = first_label + random.permutation(count)
    return Block(rows.astype(np.float32), np.sort(random.integers(0, intervals, count)), labels.astype(np.int32))


def part(block, start, stop):
    return Block(block.embeddings[start:stop], block.interval[start:stop], block.labels[start:stop])


def same(one, other):
    """Equal to the bit, but for the order in which float64 sums were taken."""
    for near, expected in ((one.rows, other.rows), (one.columns, other.columns)):
        np.testing.assert_array_equal(near.label, expected.label)
        np.testing.assert_array_equal(near.cosine, expected.cosine)
    np.testing.assert_array_equal(one.duplicates.labels, other.duplicates.labels)
    np.testing.assert_array_equal(one.duplicates.cosine, other.duplicates.cosine)
    for name in ("pairs", "histogram", "duplicates"):
        np.testing.assert_array_equal(getattr(one.cells, name), getattr(other.cells, name))
    for name in ("first", "second"):
        np.testing.assert_allclose(getattr(one.cells, name), getattr(other.cells, name), rtol=1e-12, atol=1e-12)
