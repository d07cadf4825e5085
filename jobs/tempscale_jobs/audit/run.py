"""`tempscale audit`, top to bottom: from a corpus to tables, a report and the verdict of the night."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tempscale.collapse.tiles import SMALLEST_BLOCK
from tempscale.temperature.schedule import Temperature
from tempscale_jobs import lifecycle
from tempscale_jobs.audit import summary
from tempscale_jobs.audit.checks import (
    check_dimensions,
    check_inputs,
    check_models,
    check_results,
    check_services,
    check_unchanged,
    contents_of,
)
from tempscale_jobs.audit.facts import facts
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import results
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.lifecycle import Lifecycle
from tempscale_jobs.nights import night, notify
from tempscale_jobs.nights.night import Night
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import GIVEN, Model, Run
from tempscale_jobs.runs.journal import Journal, Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import (
    budget,
    by_group,
    cosine,
    cut_texts,
    dealing,
    embed,
    exposure,
    factors,
    groups,
    largest,
    other_models,
    precision,
    probe,
    query_cosines,
    served,
    socm,
    source_order,
    what_if,
    worst,
)
from tempscale_jobs.steps.blocks import COSINE
from tempscale_jobs.steps.cosine import Needed
from tempscale_jobs.steps.layout import Layout, Order, layout
from tempscale_jobs.steps.scope import Embedded, Scope
from tempscale_jobs.urls import masked
from tempscale_jobs.verify import stage as verification
from tempscale_jobs.workers.cluster import holds_gpus
from tempscale_jobs.workers.dispatch import Crew

if TYPE_CHECKING:
    from tempscale_jobs.report.page import Page

FEW_TEXTS = 4096
"""Texts whose pairs are compared in less time than the crew takes to start."""
_TO_COME = (
    "This run is not complete: it still measures second-order collapse and prefixes, which this page calls not measured. It "
    "writes the page again at its end."
)


@lifecycle.mended
def audit(config: AuditConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Run an audit, or the missing part of one, and write tables, report and run.json.

    Raises:
        UsageError: the configuration, corpus, models or run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call resumes it.
    """
    with lifecycle.locked(config, journal, fresh=fresh) as opening:
        check_services(config)
        if opening.will_read:
            check_inputs(config)
        with opening.run() as life:
            record = _finished(config, life, journal)
            if record is None:
                record, config = _measured(config, life, journal)
            _end_night(config, life, record, journal)
    return life.run


def _finished(config: AuditConfig, life: Lifecycle, journal: Journal) -> dict[str, Any] | None:
    """The content of run.json if the run is complete; None where anything is to be measured.

    If only the report or figures are damaged they are drawn again; any other damage reopens the run.
    """
    finished = life.finished
    if finished is None:
        return None
    with journal.stage("read the corpus") as stage:
        check_unchanged(config, finished)
        if drawings := life.damaged_drawings:
            _write_report(life.run, finished)
            life.note_restored(stage, drawings)
        elif life.reopen_if_damaged(stage):
            return None
    return finished | {"config": folder.described(config), "command_line": folder.typed(config)}


