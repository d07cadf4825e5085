"""How near queries are to texts: the cosines of all their pairs by the length of the text, and each query's nearest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale.collapse.aggregates import BINS
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import Run, is_whole
from tempscale_jobs.steps import blocks
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.layout import layout, of_queries
from tempscale_jobs.steps.pieces import of_askers
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import QUERY_COSINES
from tempscale_jobs.workers.dispatch import Piece, missing, run_tasks, share

PLACE = "partials/query_cosines"
"""The folder of this step's files."""
QUERIES_OF_A_TASK, TEXTS_AT_ONCE = 2048, 4096
"""Queries that a task compares, and the texts that it compares with them at a time."""


def is_done(scope: Embedded) -> bool:
    """Whether all files of this step exist."""
    return is_whole(scope.run.storage, f"{_place(scope)}/done.json")


def _place(scope: Embedded) -> str:
    return scope.run.place(PLACE, scope.model, scope.run.temperatures[0])


def measure(scope: Embedded, queries: Run | None) -> None:
    """Write `query_cosines` of one model, under its first temperature."""
    if queries is None or not scope.analysis.compares or is_done(scope):
        return
    storage, temperature = scope.run.storage, scope.run.temperatures[0]
    with scope.journal.stage(scope.named("cosines of queries and texts")) as stage:
        asking = layout(queries, scope.cluster, scope.model, of_queries(scope.texts))
        # In the order of their keys, which neither the source nor its parts change.
        places = asking.sample(len(asking) if scope.analysis.cosine == "full" else scope.analysis.exposure_sample)
        grid, _ = blocks.tiling(scope, temperature)
        groups = of_askers(f"{_place(scope)}/found", len(places), QUERIES_OF_A_TASK, grid.panels)
        every = [piece for group in groups for piece in group]
        shared = dict[int, Any]()

        def pieces() -> Iterator[Piece]:
            for piece in scope.cluster.ordered(missing(storage, every)):
                group, panel = piece.number
                if group not in shared:
                    here = places[group * QUERIES_OF_A_TASK : (group + 1) * QUERIES_OF_A_TASK]
                    shared[group] = share(replace(scope, run=queries, texts=asking).embeddings(temperature, here))
                yield piece._replace(arguments=(grid, panel, shared[group], piece.files[0]))

        for _ in run_tasks(scope.cluster, _count_panel, pieces()):
            pass
        counts = np.zeros((grid.intervals, BINS), np.int64)
        for piece in every:
            counts += parts.matrix(storage.read_table(piece.files[0]), "pairs")
        name = f"{_place(scope)}/query_cosines.parquet"
        storage.write_table(name, QUERY_COSINES.build_rows([*_rows(scope, counts, _nearest(scope, queries))]))
        storage.write_json(f"{_place(scope)}/done.json", {"files": [name]})
        storage.remove(f"{_place(scope)}/found")
        stage.note = f"{len(places):,} queries, {count(len(scope.texts), 'text')}"


def _count_panel(grid: Tiling, panel: int, queries: np.ndarray, target: str) -> None:
    """Count the cosines of some queries with the texts of one panel, by the length of the text."""
    counts = np.zeros((grid.intervals, BINS), np.int64)
    for number in grid.panel(panel):
        block = blocks.read_block(grid, number)
        for start in range(0, len(block), TEXTS_AT_ONCE):
            here = slice(start, start + TEXTS_AT_ONCE)
            bins, interval = _bins(queries @ block.embeddings[here].T), block.interval[here]
            for b in np.unique(interval).tolist():
                counts[b] += np.bincount(bins[:, interval == b].ravel(), minlength=BINS)
    grid.storage.write_table(target, pa.table({"pairs": parts.fixed_lists(counts)}))


def _nearest(scope: Embedded, queries: Run) -> np.ndarray:
    """The queries in each bin by the cosine of their nearest texts, which the step `exposure` has found."""
    counts = np.zeros(BINS, np.int64)
    files = queries.storage.list(queries.place("neighbours", scope.model, scope.run.temperatures[0]))
    for (cosines,) in queries.storage.columns(files, ["cosines"]):
        largest = pc.list_element(cosines.filter(pc.greater(pc.list_value_length(cosines), 0)), 0)
        counts += np.bincount(_bins(largest.to_numpy()), minlength=BINS)
    return counts


def _bins(cosines: np.ndarray) -> np.ndarray:
    """The bins of some cosines."""
    return np.clip(((cosines + 1.0) * (BINS / 2)).astype(np.int64), 0, BINS - 1)


def _rows(scope: Embedded, counts: np.ndarray, nearest: np.ndarray) -> Iterator[dict[str, Any]]:
    """The bins that have pairs, by the length of the text; then those of the queries by their nearest texts."""
    key = scope.run.key(scope.model, scope.run.temperatures[0])
    for edge, of_interval in [*zip(scope.texts.edges, counts, strict=True), (None, nearest)]:
        for k in np.flatnonzero(of_interval).tolist():
            yield key | {
                "interval": edge, "cosine_from": -1 + 2 * k / BINS, "cosine_to": -1 + 2 * (k + 1) / BINS,
                "pairs": int(of_interval[k]),
            }  # fmt: skip
