"""Cosine over all pairs of texts: tile tasks -> partials -> the rows of length_collapse.

Texts stand in canonical order, (interval, id), cut into blocks. Ray tasks gather each block from texts/, sum it in closed
form, and work through the tiles i ≤ j of the grid. A finished tile is a durable part. In every run the tile sums are
checked against their closed form: a lost or doubled tile cannot pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jobs import schema
from jobs.engine import Cluster, readable_failures, results
from jobs.errors import IncompleteRun
from jobs.layout import Layout, folder, gather
from jobs.runs import Model, Run
from jobs.storage import Storage
from tempscale import tiles
from tempscale.aggregates import CosineCells, cosine_tile, merge_tree
from tempscale.length import CosineSums, Moments, between_error, finite_population, text_means, within_error
from tempscale.temperature import Temperature

_CLOSED_FORM_TOLERANCE = 1e-6
"""How far the mean of a cell may stand from its closed form: float32 products against float64 sums."""


def cosine(
    run: Run, cluster: Cluster, model: Model, temperature: Temperature, layout: Layout, on_pairs: Callable[[int], None]
) -> None:
    """Leave length_collapse, text_means and closed.json of one model and temperature below partials/cosine.

    Args:
        on_pairs: told the pairs of each finished tile, and at once of those already there.

    Raises:
        IncompleteRun: a task failed for good, or the tiles do not add up to their closed form.
    """
    place, n = folder(run, "cosine", model, temperature), len(layout)
    if run.storage.exists(f"{place}/closed.json"):
        on_pairs(n * (n - 1) // 2)
        return
    import ray

    grid = tiles.blocks(n, tiles.block_size(n))
    texts = run.place("texts", model, temperature)
    intervals = len(layout.edges)
    gather_task, sums_task, tile_task, means_task = (ray.remote(f) for f in (gather, _sums, _tile, _text_means))
    with readable_failures():
        # Made by tasks, so that a block lost with its node is gathered again.
        blocks = [gather_task.remote(run.storage, texts, layout.part[a:b], layout.row[a:b]) for a, b in grid]
        labels = [layout.interval[a:b] for a, b in grid]
        parts = dict(results(cluster, lambda k: sums_task.remote(blocks[k], labels[k], intervals), range(len(grid))))
        sums = merge_tree([parts[k] for k in range(len(grid))], CosineSums.merged)
        missing = []
        for i, j in tiles.upper_triangle(len(grid)):
            if run.storage.exists(_name(place, i, j)):
                on_pairs(_pairs(grid, i, j))
            else:
                missing.append((i, j))
        submit = lambda t: tile_task.remote(  # noqa: E731
            run.storage, _name(place, *t), blocks[t[0]], labels[t[0]], blocks[t[1]], labels[t[1]], intervals, t[0] == t[1]
        )
        for (i, j), _ in results(cluster, submit, missing):
            on_pairs(_pairs(grid, i, j))
        shared = ray.put(sums)
        means = dict(results(cluster, lambda k: means_task.remote(blocks[k], labels[k], shared), range(len(grid))))
    cells = merge_tree([_read_tile(run.storage, _name(place, i, j), intervals) for i, j in tiles.upper_triangle(len(grid))],
                       CosineCells.merged)  # fmt: skip
    _check_closed_form(cells, sums)
    _finish(
        run, place, run.key(model, temperature), layout, cells, sums, np.concatenate([means[k] for k in range(len(grid))])
    )


def _pairs(grid: list[tuple[int, int]], i: int, j: int) -> int:
    rows, columns = grid[i][1] - grid[i][0], grid[j][1] - grid[j][0]
    return rows * (rows - 1) // 2 if i == j else rows * columns


def _name(place: str, i: int, j: int) -> str:
    return f"{place}/tile-{i:05d}-{j:05d}.parquet"


def _sums(block: np.ndarray, interval: np.ndarray, intervals: int) -> CosineSums:
    return CosineSums.of(block, interval, intervals)


def _text_means(block: np.ndarray, interval: np.ndarray, sums: CosineSums) -> np.ndarray:
    """(texts, intervals + 1): each text's mean with each interval and, last, with all other texts."""
    by_interval = text_means(block, interval, sums)
    everything = CosineSums(
        sums.texts.sum(keepdims=True), sums.vectors.sum(0, keepdims=True), sums.squares[:1], sums.norms[:1]
    )
    overall = text_means(block, np.zeros(len(block), dtype=np.int64), everything)
    return np.concatenate([by_interval, overall], axis=1)