def _measured(config: AuditConfig, life: Lifecycle, journal: Journal) -> tuple[dict[str, Any], AuditConfig]:
    """Read the corpus, measure it under every model and write the tables.

    Return the content of run.json, and the configuration with what was settled meanwhile.
    """
    run, query_source, audited = life.run, None, list[Embedded]()
    vectors, verified, served_index = None, None, None
    night.check_windows(Night.of(run, config), config.embedding.max_length)
    config = sized(config, run)
    check_models(config, run.models)
    if config.results is not None:
        with journal.stage("read the results") as stage:
            served_index = results.read(run.below("results").storage, config.results, config.out, config.seed, stage)
            stage.note = f"{served_index.read:,} rows, of {served_index.queries:,} queries"
    with journal.stage("read the corpus") as stage:
        if config.queries is not None:  # First, so that a mistake in them leaves no run to resume.
            query_source = open_source(config, run.below("queries"), config.queries)
        corpus = open_source(config, run, config.corpus, stage)
        stage.note = corpus.described()
        check_results(config, run, query_source, corpus)
    if config.verification is not None:
        verifying = replace(run.below("verify"), models=[*run.verified_by])
        vectors = verification.open_sources(config.verification, verifying, journal)
    cache = {} if config.execution.cache is None else {"cache": Storage(config.execution.cache)}
    with life.cluster(**cache) as cluster:
        config = life.with_precision(config, cluster)
        if query_source is not None:
            query_source.read_all(cluster, journal, "all of the queries")
        corpus.read_all(cluster, journal, "all of the corpus")
        check_results(config, run, query_source, corpus)
        check_dimensions(config, run, None if query_source is None else run.below("queries"))
        journal.count("rejected", corpus.index.rejected)
        if config.verification is not None and vectors is not None:
            verified = verification.verified(config.verification, verifying, vectors, cluster, journal)

        def scoped(run: Run, model: Model, crew: Crew) -> Scope:
            return Scope(config, config.embedding, config.corpus, corpus.index, run, model, cluster, crew, journal)

        if not all(what_if.is_done(run, model) for model in run.models):
            by_others = other_models.run_of(run)
            for model in run.other_models:
                with Crew(by_others, cluster, model, config.embedding) as crew:
                    scope = scoped(by_others, model, crew)
                    scope = replace(scope, encoding=budget.with_budget(scope))
                    embed.embed(scope, f"embed {model.label}")
                    _embed_queries(scope, query_source)
        for model in run.models:
            with Crew(run, cluster, model, config.embedding) as crew:
                scope = scoped(run, model, crew)
                embedded = _given_embeddings(scope) if model == GIVEN else embed_all(scope, query_source)
                audited.append(embedded)
                if cluster.gpus:  # Where the tiles take the place of the model, they come last.
                    _measure_second_order(embedded)
                _measure_all_pairs(embedded)
                if life.finished is None and _is_more_to_come(embedded):
                    _report_so_far(audited, query_source, life)
                if not cluster.gpus:
                    _measure_second_order(embedded)
            _after_crew(embedded)
        other_models.forget(run)
        with journal.stage("tables") as stage:
            stage.note = f"{len(summary.summarise(audited, verified))} tables"
    queries = None if query_source is None else query_source.index
    return life.record(**facts(audited, queries, verified, served_index)), config


def _given_embeddings(scope: Scope) -> Embedded:
    """The user's own embeddings, which are taken as they are."""
    return Embedded.of(scope, _in_order(scope))


def embed_all(scope: Scope, query_source: SourceReader | None) -> Embedded:
    """Embed the corpus and the queries."""
    scope = replace(scope, encoding=budget.with_budget(scope))
    rejected = embed.embed(scope, f"embed {scope.model.label}", fast=True)
    embedded = Embedded.of(scope, _in_order(scope))
    if len(embedded.texts) != scope.index.analysed - rejected or not embedded.texts.are_distinct():
        raise IncompleteRun("texts/ does not hold every text once; start over with --fresh")
    precision.measure(embedded)
    if not what_if.is_done(scope.run, scope.model):
        cut_texts.embed_chunks(embedded)
    _embed_queries(scope, query_source)
    return embedded


def _embed_queries(scope: Scope, query_source: SourceReader | None) -> None:
    if query_source is not None and scope.config.queries is not None:
        run_of_queries = scope.run.below("queries")
        query_scope = replace(scope, run=run_of_queries, source=scope.config.queries, index=query_source.index)
        embed.embed(query_scope, scope.named("embed the queries"), "query")


def _measure_second_order(scope: Embedded) -> None:
    """The steps over some of the texts, which the crew embeds again: SOCM, the prefix probe and the worst pairs."""
    if scope.model == GIVEN:
        return
    sample, group_count = texts_of_all_pairs(scope), 0
    if sample is None:
        group_count = len(groups.measure(scope))
    elif sample:
        factors.collect_sample(scope, sample)
    ranks_groups = sample is None and scope.analysis.socm_top_over == "sample"
    if ranks_groups:
        largest.collect(scope, group_count)
    probe.probe(scope)
    for temperature in scope.run.temperatures:
        if ranks_groups:
            largest.rank(scope, temperature, group_count)
        if sample:
            socm.socm(scope, temperature, len(sample))
    if scope.analysis.socm_top_over == "corpus":
        worst.begin(scope)


