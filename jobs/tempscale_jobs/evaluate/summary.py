"""Scored cells -> the tables of `tempscale evaluate`, and results in mteb's layout."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tempscale.stats import paired
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.evaluate import analyses, findings
from tempscale_jobs.evaluate.tasks import Evaluation, RunTask, folder
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.tables.columns import SCHEMA_VERSION, Table
from tempscale_jobs.tables.evaluate import (
    CORRELATIONS,
    ENDS,
    EVALUATION,
    ITEMS,
    LENGTHS,
    MODELS,
    RELEVANT,
    ROLES,
    TABLES,
    TYPES,
)

_NONE = dict.fromkeys(("change", "change_se", "relative", "items", "truncated_share", "problem", "score", "score_se"))


class Part(NamedTuple):
    """One split and subset of a cell."""

    score: float
    items: pl.DataFrame
    relevant: pl.DataFrame
    drawn: np.ndarray | None
    """The score of each experiment, where the experiments learn from different draws of texts."""


class Cell(NamedTuple):
    """A scored cell, as read from the run folder."""

    result: dict[str, Any]
    items: pl.DataFrame
    relevant: pl.DataFrame

    def parts(self) -> dict[tuple[str, str], Part]:
        """Each split and subset."""
        parts: dict[tuple[str, str], Part] = {}
        for split, scores in self.result["mteb"]["scores"].items():
            for row in scores:
                here = (pl.col("split") == split) & (pl.col("subset") == row["hf_subset"])
                each = [scores.get(self.result["metric"]) for scores in row.get("scores_per_experiment") or []]
                drawn = np.array(each, dtype=np.float64) if len(each) > 1 and None not in each else None
                tables = (self.items.filter(here), self.relevant.filter(here))
                parts[split, row["hf_subset"]] = Part(float(row["main_score"]), *tables, drawn)
        return parts

    def score(self) -> float:
        """The task's main score: the mean over splits and subsets."""
        return statistics.fmean(row["main_score"] for scores in self.result["mteb"]["scores"].values() for row in scores)


_PARTS = ("items", "relevant")
Cells = dict[tuple[str, str, str], Cell]
"""By model label, canonical temperature and task."""


def load(evaluation: Evaluation, missing: Mapping[tuple[str, str, str], str]) -> Cells:
    """Read all scored cells."""
    run, cells = evaluation.run, Cells()
    for model in run.models:
        for temperature in run.temperatures:
            for unit in evaluation.units:
                key = (model.label, temperature.canonical, unit.name)
                if key not in missing and temperature in evaluation.temperatures(unit):
                    at = folder(model, temperature, unit)
                    tables = (pl.DataFrame(pl.from_arrow(run.storage.read_table(f"{at}/{n}.parquet"))) for n in _PARTS)
                    cells[key] = Cell(run.storage.read_json(f"{at}/result.json"), *tables)
    return cells


def summarise(
    evaluation: Evaluation, compared: ComparedAudits, missing: Mapping[tuple[str, str, str], str]
) -> dict[str, pa.Table]:
    """Write the tables of the run and return them by name; `missing` has the reason for each missing cell."""
    run, units, cells = evaluation.run, evaluation.units, load(evaluation, missing)
    rows: dict[Table, list[dict[str, Any]]] = {table: [] for table in TABLES}
    for model in run.models:
        for temperature in run.temperatures:
            key, errors = run.key(model, temperature), dict[str, list[float | None]]()
            for unit in units:
                if temperature not in evaluation.temperatures(unit):
                    continue
                cell = cells.get((model.label, temperature.canonical, unit.name))
                first = cells.get((model.label, run.temperatures[0].canonical, unit.name))
                if cell is None:
                    why = missing[model.label, temperature.canonical, unit.name]
                    where = {"task": unit.name, "split": None, "subset": None, "type": None, "metric": None}
                    rows[EVALUATION].append(key | where | _NONE | _taus(temperature) | {"problem": why})
                    continue
                cell_rows = of_cell(evaluation, temperature, unit, cell, first)
                errors[unit.name] = [row["change_se"] for row in cell_rows[EVALUATION]]
                for table, table_rows in cell_rows.items():
                    rows[table] += [key | row for row in table_rows]
            if temperature in evaluation.given:
                rows[TYPES] += [key | row for row in _types(evaluation, cells, model, temperature, errors)]
    analyses.mark_best(rows[LENGTHS])
    correlations, models = compare(evaluation, compared, cells)
    rows[CORRELATIONS] += correlations
    rows[MODELS] += models
    tables = {table.name: table.build_rows(rows[table]) for table in TABLES if table not in (ITEMS, RELEVANT)}
    tables |= {table.name: _joined(run, table, cells) for table in (ITEMS, RELEVANT)}
    tables = {name: table for name, table in tables.items() if len(table) or name == EVALUATION.name}
    frames = {
        name: pl.DataFrame(pl.from_arrow(table)) for name, table in tables.items() if name not in (ITEMS.name, RELEVANT.name)
    }
    tables["findings"] = findings.decide(frames).table()
    for table in TABLES:  # Remove tables of an earlier, incomplete attempt.
        if table.name not in tables:
            run.storage.remove(f"tables/{table.name}.parquet")
    for name, table in tables.items():
        run.storage.write_table(f"tables/{name}.parquet", table)
    return tables


