"""Exposure: who fills the search results by length interval, counted by tasks; hubs and near-duplicates are here too.

Where all pairs are compared, every text asks, and the tiles have found its nearest. In closed form a sample of the texts
asks the whole corpus: rows are a sample, columns all, so exposures have an error but no bias. Hubness would have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.collapse.aggregates import Duplicates, merge_tree
from tempscale.collapse.exposure import Asked, Slots, Units, exposures, slots
from tempscale.collapse.grid import upper_triangle
from tempscale.collapse.neighbours import NOBODY, PowerSums, skewness
from tempscale.stats.errors import tell_an_error
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.collapse import blocks, by_length, neighbours
from tempscale_jobs.collapse.blocks import Tiling
from tempscale_jobs.collapse.neighbours import Asking, Found, Names
from tempscale_jobs.embedding.layout import Layout, layout
from tempscale_jobs.embedding.scope import Embedded
from tempscale_jobs.runs.folder import Model, Run, is_whole
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import COLLAPSED_TEXTS, EXPOSURE, EXPOSURE_CORRECTED, NEAR_DUPLICATES
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import results, share

UNITS_OF_A_TASK = 1 << 20
"""Texts or documents whose slots one task counts: it reads the neighbours of all, and keeps what is about these."""
_WRITTEN = ("neighbours", "corrections", neighbours.CORRECTED, "partials/exposure")
"""The folders of the files of this step."""


def is_done(run: Run, model: Model, temperature: Temperature) -> bool:
    """Whether all files of this step are there."""
    return is_whole(run.storage, f"{run.place('partials/exposure', model, temperature)}/done.json")


def expose(scope: Embedded, temperature: Temperature, queries: Run | None) -> None:
    """Write the neighbours, and the tables exposure, near_duplicates and collapsed_texts (hubs); in closed form exposure.

    `queries` is the run in the folder queries/, if there are queries. Under the first temperature exposure_corrected says
    what a correction by length would do.
    """
    analysis, texts = scope.analysis, len(scope.texts)
    with scope.journal.stage(scope.named("exposure", temperature)) as stage:
        if is_done(scope.run, scope.model, temperature):
            scope.run.storage.remove(f"{scope.run.place('partials/cosine', scope.model, temperature)}/near")
        else:
            _write(scope, temperature, queries)
        stage.note = f"{analysis.neighbours} nearest of {texts:,} texts"
        if analysis.cosine != "full":
            asked = min(texts, analysis.exposure_sample)
            stage.note = f"{analysis.neighbours} nearest of {asked:,} texts among all {texts:,}"


def _write(scope: Embedded, temperature: Temperature, queries: Run | None) -> None:
    run, cluster, model, texts, analysis = scope.run, scope.cluster, scope.model, scope.texts, scope.analysis
    place = run.place("partials/exposure", model, temperature)
    (grid, bounds), key = blocks.tiling(scope, temperature), run.key(model, temperature)
    full, rows, moved = analysis.cosine == "full", list[dict[str, Any]](), list[dict[str, Any]]()
    hubs = list[dict[str, Any]]()
    corrected = by_length.Fitting(scope, temperature)
    # Tiles name a text by its label; `order` turns it into the text's place in canonical order.
    order = texts.by_label()
    if full:
        duplicates = _duplicates(cluster, grid, texts, key, order)
        run.storage.write_table(f"{place}/near_duplicates.parquet", NEAR_DUPLICATES.build_rows(duplicates))
    if grid.neighbours:
        every = neighbours.all_names(scope, temperature, order) if full else None

        def names(labels: np.ndarray) -> Any:
            if every is not None:
                return every
            known = labels[labels != NOBODY]
            return Names(pa.array(texts.ids[order[known]], pa.string()), known)

        how = (cluster, grid, model, temperature)
        if full and len(texts) > 1:
            found = neighbours.merge(
                cluster, grid, run.place("neighbours", model, temperature), bounds, every, share(order)
            )  # fmt: skip
            graph = Graph(found, len(texts), own=True, every=True)
            counted = count(cluster, grid, texts, graph)
            rows = exposure_rows(counted, graph, texts, key)
            hubs = ranked(key, "hub", counted[-1].most, counted[-1].times, texts)
        every_asks = full and len(texts) <= by_length.ALL_ASK
        drawn = np.arange(len(texts)) if every_asks else np.sort(texts.sample(analysis.exposure_sample))
        taken = corrected.of(Asking(run, texts, corrected.sample, corrected.sample, True), bounds) if len(drawn) else None
        if len(texts) > 1 and (not full or taken is not None):
            asked = neighbours.ask(*how, Asking(run, texts, drawn, drawn, True), order, names, taken, plain=not full)
            graph = Graph(asked.files, len(drawn), own=True, every=every_asks)
            if not full:
                rows = exposure_rows(count(cluster, grid, texts, graph), graph, texts, key)
            moved += _corrected(cluster, grid, texts, graph, asked, texts.interval[drawn], key)
        if queries is not None:
            asking = layout(queries, cluster, model, 0, texts.edges, texts.seed)
            drawn = np.arange(len(asking)) if full else asking.sample(analysis.exposure_sample)
            drawn = drawn[np.argsort(asking.stored[drawn])]  # As in their source.
            own = Asking(queries, asking, drawn, np.arange(len(drawn)), False)
            asked = neighbours.ask(*how, own, order, names, corrected.of(own, bounds))
            documents = None if asking.documents is None else asking.documents[drawn]
            graph = Graph(asked.files, len(drawn), own=False, every=len(drawn) == len(asking), documents=documents)
            rows += exposure_rows(count(cluster, grid, texts, graph), graph, texts, key)
            moved += _corrected(cluster, grid, texts, graph, asked, asking.interval[drawn], key)
    run.storage.write_table(f"{place}/exposure.parquet", EXPOSURE.build_rows(rows))
    run.storage.write_table(f"{place}/exposure_corrected.parquet", EXPOSURE_CORRECTED.build_rows(moved))
    run.storage.write_table(f"{place}/collapsed_texts.parquet", COLLAPSED_TEXTS.build_rows(hubs))
    run.storage.remove(f"{place}/done.json")  # A damaged one, which is none of the files.
    files = [name for kind in _WRITTEN for name in run.storage.list(run.place(kind, model, temperature))]
    if queries is not None:
        files += [f"queries/{name}" for name in queries.storage.list(run.place("neighbours", model, temperature))]
    run.storage.write_json(f"{place}/done.json", {"texts": len(texts), "k": grid.neighbours, "files": files})
    run.storage.remove(f"{grid.place}/near")


class Graph(NamedTuple):
    """The nearest texts of those that asked, in parts."""

    files: list[str]
    asked: int
    """How many asked."""
    own: bool
    """Whether they are texts of the corpus."""
    every: bool
    """Whether all did that could ask, or a sample."""
    documents: np.ndarray | None = None
    """The document of each query; None where no query has one, and for texts of the corpus."""


class _Counted(NamedTuple):
    """What was counted for one number of neighbours."""

    k: int
    by_text: Slots
    by_document: Slots | None
    occurrence: PowerSums
    """Of N_k over the texts."""
    most: np.ndarray
    """Places of texts, among them those of largest N_k,"""
    times: np.ndarray
    """and N_k of each."""


def count(cluster: Cluster, grid: Tiling, texts: Layout, graph: Graph) -> list[_Counted]:
    """Count the slots of a graph for the nearest text alone and for all k, by text and, where there are any, by document."""
    others, by_document = 0 if graph.own else graph.asked, texts.documents is not None or graph.documents is not None
    levels = [Units.of(len(texts), others)]
    levels += [Units.of(len(texts), others, texts.documents, graph.documents)] if by_document else []
    interval, work = share(texts.interval), []
    for units in levels:
        shared = share(units)
        for start in range(0, units.total, UNITS_OF_A_TASK):
            here = range(start, min(start + UNITS_OF_A_TASK, units.total))
            keys = texts.key[here.start : here.stop] if units is levels[0] else None
            work.append((grid, graph, interval, shared, here, keys))
    found = results(cluster, _count_units, work, "counts")
    of_texts = [own for own, (*_, keys) in zip(found, work, strict=True) if keys is not None]
    of_documents = [own for own, (*_, keys) in zip(found, work, strict=True) if keys is None]
    return [
        _Counted(
            k,
            reduce(Slots.merged, (own[number].slots for own in of_texts)),
            reduce(Slots.merged, (own[number].slots for own in of_documents)) if of_documents else None,
            reduce(PowerSums.merged, (own[number].occurrence for own in of_texts)),
            np.concatenate([own[number].most for own in of_texts]),
            np.concatenate([own[number].times for own in of_texts]),
        )
        for number, k in enumerate(_numbers(grid))
    ]


def _numbers(grid: Tiling) -> list[int]:
    """How many neighbours are counted: the nearest, and all."""
    return sorted({1, grid.neighbours})


class _OfUnits(NamedTuple):
    """What was counted of a range of units."""

    slots: Slots
    occurrence: PowerSums
    most: np.ndarray
    times: np.ndarray


def _count_units(
    grid: Tiling, graph: Graph, interval: np.ndarray, units: Units, here: range, keys: np.ndarray | None
) -> list[_OfUnits]:
    """Count the slots of a range of units; of texts, which have `keys`, N_k too, and where it is largest."""

    def asked(k: int) -> Iterator[Asked]:
        for name in graph.files:
            table = grid.storage.read_table(name)
            yield Asked(units.of_asking(table.column("asker").to_numpy(), graph.own), parts.matrix(table, "place")[:, :k])

    found = []
    for k in _numbers(grid):
        counts, filled = slots(asked(k), interval, grid.intervals, here, units.total, units.texts)
        times = filled[: 0 if keys is None else len(keys)]
        most = here.start + largest(times, keys) if keys is not None else np.zeros(0, np.int64)
        found.append(_OfUnits(counts, PowerSums.of(times), most, times[most - here.start]))
    return found


def exposure_rows(counted: Sequence[_Counted], graph: Graph, texts: Layout, key: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each interval, for the nearest text alone and for all k."""
    population = texts.population(len(texts)) if graph.own else float("inf")
    share = graph.asked / len(texts) if graph.own else 1.0
    enough = all(tell_an_error(own) for own in (texts.documents, graph.documents) if own is not None)
    rows = []
    for own in counted:
        found = exposures(own.by_text, population, own.by_document, share)
        hubness = skewness(own.occurrence) if graph.every else None
        rows += [
            key
            | {"asked_by": "corpus" if graph.own else "queries", "queries": graph.asked, "k": own.k}
            | {"interval": texts.edges[b], "texts": int(own.by_text.texts[b])}
            | {"texts_share": float(found.texts_share[b]), "slots_share": float(found.slots_share[b])}
            | {"exposure": float(found.exposure[b]), "exposure_se": float(found.corrected[b])}
            | {"exposure_se_superpopulation": finite(found.error[b]) if enough else None, "k_occurrence_skewness": hubness}
            for b in np.flatnonzero(own.by_text.texts)
        ]
    return rows


