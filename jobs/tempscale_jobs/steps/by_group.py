"""Groups of texts by the columns of --by: which fill the results of searches, whose texts find each other, and how near
the texts of a group and of two groups are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from tempscale.collapse.aggregates import merge_tree
from tempscale.collapse.exposure import QueryNeighbours, Units
from tempscale.collapse.groups import Asking, GroupSums, Spread, Stays, staying, stays_counted
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale.stats.errors import DocumentSums, between_error, enough_documents, error_of_sums, within_error
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import Model, Run, is_whole
from tempscale_jobs.steps import blocks, slots
from tempscale_jobs.steps.blocks import Merging, Tiling
from tempscale_jobs.steps.grouping import Grouping
from tempscale_jobs.steps.layout import Layout
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.steps.slots import Graph
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import GROUP_COSINE
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import results, share

PLACE = "partials/by_group"
"""The folder of the cosines of groups."""
_EXACT = 2.0**30
"""Parts of 1 to which deviations are rounded, so that float64 holds the sums of 2²³ texts exactly."""
COMPARED = 12
"""The largest groups of a column, whose pairs are compared."""


def instead_of_lengths(texts: Layout, grouping: Grouping) -> Layout:
    """The texts with the numbers of their groups in place of their length intervals."""
    return replace(texts, interval=grouping.code, edges=tuple(range(len(grouping.names))))


# ---------------------------------------------------------------------------------------------- results of searches


def exposure_rows(
    cluster: Cluster, grid: Tiling, texts: Layout, graph: Graph, key: dict[str, Any]
) -> list[dict[str, Any]]:  # fmt: skip
    """The rows of `group_exposure` of a graph: each column, number of neighbours and group."""
    rows = list[dict[str, Any]]()
    for number, grouping in enumerate(texts.groupings):
        grouped, groups = instead_of_lengths(texts, grouping), len(grouping.names)
        of_groups = replace(grid, intervals=groups)
        exposed = slots.exposure_rows(slots.count(cluster, of_groups, grouped, graph), graph, grouped, key)
        askers = grouping.code if graph.from_corpus else graph.groups[number]
        stays = _stays(cluster, of_groups, grouped, graph, askers)
        less = int(graph.from_corpus)
        for row in exposed:
            group = row.pop("interval")
            del row["queries"], row["k_occurrence_skewness"], row["reciprocity"]
            asked, shares, errors = (column[group] for column in stays[row["k"]])
            expected = (row["texts"] - less) / max(1, len(texts) - less)
            rows.append(
                row
                | {"by": grouping.by, "group": grouping.names[group]}
                | {"stays": finite(shares), "stays_expected": expected if asked else None}
                | {"stays_se": finite(errors or np.nan) if asked >= TEXTS_FOR_AN_INTERVAL else None}
            )
    return rows


def _stays(
    cluster: Cluster, grid: Tiling, texts: Layout, graph: Graph, askers: np.ndarray
) -> dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]]:  # fmt: skip
    """The queries of each group, the share of their results that stay in it, and its error, by the number of neighbours."""
    others = 0 if graph.from_corpus else graph.queries
    documents = [column for column in (texts.documents, graph.documents) if column is not None]
    levels = [Units.of(len(texts), others)]
    levels += [Units.of(len(texts), others, texts.documents, graph.documents)] if documents else []
    groups, counted = share((texts.interval, askers)), list[list[Stays]]()
    for units in levels:
        shared = share(units)
        work = [(grid, graph, here, shared, groups) for here in slots.ranges(grid, units)]
        of_ranges = zip(*results(cluster, _count_stays, work, "results of groups"), strict=True)
        counted.append([reduce(Stays.merged, of_k) for of_k in of_ranges])
    enough, found = all(map(enough_documents, documents)), {}
    for k, *counts in zip(slots.numbers_of_neighbours(grid), *counted, strict=True):
        shares, errors = staying(*counts)
        found[k] = counts[0].queries, shares, errors if enough else np.full(len(errors), np.nan)
    return found


def _count_stays(
    grid: Tiling, graph: Graph, here: range, units: Units, groups: tuple[np.ndarray, np.ndarray]
) -> list[Stays]:  # fmt: skip
    """Count the results in which a range of units takes part, for each number of neighbours."""
    of_texts, of_askers = groups

    def asking(k: int) -> Iterator[Asking]:
        for name in graph.files:
            table = grid.storage.read_table(name)
            asker = table.column("asker").to_numpy()
            near = QueryNeighbours(units.of_queries(asker, graph.from_corpus), parts.matrix(table, "place")[:, :k])
            yield Asking(near, of_askers[asker])

    return [
        stays_counted(asking(k), of_texts, grid.intervals, here, count=units.total, unit=units.texts)
        for k in slots.numbers_of_neighbours(grid)
    ]


# ---------------------------------------------------------------------------------------------- cosines


def is_done(run: Run, model: Model, temperature: Temperature) -> bool:
    """Whether all files of this step exist."""
    return is_whole(run.storage, f"{run.place(PLACE, model, temperature)}/done.json")


def measure(scope: Embedded, temperature: Temperature) -> None:
    """Write `group_cosine` of one model and temperature."""
    run, texts = scope.run, scope.texts
    if not texts.groupings or is_done(run, scope.model, temperature):
        return
    with scope.journal.stage(scope.named("groups of texts", temperature)) as stage:
        grid, bounds = blocks.tiling(scope, temperature)
        compared = [min(COMPARED, len(grouping.names)) for grouping in texts.groupings]
        codes = np.stack([grouping.code for grouping in texts.groupings])
        shared = share(_Texts(bounds, codes, compared, texts.documents))
        how = Merging(_sums, _merged, "sums of groups", (shared,))
        sums: list[GroupSums] = blocks.merged(scope.cluster, grid, range(grid.count), how)
        how = Merging(_spread, _merged, "means of groups", (shared, share(sums)))
        spread: list[_Means] = blocks.merged(scope.cluster, grid, range(grid.count), how)
        key, rows = run.key(scope.model, temperature), list[dict[str, Any]]()
        for grouping, of_sums, of_means in zip(texts.groupings, sums, spread, strict=True):
            rows += [key | {"by": grouping.by} | row for row in _cosine_rows(grouping, of_sums, of_means)]
        place = run.place(PLACE, scope.model, temperature)
        run.storage.write_table(f"{place}/{GROUP_COSINE.name}.parquet", GROUP_COSINE.build_rows(rows))
        run.storage.write_json(f"{place}/done.json", {"files": [f"{place}/{GROUP_COSINE.name}.parquet"]})
        stage.note = ", ".join(f"{len(grouping.names)} by {grouping.by}" for grouping in texts.groupings)


class _Texts(NamedTuple):
    """What tasks know of all texts."""

    bounds: list[tuple[int, int]]
    """[start, stop) of each block."""
    codes: np.ndarray
    """The group of each text by each column, (column, text)."""
    compared: list[int]
    """The groups of each column that are compared."""
    documents: np.ndarray | None


class _Means(NamedTuple):
    """What is known of the texts' mean cosines with the groups of a column."""

    spread: Spread
    documents: tuple[DocumentSums, ...] | None
    """Sums of these means by document, less those of the groups, for the texts of each group; None without documents."""

    def merged(self, other: _Means) -> _Means:
        """What is known of two sets of texts."""
        spread = self.spread.merged(other.spread)
        if self.documents is None or other.documents is None:
            return _Means(spread, None)
        return _Means(spread, tuple(a.merged(b) for a, b in zip(self.documents, other.documents, strict=True)))


