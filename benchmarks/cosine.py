"""All-pairs cosine with histograms by interval: one tile engine core against plain numpy and scikit-learn chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.measuring import fastest, gemm_rate

TEXTS, DIM, INTERVALS = 6000, 384, 8


def measure() -> list[dict[str, Any]]:
    """Unordered pairs a second, each way counting, summing and binning every pair of every cell."""
    from sklearn.metrics import pairwise_distances_chunked

    from tempscale.aggregates import BINS, cosine_tile

    generator = np.random.default_rng(0)
    units = generator.standard_normal((TEXTS, DIM), dtype=np.float32)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    interval = np.sort(generator.integers(0, INTERVALS, TEXTS))
    tensor = torch.from_numpy(units)
    bounds = np.searchsorted(interval, np.arange(INTERVALS + 1))

    def histogram(block: np.ndarray, first: int) -> np.ndarray:
        """Every cell's histogram of one block of rows, above the diagonal."""
        counts = np.zeros((INTERVALS, INTERVALS, BINS), np.int64)
        columns = np.arange(TEXTS)
        for a in range(INTERVALS):
            rows = slice(*np.clip(bounds[a : a + 2] - first, 0, len(block)))
            for b in range(a, INTERVALS):
                cell = block[rows, bounds[b] : bounds[b + 1]]
                above = columns[bounds[b] : bounds[b + 1]] > np.arange(first, first + len(block))[rows, None]
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

    def with_tempscale() -> np.ndarray:
        return cosine_tile(tensor, interval, tensor, interval, INTERVALS, diagonal=True).histogram

    pairs = TEXTS * (TEXTS - 1) // 2
    assert with_numpy().sum() == with_sklearn().sum() == with_tempscale().sum() == pairs
    seconds = fastest(2, with_sklearn, with_numpy, with_tempscale)
    names = ("scikit-learn + numpy.histogram", "numpy + numpy.histogram", "tempscale cosine_tile")
    return [
        {
            "what": name,
            "rate": pairs / s,
            "unit": "pairs/s",
            "ratio": seconds[0] / s,
            "limit_share": 2 * DIM * pairs / s / gemm_rate(),
        }
        for name, s in zip(names, seconds, strict=True)
    ]
