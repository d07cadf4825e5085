"""`tempscale verify`, top to bottom: a sample of stored vectors, embedded again, compared, and explained."""

from __future__ import annotations

from tempscale_jobs import lifecycle
from tempscale_jobs.config.verify import VerifyConfig
from tempscale_jobs.corpus import sources
from tempscale_jobs.lifecycle import Lifecycle
from tempscale_jobs.runs.folder import REPORT, Run, load_tables
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.verify import stage as verification


@lifecycle.mended
def verify(config: VerifyConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Verify a sample of stored vectors, or the missing rows, and write tables, report and run.json.

    Raises:
        UsageError: the configuration, source, models or run folder cannot be used, or nothing can be compared.
        IncompleteRun: it stopped before its end; the same call resumes it.
    """
    with lifecycle.locked(config, journal, fresh=fresh) as opening:
        if opening.will_read:
            verification.check_inputs(config)
        with opening.run() as life:
            if not _finished(config, life, journal):
                _verify_all(config, life, journal)
    return life.run


def _finished(config: VerifyConfig, life: Lifecycle, journal: Journal) -> bool:
    """Whether the run is complete, and its vectors are still the same."""
    if life.finished is None:
        return False
    with journal.stage("read the vectors") as stage:
        for of, name in zip(verification.contents(config), ("embeddings", "texts"), strict=False):
            sources.check_unchanged(of.corpus, config.out, life.finished[name]["source_state"])
        return not life.reopen_if_damaged(stage)


def _verify_all(config: VerifyConfig, life: Lifecycle, journal: Journal) -> None:
    """Verify the vectors, and write the tables and the report."""
    run = life.run
    readers = verification.open_sources(config, run, journal)
    with life.cluster() as cluster:
        verified = verification.verified(config, run, readers, cluster, journal)
        with journal.stage("tables") as stage:
            tables = verified.tables | {"findings": verified.findings.table()}
            for name, table in tables.items():
                run.storage.write_table(f"tables/{name}.parquet", table)
            stage.note = f"{len(tables)} tables"
    with journal.stage("report") as stage:
        from tempscale_jobs.report.page import page
        from tempscale_jobs.verify import report  # What draws it is slow to import, and Ray starts before.

        record = life.record(**verified.sources, command=config.command, verified=verified.facts)
        run.storage.remove(verification.OTHER)
        page(report.report_of(load_tables(run.storage), record), record["config"]).write_to(run.storage)
        stage.note = REPORT
