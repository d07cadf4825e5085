"""Exposure: the share of each length interval in search results, counted by tasks; also hubs and near-duplicates.

If all pairs are compared, every text is a query, and the tiles give its nearest texts. In closed form a sample of the texts
are the queries, over the whole corpus: this gives exposures an error but no bias. A sample would bias hubness, and
reciprocity needs every text to ask: both are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tempscale.collapse.aggregates import Duplicates, merge_tree
from tempscale.collapse.tiles import upper_triangle
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import Model, Run, is_whole
from tempscale_jobs.steps import blocks, by_group, by_length, neighbours
from tempscale_jobs.steps.blocks import COSINE, Merging, Tiling
from tempscale_jobs.steps.layout import Layout, layout, of_queries
from tempscale_jobs.steps.named import Asked, name_texts
from tempscale_jobs.steps.neighbours import FoundNeighbours, Labels, Queries
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.steps.slots import Counted, Graph, count, exposure_rows, ranked
from tempscale_jobs.tables.audit import COLLAPSED_TEXTS, EXPOSURE, EXPOSURE_CORRECTED, GROUP_EXPOSURE, NEAR_DUPLICATES
from tempscale_jobs.workers.cluster import Cluster

_WRITTEN = ("neighbours", "corrections", neighbours.CORRECTED, "partials/exposure")
"""The folders of the files of this step."""


def is_done(run: Run, model: Model, temperature: Temperature) -> bool:
    """Whether all files of this step exist."""
    return is_whole(run.storage, f"{run.place('partials/exposure', model, temperature)}/done.json")


def expose(scope: Embedded, temperature: Temperature, queries: Run | None) -> None:
    """Write the neighbours, near-duplicates, hubs and exposures, and under the first temperature corrected exposures."""
    analysis, texts = scope.analysis, len(scope.texts)
    with scope.journal.stage(scope.named("exposure", temperature)) as stage:
        if is_done(scope.run, scope.model, temperature):
            scope.run.storage.remove(f"{scope.run.place(COSINE, scope.model, temperature)}/near")
        else:
            _write(scope, temperature, queries)
        stage.note = f"{analysis.neighbours} nearest of {texts:,} texts"
        if analysis.cosine != "full":
            asked = min(texts, analysis.exposure_sample)
            stage.note = f"{analysis.neighbours} nearest of {asked:,} texts among all {texts:,}"


class _Rows(NamedTuple):
    """The rows of this step's tables."""

    exposure: list[dict[str, Any]]
    corrected: list[dict[str, Any]]
    hubs: list[dict[str, Any]]
    by_group: list[dict[str, Any]]
    asked: list[Asked]
    """Who asked, and what was counted."""


def _write(scope: Embedded, temperature: Temperature, queries: Run | None) -> None:
    run, model, texts = scope.run, scope.model, scope.texts
    place, full = run.place("partials/exposure", model, temperature), scope.analysis.cosine == "full"
    grid, bounds = blocks.tiling(scope, temperature)
    step, rows = _Step(scope, temperature, grid, bounds), _Rows([], [], [], [], [])
    # Tiles use labels of texts, which are converted to places in canonical order.
    labels = Labels.of(scope, temperature, all_names=full and bool(grid.neighbours))
    if full:
        duplicates = _duplicates(scope.cluster, grid, texts, step.key, labels.order)
        run.storage.write_table(f"{place}/near_duplicates.parquet", NEAR_DUPLICATES.build_rows(duplicates))
    if grid.neighbours:
        if full and len(texts) > 1:
            _merge(step, labels, rows)
        _search_with_texts(step, labels, rows)
        if queries is not None:
            _search_with_queries(step, labels, queries, rows)
    if rows.asked and temperature == run.temperatures[0] and not scope.config.quick:
        name_texts(labels, grid, rows.asked, place)
    run.storage.write_table(f"{place}/exposure.parquet", EXPOSURE.build_rows(rows.exposure))
    run.storage.write_table(f"{place}/exposure_corrected.parquet", EXPOSURE_CORRECTED.build_rows(rows.corrected))
    run.storage.write_table(f"{place}/collapsed_texts.parquet", COLLAPSED_TEXTS.build_rows(rows.hubs))
    if texts.groupings:
        run.storage.write_table(f"{place}/group_exposure.parquet", GROUP_EXPOSURE.build_rows(rows.by_group))
    run.storage.remove(f"{place}/done.json")  # A damaged one must not be among the files.
    files = [name for kind in _WRITTEN for name in run.storage.list(run.place(kind, model, temperature))]
    if queries is not None:
        files += [f"queries/{name}" for name in queries.storage.list(run.place("neighbours", model, temperature))]
    run.storage.write_json(f"{place}/done.json", {"texts": len(texts), "k": grid.neighbours, "files": files})
    run.storage.remove(f"{grid.place}/near")


