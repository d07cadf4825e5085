"""Tables of `tempscale tune` -> one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from tempscale_jobs.report.charts import COLOURS, GREY, about_zero, colour, lines, point
from tempscale_jobs.report.page import Page, page
from tempscale_jobs.report.text import interval_name, labels, number, share, with_error
from tempscale_jobs.tune import words as sentences
from tempscale_jobs.urls import masked

_KINDS = ("chosen", "eligible", "not eligible")


def render(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Page:
    """The report of a run of `tune`, from its tables by name and the content of run.json."""
    by_scores = run["choice"]["by"] == "scores"
    table = tables["tuning_scores" if by_scores else "tuning_collapse"]
    names, edges = labels(table["temperature"]), run["config"]["choosing"]["intervals"]
    labelled = table.with_columns(pl.col("temperature").replace(names))
    with_correction = pl.format("{} at {}", "correction", "temperature")
    labelled = labelled.with_columns(
        pl.when(pl.col("correction").is_null()).then("temperature").otherwise(with_correction).alias("temperature")
    )
    charts: dict[str, Any] = {"scores": None, "gap": None, "exposure": None, "intervals": None}
    if by_scores:
        charts["scores"] = _halves(labelled)
    else:
        charts["gap"] = _changes(labelled, "prefix_gap_change", "change of the prefix gap")
        charts["exposure"] = _changes(labelled, "exposure_long_change", "change of the longest texts' exposure")
        intervals = tables["tuning_intervals"].with_columns(pl.col("temperature").replace(names))
        charts["intervals"] = _intervals(intervals, edges)
    heads, rows = (_score_rows if by_scores else _collapse_rows)(labelled, edges)
    steps = {step: record["seconds"] for step, record in run.get("steps", {}).items()}
    return page(
        "tune.html.j2", run, {f"t-{key}": chart for key, chart in charts.items() if chart is not None}, steps,
        choice={"id": "t", "charts": charts}, temperatures=names, verdict=sentences.answer(run), heads=heads, rows=rows,
        evidence=sentences.evidence(run, tables, edges), then=sentences.then(run, masked(run["config"]["out"])),
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
        {"name": row["temperature"], "chosen": row["chosen"], "reason": row["reason"], "cells": row_cells}
        for row, row_cells in zip(table.to_dicts(), cells, strict=True)
    ]


def _kind(row: dict[str, Any]) -> str:
    return "chosen" if row["chosen"] else "eligible" if row["eligible"] else "not eligible"


def _halves(table: pl.DataFrame) -> alt.Chart | None:
    """The change of the score on both parts, with 95 % intervals."""
    parts = {"development part": "dev", "held-out part": "held"}
    rows = [
        point(part, "", row["temperature"], row[f"{name}_change"], row[f"{name}_change_se"])
        for row in table.to_dicts()[1:]
        for part, name in parts.items()
    ]
    return about_zero(rows, "change of the mean score", colour([*parts]), [*parts])


def _changes(table: pl.DataFrame, name: str, title: str) -> alt.Chart | None:
    """The change of a figure under each candidate with its 95 % interval, coloured by whether it may be chosen."""
    known = [row for row in table.to_dicts()[1:] if row[name] is not None]
    rows = [point(_kind(row), "", row["temperature"], row[name], row[f"{name}_se"]) for row in known]
    return about_zero(rows, title, colour(_KINDS, colours=[COLOURS[2], COLOURS[0], GREY]))


def _intervals(table: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """The mean cosine inside each length interval, one line per candidate."""
    names = [interval_name(edge, edges) for edge in sorted(table["interval"].unique())]
    rows = [
        point(row["temperature"], "", interval_name(row["interval"], edges), row["cosine_mean"]) for row in table.to_dicts()
    ]
    return lines(rows, names, ("length in tokens", "mean cosine"))
