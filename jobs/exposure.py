"""Who takes the search results: the tiles' neighbours merged, their exposure by length interval, near-duplicates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from jobs import blocks, parts, schema
from jobs.blocks import Tiling
from jobs.collapsed import ranked
from jobs.engine import Cluster, results
from jobs.layout import Layout, folder
from jobs.runs import Model, Run
from jobs.storage import Storage
from tempscale import tiles
from tempscale.aggregates import merge_tree
from tempscale.cosine import Block, cosine_tile, rounded
from tempscale.neighbours import NOBODY, Nearest, exposure, occurrences, skewness
from tempscale.temperature import Temperature

_QUERY_PARTS = 8
"""Parts of queries that one task holds against the whole corpus: 4,096 queries at most."""


def expose(
    run: Run, cluster: Cluster, model: Model, temperature: Temperature, layout: Layout, count: int, queries: Run | None
) -> None:
    """Leave the neighbours, and the tables exposure, near_duplicates and collapsed_texts (hubs) below partials/exposure.

    Args:
        count: blocks of the grid that `pairwise.cosine` worked through.
        queries: the run below queries/, where some are given.

    Raises:
        IncompleteRun: a task failed for good.
    """
    place, grid = folder(run, "exposure", model, temperature), blocks.tiling(run, model, temperature, layout)
    if run.storage.exists(f"{place}/done.json"):
        return
    import ray

    key = run.key(model, temperature)
    # What the ranks by id in the tiles stand for: places in canonical order, and names.
    order = np.argsort(layout.ids, kind="stable")
    duplicates = _duplicates(grid, layout, key, count, order)
    run.storage.write_table(f"{place}/near_duplicates.parquet", schema.NEAR_DUPLICATES.build_rows(duplicates))
    rows, hubs = list[dict[str, Any]](), list[dict[str, Any]]()
    if grid.neighbours:
        names = ray.put(pa.array(layout.ids[order].tolist(), pa.string()))
        if len(layout) > 1:
            ranks = _merged(cluster, grid, run.place("neighbours", model, temperature), count, names)
            places = _places(ranks, order)
            rows = _exposures(places, layout, key, "corpus", own=True)
            hubs = ranked(key, "hub", occurrences(places, len(layout)).astype(np.float64), layout)
        if queries is not None:
            ranks = _asked(cluster, queries, grid, model, temperature, count, names)
            rows += _exposures(_places(ranks, order), layout, key, "queries", own=False)
    run.storage.write_table(f"{place}/exposure.parquet", schema.EXPOSURE.build_rows(rows))
    run.storage.write_table(f"{place}/collapsed_texts.parquet", schema.COLLAPSED_TEXTS.build_rows(hubs))
    run.storage.write_json(f"{place}/done.json", {"texts": len(layout), "k": grid.neighbours})
    run.storage.remove(f"{grid.place}/near")


def _places(ranks: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Ranks by id as places in canonical order; NOBODY stays."""
    return np.where(ranks == NOBODY, NOBODY, order[np.where(ranks == NOBODY, 0, ranks)])


def _merged(cluster: Cluster, grid: Tiling, neighbours: str, count: int, names: Any) -> np.ndarray:
    """Merge every block's neighbours over its tiles and leave them; (texts, k) ranks by id."""
    import ray

    task = ray.remote(_merge_block)
    found = dict(results(cluster, lambda k: task.remote(grid, k, count, neighbours, names), range(count)))
    return np.concatenate([found[k] for k in range(count)])


def _asked(
    cluster: Cluster, queries: Run, grid: Tiling, model: Model, temperature: Temperature, count: int, names: Any
) -> np.ndarray:
    """The nearest texts of every query, (queries, k) ranks by id; leaves them below queries/neighbours."""
    import ray

    files = queries.storage.list(queries.place("texts", model, temperature))
    groups = [files[k : k + _QUERY_PARTS] for k in range(0, len(files), _QUERY_PARTS)]
    place, task = queries.place("neighbours", model, temperature), ray.remote(_ask)
    submit = lambda k: task.remote(grid, queries.storage, groups[k], count, f"{place}/part-{k:05d}.parquet", names)  # noqa: E731
    found = dict(results(cluster, submit, range(len(groups)), ahead=1))
    return np.concatenate([found[k] for k in range(len(groups))])


