"""The prefix probe: it embeds the same long texts cut to 32, 64, … tokens, and so separates length from topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tempscale.collapse.length import CosineSums, text_means
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL, VALUES_FOR_AN_ERROR
from tempscale.stats.errors import documents_error, finite_population, within_error
from tempscale.stats.sample import seeded_sample
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.corpus.shards import Index
from tempscale_jobs.embedding import pieces
from tempscale_jobs.embedding.layout import Layout
from tempscale_jobs.runs.folder import Model, Run, means_by_text
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import PREFIX_PROBE
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.crew import Crew

SHORTEST_PREFIX = 32
CHUNK = 16
PREFIXES = "partials/prefixes"
"""The folder of the prefixes' embeddings, 16 texts in a part."""


def probe(
    run: Run, crew: Crew, model: Model, layout: Layout, index: Index, size: int, seed: int, on_texts: Callable[[int], None]
) -> dict[str, Any]:
    """Embed the prefixes of at most `size` texts under every temperature and write the table of the probe.

    Return the number of texts and the prefixes; there are no texts if fewer than 30 are long enough for two prefixes.
    """
    lengths = prefixes(layout, model.max_length)
    eligible = [i for i, n in zip(layout.ids.tolist(), layout.tokens.tolist(), strict=True) if lengths and n >= lengths[-1]]
    sample = sorted(seeded_sample(eligible, size, seed))
    if len(sample) < 2 or not lengths:
        return {"texts": 0, "prefixes": []}
    missing = pieces.missing(run, model, index, sample, CHUNK, [PREFIXES])
    on_texts(len(sample) - sum(piece.num_rows for piece in missing.values()))
    metadata = {"prefixes": ",".join(map(str, lengths))}
    work = {number: piece.replace_schema_metadata(metadata) for number, piece in missing.items()}
    for report in crew.work(write_prefixes, work):
        on_texts(report["texts"])
    for temperature in run.temperatures:
        _tabulate(run, model, temperature, layout, layout.population(len(eligible)))
    return {"texts": len(sample), "prefixes": lengths}


def prefixes(layout: Layout, max_length: int) -> list[int]:
    """32, 64, … up to the longest prefix that at least 30 texts reach; empty if that is fewer than two."""
    found = [n for n in up_to(max_length) if int((layout.tokens >= n).sum()) >= TEXTS_FOR_AN_INTERVAL]
    return found if len(found) >= 2 else []


def up_to(max_length: int) -> list[int]:
    """32, 64, … up to the window."""
    return [SHORTEST_PREFIX << k for k in range(max(0, (max_length // SHORTEST_PREFIX).bit_length()))]


def write_prefixes(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Embed each text at every prefix and write one chunk's embeddings, one part for each temperature."""
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
        worker.storage.write_table(worker.part(PREFIXES, temperature, number), pa.concat_tables(tables))
    return {"number": number, "texts": work.num_rows}


def _tabulate(run: Run, model: Model, temperature: Temperature, layout: Layout, population: float) -> None:
    """Write the mean cosine over all pairs at each prefix, and each text's mean."""
    table = pa.concat_tables([run.storage.read_table(n) for n in run.storage.list(run.place(PREFIXES, model, temperature))])
    prefix = table.column("prefix_tokens").to_numpy()
    embeddings = parts.matrix(table, "embedding")
    ids = np.array(table.column("text_id").to_pylist(), dtype=object)
    documents = layout.documents_of(layout.places(ids))
    rows, means = [], []
    for length in np.unique(prefix):
        here = prefix == length
        one = np.zeros(int(here.sum()), dtype=np.int64)
        sums = CosineSums.of(embeddings[here], one, 1)
        own = text_means(embeddings[here], one, sums)[:, 0]
        error = within_error(own.var(ddof=1), len(own)) if len(own) >= VALUES_FOR_AN_ERROR else None
        rows.append(
            run.key(model, temperature)
            | {"prefix_tokens": int(length), "texts": len(own), "cosine_mean": float(own.mean())}
            | {"cosine_se": None if error is None else error * finite_population(len(own), population)}
            | {"cosine_se_superpopulation": _elsewhere(own, documents.filter(here), error)}
        )
        means.append({"text_id": ids[here], "group": np.full(len(own), length), "inside": own, "overall": own})
    place = run.place("partials/probe", model, temperature)
    correction = finite_population(rows[-1]["texts"], population)
    run.storage.write_json(f"{place}/done.json", {"correction": correction})
    columns: dict[str, Any] = {name: np.concatenate([part[name] for part in means]) for name in means[0]}
    columns["document"] = pa.concat_arrays([documents.filter(prefix == length) for length in np.unique(prefix)])
    run.storage.write_table(means_by_text(place), parts.TEXT_MEANS.build(columns))
    run.storage.write_table(f"{place}/prefix_probe.parquet", PREFIX_PROBE.build_rows(rows))


def _elsewhere(means: np.ndarray, documents: pa.Array, error: float | None) -> float | None:
    """The error over corpora of other documents: `error` where texts come without documents, None for too few."""
    if documents.null_count:
        return error
    return finite(documents_error([means], [2.0], [documents.to_numpy()]))
