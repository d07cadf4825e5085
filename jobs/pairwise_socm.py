"""SOCM over all pairs of the sample: tile tasks over the durable factors -> partials -> the rows of the socm tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from jobs import schema
from jobs.engine import Cluster, results
from jobs.layout import Layout, folder
from jobs.runs import Model, Run
from jobs.storage import Storage
from tempscale import tiles
from tempscale.length import between_error, finite_population, interval_of, within_error
from tempscale.temperature import Temperature

_PARTS = 4
"""Parts of factors/ along one side of a super-tile: 128 texts."""
_SAME_MEAN_SHARE = 0.01
_SCATTER_PAIRS, _SCATTER_BINS = 20_000, 64


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
    pairs = {(i, j): sizes[i] * (sizes[i] - 1) // 2 if i == j else sizes[i] * sizes[j] for i, j in tiles.upper_triangle(len(groups))}
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
    for tile, _ in results(cluster, submit, missing):
        on_pairs(pairs[tile])
    d_mu, d_sigma = _assemble(run.storage, [_name(place, *tile) for tile in pairs], len(ids))
    _finish(run, place, run.key(model, temperature), layout, ids, tokens, d_mu, d_sigma)


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
    storage.write_table(name, schema.SOCM_TILE.build(dict(zip(("row", "column", "d_mu", "d_sigma"), columns_of, strict=True))))


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


def _assemble(storage: Storage, names: list[str], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric (n, n) matrices of d_μ and d_Σ with NaN on the diagonal; every pair must have come once."""
    d_mu, d_sigma = np.full((n, n), np.nan), np.full((n, n), np.nan)
    for name in names:
        table = storage.read_table(name)
        row, column = table.column("row").to_numpy(), table.column("column").to_numpy()
        for whole, values in ((d_mu, table.column("d_mu")), (d_sigma, table.column("d_sigma"))):
            whole[row, column] = whole[column, row] = values.to_numpy()
    if np.isnan(d_sigma).sum() != n:
        raise AssertionError(f"{int(np.isnan(d_sigma).sum() - n)} values of d_Σ are missing or not a number")
    return d_mu, d_sigma


def _finish(
    run: Run, place: str, key: dict[str, Any], layout: Layout, ids: np.ndarray, tokens: np.ndarray, d_mu: np.ndarray, d_sigma: np.ndarray
) -> None:  # fmt: skip
    """Write the tables of one model and temperature; done.json last."""
    value = (1 - d_mu) * d_sigma
    interval = interval_of(tokens, layout.edges)
    n = len(ids)
    correction = finite_population(n, layout.population(len(layout)))
    upper = np.triu(np.ones((n, n), dtype=bool), 1)
    run.storage.write_table(
        f"{place}/socm.parquet", schema.SOCM.build_rows(_cells(key, layout.edges, interval, d_mu, d_sigma, value, correction))
    )
    pairs = _ranked(run, key, ids, tokens, d_mu, d_sigma, value)
    run.storage.write_table(f"{place}/socm_pairs.parquet", schema.SOCM_PAIRS.build_rows(pairs))
    scatter = _scatter(run.config.seed, key, ids, d_mu, d_sigma, upper)
    run.storage.write_table(f"{place}/socm_scatter.parquet", schema.SOCM_SCATTER.build_rows(scatter))
    overall = np.nanmean(value, axis=1) if n > 1 else np.full(n, np.nan)
    inside = np.array([_mean(value[k, interval == interval[k]]) for k in range(n)])
    columns = {"text_id": ids, "group": np.array(layout.edges)[interval], "inside": inside, "overall": overall}
    run.storage.write_table(f"{place}/text_means.parquet", schema.TEXT_MEANS.build(columns))
    all_pairs = value[upper]
    summary = {"texts": n, "pairs": len(all_pairs), "socm_mean": _mean(all_pairs), "socm_over_1_share": _mean(all_pairs > 1)}
    run.storage.write_json(f"{place}/done.json", summary | {"correction": correction})


def _mean(values: np.ndarray) -> float | None:
    kept = values[~np.isnan(values)] if values.dtype != bool else values
    return float(kept.mean()) if len(kept) else None


