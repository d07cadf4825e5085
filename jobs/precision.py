"""How far bfloat16 moves embeddings: a sample of the texts embedded both ways, in the same micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from jobs import actor, corpus
from jobs.crew import Crew
from jobs.layout import Layout
from jobs.runs import Model, Run
from tempscale.tiles import seeded_sample

SAMPLE, CHUNK = 256, 64


def measure(
    run: Run, crew: Crew, model: Model, layout: Layout, index: dict[str, Any], on_texts: Callable[[int], None]
) -> dict[str, Any]:
    """Leave the least and mean cosine of the sample's embeddings to those in float32, over all temperatures.

    Returns:
        texts, cosine_least, cosine_mean.

    Raises:
        IncompleteRun: a worker failed for good.
    """
    if run.storage.exists(name(model)):
        found: dict[str, Any] = run.storage.read_json(name(model))
        return found
    sample = sorted(seeded_sample(layout.ids.tolist(), SAMPLE, run.config.seed))
    texts = corpus.texts_of(run.storage, index, set(sample))
    chunks = [sample[k : k + CHUNK] for k in range(0, len(sample), CHUNK)]
    work = {k: pa.table({"text": [texts[i] for i in chunk]}) for k, chunk in enumerate(chunks)}
    least, total = [], 0.0
    for report in sorted(crew.work(compare, work), key=lambda report: report["number"]):
        on_texts(report["texts"])
        least.append(report["least"])
        total += report["sum"]
    found = {"precision": run.config.embedding.precision, "texts": len(sample), "cosine_least": min(least)}
    found["cosine_mean"] = total / (len(sample) * len(run.temperatures))
    run.storage.write_json(name(model), found)
    return found


def name(model: Model) -> str:
    """Where the result of a model is kept."""
    return f"partials/precision/model={model.label}.json"


def compare(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """The least and the summed cosine of some texts' embeddings to those in float32."""
    tokens = worker.encoder.tokenizer(work.column("text").to_pylist())
    least, total = 1.0, 0.0
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"precision {number} under τ {temperature.slug}"):
            found = worker.encoder.encode_tokens(tokens, moments=False, role=actor.ROLE).embeddings
        own, worker.encoder.precision = worker.encoder.precision, "float32"
        try:
            exact = worker.encoder.encode_tokens(tokens, moments=False, role=actor.ROLE).embeddings
        finally:
            worker.encoder.precision = own
        cosines = (found.double() * exact.double()).sum(1)
        least, total = min(least, float(cosines.min())), total + float(cosines.sum())
    return {"number": number, "texts": work.num_rows, "least": least, "sum": total}