def of_cell(
    evaluation: Evaluation, temperature: Temperature, unit: RunTask, cell: Cell, first: Cell | None
) -> dict[Table, list[dict[str, Any]]]:
    """The rows of one cell, without their key columns."""
    run, edges = evaluation.run, evaluation.edges
    rows: dict[Table, list[dict[str, Any]]] = {EVALUATION: [], LENGTHS: [], ENDS: [], ROLES: []}
    before = {} if first is None else first.parts()
    for (split, subset), part in cell.parts().items():
        where, base = {"task": unit.name, "split": split, "subset": subset}, before.get((split, subset))
        error, change = score_errors(part, base, evaluation.seed)
        base_score = None if base is None else base.score
        changed = {"change": None if base_score is None else part.score - base_score, "change_se": change}
        facts = {
            "type": cell.result["type"], "metric": cell.result["metric"], "score": part.score, "score_se": error,
            "items": len(part.items) or None, "truncated_share": cell.result["truncated_share"], "problem": None,
            "relative": None if not base_score else (part.score - base_score) / abs(base_score),
        }  # fmt: skip
        rows[EVALUATION].append(where | facts | changed | _taus(temperature))
        items, relevant = (None, None) if base is None else (base.items, base.relevant)
        rows[LENGTHS] += [where | row for row in analyses.by_length(part.items, items, part.relevant, edges)]
        rows[ENDS] += [where | row for row in analyses.shortest_and_longest(part.items, items, part.relevant, relevant)]
        if evaluation.embedding.role_grid and unit.sides:
            taus = _taus(temperature) if temperature.roles else dict.fromkeys(_taus(temperature), temperature.tau)
            if None not in taus.values():
                case = analyses.case(taus["query_tau"], taus["document_tau"], run.temperatures[0].tau)
                rows[ROLES].append(where | taus | {"case": case, "score": part.score} | changed)
    return rows


def score_errors(own: Part, base: Part | None, seed: int) -> tuple[float | None, float | None]:
    """The standard errors of a part's score and of its change against the first temperature; None where not known.

    Two variances add: that of other items, where windows share texts and queries documents, and that of a classifier's
    training texts.
    """
    items = own.items
    if items.is_empty():
        return None, None
    both = (
        None if base is None else items.join(base.items, on="item", suffix="_first", maintain_order="left", validate="1:1")
    )
    if items["value"].null_count() == 0:
        errors = [analyses.mean_of(items["value"], items, own.relevant).se, None]
        if both is not None:
            errors[1] = analyses.mean_of(both["value"] - both["value_first"], items, own.relevant).se
    elif items["predicted"].null_count() == 0:
        predicted, gold = items["predicted"].to_numpy(), items["gold"].to_numpy()
        errors = [paired.rank_correlation(predicted, gold, None, seed).se, None]
        if both is not None:
            first = both["predicted_first"].to_numpy()
            errors[1] = 0.0 if np.array_equal(predicted, first) else paired.rank_correlation(predicted, gold, first, seed).se
    else:
        return None, None
    if own.drawn is not None:
        errors[0] = analyses.together(errors[0], own.drawn)
        if base is not None and base.drawn is not None:
            errors[1] = analyses.together(errors[1], own.drawn - base.drawn)
    return errors[0], errors[1]


def _taus(temperature: Temperature) -> dict[str, float | None]:
    roles = dict(temperature.roles)
    return {f"{role}_tau": roles[role].tau if role in roles else None for role in ("query", "document")}


