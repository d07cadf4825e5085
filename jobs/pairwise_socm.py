"""SOCM over all pairs of the sample: tile tasks over the durable factors -> partials -> the rows of the socm tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from jobs import schema
from jobs.engine import Cluster, results
from jobs.errors import IncompleteRun
from jobs.layout import Layout, folder
from jobs.runs import Model, Run
from jobs.storage import Storage
from tempscale import tiles
from tempscale.length import between_error, finite_population, interval_of, within_error
from tempscale.temperature import Temperature

_PARTS = 2
"""Parts of factors/ along one side of a super-tile: 64 texts."""
_SAME_MEAN_SHARE = 0.01
_SCATTER_PAIRS, _SCATTER_BINS = 20_000, 64


@dataclass(frozen=True)
class _Sample:
    """The texts of the sample and all their pairs: symmetric matrices, NaN on the diagonal."""

    ids: np.ndarray
    tokens: np.ndarray
    d_mu: np.ndarray
    d_sigma: np.ndarray
    value: np.ndarray


def socm(
    run: Run, cluster: Cluster, model: Model, temperature: Temperature, layout: Layout, on_pairs: Callable[[int], None]
) -> None:
    """Leave the socm tables, text_means and done.json of one model and temperature below partials/socm.

    Raises:
        IncompleteRun: a task failed for good.
    """
    import ray

    place = folder(run, "socm", model, temperature)
    parts = run.storage.list(run.place("factors", model, temperature))
    groups = [parts[start : start + _PARTS] for start in range(0, len(parts), _PARTS)]
    heads = [[run.storage.read_table(name, ["text_id", "tokens"]) for name in group] for group in groups]
    sizes = [sum(head.num_rows for head in group) for group in heads]
    ids = np.array([i for group in heads for head in group for i in head.column("text_id").to_pylist()], dtype=object)
    tokens = np.array([t for group in heads for head in group for t in head.column("tokens").to_pylist()], dtype=np.int64)
    if run.storage.exists(f"{place}/done.json"):
        on_pairs(len(ids) * (len(ids) - 1) // 2)
        return
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    pairs = {
        (i, j): sizes[i] * (sizes[i] - 1) // 2 if i == j else sizes[i] * sizes[j]
        for i, j in tiles.upper_triangle(len(groups))
    }
    missing = []
    for tile, count in pairs.items():
        if run.storage.exists(_name(place, *tile)):
            on_pairs(count)
        else:
            missing.append(tile)
    task = ray.remote(_tile)
    submit = lambda t: task.remote(  # noqa: E731
        run.storage, _name(place, *t), groups[t[0]], groups[t[1]], int(starts[t[0]]), int(starts[t[1]])
    )
    # The longest texts are last and cost most: begun first, they do not leave the other workers idle at the end.
    for tile, _ in results(cluster, submit, missing[::-1]):
        on_pairs(pairs[tile])
    sample = _assemble(run.storage, [_name(place, *tile) for tile in pairs], ids, tokens)
    _finish(run, place, run.key(model, temperature), layout, sample)


def _name(place: str, i: int, j: int) -> str:
    return f"{place}/tile-{i:05d}-{j:05d}.parquet"


def _tile(storage: Storage, name: str, rows: list[str], columns: list[str], row_start: int, column_start: int) -> None:
    """Compute one super-tile, part by part, and leave its pairs row < column."""
    import torch

    from tempscale.socm import socm_tile

    torch.set_num_threads(1)
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
    first_row = row_start
    for row_part in rows:
        row_means, row_factors = _load(storage, row_part)
        first_column = column_start
        for column_part in columns:
            column_means, column_factors = _load(storage, column_part)
            if first_row <= first_column:
                tile = socm_tile(row_means, row_factors, column_means, column_factors)
                row, column = np.meshgrid(
                    first_row + np.arange(len(row_factors)), first_column + np.arange(len(column_factors)), indexing="ij"
                )
                kept = row < column
                found.append((row[kept], column[kept], tile.d_mu.numpy()[kept], tile.d_sigma.numpy()[kept]))
            first_column += len(column_factors)
        first_row += len(row_factors)
    columns_of = [np.concatenate(values) for values in zip(*found, strict=True)]
    storage.write_table(
        name, schema.SOCM_TILE.build(dict(zip(("row", "column", "d_mu", "d_sigma"), columns_of, strict=True)))
    )


@lru_cache(maxsize=2 * _PARTS)
def _cached(root: str, part: str) -> Any:
    import torch

    table = Storage(root).read_table(part)
    means = table.column("mean").combine_chunks()
    dim = len(means[0])
    factors = [np.asarray(f.values).reshape(-1, dim) for f in table.column("factor")]
    return torch.tensor(means.flatten().to_numpy().reshape(-1, dim)), [torch.tensor(f) for f in factors]


def _load(storage: Storage, part: str) -> Any:
    """Unit means and factors of one durable part."""
    return _cached(storage.root, part)


def _assemble(storage: Storage, names: list[str], ids: np.ndarray, tokens: np.ndarray) -> _Sample:
    """Put the tiles together; every pair must have come once."""
    n = len(ids)
    d_mu, d_sigma = np.full((n, n), np.nan), np.full((n, n), np.nan)
    for name in names:
        table = storage.read_table(name)
        row, column = table.column("row").to_numpy(), table.column("column").to_numpy()
        for whole, values in ((d_mu, table.column("d_mu")), (d_sigma, table.column("d_sigma"))):
            whole[row, column] = whole[column, row] = values.to_numpy()
    missing = int(np.isnan(d_sigma).sum()) - n
    if missing:
        raise IncompleteRun(f"{missing // 2} values of d_Σ are missing or not a number; start over with --fresh")
    return _Sample(ids, tokens, d_mu, d_sigma, (1 - d_mu) * d_sigma)


def _finish(run: Run, place: str, key: dict[str, Any], layout: Layout, sample: _Sample) -> None:
    """Write the tables of one model and temperature; done.json last."""
    interval = interval_of(sample.tokens, layout.edges)
    n, value = len(sample.ids), sample.value
    correction = finite_population(n, layout.population(len(layout)))
    tables = (
        (schema.SOCM, _cells(layout.edges, interval, sample, correction)),
        (schema.SOCM_PAIRS, _ranked(sample, run.config.analysis.worst_pairs)),
        (schema.SOCM_SCATTER, _scatter(sample, run.config.seed)),
    )
    for table, rows in tables:
        run.storage.write_table(f"{place}/{table.name}.parquet", table.build_rows([key | row for row in rows]))
    overall = np.array([_mean(value[k]) for k in range(n)], dtype=float)
    inside = np.array([_mean(value[k, interval == interval[k]]) for k in range(n)], dtype=float)
    columns = {"text_id": sample.ids, "group": np.array(layout.edges)[interval], "inside": inside, "overall": overall}
    run.storage.write_table(f"{place}/text_means.parquet", schema.TEXT_MEANS.build(columns))
    pairs = value[np.triu_indices(n, 1)]
    over = float((pairs > 1).mean()) if len(pairs) else None
    summary = {"texts": n, "pairs": len(pairs), "socm_mean": _mean(pairs), "socm_over_1_share": over}
    run.storage.write_json(f"{place}/done.json", summary | {"correction": correction})


def _mean(values: np.ndarray) -> float | None:
    """The mean of what is a number; None where nothing is."""
    kept = values[~np.isnan(values)]
    return float(kept.mean()) if len(kept) else None


def _cells(edges: tuple[int, ...], interval: np.ndarray, sample: _Sample, correction: float) -> list[dict[str, Any]]:
    """One row a cell of length intervals."""
    rows = []
    present = np.unique(interval).tolist()
    for a in present:
        for b in [k for k in present if k >= a]:
            here = np.ix_(interval == a, interval == b)
            block = sample.value[here]
            kept = np.triu(np.ones_like(block, dtype=bool), 1) if a == b else np.ones_like(block, dtype=bool)
            found = block[kept]
            if not len(found):
                continue
            error = _error(block, a == b)
            rows.append(
                {"interval_a": edges[a], "interval_b": edges[b], "pairs": len(found)}
                | {
                    "d_mu_mean": float(sample.d_mu[here][kept].mean()),
                    "d_sigma_mean": float(sample.d_sigma[here][kept].mean()),
                }
                | {"socm_mean": float(found.mean()), "socm_se": None if error is None else error * correction}
                | {"socm_se_superpopulation": error, "socm_over_1_share": float((found > 1).mean()), "exact": True}
                | {"socm_p50": float(np.quantile(found, 0.5)), "socm_p95": float(np.quantile(found, 0.95))}
            )
    return rows


def _error(block: np.ndarray, inside: bool) -> float | None:
    """Standard error of the mean of a cell from per-text means; None where too few texts tell."""
    texts_a, texts_b = block.shape
    if inside:
        return within_error(np.nanmean(block, axis=1).var(ddof=1), texts_a) if texts_a > 2 else None
    if texts_a < 2 or texts_b < 2:
        return None
    return between_error(block.mean(1).var(ddof=1), texts_a, block.mean(0).var(ddof=1), texts_b)


def _ranked(sample: _Sample, size: int) -> list[dict[str, Any]]:
    """The pairs of largest SOCM, and of largest d_Σ among the hundredth of pairs with the highest cosine; ties by id."""
    rows: list[dict[str, Any]] = []
    row, column = np.triu_indices(len(sample.ids), 1)
    if not len(row):
        return rows
    distance = sample.d_mu[row, column]
    closest = distance <= np.quantile(distance, _SAME_MEAN_SHARE)
    for ranking, scores, kept in (("socm", sample.value, slice(None)), ("same_mean", sample.d_sigma, closest)):
        pairs = np.stack([row[kept], column[kept]], axis=1)
        score = scores[pairs[:, 0], pairs[:, 1]]
        last = min(size, len(score))
        # All that tie with the last place are sorted by id before the list is cut.
        candidates = np.flatnonzero(score >= np.partition(score, -last)[-last])
        named = (sorted(pairs[k].tolist(), key=lambda text: str(sample.ids[text])) for k in candidates)
        ordered = sorted(
            (-score[k], sample.ids[a], sample.ids[b], a, b) for k, (a, b) in zip(candidates, named, strict=True)
        )
        for place, (_, first, second, a, b) in enumerate(ordered[:size], start=1):
            rows.append(
                {"ranking": ranking, "rank": place, "text_id_a": first, "text_id_b": second}
                | {"tokens_a": int(sample.tokens[a]), "tokens_b": int(sample.tokens[b]), "d_mu": float(sample.d_mu[a, b])}
                | {"d_sigma": float(sample.d_sigma[a, b]), "socm": float(sample.value[a, b])}
            )
    return rows


def _scatter(sample: _Sample, seed: int) -> list[dict[str, Any]]:
    """Occupied bins of the (d_μ, d_Σ) plane, then seeded pairs."""
    upper = np.triu_indices(len(sample.ids), 1)
    x, y = sample.d_mu[upper], sample.d_sigma[upper]
    if not len(x):
        return []
    # The last bin's upper edge lies a little above the largest value, which so falls inside.
    limits = [[0.0, max(1e-9, float(values.max())) * (1 + 1e-9)] for values in (x, y)]
    counts, x_edges, y_edges = np.histogram2d(x, y, bins=_SCATTER_BINS, range=limits)
    widths = {"d_mu_width": float(x_edges[1]), "d_sigma_width": float(y_edges[1])}
    bins = [
        {"kind": "bin", "d_mu": float(x_edges[i]), "d_sigma": float(y_edges[j]), "pairs": int(counts[i, j])} | widths
        for i, j in zip(*np.nonzero(counts), strict=True)
    ]
    chosen = np.sort(np.random.default_rng(seed).permutation(len(x))[:_SCATTER_PAIRS])
    one = {"kind": "pair", "d_mu_width": 0.0, "d_sigma_width": 0.0, "pairs": 1}
    return bins + [one | {"d_mu": float(x[k]), "d_sigma": float(y[k])} for k in chosen]
