"""What verified vectors show: how many are not the model's, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from tempscale_jobs.report.findings import Finding, Findings, State, finding, measured
from tempscale_jobs.report.text import count

WRONG = "wrong_share"
_NOT_SHOWN = "that search is worse by as much: a wrong vector may still be near the right one"


def decide(tables: Mapping[str, pl.DataFrame], max_wrong: float) -> Findings:
    """The findings of a verification, from its tables; more than `max_wrong` is the state `up`."""
    return Findings(_all(tables["verify_summary"], max_wrong))


def of_cause(cause: str) -> str:
    """The figure of one cause."""
    return f"{WRONG}, {cause}"


def _all(summary: pl.DataFrame, max_wrong: float) -> Iterator[Finding]:
    for row in summary.filter(pl.col("by").is_null()).to_dicts():
        basis = count(row["sampled"], "row")
        if row["cause"] == "any":
            state: State = "up" if row["low"] > max_wrong else "noise" if row["wrong"] else "measured"
            yield finding(row, WRONG, state, row["share"], None, rests_on=basis, not_shown=_NOT_SHOWN)
        else:
            yield finding(row, of_cause(row["cause"]), measured(row["share"]), row["share"], rests_on=basis)
