"""The most collapsed pairs of a whole corpus, exactly: cheap bounds over all pairs, then the exact d_Σ of the survivors.

First, the best pairs of the texts of largest tr Σ give the thresholds of the ranking. Tiles of the cosine grid then keep the
pairs that the traces cannot rule out. The factors of their texts are computed again, each in the micro-batch of its shard in
the source. The first rows of the factors rule out more pairs, and the rest is computed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tempscale.collapse import tiles
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import Model, Run, is_whole, place, tile
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.steps import blocks, factors
from tempscale_jobs.steps.blocks import COSINE, Tiling
from tempscale_jobs.steps.factor_pairs import Candidates, FactorFiles, PairPlaces, most_collapsed
from tempscale_jobs.steps.layout import column
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.steps.socm_tables import Named
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import SOCM_PAIRS, SOCM_SEARCH
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Crew, Piece, missing, run_tasks, share

SEEDS = 1024
"""Texts of largest tr Σ, whose pairs are computed first."""
MOST_PAIRS = 50_000_000
_OF_SEEDS, _OF_LEFT = "partials/top-seeds", "partials/top-factors"
"""The folders of the factors of these texts, and of those of the remaining pairs, until the pairs are ranked."""


@dataclass(frozen=True)
class _Search:
    """The bounds of a search under one model and temperature."""

    place: str
    cosine: float
    """The corpus's 99th percentile of cosine; the ranking `same_mean` has only pairs at or above it."""
    trace: np.ndarray
    thresholds: dict[str, float]
    bounds: list[tuple[int, int]]
    """[start, stop) of each block of the grid."""
    exponents: tuple[float, float, bool]
    """α, β, and whether embeddings are the normalised token means."""


def begin(scope: Embedded) -> None:
    """Write the factors of the texts of largest tr Σ, with the crew that has loaded the model."""
    with scope.journal.stage(scope.named("texts of largest tr Σ")) as stage:
        seeds = seeds_of(scope)
        missing_factors(scope, seeds, _OF_SEEDS)
        stage.note = f"factors of {sum(map(len, seeds.values())):,} texts"


def seeds_of(scope: Embedded) -> dict[str, np.ndarray]:
    """The places of the texts of largest tr Σ under every temperature whose search is not done."""
    run, model, layout = scope.run, scope.model, scope.texts
    todo = [t for t in run.temperatures if not is_done(run, model, t)]
    traces = {t.slug: column(run, model, t, layout, "spread") for t in todo}
    return {slug: np.sort(np.argsort(-trace, kind="stable")[:SEEDS]) for slug, trace in traces.items()}


def is_done(run: Run, model: Model, temperature: Temperature) -> bool:
    """Whether all files of the search under a temperature exist."""
    return is_whole(run.storage, _done_file(run, model, temperature))


def _done_file(run: Run, model: Model, temperature: Temperature) -> str:
    return f"{run.place('partials/top', model, temperature)}/done.json"


def search(scope: Embedded) -> None:
    """Write socm_pairs and socm_search of the whole corpus under every temperature, after `begin`."""
    with scope.journal.stage(scope.named("most collapsed pairs")) as stage:
        counts = _search(scope, stage)
        stage.note = f"{counts['exact']:,} of {counts['pairs']:,} pairs remained after the bounds; these are exact"


def _search(scope: Embedded, stage: Stage) -> dict[str, int]:
    """Search under every temperature; count all `pairs` and the `exact` ones."""
    run, model = scope.run, scope.model
    means = _means_are_embeddings(model)
    seeds = seeds_of(scope)
    todo = [t for t in run.temperatures if t.slug in seeds]
    searches, left = {}, {}
    for t in todo:
        stage.tell(f"bounds over all pairs, τ {t.canonical}")
        searches[t.slug] = seed_thresholds(scope, t, seeds[t.slug], means)
        left[t.slug] = left_by_bounds(scope, t, searches[t.slug])
    stage.tell("factors of the remaining texts")
    texts = {slug: np.unique(pairs.places) for slug, pairs in left.items()}
    if todo:
        # A new crew: that of earlier steps was dismissed to free memory for the tiles.
        with Crew(run, scope.cluster, model, scope.encoding) as crew:
            missing_factors(replace(scope, crew=crew), texts, _OF_LEFT)
    for t in todo:
        stage.tell(f"exact pairs, τ {t.canonical}")
        _finish(scope, t, searches[t.slug], left[t.slug], texts[t.slug])
    counts = [run.storage.read_json(_done_file(run, model, t)) for t in run.temperatures]
    for kind in (_OF_SEEDS, _OF_LEFT):
        for t in run.temperatures:
            run.storage.remove(run.place(kind, model, t))
    return {name: sum(count[name] for count in counts) for name in ("pairs", "exact")}