def _ask(grid: Tiling, storage: Storage, files: list[str], count: int, name: str, names: pa.Array) -> np.ndarray:
    """Hold some queries against every block of the corpus."""
    asked = pa.concat_tables([storage.read_table(file, ["text_id", "embedding"]) for file in files])
    asking = rounded(parts.matrix(asked, "embedding"), grid.precision)
    nobody = np.zeros(len(asking), np.int64)
    rows = Block(asking, nobody, np.full(len(asking), NOBODY, np.int32))
    near = Nearest.empty(len(asking), grid.neighbours)
    for number in range(count):
        block = blocks.read_block(grid.storage.root, grid.block(number), grid.precision)
        tile = cosine_tile(rows, block, grid.intervals, diagonal=False, neighbours=grid.neighbours)
        near = near.merged(tile.rows)
    ids = asked.column("text_id").combine_chunks()
    storage.write_table(name, schema.NEIGHBOURS.build(_graph(near, ids, names)))
    return near.label


def _graph(near: Nearest, ids: pa.Array, names: pa.Array) -> dict[str, pa.Array]:
    """The columns of a neighbour graph."""
    found = near.label != NOBODY
    offsets = pa.array(np.concatenate([[0], np.cumsum(found.sum(1))]), pa.int32())
    return {
        "text_id": ids,
        "neighbours": pa.ListArray.from_arrays(offsets, names.take(pa.array(near.label[found]))),
        "cosines": pa.ListArray.from_arrays(offsets, pa.array(near.cosine[found])),
    }


def _merge_block(grid: Tiling, own: int, count: int, neighbours: str, names: pa.Array) -> np.ndarray:
    """One block's nearest texts of all blocks, in the order of the grid; leaves them by name, returns ranks by id."""
    lists = (
        blocks.read_near(grid, own, other, "rows") if own <= other else blocks.read_near(grid, other, own, "columns")
        for other in range(count)
    )
    near = merge_tree(lists, Nearest.merged)
    table = grid.storage.read_table(grid.block(own), ["label"])
    ids = names.take(table.column("label").combine_chunks())
    grid.storage.write_table(f"{neighbours}/part-{own:05d}.parquet", schema.NEIGHBOURS.build(_graph(near, ids, names)))
    return near.label


def _exposures(label: np.ndarray, layout: Layout, key: dict[str, Any], asked_by: str, own: bool) -> list[dict[str, Any]]:
    """One row an interval, for the nearest text alone and for all k."""
    population = layout.population(len(layout)) if own else float("inf")
    counts, rows = layout.texts(), []
    for k in sorted({1, label.shape[1]}):
        found = exposure(label[:, :k], layout.interval, len(layout.edges), own, population)
        hubness = skewness(occurrences(label[:, :k], len(layout)))
        for b in np.flatnonzero(counts):
            rows.append(
                key
                | {"asked_by": asked_by, "queries": len(label), "k": k, "interval": layout.edges[b], "texts": int(counts[b])}
                | {"texts_share": float(found.texts_share[b]), "slots_share": float(found.slots_share[b])}
                | {"exposure": float(found.exposure[b]), "exposure_se": float(found.corrected[b])}
                | {"exposure_se_superpopulation": float(found.error[b]), "k_occurrence_skewness": hubness}
            )
    return rows


def _duplicates(grid: Tiling, layout: Layout, key: dict[str, Any], count: int, order: np.ndarray) -> list[dict[str, Any]]:
    """The listed near-duplicates of all tiles."""
    lists = (blocks.read_duplicates(grid, i, j) for i, j in tiles.upper_triangle(count))
    pairs = merge_tree(lists, lambda one, other: one.merged(other).first(grid.listed))
    return [
        key
        | {"rank": rank, "text_id_a": layout.ids[a], "text_id_b": layout.ids[b], "cosine": float(cosine)}
        | {"tokens_a": int(layout.tokens[a]), "tokens_b": int(layout.tokens[b])}
        for rank, (cosine, (a, b)) in enumerate(zip(pairs.cosine, order[pairs.labels], strict=True), start=1)
    ]
