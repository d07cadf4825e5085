"""Cells, corpus figures and errors from the pairs of groups of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tempscale.collapse.length import interval_of
from tempscale.stats.errors import equal_documents
from tempscale.stats.groups import GroupSums, pairs_of_sets, quantile, shares_of_pairs
from tempscale_jobs.steps.dealing import Dealt
from tempscale_jobs.steps.layout import Layout
from tempscale_jobs.tables.columns import finite


class MeasuredGroups(NamedTuple):
    """The measured groups of one model under one temperature."""

    ids: np.ndarray
    tokens: np.ndarray
    trace: np.ndarray
    group: np.ndarray
    """The group of each pair."""
    first: np.ndarray
    """The place of a pair's first text in `ids`."""
    second: np.ndarray
    d_mu: np.ndarray
    d_sigma: np.ndarray
    value: np.ndarray
    """SOCM_{α,β} of each pair."""


@dataclass(frozen=True)
class Cells:
    """The cell of each measured pair, and the number of pairs that it represents."""

    names: list[tuple[int, int]]
    """All cells a ≤ b of intervals."""
    column: np.ndarray
    """The column of each pair in the sums: its cell; cells of pairs inside one document are separate and come last."""
    drawn: np.ndarray
    """The set of documents of each pair's group, or the group itself."""
    shape: tuple[int, int]
    weights: np.ndarray
    """Each column's share of the corpus's pairs."""
    freedom: float
    """Degrees of freedom of an error: groups, or equivalent sets of documents of equal size, minus one."""
    pairs: np.ndarray | None
    """The number of pairs of each set of documents, by column; None if groups are not from documents."""
    elsewhere: bool
    """Whether errors also hold for another corpus."""

    @classmethod
    def of(cls, measured: MeasuredGroups, layout: Layout, dealt: list[Dealt], set_of: np.ndarray | None) -> Cells:
        """The cells of the measured pairs; `set_of` is the set of documents of each text of the layout."""
        interval = interval_of(measured.tokens, layout.edges)
        interval_a, interval_b = interval[measured.first], interval[measured.second]
        size = len(layout.edges)
        upper = np.triu_indices(size)
        names = list(zip(*(side.tolist() for side in upper), strict=True))
        place = np.zeros((size, size), dtype=np.int64)
        place[upper] = np.arange(len(names))
        column = place[np.minimum(interval_a, interval_b), np.maximum(interval_a, interval_b)]
        drawn = np.array([group.drawn for group in dealt])[measured.group]
        if set_of is None:
            shape = (1 + max(group.drawn for group in dealt), len(names))
            freedom, elsewhere = len(dealt) - 1.0, layout.documents is None
            return cls(names, column, drawn, shape, shares_of_pairs(layout.texts_by_interval()), freedom, None, elsewhere)
        assert layout.documents is not None
        document = layout.documents[layout.places(measured.ids.tolist())]
        column = column + len(names) * (document[measured.first] == document[measured.second])
        sets = int(set_of.max()) + 1
        pairs = pairs_of_sets(layout.interval, layout.documents, set_of, (sets, size))
        inside = pairs[:, len(names) :].sum(0)
        between = shares_of_pairs(layout.texts_by_interval()) * len(layout) * (len(layout) - 1) / 2 - inside
        weights = np.concatenate([between, inside])
        freedom = equal_documents(set_of) - 1
        return cls(names, column, drawn, (sets, 2 * len(names)), weights / weights.sum(), freedom, pairs, True)

    def sums(self, values: np.ndarray) -> GroupSums:
        """The sums of a value of each pair, by set of documents or group, and by column."""
        sums = GroupSums.of(values, self.drawn, self.column, self.shape)
        return sums if self.pairs is None else sums.standing_for(self.pairs)

    def columns(self, cell: int) -> list[int]:
        """The columns of a cell."""
        return list(range(cell, self.shape[1], len(self.names)))

    def estimate(self, sums: GroupSums, cell: int) -> tuple[float, float]:
        """The mean of a cell and its error, over both of its columns; NaN where unknown."""
        return sums.estimate(self.weights, self.columns(cell))

    def pair_weights(self, sums: GroupSums, chosen: np.ndarray) -> np.ndarray | None:
        """The number of the corpus's pairs that each of some pairs represents; None if it is equal for all."""
        if self.pairs is None:
            return None
        measured = GroupSums.of(np.ones(len(self.column)), self.drawn, self.column, self.shape).counts
        share = np.divide(sums.counts, measured, out=np.zeros(self.shape), where=measured > 0)
        share *= self.weights / np.maximum(sums.counts.sum(0), 1)
        return np.asarray(share[self.drawn[chosen], self.column[chosen]])


def with_all(cells: Cells, sums: GroupSums, texts: np.ndarray) -> list[float | None]:
    """The mean of a text of each interval with all texts of the corpus; None if no such pair was measured."""
    means, values = [cells.estimate(sums, k)[0] for k in range(len(cells.names))], list[float | None]()
    for a in range(len(texts)):
        by_interval = {
            (i + j - a): means[k] for k, (i, j) in enumerate(cells.names) if a in (i, j) and np.isfinite(means[k])
        }
        weights = {b: float(texts[b]) for b in by_interval}
        total = sum(weights.values())
        values.append(sum(weights[b] * by_interval[b] for b in by_interval) / total if total else None)
    return values


def rows(
    measured: MeasuredGroups, cells: Cells, edges: tuple[int, ...], figures: dict[str, GroupSums], exact: bool
) -> list[dict[str, Any]]:
    """One row for each cell that has pairs; `exact` means that d_Σ was computed without ε."""
    rows = []
    for k, (a, b) in enumerate(cells.names):
        here = cells.column % len(cells.names) == k
        if not here.any():
            continue
        weights = cells.pair_weights(figures["socm_mean"], here)
        row: dict[str, Any] = {"interval_a": edges[a], "interval_b": edges[b], "pairs": int(here.sum())}
        row |= {"groups": len(np.unique(measured.group[here])), "exact": exact, "d_sigma_error": 0.0}
        row |= {f"{d}_mean": float(np.average(getattr(measured, d)[here], weights=weights)) for d in ("d_mu", "d_sigma")}
        for name, sums in figures.items():
            value, error = cells.estimate(sums, k)
            short, known = name.removesuffix("_mean"), finite(error)
            row |= {name: value, f"{short}_se": known, f"{short}_se_superpopulation": known if cells.elsewhere else None}
        for share in (50, 95):
            at, error_at = quantile(measured.value[here], cells.drawn[here], share / 100, weights)
            row |= {f"socm_p{share}": at, f"socm_p{share}_se": finite(error_at)}
        rows.append(row)
    return rows
