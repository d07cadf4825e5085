"""The results of searches, counted by tasks: who fills the places in lists of nearest texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from tempscale.collapse.exposure import QueryNeighbours, Slots, Units, exposures, slots
from tempscale.collapse.hubs import reciprocity
from tempscale.collapse.neighbours import PowerSums, skewness
from tempscale.stats.errors import enough_documents
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.layout import Layout
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import results, share

UNITS_OF_A_TASK = 1 << 20
"""Texts or documents whose slots one task counts; it reads the neighbours of all."""
_INTERVALS = 8
"""With more intervals, or groups, it counts those of fewer."""


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
    groups: tuple[np.ndarray, ...] = ()
    """The group of each query by each column of --by; for queries that are no texts of the corpus."""


class Counted(NamedTuple):
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
    never: np.ndarray
    """Texts of each interval that no query has among its k nearest."""


def count(cluster: Cluster, grid: Tiling, texts: Layout, graph: Graph) -> list[Counted]:
    """Count the slots of a graph for the nearest text alone and for all k, by text and, where there are any, by document."""
    others = 0 if graph.from_corpus else graph.queries
    by_document = texts.documents is not None or graph.documents is not None
    levels = [Units.of(len(texts), others)]
    levels += [Units.of(len(texts), others, texts.documents, graph.documents)] if by_document else []
    interval, work = share(texts.interval), []
    for units in levels:
        shared = share(units)
        for here in ranges(grid, units):
            keys = texts.key[here.start : here.stop] if units is levels[0] else None
            work.append((grid, graph, interval, shared, _Range(here, keys)))
    counts = results(cluster, _count_units, work, "counts")
    of_texts = [by_k for by_k, (*_, part) in zip(counts, work, strict=True) if part.keys is not None]
    of_documents = [by_k for by_k, (*_, part) in zip(counts, work, strict=True) if part.keys is None]
    return [
        Counted(
            k,
            reduce(Slots.merged, (by_k[number].slots for by_k in of_texts)),
            reduce(Slots.merged, (by_k[number].slots for by_k in of_documents)) if of_documents else None,
            reduce(PowerSums.merged, (by_k[number].occurrence for by_k in of_texts)),
            np.concatenate([by_k[number].most for by_k in of_texts]),
            np.concatenate([by_k[number].times for by_k in of_texts]),
            np.sum([by_k[number].never for by_k in of_texts], axis=0),
        )
        for number, k in enumerate(numbers_of_neighbours(grid))
    ]


def ranges(grid: Tiling, units: Units) -> list[range]:
    """The consecutive units whose slots one task counts: fewer, the more intervals its tables have."""
    together = max(1, UNITS_OF_A_TASK * _INTERVALS // max(_INTERVALS, grid.intervals))
    return [range(start, min(start + together, units.total)) for start in range(0, units.total, together)]


def numbers_of_neighbours(grid: Tiling) -> list[int]:
    """The numbers of neighbours that are counted: the nearest, and all."""
    return sorted({1, grid.neighbours})


class _OfUnits(NamedTuple):
    """The counts of a range of units."""

    slots: Slots
    occurrence: PowerSums
    most: np.ndarray
    times: np.ndarray
    never: np.ndarray


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
    for k in numbers_of_neighbours(grid):
        counts, filled = slots(query_neighbours(k), interval, grid.intervals, here, count=units.total, unit=units.texts)
        times = filled[: 0 if keys is None else len(keys)]
        most = here.start + largest(times, keys) if keys is not None else np.zeros(0, np.int64)
        never = np.bincount(interval[here.start : here.stop][: len(times)][times == 0], minlength=grid.intervals)
        counted.append(_OfUnits(counts, PowerSums.of(times), most, times[most - here.start], never))
    return counted


def exposure_rows(counted: Sequence[Counted], graph: Graph, texts: Layout, key: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each interval, for the nearest text alone and for all k."""
    population = texts.population(len(texts)) if graph.from_corpus else float("inf")
    share = graph.queries / len(texts) if graph.from_corpus else 1.0
    enough = all(enough_documents(column) for column in (texts.documents, graph.documents) if column is not None)
    rows = []
    for counts in counted:
        figures = exposures(counts.by_text, population, counts.by_document, share)
        hubness = skewness(counts.occurrence) if graph.every else None
        both_ways = reciprocity(counts.by_text) if graph.every and graph.from_corpus else None
        rows += [
            key
            | {"asked_by": "corpus" if graph.from_corpus else "queries", "queries": graph.queries, "k": counts.k}
            | {"interval": texts.edges[b], "texts": int(counts.by_text.texts[b])}
            | {"texts_share": float(figures.texts_share[b]), "slots_share": float(figures.slots_share[b])}
            | {"exposure": float(figures.exposure[b]), "exposure_se": float(figures.corrected[b])}
            | {"exposure_se_superpopulation": finite(figures.error[b]) if enough else None}
            | {"k_occurrence_skewness": hubness, "reciprocity": both_ways}
            for b in np.flatnonzero(counts.by_text.texts)
        ]
    return rows


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