@dataclass(frozen=True)
class _Step:
    """The arguments that the parts of this step share."""

    scope: Embedded
    temperature: Temperature
    grid: Tiling
    bounds: list[tuple[int, int]]
    """[start, stop) of each block."""

    @cached_property
    def correction(self) -> by_length.Fitting:
        """The correction by length that is fitted."""
        return by_length.Fitting(self.scope, self.temperature)

    @property
    def key(self) -> dict[str, Any]:
        """The columns of model and temperature."""
        return self.scope.run.key(self.scope.model, self.temperature)

    @property
    def full(self) -> bool:
        """Whether all pairs are compared."""
        return self.scope.analysis.cosine == "full"

    def count(self, graph: Graph) -> list[Counted]:
        """Count the slots of a graph."""
        return count(self.scope.cluster, self.grid, self.scope.texts, graph)

    def rows(self, graph: Graph) -> list[dict[str, Any]]:
        """The rows of `exposure` of a graph."""
        return exposure_rows(self.count(graph), graph, self.scope.texts, self.key)


def _add(step: _Step, rows: _Rows, graph: Graph, asking: tuple[Embedded, np.ndarray | None]) -> Counted:
    """Add what a graph says of exposure and of groups, and who asked; return the counts for all k."""
    scope, counted = step.scope, step.count(graph)
    rows.exposure.extend(exposure_rows(counted, graph, scope.texts, step.key))
    rows.by_group.extend(by_group.exposure_rows(scope.cluster, step.grid, scope.texts, graph, step.key))
    rows.asked.append(Asked(*asking, graph, counted[-1]))
    return counted[-1]


def _merge(step: _Step, labels: Labels, rows: _Rows) -> None:
    """Merge the nearest texts of every text from the tiles."""
    scope = step.scope
    folder = scope.run.place("neighbours", scope.model, step.temperature)
    graph = Graph(neighbours.merge(step.grid, folder, step.bounds, labels), len(scope.texts), from_corpus=True, every=True)
    counted = _add(step, rows, graph, (scope, None))
    rows.hubs.extend(ranked(step.key, "hub", counted.most, counted.times, scope.texts))


def _search_with_texts(step: _Step, labels: Labels, rows: _Rows) -> None:
    """Search with a sample of the texts; if the tiles have found their neighbours, only for the corrected exposures."""
    scope, texts = step.scope, step.scope.texts
    every = step.full and len(texts) <= by_length.ALL_ASK
    drawn = np.arange(len(texts)) if every else np.sort(texts.sample(scope.analysis.exposure_sample))
    asking = Queries(scope.run, texts, drawn, drawn, from_corpus=True)
    if not step.full and len(texts) > 1:
        found = neighbours.search(step.temperature, step.grid, asking, labels)
        graph = Graph(found.files, len(drawn), from_corpus=True, every=False)
        _add(step, rows, graph, (scope, None))
    fitted = replace(asking, places=step.correction.sample, numbers=step.correction.sample)
    offsets = step.correction.of(fitted, step.bounds) if len(drawn) else None
    held = drawn[~by_length.learns(texts.key[drawn])]
    if len(texts) > 1 and len(held) and offsets is not None:
        measuring = replace(asking, places=held, numbers=held, offsets=offsets)
        found = neighbours.search(step.temperature, step.grid, measuring, labels)
        rows.corrected.extend(_corrected(step, Graph([], len(held), from_corpus=True, every=False), found))


