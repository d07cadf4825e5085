"""`tempscale correct`, top to bottom: a fitted correction applied to a table of embeddings."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tempscale.model import checkpoint
from tempscale_jobs import lifecycle
from tempscale_jobs.config.correct import CorrectConfig
from tempscale_jobs.config.fitted import Saved
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.rows import check_rejected, most_frequent
from tempscale_jobs.correct import findings, units
from tempscale_jobs.errors import Changed, UsageError
from tempscale_jobs.lifecycle import Lifecycle
from tempscale_jobs.runs.folder import PLANNED, Run
from tempscale_jobs.runs.journal import Journal, Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import masked
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Piece, run_with_ray_data
from tempscale_jobs.workers.nodes import that_sees


@lifecycle.mended
def correct(config: CorrectConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Correct every embedding, or the missing ones, and write them below vectors/, and run.json.

    Raises:
        UsageError: the configuration, the correction, the embeddings or the run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call resumes it.
    """
    saved = config.saved
    with lifecycle.locked(config, journal, fresh=fresh) as opening:
        _check(config, saved)
        with opening.run() as life:
            if not _finished(config, life, journal):
                _correct_all(config, life, saved, journal)
    return life.run


def _finished(config: CorrectConfig, life: Lifecycle, journal: Journal) -> bool:
    """Whether the run is complete, and its embeddings are still the same."""
    if life.finished is None:
        return False
    with journal.stage("read the embeddings") as stage:
        sources.check_unchanged(config.embeddings, config.out, life.finished["embeddings"]["source_state"])
        return not life.reopen_if_damaged(stage)


def _correct_all(config: CorrectConfig, life: Lifecycle, saved: Saved, journal: Journal) -> None:
    """Correct every unit of the source."""
    run = life.run
    with journal.stage("read the embeddings") as stage:
        planned, state = _plan(config, run.storage, saved)
        rows = sum(unit.rows for unit in planned)
        stage.note = f"{rows:,} rows in {len(planned):,} units{sources.left_out(config.embeddings, config.out)}"
    with life.cluster() as cluster, journal.stage(saved.correction.canonical, rows) as stage:
        task = units.Task(run.storage, config.embeddings, saved.correction, config.side, config.equal_norms)
        _correct(config, cluster, task, planned, stage)
        facts = counted(task, planned)
        if not sources.is_fixed(config.embeddings) and sources.changes(config.embeddings, state, config.out):
            run.storage.remove("shards")  # What was read is a mixture: nothing of it is to be resumed.
            raise Changed(
                f"embeddings '{masked(config.embeddings.source)}' changed while they were read; start the same command "
                "again when nothing writes them"
            )
        sources.release(config.embeddings)
        lost = f"; {facts['rejected']:,} rows rejected" if facts["rejected"] else ""
        stage.note = f"{facts['corrected']:,} {config.side}{lost}"
    fitted = {"name": saved.correction.canonical, "sha256": saved.correction.digest}
    fitted |= {"model": str(saved.model.get("name", "given")), "temperature": str(saved.model.get("temperature", "1.0"))}
    record = life.record(command=config.command, embeddings={"source_state": state} | facts, correction=fitted)
    run.storage.write_table("tables/findings.parquet", findings.decide(record).table())


def _check(config: CorrectConfig, saved: Saved) -> None:
    """Raise if the correction is of another model than the option names, or depends on lengths and there are none."""
    correction = saved.correction
    needs = correction.needs_tokens if config.side == "documents" else correction.needs_query_tokens
    if needs and config.embeddings.length_column is None:
        raise UsageError(
            f"{correction.canonical} depends on the lengths of {config.side} in tokens: name their column by --length-column"
        )
    if config.equal_norms and not correction.needs_inner_product:
        raise UsageError(
            f"--equal-norms: {correction.canonical} gives unit norm, or queries that any index takes; leave it out"
        )
    if config.model is None:
        return
    try:
        fingerprint = checkpoint.fingerprint(checkpoint.resolve(config.model))
    except ValueError as error:
        raise UsageError(str(error)) from None
    known = saved.model.get("fingerprint")
    if known is None:
        raise UsageError("--model: the correction's file does not say of which model it is; leave the option out")
    if known != fingerprint:
        raise UsageError(
            f"the correction was fitted to embeddings of model {saved.model.get('name', known)}, not of '{config.model}': "
            "fit one by tempscale tune with this model"
        )


def _plan(config: CorrectConfig, storage: Storage, saved: Saved) -> tuple[tuple[units.RowGroups, ...], dict[str, Any]]:
    """The units of the source, and its state; raises if the source changed since the run began."""
    correction, embeddings = saved.correction, config.embeddings
    state = sources.identity(embeddings, config.out)
    if storage.exists(PLANNED):
        sources.check_unchanged(embeddings, config.out, storage.read_json(PLANNED)["source_state"])
    groups = correction.recipe.column if config.side == "documents" else None
    planned = units.plan(embeddings, units.columns_of(embeddings, groups), config.out)
    units.check_lengths(embeddings, planned)
    if groups is not None:
        units.check_groups(embeddings, planned, groups)
    width = units.other_dimensions(embeddings, planned, correction.dim)
    if width is not None:
        raise UsageError(
            f"{correction.canonical} is for embeddings of {correction.dim} dimensions, and those of "
            f"'{masked(embeddings.source)}' have {width}"
        )
    storage.write_json(PLANNED, {"source_state": state, "units": len(planned)})
    return planned, state


def _correct(
    config: CorrectConfig, cluster: Cluster, task: units.Task, planned: tuple[units.RowGroups, ...], stage: Stage
) -> None:
    """Stream the unfinished units through tasks of Ray Data."""
    finished = set(task.storage.list("shards", ".json"))
    left = {unit.number: unit for unit in planned if task.done(unit.number) not in finished}
    stage.advance(sum(unit.rows for unit in planned if unit.number not in left))
    if not left:
        return
    where = that_sees(units.local_files(config.embeddings, planned))
    pieces = [
        Piece(k, (k,), f"{unit.place}, rows {unit.first:,} and on", size=unit.rows) for k, unit in left.items()
    ]  # fmt: skip
    for piece in run_with_ray_data(cluster, units.correct, pieces, {"task": task, "units": left}, where):
        stage.advance(piece.size)


def counted(task: units.Task, planned: tuple[units.RowGroups, ...]) -> dict[str, Any]:
    """The counts of all units.

    Raises:
        UsageError: no row has an embedding that can be corrected, or too many have none.
    """
    reasons, corrected = Counter[str](), 0
    for unit in planned:
        counts = task.storage.read_json(task.done(unit.number))
        corrected += counts["corrected"]
        reasons.update(counts["reasons"])
    rows = sum(unit.rows for unit in planned)
    if not corrected:
        raise UsageError(f"none of {rows:,} rows can be corrected: {most_frequent(reasons)}")
    check_rejected(task.given, (rows - corrected, rows), reasons, task.storage.root)
    return {
        "rows": rows,
        "corrected": corrected,
        "rejected": rows - corrected,
        "rejected_reasons": dict(sorted(reasons.items())),
    }
