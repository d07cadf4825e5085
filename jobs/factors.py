"""The texts of the SOCM sample embedded again for their covariance factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa

from jobs import actor, corpus, factor_parts
from jobs.crew import Crew
from jobs.layout import Layout
from jobs.runs import Model, Run

CHUNK = 32
"""Texts of one part: neighbours in length, so that they share micro-batches and have factors of similar rank."""


def collect(
    run: Run,
    crew: Crew,
    model: Model,
    layout: Layout,
    index: dict[str, Any],
    wanted: Iterable[str],
    on_texts: Callable[[int], None],
    kind: str = "factors",
) -> int:
    """Leave the covariance factors of some texts under every temperature; returns the number of texts.

    Args:
        wanted: ids of the texts.
        kind: the folder that the factors are left in.
    """
    tokens = dict(zip(layout.ids.tolist(), layout.tokens.tolist(), strict=True))
    sample = sorted(set(wanted), key=lambda text_id: (tokens[text_id], text_id))
    missing: dict[int, list[str]] = {}
    there = 0
    for number, start in enumerate(range(0, len(sample), CHUNK)):
        chunk = sample[start : start + CHUNK]
        if all(run.storage.exists(run.part(kind, model, t, number)) for t in run.temperatures):
            there += len(chunk)
        else:
            missing[number] = chunk
    on_texts(there)
    texts = corpus.texts_of(run.storage, index, {i for chunk in missing.values() for i in chunk}) if missing else {}
    work = {
        number: pa.table({"text_id": chunk, "text": [texts[text_id] for text_id in chunk]}).replace_schema_metadata(
            {"kind": kind}
        )
        for number, chunk in missing.items()
    }
    for report in crew.work(leave_factors, work):
        on_texts(report["texts"])
    return len(sample)


def leave_factors(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Embed sampled texts and write one chunk's factors, one part a temperature."""
    kind = work.schema.metadata[b"kind"].decode()
    tokens = worker.encoder.tokenizer(work.column("text").to_pylist())
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"{kind.rpartition('/')[2]} {number} under τ {temperature.slug}"):
            out = worker.encoder.encode_tokens(tokens, moments=False, factors=True, role=actor.ROLE)
        assert out.factors is not None
        table = factor_parts.table(work.column("text_id"), out.tokens.tolist(), out.factors)
        name = f"{kind}/model={worker.model.label}/temperature={temperature.slug}/part-{number:05d}.parquet"
        worker.storage.write_table(name, table)
    return {"number": number, "texts": work.num_rows}
