"""Tables of `tempscale evaluate` -> one self-contained HTML page."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.evaluate import charts as figures
from tempscale_jobs.evaluate import words as sentences
from tempscale_jobs.report.page import Page, page
from tempscale_jobs.report.text import interval_name, labels, number, with_error

_CASES = ("neither", "both", "query only", "document only")


def render(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Page:
    """The report of a run of `evaluate`, from its tables by name and the content of run.json."""
    names = labels(tables["evaluation"]["temperature"].unique(maintain_order=True))
    labelled, models = _labelled(tables, names), of_models(tables, run)
    charts = {f"{m['id']}-{key}": chart for m in models for key, chart in m["charts"].items() if chart is not None}
    together = _together(labelled)
    if together is not None and together["charts"]["correlation"] is not None:
        charts["all-correlation"] = together["charts"]["correlation"]
    steps = {step: record["seconds"] for step, record in run.get("steps", {}).items()}
    return page("evaluate.html.j2", run, charts, steps, models=models, temperatures=names, together=together)


def of_models(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> list[dict[str, Any]]:
    """One section per model for a report page: its id, name, sentences, charts and tables."""
    labelled = _labelled(tables, labels(tables["evaluation"]["temperature"].unique(maintain_order=True)))
    every = labelled["evaluation"]["model"].unique(maintain_order=True)
    return [_model(place, name, labelled, run["config"]["analysis"]["intervals"]) for place, name in enumerate(every)]


def _labelled(tables: dict[str, pl.DataFrame], names: dict[str, str]) -> dict[str, pl.DataFrame]:
    """The tables of a page, with labels in place of temperatures and tasks."""
    labelled = {key: table for key, table in tables.items() if key not in ("evaluation_items", "evaluation_relevant")}
    labelled = {key: table.with_columns(pl.col("temperature").replace(names)) for key, table in labelled.items()}
    return {key: figures.named(table) if "split" in table.columns else table for key, table in labelled.items()}


def _model(place: int, name: str, tables: dict[str, pl.DataFrame], edges: list[int]) -> dict[str, Any]:
    """The section of the page for one model."""
    of_model = {key: table.filter(pl.col("model") == name) for key, table in tables.items() if "model" in table.columns}
    empty = pl.DataFrame()
    lengths, ends, roles = (of_model.get(f"evaluation_{key}", empty) for key in ("lengths", "ends", "roles"))
    types = of_model.get("evaluation_types", empty)
    charts = {
        "types": None if types.is_empty() else figures.by_type(types),
        "changes": figures.changes(of_model["evaluation"]),
        "best": None if lengths.is_empty() or lengths["interval"].n_unique() < 2 else figures.best(lengths, edges),
        "ndcg": None if ends.is_empty() else figures.by_end(ends, "ndcg_at_100", "NDCG@100"),
        "rank": None if ends.is_empty() else figures.by_end(ends, "rank", "mean rank"),
        "roles": None if roles.is_empty() else figures.roles(roles),
    }
    tasks = []
    if not lengths.is_empty():
        for number_, ((task,), rows) in enumerate(lengths.group_by("name", maintain_order=True)):
            if rows["interval"].n_unique() > 1:
                metric = of_model["evaluation"].filter(pl.col("name") == task)["metric"].drop_nulls().first()
                charts[f"value{number_}"] = figures.by_length(rows, edges, "value", str(metric))
                charts[f"entropy{number_}"] = figures.by_length(rows, edges, "entropy", "mean entropy of the output, nats")
                tasks.append({"name": task, "keys": (f"value{number_}", f"entropy{number_}"), "texts": _texts(rows, edges)})
    return {
        "id": f"m{place}", "name": name, "charts": charts, "tasks": tasks, "sentences": sentences.of_model(of_model, edges),
        "rows": _scores(of_model["evaluation"]), "types": _types(types), "roles": _roles(roles),
    }  # fmt: skip


def _scores(evaluation: pl.DataFrame) -> dict[str, Any]:
    """One line per task with its score under each temperature, and the missing cells."""
    temperatures = evaluation["temperature"].unique(maintain_order=True).to_list()
    scored = evaluation.filter(pl.col("score").is_not_null())
    lines = []
    for (name,), rows in scored.group_by("name", maintain_order=True):
        by_label = {row["temperature"]: row for row in rows.to_dicts()}
        first = next(iter(by_label.values()))
        cells = [
            "–" if (row := by_label.get(label)) is None
            else with_error(row["score"], row["score_se"]) if label == temperatures[0] or row["change"] is None
            else f"{number(row['score'])} ({with_error(row['change'], row['change_se'])})"
            for label in temperatures
        ]  # fmt: skip
        lines.append({"name": name, "metric": first["metric"], "items": first["items"], "cells": cells})
    missing = evaluation.filter(pl.col("problem").is_not_null()).select("task", "temperature", "problem").to_dicts()
    return {"heads": temperatures, "lines": lines, "missing": missing}


def _types(types: pl.DataFrame) -> dict[str, Any] | None:
    if types.is_empty():
        return None
    temperatures = types["temperature"].unique(maintain_order=True).to_list()
    lines = []
    for _, group in types.group_by("over", "type", maintain_order=True):
        first, *rest = group.to_dicts()
        cells = [number(first["score"])]
        for row in rest:
            percent = "" if row["relative"] is None else f" ({'+' * (row['relative'] > 0)}{number(100 * row['relative'])} %)"
            cells.append(f"{number(row['score'])}{percent}")
        lines.append({"name": first["type"] or f"mean over {first['over']}", "tasks": first["tasks"], "cells": cells})
    return {"heads": temperatures, "lines": lines}


def _roles(roles: pl.DataFrame) -> list[dict[str, Any]]:
    """S1 Table 2: the score with the temperature on both sides, on one side, on none."""
    rows = [row for row in roles.to_dicts() if row["case"] in _CASES] if not roles.is_empty() else []
    lines: dict[tuple[str, float], dict[str, Any]] = {}
    reference = {row["name"]: row for row in rows if row["case"] == "neither"}
    for row in rows:
        if row["case"] != "neither" and row["name"] in reference:
            tau = row["query_tau"] if row["case"] != "document only" else row["document_tau"]
            line = lines.setdefault((row["name"], tau), {"task": row["name"], "tau": tau, "cells": {}})
            line["cells"][row["case"]] = with_error(row["change"], row["change_se"])
            line["score"] = number(reference[row["name"]]["score"])
    return [line | {"cells": [line["cells"].get(case, "–") for case in _CASES[1:]]} for line in lines.values()]


def _texts(rows: pl.DataFrame, edges: list[int]) -> str:
    """The number of texts in each interval, and how many of them are windows."""
    first = rows.filter(pl.col("temperature") == rows["temperature"].first())
    return "; ".join(
        f"{interval_name(row['interval'], edges)}: {row['items']:,}"
        + (f", {row['windows']:,} windows" if row["windows"] else "")
        for row in first.sort("interval").to_dicts()
    )


def _together(tables: dict[str, pl.DataFrame]) -> dict[str, Any] | None:
    """The section that compares models with their backbones and correlates scores with SOCM over models."""
    models, table = tables.get("evaluation_models"), tables.get("evaluation_correlations")
    if models is None:
        return None
    rows = [
        {"model": row["model"], "temperature": row["temperature"], "backbone": row["backbone"] or "–"}
        | {
            "cells": [
                number(row["socm_mean"]),
                with_error(row["socm_change"], row["socm_change_se"]),
                number(row["spread_mean"]),
            ]
        }
        | {"scores": [number(row["score"]), number(row["score_change"])]}
        for row in models.to_dicts()
    ]
    correlations = [] if table is None else [
        row | {name: number(row[name]) for name in ("rho", "p_exact", "p_t")} for row in table.to_dicts()
    ]  # fmt: skip
    return {"id": "all", "charts": {"correlation": figures.correlation(models)}, "rows": rows, "correlations": correlations}
