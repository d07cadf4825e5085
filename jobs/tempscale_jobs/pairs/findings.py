"""What explicit pairs show: their second-order collapse, and what each temperature changes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from tempscale_jobs.report.findings import Finding, Findings, changed, finding, measured, state
from tempscale_jobs.report.text import count


def decide(tables: Mapping[str, pl.DataFrame]) -> Findings:
    """The findings of a run of pairs, from its tables."""
    return Findings(found for row in tables["pairs_summary"].to_dicts() for found in _of_row(row))


def _of_row(row: Mapping[str, Any]) -> Iterator[Finding]:
    pairs = f"{count(row['pairs'], 'pair')} of {count(row['texts'], 'text')}"
    for figure in ("socm_mean", "d_mu_mean", "d_sigma_mean", "socm_over_1_share", "truncated_share"):
        error = row["socm_se"] if figure == "socm_mean" else None
        yield finding(row, figure, measured(row[figure]), row[figure], error, rests_on=pairs)
    if row["reference"] is not None:
        value, error, basis = row["socm_change"], row["socm_change_se"], f"the same {pairs}, from {row['reference']}"
        grounds = {"rests_on": basis, "not_shown": "that search becomes better or worse"}
        yield finding(row, changed("socm_mean"), state(value, error), value, error, **grounds)
