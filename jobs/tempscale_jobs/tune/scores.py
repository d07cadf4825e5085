"""Choose a temperature by scores on the development part of each task's items, and confirm it on the held-out part."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy import stats

from tempscale.stats import paired, sharing
from tempscale.stats.correlation import rho
from tempscale.stats.enough import DRAWS_FOR_A_HALF, ITEMS_FOR_A_HALF
from tempscale.stats.paired import Error
from tempscale.stats.sharing import Sharing
from tempscale_jobs.errors import UsageError
from tempscale_jobs.evaluate import analyses
from tempscale_jobs.evaluate.analyses import documents_shared, sources, together

RESAMPLES = 9_999
_BATCH = 250
_CONFIDENCE = 0.95


class Half(NamedTuple):
    """One part (development or held-out) of one task's items, in the same order under every candidate."""

    values: dict[str, np.ndarray]
    """By candidate: the value of each item, or the cosine of each pair."""
    gold: np.ndarray | None
    """Gold scores of pairs, for the rank correlation."""
    clusters: np.ndarray | None = None
    """The id of each item's text, which windows of one text share; None if items are independent."""
    drawn: dict[str, np.ndarray] | None = None
    """By candidate: the accuracy of each experiment of a classification; experiments learn from different draws."""
    shared: Sharing | None = None
    """The relevant documents of queries, where a document is relevant to several."""

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def score(self, candidate: str) -> float:
        """The candidate's score."""
        values = self.values[candidate]
        return float(values.mean()) if self.gold is None else rho(values, self.gold)

    def change(self, candidate: str, reference: str, seed: int) -> Error:
        """The change of the score from the reference's, with its standard error."""
        values, first = self.values[candidate], self.values[reference]
        if np.array_equal(values, first):
            return Error(0.0, 0.0)
        if self.gold is not None:
            return paired.rank_correlation(values, self.gold, first, seed)
        moved = values - first
        change = paired.mean(moved, self.clusters) if self.shared is None else sharing.mean(moved, self.shared)
        if self.drawn is None:
            return change
        return Error(change.value, together(change.se, self.drawn[candidate] - self.drawn[reference]))

    def resampled(self, candidate: str, reference: str, generator: np.random.Generator) -> np.ndarray:
        """The change in each bootstrap resample of the items, (resamples,); NaN if a resample has one gold score only."""
        values, first = self.values[candidate], self.values[reference]
        options: dict[str, Any] = {"n_resamples": RESAMPLES, "batch": _BATCH, "method": "percentile", "rng": generator}
        if self.gold is None:
            _, groups = np.unique(np.arange(len(values)) if self.clusters is None else self.clusters, return_inverse=True)
            sums, sizes = np.bincount(groups, values - first), np.bincount(groups)
            result = stats.bootstrap((sums, sizes), lambda a, b, axis: a.sum(axis) / b.sum(axis), paired=True, **options)
            resampled = np.asarray(result.bootstrap_distribution) + self._redrawn(candidate, reference, generator)
            return resampled if self.shared is None else _widened(resampled, values - first, self.shared)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # Degenerate resamples are NaN and are left out.
            result = stats.bootstrap(
                (values, first, self.gold), lambda a, b, gold: rho(a, gold) - rho(b, gold), paired=True,
                vectorized=False, **options,
            )  # fmt: skip
        return np.asarray(result.bootstrap_distribution)

    def _redrawn(self, candidate: str, reference: str, generator: np.random.Generator) -> np.ndarray | float:
        """The noise of the training draws, which are too few to resample: Student's t values times their error."""
        if self.drawn is None:
            return 0.0
        moved = self.drawn[candidate] - self.drawn[reference]
        error = paired.mean(moved).se
        return 0.0 if not error else np.asarray(error * generator.standard_t(len(moved) - 1, RESAMPLES))


def _widened(resampled: np.ndarray, moved: np.ndarray, shared: Sharing) -> np.ndarray:
    """Changes in resamples of single queries, as far about their mean as the documents that queries share let them be."""
    alone, together = paired.mean(moved).se, sharing.mean(moved, shared).se
    if not alone:
        return resampled
    widened: np.ndarray = moved.mean() + (resampled - moved.mean()) * (math.inf if together is None else together / alone)
    return widened


class Parts(NamedTuple):
    """The development and the held-out parts of every task with enough items."""

    dev: dict[str, list[Half]]
    """By task, one part for each of its splits and subsets."""
    held: dict[str, list[Half]]
    left_out: list[str]
    """The tasks with too few items."""


