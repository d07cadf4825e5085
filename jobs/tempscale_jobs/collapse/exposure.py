"""Exposure: merge the neighbours that the tiles found, and count who fills the search results by length interval.

Near-duplicates are listed here too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tempscale.collapse.aggregates import Block, merge_tree
from tempscale.collapse.cosine import cosine_tile, rounded
from tempscale.collapse.grid import upper_triangle
from tempscale.collapse.neighbours import NOBODY, Nearest, exposure, occurrences, skewness
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.collapse import blocks
from tempscale_jobs.collapse.blocks import Tiling
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.embedding.layout import Layout, documents_of
from tempscale_jobs.runs.folder import Model, Run, numbered
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import COLLAPSED_TEXTS, EXPOSURE, NEAR_DUPLICATES, NEIGHBOURS
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers.engine import Cluster, results

_QUERY_PARTS = 8
"""Parts of queries that one task compares with the whole corpus: 4,096 queries at most."""


def expose(
    run: Run, cluster: Cluster, model: Model, temperature: Temperature, layout: Layout, analysis: Analysis,
    queries: Run | None,
) -> None:  # fmt: skip
    """Write the neighbours, and the tables exposure, near_duplicates and collapsed_texts (hubs).

    `queries` is the run in the folder queries/, if there are queries.
    """
    place = run.place("partials/exposure", model, temperature)
    if run.storage.exists(f"{place}/done.json"):
        return
    import ray

    (grid, _), key = blocks.tiling(run, model, temperature, layout, analysis), run.key(model, temperature)
    # Tiles name a text by its label; `order` turns it into the text's place in canonical order.
    order = layout.by_label()
    duplicates = _duplicates(grid, layout, key, order)
    run.storage.write_table(f"{place}/near_duplicates.parquet", NEAR_DUPLICATES.build_rows(duplicates))
    rows, hubs = list[dict[str, Any]](), list[dict[str, Any]]()
    if grid.neighbours:
        files = run.storage.list(run.place("texts", model, temperature))
        names = ray.remote(_names).remote(run.storage, files, layout.stored[order])
        if len(layout) > 1:
            ranks = _merged(cluster, grid, run.place("neighbours", model, temperature), names)
            places = _places(ranks, order)
            rows = _exposures(places, layout, key, "corpus", own=True)
            hubs = ranked(key, "hub", occurrences(places, len(layout)).astype(np.float64), layout)
        if queries is not None:
            ranks = _query_neighbours(cluster, queries, grid, model, temperature, names)
            asking = _documents(queries, model, temperature)
            rows += _exposures(_places(ranks, order), layout, key, "queries", own=False, asking=asking)
    run.storage.write_table(f"{place}/exposure.parquet", EXPOSURE.build_rows(rows))
    run.storage.write_table(f"{place}/collapsed_texts.parquet", COLLAPSED_TEXTS.build_rows(hubs))
    run.storage.write_json(f"{place}/done.json", {"texts": len(layout), "k": grid.neighbours})
    run.storage.remove(f"{grid.place}/near")


def _names(storage: Storage, files: list[str], stored: np.ndarray) -> pa.Array:
    """The ids of all texts by their labels; `stored` is the number of each in texts/. Only tasks hold them."""
    ids = pa.chunked_array([own for (column,) in storage.columns(files, ["text_id"]) for own in column.chunks], pa.string())
    return ids.take(pa.array(stored)).combine_chunks()


def _places(ranks: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Turn labels into places in canonical order, in place; NOBODY stays."""
    for start in range(0, len(ranks), _AT_ONCE):
        own = ranks[start : start + _AT_ONCE]
        found = own != NOBODY
        own[found] = order[own[found]]
    return ranks


def _merged(cluster: Cluster, grid: Tiling, neighbours: str, names: Any) -> np.ndarray:
    """Merge and write every panel's neighbours; return them as labels, (texts, k)."""
    import ray

    task = ray.remote(_merge_panel)
    found = dict(results(cluster, lambda k: task.remote(grid, k, neighbours, names), range(grid.panels), ahead=1))
    return _joined(found)


def _query_neighbours(
    cluster: Cluster, queries: Run, grid: Tiling, model: Model, temperature: Temperature, names: Any
) -> np.ndarray:
    """Find the nearest texts of every query and write them to queries/neighbours; return labels, (queries, k)."""
    import ray

    files = queries.storage.list(queries.place("texts", model, temperature))
    groups = [files[k : k + _QUERY_PARTS] for k in range(0, len(files), _QUERY_PARTS)]
    place, task = queries.place("neighbours", model, temperature), ray.remote(_ask)
    submit = lambda k: task.remote(grid, queries.storage, groups[k], numbered(place, k), names)  # noqa: E731
    found = dict(results(cluster, submit, range(len(groups)), ahead=1))
    return _joined(found)


def _joined(found: dict[int, np.ndarray]) -> np.ndarray:
    """Arrays one after the other by their numbers; each is given up as it is copied."""
    rows, width = sum(map(len, found.values())), next(iter(found.values())).shape[1]
    whole, filled = np.empty((rows, width), np.int32), 0
    for number in sorted(found):
        own = found.pop(number)
        whole[filled : filled + len(own)] = own
        filled += len(own)
    return whole


