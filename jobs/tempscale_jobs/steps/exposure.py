"""Exposure: the share of each length interval in search results, counted by tasks; also hubs and near-duplicates.

If all pairs are compared, every text is a query, and the tiles give its nearest texts. In closed form a sample of the texts
are the queries, over the whole corpus: this gives exposures an error but no bias. It would bias hubness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np

from tempscale.collapse.aggregates import Duplicates, merge_tree
from tempscale.collapse.exposure import QueryNeighbours, Slots, Units, exposures, slots
from tempscale.collapse.neighbours import PowerSums, skewness
from tempscale.collapse.tiles import upper_triangle
from tempscale.stats.errors import enough_documents
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import Model, Run, is_whole
from tempscale_jobs.steps import blocks, by_length, neighbours
from tempscale_jobs.steps.blocks import COSINE, Merging, Tiling
from tempscale_jobs.steps.layout import Layout, Order, layout
from tempscale_jobs.steps.neighbours import FoundNeighbours, Labels, Queries
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import COLLAPSED_TEXTS, EXPOSURE, EXPOSURE_CORRECTED, NEAR_DUPLICATES
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import results, share

UNITS_OF_A_TASK = 1 << 20
"""Texts or documents whose slots one task counts; it reads the neighbours of all."""
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


def _write(scope: Embedded, temperature: Temperature, queries: Run | None) -> None:
    run, model, texts = scope.run, scope.model, scope.texts
    place, full = run.place("partials/exposure", model, temperature), scope.analysis.cosine == "full"
    grid, bounds = blocks.tiling(scope, temperature)
    step, rows = _Step(scope, temperature, grid, bounds), _Rows([], [], [])
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
    run.storage.write_table(f"{place}/exposure.parquet", EXPOSURE.build_rows(rows.exposure))
    run.storage.write_table(f"{place}/exposure_corrected.parquet", EXPOSURE_CORRECTED.build_rows(rows.corrected))
    run.storage.write_table(f"{place}/collapsed_texts.parquet", COLLAPSED_TEXTS.build_rows(rows.hubs))
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

    def count(self, graph: Graph) -> list[_Counted]:
        """Count the slots of a graph."""
        return count(self.scope.cluster, self.grid, self.scope.texts, graph)

    def rows(self, graph: Graph) -> list[dict[str, Any]]:
        """The rows of `exposure` of a graph."""
        return exposure_rows(self.count(graph), graph, self.scope.texts, self.key)


def _merge(step: _Step, labels: Labels, rows: _Rows) -> None:
    """Merge the nearest texts of every text from the tiles."""
    scope = step.scope
    folder = scope.run.place("neighbours", scope.model, step.temperature)
    graph = Graph(neighbours.merge(step.grid, folder, step.bounds, labels), len(scope.texts), from_corpus=True, every=True)
    counted = step.count(graph)
    rows.exposure.extend(exposure_rows(counted, graph, scope.texts, step.key))
    rows.hubs.extend(ranked(step.key, "hub", counted[-1].most, counted[-1].times, scope.texts))


def _search_with_texts(step: _Step, labels: Labels, rows: _Rows) -> None:
    """Search with a sample of the texts; if the tiles have found their neighbours, only for the corrected exposures."""
    scope, texts = step.scope, step.scope.texts
    every = step.full and len(texts) <= by_length.ALL_ASK
    drawn = np.arange(len(texts)) if every else np.sort(texts.sample(scope.analysis.exposure_sample))
    fitted = Queries(scope.run, texts, step.correction.sample, step.correction.sample, from_corpus=True)
    offsets = step.correction.of(fitted, step.bounds) if len(drawn) else None
    if len(texts) > 1 and (not step.full or offsets is not None):
        sampled = Queries(scope.run, texts, drawn, drawn, from_corpus=True, offsets=offsets, plain=not step.full)
        found = neighbours.search(step.temperature, step.grid, sampled, labels)
        graph = Graph(found.files, len(drawn), from_corpus=True, every=every)
        if not step.full:
            rows.exposure.extend(step.rows(graph))
        rows.corrected.extend(_corrected(step, graph, found))


def _search_with_queries(step: _Step, labels: Labels, queries: Run, rows: _Rows) -> None:
    """Search with the queries."""
    scope, texts = step.scope, step.scope.texts
    query_layout = layout(queries, scope.cluster, scope.model, Order(texts.edges, texts.seed))
    drawn = np.arange(len(query_layout)) if step.full else query_layout.sample(scope.analysis.exposure_sample)
    drawn = drawn[np.argsort(query_layout.stored[drawn])]  # In the order of their source.
    request = Queries(queries, query_layout, drawn, np.arange(len(drawn)), from_corpus=False)
    request = replace(request, offsets=step.correction.of(request, step.bounds))
    found = neighbours.search(step.temperature, step.grid, request, labels)
    documents = None if query_layout.documents is None else query_layout.documents[drawn]
    graph = Graph(found.files, len(drawn), from_corpus=False, every=len(drawn) == len(query_layout), documents=documents)
    rows.exposure.extend(step.rows(graph))
    rows.corrected.extend(_corrected(step, graph, found))


class Graph(NamedTuple):
    """The nearest texts of some queries, in parts."""

    files: list[str]
    queries: int
    """The number of queries."""
    from_corpus: bool
    """Whether the queries are texts of the corpus."""
    every: bool
    """Whether they are all queries, not a sample."""
    documents: np.ndarray | None = None
    """The document of each query; None if no query has one, and for texts of the corpus."""


class _Counted(NamedTuple):
    """The counts for one number of neighbours."""

    k: int
    by_text: Slots
    by_document: Slots | None
    occurrence: PowerSums
    """Of N_k over the texts."""
    most: np.ndarray
    """Places of texts, among them those of largest N_k."""
    times: np.ndarray
    """N_k of each."""


def count(cluster: Cluster, grid: Tiling, texts: Layout, graph: Graph) -> list[_Counted]:
    """Count the slots of a graph for the nearest text alone and for all k, by text and, where there are any, by document."""
    others = 0 if graph.from_corpus else graph.queries
    by_document = texts.documents is not None or graph.documents is not None
    levels = [Units.of(len(texts), others)]
    levels += [Units.of(len(texts), others, texts.documents, graph.documents)] if by_document else []
    interval, work = share(texts.interval), []
    for units in levels:
        shared = share(units)
        for start in range(0, units.total, UNITS_OF_A_TASK):
            here = range(start, min(start + UNITS_OF_A_TASK, units.total))
            keys = texts.key[here.start : here.stop] if units is levels[0] else None
            work.append((grid, graph, interval, shared, _Range(here, keys)))
    counts = results(cluster, _count_units, work, "counts")
    of_texts = [by_k for by_k, (*_, part) in zip(counts, work, strict=True) if part.keys is not None]
    of_documents = [by_k for by_k, (*_, part) in zip(counts, work, strict=True) if part.keys is None]
    return [
        _Counted(
            k,
            reduce(Slots.merged, (by_k[number].slots for by_k in of_texts)),
            reduce(Slots.merged, (by_k[number].slots for by_k in of_documents)) if of_documents else None,
            reduce(PowerSums.merged, (by_k[number].occurrence for by_k in of_texts)),
            np.concatenate([by_k[number].most for by_k in of_texts]),
            np.concatenate([by_k[number].times for by_k in of_texts]),
        )
        for number, k in enumerate(_numbers(grid))
    ]


def _numbers(grid: Tiling) -> list[int]:
    """The numbers of neighbours that are counted: the nearest, and all."""
    return sorted({1, grid.neighbours})


class _OfUnits(NamedTuple):
    """The counts of a range of units."""

    slots: Slots
    occurrence: PowerSums
    most: np.ndarray
    times: np.ndarray


class _Range(NamedTuple):
    """Consecutive units, whose slots one task counts."""

    here: range
    keys: np.ndarray | None
    """The key of each text; None if the units are documents."""


def _count_units(grid: Tiling, graph: Graph, interval: np.ndarray, units: Units, part: _Range) -> list[_OfUnits]:
    """Count the slots of a range of units, and for texts N_k and its largest values."""
    here, keys = part

    def query_neighbours(k: int) -> Iterator[QueryNeighbours]:
        for name in graph.files:
            table = grid.storage.read_table(name)
            unit = units.of_queries(table.column("asker").to_numpy(), graph.from_corpus)
            yield QueryNeighbours(unit, parts.matrix(table, "place")[:, :k])

    counted = []
    for k in _numbers(grid):
        counts, filled = slots(query_neighbours(k), interval, grid.intervals, here, count=units.total, unit=units.texts)
        times = filled[: 0 if keys is None else len(keys)]
        most = here.start + largest(times, keys) if keys is not None else np.zeros(0, np.int64)
        counted.append(_OfUnits(counts, PowerSums.of(times), most, times[most - here.start]))
    return counted


def exposure_rows(counted: Sequence[_Counted], graph: Graph, texts: Layout, key: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each interval, for the nearest text alone and for all k."""
    population = texts.population(len(texts)) if graph.from_corpus else float("inf")
    share = graph.queries / len(texts) if graph.from_corpus else 1.0
    enough = all(enough_documents(column) for column in (texts.documents, graph.documents) if column is not None)
    rows = []
    for counts in counted:
        figures = exposures(counts.by_text, population, counts.by_document, share)
        hubness = skewness(counts.occurrence) if graph.every else None
        rows += [
            key
            | {"asked_by": "corpus" if graph.from_corpus else "queries", "queries": graph.queries, "k": counts.k}
            | {"interval": texts.edges[b], "texts": int(counts.by_text.texts[b])}
            | {"texts_share": float(figures.texts_share[b]), "slots_share": float(figures.slots_share[b])}
            | {"exposure": float(figures.exposure[b]), "exposure_se": float(figures.corrected[b])}
            | {"exposure_se_superpopulation": finite(figures.error[b]) if enough else None, "k_occurrence_skewness": hubness}
            for b in np.flatnonzero(counts.by_text.texts)
        ]
    return rows


