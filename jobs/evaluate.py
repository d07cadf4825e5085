"""`tempscale evaluate`, top to bottom: downstream scores under attention temperatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threadpoolctl import threadpool_limits

from jobs import (
    cells,
    comparison,
    engine,
    evaluate_report,
    evaluate_summary,
    lock,
    mteb_results,
    runs,
    shared,
    summary,
    tasks,
)
from jobs.crew import Crew
from jobs.errors import IncompleteRun, UsageError
from jobs.evaluate_config import EvaluateConfig
from jobs.headline import count
from jobs.progress import Journal
from jobs.storage import Storage
from jobs.tasks import Evaluation, Unit
from jobs.urls import shown

_TOLD = 3
"""Missing cells whose reasons stand in the closing sentence; all stand in evaluation.parquet."""


def evaluate(config: EvaluateConfig, journal: Journal, *, fresh: bool = False) -> Evaluation:
    """Score every task under every temperature, or what is missing of that, and leave tables, report and run.json.

    Raises:
        UsageError: the configuration, models, a task's name or the run folder cannot be used.
        IncompleteRun: it stopped before its end or a cell is missing; the same call goes on.
    """
    with lock.held(Storage(config.out), lambda: journal.stage("look whether another run lives")):
        return _evaluate(config, journal, fresh)


def _evaluate(config: EvaluateConfig, journal: Journal, fresh: bool) -> Evaluation:
    with journal.stage("tasks") as stage:
        units = tasks.expand(config.tasks)
        # A mistyped folder or label must not cost the scores.
        comparison.against_backbones(comparison.measures(config.audits), [], config.backbones)
        engine.check_reachable(config.execution)
        run = runs.begin(config, fresh=fresh)
        journal.follow(run)
        _check_prompts(run)
        states = {unit.name: tasks.state(unit) for unit in units}
        names = [unit.name for unit in units[:_TOLD]] + ["…"] * (len(units) > _TOLD)
        stage.note = f"{count(len(units), 'task')}: {', '.join(names)}"
        if run.complete:
            _check_unchanged(run, states)
            if _beside(run) == run.storage.read_json(runs.DONE)["beside"]:
                stage.note = "the run is complete: nothing to do"
                return run
    missing: dict[tuple[str, str, str], str] = {}
    # Numbers merged in this process must not depend on how many cores it finds.
    with engine.session(config.execution) as cluster, threadpool_limits(1):
        shared.check_run(run, [("--out", run.storage)])
        for model in run.models:
            total = sum(len(unit.temperatures(run)) for unit in units)
            with Crew(run, cluster, model) as crew, journal.stage(f"score {model.label}", total) as stage:
                wrong = cells.work(run, crew, model, units, stage.advance)
                missing |= {(model.label, temperature, task): why for (task, temperature), why in wrong.items()}
                stage.note = f"{total - len(wrong)} of {count(total, 'cell')}"
    with journal.stage("tables") as stage:
        tables = evaluate_summary.summarise(run, units, missing)
        mteb_results.write(run, units, missing)
        stage.note = f"{len(tables)} tables"
    with journal.stage("report") as stage:
        record = runs.facts(run) | {"command": config.command, "seed": config.seed, "missing": len(missing)}
        record |= {
            "beside": _beside(run),
            "tasks": states,
            "steps": dict(journal.steps),
            "peak_memory_bytes": journal.peak_memory_bytes,
        }
        evaluate_report.render(summary.load_tables(run.storage), record).leave(run.storage)
        stage.note = "report.html"
    if missing:
        raise IncompleteRun(_told(run, missing, units))
    runs.complete(run, record)
    return run


def _check_prompts(run: Evaluation) -> None:
    """Raise where prompts are asked for that a model does not have: scores without them would pass for scores with them."""
    for model in run.models:
        if run.config.embedding.prompts == "model" and not tasks.prompts(model.name):
            raise UsageError(
                f"model {model.label} names no prompts in its config_sentence_transformers.json; leave out --prompts model"
            )


def _beside(run: Evaluation) -> dict[str, Any]:
    """What stands beside the scores: tables and report are made again where it is another."""
    return {"audits": [shown(folder) for folder in run.config.audits], "backbones": run.config.backbones}


def _check_unchanged(run: Evaluation, states: dict[str, Any]) -> None:
    before = run.storage.read_json(runs.DONE)["tasks"]
    changed = sorted(name for name, state in states.items() if before.get(name) != state)
    if changed:
        raise UsageError(
            f"the data of task '{changed[0]}' changed since the run in '{shown(run.config.out)}' read it; "
            "start over with --fresh or choose another --out"
        )


def _told(run: Evaluation, missing: dict[tuple[str, str, str], str], units: Sequence[Unit]) -> str:
    reasons = list(dict.fromkeys(missing.values()))
    more = f" (and {count(len(reasons) - _TOLD, 'further reason')}, see evaluation.parquet)" if len(reasons) > _TOLD else ""
    total = sum(len(unit.temperatures(run)) for unit in units) * len(run.models)
    return (
        f"{len(missing)} of {count(total, 'cell')} {'is' if len(missing) == 1 else 'are'} missing: "
        f"{'; '.join(reasons[:_TOLD])}{more}; tables and report in '{shown(run.config.out)}' "
        "hold the others, and the same command goes on"
    )
