"""Cosine over all pairs of texts: durable blocks -> tile tasks -> partials -> the rows of length_collapse.

Texts are in canonical order, (interval, place in the source), in blocks of up to 65,536. Ray tasks write each block as a
part, sum it in closed form, and compute the super-tiles i ≤ j of the grid; a resumed run skips finished tiles. Every run
checks the tile sums against their closed form, so a lost or doubled tile is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.collapse import tiles
from tempscale.collapse.aggregates import CosineCells, Precision, merge_tree
from tempscale.collapse.cosine import rounding_error, truncation_error
from tempscale.collapse.length import CosineSums, Moments, effective_rank, text_means, top_component
from tempscale.stats.enough import VALUES_FOR_AN_ERROR
from tempscale.stats.errors import DocumentSums, between_error, error_of_sums, within_error
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.runs.folder import Model, Run, dimensions, is_whole, means_of_block
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.steps import blocks, calibration
from tempscale_jobs.steps.blocks import COSINE, Gathered, Merging, Tiling
from tempscale_jobs.steps.layout import Layout, filled_documents
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import COSINE_HISTOGRAM, LENGTH_COLLAPSE
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import NO_PROGRESS_SECONDS, Crew, Piece, missing, run_tasks, share

_CLOSED_FORM_TOLERANCE = 1e-6
"""Largest allowed distance of a cell's mean from its closed form: float32 products against float64 sums."""

_TILE_SECONDS = 240
"""The time limit of a CPU for the largest tile, four times the measured time; panels of a GPU's grid have 256 tiles."""


class Needed(NamedTuple):
    """The files of a grid that later steps still need, even if its results exist."""

    blocks: bool = False
    near: bool = False
    """The neighbours and near-duplicates of every two panels."""


def cosine(scope: Embedded, temperature: Temperature, needed: Needed) -> None:
    """Write length_collapse, the means by text, closed.json and what is `needed`, of one model and temperature."""
    pairs = scope.texts.pairs
    with scope.journal.stage(scope.named("cosine", temperature), pairs, "pairs") as stage:
        _compute(scope, temperature, needed, stage)
        rounded = recorded_rounding(scope.run, scope.model, temperature)
        if scope.analysis.cosine == "moments":
            stage.note = f"mean and variance of {pairs:,} pairs in closed form"
        elif rounded is None:
            stage.note = f"{pairs:,} pairs, equal to their closed form"
        else:
            stage.note = f"{pairs:,} pairs in {rounded['precision']}, equal to their closed form; means are exact"


def _compute(scope: Embedded, temperature: Temperature, needed: Needed, stage: Stage) -> None:
    run, cluster, model, layout = scope.run, scope.cluster, scope.model, scope.texts
    (grid, bounds), analysis = blocks.tiling(scope, temperature), scope.analysis
    is_closed = is_whole(run.storage, f"{grid.place}/closed.json")
    if is_closed and not any(needed):
        stage.advance(layout.pairs)
        return
    dim = dimensions(run, model, temperature)
    names = run.storage.list(run.place("texts", model, temperature))
    gather(cluster, grid, names, bounds, layout)
    if is_closed:
        if needed.near and analysis.cosine == "full":
            compare_grid(scope.crew, grid, bounds, needed.near, stage)
        return
    sums = _closed_form(cluster, grid, "float32")
    cells, rounding = None, None
    if analysis.cosine == "full":
        triangle = compare_grid(scope.crew, grid, bounds, needed.near, stage)
        cells = blocks.merged(cluster, grid, triangle, Merging(_cells, CosineCells.merged, "cells"))
        rounded_sums = sums if grid.precision == "float32" else _closed_form(cluster, grid, grid.precision)
        check_closed_form(cells, rounded_sums, grid.precision, dim)
        rounding = _rounding(grid, sums, rounded_sums, dim)
    else:
        stage.advance(layout.pairs)
    # After the tiles, which take longest: a run that is stopped there has wasted no time on the means.
    means = _text_means(cluster, grid, sums, layout)
    _write_length_collapse(scope, temperature, grid, _Results(cells, sums, means, rounding))


def recorded_rounding(run: Run, model: Model, temperature: Temperature) -> dict[str, Any] | None:
    """The precision of the products, and its errors of means and of a single cosine; None for float32."""
    closed = run.storage.read_json(f"{run.place(COSINE, model, temperature)}/closed.json")
    return dict(closed["rounding"]) if closed["rounding"] else None


