"""A temperature chosen by scores: on the development part of each task's items, and told on the held-out part."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy import stats

from jobs import paired
from jobs.errors import UsageError
from jobs.evaluate_analyses import sources, together
from jobs.paired import Error
from tempscale.tiles import keyed_hash

_FEWEST = 10
"""Items that each part of a task needs."""
_FEWEST_DRAWS = 2
"""Experiments that each part of a classification needs."""
_RESAMPLES = 9_999
_BATCH = 250
_CONFIDENCE = 0.95


class Half(NamedTuple):
    """One part of one task's items, the same under every candidate, in one order."""

    values: dict[str, np.ndarray]
    """By candidate: each item's part of the score, or the cosine of each pair."""
    gold: np.ndarray | None
    """Scores of pairs, which a rank correlation is taken with."""
    clusters: np.ndarray | None = None
    """The text that each item is, or is a window of; None where each is its own."""
    drawn: dict[str, np.ndarray] | None = None
    """By candidate: the accuracy of each experiment of a classification, which learns from texts drawn for it."""

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def score(self, candidate: str) -> float:
        """The candidate's score."""
        own = self.values[candidate]
        return float(own.mean()) if self.gold is None else paired.rho(own, self.gold)

    def change(self, candidate: str, reference: str, seed: int) -> Error:
        """Of the score against the reference's, with its standard error."""
        own, first = self.values[candidate], self.values[reference]
        if np.array_equal(own, first):
            return Error(0.0, 0.0)
        if self.gold is not None:
            return paired.spearman(own, self.gold, first, seed)
        found = paired.mean(own - first, self.clusters)
        if self.drawn is None:
            return found
        return Error(found.value, together(found.se, self.drawn[candidate] - self.drawn[reference]))

    def resampled(self, candidate: str, reference: str, generator: np.random.Generator) -> np.ndarray:
        """The change over resamples of the items, (resamples,); NaN where a resample has one gold score only."""
        own, first = self.values[candidate], self.values[reference]
        how: dict[str, Any] = {"n_resamples": _RESAMPLES, "batch": _BATCH, "method": "percentile", "rng": generator}
        if self.gold is None:
            _, groups = np.unique(np.arange(len(own)) if self.clusters is None else self.clusters, return_inverse=True)
            sums, sizes = np.bincount(groups, own - first), np.bincount(groups)
            found = stats.bootstrap((sums, sizes), lambda a, b, axis: a.sum(axis) / b.sum(axis), paired=True, **how)
            return np.asarray(found.bootstrap_distribution) + self._redrawn(candidate, reference, generator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # Such resamples are left out.
            found = stats.bootstrap(
                (own, first, self.gold), lambda a, b, gold: paired.rho(a, gold) - paired.rho(b, gold), paired=True,
                vectorized=False, **how,
            )  # fmt: skip
        return np.asarray(found.bootstrap_distribution)

    def _redrawn(self, candidate: str, reference: str, generator: np.random.Generator) -> np.ndarray | float:
        """How far other draws to learn from would move the change: Student's t, for the draws are too few to resample."""
        if self.drawn is None:
            return 0.0
        moved = self.drawn[candidate] - self.drawn[reference]
        error = paired.mean(moved).se
        return 0.0 if not error else np.asarray(error * generator.standard_t(len(moved) - 1, _RESAMPLES))


class Parts(NamedTuple):
    """Development and held-out parts of every task that has items."""

    dev: dict[str, list[Half]]
    """By task, one for each of its splits and subsets."""
    held: dict[str, list[Half]]
    left_out: list[str]
    """Tasks that have no items, or too few."""


def split(items: pl.DataFrame, tasks: Sequence[str], held_out: float, seed: int) -> Parts:
    """Both parts of every task: an item's part follows from its id alone, and a window goes with its text.

    A classification's experiments are parted too: draws to learn from that favoured a candidate must not confirm it.

    Args:
        items: the table evaluation_items of one model.
        tasks: all tasks of the run.
        held_out: share of the items that choose nothing.
        seed: of the draw.
    """
    parts = Parts({}, {}, [])
    for task in tasks:
        rows = items.filter(pl.col("task") == task)
        halves: tuple[list[Half], list[Half]] = ([], [])
        # Of a run whose tasks have no items there is no table, and these rows have no further columns.
        for _, own in rows.group_by("split", "subset", maintain_order=True) if len(rows) else ():
            column = "predicted" if own["value"].null_count() else "value"
            if own[column].null_count():
                continue
            first = own.filter(pl.col("temperature") == own["temperature"].first())
            source = sources(first)
            learned = first["right"].null_count() == 0
            if learned and len(first["right"][0]) < 2 * _FEWEST_DRAWS:
                continue
            # Not of the bare id: a classification of one's own was already drawn by that under the same seed.
            held = np.array([keyed_hash(f"held out {name}", seed) / 2**64 < held_out for name in source])
            for place, (half, chosen) in enumerate(zip(halves, (~held, held), strict=True)):
                names = first["item"].filter(pl.Series(chosen))
                order = pl.DataFrame({"item": names})
                mine = {
                    label: order.join(one, on="item", how="left", maintain_order="left", validate="1:1")
                    for (label,), one in own.group_by("temperature", maintain_order=True)
                }
                if learned:
                    every = ((label, table["right"].to_list()) for label, table in mine.items())
                    right = {label: np.array(rows, dtype=np.float64)[:, place::2] for label, rows in every}
                    values = {label: each.mean(1) for label, each in right.items()}
                    half.append(Half(values, None, source[chosen], {label: each.mean(0) for label, each in right.items()}))
                    continue
                values = {label: table[column].to_numpy() for label, table in mine.items()}
                gold = None if column == "value" else first["gold"].filter(pl.Series(chosen)).to_numpy()
                half.append(Half(values, gold, source[chosen] if gold is None else None))
        if not halves[0] or min(len(half) for both in halves for half in both) < _FEWEST:
            parts.left_out.append(task)
        else:
            parts.dev[task], parts.held[task] = halves
    return parts


def choose(parts: Parts, candidates: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """The rows of `tuning_scores`, without their key; the candidate of the best development score is chosen, if the
    held-out part confirms it: its interval lies above 0. The first candidate is the reference.

    Raises:
        UsageError: no task has items enough.
    """
    if not parts.dev:
        raise UsageError(
            f"no task has {_FEWEST} queries, texts or pairs with a score of their own in each part, so none can choose: "
            f"{', '.join(parts.left_out)}"
        )
    reference = candidates[0]
    rows = [_row(parts, candidate, reference, seed) for candidate in candidates]
    best = max(rows, key=lambda row: row["dev_score"])  # The earliest of equal ones.
    chosen = rows[0]
    if best is not rows[0]:
        best["held_low"], best["held_high"] = _interval(parts.held, candidates[rows.index(best)], reference, seed)
        if best["held_low"] > 0:
            chosen = best
            best["reason"] = "best on the development part, and the held-out part confirms it beyond noise"
        else:
            best["reason"] = "best on the development part, but on the held-out part the gain may be noise"
    for row in rows:
        row["chosen"] = row is chosen
        if row["reason"] is None:
            row["reason"] = "not the best on the development part"
    if best is rows[0]:
        rows[0]["reason"] = "best on the development part"
    elif chosen is rows[0]:
        rows[0]["reason"] = "nothing beats it by more than noise"
    return rows


def _row(parts: Parts, candidate: str, reference: str, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {"held_low": None, "held_high": None, "eligible": True, "chosen": False, "reason": None}
    for name, tasks in (("dev", parts.dev), ("held", parts.held)):
        changes = [[half.change(candidate, reference, seed) for half in halves] for halves in tasks.values()]
        errors = [change.se for own in changes for change in own]
        weights = [1 / len(own) / len(changes) for own in changes for _ in own]
        row[f"{name}_items"] = sum(len(half) for halves in tasks.values() for half in halves)
        row[f"{name}_score"] = _over(tasks, lambda half: half.score(candidate))
        row[f"{name}_change"] = row[f"{name}_score"] - _over(tasks, lambda half: half.score(reference))
        squares = [None if e is None else (w * e) ** 2 for w, e in zip(weights, errors, strict=True)]
        row[f"{name}_change_se"] = None if None in squares else math.sqrt(sum(s for s in squares if s is not None))
    return row


def _over(tasks: dict[str, list[Half]], figure: Any) -> float:
    return statistics.fmean(statistics.fmean(figure(half) for half in halves) for halves in tasks.values())


def _interval(tasks: dict[str, list[Half]], candidate: str, reference: str, seed: int) -> tuple[float, float]:
    """The percentile interval of the change of the mean over tasks, each task's items resampled by themselves."""
    total, generator = np.zeros(_RESAMPLES), np.random.default_rng(seed)
    for halves in tasks.values():
        for half in halves:
            total += half.resampled(candidate, reference, generator) / len(halves) / len(tasks)
    low, high = np.nanquantile(total, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high)
