"""The run, top to bottom."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import metadata
from typing import Any

from threadpoolctl import threadpool_limits

from jobs import (
    analysis,
    budget,
    corpus,
    engine,
    lock,
    nights,
    notify,
    pairwise,
    precision,
    report,
    runs,
    shared,
    sources,
    summary,
    vectors,
)
from jobs.config import AuditConfig
from jobs.errors import UsageError
from jobs.layout import Layout
from jobs.progress import Journal
from jobs.runs import Run
from jobs.storage import Storage
from jobs.urls import shown


def audit(config: AuditConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Run a whole audit, or what is missing of it, and leave tables, report and run.json.

    Raises:
        UsageError: the configuration, corpus, models or run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call goes on.
    """
    with lock.held(Storage(config.out), lambda: journal.stage("look whether another run lives")):
        return _audit(config, journal, fresh)


def _audit(config: AuditConfig, journal: Journal, fresh: bool) -> Run:
    if config.execution.cache is not None:
        Storage(config.execution.cache).check_reachable()
    nights.check(config)
    if fresh:
        _check_inputs(config)  # A mistake must not cost the run that is to be replaced.
    run = runs.begin(config, fresh=fresh)
    journal.follow(run)
    if run.complete:
        with journal.stage("read the corpus") as stage:
            done = run.storage.read_json(runs.DONE)
            corpus.check_unchanged(config, done["corpus"])
            if config.queries is not None:
                corpus.check_unchanged(config.model_copy(update={"corpus": config.queries}), done["queries"])
            stage.note = "the run is complete: nothing to do"
        _close(run, done | {"config": runs.described(run)}, journal)
        return run
    with journal.stage("read the corpus") as stage:
        queries, asked = _queries(run)  # First: a mistake in them then leaves nothing that would have to be gone on with.
        index = _read(run, stage.advance)
        if queries is not None and run.config.corpus.embedding_column is not None:
            vectors.check_queries(run, queries)
        stage.note = f"{index['analysed']:,} of {index['usable']:,} texts, {index['rejected']:,} rows rejected"
    # Numbers merged in this process must not depend on how many cores it finds.
    with engine.session(config.execution) as cluster, threadpool_limits(1):
        journal.count("rejected", index["rejected"])
        shared.check_run(run, _folders(run))
        layouts, rejected = {}, 0
        for model in run.models:
            layouts[model.label], lost = analysis.analyse(run, cluster, model, index, queries, asked, journal)
            rejected += lost
        with journal.stage("tables") as stage:
            stage.note = f"{len(summary.summarise(run, layouts, index))} tables"
    record = _record(run, index, layouts, rejected, journal)
    if config.queries is not None:
        record["queries"] = {key: value for key, value in asked.items() if key != "shards"}
    _close(run, record, journal)
    return run


def _close(run: Run, record: dict[str, Any], journal: Journal) -> None:
    """Judge the night, write its report, enter it into the record of nights; run.json comes last.

    A complete run is judged again, for what it is held to may be another, and written again only where that changed.
    """
    figures = summary.load_tables(run.storage)["collapse_summary"].to_dicts()
    before = record.get("gate")
    with journal.stage("gate") as stage:
        if before is None:
            record["changed_texts"] = nights.changed_texts(run, record)
        record["gate"] = nights.judge(run, record, figures)
        nights.enter(run, record, figures)
        stage.note = nights.told(record["gate"]) + nights.changes_told(record["changed_texts"])
    if record["gate"] != before:
        _tell(run, record, journal)
    if run.config.record.keep_embeddings is not None:
        with journal.stage("prune") as stage:
            stage.note = nights.pruned(run, run.config.record.keep_embeddings)


def _tell(run: Run, record: dict[str, Any], journal: Journal) -> None:
    """Write the verdict into the report, post it, and complete the run."""
    with journal.stage("report") as stage:
        record["trend"] = nights.trend(run, record)
        report.render(summary.load_tables(run.storage), record).leave(run.storage)
        stage.note = "report.html"
    if record["gate"]["verdict"] != "none":
        with journal.stage("tell") as stage:  # Before run.json: a run that dies here tells it twice, and never not at all.
            stage.note = notify.post_verdict(run.config.gate, record, run.storage.root)
    runs.complete(run, record)


def _folders(run: Run) -> list[tuple[str, Storage]]:
    """What all machines of a run write to."""
    cached = run.config.execution.cache
    return [("--out", run.storage), *([("--cache", Storage(cached))] if cached is not None else [])]


def _check_inputs(config: AuditConfig) -> None:
    """Raise unless the corpus gives a first row and the Ray cluster answers.

    Raises:
        UsageError: one of them does not.
    """
    sources.state(config.corpus, config.out)
    rows = sources.rows if config.corpus.embedding_column is None else vectors.rows
    if next(iter(rows(config.corpus, config.out)), None) is None:
        raise UsageError(f"corpus '{shown(config.corpus.source)}' has no row")
    engine.check_reachable(config.execution)


def _queries(run: Run) -> tuple[Run | None, dict[str, Any]]:
    """The texts that search the corpus, as a run of their own below queries/, read into shards."""
    if run.config.queries is None:
        return None, {}
    config = run.config.model_copy(update={"corpus": run.config.queries})
    own = dataclasses.replace(run, config=config, storage=Storage(f"{run.storage.root}/queries"))
    return own, _read(own)


def _read(run: Run, on_rows: Callable[[int], None] = lambda rows: None) -> dict[str, Any]:
    """The index of the corpus: its texts as shards to embed, or its embeddings as they are."""
    if run.config.corpus.embedding_column is not None:
        return vectors.take(run, on_rows)
    return corpus.shard(run.storage, run.config, on_rows)


def _record(run: Run, index: dict[str, Any], layouts: dict[str, Layout], rejected: int, journal: Journal) -> dict[str, Any]:
    """What run.json says of the run."""
    record = runs.facts(run)
    for label, facts in record["models"].items():
        facts["texts"] = len(layouts[label])
    for model in run.models:
        moved = {t.canonical: pairwise.rounding(run, model, t) for t in run.temperatures}
        if any(moved.values()):
            record["models"][model.label]["cosine_rounding"] = moved
        if run.storage.exists(budget.name(model)):
            record["models"][model.label] |= run.storage.read_json(budget.name(model))
        if run.storage.exists(precision.name(model)):
            record["models"][model.label]["precision"] = run.storage.read_json(precision.name(model))
    record["versions"]["altair"] = metadata.version("altair")
    corpus_facts = {key: value for key, value in index.items() if key != "shards"}
    return record | {
        "seed": run.config.seed,
        "corpus": corpus_facts | {"rejected_by_models": rejected},
        "steps": dict(journal.steps),
        "peak_memory_bytes": journal.peak_memory_bytes,
    }
