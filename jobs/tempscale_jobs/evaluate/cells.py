"""Score the cells of an evaluation on Ray; a worker keeps a task and its tokens from one temperature to the next."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tempscale.model.checkpoint import first_line
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.errors import UsageError
from tempscale_jobs.evaluate import tasks
from tempscale_jobs.evaluate.tasks import Evaluation, Unit, folder
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.tables.evaluate import ITEM_PART, RELEVANT_PART
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.crew import Crew


def done(run: Run, model: Model, temperature: Temperature, unit: Unit, state: Any) -> bool:
    """Whether a cell was scored on the task's files as they are now."""
    name = f"{folder(model, temperature, unit)}/result.json"
    return run.storage.exists(name) and run.storage.read_json(name)["state"] == state


def work(evaluation: Evaluation, crew: Crew, model: Model, advance: Callable[[int], None]) -> dict[tuple[str, str], str]:
    """Score the missing cells of a model; returns the reason for each failed cell, by task and canonical temperature."""
    run, pieces = evaluation.run, list[dict[str, Any]]()
    for unit in evaluation.units:
        state = tasks.state(unit)
        every = evaluation.temperatures(unit)
        missing = [t.canonical for t in every if not done(run, model, t, unit, state)]
        advance(len(every) - len(missing))
        # Pairs of roles share their embeddings, so one worker scores them all; otherwise each cell is a piece of work.
        together = [missing] if len(every) > len(evaluation.given) else [[canonical] for canonical in missing]
        pieces += [{"unit": unit._asdict(), "temperatures": own, "state": state} for own in together if own]
    shared = {
        "seed": evaluation.seed, "prompts": evaluation.embedding.prompts, "edges": evaluation.edges,
         "lengths_by": run.models[0].name, "max_length": run.models[0].max_length,
    }  # fmt: skip
    work = {k: pa.table({"spec": [json.dumps(piece | shared)]}) for k, piece in enumerate(pieces)}
    wrong: dict[tuple[str, str], str] = {}
    for number, report, lost in crew.attempt(write_cells, work):
        own = pieces[number]
        advance(len(own["temperatures"]))
        reasons = dict.fromkeys(own["temperatures"], f"task '{own['unit']['name']}': {lost}")
        for canonical, sentence in (reasons if report is None else report["wrong"]).items():
            unit = Unit(**own["unit"])
            # A worker that died after its last step has written the cell.
            if report is not None or not done(run, model, Temperature.of(canonical), unit, own["state"]):
                wrong[unit.name, canonical] = sentence
    return wrong


def write_cells(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Score one task and write its cells; a failure is reported and the other temperatures continue."""
    from tempscale_jobs.evaluate.scored import score

    spec = json.loads(work.column("spec")[0].as_py())
    unit, temperatures = Unit(**spec["unit"]), [Temperature.of(text) for text in spec["temperatures"]]
    report: dict[str, Any] = {"wrong": {}}
    loaded = _loaded(worker, unit, spec)
    if isinstance(loaded, str):
        return report | {"wrong": {t.canonical: loaded for t in temperatures}}
    task, model = loaded
    for temperature in temperatures:
        try:
            with worker.noting(f"{unit.slug} τ {temperature.slug}"):
                cell = score(task, model, temperature, len(temperatures) > 1 and any(t.roles for t in temperatures))
        except Exception as error:
            actor.end_if_lost(error)
            report["wrong"][temperature.canonical] = _sentence(unit.name, error)
            continue
        at = folder(worker.model, temperature, unit)
        worker.storage.remove(f"{at}/result.json")  # It may be of the same task before its files changed.
        worker.storage.write_table(f"{at}/items.parquet", ITEM_PART.build_rows(cell.items))
        worker.storage.write_table(f"{at}/relevant.parquet", RELEVANT_PART.build_rows(cell.relevant))
        texts = sum(len(own.ids) for own in model.seen)
        cut = sum(own.truncated for own in model.seen) / texts if texts else None
        facts = {"type": str(task.metadata.type), "metric": task.metadata.main_score, "truncated_share": cut}
        worker.storage.write_json(f"{at}/result.json", {"mteb": cell.result, "state": spec["state"]} | facts)
    worker.note_processor()
    return report


_holding: dict[str, tuple[Any, Any] | str] = {}
"""In a worker: the last task with the model that keeps the tokens of its texts, or the reason why it cannot be loaded."""


def _loaded(worker: actor.ModelActor, unit: Unit, spec: dict[str, Any]) -> tuple[Any, Any] | str:
    """The task with its data and the model that keeps its tokens, or a sentence on the failure."""
    from tempscale.model.checkpoint import resolve
    from tempscale.model.settings import Settings
    from tempscale_jobs.evaluate.mteb_model import MtebModel

    key = json.dumps([worker.storage.root, worker.model.fingerprint, {**spec, "temperatures": None}])
    if key not in _holding:
        _holding.clear()
        try:
            # The first model's tokenizer decides the lengths, so that every model gets the same texts.
            tokenizer = actor.tokenizer(spec["lengths_by"], spec["max_length"], "truncate")
            task = tasks.load(unit, spec["seed"], tokenizer, spec["edges"])
            settings = Settings.of(resolve(worker.model.name)) if spec["prompts"] == "model" else None
            own = worker.model
            model = MtebModel(worker.encoder, own.label, own.fingerprint, own.similarity, settings)
            _holding[key] = task, model
        except Exception as error:
            actor.end_if_lost(error)
            _holding[key] = _sentence(unit.name, error)
    return _holding[key]


def _sentence(name: str, error: Exception) -> str:
    if isinstance(error, UsageError):
        return str(error)
    return f"task '{name}' failed with {type(error).__name__}: {first_line(error)}"
