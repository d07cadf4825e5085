"""SOCM over all pairs of a sample: durable factors -> tile tasks -> partials -> the rows of the socm tables."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tempscale.collapse import tiles
from tempscale.collapse.length import interval_of
from tempscale.stats.errors import finite_population
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import is_whole, means_by_text, tile
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.runs.pace import Pace
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import factors as factor_parts
from tempscale_jobs.steps import socm_tables
from tempscale_jobs.steps.groups import method
from tempscale_jobs.steps.pair_values import Factors, every_pair
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.steps.socm_tables import Sample
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import SOCM, SOCM_PAIRS, SOCM_SCATTER
from tempscale_jobs.workers.dispatch import Piece, advance_by_finished, missing

_TILES = "partials/socm"
_GROUP_TEXTS, _GROUP_ROWS = 128, 8192
"""Most texts along one side of a super-tile, and most rows of their factors together: 13 MB at 384 dimensions."""


@dataclass(frozen=True)
class PairTiles:
    """The folder of a sample's tiles and the settings of its pairs."""

    storage: Storage
    place: str
    regularization: float

    def tile(self, i: int, j: int) -> str:
        """The file of a tile."""
        return tile(self.place, i, j)


def socm(scope: Embedded, temperature: Temperature, size: int) -> None:
    """Write the socm tables, the means by text and done.json of a sample of this size, of one model and temperature."""
    run, model, layout = scope.run, scope.model, scope.texts
    with scope.journal.stage(scope.named("SOCM", temperature), size * (size - 1) // 2, "pairs", Pace(1.0)) as stage:
        place = run.place(_TILES, model, temperature)
        if is_whole(run.storage, f"{place}/done.json"):
            pairs = int(run.storage.read_json(f"{place}/done.json")["pairs"])
            stage.advance(pairs, 1.0)
        else:
            sample = all_pairs(scope, temperature, stage)
            vectors = scope.embeddings(temperature, layout.places(sample.ids.tolist()))
            finish(scope, temperature, sample, vectors)
            pairs = len(sample.pairs())
        stage.note = f"{pairs:,} pairs, {method(scope.analysis)}"


def all_pairs(scope: Embedded, temperature: Temperature, stage: Stage) -> Sample:
    """Measure all pairs of the sample's texts, except those of finished tiles."""
    run, model, layout, analysis = scope.run, scope.model, scope.texts, scope.analysis
    names = run.storage.list(run.place(factor_parts.SAMPLED, model, temperature))
    heads = [run.storage.read_table(name, ["text_id", "tokens", "rank"]) for name in names]
    rows = [int(np.sum(head.column("rank").to_numpy())) for head in heads]
    groups = factor_parts.groups([head.num_rows for head in heads], rows, _GROUP_TEXTS, _GROUP_ROWS)
    ids = np.array([i for head in heads for i in head.column("text_id").to_pylist()], dtype=object)
    tokens = np.concatenate([head.column("tokens").to_numpy() for head in heads]).astype(np.int64)
    sizes = [sum(heads[k].num_rows for k in group) for group in groups]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist()
    tiling = PairTiles(run.storage, run.place(_TILES, model, temperature), analysis.socm_regularization)
    triangle = tiles.upper_triangle(len(groups))
    # The cost of a pair is about the product of its lengths.
    weights = [float(tokens[start:end].sum()) for start, end in pairwise(starts)]
    cost = {(i, j): weights[i] * weights[j] / (2 if i == j else 1) for i, j in triangle}
    total_cost = sum(cost.values())
    sides = [
        TileSide(number, [names[k] for k in group], start)
        for number, (group, start) in enumerate(zip(groups, starts, strict=False))
    ]  # fmt: skip
    every = [
        Piece(
            (i, j), (tiling, sides[i], sides[j]), f"tile {i}, {j}", (tiling.tile(i, j),),
            sizes[i] * (sizes[i] - 1) // 2 if i == j else sizes[i] * sizes[j], cost[i, j] / total_cost,
        )
        for i, j in triangle
    ]  # fmt: skip
    left = missing(run.storage, every)
    advance_by_finished(stage, every, left)
    for piece in scope.crew.call(factor_tile, left, socm=not tiling.regularization):
        stage.advance(piece.size, piece.cost)
    return assemble(tiling, triangle, PairedTexts(ids, tokens, interval_of(tokens, layout.edges)), analysis)


class TileSide(NamedTuple):
    """The texts along one side of a tile."""

    number: int
    files: list[str]
    """The parts of their factors."""
    first: int
    """The number of the first text."""


def factor_tile(tiling: PairTiles, rows: TileSide, columns: TileSide, device: str = "cpu") -> None:
    """Compute one super-tile on a device and write its pairs row < column."""
    import torch

    torch.set_num_threads(1)
    sides = [rows] if rows.number == columns.number else [rows, columns]
    texts = [Factors(*factor_parts.read(tiling.storage.root, tuple(side.files))[1:]).on(device) for side in sides]
    pairs = every_pair(texts[0], None if len(texts) == 1 else texts[1], tiling.regularization)
    values = {"row": rows.first + pairs.row, "column": columns.first + pairs.column}
    values |= {"d_mu": pairs.d_mu, "d_sigma": pairs.d_sigma}
    tiling.storage.write_table(tiling.tile(rows.number, columns.number), parts.SOCM_TILE.build(values))


class PairedTexts(NamedTuple):
    """The texts of the tiles."""

    ids: np.ndarray
    tokens: np.ndarray
    interval: np.ndarray


def assemble(tiling: PairTiles, triangle: list[tuple[int, int]], texts: PairedTexts, analysis: Analysis) -> Sample:
    """Join the tiles and check that no pair is missing."""
    import torch

    from tempscale.second_order.socm import socm_value

    n = len(texts.ids)
    matrices = {name: np.full((n, n), np.nan) for name in ("d_mu", "d_sigma")}
    for i, j in triangle:
        table = tiling.storage.read_table(tiling.tile(i, j))
        row, column = table.column("row").to_numpy(), table.column("column").to_numpy()
        for name, matrix in matrices.items():
            matrix[row, column] = matrix[column, row] = table.column(name).to_numpy()
    missing = int(np.isnan(matrices["d_sigma"]).sum()) - n
    if missing:
        raise IncompleteRun(f"d_Σ of {count(missing // 2, 'pair')} is missing or no number; start over with --fresh")
    d_mu, d_sigma = torch.from_numpy(matrices["d_mu"]), torch.from_numpy(matrices["d_sigma"])
    value = socm_value(d_mu, d_sigma, analysis.socm_alpha, analysis.socm_beta).numpy()
    np.fill_diagonal(value, np.nan)  # x**0 is 1 even where x is not a number.
    return Sample(*texts, matrices["d_mu"], matrices["d_sigma"], value)


def finish(scope: Embedded, temperature: Temperature, sample: Sample, vectors: np.ndarray) -> None:
    """Write the tables of one model and temperature; done.json last."""
    run, layout, analysis, n = scope.run, scope.texts, scope.analysis, len(sample.ids)
    place, key = run.place(_TILES, scope.model, temperature), run.key(scope.model, temperature)
    overall_correction = finite_population(n, layout.population(len(layout)))
    correction = np.full(len(layout.edges), overall_correction)
    upper = np.triu_indices(n, 1)
    places, exact = layout.places(sample.ids.tolist()), not analysis.socm_regularization
    documents = None if layout.documents is None else layout.documents[places]
    tables = (
        (SOCM, socm_tables.cells(layout.edges, sample, correction, exact, documents)),
        (SOCM_PAIRS, socm_tables.ranked(sample, vectors, analysis.worst_pairs)),
        (SOCM_SCATTER, socm_tables.scatter(sample.d_mu[upper], sample.d_sigma[upper], scope.config.seed)),
    )
    for table, rows in tables:
        run.storage.write_table(f"{place}/{table.name}.parquet", table.build_rows([key | row for row in rows]))
    pairs = sample.pairs()
    summary: dict[str, Any] = {"way": "sample", "texts": n, "pairs": len(pairs), "socm_mean": socm_tables.mean(pairs)}
    summary |= {"socm_over_1_share": float((pairs > 1).mean()) if len(pairs) else None}
    groups = np.array(layout.edges)[sample.interval]
    columns = {"text_id": sample.ids, "group": groups, "inside": sample.inside(), "overall": sample.overall()}
    columns["document"] = layout.documents_of(places)
    run.storage.write_table(means_by_text(place), parts.TEXT_MEANS.build(columns))
    files = [*(f"{place}/{table.name}.parquet" for table, _ in tables), means_by_text(place)]
    run.storage.write_json(f"{place}/done.json", summary | {"correction": overall_correction, "files": files})
