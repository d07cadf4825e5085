"""The prefix probe: embed the same long texts cut to 32, 64, … tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.collapse.length import CosineSums, text_means
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL, VALUES_FOR_AN_ERROR
from tempscale.stats.errors import documents_error, finite_population, within_error
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import means_by_text
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.steps import decomposition, pieces, positions
from tempscale_jobs.steps.layout import Layout
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import PREFIX_PROBE
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import missing

SHORTEST_PREFIX = 32
CHUNK = 8
_FIRST_TEXTS, _MOST_TEXTS, _ROUNDS = 64, 1000, 3
"""The first and the largest number of texts for a configured error; three rounds, because the first errors are rough."""
PREFIXES = "partials/prefixes"
"""The folder of the prefixes' embeddings, 8 texts in a part."""


def probe(scope: Embedded) -> None:
    """Embed the prefixes of some texts under every temperature and write the table of the probe."""
    if scope.analysis.probe_sample == 0:
        return
    with scope.journal.stage(scope.named("prefix probe")) as stage:
        lengths = prefixes(scope.texts, scope.model.max_length)
        eligible = np.flatnonzero(scope.texts.tokens >= lengths[-1]) if lengths else np.zeros(0, np.int64)
        if len(eligible) < 2 or not lengths:
            stage.note = "skipped: too few texts are long enough"
            return
        size = _embed(scope, eligible, lengths, stage)
        population = scope.texts.population(len(eligible))
        for temperature in scope.run.temperatures:
            _tabulate(scope, temperature, _means(scope, temperature, size), population)
        stage.note = f"{size:,} long texts at {', '.join(map(str, lengths))} tokens"
        sample = scope.texts.ids[scope.texts.sample(size, eligible)].tolist()
        if scope.analysis.probe != "prefix":
            stage.note += _decompose(scope, sample, lengths, stage)
        if scope.analysis.probe == "position":
            stage.note += _by_position(scope, sample, lengths, stage)


def _embed(scope: Embedded, eligible: np.ndarray, lengths: list[int], stage: Stage) -> int:
    """Embed the prefixes of the configured number of texts, or of as many as the error needs; return the number."""
    layout, analysis = scope.texts, scope.analysis
    size = min(_FIRST_TEXTS if analysis.probe_sample is None else analysis.probe_sample, len(eligible))
    for left in range(_ROUNDS)[::-1]:
        _write(scope, layout.ids[layout.sample(size, eligible)].tolist(), lengths, stage)
        if analysis.probe_sample is not None or not left:
            break
        errors = [gap_error(_means(scope, t, size)) for t in scope.run.temperatures]
        more = size * max(1.0, max(errors) / analysis.probe_se) ** 2
        more = min(CHUNK * math.ceil(more / CHUNK), _MOST_TEXTS, len(eligible))
        if more <= size:
            break
        size = more
    return size


def _decompose(scope: Embedded, sample: list[str], lengths: list[int], stage: Stage) -> str:
    """Write the table of the decomposition of the gap; return a note."""
    ids = sample[: decomposition.texts(lengths, len(sample))]
    if not ids:
        return "; too few of them for a decomposition of their gap"
    ordered = decomposition.embed(scope, ids, lengths, stage)
    first = scope.run.temperatures[0]
    table = decomposition.tabulate(scope, ordered, _prefixes(scope, first, len(ids)), lengths)
    place = scope.run.place("partials/probe", scope.model, first)
    scope.run.storage.write_table(f"{place}/decomposition.parquet", table)
    return f"; the gap of {len(ids):,} decomposed"


def _by_position(scope: Embedded, sample: list[str], lengths: list[int], stage: Stage) -> str:
    """Write the table of tenths; return a note."""
    ids = sample[: positions.texts(len(sample))]
    if not ids:
        return "; too few of them for their tenths"
    ordered = positions.embed(scope, ids, lengths, stage)
    for temperature in scope.run.temperatures:
        place = scope.run.place("partials/probe", scope.model, temperature)
        scope.run.storage.write_table(f"{place}/positions.parquet", positions.tabulate(scope, temperature, ordered))
    return f"; the tenths of {len(ids):,} replaced"


def _write(scope: Embedded, sample: list[str], lengths: list[int], stage: Stage) -> None:
    """Embed the missing pieces of the sample; a larger sample begins with the same pieces."""
    left = missing(scope.run.storage, pieces.of_sample(scope.run, scope.model, sample, CHUNK, [PREFIXES]))
    index = scope.texts.within(scope.index, pieces.ids_of(left))
    for piece, _ in scope.crew.run(write_prefixes, pieces.with_texts(scope.run.storage, index, left, lengths)):
        stage.advance(piece.size)


def prefixes(layout: Layout, max_length: int) -> list[int]:
    """32, 64, … up to the longest prefix that at least 30 texts reach; empty if that is fewer than two."""
    lengths = [n for n in up_to(max_length) if int((layout.tokens >= n).sum()) >= TEXTS_FOR_AN_INTERVAL]
    return lengths if len(lengths) >= 2 else []