def _ask(grid: Tiling, storage: Storage, files: list[str], name: str, names: pa.Array) -> np.ndarray:
    """Find and write the nearest texts of some queries in all blocks of the corpus."""
    queries_table = pa.concat_tables([storage.read_table(file, ["text_id", "embedding"]) for file in files])
    asking = rounded(parts.matrix(queries_table, "embedding"), grid.precision)
    nobody = np.zeros(len(asking), np.int64)
    rows = Block(asking, nobody, np.full(len(asking), NOBODY, np.int32))
    near = Nearest.empty(len(asking), grid.neighbours)
    for number in range(grid.count):
        block = blocks.read_block(grid.storage.root, grid.block(number), grid.precision)
        tile = cosine_tile(rows, block, grid.intervals, diagonal=False, neighbours=grid.neighbours)
        near = near.merged(tile.rows)
    ids = queries_table.column("text_id").combine_chunks()
    storage.write_table(name, NEIGHBOURS.build(_graph(near, ids, names)))
    return near.label


def _graph(near: Nearest, ids: pa.Array, names: pa.Array) -> dict[str, pa.Array]:
    """The columns of the table `neighbours`."""
    found = near.label != NOBODY
    offsets = pa.array(np.concatenate([[0], np.cumsum(found.sum(1))]), pa.int32())
    return {
        "text_id": ids,
        "neighbours": pa.ListArray.from_arrays(offsets, names.take(pa.array(near.label[found]))),
        "cosines": pa.ListArray.from_arrays(offsets, pa.array(near.cosine[found])),
    }


def _merge_panel(grid: Tiling, own: int, neighbours: str, names: pa.Array) -> np.ndarray:
    """Merge the neighbours of one panel's texts in the order of the grid; write them by block, return them as labels."""
    lists = (
        blocks.read_near(grid, own, other, "rows") if own <= other else blocks.read_near(grid, other, own, "columns")
        for other in range(grid.panels)
    )
    near = merge_tree(lists, Nearest.merged)
    start = 0
    for block in grid.panel(own):
        ids = grid.storage.read_table(grid.block(block), ["text_id"]).column("text_id").combine_chunks()
        here = slice(start, start + len(ids))
        one = Nearest(near.cosine[here], near.label[here])
        grid.storage.write_table(numbered(neighbours, block), NEIGHBOURS.build(_graph(one, ids, names)))
        start += len(ids)
    return near.label


def _documents(queries: Run, model: Model, temperature: Temperature) -> np.ndarray | None:
    """The document of each query; None where no query has one."""
    files = queries.storage.list(queries.place("texts", model, temperature))
    tables = [queries.storage.read_table(file, ["text_id", "document"]) for file in files]
    ids = [text_id for table in tables for text_id in table.column("text_id").to_pylist()]
    return documents_of([table.column("document") for table in tables], ids)


def _exposures(
    label: np.ndarray, layout: Layout, key: dict[str, Any], asked_by: str, own: bool, asking: np.ndarray | None = None
) -> list[dict[str, Any]]:  # fmt: skip
    """One row for each interval, for the nearest text alone and for all k."""
    population = layout.population(len(layout)) if own else float("inf")
    counts, rows = layout.texts(), []
    for k in sorted({1, label.shape[1]}):
        found = exposure(label[:, :k], layout.interval, len(layout.edges), own, population, layout.documents, asking)
        hubness = skewness(occurrences(label[:, :k], len(layout)))
        for b in np.flatnonzero(counts):
            rows.append(
                key
                | {"asked_by": asked_by, "queries": len(label), "k": k, "interval": layout.edges[b], "texts": int(counts[b])}
                | {"texts_share": float(found.texts_share[b]), "slots_share": float(found.slots_share[b])}
                | {"exposure": float(found.exposure[b]), "exposure_se": float(found.corrected[b])}
                | {"exposure_se_superpopulation": finite(found.error[b]), "k_occurrence_skewness": hubness}
            )
    return rows


def _duplicates(grid: Tiling, layout: Layout, key: dict[str, Any], order: np.ndarray) -> list[dict[str, Any]]:
    """The listed near-duplicates of all panels."""
    lists = (blocks.read_duplicates(grid, i, j) for i, j in upper_triangle(grid.panels))
    pairs = merge_tree(lists, lambda one, other: one.merged(other).first(grid.listed))
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


_LISTED, _AT_ONCE = 20, 1 << 20
"""The length of a ranking, and of how many texts it is drawn up at a time."""


def _largest(values: np.ndarray, start: int) -> np.ndarray:
    """The places from `start` on, a limited number of them, whose values can be listed."""
    own = values[start : start + _AT_ONCE]
    known = np.flatnonzero(~np.isnan(own))
    if len(known) > _LISTED:  # Sort only these.
        known = known[own[known] >= np.partition(own[known], -_LISTED)[-_LISTED]]
    return np.asarray(start + known)


def ranked(key: dict[str, Any], ranking: str, values: np.ndarray, layout: Layout) -> list[dict[str, Any]]:
    """Rows of `collapsed_texts` for the ranking `nearness` or `hub`: largest value first, ties by key, NaN skipped."""
    known = np.concatenate([np.zeros(0, np.int64), *(_largest(values, start) for start in range(0, len(values), _AT_ONCE))])
    order = known[np.lexsort((layout.key[known], -values[known]))][:_LISTED]
    return [
        key
        | {"ranking": ranking, "rank": rank, "text_id": text_id}
        | {"tokens": int(layout.tokens[place]), "value": float(values[place])}
        for rank, (place, text_id) in enumerate(zip(order, layout.ids[order], strict=True), start=1)
    ]
