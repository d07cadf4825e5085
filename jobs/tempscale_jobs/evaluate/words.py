"""The sentences of `tempscale evaluate`: each figure with its error, and no claim that noise could explain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tempscale_jobs.evaluate.findings import end, mean_score, score, score_by_length
from tempscale_jobs.report.findings import Finding, Findings, changed
from tempscale_jobs.report.text import count, interval_name, number, with_error

_KNOWN = ("noise", "up", "down")
"""The states of a change whose noise is known."""


def more_than_noise(change: Finding) -> str:
    """Whether a change is more than noise, in words."""
    if change.state not in _KNOWN:
        return "it is not known whether that is more than noise"
    return "more than noise" if change.is_beyond_noise else "no difference beyond noise"


def of_model(mine: dict[str, pl.DataFrame], edges: Sequence[int]) -> list[str]:
    """The sentences on the changes of one model's scores, from its tables with labels and a column `name`."""
    lines = []
    scored = mine["evaluation"].filter(pl.col("score").is_not_null())
    if scored.is_empty():
        return ["No cell was scored."]
    reference, found = mine["evaluation"]["temperature"].first(), Findings.read(mine["findings"])
    for row in _over_tasks(mine).to_dicts():
        if row["temperature"] != reference:
            change = found.at(changed(mean_score(row)), row)
            over = "" if row["change_se"] is not None or change.error is None else " (± over tasks like these)"
            relative = "" if row["relative"] is None else f" ({number(100 * row['relative'])} %)"
            lines.append(
                f"{row['temperature']}: over {count(row['tasks'], 'task')} the mean score is {number(row['score'])}, a "
                f"change of {change}{over}{relative} against {reference}: {more_than_noise(change)}."
            )
    compared = scored.filter(pl.col("temperature") != reference).to_dicts()
    states = [found.at(changed(score(row)), row).state for row in compared]
    for kind, state in (("rise", "up"), ("fall", "down")):
        if rows := [row for row, known in zip(compared, states, strict=True) if known == state]:
            named = "; ".join(f"{r['name']} at {r['temperature']} by {_size(r)}" for r in _largest(rows))
            lines.append(f"Scores that {kind} by more than their error: {named}.")
    if len(compared) > 1 and set(states) == {"noise"}:
        lines.append("No task's score changes by more than its error under any temperature.")
    return lines + _lengths(mine, found, edges) + _ends(mine, found)


def _over_tasks(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    table = tables.get("evaluation_types")
    return pl.DataFrame() if table is None else table.filter(pl.col("over") == "tasks")


def _size(row: dict[str, Any]) -> str:
    return with_error(abs(row["change"]), row["change_se"])


def _largest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: -abs(row["change"]))[:4]


def _lengths(tables: dict[str, pl.DataFrame], found: Findings, edges: Sequence[int]) -> list[str]:
    """The sentences on the lengths at which a temperature helps or harms."""
    table = tables.get("evaluation_lengths", pl.DataFrame())
    if table.is_empty():
        return []
    lines = []
    for (task,), group in table.group_by("name", maintain_order=True):
        rows = [row | {"state": found.at(changed(score_by_length(row)), row).state} for row in group.to_dicts()]
        if group["interval"].n_unique() < 2 or not any(row["state"] in _KNOWN for row in rows):
            continue
        if moved := [row for row in rows if row["state"] in ("up", "down")]:
            named = "; ".join(
                f"{row['temperature']} at {interval_name(row['interval'], edges)} tokens by "
                f"{with_error(row['change'], row['change_se'])}"
                for row in _largest(moved)
            )
            lines.append(f"{task} by length: these changes are beyond noise: {named}.")
        else:
            lines.append(f"{task} by length: no temperature changes the score of any interval beyond noise.")
    return lines


def _ends(tables: dict[str, pl.DataFrame], found: Findings) -> list[str]:
    table = tables.get("evaluation_ends", pl.DataFrame())
    if table.is_empty():
        return []
    lines = []
    for row in table.filter(pl.col("end") == "longest").to_dicts():
        if found.at(changed(end(row)), row).is_beyond_noise:
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
