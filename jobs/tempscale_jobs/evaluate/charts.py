"""Tables of `tempscale evaluate` -> charts with their figures. The tables have labels in place of temperatures."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from tempscale_jobs.report import charts
from tempscale_jobs.report.charts import about_zero, colour, figures_of, lines, point, rule_at, side_by_side
from tempscale_jobs.report.sections import Drawing, Table
from tempscale_jobs.report.text import interval_name, number


def by_type(types: pl.DataFrame) -> Drawing | None:
    """Relative change of the mean score by type of task and over all tasks, as bars (S1 Table 1)."""
    reference = types["temperature"].first()
    rows = [
        point(row["temperature"], "", row["type"] or f"mean over {row['over']}", 100 * row["relative"])
        for row in types.to_dicts()
        if row["temperature"] != reference and row["relative"] is not None
    ]
    if not rows:
        return None
    temperatures = types["temperature"].unique(maintain_order=True).to_list()
    title = f"change of the mean score against {reference}, in %"
    bars = alt.Chart(alt.Data(values=rows)).mark_bar().encode(
        x=alt.X("value:Q", title=title),
        y=alt.Y("x:N", sort=list(dict.fromkeys(row["x"] for row in rows)), title=None, axis=alt.Axis(labelLimit=160)),
        yOffset=alt.YOffset("series:N", sort=temperatures), color=colour(temperatures),
        tooltip=["x:N", "series:N", alt.Tooltip("value:Q", format=".2f")],
    )  # fmt: skip
    chart = alt.layer(rule_at(0, "x"), bars).properties(width="container", height=max(120, 14 * len(rows)))
    return Drawing(chart, figures_of(rows, title))


def changes(evaluation: pl.DataFrame) -> Drawing | None:
    """Change of each task's score against the first temperature with 95 % intervals."""
    temperatures = evaluation["temperature"].unique(maintain_order=True).to_list()
    rows = [
        point(row["temperature"], "", row["name"], row["change"], row["change_se"])
        for row in evaluation.to_dicts()
        if row["temperature"] != temperatures[0] and row["change"] is not None
    ]
    return about_zero(rows, f"change of the score against {temperatures[0]}", colour(temperatures), temperatures)


def by_length(lengths: pl.DataFrame, edges: Sequence[int], value: str, title: str) -> Drawing | None:
    """`value` or `entropy` by length interval, one line per temperature (S1 Fig 1a, 6)."""
    rows = lengths.sort("interval", maintain_order=True).to_dicts()
    points = [point(row["temperature"], "", row["interval"], row[value], row[f"{value}_se"]) for row in rows]
    return charts.by_length(points, edges, title)


def best(lengths: pl.DataFrame, edges: Sequence[int]) -> Drawing | None:
    """The temperature with the highest value in each length interval (S1 Fig 8)."""
    temperatures = lengths["temperature"].unique(maintain_order=True).to_list()
    rows = [
        {"x": interval_name(row["interval"], edges), "y": row["temperature"], "task": row["name"], "value": row["value"]}
        for row in lengths.filter(pl.col("best")).sort("interval").to_dicts()
    ]
    if not rows or len(temperatures) < 2:
        return None
    names, tasks = (list(dict.fromkeys(row[field] for row in rows)) for field in ("x", "task"))
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("x:O", sort=names, title="length in tokens", axis=alt.Axis(labelAngle=0, labelOverlap="greedy")),
        y=alt.Y("y:N", sort=temperatures, title="best temperature"), color=colour(tasks, "task"),
    )  # fmt: skip
    points = base.mark_point(filled=True, size=80).encode(
        tooltip=["task:N", "x:O", "y:N", alt.Tooltip("value:Q", format=".4f")]
    )
    chart = alt.layer(base.mark_line(strokeWidth=1.5, opacity=0.6), points)
    height, cells = max(120, 26 * len(temperatures)), [(r["task"], r["x"], r["y"], number(r["value"])) for r in rows]
    table = Table(("task", "length in tokens", "best temperature", "score"), cells, words=3)
    return Drawing(chart.properties(width="container", height=height), table)


