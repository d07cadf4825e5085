"""Score the cells of an evaluation on Ray; a worker keeps a task and its tokens for the next temperature.

A task with a large corpus is scored later, after all workers have embedded its documents: see `documents`.
"""

from __future__ import annotations

from typing import Any

from tempscale.correction.recipes import columns_of
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.evaluate import documents, tasks
from tempscale_jobs.evaluate.corrected import Corrections
from tempscale_jobs.evaluate.documents import Call, Large
from tempscale_jobs.evaluate.loaded_task import load_once, sentence
from tempscale_jobs.evaluate.tasks import Evaluation, RunTask, corrected_folder, folder
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.tables.evaluate import EXPOSURE_PART, ITEM_PART, RELEVANT_PART
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Crew, Piece


def done(run: Run, model: Model, temperature: Temperature, unit: RunTask, state: Any) -> bool:
    """Whether a cell was scored on the task's files as they are now."""
    name = f"{folder(model, temperature, unit)}/result.json"
    return run.storage.exists(name) and run.storage.read_json(name)["state"] == state


def work(evaluation: Evaluation, crew: Crew, model: Model, stage: Stage) -> tuple[dict[tuple[str, str], str], list[Large]]:
    """Score a model's missing cells; return why cells failed, by task and temperature, and the tasks with a large corpus."""
    run, pieces = evaluation.run, list[dict[str, Any]]()
    shared = {
        "seed": evaluation.seed, "prompts": evaluation.embedding.prompts, "edges": evaluation.edges,
        "lengths_by": run.models[0].name, "settings_of_lengths": run.models[0].settings,
        "max_length": run.models[0].max_length, "piece_texts": tasks.PIECE_TEXTS,
        "reference": evaluation.given[0].canonical, "corrections": evaluation.corrections.model_dump(),
        "columns": columns_of(evaluation.corrections.recipes),
    }  # fmt: skip
    for unit in evaluation.units:
        state = evaluation.states[unit.name]
        temperatures = evaluation.temperatures(unit)
        missing = [t.canonical for t in temperatures if not done(run, model, t, unit, state)]
        stage.advance(len(temperatures) - len(missing))
        # Pairs of roles share embeddings, so one worker scores them all; otherwise each cell is a piece of work.
        groups = [missing] if len(temperatures) > len(evaluation.given) else [[canonical] for canonical in missing]
        spec = shared | {"unit": unit._asdict(), "state": state}
        pieces += [spec | {"temperatures": group, "embedded": False} for group in groups if group]
    return _attempted(run, crew, model, pieces, stage)


def work_on(large: Large, run: Run, crew: Crew, model: Model, stage: Stage) -> dict[tuple[str, str], str]:
    """Score the cells of a task whose documents are embedded; return why cells failed, as `work` does."""
    pieces = [large.spec | {"temperatures": [t.canonical], "embedded": True} for t in large.temperatures]
    return _attempted(run, crew, model, pieces, stage)[0]


def _attempted(
    run: Run, crew: Crew, model: Model, specs: list[dict[str, Any]], stage: Stage
) -> tuple[dict[tuple[str, str], str], list[Large]]:
    """Let the crew score cells; return why cells failed, and the tasks to be scored later."""
    work = [
        # A task takes equally long under all temperatures.
        Piece(
            k, (spec,), f"task {spec['unit']['name']} τ {', '.join(spec['temperatures'])}", size=len(spec["temperatures"]),
            alike=f"{len(spec['temperatures'])} {spec['unit']['name']}",
        )
        for k, spec in enumerate(specs)
    ]  # fmt: skip
    wrong: dict[tuple[str, str], str] = {}
    later: dict[int, list[Call]] = {}
    for piece, report, failure in crew.attempt(write_cells, work):
        spec, unit = specs[piece.number], RunTask(**specs[piece.number]["unit"])
        if report is not None and report["calls"]:
            later[piece.number] = [Call(*call) for call in report["calls"]]
            continue
        stage.advance(piece.size)
        reasons = dict.fromkeys(spec["temperatures"], f"task '{unit.name}': {failure}")
        for canonical, why in (reasons if report is None else report["wrong"]).items():
            # A worker that died in the end may have written the cell.
            if report is not None or not done(run, model, Temperature.of(canonical), unit, spec["state"]):
                wrong[unit.name, canonical] = why
    large: dict[str, Large] = {}
    for number in sorted(later):
        spec, unit = specs[number], RunTask(**specs[number]["unit"])
        task = large.setdefault(unit.name, Large(unit, spec, [], later[number]))
        task.temperatures.extend(map(Temperature.of, spec["temperatures"]))
    return wrong, list(large.values())


def write_cells(worker: actor.ModelActor, spec: dict[str, Any]) -> dict[str, Any]:
    """Score one task and write its cells; report failures, or the calls for documents that nobody has tried to embed."""
    from tempscale_jobs.evaluate.scored import ScoringOptions, score

    unit, temperatures = RunTask(**spec["unit"]), [Temperature.of(text) for text in spec["temperatures"]]
    report: dict[str, Any] = {"wrong": {}, "calls": []}
    loaded = load_once(worker, spec)
    if isinstance(loaded, str):
        return report | {"wrong": {t.canonical: loaded for t in temperatures}}
    task, model = loaded
    embedded = None
    if spec["embedded"]:
        embedded = documents.reader(worker.storage, worker.model, unit)
    elif calls := _calls(task, model):
        return report | {"calls": calls}
    for temperature in temperatures:
        try:
            with worker.noting(f"{unit.slug} τ {temperature.slug}"):
                keep = len(temperatures) > 1 and any(t.roles for t in temperatures)
                corrections = None
                if temperature.canonical == spec["reference"]:
                    corrections = Corrections(**spec["corrections"], seed=spec["seed"])
                cell = score(task, model, temperature, ScoringOptions(keep, embedded, corrections))
        except Exception as error:
            actor.end_if_lost(error)
            report["wrong"][temperature.canonical] = sentence(unit.name, error)
            continue
        at = folder(worker.model, temperature, unit)
        worker.storage.remove(f"{at}/result.json")  # The task's files may have changed since it was written.
        worker.storage.write_table(f"{at}/items.parquet", ITEM_PART.build_rows(cell.items))
        worker.storage.write_table(f"{at}/relevant.parquet", RELEVANT_PART.build_rows(cell.relevant))
        for corrected in cell.corrected:
            place = corrected_folder(at, corrected.recipe)
            worker.storage.write_table(f"{place}/items.parquet", ITEM_PART.build_rows(corrected.items))
            worker.storage.write_table(f"{place}/exposure.parquet", EXPOSURE_PART.build_rows(corrected.exposure))
            worker.storage.write_json(f"{place}/fitted.json", {"fitted": corrected.fitted, "problem": corrected.problem})
        texts = sum(len(call.ids) for call in model.seen)
        cut = sum(call.truncated for call in model.seen) / texts if texts else None
        facts = {"type": str(task.metadata.type), "metric": task.metadata.main_score, "truncated_share": cut}
        worker.storage.write_json(f"{at}/result.json", {"mteb": cell.result, "state": spec["state"]} | facts)
    worker.note_processor()
    return report


def _calls(task: Any, model: Any) -> list[Call]:
    """See `documents.calls`; empty for a task of unknown form, whose cell reports the error."""
    try:
        return documents.calls(task, model)
    except Exception as error:
        actor.end_if_lost(error)
        return []
