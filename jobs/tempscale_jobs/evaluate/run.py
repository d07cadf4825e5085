"""`tempscale evaluate`, top to bottom: downstream scores under attention temperatures."""

from __future__ import annotations

from typing import Any

from tempscale.correction.recipes import columns_of
from tempscale.temperature.schedule import Temperature
from tempscale_jobs import lifecycle
from tempscale_jobs.config.evaluate import EvaluateConfig
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.evaluate import audits, cells, documents, tasks
from tempscale_jobs.evaluate.summary import ComparedAudits, summarise, write
from tempscale_jobs.evaluate.tasks import Evaluation
from tempscale_jobs.lifecycle import Lifecycle
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import REPORT, Model, Run, load_tables
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.pace import Pace
from tempscale_jobs.urls import masked
from tempscale_jobs.workers.cluster import check_reachable
from tempscale_jobs.workers.dispatch import Crew

_NAMED = 3
"""Number of tasks, or of reasons for missing cells, in a sentence; evaluation.parquet has all of them."""


@lifecycle.mended
def evaluate(config: EvaluateConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Score every task under every temperature, or the missing cells, and write tables, report and run.json.

    Raises:
        UsageError: the configuration, models, a task's name or the run folder cannot be used.
        IncompleteRun: it stopped before its end or a cell is missing; the same call resumes it.
    """
    with journal.stage("tasks") as stage:
        units = tuple(tasks.expand(config.tasks))
        # Check folders and labels before the long scoring.
        audits.against_backbones(audits.measures(config.audits), [], config.backbones)
        check_reachable(config.execution)
        names = [unit.name for unit in units[:_NAMED]] + ["…"] * (len(units) > _NAMED)
        stage.note = f"{count(len(units), 'task')}: {', '.join(names)}"
    with lifecycle.locked(config, journal, fresh=fresh) as opening:
        if opening.will_read:
            tasks.check(units, config.seed, columns_of(config.corrected.recipes))
        with opening.run() as life:
            edges = tuple(config.analysis.intervals)
            evaluation = Evaluation(life.run, units, config.embedding, edges, config.seed, config.corrected)
            if not _finished(config, life, evaluation, journal):
                _score_all(config, life, evaluation, journal)
    return life.run


def _references(config: EvaluateConfig) -> dict[str, Any]:
    """What the scores are compared with: an entry of run.json."""
    return {"audits": [masked(folder) for folder in config.audits], "backbones": config.backbones}


def _finished(config: EvaluateConfig, life: Lifecycle, evaluation: Evaluation, journal: Journal) -> bool:
    """Whether the run is complete, with the same audits, and its tasks are still the same."""
    if life.finished is None:
        return False
    if life.finished["beside"] != _references(config):
        _check_unchanged(config, life.finished["tasks"], evaluation.states)  # Only tables and report are written again.
        return False
    with journal.stage("score") as stage:
        _check_unchanged(config, life.finished["tasks"], evaluation.states)
        return not life.reopen_if_damaged(stage)


def _score_all(config: EvaluateConfig, life: Lifecycle, evaluation: Evaluation, journal: Journal) -> None:
    """Score the missing cells under every model, and write the tables and the report."""
    run, missing = life.run, dict[tuple[str, str, str], str]()
    with life.cluster() as cluster:
        encoding = life.with_precision(config, cluster).embedding
        for model in run.models:
            with Crew(run, cluster, model, encoding) as crew:
                wrong = score_missing(evaluation, crew, model, journal)
            missing |= {(model.label, temperature, task): why for (task, temperature), why in wrong.items()}
    if not missing:
        documents.remove_all(run)
    with journal.stage("tables") as stage:
        compared = ComparedAudits(config.audits, config.backbones)
        stage.note = f"{len(summarise(evaluation, compared, missing))} tables"
        write(evaluation, missing)
    with journal.stage("report") as stage:
        from tempscale_jobs.evaluate import report  # What draws it is slow to import, and Ray starts before.
        from tempscale_jobs.report.page import page

        record = life.record(
            command=config.command,
            seed=config.seed,
            missing=len(missing),
            beside=_references(config),
            tasks=evaluation.states,
        )
        page(report.report_of(load_tables(run.storage), record), record["config"]).write_to(run.storage)
        stage.note = REPORT
    if missing:
        raise IncompleteRun(_incomplete(config, missing, evaluation.cells * len(run.models)))


def score_missing(evaluation: Evaluation, crew: Crew, model: Model, journal: Journal) -> dict[tuple[str, str], str]:
    """Score the missing cells of a model; returns the reason for each failed cell, by task and canonical temperature."""
    run = evaluation.run
    # Tasks differ, and how long one takes is not known before: no time left is shown.
    with journal.stage(f"score {model.label}", evaluation.cells, pace=Pace()) as stage:
        wrong, large = cells.work(evaluation, crew, model, stage)
        later = sum(len(task.temperatures) for task in large)
        stage.note = f"{evaluation.cells - later - len(wrong)} of {count(evaluation.cells, 'cell')}"
        stage.note += f", {later} when their documents are embedded" if later else ""
    for task in large:  # One after the other, so that the embeddings of one corpus at a time are in the folder.
        of_task = f"{model.label} {task.unit.name}"
        with journal.stage(f"embed documents {of_task}", task.documents) as stage:
            stage.note = documents.embed(task, crew, stage)
        with journal.stage(f"score {of_task}", len(task.temperatures)) as stage:
            failed = cells.work_on(task, run, crew, model, stage)
            stage.note = f"{len(task.temperatures) - len(failed)} of {count(len(task.temperatures), 'cell')}"
        documents.remove(run, model, task, [Temperature.of(temperature) for _, temperature in failed])
        wrong |= failed
    return wrong


def _check_unchanged(config: EvaluateConfig, before: dict[str, Any], states: dict[str, Any]) -> None:
    """Raise if the data of a task changed since a finished run read it."""
    changed = sorted(name for name, state in states.items() if before.get(name) != state)
    if changed:
        raise UsageError(
            f"the data of task '{changed[0]}' changed since the run in '{masked(config.out)}' read it; "
            "start over with --fresh or choose another --out"
        )


def _incomplete(config: EvaluateConfig, missing: dict[tuple[str, str, str], str], cells: int) -> str:
    """The error message on missing cells."""
    reasons = list(dict.fromkeys(missing.values()))
    further = len(reasons) - _NAMED
    more = f" (and {count(further, 'further reason')}, see evaluation.parquet)" if further > 0 else ""
    return (
        f"{len(missing)} of {count(cells, 'cell')} {'is' if len(missing) == 1 else 'are'} missing: "
        f"{'; '.join(reasons[:_NAMED])}{more}; tables and report in '{masked(config.out)}' "
        "hold the others, and the same command goes on"
    )