def _measure_all_pairs(scope: Embedded) -> None:
    """The steps over all pairs of texts, and whether texts beside each other in the source are alike."""
    # Without GPUs the tiles are tasks on CPUs. Those of a small corpus need little memory, and run beside the crew, whose
    # start takes longer than they; for others it makes room. With GPUs the crew computes the tiles, where all pairs are
    # compared.
    if not scope.cluster.gpus and len(scope.texts) <= FEW_TEXTS and _is_more_to_come(scope):
        scope = replace(scope, cluster=replace(scope.cluster, keeps_crew=True, one_at_a_time=_is_quickly_compared(scope)))
    elif not scope.cluster.gpus or scope.analysis.cosine != "full":
        scope.crew.dismiss()
    for temperature in scope.run.temperatures:
        cosine.cosine(scope, temperature, needed_of_tiles(scope, temperature))
    if not scope.cluster.keeps_crew:
        scope.crew.dismiss()  # No step that follows here needs a GPU.
    queries = None if scope.config.queries is None else scope.run.below("queries")
    for temperature in scope.run.temperatures if scope.analysis.compares else ():
        exposure.expose(scope, temperature, queries)
    for temperature in scope.run.temperatures:
        by_group.measure(scope, temperature)
    what_if.measure(scope, queries)
    query_cosines.measure(scope, queries)
    served.compare(scope, queries)
    source_order.look(scope)


def _is_quickly_compared(scope: Embedded) -> bool:
    """Whether the steps over all pairs take less time than a second process to import what they need."""
    # Queries and chunks may be many, and on several machines each has a process of its own.
    alone = scope.config.queries is None and scope.config.execution.address is None
    return alone and not scope.analysis.what_if and len(scope.texts) <= SMALLEST_BLOCK


def _is_more_to_come(scope: Embedded) -> bool:
    """Whether the run goes on after the steps over all pairs."""
    analysis = scope.analysis
    if scope.model == GIVEN:
        return False
    second_order = analysis.socm_sample != 0 or analysis.probe_sample != 0
    return analysis.socm_top_over == "corpus" or (second_order and not scope.cluster.gpus)


def _report_so_far(audited: Sequence[Embedded], queries: SourceReader | None, life: Lifecycle) -> None:
    """Write the report of what has been measured, which is written again at the end."""
    with life.journal.stage("report so far") as stage:
        record = life.record(**facts(audited, None if queries is None else queries.index))
        tables = {name: pl.DataFrame(pl.from_arrow(table)) for name, table in summary.tables_of(audited).items()}
        page = _page(tables, record | {"to_come": _TO_COME})
        life.run.storage.write(folder.REPORT, page.html.encode())  # Its figures as files come at the end.
        stage.note = f"{masked(life.run.storage.root)}/{folder.REPORT}, whole at the end"


def _after_crew(scope: Embedded) -> None:
    """The worst pairs of the whole corpus, with a crew of their own, since their bounds need all CPUs."""
    if scope.analysis.socm_top_over == "corpus":
        worst.search(scope)
    for temperature in scope.run.temperatures:  # Only the steps over all pairs read these copies of the embeddings.
        scope.run.storage.remove(f"{scope.run.place(COSINE, scope.model, temperature)}/blocks")


