"""Shards of texts -> parts of texts/: CPU tasks of Ray Data read and tokenise, a crew of model actors embeds.

A piece of work is one shard under all temperatures of a model. A text is kept only if its embedding is finite under every
temperature, so that temperatures are compared on the same texts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale_jobs.corpus.rows import check_rejected
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import TOKENISING, Model, gives_nothing, place, rejected_reasons
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.runs.pace import Pace
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import expected, lookup
from tempscale_jobs.steps.cache import Cache, add_texts
from tempscale_jobs.steps.scope import Scope
from tempscale_jobs.steps.tokenise import OF_THE_SHARD, may_be_fast, tokenise, tokens_of
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import texts
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Piece, missing, sums
from tempscale_jobs.workers.marks import DEADLY, MARKS, Marks, forget

if TYPE_CHECKING:
    from tempscale.model.gathering import Encoded
    from tempscale.model.sequences import Tokens

NO_MEAN = "its token embeddings cancel: their mean is no larger than rounding errors and has no direction"
NO_DIRECTION = "its embedding is zero and has no direction"
_ROUNDED = 1e-3
"""The largest distance of a unit embedding's norm from 1."""


def embed(scope: Scope, step: str, role: str = actor.ROLE, *, fast: bool = False) -> int:
    """Embed the texts of the source that are not in the cache; return how many the model rejected."""
    journal, cluster, model, texts = scope.journal, scope.cluster, scope.model, scope.index.analysed
    root = scope.config.execution.cache
    store = None if root is None else Cache(root, scope.encoding, scope.source.max_characters, role)
    plan = lookup.look_up(scope, None) if store is None else _look_up(scope, store)
    journal.count("cache_hits", plan.found)
    workers = cluster.workers if scope.config.execution.address else min(cluster.workers, os.cpu_count() or 1)
    soon = None if cluster.gpus else expected.seconds(model, plan.shards, len(scope.run.temperatures), workers)
    work = sum(expected.about_tokens(shard, model.max_length) or shard.texts for shard in plan.shards)
    with journal.stage(step, texts, "texts", Pace(work or 1.0, soon)) as stage:
        rejected = embed_shards(scope, plan, role, stage, fast=fast and store is None)
        journal.count("rejected", rejected)
        lost = f", {rejected:,} rejected" if rejected else ""
        stage.note = f"{count(texts - rejected, 'text')} under τ {scope.run.taus}{lost}"
        _check_rejected(scope, rejected)
        if store is not None and (problem := add_texts(scope, store, len(plan.shards))) is not None:
            stage.note = f"{stage.note}; {problem}"
    return rejected


def _look_up(scope: Scope, cache: Cache) -> lookup.LookedUp:
    with scope.journal.stage(scope.named("cache")) as stage:
        plan = lookup.look_up(scope, cache)
        stage.note = plan.in_words(scope.index.analysed)
    return plan


def _check_rejected(scope: Scope, rejected: int) -> None:
    """Raise a UsageError if the model rejected every text, or with the unusable rows more than the setting allows."""
    run, index = scope.run, scope.index
    if rejected == index.analysed:
        raise gives_nothing(run, scope.model, "embedding for any text")
    if rejected:
        reasons = Counter(index.rejected_reasons) + rejected_reasons(run, scope.model)
        lost = index.rejected + round(rejected * index.usable / index.analysed)  # Extrapolated from a sample.
        check_rejected(scope.source, (lost, index.read), reasons, run.storage.root)


def embed_shards(scope: Scope, plan: lookup.LookedUp, role: str, stage: Stage, *, fast: bool) -> int:
    """Embed every shard without parts, under every temperature; return how many texts the model rejected.

    `fast` is whether tokie may be asked. Where a cache or another folder has what was made of its ids, it may not.
    """
    run, model, shards = scope.run, scope.model, plan.shards
    forget(run.storage, run.place(MARKS, model))
    every = [
        Piece(
            number, (shard.name,), f"shard {number}", tuple(run.part("texts", model, t, number) for t in run.temperatures),
            shard.texts, expected.about_tokens(shard, model.max_length) or shard.texts,
        )
        for number, shard in enumerate(shards)
    ]  # fmt: skip
    fast = may_be_fast(run, model, every) and fast
    left = missing(run.storage, every)
    (texts, work), (texts_left, work_left) = sums(every), sums(left)
    stage.advance(plan.found + texts - texts_left, work - work_left)
    _embed(scope, left, role, stage, fast)
    if fast and not may_be_fast(run, model, every):  # Tokie gave other ids somewhere: all parts are gone.
        stage.resize(plan.found + 2 * texts, 2 * work)
        _embed(scope, every, role, stage, fast=False)
    return sum(map(run.storage.rows, run.storage.list(run.place("rejected", model))))


