"""Read scores and exposures with corrections of embeddings from the parts of scored tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.evaluate.tasks import PLAIN, RunTask, corrected_folder, folder
from tempscale_jobs.runs.folder import Model, Run


class Comparable(NamedTuple):
    """The corrections that can be compared with temperatures."""

    recipes: list[str]
    """The corrections with a score for every task."""
    items: pl.DataFrame
    """Their items, with the columns of `evaluation_items`; `temperature` names the candidate."""
    exposure: list[dict[str, Any]]
    """Rows of `tuning_exposure`, without key columns."""
    fitted: dict[str, list[dict[str, Any]]]
    """Each correction as data, for each task, split and subset."""
    problems: dict[str, str]
    """Why others were left out, by recipe, or by task if the task has no corrections."""


def candidate(reference: Temperature, recipe: str) -> str:
    """The name of a correction at the first temperature as a candidate."""
    return f"{reference.canonical} + {recipe}"


def measured(
    done: Run, model: Model, reference: Temperature, units: Sequence[RunTask], recipes: Sequence[str]
) -> Comparable:
    """Read the parts of a finished scoring of tasks."""
    result = Comparable([], pl.DataFrame(), [], {}, {})
    storage, frames = done.storage, list[pl.DataFrame]()
    cells = {unit.name: folder(model, reference, unit) for unit in units}
    without = [name for name, cell in cells.items() if not storage.exists(f"{corrected_folder(cell, PLAIN)}/fitted.json")]
    if without and recipes:
        result.problems.update(dict.fromkeys(without, "no retrieval, so nothing asks"))
        return result
    for recipe in recipes:
        fitted = {name: storage.read_json(f"{corrected_folder(cell, recipe)}/fitted.json") for name, cell in cells.items()}
        problem = next((f"{data['problem']} (task {name})" for name, data in fitted.items() if data["problem"]), None)
        if problem is not None:
            result.problems[recipe] = problem
            continue
        result.recipes.append(recipe)
        result.fitted[recipe] = [{"task": name} | data for name, task in fitted.items() for data in task["fitted"]]
        label = pl.lit(candidate(reference, recipe)).alias("temperature")
        for cell in cells.values():
            frames += [
                t.with_columns(label) for t in storage.read_frames([f"{corrected_folder(cell, recipe)}/items.parquet"])
            ]
    for recipe in [PLAIN, *result.recipes] if recipes else []:
        for cell in cells.values():
            for table in storage.read_frames([f"{corrected_folder(cell, recipe)}/exposure.parquet"]):
                result.exposure.extend({"correction": None if recipe == PLAIN else recipe} | row for row in table.to_dicts())
    return result._replace(items=pl.concat(frames) if frames else result.items)
