"""Estimate the time of embedding before it starts, for the progress bar in the first half minute."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from tempscale_jobs.corpus.index import Shard
from tempscale_jobs.runs.folder import Model

START_SECONDS = 8.0
"""The time until the actors have loaded the model."""
_CHARACTERS_OF_A_TOKEN = 4.0
OF_GEMM = 0.6
"""The share of the CPU's rate of matrix products that embedding reaches, attention and padding included."""


def seconds(model: Model, shards: Sequence[Shard], temperatures: int, workers: int) -> float | None:
    """Seconds on CPUs like this one; None if the model's configuration does not give its size."""
    from tempscale.model.checkpoint import resolve

    try:
        config = json.loads((Path(resolve(model.name)) / "config.json").read_text("utf-8"))
        layers, width, inner = (int(config[k]) for k in ("num_hidden_layers", "hidden_size", "intermediate_size"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    tokens = sum(about_tokens(shard, model.max_length) for shard in shards)
    # A token passes four matrices of width × width in attention and two of width × inner; each entry is two operations.
    operations = 2 * layers * (4 * width**2 + 2 * width * inner) * tokens * temperatures
    return START_SECONDS + operations / (OF_GEMM * gemm_rate() * max(1, workers))


def about_tokens(shard: Shard, window: int) -> float:
    """About the number of tokens of a shard that the model sees."""
    return min(shard.characters / _CHARACTERS_OF_A_TOKEN, float(shard.texts * window))


@lru_cache(maxsize=1)
def gemm_rate() -> float:
    """Operations per second of one thread in matrix products, the best of ten measurements."""
    a, b = np.ones((256, 384), np.float32), np.ones((384, 1536), np.float32)
    best = float("inf")
    for _ in range(10):
        begun = time.thread_time()
        a @ b
        best = min(best, time.thread_time() - begun)
    return 2 * a.size * b.shape[1] / max(best, 1e-6)