def _embed(scope: Scope, pieces: Sequence[Piece], role: str, stage: Stage, fast: bool) -> None:
    """Embed shards; `fast` is whether tokie may be asked for their ids."""
    run, model = scope.run, scope.model
    how = actor.Tokenising(model.name, model.max_length, scope.encoding.long, model.prompt(role), model.settings, fast)
    shared = {"storage": run.storage, "how": how, "notes": run.place(TOKENISING, model)}
    process = partial(embed_shard, into=Into(run.storage, role, len(run.temperatures)))
    for piece in scope.crew.stream(process, pieces, tokenise, shared):
        stage.advance(piece.size, piece.cost)


class Into(NamedTuple):
    """Where the parts of shards go."""

    storage: Storage
    role: str = actor.ROLE
    temperatures: int | None = None
    """How many of the worker's temperatures are wanted, the first ones; None for all."""


def embed_shard(worker: actor.ModelActor, number: int, work: pa.Table, into: Into) -> None:
    """Embed one shard, and write its parts, one for each temperature, and its rejected texts into a run folder."""
    run_worker = worker.below(into.storage, into.temperatures)
    run_worker.note_processor()
    worker.note_budget()
    tokens = tokens_of(work)
    marks = Marks(into.storage, f"{place(MARKS, run_worker.model)}/shard-{number:08d}.json")
    with worker.turn:  # Another shard is read or written meanwhile.
        batches = marks.begin(run_worker.encoder.batches(tokens))
        before = marks.before if marks.fine else None
        encoded, padded = [], run_worker.encoder.padded(tokens)  # Uploaded once, for all temperatures.
        halved_before = run_worker.encoder.halved
        for temperature in run_worker.temperatures:
            run_worker.encoder.set_temperature(temperature)
            encoded.append(run_worker.encode(tokens, role=into.role, batches=batches, before=before, padded=padded))
            marks.after()
        halved = run_worker.encoder.halved - halved_before
    if worker.overlaps:
        marks.written()
    run_worker.note_halved(f"shard {number}", halved, marks.halved)
    _write(run_worker, _EmbeddedShard(number, work, tokens, encoded, marks))


class _EmbeddedShard(NamedTuple):
    """A shard that has been embedded."""

    number: int
    work: pa.Table
    tokens: Tokens
    encoded: list[Encoded]
    """One for each temperature."""
    marks: Marks


def _write(worker: actor.ModelActor, shard: _EmbeddedShard) -> None:
    """Write the parts of a shard and its rejected texts."""
    number, work, tokens, encoded, marks = shard
    reasons = {text: DEADLY for i in marks.deadly for text in tokens.texts_of(i)}
    for out in encoded:
        reasons = out.failed | reasons
    reasons = without_direction(encoded) | reasons
    for out in encoded:
        reasons = dict.fromkeys(not_unit(out.embeddings.numpy()), NO_DIRECTION) | reasons
    finite = np.array([k not in reasons for k in range(work.num_rows)], dtype=bool)
    for out in encoded:
        for column in (out.embeddings, *(out.moments or ())):
            finite &= np.isfinite(column.numpy().reshape(work.num_rows, -1)).all(1)
    worker.reject(number, _lost(worker.model, number, work, finite, reasons))
    for temperature, out in zip(worker.temperatures, encoded, strict=True):
        worker.storage.write_table(worker.part("texts", temperature, number), _table(work, out, finite))
    marks.done()


def without_direction(encoded: list[Encoded]) -> dict[int, str]:
    """The texts of a shard whose tokens cancel under one of the temperatures, with the reason for their rejection."""
    reasons = dict[int, str]()
    for out in encoded:
        if out.moments is not None:
            lost = np.isnan(out.moments.spread.numpy()) & np.isfinite(out.moments.mean_norm.numpy())
            reasons |= dict.fromkeys(np.flatnonzero(lost).tolist(), NO_MEAN)
    return reasons


def not_unit(embeddings: np.ndarray) -> list[int]:
    """The finite rows that are no unit vectors."""
    norms = np.linalg.norm(embeddings, axis=1)
    rows: list[int] = np.flatnonzero(np.isfinite(norms) & (np.abs(norms - 1) > _ROUNDED)).tolist()
    return rows


def _lost(
    model: Model, number: int, work: pa.Table, finite: np.ndarray, reasons: dict[int, str]
) -> list[dict[str, Any]]:  # fmt: skip
    return [
        {"text_id": text_id, "place": f"shard {number}"}
        | {"reason": f"{model.label}: {reasons.get(k, 'it gives no finite embedding')}"}
        for k, (text_id, usable) in enumerate(zip(work.column("text_id").to_pylist(), finite, strict=True))
        if not usable
    ]


def _table(work: pa.Table, out: Any, finite: np.ndarray) -> pa.Table:
    rows = np.flatnonzero(finite)
    embeddings = out.embeddings.numpy()[rows]
    of_shard = [name for name in (*OF_THE_SHARD, "truncated") if name in work.column_names]
    columns = {name: work.column(name).take(rows) for name in of_shard}
    columns |= {name: column.numpy()[rows].astype(np.float32) for name, column in out.moments._asdict().items()}
    columns |= {"tokens": out.tokens.numpy()[rows].astype(np.int32), "embedding": parts.fixed_lists(embeddings)}
    return texts(embeddings.shape[1], "groups" in columns).build(columns)
