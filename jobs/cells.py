"""Cells of an evaluation on Ray: a worker keeps a task and its tokens from one temperature to the next."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from jobs import actor, tasks
from jobs.crew import Crew
from jobs.errors import UsageError
from jobs.evaluate_schema import CELLS, ITEM_PART, RELEVANT_PART
from jobs.runs import Model
from jobs.tasks import Evaluation, Unit, folder
from tempscale.checkpoint import first_line
from tempscale.temperature import Temperature


def done(run: Evaluation, model: Model, temperature: Temperature, unit: Unit, state: Any) -> bool:
    """Whether a cell is there, made from the files as they are."""
    name = f"{folder(run, model, temperature, unit)}/result.json"
    return run.storage.exists(name) and run.storage.read_json(name)["state"] == state


def work(
    run: Evaluation, crew: Crew, model: Model, units: Sequence[Unit], advance: Callable[[int], None]
) -> dict[tuple[str, str], str]:
    """Score every task under every temperature, but for the cells that are there.

    Returns:
        What went wrong, by (task, canonical temperature) of each cell that is missing.

    Raises:
        IncompleteRun: a worker failed for good.
    """
    pieces: list[dict[str, Any]] = []
    for unit in units:
        state = tasks.state(unit)
        every = unit.temperatures(run)
        missing = [t.canonical for t in every if not done(run, model, t, unit, state)]
        advance(len(every) - len(missing))
        # Pairs of roles share their embeddings, so one worker takes them all; else a cell is a piece of work.
        together = [missing] if len(every) > len(tasks.given(run)) else [[canonical] for canonical in missing]
        pieces += [{"unit": unit._asdict(), "temperatures": own, "state": state} for own in together if own]
    config = run.config
    shared = {
        "seed": config.seed, "prompts": config.embedding.prompts, "edges": config.analysis.intervals,
         "lengths_by": run.models[0].name, "max_length": run.models[0].max_length,
    }  # fmt: skip
    work = {k: pa.table({"spec": [json.dumps(piece | shared)]}) for k, piece in enumerate(pieces)}
    wrong: dict[tuple[str, str], str] = {}
    for number, report, lost in crew.attempt(leave_cells, work):
        own = pieces[number]
        advance(len(own["temperatures"]))
        told = dict.fromkeys(own["temperatures"], f"task '{own['unit']['name']}': {lost}")
        for canonical, sentence in (told if report is None else report["wrong"]).items():
            unit = Unit(**own["unit"])
            # What died behind its last step is there.
            if report is not None or not done(run, model, Temperature.of(canonical), unit, own["state"]):
                wrong[unit.name, canonical] = sentence
    return wrong


def leave_cells(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Score one task and write its cells; what fails is told, and the other temperatures go on."""
    from jobs.scored import score

    spec = json.loads(work.column("spec")[0].as_py())
    unit, temperatures = Unit(**spec["unit"]), [Temperature.of(text) for text in spec["temperatures"]]
    report: dict[str, Any] = {"wrong": {}}
    held = _held(worker, unit, spec)
    if isinstance(held, str):
        return report | {"wrong": {t.canonical: held for t in temperatures}}
    task, model = held
    for temperature in temperatures:
        try:
            with worker.noting(f"{unit.slug} τ {temperature.slug}"):
                cell = score(task, model, temperature, len(temperatures) > 1 and any(t.roles for t in temperatures))
        except Exception as error:
            actor.end_if_lost(error)
            report["wrong"][temperature.canonical] = _sentence(unit.name, error)
            continue
        at = f"{CELLS}/model={worker.model.label}/temperature={temperature.slug}/task={unit.slug}"
        worker.storage.remove(f"{at}/result.json")  # Of the same task before its files changed.
        worker.storage.write_table(f"{at}/items.parquet", ITEM_PART.build_rows(cell.items))
        worker.storage.write_table(f"{at}/relevant.parquet", RELEVANT_PART.build_rows(cell.relevant))
        texts = sum(len(own.ids) for own in model.seen)
        cut = sum(own.truncated for own in model.seen) / texts if texts else None
        facts = {"type": str(task.metadata.type), "metric": task.metadata.main_score, "truncated_share": cut}
        worker.storage.write_json(f"{at}/result.json", {"mteb": cell.result, "state": spec["state"]} | facts)
    worker.note_processor()
    return report


_holding: dict[str, tuple[Any, Any] | str] = {}
"""In a worker: the task that it scored last, with the tokens of its texts, or why it cannot be had."""


def _held(worker: actor.ModelActor, unit: Unit, spec: dict[str, Any]) -> tuple[Any, Any] | str:
    """The task with its data and the model that remembers its tokens, or a sentence."""
    from jobs.mteb_model import MtebModel

    key = json.dumps([worker.storage.root, worker.model.fingerprint, {**spec, "temperatures": None}])
    if key not in _holding:
        _holding.clear()
        try:
            # Lengths by the first model's tokenizer: every model is asked about the same texts.
            tokenizer = actor.tokenizer(spec["lengths_by"], spec["max_length"], "truncate")
            task = tasks.load(unit, spec["seed"], tokenizer, spec["edges"])
            prompts = tasks.prompts(worker.model.name) if spec["prompts"] == "model" else None
            model = MtebModel(worker.encoder, worker.model.label, worker.model.fingerprint, prompts)
            _holding[key] = task, model
        except Exception as error:
            actor.end_if_lost(error)
            _holding[key] = _sentence(unit.name, error)
    return _holding[key]


def _sentence(name: str, error: Exception) -> str:
    if isinstance(error, UsageError):
        return str(error)
    return f"task '{name}' failed with {type(error).__name__}: {first_line(error)}"