def _means_are_embeddings(model: Model) -> bool:
    """Whether text embeddings are the normalised token means; then their cosine gives d_μ."""
    from tempscale.model.checkpoint import resolve
    from tempscale.model.pooling import load_head

    return load_head(resolve(model.name)).keeps_means


def missing_factors(scope: Embedded, wanted: dict[str, np.ndarray], kind: str) -> None:
    """Write the factors of the wanted texts of each temperature, one part for each shard."""
    run, model, layout, index = scope.run, scope.model, scope.texts, scope.index
    work: dict[int, pa.Table] = {}
    for t in run.temperatures:
        if t.slug not in wanted:
            continue
        existing = set(run.storage.list(run.place(kind, model, t)))
        numbers, names = layout.shards_of(wanted[t.slug]), layout.ids[wanted[t.slug]]
        for number in np.unique(numbers).tolist():
            ids = names[numbers == number].tolist()
            if run.part(kind, model, t, number) in existing:
                continue
            table = pa.table({"temperature": [t.slug] * len(ids), "text_id": ids})
            work[number] = pa.concat_tables([work[number], table]) if number in work else table
    pieces = [
        Piece(number, (number, wanted_texts, index.shards[number].name, kind), f"shard {number}", cost=wanted_texts.num_rows)
        for number, wanted_texts in sorted(work.items())
    ]
    for _ in scope.crew.run(write_factors, pieces):
        pass


def write_factors(worker: actor.ModelActor, number: int, work: pa.Table, name: str, kind: str) -> None:
    """Compute factors of some texts of a shard again, in their micro-batches; write a part for each wanted temperature."""
    shard = worker.storage.read_table(name, ["text_id", "text"])
    tokens = worker.encoder.tokenizer(shard.column("text").to_pylist(), isolate=True)
    row = {text_id: k for k, text_id in enumerate(shard.column("text_id").to_pylist())}
    rejected = worker.storage.list(place("rejected", worker.model))
    lost = {i for name in rejected for i in worker.storage.read_table(name, ["text_id"]).column("text_id").to_pylist()}
    without = {k for text_id, k in row.items() if text_id in lost}
    padded = worker.encoder.padded(tokens)
    wanted_texts = list(zip(work.column("temperature").to_pylist(), work.column("text_id").to_pylist(), strict=True))
    for temperature in worker.temperatures:
        ids = [text_id for slug, text_id in wanted_texts if slug == temperature.slug]
        if not ids:
            continue
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"{kind.rpartition('/')[2]} {number} under τ {temperature.slug}"):
            rows = {row[text_id] for text_id in ids}
            matrices = worker.encoder.factors_of(tokens, rows, role=actor.ROLE, without=without, padded=padded)
        places = [row[text_id] for text_id in ids]
        moments = factors.with_principal_rows([matrices[k] for k in places])
        table = factors.factor_table(ids, [tokens.lengths[k] for k in places], moments)
        worker.storage.write_table(worker.part(kind, temperature, number), table)


def seed_thresholds(scope: Embedded, temperature: Temperature, seeds: np.ndarray, means: bool) -> _Search:
    """Thresholds from all pairs of the seed texts: enough pairs reach them to fill the ranking."""
    run, model, layout, analysis = scope.run, scope.model, scope.texts, scope.analysis
    closed = run.storage.read_json(f"{run.place(COSINE, model, temperature)}/closed.json")
    cosine = float(closed["cosine_p99"] if closed["cosine_p99"] is not None else 2.0)
    files = FactorFiles.of(run, model, temperature, _OF_SEEDS)
    first, second = np.triu_indices(len(seeds), 1)
    vectors = scope.embeddings(temperature, seeds)
    # These cosines may differ from the grid's in the last digit; with the margin, pairs qualify by both.
    near = (vectors @ vectors.T)[first, second] >= cosine + 1e-4
    candidates = {"socm": Candidates(np.ones(len(first), bool)), "same_mean": Candidates(near)}
    found = most_collapsed(scope.cluster, files, PairPlaces(layout.ids[seeds], first, second), candidates, analysis)
    thresholds = {}
    for ranking in candidates:
        scores = found.scores(ranking)
        enough = len(scores) >= analysis.worst_pairs
        thresholds[ranking] = float(np.partition(scores, -analysis.worst_pairs)[-analysis.worst_pairs]) if enough else 0.0
    trace = column(run, model, temperature, layout, "spread")
    _, bounds = blocks.tiling(scope, temperature)
    exponents = (analysis.socm_alpha, analysis.socm_beta, means)
    return _Search(run.place("partials/top", model, temperature), cosine, trace, thresholds, bounds, exponents)


