"""What an evaluation found: scores, and whether each temperature changes them by more than noise, also by length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl

from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale_jobs.report.findings import Finding, Findings, changed, finding, measured, state, together
from tempscale_jobs.report.text import count

Row = Mapping[str, Any]
_BY_LENGTH = "that length is the cause: texts of other lengths are other texts"


def mean_score(row: Row) -> str:
    """The figure of a row of `evaluation_types`: the mean score of all tasks, over the types, or of one type."""
    return {"tasks": "mean score", "types": "mean score over types", "type": f"mean score, {row['type']}"}[row["over"]]


def score(row: Row) -> str:
    """The figure of a row of `evaluation`: the score of a task, split and subset."""
    return f"score, {_place(row)}"


def score_by_length(row: Row) -> str:
    """The figure of a row of `evaluation_lengths`."""
    return f"{score(row)}, from {row['interval']} tokens"


def end(row: Row) -> str:
    """The figure of a row of `evaluation_ends`."""
    return f"{row['figure']} of the {row['end']} fifth, {_place(row)}"


def _place(row: Row) -> str:
    return "/".join(row[name] for name in ("task", "split", "subset") if row[name] not in (None, "default"))


def decide(tables: Mapping[str, pl.DataFrame]) -> Findings:
    """The findings of an evaluation, from its tables; a table without rows is not written."""
    first, empty = tables["evaluation"]["temperature"][0], pl.DataFrame()
    types, lengths, ends = (tables.get(f"evaluation_{name}", empty).to_dicts() for name in ("types", "lengths", "ends"))
    rows = [row for row in tables["evaluation"].to_dicts() if row["score"] is not None]  # Without missing cells.
    found = [*map(_mean_score, types), *map(_score, rows)]
    kinds = [(types, _change_of_mean), (rows, _change_of_score), (lengths, _by_length), (ends, _of_end)]
    for table, change in kinds:
        compared = [row for row in table if row["temperature"] != first]
        many = Counter((row["model"], row.get("over")) for row in compared)
        found += [change(row, many[row["model"], row.get("over")]) for row in compared]
    return Findings(found)


def _mean_score(row: Row) -> Finding:
    return finding(row, mean_score(row), measured(row["score"]), row["score"], rests_on=count(row["tasks"], "task"))


def _score(row: Row) -> Finding:
    return finding(row, score(row), measured(row["score"]), row["score"], row["score_se"], rests_on=_items(row))


def _change_of_mean(row: Row, many: int) -> Finding:
    error, basis = row["change_se"], "by their items"
    if error is None:  # Items of a clustering have no score: then the error comes from the spread of the tasks' changes.
        error, basis = row["change_spread_se"], "by the spread of their changes"
    return _change(row, mean_score(row), error, many, rests_on=f"{count(row['tasks'], 'task')}, {basis}")


def _change_of_score(row: Row, many: int) -> Finding:
    return _change(row, score(row), row["change_se"], many, rests_on=_items(row))


def _by_length(row: Row, many: int) -> Finding:
    error = row["change_se"] if row["items"] >= TEXTS_FOR_AN_INTERVAL else None
    return _change(row, score_by_length(row), error, many, rests_on=_items(row), not_shown=_BY_LENGTH)


def _of_end(row: Row, many: int) -> Finding:
    # An error of 0 is that of changes without any spread, which tell nothing of noise.
    return _change(row, end(row), row["change_se"] or None, many, rests_on=_items(row))


def _items(row: Row) -> str:
    return "" if row["items"] is None else count(row["items"], "item")


def _change(row: Row, figure: str, error: float | None, many: int, **grounds: str) -> Finding:
    """The finding on the change of a figure against the first temperature, on the same items; one of many tested."""
    grounds["rests_on"] += f", of {count(many, 'comparison')} tested together" * (many > 1)
    known = state(row["change"], error, z=together(many))
    return finding(row, changed(figure), known, row["change"], error, **grounds)
