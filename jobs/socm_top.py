"""The most collapsed pairs of a whole corpus, exactly: cheap bounds over the grid of all pairs, then the survivors' d_Σ.

First the texts of largest tr Σ are compared with one another: their best pairs give thresholds that any pair of the ranking
must reach. Tiles of the cosine grid then keep the pairs that the traces cannot rule out. Their texts' factors are computed
again, each in the micro-batch of its shard, and the Frobenius norm of F_1F_2ᵀ rules out more before the
rest is computed exactly. No factor of any other text is ever computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from jobs import actor, blocks, corpus, factor_parts, parts, schema, socm_tables
from jobs.blocks import Tiling
from jobs.crew import Crew
from jobs.engine import Cluster, results
from jobs.errors import UsageError
from jobs.factor_pairs import FactorFiles, bounded, exact_pairs
from jobs.layout import Layout, column, folder
from jobs.runs import Model, Run
from jobs.socm_tables import Pairs
from tempscale import tiles
from tempscale.temperature import Temperature

_SEEDS = 1024
"""Texts of largest tr Σ that are compared first."""
_MOST_PAIRS = 50_000_000
RANKINGS = ("socm", "same_mean")


@dataclass(frozen=True)
class _Search:
    """What one model and temperature are searched with."""

    place: str
    cosine: float
    """The corpus's 99th percentile: only pairs from it on are of the ranking `same_mean`."""
    trace: np.ndarray
    thresholds: dict[str, float]


def search(
    run: Run, cluster: Cluster, model: Model, layout: Layout, index: dict[str, Any], on_step: Callable[[str], None]
) -> dict[str, int]:
    """Leave socm_pairs and socm_search of the whole corpus, under every temperature, below partials/top.

    Args:
        index: what `corpus.shard` returned.
        on_step: told what is under way.

    Returns:
        Pairs of the corpus, and how many were computed exactly, over all temperatures.

    Raises:
        UsageError: the bounds leave more pairs than can be held; starting again would end the same way.
        IncompleteRun: a task failed for good.
    """
    means = _means_are_embeddings(model)
    todo = [t for t in run.temperatures if not run.storage.exists(f"{folder(run, 'top', model, t)}/done.json")]
    traces = {t.slug: column(run, model, t, layout, "spread") for t in todo}
    on_step("factors of the texts of largest trace")
    seeds = {t.slug: np.sort(np.argsort(-traces[t.slug], kind="stable")[:_SEEDS]) for t in todo}
    _factors(run, cluster, model, layout, index, seeds, "partials/top-seeds")
    searches, left = {}, {}
    for t in todo:
        on_step(f"bounds over all pairs, τ {t.canonical}")
        searches[t.slug] = _begin(run, cluster, model, t, layout, seeds[t.slug], traces[t.slug])
        left[t.slug] = _survivors(run, cluster, model, t, layout, searches[t.slug], means)
    on_step("factors of the texts that are left")
    texts = {slug: np.unique(pairs.places) for slug, pairs in left.items()}
    _factors(run, cluster, model, layout, index, texts, "partials/top-factors")
    for t in todo:
        on_step(f"exact pairs, τ {t.canonical}")
        _finish(run, cluster, model, t, layout, searches[t.slug], left[t.slug], texts[t.slug])
    counts = [run.storage.read_json(f"{folder(run, 'top', model, t)}/done.json") for t in run.temperatures]
    for kind in ("partials/top-seeds", "partials/top-factors"):
        for t in run.temperatures:
            run.storage.remove(run.place(kind, model, t))
    return {name: sum(count[name] for count in counts) for name in ("pairs", "exact")}


def _means_are_embeddings(model: Model) -> bool:
    """Whether text embeddings are the normalised token means, so that their cosine gives d_μ."""
    from tempscale.checkpoint import resolve
    from tempscale.pooling import load_head

    return load_head(resolve(model.name)).keeps_means