def _types(
    evaluation: Evaluation, cells: Cells, model: Model, temperature: Temperature,
    errors: Mapping[str, Sequence[float | None]],
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of mean scores over the tasks that this model has scores for under every temperature.

    `errors` has the standard errors of the changes of each task's parts.
    """
    labels = [t.canonical for t in evaluation.given]
    whole = [u.name for u in evaluation.units if all((model.label, t, u.name) in cells for t in labels)]
    types: dict[str, list[str]] = {}
    for name in whole:
        types.setdefault(cells[model.label, labels[0], name].result["type"], []).append(name)
    groups: list[tuple[str, str | None, list[str]]] = [("type", kind, names) for kind, names in types.items()]
    if whole:
        groups += [("types", None, whole), ("tasks", None, whole)]
    rows = []
    for over, kind, names in groups:
        score, first = (
            _mean_score([cells[model.label, t, name] for name in names], over == "types")
            for t in (temperature.canonical, labels[0])
        )
        error = mean_error(errors, list(types.values()) if over == "types" else [names])
        rows.append(
            {"over": over, "type": kind, "tasks": len(names), "score": score, "change": score - first, "change_se": error}
            | {"change_spread_se": None if over == "types" else _spread(cells, model, temperature, labels[0], names)}
            | {"relative": (score - first) / abs(first) if first else None}
        )
    return rows


def _spread(cells: Cells, model: Model, temperature: Temperature, first: str, names: Sequence[str]) -> float | None:
    """The standard error of a mean change for tasks drawn like these, from the spread of the tasks' changes."""
    labels = (temperature.canonical, first)
    scores, first_scores = ([cells[model.label, label, name].score() for name in names] for label in labels)
    return paired.mean(np.array(scores) - np.array(first_scores)).se


def _mean_score(cells: Sequence[Cell], by_type: bool) -> float:
    if not by_type:
        return statistics.fmean(cell.score() for cell in cells)
    kinds = {cell.result["type"] for cell in cells}
    return statistics.fmean(statistics.fmean(c.score() for c in cells if c.result["type"] == kind) for kind in kinds)


def mean_error(errors: Mapping[str, Sequence[float | None]], groups: list[list[str]]) -> float | None:
    """The standard error of the mean of the groups' mean changes, with independent tasks; None where a task has none."""
    squares = []
    for names in groups:
        for name in names:
            for error in errors[name]:
                if error is None:
                    return None
                squares.append((error / len(errors[name]) / len(names) / len(groups)) ** 2)
    return float(np.sqrt(sum(squares))) if squares else None


def _joined(run: Run, table: Table, cells: Cells) -> pa.Table:
    """All items, or all relevant documents, with the keys of their cells."""
    keys = {(m.label, t.canonical): run.key(m, t) for m in run.models for t in run.temperatures}
    parts = []
    for (label, canonical, _), cell in cells.items():
        rows = cell.items if table is ITEMS else cell.relevant
        whole = rows.with_columns(pl.lit(value).alias(name) for name, value in keys[label, canonical].items())
        parts.append(whole.select(table.schema().names).to_arrow().cast(table.schema()))
    return pa.concat_tables(parts) if parts else table.schema().empty_table()


@dataclass(frozen=True)
class ComparedAudits:
    """The finished audits whose SOCM the scores are compared with, and the backbone of each model."""

    audits: list[str]
    backbones: dict[str, str]


def compare(
    evaluation: Evaluation, compared: ComparedAudits, cells: Cells
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Compare scores with audits: rows of correlations over models, and rows of each model with its backbone."""
    if not compared.audits and not compared.backbones:
        return [], []
    run, units = evaluation.run, evaluation.units
    from tempscale_jobs.evaluate import audits

    scores: list[dict[str, Any]] = []
    for model in run.models:
        for temperature in run.temperatures:
            by_task = {u.name: cells.get((model.label, temperature.canonical, u.name)) for u in units}
            known = {name: cell.score() for name, cell in by_task.items() if cell is not None}
            whole = statistics.fmean(known.values()) if len(known) == len(units) else None
            at: dict[str, Any] = {"model": model.label, "fingerprint": model.fingerprint}
            at["temperature"] = temperature.canonical
            scores += [at | {"task": name, "score": score} for name, score in [*known.items(), (None, whole)]]
    measured = audits.measures(compared.audits)
    rows = []
    for row in audits.against_backbones(measured, scores, compared.backbones):
        key = {"tau": Temperature.of(row["temperature"]).tau, "schema_version": SCHEMA_VERSION}
        rows.append({name: (row | key)[name] for name in MODELS.schema().names})
    return audits.correlations(measured, scores), rows


FOLDER = "mteb/results"


def write(evaluation: Evaluation, missing: Mapping[tuple[str, str, str], str]) -> None:
    """Write the result of each cell in mteb's layout, in which each temperature of a model is a separate model."""
    from mteb.models.model_meta import ModelMeta

    run = evaluation.run
    run.storage.remove(FOLDER)  # An earlier attempt may have used other files.
    for model in run.models:
        for temperature in run.temperatures:
            name = f"tempscale/{model.label}_tau-{temperature.slug}"
            at = f"{FOLDER}/{name.replace('/', '__')}/{model.fingerprint}"
            units = [u for u in evaluation.units if temperature in evaluation.temperatures(u)]
            scored = [u for u in units if (model.label, temperature.canonical, u.name) not in missing]
            for unit in scored:
                result = run.storage.read_json(f"{folder(model, temperature, unit)}/result.json")["mteb"]
                run.storage.write_json(f"{at}/{unit.slug}.json", result, durable=False, plain=True)
            if scored:
                facts = {"name": name, "revision": model.fingerprint, "framework": ["PyTorch"]}
                meta = ModelMeta.create_empty(facts)
                run.storage.write_json(f"{at}/model_meta.json", meta.to_dict(), durable=False, plain=True)