def _cells(
    key: dict[str, Any], edges: tuple[int, ...], interval: np.ndarray, d_mu: np.ndarray, d_sigma: np.ndarray, value: np.ndarray,
    correction: float,
) -> list[dict[str, Any]]:  # fmt: skip
    rows = []
    present = [k for k in range(len(edges)) if (interval == k).any()]
    for a in present:
        for b in [k for k in present if k >= a]:
            here = np.ix_(interval == a, interval == b)
            kept = np.triu(np.ones_like(value[here], dtype=bool), 1) if a == b else np.ones_like(value[here], dtype=bool)
            found = value[here][kept]
            if not len(found):
                continue
            error = _error(value[here], a == b)
            rows.append(
                key
                | {"interval_a": edges[a], "interval_b": edges[b], "pairs": len(found)}
                | {"d_mu_mean": float(d_mu[here][kept].mean()), "d_sigma_mean": float(d_sigma[here][kept].mean())}
                | {"socm_mean": float(found.mean()), "socm_se": None if error is None else error * correction}
                | {"socm_se_superpopulation": error, "socm_over_1_share": float((found > 1).mean()), "exact": True}
                | {"socm_p50": float(np.quantile(found, 0.5)), "socm_p95": float(np.quantile(found, 0.95))}
            )
    return rows


def _error(block: np.ndarray, inside: bool) -> float | None:
    """Standard error of the mean of a cell from per-text means; None where too few texts tell."""
    texts_a, texts_b = block.shape
    if inside:
        if texts_a < 3:
            return None
        return float(within_error(np.nanmean(block, axis=1).var(ddof=1), texts_a))
    if texts_a < 2 or texts_b < 2:
        return None
    rows, columns = block.mean(1), block.mean(0)
    return float(between_error(rows.var(ddof=1), np.array(texts_a), columns.var(ddof=1), np.array(texts_b)))


def _ranked(
    run: Run, key: dict[str, Any], ids: np.ndarray, tokens: np.ndarray, d_mu: np.ndarray, d_sigma: np.ndarray, value: np.ndarray
) -> list[dict[str, Any]]:  # fmt: skip
    """The pairs of largest SOCM, and of largest d_Σ among the hundredth of pairs with the highest cosine; ties by id."""
    rows: list[dict[str, Any]] = []
    row, column = np.triu_indices(len(ids), 1)
    if not len(row):
        return rows
    closest = d_mu[row, column] <= np.quantile(d_mu[row, column], _SAME_MEAN_SHARE)
    for ranking, scores, kept in (("socm", value, slice(None)), ("same_mean", d_sigma, closest)):
        i, j = row[kept], column[kept]
        score = scores[i, j]
        size = min(run.config.analysis.worst_pairs, len(score))
        # All that tie with the last place are sorted by id before the list is cut.
        candidates = np.flatnonzero(score >= np.partition(score, -size)[-size])
        ordered = sorted((-score[k], *sorted((ids[i[k]], ids[j[k]])), k) for k in candidates)
        for place, (_, first, second, k) in enumerate(ordered[:size], start=1):
            a, b = (i[k], j[k]) if ids[i[k]] == first else (j[k], i[k])
            rows.append(
                key
                | {"ranking": ranking, "rank": place, "text_id_a": first, "text_id_b": second}
                | {"tokens_a": int(tokens[a]), "tokens_b": int(tokens[b]), "d_mu": float(d_mu[a, b])}
                | {"d_sigma": float(d_sigma[a, b]), "socm": float(value[a, b])}
            )
    return rows


def _scatter(
    seed: int, key: dict[str, Any], ids: np.ndarray, d_mu: np.ndarray, d_sigma: np.ndarray, upper: np.ndarray
) -> list[dict[str, Any]]:
    """Occupied bins of the (d_μ, d_Σ) plane, then seeded pairs."""
    x, y = d_mu[upper], d_sigma[upper]
    if not len(x):
        return []
    tallest = max(1e-9, float(y.max())) * (1 + 1e-9)
    counts, x_edges, y_edges = np.histogram2d(x, y, bins=_SCATTER_BINS, range=[[0, max(1e-9, float(x.max())) * (1 + 1e-9)], [0, tallest]])
    widths = {"d_mu_width": float(x_edges[1]), "d_sigma_width": float(y_edges[1])}
    rows = [
        key | {"kind": "bin", "d_mu": float(x_edges[i]), "d_sigma": float(y_edges[j]), "pairs": int(counts[i, j])} | widths
        for i, j in zip(*np.nonzero(counts), strict=True)
    ]
    chosen = np.sort(np.random.default_rng(seed).permutation(len(x))[:_SCATTER_PAIRS])
    none = {"d_mu_width": 0.0, "d_sigma_width": 0.0, "pairs": 1}
    return rows + [key | {"kind": "pair", "d_mu": float(x[k]), "d_sigma": float(y[k])} | none for k in chosen]
