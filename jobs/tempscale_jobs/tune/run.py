"""`tempscale tune`, top to bottom: measure the candidates, choose one, and say why."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale.correction.recipes import columns_of
from tempscale.temperature.schedule import Temperature
from tempscale_jobs import lifecycle
from tempscale_jobs.audit.run import audit
from tempscale_jobs.config.audit import Embedding
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.corpus import peek, sources
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.errors import UsageError
from tempscale_jobs.evaluate import tasks
from tempscale_jobs.evaluate.run import evaluate
from tempscale_jobs.lifecycle import Lifecycle
from tempscale_jobs.report.text import count, labels
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import REPORT, Run
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.steps import by_length
from tempscale_jobs.steps.by_length import RECIPE
from tempscale_jobs.tables.tune import COLLAPSE, EXPOSURE, INTERVALS, SCORES
from tempscale_jobs.tune import collapse, corrections, findings, layers, scores, words
from tempscale_jobs.urls import masked
from tempscale_jobs.workers.cluster import check_reachable
from tempscale_jobs.workers.dispatch import Crew

CHOSEN = "temperature.json"
"""The file of the chosen temperature, which --temperature reads."""


@lifecycle.mended
def tune(config: TuneConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Choose a temperature, or resume the choice, and write tables, report, temperature.json and run.json.

    Raises:
        UsageError: the configuration, the model, a task, the corpus or the run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call resumes it.
    """
    config = config.fitting(folder.window(config))
    with lifecycle.locked(config, journal, fresh=fresh) as opening:
        states = _states(config)
        if opening.will_read:
            _check_inputs(config)
        with opening.run() as life:
            if not _finished(config, life, states, journal):
                _choose(config, life, states, journal)
    return life.run


def _finished(config: TuneConfig, life: Lifecycle, states: dict[str, Any], journal: Journal) -> bool:
    """Whether the run is complete, and its texts are still the same."""
    if life.finished is None:
        return False
    with journal.stage("choose") as stage:
        _check_unchanged(config, life.finished["states"], states)
        return not life.reopen_if_damaged(stage)


def _choose(config: TuneConfig, life: Lifecycle, states: dict[str, Any], journal: Journal) -> None:
    """Measure the candidates, choose one, and write the tables, the report and the choice."""
    run = life.run
    (model,) = run.models
    with life.cluster() as cluster:
        candidates, config = run.temperatures, life.with_precision(config, cluster)
        if config.choosing.layers:
            source = layers.SearchTexts(config, states)
            with Crew(run, cluster, model, config.embedding) as crew, journal.stage("search one τ a layer") as stage:
                result = layers.search(run, crew, model, source)
                stage.note = result["note"]
            candidates = candidates + [t for t in layers.candidate(result) if t not in candidates]
        if config.tasks:
            tables, choice = _choose_by_scores(config, run, candidates, list(states), journal)
        else:
            tables, choice = _choose_by_collapse(config, run, candidates, journal)
    with journal.stage("report on the choice") as stage:
        from tempscale_jobs.report.page import page
        from tempscale_jobs.tune import report  # What draws it is slow to import, and Ray starts before.

        frames = {name: pl.DataFrame(pl.from_arrow(table)) for name, table in tables.items()}
        tables["findings"] = findings.decide(frames).table()
        for name, table in tables.items():
            run.storage.write_table(f"tables/{name}.parquet", table)
        chosen = next(t for t in candidates if t.canonical == choice["chosen"])
        run.storage.write_json(CHOSEN, chosen.as_data(), plain=True)
        record = life.record(command=config.command, seed=config.seed, states=states, choice=choice)
        page(report.report_of(folder.load_tables(run.storage), record), record["config"]).write_to(run.storage)
        stage.note = REPORT


def _check_unchanged(config: TuneConfig, before: dict[str, Any], states: dict[str, Any]) -> None:
    """Raise if the texts changed since a finished run read them."""
    if before != states:
        raise UsageError(
            f"the texts changed since the run in '{masked(config.out)}' read them; start over with --fresh or choose "
            "another --out"
        )


def _check_inputs(config: TuneConfig) -> None:
    """Raise if the first rows of the corpus, or the files of your own tasks, cannot be used."""
    if config.tasks:
        tasks.check(tasks.expand(config.tasks), config.seed, columns_of(config.choosing.corrections))
    else:
        peek.first_items(TextShards(config.texts(), Embedding.model_validate({}), config.out), config.out)


def _states(config: TuneConfig) -> dict[str, Any]:
    """The states of the sources, which change when their texts do; raises if a task or the corpus cannot be found."""
    check_reachable(config.execution)
    if not config.tasks:
        return {"corpus": sources.content(config.texts(), config.out)}
    return {unit.name: tasks.state(unit) for unit in tasks.expand(config.tasks)}


