"""The calibration card: the cosines of random pairs by the lengths of both texts, from the histograms of all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from tempscale.collapse.aggregates import BINS, CosineCells, pairs_above, percentile

PERCENTILES = (50, 90, 95, 99, 99.9)
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LEAST_PAIRS_ABOVE = 10
"""A percentile needs at least this many pairs above it."""


def rows(cells: CosineCells, edges: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of cosine_histogram without key columns: the bins that have pairs."""
    count = len(edges)
    return [
        {"interval_a": edges[a], "interval_b": edges[b], "pairs": int(cells.histogram[a, b, k])}
        | {"cosine_from": -1 + 2 * k / BINS, "cosine_to": -1 + 2 * (k + 1) / BINS}
        for a in range(count)
        for b in range(a, count)
        for k in np.flatnonzero(cells.histogram[a, b]).tolist()
    ]


def card(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Pairs, percentiles and shares above thresholds, for all pairs and for every two intervals, from cosine_histogram."""
    if table.is_empty():
        return []
    entries = [{"interval_a": None, "interval_b": None} | _figures(table)]
    for (a, b), cell in table.group_by("interval_a", "interval_b", maintain_order=True):
        entries.append({"interval_a": a, "interval_b": b} | _figures(cell))
    return entries


def query_card(table: pl.DataFrame) -> list[dict[str, Any]]:
    """The same of pairs of a query and a text, from query_cosines: for all texts and for those of every interval."""
    pairs = table.filter(pl.col("interval").is_not_null())
    return card(pairs.with_columns(interval_a=pl.col("interval"), interval_b=pl.col("interval")))


def queries_below(table: pl.DataFrame, cosine: float) -> tuple[float, int]:
    """The share of the queries whose nearest text has a smaller cosine, from query_cosines, and the number of queries."""
    nearest = histogram(table.filter(pl.col("interval").is_null()))
    queries = int(nearest.sum())
    return 1 - pairs_above(nearest, cosine) / max(1, queries), queries


def histogram(table: pl.DataFrame) -> np.ndarray:
    """The pairs in each of all bins, from rows of cosine_histogram."""
    counts = np.zeros(BINS, np.int64)
    np.add.at(counts, np.rint((table["cosine_from"].to_numpy() + 1) * BINS / 2).astype(np.int64), table["pairs"].to_numpy())
    return counts


def percentiles(counts: np.ndarray) -> dict[str, float | None]:
    """The percentiles of a histogram, by their names; None where too few pairs are above."""
    pairs = int(counts.sum())
    return {
        f"{p:g}": percentile(counts, p / 100) if pairs * (1 - p / 100) >= LEAST_PAIRS_ABOVE - 1e-9 else None
        for p in PERCENTILES
    }


def _figures(table: pl.DataFrame) -> dict[str, Any]:
    counts = histogram(table)
    pairs = int(counts.sum())
    shares = {f"{t:g}": float(counts[round((t + 1) * BINS / 2) :].sum() / pairs) for t in THRESHOLDS}
    return {"pairs": pairs, "percentiles": percentiles(counts), "share_that_reaches": shares}