def _end_night(config: AuditConfig, life: Lifecycle, record: dict[str, Any], journal: Journal) -> None:
    """Judge the night, enter it into the record of nights, report the verdict, and remove old nights' embeddings.

    A finished run is judged again, since its checks may have changed. The report is written if what the gate says changed,
    or if the run was mended; the verdict is posted only if what the gate says changed.
    """
    run, before = life.run, record.get("gate")
    tonight = Night.of(run, config)
    with journal.stage("gate") as stage:
        record |= night.judged(tonight, record, folder.load_table(run.storage, "collapse_summary").to_dicts())
        stage.note = night.verdict_in_words(record["gate"]) + night.changes_in_words(record["changed_texts"])
    gate_changed = record["gate"] != before
    if gate_changed or life.is_mended:
        with journal.stage("report") as stage:
            if gate_changed:
                record["trend"] = night.trend(tonight, record)
            _write_report(run, record)
            stage.note = folder.REPORT
    if gate_changed and notify.is_wanted(config.gate, record["gate"]["verdict"]):
        with journal.stage("notify") as stage:  # Before run.json is written: a run that dies here posts it again.
            stage.note = notify.post_verdict(config.gate, record, run.storage.root)
    if config.record.keep_embeddings is not None:
        with journal.stage("prune") as stage:
            stage.note = night.pruned(tonight, config.record.keep_embeddings)
    if gate_changed:
        life.keep(record | {"config": folder.described(config)})


def sized(config: AuditConfig, run: Run) -> AuditConfig:
    """The configuration, with larger shards if the run began where workers hold GPUs.

    Which sizes a run began with is in its folder, so that it goes on with these on any machine.
    """
    storage, sizes = run.storage, dict[str, int]()
    if storage.exists(folder.SIZES):
        sizes = storage.read_json(folder.SIZES)
    elif not any(map(storage.exists, (folder.SHARDED, folder.PLANNED))) and config.corpus.embedding_column is None:
        sizes = config.embedding.of_gpus()
        if not sizes or not holds_gpus(config.execution):
            return config
        storage.write_json(folder.SIZES, sizes)
    return config.model_copy(update={"embedding": config.embedding.model_copy(update=sizes)}) if sizes else config


def open_source(config: AuditConfig, run: Run, source: Corpus, stage: Stage | None = None) -> SourceReader:
    """Plan a source of texts to embed, or of embeddings that are taken as they are; one of a single unit is read at once."""
    texts_or_vectors = contents_of(config, source, run.place("texts", GIVEN, run.temperatures[0]))
    return SourceReader(run.storage, texts_or_vectors, config.seed, config.out, stage)


def _in_order(scope: Scope) -> Layout:
    """The texts in canonical order."""
    order = Order(tuple(scope.analysis.intervals), scope.config.seed, scope.index.usable, tuple(scope.config.by))
    return layout(scope.run, scope.cluster, scope.model, order)


def texts_of_all_pairs(scope: Embedded) -> list[str] | None:
    """The texts of which SOCM is measured for all pairs: as configured, or all of a corpus too small for groups.

    Empty where SOCM is off; None where groups are dealt instead.
    """
    analysis, texts = scope.analysis, scope.texts
    if analysis.socm_sample is None and dealing.enough(texts, analysis):
        return None
    places = np.arange(len(texts)) if analysis.socm_sample is None else texts.sample(analysis.socm_sample)
    return list(texts.ids[places])


def needed_of_tiles(scope: Embedded, temperature: Temperature) -> Needed:
    """What the steps over all pairs still need of the tiles."""
    run, model, analysis = scope.run, scope.model, scope.analysis
    near = analysis.compares and not exposure.is_done(run, model, temperature)
    search = analysis.socm_top_over == "corpus" and not worst.is_done(run, model, temperature)
    changed = bool(analysis.what_if) and not what_if.is_done(run, model)
    groups = bool(scope.config.by) and not by_group.is_done(run, model, temperature)
    asked = scope.config.queries is not None and analysis.compares and not query_cosines.is_done(scope)
    return Needed(blocks=near or search or changed or groups or asked, near=near)


def _write_report(run: Run, record: dict[str, Any]) -> None:
    _page(folder.load_tables(run.storage), record).write_to(run.storage)


def _page(tables: dict[str, pl.DataFrame], record: dict[str, Any]) -> Page:
    from tempscale_jobs.audit import report  # What draws it takes a second to import, and Ray starts before.
    from tempscale_jobs.report.page import page

    return page(report.report_of(tables, record), record["config"])
