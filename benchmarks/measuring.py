"""Real texts, timing, and this machine's rate of matrix products, for all benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch


@lru_cache(maxsize=1)
def texts(count: int = 300) -> list[str]:
    """Docstrings of scipy, the same in every run, in the order of a keyed hash, so that lengths are mixed."""
    from tempscale.stats.sample import seeded_sample
    from tempscale_jobs.config.sections import Corpus
    from tempscale_jobs.corpus import sources

    every = {row.id: row.text for row in sources.rows(Corpus.model_validate({"source": "docstrings:scipy"}))}
    return [every[i] for i in seeded_sample(sorted(i for i, text in every.items() if text), count, 0)]


def fastest(rounds: int, *works: Callable[[], object]) -> list[float]:
    """Seconds of the fastest round of each work; the works take turns, after one round to warm up."""
    best = [float("inf")] * len(works)
    for number in range(rounds + 1):
        for place, work in enumerate(works):
            begun = time.perf_counter()
            work()
            if number:
                best[place] = min(best[place], time.perf_counter() - begun)
    return best


def save(model: Any, folder: Path, window: int) -> None:
    """Save a model with MiniLM's tokenizer, whose texts are cut at a window."""
    from transformers import AutoTokenizer

    from tempscale.model.checkpoint import default_model

    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(default_model())
    tokenizer.model_max_length = window
    tokenizer.save_pretrained(folder)


def peak_bytes() -> int:
    """The most memory that this process has had; unlike `ru_maxrss`, without what its parent had."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])


@lru_cache(maxsize=2)
def gemm_rate(threads: int = 1) -> float:
    """Float32 operations a second of a large square product, the limit of all methods that are made of products."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return 2 * 2048**3 / fastest(3, lambda: a @ b)[0]
    finally:
        torch.set_num_threads(before)
