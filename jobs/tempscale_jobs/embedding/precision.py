"""The effect of bfloat16 on embeddings: a sample of texts embedded in both precisions, in the same micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tempscale_jobs.corpus import shards
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.embedding.layout import Layout
from tempscale_jobs.runs.folder import Model, Run, place
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.crew import Crew

SAMPLE, CHUNK = 256, 64


def cosine_to_float32(
    run: Run, crew: Crew, model: Model, precision: str, layout: Layout, index: Index,
    on_texts: Callable[[int], None],
) -> dict[str, Any]:  # fmt: skip
    """Measure the least and mean cosine of a sample's embeddings to those in float32, over all temperatures, and keep it."""
    if run.storage.exists(result_name(model)):
        found: dict[str, Any] = run.storage.read_json(result_name(model))
        return found
    sample = sorted(layout.ids[layout.sample(SAMPLE)].tolist())
    texts = shards.texts_of(run.storage, layout.within(index, sample), set(sample))
    chunks = [sample[k : k + CHUNK] for k in range(0, len(sample), CHUNK)]
    work = {k: pa.table({"text": [texts[i] for i in chunk]}) for k, chunk in enumerate(chunks)}
    least, total = [], 0.0
    for report in sorted(crew.work(write_cosines, work), key=lambda report: report["number"]):
        on_texts(report["texts"])
        least.append(report["least"])
        total += report["sum"]
    found = {"precision": precision, "texts": len(sample), "cosine_least": min(least)}
    found["cosine_mean"] = total / (len(sample) * len(run.temperatures))
    run.storage.write_json(result_name(model), found)
    return found


def result_name(model: Model) -> str:
    """The name of the file that keeps a model's result."""
    return f"{place('partials/precision', model)}.json"


def write_cosines(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """The least and the summed cosine of some texts' embeddings to those in float32."""
    tokens = worker.encoder.tokenizer(work.column("text").to_pylist())
    padded, least, total = worker.encoder.padded(tokens), 1.0, 0.0
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"precision {number} under τ {temperature.slug}"):
            found = worker.encoder.encode_tokens(tokens, moments=False, role=actor.ROLE, padded=padded).embeddings
        own, worker.encoder.precision = worker.encoder.precision, "float32"
        try:
            exact = worker.encoder.encode_tokens(tokens, moments=False, role=actor.ROLE, padded=padded).embeddings
        finally:
            worker.encoder.precision = own
        cosines = (found.double() * exact.double()).sum(1)
        least, total = min(least, float(cosines.min())), total + float(cosines.sum())
    return {"number": number, "texts": work.num_rows, "least": least, "sum": total}
