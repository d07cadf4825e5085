"""Tables of `tempscale evaluate` -> one self-contained HTML page."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.evaluate import charts
from tempscale_jobs.evaluate import words as sentences
from tempscale_jobs.evaluate.charts import named
from tempscale_jobs.evaluate.findings import decide
from tempscale_jobs.report import findings
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.provenance import how_made
from tempscale_jobs.report.sections import Figure, Part, Report, Section, Table, drawn, group, subject, tabled
from tempscale_jobs.report.text import Edges, count, interval_name, labels, number, signed, with_error

_CASES = ("neither", "both", "query only", "document only")


def report_of(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Report:
    """The report of a run of `evaluate`, from its tables by name and the content of run.json."""
    names = labels(tables["evaluation"]["temperature"])
    parts = parts_of(tables, run)
    where = subject(run, count(len(run["tasks"]), "task"), ", ".join(names.values()))
    missing = []
    if cells := run.get("missing"):
        are, them = ("is", "it") if cells == 1 else ("are", "them")
        missing = [f"{count(cells, 'cell')} {are} missing: the run is incomplete, and the same command scores {them}."]
    before, made = _together(labelled(tables)), how_made(run, "how_evaluate", names)
    return Report("Does an attention temperature help?", where, parts, missing, before=before, after=[made])


def parts_of(tables: dict[str, pl.DataFrame], run: dict[str, Any], prefix: str = "m") -> list[Part]:
    """What a report says of each model; `prefix` begins the ids."""
    models = findings.of_each_model(labelled(tables), "evaluation")
    return [_part(f"{prefix}{place}", name, mine, run) for place, (name, mine) in enumerate(models.items())]


def labelled(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The tables of a page, with labels in place of temperatures and tasks."""
    tables = tables | {"findings": Findings.stored(tables, decide).frame()}
    shown = {key: table for key, table in tables.items() if key not in ("evaluation_items", "evaluation_relevant")}
    tables = findings.labelled(shown, tables["evaluation"]["temperature"])
    return {key: named(table) if "split" in table.columns else table for key, table in tables.items()}


def _part(place: str, name: str, of_model: dict[str, pl.DataFrame], run: dict[str, Any]) -> Part:
    """What the report says of one model: first the sentence that answers, then all with the charts."""
    edges = Edges.of(run)
    answer, *further = sentences.of_model(of_model, edges)
    types, lengths, ends, roles = (
        of_model.get(f"evaluation_{key}", pl.DataFrame()) for key in ("types", "lengths", "ends", "roles")
    )
    return Part(
        place,
        name,
        answer,
        _figures(types),
        sentences.to_do(of_model, run, edges),
        sections=[
            *group("In words", sentences=further),
            *_scores(place, of_model["evaluation"]),
            *_types(place, types),
            *_lengths(place, lengths, of_model["evaluation"], edges),
            *_ends(place, ends),
            *_roles(place, roles),
        ],
    )


def _figures(types: pl.DataFrame) -> list[Figure]:
    """The mean score over tasks under the first four temperatures."""
    rows = [] if types.is_empty() else types.filter(over="tasks").to_dicts()
    return [
        Figure(
            f"mean score, {row['temperature']}", number(row["score"]),
            says=f"over {count(row['tasks'], 'task')}",
            changes=[f"change from {rows[0]['temperature']}: {signed(with_error(row['change'], row['change_se']))}"]
            if row["temperature"] != rows[0]["temperature"] and row["change"] is not None
            else [],
        )
        for row in rows[:4]
    ]  # fmt: skip


def _scores(place: str, evaluation: pl.DataFrame) -> list[Section]:
    """Each task's score under each temperature, its changes, and the missing cells."""
    temperatures = evaluation["temperature"].unique(maintain_order=True).to_list()
    lines = []
    for (name,), rows in evaluation.filter(pl.col("score").is_not_null()).group_by("name", maintain_order=True):
        by_label = {row["temperature"]: row for row in rows.to_dicts()}
        first = next(iter(by_label.values()))
        cells = [
            "–" if (row := by_label.get(label)) is None
            else with_error(row["score"], row["score_se"]) if label == temperatures[0] or row["change"] is None
            else f"{number(row['score'])}\n({with_error(row['change'], row['change_se'])})"
            for label in temperatures
        ]  # fmt: skip
        items = f", {first['items']:,}" if first["items"] else ""
        lines.append((f"{name}\n{first['metric']}{items}", *cells))
    missing = evaluation.filter(pl.col("problem").is_not_null()).select("task", "temperature", "problem").rows()
    return group(
        "Scores",
        tabled("scores", Table(("task, metric, items", *temperatures), lines)),
        tabled("missing", Table(("task", "temperature", "why"), missing, words=3)),
        drawn(place, "changes", charts.changes(evaluation)),
    )  # fmt: skip


