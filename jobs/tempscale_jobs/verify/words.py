"""Tables of `tempscale verify` -> sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tempscale_jobs.report.text import count, share
from tempscale_jobs.verify.summary import ANY, NOT_EXPLAINED

Row = Mapping[str, Any]
_ONE_SIDED = 0.95
_CAUSES_NAMED = 2


def whole(summary: pl.DataFrame) -> list[Row]:
    """The rows of all vectors: any cause first."""
    return [*summary.filter(pl.col("by").is_null()).iter_rows(named=True)]


def answer(summary: pl.DataFrame) -> str:
    """How many vectors are wrong, where they are and why."""
    total, *causes = whole(summary)
    sampled, wrong = total["sampled"], total["wrong"]
    if not wrong:
        right = f"Yes: each of {count(sampled, 'vector')} is the model's."
        if not total["high"]:
            return f"{right} These are all."
        most = 1 - (1 - _ONE_SIDED) ** (1 / sampled)
        return f"{right} With 95 % confidence at most {share(most)} of all are not."
    verb = "is" if wrong == 1 else "are"
    where = _where(summary, total)
    return f"{wrong:,} of {count(sampled, 'vector')} {verb} not the model's{where}{_why(causes, wrong, where)}."


def _where(summary: pl.DataFrame, total: Row) -> str:
    """The groups that have all wrong vectors, and not all vectors."""
    alone = summary.filter(pl.col("by").is_not_null() & (pl.col("cause") == ANY) & (pl.col("wrong") == total["wrong"]))
    rows = [row for row in alone.to_dicts() if row["sampled"] < total["sampled"]]
    return f": all from {' and '.join(named(row) for row in rows)}" if rows else ""


def named(row: Row) -> str:
    """A group as COLUMN=VALUE."""
    return f"{row['by']}={'(none)' if row['group'] is None else row['group']}"


def _why(causes: list[Row], wrong: int, where: str) -> str:
    """The most frequent causes."""
    if len(causes) == 1 and causes[0]["cause"] == NOT_EXPLAINED:
        return "; nothing that was tried explains them"
    if len(causes) == 1:
        return f"{', ' if where else ': '}{causes[0]['cause']}"
    first = [f"{row['wrong']:,} {row['cause']}" for row in causes[:_CAUSES_NAMED]]
    left = wrong - sum(row["wrong"] for row in causes[:_CAUSES_NAMED])
    return f" ({', '.join(first)}{f', {left:,} for other reasons' if left else ''})"


def missing(record: Row) -> list[str]:
    """A sentence on the ids that only one of two tables has."""
    found = {reason: number for reason, number in record["verified"].get("missing", {}).items() if number}
    listed = ", ".join(f"{number:,} × {reason}" for reason, number in found.items())
    return [f"Of {record['verified']['ids']:,} ids of both tables: {listed}. rejected/ lists them."] if found else []


def measured_by(record: Row) -> list[str]:
    """What was compared, and how exactly."""
    facts = record["verified"]
    norms = {
        "model": "norms that are the model's", "unit": "norm 1", "unknown": "norms that say nothing",
    }[facts["norms"]]  # fmt: skip
    return [
        f"Most vectors have {facts['dimensions']} dimensions in {facts['format']} and {norms}.",
        f"Computed in {facts['computed']}: relative distances up to {facts['relative_distance']:.1e} count as equal.",
        *([f"The earlier audit has {facts['known_earlier']:,} of these rows."] if "known_earlier" in facts else []),
    ]
