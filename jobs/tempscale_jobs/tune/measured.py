"""Write measurements from finished runs as tables of a checkpoint's model card."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import polars as pl

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.errors import UsageError, visible
from tempscale_jobs.report.text import estimate, number, share_of, with_error
from tempscale_jobs.runs.folder import finished
from tempscale_jobs.runs.inventory import results
from tempscale_jobs.urls import masked

_FIGURES = {
    "collapse_gap": "mean cosine of the longest texts less that of the shortest",
    "prefix_gap": "mean cosine of the same texts, at the longest prefix less the shortest",
    "exposure_short": "exposure of the shortest texts (1 is their share)",
    "exposure_long": "exposure of the longest texts (1 is their share)",
    "socm_mean": "mean second-order collapse (SOCM)",
}
"""Figures of collapse_summary in a card, with their descriptions."""


def measured(folders: Sequence[str], fingerprint: str, temperature: Temperature, correction: str | None) -> str:
    """The measurements of a model under a temperature, or with a correction, in runs, as Markdown."""
    sections = [_of_run(folder, fingerprint, temperature.canonical, correction) for folder in folders]
    return "\n".join(["## Measured", "", "Errors are 95 % half-widths.", "", *sections, ""]) if sections else ""


def _of_run(folder: str, fingerprint: str, temperature: str, correction: str | None) -> str:
    storage = finished(folder, "--measured ", "; give a run of tempscale audit, evaluate or tune")
    record, tables = results(storage)
    labels = [label for label, model in record["models"].items() if model.get("fingerprint") == fingerprint]
    if not labels:
        raise UsageError(f"--measured '{masked(folder)}' is a run of another model; give one of this model")
    lines: list[str] = []
    source = masked(str(record.get("corpus", {}).get("source", ""))).rstrip("/").rpartition("/")[2]
    makers: dict[str, Callable[[list[dict[str, Any]], list[dict[str, Any]]], list[str]]]
    makers = {"tuning_scores": _chosen, "evaluation": _scores, "collapse_summary": partial(_collapse, source)}
    for name, make in makers.items():
        if name not in tables or (correction is not None and name != "tuning_scores"):
            continue
        rows = tables[name].filter(pl.col("model") == labels[0]).to_dicts()
        matching = [row for row in rows if row["temperature"] == temperature and row.get("correction") == correction]
        if matching:
            lines += make(rows, matching)
    if not lines:
        what = f"correction {correction}" if correction is not None else f"τ {temperature}"
        raise UsageError(f"--measured '{masked(folder)}' measured nothing of {what}; give a run with it")
    return "\n".join(lines)


def _chosen(rows: list[dict[str, Any]], matching: list[dict[str, Any]]) -> list[str]:
    """The scores on held-out items."""
    (row,) = matching
    first = rows[0]["temperature"]
    return [
        *_heads("scores on held-out items", "items", "score", f"change from τ {first}"),
        f"| mean over the tasks of `tempscale tune` | {row['held_items']:,} | {number(row['held_score'])} | "
        f"{with_error(row['held_change'], row['held_change_se'])} |",
        "",
    ]


def _scores(rows: list[dict[str, Any]], matching: list[dict[str, Any]]) -> list[str]:
    """The main score of each task."""
    lines = _heads("task", "metric", "score", f"change from τ {rows[0]['temperature']}")
    for row in matching:
        subset = "" if row["subset"] == "default" else f", {row['subset']}"
        task = _cell(f"{row['task']} ({row['split']}{subset})")
        change = with_error(row["change"], row["change_se"])
        lines.append(f"| {task} | {row['metric']} | {with_error(row['score'], row['score_se'])} | {change} |")
    return [*lines, ""]


def _collapse(source: str, rows: list[dict[str, Any]], matching: list[dict[str, Any]]) -> list[str]:
    """The collapse of a corpus, called `source` if it has a name, next to that at the run's first temperature."""
    (row,), first = matching, rows[0]
    columns = [first] if row is first else [first, row]
    heads = [f"τ {column['temperature']}" for column in columns]
    lines = _heads(f"{row['texts']:,} texts of {_cell(source)}" if source else f"{row['texts']:,} texts", *heads)
    lines += [
        f"| {words} | {' | '.join(estimate(column, name) for column in columns)} |"
        for name, words in _FIGURES.items()
        if any(column.get(name) is not None for column in columns)
    ]
    return [
        *lines,
        f"| texts cut at the window | {' | '.join(share_of(column, 'truncated_share') for column in columns)} |",
        "",
    ]


def _heads(*heads: str) -> list[str]:
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]


def _cell(text: str) -> str:
    """A name in a cell of Markdown, with Markdown's characters escaped."""
    return re.sub(r"([\\|`*_\[\]<>])", r"\\\1", visible(text))
