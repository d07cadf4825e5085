"""`tempscale pairs`, top to bottom: SOCM of explicit pairs of texts."""

from __future__ import annotations

from tempscale_jobs import lifecycle
from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.rows import check_rejected
from tempscale_jobs.lifecycle import Lifecycle
from tempscale_jobs.pairs import chunks, socm, summary
from tempscale_jobs.pairs.chunks import PairIndex
from tempscale_jobs.runs.folder import REPORT, Model, Run, gives_nothing, load_tables, rejected_reasons
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Crew


@lifecycle.mended
def pairs(config: PairsConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Measure every pair, or the missing ones, and write tables, report and run.json.

    Raises:
        UsageError: the configuration, source, models or run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call resumes it.
    """
    with lifecycle.locked(config, journal, fresh=fresh) as opening:
        if opening.will_read:
            sources.check_rows(config.pairs, config.out, chunks.records(config.pairs, config.out))
        with opening.run() as life:
            if not _finished(config, life, journal):
                _measure_all(config, life, journal)
    return life.run


def _finished(config: PairsConfig, life: Lifecycle, journal: Journal) -> bool:
    """Whether the run is complete, and its pairs are still the same."""
    if life.finished is None:
        return False
    with journal.stage("read the pairs") as stage:
        sources.check_unchanged(config.pairs, config.out, life.finished["pairs"]["source_state"])
        return not life.reopen_if_damaged(stage)


def _measure_all(config: PairsConfig, life: Lifecycle, journal: Journal) -> None:
    """Read the pairs, measure them under every model and write the tables and the report."""
    run = life.run
    with journal.stage("read the pairs") as stage:
        index = chunks.chunk(run.storage, config.pairs, config.out, stage)
        lost = f", {index.rejected:,} rejected" if index.rejected else ""
        stage.note = f"{index.pairs:,} pairs of {index.read:,} rows{lost}{sources.left_out(config.pairs, config.out)}"
    with life.cluster() as cluster:
        decided = life.with_precision(config, cluster)
        rejected = sum(_measure(decided, life, cluster, model, index) for model in run.models)
        with journal.stage("tables") as stage:
            stage.note = f"{len(summary.summarise(run, config.socm, index))} tables"
    with journal.stage("report") as stage:
        from tempscale_jobs.pairs import report  # What draws it is slow to import, and Ray starts before.
        from tempscale_jobs.report.page import page

        record = life.record(command=config.command, pairs=index.facts() | {"rejected_by_models": rejected})
        page(report.report_of(load_tables(run.storage), record), record["config"]).write_to(run.storage)
        stage.note = REPORT


def _measure(config: PairsConfig, life: Lifecycle, cluster: Cluster, model: Model, index: PairIndex) -> int:
    """Measure all pairs under one model; returns the number of pairs that it cannot measure."""
    run = life.run
    with (
        Crew(run, cluster, model, config.embedding) as crew,
        life.journal.stage(f"SOCM {model.label}", index.pairs) as stage,
    ):
        rejected = socm.measure_pairs(run, crew, model, socm.pieces(run, model, config.socm, index), stage)
        lost = f", {rejected:,} rejected" if rejected else ""
        stage.note = f"{index.pairs - rejected:,} pairs under τ {run.taus}{lost}"
        if rejected == index.pairs:
            raise gives_nothing(run, model, "figures for any pair")
        check_rejected(config.pairs, (rejected, index.pairs), rejected_reasons(run, model), run.storage.root, "pair")
    return rejected
