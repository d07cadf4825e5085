"""The sentences of `tempscale evaluate`: each figure with its error, and no claim that noise could explain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale_jobs.report.text import beyond_noise, count, interval_name, number, with_error


def more_than_noise(change: float | None, error: float | None) -> str:
    """Whether a change is more than noise, in words."""
    if change is None or error is None:
        return "it is not known whether that is more than noise"
    if not beyond_noise(change, error):
        return "no difference beyond noise"
    return "more than noise"


def of_model(mine: dict[str, pl.DataFrame], edges: Sequence[int]) -> list[str]:
    """The sentences on the changes of one model's scores, from its tables with labels and a column `name`."""
    lines = []
    scored = mine["evaluation"].filter(pl.col("score").is_not_null())
    if scored.is_empty():
        return ["No cell was scored."]
    reference = mine["evaluation"]["temperature"].first()
    for row in _over_tasks(mine).to_dicts():
        if row["temperature"] != reference:
            error = row["change_se"] if row["change_se"] is not None else row["change_spread_se"]
            change = with_error(row["change"], error)
            # Items of a clustering have no score: then the error comes from the spread of the tasks' changes.
            over = "" if row["change_se"] is not None or error is None else " (± over tasks like these)"
            relative = "" if row["relative"] is None else f" ({number(100 * row['relative'])} %)"
            lines.append(
                f"{row['temperature']}: over {count(row['tasks'], 'task')} the mean score is {number(row['score'])}, a "
                f"change of {change}{over}{relative} against {reference}: {more_than_noise(row['change'], error)}."
            )
    moved = scored.filter(pl.col("temperature") != reference).to_dicts()
    known = [row for row in moved if row["change_se"] is not None and beyond_noise(row["change"], row["change_se"])]
    for kind, rows in (("rise", [r for r in known if r["change"] > 0]), ("fall", [r for r in known if r["change"] < 0])):
        if rows:
            named = "; ".join(f"{r['name']} at {r['temperature']} by {_size(r)}" for r in _largest(rows))
            lines.append(f"Scores that {kind} by more than their error: {named}.")
    if len(moved) > 1 and not known and all(row["change_se"] is not None for row in moved):
        lines.append("No task's score changes by more than its error under any temperature.")
    return lines + _lengths(mine, edges) + _ends(mine)


def _over_tasks(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    table = tables.get("evaluation_types")
    return pl.DataFrame() if table is None else table.filter(pl.col("over") == "tasks")


def _size(row: dict[str, Any]) -> str:
    return with_error(abs(row["change"]), row["change_se"])


def _largest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -abs(row["change"]))[:4]


def _lengths(tables: dict[str, pl.DataFrame], edges: Sequence[int]) -> list[str]:
    """The sentences on the lengths at which a temperature helps or harms."""
    table = tables.get("evaluation_lengths", pl.DataFrame())
    if table.is_empty():
        return []
    reference = table["temperature"].first()
    lines = []
    for (task,), rows in table.group_by("name", maintain_order=True):
        known = (
            (pl.col("temperature") != reference)
            & pl.col("change_se").is_not_null()
            & (pl.col("items") >= TEXTS_FOR_AN_INTERVAL)
        )
        compared = rows.filter(known).to_dicts()
        if rows["interval"].n_unique() < 2 or not compared:
            continue
        moved = [row for row in compared if beyond_noise(row["change"], row["change_se"])]
        if moved:
            named = "; ".join(
                f"{row['temperature']} at {interval_name(row['interval'], edges)} tokens by "
                f"{with_error(row['change'], row['change_se'])}"
                for row in _largest(moved)
            )
            lines.append(f"{task} by length: these changes are beyond noise: {named}.")
        else:
            lines.append(f"{task} by length: no temperature changes the score of any interval beyond noise.")
    return lines


def _ends(tables: dict[str, pl.DataFrame]) -> list[str]:
    table = tables.get("evaluation_ends", pl.DataFrame())
    if table.is_empty():
        return []
    reference = table["temperature"].first()
    lines = []
    for row in table.filter((pl.col("temperature") != reference) & (pl.col("end") == "longest")).to_dicts():
        if row["change"] is not None and row["change_se"] and beyond_noise(row["change"], row["change_se"]):
            what = (
                "NDCG@100 of its longest queries"
                if row["figure"] == "ndcg_at_100"
                else "mean rank of its longest relevant documents"
            )
            lines.append(
                f"{row['name']}, {row['temperature']}: the {what} changes by {with_error(row['change'], row['change_se'])}, "
                f"to {number(row['value'])}."
            )
    return lines
