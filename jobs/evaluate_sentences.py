"""What `tempscale evaluate` found, in words: each figure with its error, and nothing claimed that may be noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from jobs.headline import beyond_noise, count, interval_name, number, with_error
from tempscale.length import FEWEST_TEXTS


def verdict(change: float | None, error: float | None) -> str:
    """What may be said of a change."""
    if change is None or error is None:
        return "whether that is more than noise is not known"
    if not beyond_noise(change, error):
        return "no difference beyond noise"
    return "more than noise"


def of_model(mine: dict[str, pl.DataFrame], edges: Sequence[int]) -> list[str]:
    """What the temperatures did to one model's scores.

    Args:
        mine: the model's tables, with the temperatures' labels in place of their texts, and `name`s.
        edges: of the length intervals.
    """
    found = []
    there = mine["evaluation"].filter(pl.col("score").is_not_null())
    if there.is_empty():
        return ["No cell was scored."]
    reference = mine["evaluation"]["temperature"].first()
    for row in _over_tasks(mine).to_dicts():
        if row["temperature"] != reference:
            error = row["change_se"] if row["change_se"] is not None else row["change_spread_se"]
            change = with_error(row["change"], error)
            # Of a clustering no item has a score: then the tasks' own changes tell how far they scatter.
            over = "" if row["change_se"] is not None or error is None else " (± over tasks like these)"
            relative = "" if row["relative"] is None else f" ({number(100 * row['relative'])} %)"
            found.append(
                f"{row['temperature']}: over {count(row['tasks'], 'task')} the mean score is {number(row['score'])}, a "
                f"change of {change}{over}{relative} against {reference}: {verdict(row['change'], error)}."
            )
    moved = there.filter(pl.col("temperature") != reference).to_dicts()
    known = [row for row in moved if row["change_se"] is not None and beyond_noise(row["change"], row["change_se"])]
    for kind, rows in (("rise", [r for r in known if r["change"] > 0]), ("fall", [r for r in known if r["change"] < 0])):
        if rows:
            named = "; ".join(f"{r['name']} at {r['temperature']} by {_size(r)}" for r in _largest(rows))
            found.append(f"Scores that {kind} by more than their error: {named}.")
    if len(moved) > 1 and not known and all(row["change_se"] is not None for row in moved):
        found.append("No task's score changes by more than its error under any temperature.")
    return found + _lengths(mine, edges) + _ends(mine)


def _over_tasks(mine: dict[str, pl.DataFrame]) -> pl.DataFrame:
    table = mine.get("evaluation_types")
    return pl.DataFrame() if table is None else table.filter(pl.col("over") == "tasks")


def _size(row: dict[str, Any]) -> str:
    return with_error(abs(row["change"]), row["change_se"])


def _largest(rows: list[dict[str, Any]], most: int = 4) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -abs(row["change"]))[:most]


def _lengths(mine: dict[str, pl.DataFrame], edges: Sequence[int]) -> list[str]:
    """At which lengths a temperature helps or harms."""
    table = mine.get("evaluation_lengths", pl.DataFrame())
    if table.is_empty():
        return []
    reference = table["temperature"].first()
    found = []
    for (task,), own in table.group_by("name", maintain_order=True):
        known = (pl.col("temperature") != reference) & pl.col("change_se").is_not_null() & (pl.col("items") >= FEWEST_TEXTS)
        compared = own.filter(known).to_dicts()
        if own["interval"].n_unique() < 2 or not compared:
            continue
        moved = [row for row in compared if beyond_noise(row["change"], row["change_se"])]
        if moved:
            named = "; ".join(
                f"{row['temperature']} at {interval_name(row['interval'], edges)} tokens by "
                f"{with_error(row['change'], row['change_se'])}"
                for row in _largest(moved)
            )
            found.append(f"{task} by length: beyond noise are {named}.")
        else:
            found.append(f"{task} by length: in no interval does a temperature change the score beyond noise.")
    return found


def _ends(mine: dict[str, pl.DataFrame]) -> list[str]:
    table = mine.get("evaluation_ends", pl.DataFrame())
    if table.is_empty():
        return []
    reference = table["temperature"].first()
    found = []
    for row in table.filter((pl.col("temperature") != reference) & (pl.col("end") == "longest")).to_dicts():
        if row["change"] is not None and row["change_se"] and beyond_noise(row["change"], row["change_se"]):
            what = (
                "NDCG@100 of its longest queries"
                if row["figure"] == "ndcg_at_100"
                else "mean rank of its longest relevant documents"
            )
            found.append(
                f"{row['name']}, {row['temperature']}: the {what} changes by {with_error(row['change'], row['change_se'])}, "
                f"to {number(row['value'])}."
            )
    return found
