"""What changed between two audits, and from the accepted night before to the last one, as findings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from tempscale_jobs.config.nights import WITH_ERRORS
from tempscale_jobs.nights import record
from tempscale_jobs.nights.gate import ENDS, standard_error
from tempscale_jobs.report.findings import Finding, Findings, State, changed, finding, measured, state
from tempscale_jobs.report.text import count
from tempscale_jobs.tables.nights import SWAP_NEIGHBOURS

SAME = 1e-6
"""Differences up to this size count as none: processors of different kinds differ in the last digits."""
NEIGHBOURS_KEPT = "neighbours kept"
"""The name of the finding on the nearest texts that stay under another model or temperature."""
_TEXTS = "whether the model or other texts moved it"


def on_the_same_texts(figure: str) -> str:
    """The name of the finding on the change of a figure on the texts of both runs."""
    return f"{changed(figure)} on the same texts"


def carried_over(threshold: float) -> str:
    """The name of the finding on the threshold that replaces one of run A."""
    return f"threshold for {threshold:g}"


def staying(threshold: float) -> str:
    """The name of the finding on the pairs that a threshold of run A accepts and that stay."""
    return f"pairs above {threshold:g} that stay"


def of_comparison(figures: pl.DataFrame) -> Findings:
    """The findings of `compare`, from the table `compared_figures`."""
    return Findings(found for row in figures.to_dicts() for found in _compared(row))


def _compared(row: Mapping[str, Any]) -> Iterator[Finding]:
    basis = "two corpora drawn apart"
    yield _change(row, changed(row["figure"]), (row["change"], row["change_se"]), rests_on=basis, not_shown=_TEXTS)
    moved = row["change_same_texts"], row["change_same_texts_se"]
    if moved[0] is not None:
        yield _change(row, on_the_same_texts(row["figure"]), moved, rests_on=count(row["same_texts"], "text"))


def of_swap(tables: Mapping[str, pl.DataFrame]) -> Findings:
    """The findings of `compare` on another model or temperature, from the tables of all texts."""
    return Findings(found for name, rows in tables.items() if "by" in rows.columns for found in _swapped(name, rows))


def _swapped(name: str, rows: pl.DataFrame) -> Iterator[Finding]:
    for row in rows.filter(pl.col("by").is_null()).to_dicts():
        if name == SWAP_NEIGHBOURS.name:
            kept, error = row["neighbours_kept"], row["neighbours_kept_se"]
            yield finding(row, NEIGHBOURS_KEPT, measured(kept), kept, error, rests_on=count(row["askers"], "asking text"))
            continue
        new, basis = row["new_threshold"], count(row["pairs"], "pair")
        yield finding(row, carried_over(row["threshold"]), measured(new), new, rests_on=basis)
        stay, basis = row["stay"], count(row["accepted"] or 0, "accepted pair")
        yield finding(row, staying(row["threshold"]), measured(stay), stay, row["stay_se"], rests_on=basis)


def of_nights(nights: pl.DataFrame) -> Findings:
    """The figures of the last run of each series, and what changed from the night that is its baseline `latest`."""
    return Findings(found for (_,), rows in nights.group_by("name", maintain_order=True) for found in _of_series(rows))


def last_run(series: pl.DataFrame) -> pl.DataFrame:
    """The rows of the last run of a series."""
    return series.filter(pl.col("run") == series["run"][-1])


def _of_series(series: pl.DataFrame) -> Iterator[Finding]:
    tonight = last_run(series).to_dicts()
    of = f", {tonight[0]['name']}" if tonight[0]["name"] else ""
    for row, baseline in zip(tonight, record.latest(series, tonight), strict=True):
        texts = f"{count(row['texts'], 'text')} of {row['night']}"
        for figure in WITH_ERRORS:
            value, error = row[figure], standard_error(row, figure) if row[figure] is not None else None
            yield finding(row, f"{figure}{of}", measured(value), value, error, rests_on=texts)
            before = baseline.row
            if before is None or not _is_comparable(row, before, figure):
                continue
            earlier_error = standard_error(before, figure)
            both = None if error is None or earlier_error is None else math.hypot(error, earlier_error)
            grounds = {"rests_on": f"{texts}, and {baseline.label}", "not_shown": _TEXTS}
            yield _change(row, f"{changed(figure)}{of}", (value - before[figure], both), **grounds)


def _is_comparable(row: Mapping[str, Any], before: Mapping[str, Any], figure: str) -> bool:
    """Whether both nights measured a figure, and between the same lengths."""
    return None not in (row[figure], before[figure]) and all(row[end] == before[end] for end in ENDS.get(figure, ()))


def _change(row: Mapping[str, Any], figure: str, change: tuple[float | None, float | None], **grounds: str) -> Finding:
    """The finding on a change, which is noise up to the last digits of a figure."""
    value, error = change
    decided: State = "noise" if value is not None and abs(value) <= SAME else state(value, error)
    return finding(row, figure, decided, value, error, **grounds)
