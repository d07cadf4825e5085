"""What a choice of a temperature found: what each candidate changes of the figures that choose."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import polars as pl

from tempscale_jobs.audit.findings import by_correction
from tempscale_jobs.report.findings import Finding, Findings, State, changed, finding, measured, state, together
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
    return Findings([*before, *(_change(row, figure, overshot(tables, row)) for row in others for figure in figures)])


class Overshot(NamedTuple):
    """A length whose exposure passes the fair value 1 under a candidate, and is then unfair on the other side."""

    texts: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"overshoots: the exposure of {self.texts} goes from {self.before:.2f} to {self.after:.2f}, past the fair 1"


def passes_fair(before: float, after: float, error: float | None) -> bool:
    """Whether a candidate moves the longest texts' exposure past the fair 1, from the error of the move."""
    return by_correction(before, after, (0.0, error)) == "overshoots"


def overshot(tables: Mapping[str, pl.DataFrame], row: Row) -> Overshot | None:
    """The length that a candidate moves furthest past the fair exposure, decided by `by_correction`; None without one."""
    if "tuning_scores" not in tables:
        before, after = tables["tuning_collapse"]["exposure_long"][0], row["exposure_long"]
        is_past = passes_fair(before, after, row["exposure_long_change_se"])
        return Overshot("the longest texts", before, after) if is_past else None
    exposure = tables.get("tuning_exposure", pl.DataFrame())
    if row["correction"] is None or exposure.is_empty():
        return None
    now, then = (by_fifth(exposure, recipe).to_dicts() for recipe in (row["correction"], None))
    z = together(len(now))
    passed = [
        Overshot(f"fifth {place} of the documents by length", old["exposure"], new["exposure"])
        for place, (old, new) in enumerate(zip(then, now, strict=False), 1)
        if by_correction(old["exposure"], new["exposure"], (old["error"], new["error"]), z) == "overshoots"
    ]
    return max(passed, key=lambda one: abs(math.log(one.after or 0.01)), default=None)


def by_fifth(exposure: pl.DataFrame, correction: str | None) -> pl.DataFrame:
    """The exposure of each fifth of the documents by length, shortest first, the mean over tasks, with its error."""
    rows = exposure.filter(pl.col("correction").eq_missing(pl.lit(correction)))
    place = pl.int_range(pl.len()).over("task", "split", "subset").alias("fifth")
    squares = pl.when(pl.col("exposure_se").null_count() == 0).then((pl.col("exposure_se") ** 2).sum().sqrt() / pl.len())
    means = rows.with_columns(place).group_by("fifth", maintain_order=True)
    return means.agg(pl.col("exposure").mean(), squares.alias("error")).sort("fifth")


def _change(row: Row, figure: str, passed: Overshot | None) -> Finding:
    change = f"{figure.removesuffix('_score')}_change"
    value, error = row[change], row[f"{change}_se"]
    decided = _by_resampling(row) if figure == "held_score" else None
    grounds = {"rests_on": _items(row, figure), "not_shown": _NOT_SHOWN.get(figure, "")}
    if figure == "exposure_long" and passed is not None:
        grounds["not_shown"] = f"that results are fairer: it {passed}"
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