@dataclass(frozen=True)
class _Left:
    """The pairs that the traces could not rule out."""

    places: np.ndarray
    cosine: np.ndarray
    ranking: np.ndarray


def left_by_bounds(scope: Embedded, temperature: Temperature, search: _Search) -> _Left:
    """The pairs of the grid whose trace bound reaches a threshold; finished tiles are durable."""
    run, (grid, _) = scope.run, blocks.tiling(scope, temperature)
    triangle, shared = tiles.upper_triangle(grid.panels), share(search)
    every = [Piece((i, j), (grid, shared, i, j), f"tile {i}, {j}", (tile(search.place, i, j),)) for i, j in triangle]
    for _ in run_tasks(scope.cluster, _bound_panels, missing(run.storage, every)):
        pass
    tables, total = [], 0
    for i, j in triangle:
        table = run.storage.read_table(tile(search.place, i, j))
        total += table.num_rows
        if total > MOST_PAIRS:
            raise UsageError(
                f"the bounds leave more than {MOST_PAIRS:,} pairs of this corpus under τ {temperature.canonical}; rank "
                "those of a sample: --sample N, or --socm-top-over sample"
            )
        tables.append(table)
    whole = pa.concat_tables(tables)
    places = np.stack([whole.column("row").to_numpy(), whole.column("column").to_numpy()], axis=1)
    return _Left(places, whole.column("cosine").to_numpy(), whole.column("ranking").to_numpy())


def _bound_panels(grid: Tiling, search: _Search, i: int, j: int) -> None:
    """Write the pairs of two panels that the traces cannot rule out."""
    tables = [_bound_tile(grid, search, a, b) for a in grid.panel(i) for b in grid.panel(j) if a <= b]
    grid.storage.write_table(tile(search.place, i, j), pa.concat_tables(tables))


def _bound_tile(grid: Tiling, search: _Search, i: int, j: int) -> pa.Table:
    """The pairs of two blocks that the traces cannot rule out."""
    from tempscale.second_order.bounds import survivors

    rows = blocks.read_block(grid, i)
    columns = rows if i == j else blocks.read_block(grid, j)
    bounds, (alpha, beta, means) = search.bounds, search.exponents
    places, cosines, ranking = survivors(
        rows.embeddings, search.trace[slice(*bounds[i])], columns.embeddings, search.trace[slice(*bounds[j])],
        diagonal=i == j, socm=search.thresholds["socm"], same_mean=search.thresholds["same_mean"], cosine=search.cosine,
        alpha=alpha, beta=beta, means=means,
    )  # fmt: skip
    pairs = {"row": places[:, 0] + bounds[i][0], "column": places[:, 1] + bounds[j][0]}
    return parts.BOUND_TILE.build(pairs | {"cosine": cosines, "ranking": ranking})


def _finish(scope: Embedded, temperature: Temperature, search: _Search, left: _Left, texts: np.ndarray) -> None:
    """Rule out remaining pairs by the first rows of their factors, compute and rank the others; done.json last."""
    run, model, layout, analysis = scope.run, scope.model, scope.texts, scope.analysis
    key, storage, cluster = run.key(model, temperature), run.storage, scope.cluster
    files = FactorFiles.of(run, model, temperature, _OF_LEFT)
    first, second = (np.searchsorted(texts, left.places[:, side]) for side in (0, 1))
    ids = layout.ids[texts]
    ranked: list[dict[str, Any]] = []
    searched: list[dict[str, Any]] = []
    pairs = layout.pairs
    masks = {"socm": (left.ranking & 1) > 0, "same_mean": (left.ranking & 2) > 0}
    candidates = {name: Candidates(mask, search.thresholds[name]) for name, mask in masks.items()}
    found = most_collapsed(cluster, files, PairPlaces(ids, first, second), candidates, analysis)
    for ranking in candidates:
        rows = found.best(ranking, left.cosine, Named(ids, layout.tokens[texts]), analysis.worst_pairs)
        ranked += [key | {"over": "corpus", "ranking": ranking} | row for row in rows]
        searched.append(
            key
            | {"ranking": ranking, "threshold": search.thresholds[ranking], "pairs": pairs, "texts": len(texts)}
            | {"kept_by_traces": int(masks[ranking].sum()), "kept_by_factors": int(found.remaining[ranking].sum())}
        )
    storage.write_table(f"{search.place}/socm_pairs.parquet", SOCM_PAIRS.build_rows(ranked))
    storage.write_table(f"{search.place}/socm_search.parquet", SOCM_SEARCH.build_rows(searched))
    written = [f"{search.place}/{table.name}.parquet" for table in (SOCM_PAIRS, SOCM_SEARCH)]
    storage.write_json(f"{search.place}/done.json", {"pairs": pairs, "exact": len(found.places), "files": written})
