"""The pairwise stages on Ray, as in the job: cosines of 100,000 texts, with and without neighbours; SOCM of 1,000 texts.

`python -m benchmarks.stage TEXTS` measures cosines at any size.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.measuring import fastest

if TYPE_CHECKING:
    from tempscale_jobs.runs.folder import Run
    from tempscale_jobs.runs.journal import Stage
    from tempscale_jobs.steps.scope import Embedded

TEXTS, DIM, PART = 100_000, 384, 4096


def measure(texts: int = TEXTS) -> list[dict[str, Any]]:
    """Pairs a second and peak memory of the whole stages with two workers: reading parts, tiles, merging, tables."""
    return [*_cosines(texts), _socm()]


def _cosines(texts: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    limit = product_rate(2) / (2 * DIM)
    for neighbours in (0, 10):
        seconds, memory, started = cosine_stage(texts, neighbours)
        rate = texts * (texts - 1) / 2 / seconds
        rows.append(
            {"what": f"cosine stage on Ray, {texts:,} texts" + (f", {neighbours} nearest" if neighbours else "")}
            | {"rate": rate, "unit": "pairs/s", "ratio": rate / (rows[0]["rate"] if rows else rate)}
            | {"limit_share": rate / limit, "seconds": seconds, "ray_start_seconds": started}
            | {"peak_memory_bytes": memory, "workers": 2}
        )
    return rows


@cache
def product_rate(threads: int) -> float:
    """Float32 operations a second of large products on `threads` cores, with the BLAS that the stage's tiles use."""
    from threadpoolctl import threadpool_limits

    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((2048, 2048), dtype=np.float32) for _ in range(2))
    with threadpool_limits(threads):
        return 2 * 2048**3 / fastest(5, lambda: a @ b)[0]


def _socm() -> dict[str, Any]:
    """The SOCM stage over all pairs of the real sentences of `socm`, from the factors of the embedding step."""
    from benchmarks.socm import sentences
    from tempscale import Encoder
    from tempscale_jobs.steps import factors, socm
    from tempscale_jobs.steps.factors import CHUNK

    chosen, source = sentences()
    encoder = Encoder.load(max_length="limit", device="cpu")

    def prepare(run: Run) -> None:
        _write_texts(run, len(chosen))
        out = encoder.encode(sorted(chosen, key=len), moments=False, factors=True)
        assert out.factors is not None
        for number, start in enumerate(range(0, len(chosen), CHUNK)):
            own = slice(start, start + CHUNK)
            ids = [f"{k:08d}" for k in range(len(chosen))[own]]
            table = factors.factor_table(ids, out.tokens[own].tolist(), out.factors[own])
            run.storage.write_table(run.part("factors", run.models[0], run.temperatures[0], number), table)

    def work(scope: Embedded, stage: Stage) -> None:
        socm.all_pairs(scope, scope.run.temperatures[0], stage)

    pairs = len(chosen) * (len(chosen) - 1) // 2
    seconds, memory, started = _stage(prepare, work, len(chosen))
    return (
        {"what": f"SOCM stage on Ray, {len(chosen):,} texts ({source})", "rate": pairs / seconds, "unit": "pairs/s"}
        | {"ratio": 1.0, "seconds": seconds, "ray_start_seconds": started, "peak_memory_bytes": memory, "workers": 2}
    )  # fmt: skip


def cosine_stage(texts: int, neighbours: int = 0, workers: int = 2) -> tuple[float, int, float]:
    """Seconds of the cosine stage over random embeddings, its peak memory, and the seconds of Ray's start."""
    from tempscale_jobs.steps import cosine

    def work(scope: Embedded, stage: Stage) -> None:
        cosine.cosine(scope, scope.run.temperatures[0], cosine.Needed(near=neighbours > 0))

    settings = {"neighbours": neighbours, "worst_duplicates": 100}
    return _stage(lambda run: _write_texts(run, texts), work, texts, workers, settings)


def _stage(
    prepare: Callable[[Run], None], work: Callable[[Embedded, Stage], None], texts: int, workers: int = 2,
    analysis: dict[str, Any] | None = None,
) -> tuple[float, int, float]:  # fmt: skip
    """Seconds of a stage, its peak memory (summed PSS of all processes), and the seconds of Ray's start."""
    from rich.console import Console

    from tempscale import Temperature
    from tempscale_jobs.config.audit import resolve
    from tempscale_jobs.corpus.index import Index
    from tempscale_jobs.runs.folder import BEGUN, GIVEN, Model, Run
    from tempscale_jobs.runs.journal import Journal
    from tempscale_jobs.runs.storage import Storage
    from tempscale_jobs.steps.layout import Order, layout
    from tempscale_jobs.steps.scope import Embedded
    from tempscale_jobs.workers import cluster as sessions
    from tempscale_jobs.workers.dispatch import Crew

    with tempfile.TemporaryDirectory(prefix="tempscale-stage-") as folder:
        run = Run(Storage(folder), [Model("random", "random", "", 512)], [Temperature(1.0)], "")
        run.storage.write_json(BEGUN, {"run": "stage"})
        prepare(run)
        config = resolve({"out": folder, "analysis": analysis or {}, "execution": {"workers": workers}})
        journal, begun = Journal(Console(stderr=True)), time.perf_counter()
        try:
            with sessions.session(config.execution) as cluster, Crew(run, cluster, GIVEN, config.embedding) as crew:
                started, (model,) = time.perf_counter() - begun, run.models
                where = layout(run, cluster, model, Order(tuple(config.analysis.intervals), 0, texts))
                index = Index("", {}, "", texts, 0, texts, texts, {}, ())
                shared = (config, config.embedding, config.corpus, index, run, model, cluster, crew, journal, where)
                with journal.stage("all pairs", texts * (texts - 1) // 2) as stage:
                    begun = time.perf_counter()
                    work(Embedded(*shared), stage)
                    seconds = time.perf_counter() - begun
        finally:
            journal.close()
        return seconds, journal.peak_memory_bytes, started


def _write_texts(run: Run, texts: int) -> None:
    """Write parts of texts/: embeddings with a spectrum that falls like a real one, and lengths from 5 to 500 tokens."""
    from tempscale_jobs.tables import audit

    generator = np.random.default_rng(0)
    scale = (np.arange(1, DIM + 1) ** -0.35).astype(np.float32)
    centre = generator.standard_normal(DIM, dtype=np.float32) * 0.25 * scale
    for number, start in enumerate(range(0, texts, PART)):
        size = min(PART, texts - start)
        rows = generator.standard_normal((size, DIM), dtype=np.float32) * scale + centre
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        tokens = np.clip(generator.lognormal(3.8, 0.8, size), 5, 500).astype(np.int32)
        constant = np.ones(size, np.float32)
        table = audit.texts(DIM).build(
            {
                "text_id": [f"{start + k:08d}" for k in range(size)],
                "content_sha": [""] * size,
                "document": pa.nulls(size, pa.int64()),
                "source_row": pa.nulls(size, pa.int64()),
                "tokens": tokens,
                "truncated": pa.array([False] * size),
                "embedding": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), DIM),
                "mean_norm": constant,
                "spread": constant,
                "within_cosine": constant,
            }
        )
        run.storage.write_table(run.part("texts", run.models[0], run.temperatures[0], number), table)


if __name__ == "__main__":
    for row in _cosines(int(sys.argv[1])) if len(sys.argv) > 1 else measure():
        print(row)