def _merged(left: list[Any], right: list[Any]) -> list[Any]:
    return [a.merged(b) for a, b in zip(left, right, strict=True)]


def _sums(grid: Tiling, numbers: range, texts: _Texts) -> list[GroupSums]:
    """The sums of the vectors of some blocks, for each column."""

    def of_blocks() -> Iterator[list[GroupSums]]:
        for number in numbers:
            rows, here = blocks.read_block(grid, number).embeddings, slice(*texts.bounds[number])
            yield [GroupSums.of(rows, code[here], n) for code, n in zip(texts.codes, texts.compared, strict=True)]

    return merge_tree(of_blocks(), _merged)


def _spread(grid: Tiling, numbers: range, texts: _Texts, sums: list[GroupSums]) -> list[_Means]:
    """What is known of the mean cosines of the texts of some blocks, for each column."""

    def of_blocks() -> Iterator[list[_Means]]:
        for number in numbers:
            rows, here = blocks.read_block(grid, number).embeddings, slice(*texts.bounds[number])
            documents = None if texts.documents is None else texts.documents[here]
            yield [_means(rows, code[here], of, documents) for code, of in zip(texts.codes, sums, strict=True)]

    return merge_tree(of_blocks(), _merged)


def _means(rows: np.ndarray, code: np.ndarray, sums: GroupSums, documents: np.ndarray | None) -> _Means:
    """What is known of the mean cosines of some texts; those of other groups are left out."""
    chosen = code < len(sums.texts)
    group = code[chosen]
    means = sums.text_means(rows[chosen], group)
    spread = Spread.of(means, group, sums)
    if documents is None:
        return _Means(spread, None)
    # In whole parts, whose sums are exact in float64.
    away = np.rint((means - sums.means()[group]) * _EXACT) / _EXACT
    named = documents[chosen]
    return _Means(spread, tuple(DocumentSums.of(away[group == g], named[group == g]) for g in range(len(sums.texts))))


def _cosine_rows(grouping: Grouping, sums: GroupSums, means: _Means) -> Iterator[dict[str, Any]]:
    """The rows of a column."""
    mean, pairs, variance, texts = sums.means(), sums.pairs(), means.spread.variance(), sums.texts
    for a in range(len(texts)):
        for b in range(a, len(texts)):
            if not pairs[a, b]:
                continue
            if min(texts[a], texts[b]) < TEXTS_FOR_AN_INTERVAL:
                error = None
            elif means.documents is not None:
                of = means.documents
                inside = error_of_sums([of[a]], [a], [2.0]) if a == b else error_of_sums([of[a], of[b]], [b, a], [1.0, 1.0])
                error = finite(inside)
            elif a == b:
                error = within_error(variance[a, a], texts[a])
            else:
                error = between_error(variance[a, b], texts[a], variance[b, a], texts[b])
            yield {
                "group_a": grouping.names[a], "group_b": grouping.names[b], "pairs": int(pairs[a, b]),
                "cosine_mean": float(mean[a, b]), "cosine_mean_se_superpopulation": error,
            }  # fmt: skip