def _choose_by_scores(
    config: TuneConfig, run: Run, candidates: list[Temperature], names: list[str], journal: Journal
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Evaluate the candidates and choose by scores; returns the table and the facts for run.json."""
    evaluation = evaluate(config.evaluation(candidates), journal)
    with journal.stage("choose") as stage:
        tables = folder.load_tables(evaluation.storage)
        items, relevant = (
            tables.get(f"evaluation_{name}", pl.DataFrame(schema={"task": pl.String})) for name in ("items", "relevant")
        )
        (model,), reference = run.models, candidates[0]
        units = [unit for unit in tasks.expand(config.tasks) if unit.name in names]
        measured = corrections.measured(evaluation, model, reference, units, config.choosing.corrections)
        if measured.recipes:
            items = pl.concat(
                [items, measured.items.select(set(measured.items.columns) & set(items.columns))], how="diagonal"
            )
        parts = scores.split(scores.Scored(items, relevant), names, config.choosing.held_out, config.seed)
        every: list[tuple[str, Temperature, str | None]] = [(t.canonical, t, None) for t in candidates]
        every += [(corrections.candidate(reference, recipe), reference, recipe) for recipe in measured.recipes]
        rows = scores.choose(parts, [label for label, *_ in every], config.seed)
        keyed = [run.key(model, t) | {"correction": recipe} | row for (_, t, recipe), row in zip(every, rows, strict=True)]
        facts = _facts([t for _, t, _ in every], rows) | {"by": "scores", "tasks": list(parts.dev)}
        facts |= {"left_out": parts.left_out, "correction": next(row["correction"] for row in keyed if row["chosen"])}
        facts["without_correction"] = measured.problems
        for recipe, fitted in measured.fitted.items():
            run.storage.write_json(words.file_of(recipe), model.fitted(reference, fitted), plain=True)
        stage.note = _note(facts)
    shown = [run.key(model, reference) | row for row in measured.exposure]
    return {SCORES.name: SCORES.build_rows(keyed), EXPOSURE.name: EXPOSURE.build_rows(shown)}, facts


def _choose_by_collapse(
    config: TuneConfig, run: Run, candidates: list[Temperature], journal: Journal
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Audit under the candidates and choose without labels; returns the tables and the facts for run.json."""
    audited = audit(config.audit(candidates), journal)
    with journal.stage("choose") as stage:
        (model,), reference = audited.models, candidates[0]
        every = [collapse.measured(audited, model, t) for t in candidates]
        corrected = (
            collapse.corrected(audited, model, reference, every[0]) if RECIPE in config.choosing.corrections else None
        )
        tried: list[tuple[Temperature, str | None]] = [(t, None) for t in candidates]
        if corrected is not None:
            every.append(corrected)
            tried.append((reference, RECIPE))
        rows, intervals = collapse.choose(every, config.choosing.keep_neighbours, config.choosing.intervals)
        keyed = [run.key(model, t) | {"correction": recipe} | row for (t, recipe), row in zip(tried, rows, strict=True)]
        tables = {
            COLLAPSE.name: COLLAPSE.build_rows(keyed),
            INTERVALS.name: INTERVALS.build_rows(
                [
                    run.key(model, t) | row
                    for t, interval_rows in zip(candidates, intervals, strict=False)
                    for row in interval_rows
                ]
            ),
        }
        facts = _facts([t for t, _ in tried], rows) | {"by": "collapse", "texts": len(every[0].texts)}
        facts["correction"] = next(row["correction"] for row in keyed if row["chosen"])
        if corrected is not None:
            measured = audited.storage.read_json(by_length.name(model, reference, "corpus"))
            run.storage.write_json(words.file_of(RECIPE), measured, plain=True)
        facts["probed"] = every[0].probe["text_id"].n_unique()
        stage.note = _note(facts)
    return tables, facts


def _facts(candidates: list[Temperature], rows: list[dict[str, Any]]) -> dict[str, Any]:
    place = next(k for k, row in enumerate(rows) if row["chosen"])
    chosen = candidates[place]
    foldable = chosen.is_foldable
    return {
        "chosen": chosen.canonical, "reference": candidates[0].canonical, "candidates": len(candidates),
        "changed": place != 0, "reason": rows[place]["reason"], "foldable": foldable,
    }  # fmt: skip


def _note(facts: dict[str, Any]) -> str:
    label = labels([facts["chosen"]])[facts["chosen"]]
    if facts.get("correction"):
        label = f"{label} with {facts['correction']}"
    return f"{label} of {count(facts['candidates'], 'candidate')}" if facts["changed"] else f"leave it at {label}"