def _corrected(step: _Step, graph: Graph, found: FoundNeighbours) -> list[dict[str, Any]]:
    """Rows of exposure_corrected; none without a correction."""
    if not found.corrected:
        return []
    rows = []
    for row in step.rows(graph._replace(files=found.corrected)):
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


LISTED, _AT_ONCE = 20, 1 << 20
"""The length of a ranking, and how many texts are sorted together."""


def largest(values: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The places of the largest values of a ranking, ties by key; NaN is skipped."""
    places = [np.zeros(0, np.int64)]
    for start in range(0, len(values), _AT_ONCE):
        chunk = values[start : start + _AT_ONCE]
        known = np.flatnonzero(~np.isnan(chunk))
        if len(known) > LISTED:  # Sort only the candidates.
            known = known[chunk[known] >= np.partition(chunk[known], -LISTED)[-LISTED]]
        places.append(start + known)
    candidates = np.concatenate(places)
    return candidates[np.lexsort((keys[candidates], -values[candidates]))][:LISTED]


def ranked(
    key: dict[str, Any], ranking: str, places: np.ndarray, values: np.ndarray, layout: Layout
) -> list[dict[str, Any]]:
    """Rows of `collapsed_texts` for the ranking `nearness` or `hub`, from texts that include those of largest value."""
    order = largest(values, layout.key[places])
    return [
        key
        | {"ranking": ranking, "rank": rank, "text_id": text_id}
        | {"tokens": int(layout.tokens[place]), "value": float(value)}
        for rank, (place, value, text_id) in enumerate(
            zip(places[order], values[order], layout.ids[places[order]], strict=True), start=1
        )
    ]
