"""The sentences of `tempscale evaluate`: each figure with its error, and no claim that noise could explain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tempscale_jobs.evaluate.findings import end, mean_score, score, score_by_length
from tempscale_jobs.report.again import again
from tempscale_jobs.report.findings import Finding, Findings, changed
from tempscale_jobs.report.text import count, interval_name, number, with_error

_KNOWN = {"noise": "no difference beyond noise", "up": "more than noise", "down": "more than noise"}
"""The states of a change whose noise is known, in words."""


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
            noise = _KNOWN.get(change.state, "it is not known whether that is more than noise")
            relative = "" if row["relative"] is None else f" ({number(100 * row['relative'])} %)"
            lines.append(
                f"{row['temperature']}: over {count(row['tasks'], 'task')} the mean score is {number(row['score'])}, a "
                f"change of {change}{over}{relative} against {reference}: {noise}."
            )
    compared = scored.filter(pl.col("temperature") != reference).to_dicts()
    states = [found.at(changed(score(row)), row).state for row in compared]
    for kind, state in (("rise", "up"), ("fall", "down")):
        if rows := [row for row, known in zip(compared, states, strict=True) if known == state]:
            named = "; ".join(f"{r['name']} at {r['temperature']} by {_size(r)}" for r in _largest(rows))
            lines.append(f"Scores that {kind} beyond the noise of {count(len(compared), 'comparison')}: {named}.")
    if len(compared) > 1 and set(states) == {"noise"}:
        lines.append(f"Of {count(len(compared), 'comparison')} of a task's score none is beyond noise.")
    return lines + _lengths(mine, found, edges) + _ends(mine, found)


def to_do(mine: dict[str, pl.DataFrame], run: dict[str, Any], edges: Sequence[int]) -> list[tuple[str, str]]:
    """What follows for one model from its scores, each with a command or none, from the tables as `of_model` has them."""
    rows, found = _over_tasks(mine).to_dicts(), Findings.read(mine["findings"])
    if len(rows) < 2:
        return [("Nothing was compared: give a second temperature with --tau.", "")]
    first, *others = rows
    changes = [found.at(changed(mean_score(row)), row) for row in others]
    if raised := [change for change in changes if change.state == "up"]:
        best = max(raised, key=lambda change: change.value or 0.0)
        text = (
            f"{best.temperature} raises the mean score by {best}, more than noise. Confirm it on items that did not choose "
            "it, before you embed the index again."
        )
        command = again(run, best.model, "tune", beside="tune")
        confirmed = f"{text} To choose on one part and confirm on the other:" if command else text
        return [(confirmed, command), *_harmed(mine, best, edges)]
    stay = f"Leave the temperature at {first['temperature']}"
    if lowered := [change for change in changes if change.state == "down"]:
        worst = min(lowered, key=lambda change: change.value or 0.0)
        return [(f"{stay}: none raises the mean score beyond noise, and {worst.temperature} changes it by {worst}.", "")]
    if all(change.state == "noise" for change in changes):
        most = number(max(change.largest or 0.0 for change in changes))
        return [(f"{stay}: none changes the mean score beyond noise. A change of up to {most} could be hidden by it.", "")]
    return [(f"{stay}: the noise of the changes is not known. Score more tasks, or larger ones, to tell.", "")]


def _harmed(mine: dict[str, pl.DataFrame], best: Finding, edges: Sequence[int]) -> list[tuple[str, str]]:
    """The length at which a temperature that raises the mean score lowers a score most; nothing where there is none."""
    table, found = mine.get("evaluation_lengths", pl.DataFrame()), Findings.read(mine["findings"])
    rows = table.filter(temperature=best.temperature).to_dicts() if not table.is_empty() else []
    lowered = [row for row in rows if found.at(changed(score_by_length(row)), row).state == "down"]
    if not lowered:
        return []
    worst = min(lowered, key=lambda row: row["change"])
    texts = f"{interval_name(worst['interval'], edges)} tokens"
    return [(f"Check first whether you need them: it lowers {worst['name']} for texts of {texts}, by {_size(worst)}.", "")]


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
    lines, reference = [], tables["evaluation"]["temperature"].first()
    many = count(len(table.filter(pl.col("temperature") != reference)), "comparison")
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
            lines.append(f"{task} by length, of {many} tested together: these changes are beyond noise: {named}.")
        else:
            lines.append(f"{task} by length, of {many} tested together: no change is beyond noise.")
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
