"""`tempscale audit`, top to bottom: from a corpus to tables, a report and the verdict of the night."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np

from tempscale.stats.errors import equal_documents
from tempscale_jobs import lifecycle
from tempscale_jobs.audit import report, summary
from tempscale_jobs.audit.model import Audit, Queries, analyse
from tempscale_jobs.collapse import cosine, source_order
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import shards, sources, vectors
from tempscale_jobs.corpus.shards import Index
from tempscale_jobs.embedding import budget, precision
from tempscale_jobs.embedding.layout import Layout
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights import night
from tempscale_jobs.nights.night import Night
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import GIVEN, Run
from tempscale_jobs.runs.journal import Journal, Stage
from tempscale_jobs.runs.storage import Storage


def audit(config: AuditConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Run an audit, or the missing part of one, and write tables, report and run.json.

    Raises:
        UsageError: the configuration, corpus, models or run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call resumes it.
    """
    cache = {} if config.execution.cache is None else {"cache": Storage(config.execution.cache)}
    checks: dict[str, Any] = {"check": lambda: _check(config, cache), "check_inputs": lambda: _check_inputs(config)}
    with lifecycle.running(config, journal, fresh=fresh, **checks) as life:
        run = life.run
        if (done := life.done("read the corpus", lambda done: _check_unchanged(config, done))) is not None:
            record = done | {"config": folder.described(config)}
        else:
            night.check_windows(Night.of(run, config), config.embedding.max_length)
            with life.cluster_ahead():
                with journal.stage("read the corpus") as stage:
                    queries = _read_queries(config, run)  # First, so that a mistake in them leaves no run to resume.
                    index = _read_corpus(config, run, queries, stage)
                with life.cluster(**cache) as cluster:
                    journal.count("rejected", index.rejected)
                    audit = Audit(life.settled(config, cluster), run, cluster, index, queries, journal)
                    layouts, rejected = dict[str, Layout](), 0
                    for model in run.models:
                        layouts[model.label], lost = analyse(audit, model)
                        rejected += lost
                    with journal.stage("tables") as stage:
                        tables = summary.summarise(run, config.corpus, config.analysis, config.keep_text, layouts, index)
                        stage.note = f"{len(tables)} tables"
            record = life.record(**_facts(audit, layouts, rejected))
        figures = folder.load_tables(run.storage)["collapse_summary"].to_dicts()
        if night.close(Night.of(run, config), record, figures, journal, lambda record: _write_report(run, record)):
            life.keep(record)
    return run


def _check(config: AuditConfig, cache: dict[str, Storage]) -> None:
    """Raise if the cache, the record of nights or the baseline is unavailable."""
    for storage in cache.values():
        storage.check_reachable()
    night.check_record(config.record, config.gate, config.out)


def _check_inputs(config: AuditConfig) -> None:
    """Raise if the corpus has no row."""
    rows = sources.rows if config.corpus.embedding_column is None else vectors.rows
    sources.check_rows(config.corpus, config.out, rows(config.corpus, config.out))


def _check_unchanged(config: AuditConfig, done: dict[str, Any]) -> None:
    """Raise if the corpus or the queries changed since a finished run read them."""
    sources.check_unchanged(config.corpus, config.out, done["corpus"]["source_state"])
    if config.queries is not None:
        sources.check_unchanged(config.queries, config.out, done["queries"]["source_state"])


def _read(config: AuditConfig, run: Run, source: Corpus, stage: Stage | None = None) -> Index:
    """Read a source into shards of texts to embed, or take its embeddings as they are; returns its index."""
    how: dict[str, Any] = {} if stage is None else {"on_rows": stage.advance}
    if source.embedding_column is not None:
        return vectors.take(run, source, config.seed, config.out, **how)
    return shards.shard(run.storage, source, config.embedding, config.seed, config.out, **how)


def _read_queries(config: AuditConfig, run: Run) -> Queries | None:
    """Read the query texts as the corpus of a separate run below queries/."""
    if config.queries is None:
        return None
    own = run.below("queries")
    return Queries(own, config.queries, _read(config, own, config.queries))


def _read_corpus(config: AuditConfig, run: Run, queries: Queries | None, stage: Stage) -> Index:
    """Read the corpus and check that its embeddings have as many dimensions as those of the queries."""
    index = _read(config, run, config.corpus, stage)
    if queries is not None and config.corpus.embedding_column is not None:
        searching, searched = (folder.dimensions(one, GIVEN, one.temperatures[0]) for one in (queries.run, run))
        if searching != searched:
            raise UsageError(f"the queries have {searching} dimensions, and the corpus {searched}")
    stage.note = f"{index.analysed:,} of {index.usable:,} texts, {index.rejected:,} rows rejected"
    return index


def _facts(audit: Audit, layouts: dict[str, Layout], rejected: int) -> dict[str, Any]:
    """The entries of run.json that only an audit has."""
    run, config = audit.run, audit.config
    facts: dict[str, Any] = {"seed": config.seed, "corpus": audit.index.facts() | {"rejected_by_models": rejected}}
    if audit.queries is not None:
        facts["queries"] = audit.queries.index.facts()
    facts["models"] = {}
    for model in run.models:
        texts = layouts[model.label]
        own: dict[str, Any] = {"texts": len(texts)}
        if texts.documents is not None:
            own["documents"] = len(np.unique(texts.documents))
            own["documents_equal"] = equal_documents(texts.documents)
        elif run.storage.exists(source_order.result_name(model)):
            own["source_order"] = run.storage.read_json(source_order.result_name(model))
        moved = {t.canonical: cosine.rounding(run, model, t) for t in run.temperatures}
        if any(moved.values()):
            own["cosine_rounding"] = moved
        if run.storage.exists(budget.result_name(model)):
            own |= run.storage.read_json(budget.result_name(model))
        if run.storage.exists(precision.result_name(model)):
            own["precision"] = run.storage.read_json(precision.result_name(model))
        done = f"{run.place('partials/socm', model, run.temperatures[0])}/done.json"
        if run.storage.exists(done):
            own["socm"] = run.storage.read_json(done)["way"]
        facts["models"][model.label] = own
    facts["versions"] = {"altair": metadata.version("altair")}
    return facts


def _write_report(run: Run, record: dict[str, Any]) -> None:
    report.render(folder.load_tables(run.storage), record).write_to(run.storage)