def _search_with_queries(step: _Step, labels: Labels, queries: Run, rows: _Rows) -> None:
    """Search with the queries."""
    scope, texts = step.scope, step.scope.texts
    query_layout = layout(queries, scope.cluster, scope.model, of_queries(texts))
    drawn = np.arange(len(query_layout)) if step.full else query_layout.sample(scope.analysis.exposure_sample)
    drawn = drawn[np.argsort(query_layout.stored[drawn])]  # In the order of their source.
    request = Queries(queries, query_layout, drawn, np.arange(len(drawn)), from_corpus=False)
    found = neighbours.search(step.temperature, step.grid, request, labels)
    graph = _asked_by(query_layout, drawn, every=len(drawn) == len(query_layout))._replace(files=found.files)
    _add(step, rows, graph, (replace(scope, run=queries, texts=query_layout), drawn))
    offsets, held = step.correction.of(request, step.bounds), drawn[~by_length.learns(query_layout.key[drawn])]
    if len(held) and offsets is not None:
        measuring = replace(request, places=held, numbers=np.arange(len(held)), offsets=offsets)
        found = neighbours.search(step.temperature, step.grid, measuring, labels)
        rows.corrected.extend(_corrected(step, _asked_by(query_layout, held, every=False), found))


def _asked_by(queries: Layout, drawn: np.ndarray, *, every: bool) -> Graph:
    """The graph of some queries, without files."""
    documents = None if queries.documents is None else queries.documents[drawn]
    groups = tuple(grouping.code[drawn] for grouping in queries.groupings)
    return Graph([], len(drawn), from_corpus=False, every=every, documents=documents, groups=groups)


def _corrected(step: _Step, graph: Graph, found: FoundNeighbours) -> list[dict[str, Any]]:
    """Rows of exposure_corrected."""
    rows = []
    for row in step.rows(graph._replace(files=found.files)):
        shares = found.kept[found.interval == step.scope.texts.edges.index(row["interval"])]
        share_kept = float(shares.mean()) if len(shares) and row["k"] == step.grid.neighbours else None
        rows.append(row | {"correction": by_length.RECIPE, "neighbours_kept": share_kept})
    return rows


def _duplicates(
    cluster: Cluster, grid: Tiling, layout: Layout, key: dict[str, Any], order: np.ndarray
) -> list[dict[str, Any]]:
    """The listed near-duplicates of all panels."""

    def first(left: Duplicates, right: Duplicates) -> Duplicates:
        return left.merged(right).first(grid.listed)

    pairs = blocks.merged(cluster, grid, upper_triangle(grid.panels), Merging(_listed, first, "near-duplicates"))
    places = order[pairs.labels]
    ids, tokens = layout.ids[places.ravel()].reshape(-1, 2), layout.tokens[places]
    turned = np.array([a > b for a, b in ids], dtype=bool)  # The smaller id comes first.
    ids[turned], tokens[turned] = ids[turned, ::-1], tokens[turned, ::-1]
    return [
        key
        | {"rank": rank, "text_id_a": a, "text_id_b": b, "cosine": float(cosine)}
        | {"tokens_a": int(of_a), "tokens_b": int(of_b)}
        for rank, (cosine, (a, b), (of_a, of_b)) in enumerate(zip(pairs.cosine, ids, tokens, strict=True), start=1)
    ]


def _listed(grid: Tiling, tiles: list[tuple[int, int]]) -> Duplicates:
    """The near-duplicates of some super-tiles."""
    lists = (blocks.read_duplicates(grid, i, j) for i, j in tiles)
    return merge_tree(lists, lambda left, right: left.merged(right).first(grid.listed))
