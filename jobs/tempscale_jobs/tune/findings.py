"""What a choice of a temperature found: what each candidate changes of the figures that choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tempscale_jobs.report.findings import Finding, Findings, State, changed, finding, measured, state
from tempscale_jobs.report.text import count

Row = Mapping[str, Any]
_NOT_SHOWN = {
    "dev_score": "what it does elsewhere: the best of several candidates is better here by chance too",
    "prefix_gap": "that search becomes better or worse", "exposure_long": "that search becomes better or worse",
}  # fmt: skip


def of_candidate(figure: str, row: Row) -> str:
    """The name of the finding on a candidate, which is a temperature or a correction at the first temperature."""
    return changed(figure) if row["correction"] is None else f"{changed(figure)} with {row['correction']}"


def candidates(tables: Mapping[str, pl.DataFrame]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The rows of the candidates, the first temperature's first, and the figures that choose between them."""
    if "tuning_scores" in tables:
        return tables["tuning_scores"].to_dicts(), ("held_score", "dev_score")
    return tables["tuning_collapse"].to_dicts(), ("prefix_gap", "exposure_long")


def decide(tables: Mapping[str, pl.DataFrame]) -> Findings:
    """The findings of a choice, from its tables: the figures of the first candidate, and what each other one changes."""
    (first, *others), figures = candidates(tables)
    before = [
        finding(first, figure, measured(first[figure]), first[figure], rests_on=_items(first, figure)) for figure in figures
    ]
    return Findings([*before, *(_change(row, figure) for row in others for figure in figures)])


def _change(row: Row, figure: str) -> Finding:
    change = f"{figure.removesuffix('_score')}_change"
    value, error = row[change], row[f"{change}_se"]
    decided = _by_resampling(row) if figure == "held_score" else None
    grounds = {"rests_on": _items(row, figure), "not_shown": _NOT_SHOWN.get(figure, "")}
    return finding(row, of_candidate(figure, row), decided or state(value, error), value, error, **grounds)


def _by_resampling(row: Row) -> State | None:
    """The state that the bootstrap's interval of the held-out change gives, which decides the choice; None without one."""
    if row["held_low"] is None:
        return None
    return "up" if row["held_low"] > 0 else "down" if row["held_high"] < 0 else "noise"


def _items(row: Row, figure: str) -> str:
    part = {"dev_score": "development", "held_score": "held-out"}.get(figure)
    if part is None:
        return "the same texts"
    return f"{count(row[figure.replace('score', 'items')], 'item')} of the {part} part"
