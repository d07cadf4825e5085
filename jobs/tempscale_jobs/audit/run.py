"""`tempscale audit`, top to bottom: from a corpus to tables, a report and the verdict of the night."""

from __future__ import annotations

from collections import Counter
from importlib import metadata
from typing import Any

import numpy as np

from tempscale.stats.errors import equal_documents
from tempscale_jobs import lifecycle
from tempscale_jobs.audit import summary
from tempscale_jobs.audit.model import Audit, Queries, analyse
from tempscale_jobs.collapse import cosine, source_order
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import peek, sources
from tempscale_jobs.corpus.reading import Contents
from tempscale_jobs.corpus.rows import check_rejected
from tempscale_jobs.corpus.shards import Texts
from tempscale_jobs.corpus.stream import Stream
from tempscale_jobs.corpus.vectors import Vectors
from tempscale_jobs.embedding import lookup, precision
from tempscale_jobs.embedding.layout import Layout
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights import night
from tempscale_jobs.nights.night import Night
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import GIVEN, Run
from tempscale_jobs.runs.journal import Journal, Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.cluster import Cluster, holds_gpus


@lifecycle.mended
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
        unchanged, report = lambda done: _check_unchanged(config, done), lambda done: _write_report(run, done)
        if (done := life.done("read the corpus", unchanged, report)) is not None:
            record = done | {"config": folder.described(config), "command_line": folder.typed(config)}
        else:
            night.check_windows(Night.of(run, config), config.embedding.max_length)
            config = sized(config, run)
            with life.cluster_ahead():
                with journal.stage("read the corpus") as stage:
                    asking = _open_queries(config, run)  # First, so that a mistake in them leaves no run to resume.
                    corpus = open_corpus(config, run, config.corpus, stage)
                    stage.note = corpus.described()
                with life.cluster(**cache) as cluster:
                    config = life.settled(config, cluster)
                    queries = None if asking is None else _read_queries(config, cluster, asking, journal)
                    corpus.read_all(cluster, journal, "all of the corpus")
                    _check_dimensions(config, run, queries)
                    audit = Audit(config, run, cluster, corpus.index, queries, journal)
                    layouts, rejected = dict[str, Layout](), 0
                    for model in run.models:
                        layouts[model.label], lost = analyse(audit, model)
                        rejected += lost
                    with journal.stage("tables") as stage:
                        tables = summary.summarise(
                            run, config.corpus, config.analysis, config.keep_text, layouts, audit.index
                        )
                        stage.note = f"{len(tables)} tables"
            record = life.record(**_facts(audit, layouts, rejected))
        figures = folder.load_table(run.storage, "collapse_summary").to_dicts()
        if night.close(
            Night.of(run, config, life.is_mended), record, figures, journal, lambda record: _write_report(run, record)
        ):
            life.keep(record | {"config": folder.described(config)})
    return run


def sized(config: AuditConfig, run: Run) -> AuditConfig:
    """The configuration with the sizes of shards for GPUs if the run began where workers hold them; it keeps its own."""
    storage, found = run.storage, dict[str, int]()
    if storage.exists(folder.SIZES):
        found = storage.read_json(folder.SIZES)
    elif not any(map(storage.exists, (folder.SHARDED, folder.PLANNED))) and config.corpus.embedding_column is None:
        found = config.embedding.of_gpus()
        if not found or not holds_gpus(config.execution):
            return config
        storage.write_json(folder.SIZES, found)
    return config.model_copy(update={"embedding": config.embedding.model_copy(update=found)}) if found else config


def _check(config: AuditConfig, cache: dict[str, Storage]) -> None:
    """Raise if the cache, the record of nights or the baseline is unavailable."""
    for storage in cache.values():
        storage.check_reachable()
    night.check_record(config.record, config.gate, config.out)


def _check_inputs(config: AuditConfig) -> None:
    """Raise if the first rows of the corpus or of the queries cannot be used, or their embeddings do not fit together."""
    given = [source for source in (config.queries, config.corpus) if source is not None]
    found = [peek.first_items(_contents(config, source, "texts"), config.out) for source in given]
    if config.corpus.embedding_column is not None and len(found) == 2:
        widths = [Counter(len(item.embedding) for item in items).most_common(1) for items in found]
        if all(widths):
            _check_same_width(*(width for ((width, _),) in widths))