class Scored(NamedTuple):
    """Tables of `tempscale evaluate`, perhaps of no rows."""

    items: pl.DataFrame
    relevant: pl.DataFrame


def split(scored: Scored, tasks: Sequence[str], held_out: float, seed: int) -> Parts:
    """Split the items of every task by the ids of their texts alone; a share `held_out` is held out."""
    # The experiments of a classification are split too, so that the draws that favoured a candidate do not confirm it.
    parts = Parts({}, {}, [])
    for task in tasks:
        rows, relevant = (table.filter(pl.col("task") == task) for table in scored)
        halves: tuple[list[Half], list[Half]] = ([], [])
        # Without any item of a task, `items` has no further columns.
        for (part, subset), group in rows.group_by("split", "subset", maintain_order=True) if len(rows) else ():
            column = "predicted" if group["value"].null_count() else "value"
            if group[column].null_count():
                continue
            first = group.filter(pl.col("temperature") == group["temperature"].first())
            source = sources(first)
            learned = first["right"].null_count() == 0
            if learned and len(first["right"][0]) < 2 * DRAWS_FOR_A_HALF:
                continue
            held = analyses.held_out(source, held_out, seed)
            for place, (half, chosen) in enumerate(zip(halves, (~held, held), strict=True)):
                names = first["item"].filter(pl.Series(chosen))
                order = pl.DataFrame({"item": names})
                tables = {
                    label: order.join(one, on="item", how="left", maintain_order="left", validate="1:1")
                    for (label,), one in group.group_by("temperature", maintain_order=True)
                }
                if learned:
                    every = ((label, table["right"].to_list()) for label, table in tables.items())
                    right = {label: np.array(rows, dtype=np.float64)[:, place::2] for label, rows in every}
                    values = {label: each.mean(1) for label, each in right.items()}
                    half.append(Half(values, None, source[chosen], {label: each.mean(0) for label, each in right.items()}))
                    continue
                values = {label: table[column].to_numpy() for label, table in tables.items()}
                gold = None if column == "value" else first["gold"].filter(pl.Series(chosen)).to_numpy()
                of_part = relevant.filter(split=part, subset=subset) if len(relevant) else relevant
                shared = documents_shared(order, of_part)
                half.append(Half(values, gold, source[chosen] if gold is None else None, None, shared))
        if not halves[0] or min(len(half) for both in halves for half in both) < ITEMS_FOR_A_HALF:
            parts.left_out.append(task)
        else:
            parts.dev[task], parts.held[task] = halves
    return parts


def choose(parts: Parts, candidates: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """The rows of `tuning_scores` without key columns; the first candidate is the reference."""
    # The candidate with the best development score is chosen if its interval on the held-out part is above 0.
    if not parts.dev:
        raise UsageError(
            f"no task has {ITEMS_FOR_A_HALF} queries, texts or pairs with single scores in each part, so no task decides: "
            f"{', '.join(parts.left_out)}"
        )
    reference = candidates[0]
    rows = [_row(parts, candidate, reference, seed) for candidate in candidates]
    best = max(rows, key=lambda row: row["dev_score"])  # Of equal scores, the first.
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
        errors = [change.se for task_changes in changes for change in task_changes]
        weights = [1 / len(task_changes) / len(changes) for task_changes in changes for _ in task_changes]
        row[f"{name}_items"] = sum(len(half) for halves in tasks.values() for half in halves)
        row[f"{name}_score"] = _over(tasks, lambda half: half.score(candidate))
        row[f"{name}_change"] = row[f"{name}_score"] - _over(tasks, lambda half: half.score(reference))
        squares = [None if e is None else (w * e) ** 2 for w, e in zip(weights, errors, strict=True)]
        row[f"{name}_change_se"] = None if None in squares else math.sqrt(sum(s for s in squares if s is not None))
    return row


def _over(tasks: dict[str, list[Half]], figure: Any) -> float:
    return statistics.fmean(statistics.fmean(figure(half) for half in halves) for halves in tasks.values())


def _interval(tasks: dict[str, list[Half]], candidate: str, reference: str, seed: int) -> tuple[float, float]:
    """The percentile interval of the change of the mean over tasks, with each task's items resampled separately."""
    total, generator = np.zeros(RESAMPLES), np.random.default_rng(seed)
    for halves in tasks.values():
        for half in halves:
            total += half.resampled(candidate, reference, generator) / len(halves) / len(tasks)
    low, high = np.nanquantile(total, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high)
