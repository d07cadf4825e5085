"""Embedding 2,000 Wikipedia paragraphs on two threads, against sentence-transformers at its best batch size; Ray's cost.

Without the Wikipedia paragraphs in shared/corpora it measures docstrings of scipy, and the table says so.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.embedding import operations
from benchmarks.measuring import fastest, gemm_rate, texts
from benchmarks.socm import WIKIPEDIA

COUNT, THREADS, BATCHES, TRIED = 2000, 2, (16, 32, 64, 128), 400
"""Texts, threads, batch sizes of sentence-transformers, and the number of texts on which they are tried."""


def measure() -> list[dict[str, Any]]:
    """Tokens a second, ratios to sentence-transformers and cosines to its embeddings; then Ray against a plain loop."""
    from sentence_transformers import SentenceTransformer

    from tempscale import Encoder
    from tempscale.model.checkpoint import default_model

    (corpus, source), folder = paragraphs(), default_model()
    peer = SentenceTransformer(folder, device="cpu")
    peer.max_seq_length = 512
    exact = Encoder.load(folder, max_length="limit", device="cpu")
    half = Encoder.load(folder, max_length="limit", device="cpu", precision="bfloat16")
    lengths = exact.tokenizer(corpus).lengths
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        tried = fastest(
            1, *(lambda size=size: peer.encode(corpus[:TRIED], batch_size=size, show_progress_bar=False) for size in BATCHES)
        )
        batch = BATCHES[tried.index(min(tried))]
        with torch.inference_mode():
            seconds = fastest(
                2,
                lambda: peer.encode(corpus, batch_size=batch, normalize_embeddings=True, show_progress_bar=False),
                lambda: exact.encode(corpus, moments=False),
                lambda: exact.encode(corpus),
                lambda: half.encode(corpus, moments=False),
            )
            theirs = peer.encode(corpus, batch_size=batch, convert_to_tensor=True, normalize_embeddings=True).double()
            cosines = [
                float((theirs * e.encode(corpus, moments=False).embeddings.double()).sum(1).min()) for e in (exact, half)
            ]
        limit = operations(exact.model.config, lengths) / gemm_rate(THREADS)
    finally:
        torch.set_num_threads(before)
    names = (
        f"sentence-transformers, batch size {batch}", "tempscale", "tempscale + token moments", "tempscale, bfloat16",
    )  # fmt: skip
    rows = [
        {
            "what": f"{name}, {len(corpus):,} texts ({source}), {THREADS} threads",
            "rate": sum(lengths) / s,
            "unit": "tokens/s",
        }
        | {"ratio": seconds[0] / s, "limit_share": limit / s}
        for name, s in zip(names, seconds, strict=True)
    ]
    rows[1] |= {"least_cosine": cosines[0]}
    rows[2] |= {"moments_cost": seconds[2] / seconds[1] - 1}
    rows[3] |= {"least_cosine": cosines[1]}
    return [*rows, *_on_ray(corpus, source, sum(lengths))]


def paragraphs(count: int = COUNT) -> tuple[list[str], str]:
    """The first `count` texts, and the name of their source."""
    import pyarrow.parquet as pq

    file = WIKIPEDIA / "paragraphs_100k.parquet"
    if not file.is_file():
        return texts(count), "docstrings"
    return pq.read_table(file, columns=["text"]).slice(0, count)["text"].to_pylist(), "Wikipedia paragraphs"


def _on_ray(corpus: list[str], source: str, tokens: int) -> list[dict[str, Any]]:
    """The embedding step of an audit with one worker of one thread, against a plain loop over the same shards."""
    from tempscale import Encoder

    torch.set_num_threads(1)
    seconds, shards, model = embedding_step([corpus, corpus], 1)
    encoder = Encoder.load(model, max_length="limit", device="cpu")

    def loop() -> None:
        for shard in shards:
            encoder.encode(shard, role="document")

    alone, on_ray = tokens / fastest(1, loop)[0], tokens / seconds
    return [
        {"what": f"the library's loop over shards with moments, 1 thread ({source})", "rate": alone, "unit": "tokens/s"}
        | {"ratio": 1.0},
        {"what": "the same on Ray, 1 worker, from its start to its durable parts", "rate": on_ray, "unit": "tokens/s"}
        | {"ratio": on_ray / alone},
    ]


def embedding_step(
    corpora: Sequence[list[str]], workers: int, shard_texts: int | None = None
) -> tuple[float, list[list[str]], str]:
    """Seconds of an audit's embedding step for the last corpus, its shards, and the model's folder.

    All corpora run in turn in one Ray session; the earlier ones only start Ray's processes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from rich.console import Console

    from tempscale_jobs.config.audit import resolve
    from tempscale_jobs.config.sections import Execution
    from tempscale_jobs.corpus.shards import TextShards
    from tempscale_jobs.corpus.stream import SourceReader
    from tempscale_jobs.runs.folder import begin
    from tempscale_jobs.runs.journal import Journal
    from tempscale_jobs.steps import embed
    from tempscale_jobs.steps.scope import Scope
    from tempscale_jobs.workers import cluster as sessions
    from tempscale_jobs.workers.dispatch import Crew

    embedding: dict[str, Any] = {"temperatures": [1.0]} | ({"shard_texts": shard_texts} if shard_texts else {})
    with (
        tempfile.TemporaryDirectory(prefix="tempscale-paragraphs-") as folder,
        sessions.session(Execution.model_validate({"workers": workers})) as cluster,
    ):
        for number, corpus in enumerate(corpora):
            file, out = f"{folder}/texts-{number}.parquet", f"{folder}/run-{number}"
            pq.write_table(pa.table({"id": [str(k) for k in range(len(corpus))], "text": corpus}), file)
            settings = resolve({"out": out, "corpus": {"source": file}, "embedding": embedding})
            run = begin(settings)
            contents = TextShards(settings.corpus, settings.embedding, out)
            index = SourceReader(run.storage, contents, settings.seed, out).finish(cluster)
            begun = time.perf_counter()
            with Crew(run, cluster, run.models[0], settings.embedding) as crew:
                how = (settings, settings.embedding, settings.corpus, index, run, run.models[0], cluster, crew)
                embed.embed(Scope(*how, Journal(Console(quiet=True))), "embed")
            seconds = time.perf_counter() - begun
        shards = [run.storage.read_table(shard.name).column("text").to_pylist() for shard in index.shards]
        return seconds, shards, run.models[0].name
