"""The prefix probe: the same long texts cut to 32, 64, … tokens, which separates length from topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from jobs import actor, corpus, parts, schema
from jobs.crew import Crew
from jobs.layout import Layout, folder
from jobs.runs import Model, Run
from tempscale.length import FEWEST_TEXTS, CosineSums, finite_population, text_means, within_error
from tempscale.temperature import Temperature
from tempscale.tiles import seeded_sample

SHORTEST_PREFIX = 32
CHUNK = 16


def probe(
    run: Run, crew: Crew, model: Model, layout: Layout, index: dict[str, Any], on_texts: Callable[[int], None]
) -> dict[str, Any]:
    """Embed the probe's prefixes under every temperature and leave its table.

    Returns:
        The number of texts and the prefixes; no texts where fewer than 30 are long enough for two prefixes.
    """
    lengths = prefixes(layout, model.max_length)
    eligible = [i for i, n in zip(layout.ids.tolist(), layout.tokens.tolist(), strict=True) if lengths and n >= lengths[-1]]
    sample = sorted(seeded_sample(eligible, run.config.analysis.probe_sample, run.config.seed))
    if len(sample) < 2 or not lengths:
        return {"texts": 0, "prefixes": []}
    missing: dict[int, list[str]] = {}
    there = 0
    for number, start in enumerate(range(0, len(sample), CHUNK)):
        chunk = sample[start : start + CHUNK]
        if all(run.storage.exists(f"{_embeddings(run, model, t)}/part-{number:05d}.parquet") for t in run.temperatures):
            there += len(chunk)
        else:
            missing[number] = chunk
    on_texts(there)
    texts = corpus.texts_of(run.storage, index, {i for chunk in missing.values() for i in chunk}) if missing else {}
    work = {
        number: pa.table({"text_id": chunk, "text": [texts[text_id] for text_id in chunk]}).replace_schema_metadata(
            {"prefixes": ",".join(map(str, lengths))}
        )
        for number, chunk in missing.items()
    }
    for report in crew.work(leave_prefixes, work):
        on_texts(report["texts"])
    for temperature in run.temperatures:
        _tabulate(run, model, temperature, layout.population(len(eligible)))
    return {"texts": len(sample), "prefixes": lengths}


def prefixes(layout: Layout, max_length: int) -> list[int]:
    """32, 64, … up to the longest that at least 30 texts reach; none where fewer than two remain."""
    lengths, length = [], SHORTEST_PREFIX
    while length <= max_length and int((layout.tokens >= length).sum()) >= FEWEST_TEXTS:
        lengths.append(length)
        length *= 2
    return lengths if len(lengths) >= 2 else []


def leave_prefixes(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Embed each text at every prefix and write one chunk's embeddings, one part a temperature."""
    lengths = [int(length) for length in work.schema.metadata[b"prefixes"].split(b",")]
    texts = work.column("text").to_pylist()
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        tables = []
        for length in lengths:
            with worker.noting(f"probe {number} at {length} tokens under τ {temperature.slug}"):
                out = worker.encoder.encode(texts, moments=False, max_length=length, role=actor.ROLE)
            embeddings = out.embeddings.numpy()
            columns = {"text_id": work.column("text_id"), "prefix_tokens": pa.array([length] * len(texts), pa.int32())}
            tables.append(pa.table(columns | {"embedding": parts.fixed_lists(embeddings)}))
        place = f"partials/probe/model={worker.model.label}/temperature={temperature.slug}/embeddings"
        worker.storage.write_table(f"{place}/part-{number:05d}.parquet", pa.concat_tables(tables))
    return {"number": number, "texts": work.num_rows}


def _embeddings(run: Run, model: Model, temperature: Temperature) -> str:
    return f"{folder(run, 'probe', model, temperature)}/embeddings"


def _tabulate(run: Run, model: Model, temperature: Temperature, population: float) -> None:
    """Mean cosine over all pairs at each prefix, and each text's own mean."""
    table = pa.concat_tables([run.storage.read_table(n) for n in run.storage.list(_embeddings(run, model, temperature))])
    prefix = table.column("prefix_tokens").to_numpy()
    embeddings = parts.matrix(table, "embedding")
    ids = np.array(table.column("text_id").to_pylist(), dtype=object)
    rows, means = [], []
    for length in np.unique(prefix):
        here = prefix == length
        one = np.zeros(int(here.sum()), dtype=np.int64)
        sums = CosineSums.of(embeddings[here], one, 1)
        own = text_means(embeddings[here], one, sums)[:, 0]
        error = within_error(own.var(ddof=1), len(own)) if len(own) > 2 else None
        rows.append(
            run.key(model, temperature)
            | {"prefix_tokens": int(length), "texts": len(own), "cosine_mean": float(own.mean())}
            | {"cosine_se": None if error is None else error * finite_population(len(own), population)}
            | {"cosine_se_superpopulation": error}
        )
        means.append({"text_id": ids[here], "group": np.full(len(own), length), "inside": own, "overall": own})
    place = folder(run, "probe", model, temperature)
    correction = finite_population(rows[-1]["texts"], population)
    run.storage.write_json(f"{place}/done.json", {"correction": correction})
    columns = {name: np.concatenate([part[name] for part in means]) for name in means[0]}
    run.storage.write_table(f"{place}/text_means.parquet", parts.TEXT_MEANS.build(columns))
    run.storage.write_table(f"{place}/prefix_probe.parquet", schema.PREFIX_PROBE.build_rows(rows))