def gather(cluster: Cluster, grid: Tiling, names: list[str], bounds: list[tuple[int, int]], layout: Layout) -> None:
    """Write the missing blocks, several in a task, from the parts that have their texts."""
    together = max(1, min(grid.gathered // bounds[0][1], -(-len(bounds) // cluster.tasks)))
    groups = [range(k, min(k + together, len(bounds))) for k in range(0, len(bounds), together)]
    every = [Piece(g, name=f"blocks {g[0]} to {g[-1]}", files=tuple(map(grid.block, g))) for g in groups]
    left = missing(grid.storage, every)
    if not left:
        return
    labels = np.zeros(len(layout) if grid.labelled else 0, np.int32)
    if grid.labelled:
        labels[layout.by_label()] = np.arange(len(layout), dtype=np.int32)

    def with_texts() -> Iterator[Piece]:
        """The pieces with the labels and places of their texts, collected when a piece is submitted."""
        for piece in cluster.ordered(left):
            group = piece.number
            cut = slice(bounds[group[0]][0], bounds[group[-1]][1])
            local = [(a - cut.start, b - cut.start) for a, b in (bounds[k] for k in group)]
            part, row = layout.parts_and_rows(cut)
            needed = {k: names[k] for k in np.unique(part).tolist()}
            label = labels[cut] if grid.labelled else np.zeros(len(part), np.int32)
            yield piece._replace(arguments=(grid, needed, group[0], local, Gathered(part, row, layout.interval[cut], label)))

    for _ in run_tasks(cluster, blocks.write_blocks, with_texts(), ahead=2):
        pass


def _closed_form(cluster: Cluster, grid: Tiling, precision: Precision) -> CosineSums:
    """The sums of all texts, with embeddings rounded to `precision`."""
    total: _Sums = blocks.merged(cluster, grid, range(grid.count), Merging(_sums, _Sums.merged, "blocks", (precision,)))
    return total.sums.spread(total.present, grid.intervals)


class _Sums(NamedTuple):
    """The intervals that occur in some blocks, and the sums of each."""

    present: np.ndarray
    sums: CosineSums

    def merged(self, other: _Sums) -> _Sums:
        """The sums of two sets of blocks."""
        present = np.union1d(self.present, other.present)
        left, right = (part.sums.spread(np.searchsorted(present, part.present), len(present)) for part in (self, other))
        return _Sums(present, left.merged(right))


def _sums(grid: Tiling, numbers: range, precision: Precision) -> _Sums:
    """The sums of some blocks."""
    return merge_tree((_block_sums(grid, number, precision) for number in numbers), _Sums.merged)


def _block_sums(grid: Tiling, number: int, precision: Precision) -> _Sums:
    """The sums of one block."""
    block = blocks.read_block(grid, number, precision)
    present, place = np.unique(block.interval, return_inverse=True)
    return _Sums(present, CosineSums.of(block.embeddings, place, len(present)))


class _Means(NamedTuple):
    """Statistics of the means by text of consecutive blocks, by the interval of the texts."""

    moments: tuple[Moments, ...]
    """Moments of the texts' mean cosines with each interval."""
    documents: tuple[DocumentSums, ...] | None
    """Sums of these means by document, if texts come in documents."""

    def merged(self, other: _Means) -> _Means:
        """The statistics of two runs of blocks, in this order."""
        moments = tuple(a.merged(b) for a, b in zip(self.moments, other.moments, strict=True))
        if self.documents is None or other.documents is None:
            return _Means(moments, None)
        return _Means(moments, tuple(a.merged(b) for a, b in zip(self.documents, other.documents, strict=True)))


def _text_means(cluster: Cluster, grid: Tiling, sums: CosineSums, layout: Layout) -> _Means:
    """Write each text's mean cosine with its interval and with all other texts, a part for each block."""
    shared = share(CosineSums(sums.texts, sums.vectors, sums.squares[:0], sums.norms))
    arguments = (shared, layout.edges, layout.documents is not None)
    means: _Means = blocks.merged(cluster, grid, range(grid.count), Merging(_means, _Means.merged, "blocks", arguments))
    return means


def _means(grid: Tiling, numbers: range, sums: CosineSums, edges: tuple[int, ...], documents: bool) -> _Means:
    """Write the means of the texts of some blocks."""
    return merge_tree((block_means(grid, number, sums, edges, documents) for number in numbers), _Means.merged)


def block_means(grid: Tiling, number: int, sums: CosineSums, edges: tuple[int, ...], documents: bool) -> _Means:
    """Write the means of the texts of a block."""
    block, intervals = blocks.read_block(grid, number), len(edges)
    means = text_means(block.embeddings, block.interval, sums)
    everything = CosineSums(sums.texts.sum(keepdims=True), sums.vectors.sum(0, keepdims=True), sums.squares, sums.norms[:1])
    overall = text_means(block.embeddings, np.zeros(len(block), dtype=np.int64), everything)[:, 0]
    ids, digests = grid.storage.read_table(grid.block(number), ["text_id", "document"]).columns
    document = filled_documents(digests, ids) if documents else pa.nulls(len(ids), pa.int64())
    columns: dict[str, Any] = {"text_id": ids, "document": document}
    inside = means[np.arange(len(block)), block.interval]
    columns |= {"group": np.array(edges)[block.interval], "inside": inside, "overall": overall}
    grid.storage.write_table(means_of_block(grid.place, number), parts.TEXT_MEANS.build(columns))
    within = [block.interval == a for a in range(intervals)]
    sums_of = tuple(DocumentSums.of(means[here], document[here]) for here in within) if documents else None
    return _Means(tuple(Moments.of(means[here]) for here in within), sums_of)


def compare_grid(
    crew: Crew, grid: Tiling, bounds: list[tuple[int, int]], near: bool, stage: Stage
) -> list[tuple[int, int]]:  # fmt: skip
    """Compare the remaining pairs of panels, and return all pairs of panels."""
    triangle = tiles.upper_triangle(grid.panels)
    bounds = [(bounds[panel[0]][0], bounds[panel[-1]][1]) for panel in map(grid.panel, range(grid.panels))]
    every = [
        Piece(
            (i, j),
            (grid, i, j),
            f"tile {i}, {j}",
            tuple(grid.written(i, j, near)),
            _pairs(bounds, i, j),
            most=max(NO_PROGRESS_SECONDS, _TILE_SECONDS * grid.together**2),
        )
        for i, j in triangle
    ]
    left = missing(grid.storage, every)
    stage.advance(sum(piece.size for piece in every) - sum(piece.size for piece in left))
    for piece in crew.tiles(blocks.compare_panels, left):
        stage.advance(piece.size)
    return triangle


def _cells(grid: Tiling, panels: list[tuple[int, int]]) -> CosineCells:
    """The merged aggregates of some pairs of panels."""
    return merge_tree((blocks.read_cells(grid, i, j) for i, j in panels), CosineCells.merged)


def _pairs(bounds: list[tuple[int, int]], i: int, j: int) -> int:
    rows, columns = bounds[i][1] - bounds[i][0], bounds[j][1] - bounds[j][0]
    return rows * (rows - 1) // 2 if i == j else rows * columns


def check_closed_form(cells: CosineCells, sums: CosineSums, precision: Precision, dim: int) -> None:
    """Raise unless every pair is counted once, and each cell's sums are those of the closed form up to rounding."""
    upper = np.triu_indices(len(sums.texts))
    pairs = sums.pairs()[upper]
    if not (cells.pairs[upper] == pairs).all() or not (cells.histogram.sum(-1)[upper] == pairs).all():
        raise IncompleteRun("the tiles do not have every pair exactly once; start over with --fresh")
    first, second = (closed[upper] for closed in sums.sums())
    cut = truncation_error(precision, dim)
    # Σ|cos| ≤ √(n·Σcos²), and a relative change e of c changes c² by 2e.
    allowed = (cut * np.sqrt(np.maximum(pairs * second, 0)), 2 * cut * np.maximum(second, 0))
    for tiled, closed, more in zip((cells.first, cells.second), (first, second), allowed, strict=True):
        away = np.abs(tiled[upper] - closed) - _CLOSED_FORM_TOLERANCE * np.maximum(pairs, 1) - more
        if not (away <= 0).all():
            raise IncompleteRun("the tile sums of cosine differ from their closed form; start over with --fresh")


def _rounding(grid: Tiling, sums: CosineSums, rounded_sums: CosineSums, dim: int) -> dict[str, Any] | None:
    """The largest possible error of a cosine by rounding, and the largest actual error of a cell's mean."""
    if grid.precision == "float32":
        return None
    pairs = np.maximum(sums.pairs(), 1)
    means = np.abs(rounded_sums.sums()[0] - sums.sums()[0]) / pairs
    return {
        "precision": grid.precision,
        "largest_cosine_error": rounding_error(grid.precision) + truncation_error(grid.precision, dim),
        "largest_mean_error": float(means.max()),
    }


class _Results(NamedTuple):
    """The results of the steps of this file."""

    cells: CosineCells | None
    """Of the tiles; None if only the closed form was computed."""
    sums: CosineSums
    means: _Means
    rounding: dict[str, Any] | None


def _write_length_collapse(scope: Embedded, temperature: Temperature, grid: Tiling, results: _Results) -> None:
    """Write the results of the tiles or of the closed form; closed.json last."""
    run, layout, key = scope.run, scope.texts, scope.run.key(scope.model, temperature)
    cells, sums, means, rounding = results
    place, intervals = grid.place, len(layout.edges)
    counts, pairs = layout.texts_by_interval(), sums.pairs()
    # If the products used rounded embeddings, the closed form is more exact than the tiles.
    exact = cells if grid.precision == "float32" else None
    first, second = sums.sums() if exact is None else (exact.first, exact.second)
    correction = layout.correction
    rows = []
    for a in range(intervals):
        for b in range(a, intervals):
            if not pairs[a, b]:
                continue
            mean = first[a, b] / pairs[a, b]
            error = cell_error(means.moments, counts, a, b)
            elsewhere = error if means.documents is None else _documents_error(means.documents, a, b)
            percentiles = {f"cosine_p{q:02d}": cells and cells.percentile(a, b, q / 100) for q in (5, 50, 95)}
            rows.append(
                key
                | {"interval_a": layout.edges[a], "interval_b": layout.edges[b], "pairs": int(pairs[a, b])}
                | {"texts_a": int(counts[a]), "texts_b": int(counts[b]), "cosine_mean": mean}
                | {"cosine_se": None if error is None else error * correction, "cosine_se_superpopulation": elsewhere}
                | {"cosine_std": float(np.sqrt(max(0.0, second[a, b] / pairs[a, b] - mean**2)))}
                | {"near_duplicates": cells and int(cells.duplicates[a, b])}
                | percentiles
            )
    written = [f"{place}/{table.name}.parquet" for table in (LENGTH_COLLAPSE, COSINE_HISTOGRAM)]
    run.storage.write_table(written[0], LENGTH_COLLAPSE.build_rows(rows))
    histogram = [] if cells is None else calibration.rows(cells, layout.edges)
    run.storage.write_table(written[1], COSINE_HISTOGRAM.build_rows([key | row for row in histogram]))
    upper = np.triu_indices(intervals)
    total = int(pairs[upper].sum())
    closed: dict[str, Any] = {"pairs": total, "cosine_mean": float(first[upper].sum() / total) if total else None}
    closed["cosine_p99"] = cells.overall_percentile(0.99) if cells is not None and total else None
    spectrum = sums.spectrum()
    closed |= {"effective_rank": effective_rank(spectrum), "top_component": top_component(spectrum), "rounding": rounding}
    closed["files"] = [*(means_of_block(place, k) for k in range(grid.count)), *written]
    run.storage.write_json(f"{place}/closed.json", closed)


def cell_error(moments: Sequence[Moments], counts: np.ndarray, a: int, b: int) -> float | None:
    """Standard error of a cell's mean from per-text means; None for too few texts."""
    if a == b:
        return within_error(moments[a].variance()[a], counts[a]) if counts[a] >= VALUES_FOR_AN_ERROR else None
    if counts[a] < 2 or counts[b] < 2:
        return None
    return between_error(moments[a].variance()[b], counts[a], moments[b].variance()[a], counts[b])


def _documents_error(sums: Sequence[DocumentSums], a: int, b: int) -> float | None:
    """Standard error of a cell's mean over corpora of other documents; None for too few documents."""
    if a == b:
        return finite(error_of_sums([sums[a]], [a], [2.0]))
    return finite(error_of_sums([sums[a], sums[b]], [b, a], [1.0, 1.0]))
