"""Scaling in workers: the embedding step and the cosine stage on Ray with one worker, two, four … up to the cores.

A worker is one process of one thread. Ray's own processes, the driver and the tokeniser use the same cores.
`python -m benchmarks workers`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks.measuring import gemm_rate
from benchmarks.stage import DIM, cosine_stage, product_rate
from benchmarks.stage import TEXTS as COSINE_TEXTS

TEXTS, FIRST, SHARDS_A_WORKER = 1000, 64, 8
"""Texts of the embedding step, texts embedded before it to start Ray's processes, and shards for each worker."""


def measure(texts: int = TEXTS, cosine_texts: int = COSINE_TEXTS, counts: Sequence[int] = ()) -> list[dict[str, Any]]:
    """Rates, ratios to one worker, efficiency (ratio over workers), and shares of the GEMM rate of as many threads.

    `counts` are the numbers of workers, 1 first; by default powers of two up to the machine's cores.
    """
    counts = counts or worker_counts(os.cpu_count() or 1)
    return [*_embedding(texts, counts), *_cosine(cosine_texts, counts)]


def worker_counts(cores: int) -> list[int]:
    """1, 2, 4 … below the number of cores, and that number."""
    return [*(2**k for k in range(cores.bit_length()) if 2**k < cores), cores]


def _embedding(count: int, counts: Sequence[int]) -> list[dict[str, Any]]:
    """The embedding step, from its start with loading of the model to its durable parts."""
    from benchmarks.embedding import operations
    from benchmarks.paragraphs import embedding_step, paragraphs
    from tempscale import Encoder

    corpus, source = paragraphs(count)
    encoder = Encoder.load(max_length="limit", device="cpu")
    lengths = encoder.tokenizer(corpus).lengths
    needed = operations(encoder.model.config, lengths)
    shard_texts = max(1, len(corpus) // (SHARDS_A_WORKER * max(counts)))
    rows = []
    for workers in counts:
        seconds, _, _ = embedding_step([corpus[:FIRST], corpus], workers, shard_texts)
        rows.append(
            {"what": f"embedding step on Ray, {len(corpus):,} texts ({source}), {_in_words(workers)}", "workers": workers}
            | {"rate": sum(lengths) / seconds, "unit": "tokens/s", "seconds": seconds}
            | {"limit_share": needed / seconds / gemm_rate(workers)}
        )
    return _scaled("embedding step", rows)


def _cosine(count: int, counts: Sequence[int]) -> list[dict[str, Any]]:
    """The whole cosine stage over random embeddings, from parts on disk to sums."""
    rows, pairs = [], count * (count - 1) / 2
    for workers in counts:
        seconds, memory, _ = cosine_stage(count, workers=workers)
        rows.append(
            {"what": f"cosine stage on Ray, {count:,} texts, {_in_words(workers)}", "workers": workers}
            | {"rate": pairs / seconds, "unit": "pairs/s", "seconds": seconds, "peak_memory_bytes": memory}
            | {"limit_share": 2 * DIM * pairs / seconds / product_rate(workers)}
        )
    return _scaled("cosine stage", rows)


def _scaled(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their efficiency and their ratio to the first row, which has one worker."""
    ratios = [row["rate"] / rows[0]["rate"] for row in rows]
    return [
        row | {"ratio": ratio, "efficiency": ratio / row["workers"], "series": name}
        for row, ratio in zip(rows, ratios, strict=True)
    ]


def _in_words(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"