def up_to(max_length: int) -> list[int]:
    """32, 64, … up to the window."""
    return [SHORTEST_PREFIX << k for k in range(max(0, (max_length // SHORTEST_PREFIX).bit_length()))]


def price(lengths: Sequence[int], probed: int, what: str, temperatures: int) -> int:
    """Tokens of so many texts of the probe at these prefixes, over all temperatures."""
    if len(lengths) < 2 or probed < 2:
        return 0
    once = 0 if what == "prefix" else decomposition.price(lengths, probed)
    return temperatures * (probed * sum(lengths) + (positions.price(lengths, probed) if what == "position" else 0)) + once


def write_prefixes(worker: actor.ModelActor, number: int, work: pa.Table, lengths: list[int]) -> None:
    """Embed each text at every prefix and write one chunk's embeddings, one part for each temperature."""
    from tempscale.model.sequences import Tokens

    texts = work.column("text").to_pylist()
    # All prefixes of all texts are batched together: short ones of many texts run at once.
    batches = [worker.encoder.tokenizer(texts, length) for length in lengths]
    tokens = Tokens([ids for batch in batches for ids in batch.ids], [cut for batch in batches for cut in batch.truncated])
    ids = pa.concat_arrays([work.column("text_id").combine_chunks()] * len(lengths))
    prefix = pa.array(np.repeat(lengths, len(texts)), pa.int32())
    padded = worker.encoder.padded(tokens)
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"probe {number} under τ {temperature.slug}"):
            out = worker.encoder.encode_tokens(tokens, moments=False, role=actor.ROLE, padded=padded)
        columns = {"text_id": ids, "prefix_tokens": prefix, "embedding": parts.fixed_lists(out.embeddings.numpy())}
        worker.storage.write_table(worker.part(PREFIXES, temperature, number), pa.table(columns))


class _Means(NamedTuple):
    """Each probed text's mean cosine with the others at each prefix; one row a text and prefix, prefixes ascending."""

    ids: np.ndarray
    prefix: np.ndarray
    inside: np.ndarray
    documents: pa.Array


def _means(scope: Embedded, temperature: Temperature, texts: int) -> _Means:
    """The means of the first `texts` texts of the probe."""
    layout, table = scope.texts, _prefixes(scope, temperature, texts)
    prefix, embeddings = table.column("prefix_tokens").to_numpy(), parts.matrix(table, "embedding")
    order, inside = np.argsort(prefix, kind="stable"), []
    for length in np.unique(prefix):
        vectors = embeddings[prefix == length]
        interval = np.zeros(len(vectors), dtype=np.int64)
        inside.append(text_means(vectors, interval, CosineSums.of(vectors, interval, 1))[:, 0])
    ids = np.array(table.column("text_id").to_pylist(), dtype=object)[order]
    return _Means(ids, prefix[order], np.concatenate(inside), layout.documents_of(layout.places(ids.tolist())))


def _prefixes(scope: Embedded, temperature: Temperature, texts: int) -> pa.Table:
    """The embeddings of the prefixes of the first `texts` texts of the probe, and of the others of their pieces."""
    names = [scope.run.part(PREFIXES, scope.model, temperature, number) for number in range(math.ceil(texts / CHUNK))]
    return pa.concat_tables([scope.run.storage.read_table(name) for name in names])


def gap_error(means: _Means) -> float:
    """The error of the prefix gap; that of independent texts if there are too few documents."""
    ends = [means.prefix == end for end in (means.prefix.max(), means.prefix.min())]
    gap = means.inside[ends[0]] - means.inside[ends[1]]
    plain = within_error(gap.var(ddof=1), len(gap))
    return _elsewhere(gap, means.documents.filter(pa.array(ends[0])), plain) or plain


def _tabulate(scope: Embedded, temperature: Temperature, means: _Means, population: float) -> None:
    """Write the mean cosine over all pairs at each prefix, and each text's mean."""
    run, model, rows = scope.run, scope.model, []
    for length in np.unique(means.prefix):
        here = means.prefix == length
        values = means.inside[here]
        error = within_error(values.var(ddof=1), len(values)) if len(values) >= VALUES_FOR_AN_ERROR else None
        rows.append(
            run.key(model, temperature)
            | {"prefix_tokens": int(length), "texts": len(values), "cosine_mean": float(values.mean())}
            | {"cosine_se": None if error is None else error * finite_population(len(values), population)}
            | {"cosine_se_superpopulation": _elsewhere(values, means.documents.filter(pa.array(here)), error)}
        )
    place = run.place("partials/probe", model, temperature)
    correction = finite_population(rows[-1]["texts"], population)
    run.storage.write_json(f"{place}/done.json", {"correction": correction})
    columns = {"text_id": means.ids, "group": means.prefix, "inside": means.inside, "overall": means.inside}
    run.storage.write_table(means_by_text(place), parts.TEXT_MEANS.build(columns | {"document": means.documents}))
    run.storage.write_table(f"{place}/prefix_probe.parquet", PREFIX_PROBE.build_rows(rows))


def _elsewhere(means: np.ndarray, documents: pa.Array, error: float | None) -> float | None:
    """The error over corpora of other documents: `error` if texts come without documents, None for too few."""
    if documents.null_count:
        return error
    return finite(documents_error([means], [2.0], [documents.to_numpy()]))
