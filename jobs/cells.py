"""Cells of an evaluation on Ray: one worker scores a task under every temperature, tokenising its texts once."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from jobs import actor
from jobs.errors import UsageError
from jobs.evaluate_config import EvaluateConfig, OwnTask
from jobs.evaluate_schema import CELLS, ITEM_PART, RELEVANT_PART
from jobs.runs import Model, RunOf
from tempscale.checkpoint import first_line, read_json
from tempscale.temperature import Temperature

Evaluation = RunOf[EvaluateConfig]
_PROMPTS = "config_sentence_transformers.json"


def named(task: str | OwnTask) -> str:
    """The task's name."""
    return task if isinstance(task, str) else task.name


def folder(run: Evaluation, model: Model, temperature: Temperature, task: str) -> str:
    """Where a cell's parts lie; `result.json` is written last."""
    return f"{run.place(CELLS, model, temperature)}/task={_slug(task)}"


def done(run: Evaluation, model: Model, temperature: Temperature, task: str) -> bool:
    """Whether a cell is there."""
    return run.storage.exists(f"{folder(run, model, temperature, task)}/result.json")


def work(run: Evaluation, crew: actor.Crew, model: Model, tasks: list[str | OwnTask], on_cells: Any) -> dict[str, str]:
    """Score every task under every temperature, but for the cells that are there.

    Returns:
        What went wrong, by «task, temperature» of each cell that is missing.

    Raises:
        IncompleteRun: a worker failed for good.
    """
    pieces: dict[int, pa.Table] = {}
    for number, task in enumerate(tasks):
        missing = [t.canonical for t in run.temperatures if not done(run, model, t, named(task))]
        on_cells(len(run.temperatures) - len(missing))
        if missing:
            plain = task if isinstance(task, str) else task.model_dump(mode="json")
            spec = {"task": plain, "temperatures": missing, "seed": run.config.seed, "prompts": run.config.embedding.prompts}
            spec |= {"edges": run.config.analysis.intervals}
            pieces[number] = pa.table({"spec": [json.dumps(spec)]})
    wrong: dict[str, str] = {}
    for report in crew.work(leave_cells, pieces):
        on_cells(report["texts"])
        wrong |= report["wrong"]
    return wrong


def leave_cells(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Score one task and write its cells; what fails is told, and the other temperatures go on."""
    from jobs.mteb_model import MtebModel
    from jobs.scored import score

    spec = json.loads(work.column("spec")[0].as_py())
    own = spec["task"] if isinstance(spec["task"], str) else OwnTask.model_validate(spec["task"])
    temperatures = [Temperature.of(text) for text in spec["temperatures"]]
    report: dict[str, Any] = {"number": number, "texts": len(temperatures), "wrong": {}}
    try:
        task = _loaded(own, spec["seed"])
    except Exception as error:
        return report | {"wrong": {f"{named(own)}, τ {t.canonical}": _sentence(named(own), error) for t in temperatures}}
    prompts = _prompts(worker.model.name) if spec["prompts"] == "model" else None
    model = MtebModel(worker.encoder, worker.model.label, worker.model.fingerprint, prompts)
    for temperature in temperatures:
        try:
            cell = score(task, model, temperature, keep=any(t.roles for t in temperatures))
        except Exception as error:
            report["wrong"][f"{named(own)}, τ {temperature.canonical}"] = _sentence(named(own), error)
            continue
        at = f"{CELLS}/model={worker.model.label}/temperature={temperature.slug}/task={_slug(named(own))}"
        worker.storage.write_table(f"{at}/items.parquet", ITEM_PART.build_rows(cell.items))
        worker.storage.write_table(f"{at}/relevant.parquet", RELEVANT_PART.build_rows(cell.relevant))
        texts = sum(len(own.ids) for own in model.seen)
        cut = sum(own.truncated for own in model.seen) / texts if texts else None
        facts = {"type": str(task.metadata.type), "metric": task.metadata.main_score, "truncated_share": cut}
        worker.storage.write_json(f"{at}/result.json", {"mteb": cell.result} | facts)
    return report


def _loaded(own: str | OwnTask, seed: int) -> Any:
    import mteb

    if isinstance(own, OwnTask):
        from jobs import own_tasks

        return own_tasks.build(own, seed)
    task = mteb.get_task(own)
    task.load_data()
    return task


def _sentence(name: str, error: Exception) -> str:
    if isinstance(error, UsageError):
        return str(error)
    if isinstance(error, (ConnectionError, TimeoutError)) or "Hub" in str(error):
        return (
            f"task '{name}' needs the network, which does not answer ({first_line(error)}); start the same command again "
            "where it does, or give the data as a task of your own"
        )
    return f"task '{name}' failed with {type(error).__name__}: {first_line(error)}"


def _prompts(model: str) -> dict[str, str]:
    """The prompts that a sentence-transformers folder names; none where it names none."""
    from tempscale.checkpoint import resolve

    found = read_json(resolve(model) / _PROMPTS, {})
    return {name: text for name, text in (found.get("prompts") or {}).items() if isinstance(text, str)}


def _slug(name: str) -> str:
    """A task's name as a folder's: mteb's names hold no slash, but may hold what a file system dislikes."""
    return "".join(c if c.isalnum() or c in "._-" else f"%{ord(c):02x}" for c in name)
