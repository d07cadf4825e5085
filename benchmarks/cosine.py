"""Cosine of all pairs with histograms by interval, with and without neighbours, against scikit-learn chunks and faiss."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measuring import fastest, gemm_rate

if TYPE_CHECKING:
    from tempscale.collapse.aggregates import Block

TEXTS, DIM, INTERVALS, NEIGHBOURS = 12_000, 384, 8, 10


def measure() -> list[dict[str, Any]]:
    """Unordered pairs a second on one thread; each method counts, sums and bins every pair of every cell.

    The limit is the time of the product's operations at this machine's rate of products, with each unordered pair once.
    """
    from sklearn.metrics import pairwise_distances_chunked

    from tempscale.collapse.aggregates import BINS
    from tempscale.collapse.cosine import cosine_tile

    block = random_block(TEXTS)
    units, interval = block.embeddings, block.interval
    bounds = np.searchsorted(interval, np.arange(INTERVALS + 1))

    def histogram(rows: np.ndarray, first: int) -> np.ndarray:
        """The histogram of every cell for some rows, above the diagonal."""
        counts = np.zeros((INTERVALS, INTERVALS, BINS), np.int64)
        columns = np.arange(TEXTS)
        for a in range(INTERVALS):
            own = slice(*np.clip(bounds[a : a + 2] - first, 0, len(rows)))
            for b in range(a, INTERVALS):
                cell = rows[own, bounds[b] : bounds[b + 1]]
                above = columns[bounds[b] : bounds[b + 1]] > np.arange(first, first + len(rows))[own, None]
                counts[a, b] += np.histogram(cell[above], bins=BINS, range=(-1, 1))[0]
        return counts

    def with_numpy() -> np.ndarray:
        total = np.zeros((INTERVALS, INTERVALS, BINS), np.int64)
        for start in range(0, TEXTS, 1024):
            total += histogram(units[start : start + 1024] @ units.T, start)
        return total

    def with_sklearn() -> np.ndarray:
        total, start = np.zeros((INTERVALS, INTERVALS, BINS), np.int64), 0
        for chunk in pairwise_distances_chunked(units, metric="cosine", working_memory=64):
            total += histogram(1 - chunk, start)
            start += len(chunk)
        return total

    def with_tempscale(neighbours: int = 0) -> Any:
        return cosine_tile(block, block, INTERVALS, diagonal=True, neighbours=neighbours, duplicate=0.95, listed=100)

    pairs = TEXTS * (TEXTS - 1) // 2
    assert with_numpy().sum() == with_sklearn().sum() == with_tempscale().cells.histogram.sum() == pairs
    ways = {
        "scikit-learn + numpy.histogram": with_sklearn,
        "numpy + numpy.histogram": with_numpy,
        "tempscale cosine_tile": with_tempscale,
        f"tempscale cosine_tile + {NEIGHBOURS} nearest": lambda: with_tempscale(NEIGHBOURS),
    }
    if importlib.util.find_spec("faiss"):
        import faiss

        faiss.omp_set_num_threads(1)

        def with_faiss() -> Any:
            index = faiss.IndexFlatIP(DIM)
            index.add(units)
            return index.search(units, NEIGHBOURS + 1)

        same = with_tempscale(NEIGHBOURS).rows.cosine
        assert np.abs(with_faiss()[0][:, 1:] - same).max() < 1e-5
        ways[f"faiss IndexFlatIP, {NEIGHBOURS} nearest alone"] = with_faiss
    seconds = dict(zip(ways, fastest(2, *ways.values()), strict=True))
    first = next(iter(seconds.values()))
    return [
        {"what": name, "rate": pairs / s, "unit": "pairs/s", "ratio": first / s}
        | {"limit_share": 2 * DIM * pairs / s / gemm_rate()}
        for name, s in seconds.items()
    ]


def random_block(texts: int) -> Block:
    """Random unit embeddings with a common direction, as real ones have, in length intervals of about equal size."""
    from tempscale.collapse.aggregates import Block

    generator = np.random.default_rng(0)
    units = generator.standard_normal((texts, DIM), dtype=np.float32) + 0.3
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    return Block(units, np.sort(generator.integers(0, INTERVALS, texts)), np.arange(texts, dtype=np.int32))