def _tile(
    storage: Storage, name: str, rows: np.ndarray, row_interval: np.ndarray,
    columns: np.ndarray, column_interval: np.ndarray, intervals: int, diagonal: bool,
) -> int:  # fmt: skip
    """Work through one tile and leave its part; returns its pairs."""
    import torch

    # Fresh copies lie on the allocator's own alignment, on which a product's last bits may depend.
    torch.set_num_threads(1)
    left, right = torch.tensor(rows), torch.tensor(columns)
    cells = cosine_tile(left, row_interval, right, column_interval, intervals, diagonal=diagonal)
    kept = [(a, b) for a in range(intervals) for b in range(a, intervals) if cells.pairs[a, b]]
    found = [
        {"a": a, "b": b, "pairs": int(cells.pairs[a, b]), "first": cells.first[a, b], "second": cells.second[a, b]}
        | {"histogram": cells.histogram[a, b]}
        for a, b in kept
    ]
    storage.write_table(name, schema.COSINE_TILE.build_rows(found))
    return int(cells.pairs.sum())


def _read_tile(storage: Storage, name: str, intervals: int) -> CosineCells:
    cells = CosineCells.empty(intervals)
    for row in storage.read_table(name).to_pylist():
        cell = row["a"], row["b"]
        cells.pairs[cell], cells.first[cell], cells.second[cell] = row["pairs"], row["first"], row["second"]
        cells.histogram[cell] = row["histogram"]
    return cells


def _check_closed_form(cells: CosineCells, sums: CosineSums) -> None:
    upper = np.triu_indices(len(sums.texts))
    pairs = sums.pairs()[upper]
    if not (cells.pairs[upper] == pairs).all() or not (cells.histogram.sum(-1)[upper] == pairs).all():
        raise IncompleteRun("the tiles do not hold every pair once; start over with --fresh")
    for tiled, closed in zip((cells.first, cells.second), sums.sums(), strict=True):
        away = np.abs(tiled[upper] - closed[upper]) - _CLOSED_FORM_TOLERANCE * np.maximum(pairs, 1)
        if not (away <= 0).all():
            raise IncompleteRun("the tile sums of cosine differ from their closed form; start over with --fresh")


def _finish(
    run: Run, place: str, key: dict[str, Any], layout: Layout, cells: CosineCells, sums: CosineSums, means: np.ndarray
) -> None:
    """Write what the tiles and the closed form add up to; closed.json last."""
    intervals = len(layout.edges)
    counts = layout.texts()
    moments = [Moments.of(means[layout.interval == a, :intervals]) for a in range(intervals)]
    correction = finite_population(len(layout), layout.population(len(layout)))
    rows = []
    for a in range(intervals):
        for b in range(a, intervals):
            pairs = int(cells.pairs[a, b])
            if not pairs:
                continue
            mean = cells.first[a, b] / pairs
            error = _error(moments, counts, a, b)
            rows.append(
                key
                | {"interval_a": layout.edges[a], "interval_b": layout.edges[b], "pairs": pairs}
                | {"texts_a": int(counts[a]), "texts_b": int(counts[b]), "cosine_mean": mean}
                | {"cosine_se": None if error is None else error * correction, "cosine_se_superpopulation": error}
                | {"cosine_std": float(np.sqrt(max(0.0, cells.second[a, b] / pairs - mean**2)))}
                | {f"cosine_p{q:02d}": cells.percentile(a, b, q / 100) for q in (5, 50, 95)}
            )
    inside = means[np.arange(len(layout)), layout.interval]
    groups = np.array(layout.edges)[layout.interval]
    columns = {"text_id": layout.ids, "group": groups, "inside": inside, "overall": means[:, intervals]}
    run.storage.write_table(f"{place}/text_means.parquet", schema.TEXT_MEANS.build(columns))
    run.storage.write_table(f"{place}/length_collapse.parquet", schema.LENGTH_COLLAPSE.build_rows(rows))
    total = int(cells.pairs.sum())
    closed = {"pairs": total, "cosine_mean": float(cells.first.sum() / total) if total else None}
    run.storage.write_json(f"{place}/closed.json", closed | {"effective_rank": sums.effective_rank()})


def _error(moments: list[Moments], counts: np.ndarray, a: int, b: int) -> float | None:
    """Standard error of a cell's mean from per-text means; None where too few texts tell."""
    if a == b:
        return within_error(moments[a].variance()[a], counts[a]) if counts[a] > 2 else None
    if counts[a] < 2 or counts[b] < 2:
        return None
    return between_error(moments[a].variance()[b], counts[a], moments[b].variance()[a], counts[b])