def _factors(
    run: Run, cluster: Cluster, model: Model, layout: Layout, index: dict[str, Any], wanted: dict[str, np.ndarray], kind: str
) -> None:
    """Leave the factors of some texts by temperature, a part a shard."""
    work: dict[int, pa.Table] = {}
    for t in run.temperatures:
        if t.slug not in wanted:
            continue
        ids_of = corpus.places_of(run.storage, index, set(layout.ids[wanted[t.slug]].tolist()))
        for number, ids in ids_of.items():
            if run.storage.exists(run.part(kind, model, t, number)):
                continue
            own = pa.table({"temperature": [t.slug] * len(ids), "text_id": ids})
            work[number] = pa.concat_tables([work[number], own]) if number in work else own
    named = {
        number: table.replace_schema_metadata({"kind": kind, "shard": index["shards"][number]["name"]})
        for number, table in work.items()
    }
    # Not kept for later: the tiles in between need the processors that actors hold.
    with Crew(run, cluster, model) as crew:
        for _ in crew.work(leave_survivors, named):
            pass


def leave_survivors(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Compute the factors of some texts of a shard again, in the micro-batches that they were embedded in.

    One part a temperature that some text is wanted under.
    """
    metadata = {key.decode(): value.decode() for key, value in work.schema.metadata.items()}
    shard = worker.storage.read_table(metadata["shard"], ["text_id", "text"])
    tokens = worker.encoder.tokenizer(shard.column("text").to_pylist(), isolate=True)
    place = {text_id: k for k, text_id in enumerate(shard.column("text_id").to_pylist())}
    rejected = worker.storage.list(f"rejected/model={worker.model.label}")
    lost = {i for name in rejected for i in worker.storage.read_table(name, ["text_id"]).column("text_id").to_pylist()}
    without = {k for text_id, k in place.items() if text_id in lost}
    asked = list(zip(work.column("temperature").to_pylist(), work.column("text_id").to_pylist(), strict=True))
    for temperature in worker.temperatures:
        ids = [text_id for slug, text_id in asked if slug == temperature.slug]
        if not ids:
            continue
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"{metadata['kind'].rpartition('/')[2]} {number} under τ {temperature.slug}"):
            wanted = {place[text_id] for text_id in ids}
            found = worker.encoder.factors_of(tokens, wanted, role=actor.ROLE, without=without)
        places = [place[text_id] for text_id in ids]
        table = factor_parts.table(ids, [tokens.lengths[k] for k in places], [found[k] for k in places])
        name = f"{metadata['kind']}/model={worker.model.label}/temperature={temperature.slug}/part-{number:05d}.parquet"
        worker.storage.write_table(name, table)
    return {"number": number, "texts": len(asked)}


def _begin(
    run: Run, cluster: Cluster, model: Model, temperature: Temperature, layout: Layout, seeds: np.ndarray, trace: np.ndarray
) -> _Search:
    """Thresholds that as many pairs as are ranked are known to reach, from all pairs of the seeds."""
    place, analysis = folder(run, "top", model, temperature), run.config.analysis
    closed = run.storage.read_json(f"{folder(run, 'cosine', model, temperature)}/closed.json")
    cosine = float(closed["cosine_p99"] if closed["cosine_p99"] is not None else 2.0)
    files = FactorFiles.of(run, model, temperature, "partials/top-seeds")
    first, second = np.triu_indices(len(seeds), 1)
    found = exact_pairs(cluster, files, layout.ids[seeds], first, second, analysis)
    # The seeds' own cosines may differ from the grid's in the last digit: a little further in, a pair is surely of both.
    near = 1 - 2 * found.d_mu >= cosine + 1e-4
    thresholds = {}
    for ranking, scores in (("socm", found.value), ("same_mean", found.d_sigma[near])):
        enough = len(scores) >= analysis.worst_pairs
        thresholds[ranking] = float(np.partition(scores, -analysis.worst_pairs)[-analysis.worst_pairs]) if enough else 0.0
    return _Search(place, cosine, trace, thresholds)


@dataclass(frozen=True)
class _Left:
    """Pairs that the traces left."""

    places: np.ndarray
    ranking: np.ndarray


def _survivors(
    run: Run, cluster: Cluster, model: Model, temperature: Temperature, layout: Layout, search: _Search, means: bool
) -> _Left:
    """Hold the traces of every pair of the grid against the thresholds; a finished tile is a durable part."""
    import ray

    grid = blocks.tiling(run, model, temperature, layout)
    dim = blocks.dimensions(run, model, temperature)
    bounds = tiles.blocks(len(layout), tiles.block_size(len(layout), dim))
    triangle = tiles.upper_triangle(len(bounds))
    missing = [tile for tile in triangle if not run.storage.exists(_name(search.place, *tile))]
    task, analysis = ray.remote(_bound_tile), run.config.analysis
    shared, total = ray.put(search), 0
    exponents = (analysis.socm_alpha, analysis.socm_beta, means)
    for _ in results(cluster, lambda t: task.remote(grid, shared, t[0], t[1], bounds, exponents), missing, ahead=1):
        pass
    tables = []
    for i, j in triangle:
        table = run.storage.read_table(_name(search.place, i, j))
        total += table.num_rows
        if total > _MOST_PAIRS:
            raise UsageError(
                f"the bounds leave more than {_MOST_PAIRS:,} pairs of this corpus under τ {temperature.canonical}; rank "
                "those of a sample: --sample N, or --socm-top-over sample"
            )
        tables.append(table)
    whole = pa.concat_tables(tables)
    places = np.stack([whole.column("row").to_numpy(), whole.column("column").to_numpy()], axis=1)
    return _Left(places, whole.column("ranking").to_numpy())


def _name(place: str, i: int, j: int) -> str:
    return f"{place}/tile-{i:05d}-{j:05d}.parquet"


def _bound_tile(
    grid: Tiling, search: _Search, i: int, j: int, bounds: list[tuple[int, int]], exponents: tuple[float, float, bool]
) -> None:
    """Leave the pairs of one tile that the traces cannot rule out."""
    from tempscale.survivors import survivors

    rows = blocks.read_block(grid.storage.root, grid.block(i))
    columns = rows if i == j else blocks.read_block(grid.storage.root, grid.block(j))
    alpha, beta, means = exponents
    places, cosines, ranking = survivors(
        rows.embeddings, search.trace[slice(*bounds[i])], columns.embeddings, search.trace[slice(*bounds[j])],
        diagonal=i == j, socm=search.thresholds["socm"], same_mean=search.thresholds["same_mean"], cosine=search.cosine,
        alpha=alpha, beta=beta, means=means,
    )  # fmt: skip
    kept = {"row": places[:, 0] + bounds[i][0], "column": places[:, 1] + bounds[j][0]}
    grid.storage.write_table(
        _name(search.place, i, j), parts.BOUND_TILE.build(kept | {"cosine": cosines, "ranking": ranking})
    )


def _finish(
    run: Run, cluster: Cluster, model: Model, temperature: Temperature, layout: Layout, search: _Search, left: _Left,
    texts: np.ndarray,
) -> None:  # fmt: skip
    """Bound the pairs that are left by the Frobenius norm, compute the rest, and rank; done.json last."""
    key, analysis, storage = run.key(model, temperature), run.config.analysis, run.storage
    files = FactorFiles.of(run, model, temperature, "partials/top-factors")
    first, second = (np.searchsorted(texts, left.places[:, side]) for side in (0, 1))
    ids = layout.ids[texts]
    ranked: list[dict[str, Any]] = []
    searched: list[dict[str, Any]] = []
    pairs = len(layout) * (len(layout) - 1) // 2
    asked = {"socm": (left.ranking & 1) > 0, "same_mean": (left.ranking & 2) > 0}
    needed = bounded(cluster, files, ids, first, second, asked, search.thresholds, analysis)
    every = needed["socm"] | needed["same_mean"]
    found = exact_pairs(cluster, files, ids, first[every], second[every], analysis)
    for ranking in RANKINGS:
        here = needed[ranking][every]
        scores = found.value if ranking == "socm" else found.d_sigma
        kept = Pairs(*(column[here] for column in found))
        rows = socm_tables.best(kept, scores[here], ids, layout.tokens[texts], analysis.worst_pairs)
        ranked += [key | {"over": "corpus", "ranking": ranking} | row for row in rows]
        searched.append(
            key
            | {"ranking": ranking, "threshold": search.thresholds[ranking], "pairs": pairs, "texts": len(texts)}
            | {"kept_by_traces": int(asked[ranking].sum()), "kept_by_frobenius": int(needed[ranking].sum())}
        )
    storage.write_table(f"{search.place}/socm_pairs.parquet", schema.SOCM_PAIRS.build_rows(ranked))
    storage.write_table(f"{search.place}/socm_search.parquet", schema.SOCM_SEARCH.build_rows(searched))
    storage.write_json(f"{search.place}/done.json", {"pairs": pairs, "exact": int(every.sum())})
