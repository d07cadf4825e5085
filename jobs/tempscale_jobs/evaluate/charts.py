"""Tables of `tempscale evaluate` -> charts. The tables come with the temperatures' labels in place of their texts."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from tempscale_jobs.report.charts import COLOURS, about_zero, colour, lines, point
from tempscale_jobs.report.text import interval_name


def by_type(types: pl.DataFrame) -> alt.Chart | None:
    """Relative change of the mean score by type of task and over all tasks, as bars (S1 Table 1)."""
    reference = types["temperature"].first()
    rows = [
        {
            "what": row["type"] or f"mean over {row['over']}",
            "temperature": row["temperature"],
            "change": 100 * row["relative"],
        }
        for row in types.to_dicts()
        if row["temperature"] != reference and row["relative"] is not None
    ]
    if not rows:
        return None
    what = list(dict.fromkeys(row["what"] for row in rows))
    temperatures = types["temperature"].unique(maintain_order=True).to_list()
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(opacity=0.6).encode(x="x:Q")
    bars = alt.Chart(alt.Data(values=rows)).mark_bar().encode(
        x=alt.X("change:Q", title=f"change of the mean score against {reference}, in %"),
        y=alt.Y("what:N", sort=what, title=None, axis=alt.Axis(labelLimit=160)),
        yOffset=alt.YOffset("temperature:N", sort=temperatures), color=colour(temperatures, "temperature"),
        tooltip=["what:N", "temperature:N", alt.Tooltip("change:Q", format=".2f")],
    )  # fmt: skip
    return alt.layer(zero, bars).properties(width="container", height=max(120, 14 * len(rows)))


def changes(evaluation: pl.DataFrame) -> alt.Chart | None:
    """Change of each task's score against the first temperature with 95 % intervals."""
    temperatures = evaluation["temperature"].unique(maintain_order=True).to_list()
    rows = [
        point(row["temperature"], "", row["name"], row["change"], row["change_se"])
        for row in evaluation.to_dicts()
        if row["temperature"] != temperatures[0] and row["change"] is not None
    ]
    return about_zero(rows, f"change of the score against {temperatures[0]}", colour(temperatures), temperatures)


def by_length(lengths: pl.DataFrame, edges: Sequence[int], value: str, title: str) -> alt.Chart | None:
    """`value` or `entropy` by length interval, one line per temperature (S1 Fig 1a, 6)."""
    names = [interval_name(edge, edges) for edge in sorted(lengths["interval"].unique())]
    rows = [
        point(row["temperature"], "", interval_name(row["interval"], edges), row[value], row[f"{value}_se"])
        for row in lengths.sort("interval", maintain_order=True).to_dicts()
    ]
    return lines(rows, names, ("length in tokens", title))


def best(lengths: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """The temperature with the highest value in each length interval (S1 Fig 8)."""
    best_rows = lengths.filter(pl.col("best")).sort("interval")
    temperatures = lengths["temperature"].unique(maintain_order=True).to_list()
    names = [interval_name(edge, edges) for edge in best_rows["interval"].unique(maintain_order=True)]
    rows = [
        {"x": interval_name(row["interval"], edges), "y": row["temperature"], "task": row["name"], "value": row["value"]}
        for row in best_rows.to_dicts()
    ]
    if not rows or len(temperatures) < 2:
        return None
    x = alt.X("x:O", sort=names, title="length in tokens", axis=alt.Axis(labelAngle=0, labelOverlap="greedy"))
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    colour = alt.Color("task:N", scale=alt.Scale(domain=tasks, range=COLOURS), legend=alt.Legend(orient="top", title=None))
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=x, y=alt.Y("y:N", sort=temperatures, title="best temperature"), color=colour
    )
    tooltip = ["task:N", "x:O", "y:N", alt.Tooltip("value:Q", format=".4f")]
    return alt.layer(
        base.mark_line(strokeWidth=1.5, opacity=0.6), base.mark_point(filled=True, size=80).encode(tooltip=tooltip)
    ).properties(width="container", height=max(120, 26 * len(temperatures)))


def by_end(table: pl.DataFrame, figure: str, title: str) -> alt.Chart | None:
    """A figure of the shortest and the longest fifth by temperature (S1 Fig 7, Table 3)."""
    ends = table.filter(pl.col("figure") == figure)
    names = ends["temperature"].unique(maintain_order=True).to_list()
    several = ends["name"].n_unique() > 1
    rows = [
        point(f"{row['name']}: " * several + f"{row['end']} fifth", "", row["temperature"], row["value"], row["value_se"])
        for row in ends.to_dicts()
    ]
    return lines(rows, names, ("", title))


def roles(table: pl.DataFrame) -> alt.Chart | None:
    """Score by query temperature and document temperature, one panel per task (S1 Fig 9)."""
    if table.is_empty():
        return None
    panels = []
    for (task,), task_rows in table.group_by("name", maintain_order=True):
        rows = [
            {"query τ": row["query_tau"], "document τ": row["document_tau"], "score": row["score"], "change": row["change"]}
            for row in task_rows.to_dicts()
        ]
        panels.append(
            alt.Chart(alt.Data(values=rows))
            .mark_rect()
            .encode(
                x=alt.X("document τ:O", sort="descending", axis=alt.Axis(labelAngle=0)),
                y=alt.Y("query τ:O", sort="ascending"),
                color=alt.Color(
                    "score:Q", scale=alt.Scale(scheme="blues"), legend=alt.Legend(orient="bottom", format=".3f")
                ),
                tooltip=["query τ:O", "document τ:O", *(alt.Tooltip(f"{k}:Q", format=".4f") for k in ("score", "change"))],
            )
            .properties(width=260, height=240, title=str(task))
        )
    return alt.concat(*panels, columns=2, spacing=28)


def correlation(models: pl.DataFrame) -> alt.Chart | None:
    """Mean score against mean SOCM and against S/‖μ‖², one point per model (S2 Fig 5)."""
    panels = []
    for name, title in (("socm_mean", "mean SOCM"), ("spread_mean", "mean S/‖μ‖²")):
        scored = models.filter(pl.col(name).is_not_null() & pl.col("score").is_not_null())
        rows = [
            {"x": row[name], "score": row["score"], "model": row["model"], "temperature": row["temperature"]}
            for row in scored.to_dicts()
        ]
        if not rows:
            continue
        x = alt.X("x:Q", title=title, scale=alt.Scale(zero=False))
        base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=alt.Y("score:Q", scale=alt.Scale(zero=False)))
        of_temperatures = colour(models["temperature"].unique(maintain_order=True).to_list(), "temperature")
        dots = base.mark_circle(size=70, opacity=0.9).encode(
            color=of_temperatures, tooltip=["model:N", "temperature:N", "x:Q", "score:Q"]
        )
        names = base.mark_text(align="left", dx=7, fontSize=10).encode(text="model:N")
        panels.append(alt.layer(dots, names).properties(width=330, height=240))
    return alt.concat(*panels, columns=2, spacing=28) if panels else None


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