def by_end(table: pl.DataFrame, figure: str, title: str) -> Drawing | None:
    """A figure of the shortest and the longest fifth by temperature (S1 Fig 7, Table 3)."""
    ends = table.filter(pl.col("figure") == figure)
    names = ends["temperature"].unique(maintain_order=True).to_list()
    several = ends["name"].n_unique() > 1
    rows = [
        point(f"{row['name']}: " * several + f"{row['end']} fifth", "", row["temperature"], row["value"], row["value_se"])
        for row in ends.to_dicts()
    ]
    return lines(rows, names, ("", title))


def roles(table: pl.DataFrame) -> Drawing | None:
    """Score by query temperature and document temperature, one panel per task (S1 Fig 9)."""
    panels = {}
    for (task,), scores in table.group_by("name", maintain_order=True) if not table.is_empty() else ():
        names = {"query_tau": "query τ", "document_tau": "document τ", "score": "score", "change": "change"}
        rows = scores.select(pl.col(column).alias(name) for column, name in names.items()).to_dicts()
        chart = alt.Chart(alt.Data(values=rows)).mark_rect()
        chart = chart.encode(
            x=alt.X("document τ:O", sort="descending", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("query τ:O", sort="ascending"),
            color=alt.Color("score:Q", scale=alt.Scale(scheme="blues"), legend=alt.Legend(orient="bottom", format=".3f")),
            tooltip=["query τ:O", "document τ:O", *(alt.Tooltip(f"{k}:Q", format=".4f") for k in ("score", "change"))],
        )
        cells = [[number(value) for value in row.values()] for row in rows]
        panels[str(task)] = Drawing(chart, Table([*names.values()], cells))
    return side_by_side(panels, (260, 240))


def correlation(models: pl.DataFrame) -> Drawing | None:
    """Mean score against mean SOCM and against S/‖μ‖², one point per model (S2 Fig 5)."""
    of_temperatures = colour(models["temperature"].unique(maintain_order=True).to_list(), "temperature")
    panels = {}
    for name, title in (("socm_mean", "mean SOCM"), ("spread_mean", "mean S/‖μ‖²")):
        scored = models.filter(pl.col(name).is_not_null() & pl.col("score").is_not_null())
        rows = scored.select(pl.col(name).alias("x"), "score", "model", "temperature").to_dicts()
        x = alt.X("x:Q", title=title, scale=alt.Scale(zero=False))
        base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=alt.Y("score:Q", scale=alt.Scale(zero=False)))
        tooltip = ["model:N", "temperature:N", "x:Q", "score:Q"]
        dots = base.mark_circle(size=70, opacity=0.9).encode(color=of_temperatures, tooltip=tooltip)
        chart = alt.layer(dots, base.mark_text(align="left", dx=7, fontSize=10).encode(text="model:N"))
        cells = [(row["model"], row["temperature"], number(row["x"]), number(row["score"])) for row in rows]
        panels[title] = Drawing(chart, Table(("model", "temperature", "figure", "score"), cells)) if rows else None
    return side_by_side(panels, (330, 240))


def named(table: pl.DataFrame) -> pl.DataFrame:
    """The table with a column `name`: the task, with its subset and split where it has several."""
    keys = ("task", "split", "subset")
    parts = table.filter(pl.col("split").is_not_null()).select(keys).unique()
    by_task = {name: parts.filter(pl.col("task") == name) for name in table["task"].unique()}
    several = {name: [key for key in ("subset", "split") if rows[key].n_unique() > 1] for name, rows in by_task.items()}
    names = []
    for row in table.select(keys).to_dicts():  # A missing cell has neither split nor subset.
        parts_of_name = [str(row[key]) for key in several[row["task"]] if row["split"] is not None]
        names.append(f"{row['task']} ({', '.join(parts_of_name)})" if parts_of_name else row["task"])
    return table.with_columns(pl.Series("name", names, pl.String))