def _corrected(
    cluster: Cluster, grid: Tiling, texts: Layout, graph: Graph, asked: Found, interval: np.ndarray, key: dict[str, Any]
) -> list[dict[str, Any]]:
    """Rows of exposure_corrected; `interval` is that of each text that asked. None where nothing was corrected."""
    if not asked.corrected:
        return []
    graph = graph._replace(files=asked.corrected)
    rows = []
    for row in exposure_rows(count(cluster, grid, texts, graph), graph, texts, key):
        own = asked.kept[interval == texts.edges.index(row["interval"])]
        kept = float(own.mean()) if len(own) and row["k"] == grid.neighbours else None
        rows.append(row | {"correction": by_length.RECIPE, "neighbours_kept": kept})
    return rows


def _duplicates(
    cluster: Cluster, grid: Tiling, layout: Layout, key: dict[str, Any], order: np.ndarray
) -> list[dict[str, Any]]:
    """The listed near-duplicates of all panels."""
    first = lambda one, other: one.merged(other).first(grid.listed)  # noqa: E731
    pairs = blocks.merged(cluster, _listed, grid, upper_triangle(grid.panels), first, name="near-duplicates")
    places = order[pairs.labels]
    ids, tokens = layout.ids[places.ravel()].reshape(-1, 2), layout.tokens[places]
    turned = np.array([a > b for a, b in ids], dtype=bool)  # The smaller id stands first.
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
    return merge_tree(lists, lambda one, other: one.merged(other).first(grid.listed))