def _types(place: str, types: pl.DataFrame) -> list[Section]:
    """Mean scores by type of task."""
    if types.is_empty():
        return []
    lines = []
    for _, rows in types.group_by("over", "type", maintain_order=True):
        first, *rest = rows.to_dicts()
        cells = [number(first["score"])]
        for row in rest:
            sign = "+" * ((row["relative"] or 0) > 0)
            percent = "" if row["relative"] is None else f" ({sign}{number(100 * row['relative'])} %)"
            cells.append(f"{number(row['score'])}{percent}")
        lines.append((f"{first['type'] or 'mean over ' + first['over']}\n{count(first['tasks'], 'task')}", *cells))
    return group(
        "By type of task",
        tabled("type_scores", Table(("type", *types["temperature"].unique(maintain_order=True)), lines)),
        drawn(place, "types", charts.by_type(types)),
    )  # fmt: skip


def _lengths(place: str, lengths: pl.DataFrame, evaluation: pl.DataFrame, edges: Edges) -> list[Section]:
    """Scores by length, where a task has texts of several."""
    if lengths.is_empty() or lengths["interval"].n_unique() < 2:
        return []
    parts = list[list[Section]]()
    for task_number, ((task,), rows) in enumerate(lengths.group_by("name", maintain_order=True)):
        if rows["interval"].n_unique() < 2:
            continue
        metric = str(evaluation.filter(name=task)["metric"].drop_nulls().first())
        score = charts.by_length(rows, edges, "value", metric)
        entropy = charts.by_length(rows, edges, "entropy", "mean entropy of the output, nats")
        parts += [
            drawn(place, f"value{task_number}", score, "value", task=str(task), texts=_texts(rows, edges)),
            drawn(place, f"entropy{task_number}", entropy, "entropy", task=str(task)),
        ]  # fmt: skip
    best = drawn(place, "best", charts.best(lengths, edges))  # fmt: skip
    return group("By length", *parts, best)


def _ends(place: str, ends: pl.DataFrame) -> list[Section]:
    if ends.is_empty():
        return []
    return group(
        "Shortest and longest",
        drawn(place, "ndcg", charts.by_end(ends, "ndcg_at_100", "NDCG@100")),
        drawn(place, "rank", charts.by_end(ends, "rank", "mean rank")),
    )  # fmt: skip


def _roles(place: str, roles: pl.DataFrame) -> list[Section]:
    """S1 Table 2: the score with the temperature on both sides, on one side, on none."""
    rows = [row for row in roles.to_dicts() if row["case"] in _CASES] if not roles.is_empty() else []
    changes: dict[tuple[str, float], dict[str, str]] = {}
    reference = {row["name"]: number(row["score"]) for row in rows if row["case"] == "neither"}
    for row in rows:
        if row["case"] != "neither" and row["name"] in reference:
            tau = row["query_tau"] if row["case"] != "document only" else row["document_tau"]
            changes.setdefault((row["name"], tau), {})[row["case"]] = with_error(row["change"], row["change_se"])
    cells = [
        (f"{task} ({reference[task]})", f"{tau}", *(line.get(case, "–") for case in _CASES[1:]))
        for (task, tau), line in changes.items()
    ]
    heads = ("task (score at the first temperature)", "τ", "both sides", "queries only", "documents only")
    return group(
        "Queries and documents apart",
        drawn(place, "roles", charts.roles(roles)),
        tabled("one_side", Table(heads, cells)),
    )  # fmt: skip


def _texts(rows: pl.DataFrame, edges: Edges) -> str:
    """The number of texts in each interval, and how many of them are windows."""
    first = rows.filter(pl.col("temperature") == rows["temperature"].first()).sort("interval").to_dicts()
    texts = "; ".join(
        f"{interval_name(row['interval'], edges)}: {row['items']:,}"
        + (f", {row['windows']:,} windows" if row["windows"] else "")
        for row in first
    )
    windows = ". A window is a run of words of a longer text, drawn by seed; its label is the whole text's"
    return texts + windows * any(row["windows"] for row in first)


def _together(tables: dict[str, pl.DataFrame]) -> list[Section]:
    """The section that compares models with their backbones and correlates scores with SOCM over models."""
    models, table = tables.get("evaluation_models"), tables.get("evaluation_correlations", pl.DataFrame())
    if models is None:
        return []
    rows = [
        (
            row["model"], row["temperature"], row["backbone"] or "–", number(row["socm_mean"]),
            with_error(row["socm_change"], row["socm_change_se"]), number(row["spread_mean"]), number(row["score"]),
            number(row["score_change"]),
        )
        for row in models.to_dicts()
    ]  # fmt: skip
    correlations = [
        (
            "mean SOCM" if row["measure"] == "socm_mean" else "S/‖μ‖²", row["temperature"],
            row["task"] or "mean over tasks", str(row["models"]), *(number(row[name]) for name in ("rho", "p_exact", "p_t")),
        )
        for row in table.to_dicts()
    ]  # fmt: skip
    over_models = ("figure", "temperature", "score of", "models", "ρ", "exact p", "p by the t approximation")
    backbones = ("model", "temperature", "backbone", "mean SOCM", "against it", "S/‖μ‖²", "score", "against it")
    return group(
        "Models side by side",
        drawn("all", "correlation", charts.correlation(models)),
        tabled("over_models", Table(over_models, correlations, words=3)),
        tabled("backbones", Table(backbones, rows, words=3)),
    )  # fmt: skip
