"""Tables of `tempscale tune` -> one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from jobs import tune_sentences as sentences
from jobs.figures import COLOURS
from jobs.headline import interval_name, labels, number, share, with_error
from jobs.page import Page, page
from jobs.series import lines, point
from jobs.urls import shown

_KINDS = ("chosen", "eligible", "not eligible")


def render(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Page:
    """The report as HTML.

    Args:
        tables: the run's tables by name.
        run: the content of run.json.
    """
    by_scores = run["choice"]["by"] == "scores"
    table = tables["tuning_scores" if by_scores else "tuning_collapse"]
    names, edges = labels(table["temperature"]), run["config"]["choosing"]["intervals"]
    named = table.with_columns(pl.col("temperature").replace(names))
    charts: dict[str, Any] = {"scores": None, "gap": None, "exposure": None, "intervals": None}
    if by_scores:
        charts["scores"] = _halves(named)
    else:
        charts["gap"] = _changes(named, "prefix_gap_change", "change of the prefix gap")
        charts["exposure"] = _changes(named, "exposure_long_change", "change of the longest texts' exposure")
        intervals = tables["tuning_intervals"].with_columns(pl.col("temperature").replace(names))
        charts["intervals"] = _intervals(intervals, edges)
    heads, rows = (_score_rows if by_scores else _collapse_rows)(named, edges)
    steps = {step: done["seconds"] for step, done in run.get("steps", {}).items()}
    return page(
        "tune.html.j2", run, {f"t-{key}": chart for key, chart in charts.items() if chart is not None}, steps,
        choice={"id": "t", "charts": charts}, temperatures=names, verdict=sentences.verdict(run), heads=heads, rows=rows,
        evidence=sentences.evidence(run, tables, edges), then=sentences.then(run, shown(run["config"]["out"])),
    )  # fmt: skip


def _score_rows(table: pl.DataFrame, edges: Sequence[int]) -> tuple[list[str], list[dict[str, Any]]]:
    rows = [
        [
            number(row["dev_score"]), with_error(row["dev_change"], row["dev_change_se"]), number(row["held_score"]),
            with_error(row["held_change"], row["held_change_se"]),
        ]
        for row in table.to_dicts()
    ]  # fmt: skip
    return ["development score", "change", "held-out score", "change"], _rows(table, rows)


def _collapse_rows(table: pl.DataFrame, edges: Sequence[int]) -> tuple[list[str], list[dict[str, Any]]]:
    first, *others = table.to_dicts()
    rows = [[number(first["prefix_gap"]), number(first["exposure_long"]), "–", "–"]]
    rows += [
        [
            with_error(row["prefix_gap_change"], row["prefix_gap_change_se"]) if row["prefix_gap"] is not None else "–",
            with_error(row["exposure_long_change"], row["exposure_long_change_se"]),
            f"{row['rise']:.1f}, {interval_name(row['rise_interval'], edges)}".replace("-", "−"), share(row["short_kept"]),
        ]
        for row in others
    ]  # fmt: skip
    return ["prefix gap", "exposure", "largest rise ÷ error", "short keep"], _rows(table, rows)


def _rows(table: pl.DataFrame, cells: list[list[str]]) -> list[dict[str, Any]]:
    return [
        {"name": row["temperature"], "chosen": row["chosen"], "reason": row["reason"], "cells": own}
        for row, own in zip(table.to_dicts(), cells, strict=True)
    ]


def _kind(row: dict[str, Any]) -> str:
    return "chosen" if row["chosen"] else "eligible" if row["eligible"] else "not eligible"


def _halves(table: pl.DataFrame) -> alt.Chart | None:
    """Change of the score on both parts, with 95 % intervals."""
    names = table["temperature"].to_list()[1:]
    rows = [
        point(part, "", row["temperature"], row[f"{name}_change"], row[f"{name}_change_se"])
        for row in table.to_dicts()[1:]
        for part, name in (("development part", "dev"), ("held-out part", "held"))
    ]
    colours = alt.Scale(domain=["development part", "held-out part"], range=COLOURS[:2])
    return _dots(rows, names, "change of the mean score", alt.Color("series:N", scale=colours), offset=True)


def _changes(table: pl.DataFrame, name: str, title: str) -> alt.Chart | None:
    """A change under each candidate with its 95 % interval, coloured by whether it may be chosen."""
    every = [row for row in table.to_dicts()[1:] if row[name] is not None]
    rows = [point(_kind(row), "", row["temperature"], row[name], row[f"{name}_se"]) for row in every]
    colours = alt.Scale(domain=list(_KINDS), range=[COLOURS[2], COLOURS[0], "#9aa7b8"])
    return _dots(rows, [row["temperature"] for row in every], title, alt.Color("series:N", scale=colours))


def _dots(
    rows: list[dict[str, Any]], names: list[str], title: str, colour: alt.Color, offset: bool = False
) -> alt.Chart | None:
    if not rows:
        return None
    colour = colour.legend(orient="top", title=None, symbolOpacity=1)
    y: dict[str, Any] = {"y": alt.Y("x:N", sort=names, title=None, axis=alt.Axis(labelLimit=160))}
    if offset:
        y["yOffset"] = "series:N"
    base = alt.Chart(alt.Data(values=rows)).encode(**y, color=colour)
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(strokeDash=[3, 3], opacity=0.6).encode(x="x:Q")
    bars = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    tooltip = ["x:N", "series:N", *(alt.Tooltip(f"{k}:Q", format=".4f") for k in ("value", "low", "high"))]
    points = base.mark_point(filled=True, size=70).encode(x="value:Q", tooltip=tooltip)
    return alt.layer(zero, bars, points).properties(width="container", height=28 * len(names) + 20)


def _intervals(table: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """The mean cosine inside each length interval, a line a candidate."""
    names = [interval_name(edge, edges) for edge in sorted(table["interval"].unique())]
    rows = [
        point(row["temperature"], "", interval_name(row["interval"], edges), row["cosine_mean"]) for row in table.to_dicts()
    ]
    return lines(rows, names, "length in tokens", "mean cosine")