def _check_unchanged(config: AuditConfig, done: dict[str, Any]) -> None:
    """Raise if the corpus or the queries changed since a finished run read them, or too many of their rows are rejected."""
    for section, name in ((config.corpus, "corpus"), (config.queries, "queries")):
        if section is not None:
            sources.check_unchanged(section, config.out, done[name]["source_state"])
            rejected = done[name]["rejected"], done[name]["read"]
            check_rejected(section, rejected, done[name]["rejected_reasons"], config.out)


def _contents(config: AuditConfig, source: Corpus, folder_of_vectors: str) -> Contents:
    """What a source holds: texts to embed, or embeddings that are taken as they are."""
    if source.embedding_column is not None:
        return Vectors(folder_of_vectors, source, config.out)
    return Texts(source, config.embedding, config.out)


def open_corpus(config: AuditConfig, run: Run, source: Corpus, stage: Stage | None = None) -> Stream:
    """Plan a source of texts to embed, or of embeddings that are taken as they are; one of one unit is read at once."""
    how: dict[str, Any] = {} if stage is None else {"on_rows": stage.advance}
    contents = _contents(config, source, run.place("texts", GIVEN, run.temperatures[0]))
    return Stream(run.storage, contents, config.seed, config.out, **how)


def _open_queries(config: AuditConfig, run: Run) -> tuple[Run, Stream] | None:
    """Plan the query texts as the corpus of a separate run below queries/."""
    if config.queries is None:
        return None
    own = run.below("queries")
    return own, open_corpus(config, own, config.queries)


def _read_queries(config: AuditConfig, cluster: Cluster, asking: tuple[Run, Stream], journal: Journal) -> Queries:
    """Read all of the queries."""
    assert config.queries is not None
    run, stream = asking
    stream.read_all(cluster, journal, "all of the queries")
    return Queries(run, config.queries, stream.index)


def _check_dimensions(config: AuditConfig, run: Run, queries: Queries | None) -> None:
    """Raise if the user's embeddings of the corpus have not as many dimensions as those of the queries."""
    if config.corpus.embedding_column is not None and queries is not None:
        _check_same_width(*(folder.dimensions(one, GIVEN, one.temperatures[0]) for one in (queries.run, run)))


def _check_same_width(queries: int, corpus: int) -> None:
    """Raise unless the embeddings of the queries and of the corpus have as many dimensions."""
    if queries != corpus:
        raise UsageError(f"the queries have {queries} dimensions, and the corpus {corpus}; give vectors of one model")


def _facts(audit: Audit, layouts: dict[str, Layout], rejected: int) -> dict[str, Any]:
    """The entries of run.json that only an audit has."""
    run, config = audit.run, audit.config
    facts: dict[str, Any] = {"seed": config.seed, "corpus": audit.index.facts() | {"rejected_by_models": rejected}}
    if run.storage.exists(folder.SIZES):
        facts["sizes"] = run.storage.read_json(folder.SIZES)
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
        if model == GIVEN:
            own["dimensions"] = folder.dimensions(run, model, run.temperatures[0])
        if run.storage.exists(actor.budget_name(model)):
            own |= run.storage.read_json(actor.budget_name(model))
        if run.storage.exists(precision.result_name(model)):
            own["precision"] = run.storage.read_json(precision.result_name(model))
        done = f"{run.place('partials/socm', model, run.temperatures[0])}/done.json"
        if run.storage.exists(done):
            own["socm"] = run.storage.read_json(done)["way"]
        if ignored := lookup.ignored(run, model):
            own["cache_ignored"] = ignored
        facts["models"][model.label] = own
    facts["versions"] = {"altair": metadata.version("altair")}
    return facts


def _write_report(run: Run, record: dict[str, Any]) -> None:
    from tempscale_jobs.audit import report  # What draws it takes a second to import, and Ray starts before.

    report.render(folder.load_tables(run.storage), record).write_to(run.storage)
