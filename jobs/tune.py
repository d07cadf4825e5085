"""`tempscale tune`, top to bottom: candidates, what they do, which to use and why."""

from __future__ import annotations

from typing import Any

import polars as pl
from threadpoolctl import threadpool_limits

from jobs import (
    audit,
    engine,
    evaluate,
    lock,
    runs,
    shared,
    sources,
    summary,
    tasks,
    tune_collapse,
    tune_layers,
    tune_report,
)
from jobs import tune_scores as scores
from jobs.crew import Crew
from jobs.errors import UsageError
from jobs.headline import count, labels
from jobs.progress import Journal
from jobs.storage import Storage
from jobs.tune_config import TuneConfig
from jobs.tune_layers import Tuned
from jobs.tune_schema import COLLAPSE, INTERVALS, SCORES
from jobs.urls import shown
from tempscale.temperature import Temperature

CHOSEN = "temperature.json"
"""The choice as data, for --temperature."""


def tune(config: TuneConfig, journal: Journal, *, fresh: bool = False) -> Tuned:
    """Choose a temperature, or go on with that, and leave tables, report, temperature.json and run.json.

    Raises:
        UsageError: the configuration, the model, a task, the corpus or the run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call goes on.
    """
    with lock.held(Storage(config.out), lambda: journal.stage("look whether another run lives")):
        return _tune(config, journal, fresh)


def _tune(config: TuneConfig, journal: Journal, fresh: bool) -> Tuned:
    states = _states(config)  # A mistake must not cost the run that is to be replaced.
    run = runs.begin(config, fresh=fresh)
    journal.follow(run)
    (model,) = run.models
    if run.complete:
        with journal.stage("choose") as stage:
            if run.storage.read_json(runs.DONE)["states"] != states:
                raise UsageError(
                    f"the texts changed since the run in '{shown(config.out)}' read them; start over with --fresh or choose "
                    "another --out"
                )
            stage.note = "the run is complete: nothing to do"
        return run
    with engine.session(config.execution) as cluster, threadpool_limits(1):
        shared.check_run(run, [("--out", run.storage)])
        candidates = run.temperatures
        if config.choosing.layers:
            with Crew(run, cluster, model) as crew, journal.stage("search one τ a layer") as stage:
                found = tune_layers.search(run, crew, model, states)
                stage.note = found["note"]
            candidates = candidates + [t for t in tune_layers.candidate(found) if t not in candidates]
        if config.tasks:
            tables, facts = _by_scores(run, candidates, list(states), journal)
        else:
            tables, facts = _by_collapse(run, candidates, journal)
    with journal.stage("report on the choice") as stage:
        for name, table in tables.items():
            run.storage.write_table(f"tables/{name}.parquet", table)
        chosen = next(t for t in candidates if t.canonical == facts["chosen"])
        run.storage.write_json(CHOSEN, chosen.as_data())
        record = runs.facts(run) | {"command": config.command, "seed": config.seed, "states": states, "choice": facts}
        record |= {"steps": dict(journal.steps), "peak_memory_bytes": journal.peak_memory_bytes}
        tune_report.render(summary.load_tables(run.storage), record).leave(run.storage)
        stage.note = "report.html"
    runs.complete(run, record)
    return run


def _states(config: TuneConfig) -> dict[str, Any]:
    """What shows whether the texts changed between two looks.

    Raises:
        UsageError: there is no such task, or no such corpus.
    """
    engine.check_reachable(config.execution)
    if not config.tasks:
        return {"corpus": sources.state(config.texts(), config.out)}
    return {unit.name: tasks.state(unit) for unit in tasks.expand(config.tasks)}


def _by_scores(
    run: Tuned, candidates: list[Temperature], names: list[str], journal: Journal
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table of the choice by scores, and what run.json says of it."""
    done = evaluate.evaluate(run.config.evaluation(candidates), journal)
    with journal.stage("choose") as stage:
        tables = summary.load_tables(done.storage)
        items = tables.get("evaluation_items", pl.DataFrame(schema={"task": pl.String}))
        parts = scores.split(items, names, run.config.choosing.held_out, run.config.seed)
        rows = scores.choose(parts, [t.canonical for t in candidates], run.config.seed)
        keyed = [run.key(run.models[0], t) | row for t, row in zip(candidates, rows, strict=True)]
        facts = _facts(candidates, rows) | {"by": "scores", "tasks": list(parts.dev), "left_out": parts.left_out}
        stage.note = _note(facts)
    return {SCORES.name: SCORES.build_rows(keyed)}, facts


def _by_collapse(run: Tuned, candidates: list[Temperature], journal: Journal) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tables of the choice without labels, and what run.json says of it."""
    done = audit.audit(run.config.audit(candidates), journal)
    with journal.stage("choose") as stage:
        every = [tune_collapse.seen(done, done.models[0], t) for t in candidates]
        choosing = run.config.choosing
        rows, intervals = tune_collapse.choose(every, choosing.keep_neighbours, choosing.intervals)
        keys = [run.key(run.models[0], t) for t in candidates]
        tables = {
            COLLAPSE.name: COLLAPSE.build_rows([key | row for key, row in zip(keys, rows, strict=True)]),
            INTERVALS.name: INTERVALS.build_rows([key | r for key, own in zip(keys, intervals, strict=True) for r in own]),
        }
        facts = _facts(candidates, rows) | {"by": "collapse", "texts": len(every[0].texts)}
        facts["probed"] = every[0].probe["text_id"].n_unique()
        stage.note = _note(facts)
    return tables, facts


def _facts(candidates: list[Temperature], rows: list[dict[str, Any]]) -> dict[str, Any]:
    place = next(k for k, row in enumerate(rows) if row["chosen"])
    chosen = candidates[place]
    foldable = not (chosen.steps or chosen.n0 is not None or chosen.roles)
    return {
        "chosen": chosen.canonical, "reference": candidates[0].canonical, "candidates": len(candidates),
        "changed": place != 0, "reason": rows[place]["reason"], "foldable": foldable,
    }  # fmt: skip


def _note(facts: dict[str, Any]) -> str:
    label = labels([facts["chosen"]])[facts["chosen"]]
    return f"{label} of {count(facts['candidates'], 'candidate')}" if facts["changed"] else f"leave it at {label}"