LISTED, _AT_ONCE = 20, 1 << 20
"""The length of a ranking, and of how many texts it is drawn up at a time."""


def largest(values: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Where the largest values are, as many as a ranking has, ties by key; NaN is skipped."""
    found = [np.zeros(0, np.int64)]
    for start in range(0, len(values), _AT_ONCE):
        own = values[start : start + _AT_ONCE]
        known = np.flatnonzero(~np.isnan(own))
        if len(known) > LISTED:  # Sort only these.
            known = known[own[known] >= np.partition(own[known], -LISTED)[-LISTED]]
        found.append(start + known)
    every = np.concatenate(found)
    return every[np.lexsort((keys[every], -values[every]))][:LISTED]


def ranked(
    key: dict[str, Any], ranking: str, places: np.ndarray, values: np.ndarray, layout: Layout
) -> list[dict[str, Any]]:
    """Rows of `collapsed_texts` for the ranking `nearness` or `hub`, from some texts that have the largest values."""
    order = largest(values, layout.key[places])
    return [
        key
        | {"ranking": ranking, "rank": rank, "text_id": text_id}
        | {"tokens": int(layout.tokens[place]), "value": float(value)}
        for rank, (place, value, text_id) in enumerate(
            zip(places[order], values[order], layout.ids[places[order]], strict=True), start=1
        )
    ]
