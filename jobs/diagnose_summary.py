"""What the looks left, put together: the tables of `tempscale diagnose`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from jobs import text_map
from jobs.diagnose_config import DiagnoseConfig
from jobs.diagnose_schema import (
    FINDINGS,
    HEADS,
    KINDS,
    LAYER_SUMMARY,
    LAYERS,
    MAP,
    PAIR_PARTS,
    REPEATED,
    REPEATED_PARTS,
    SPECTRUM,
    TWO_TEXTS,
)
from jobs.runs import Model, RunOf
from jobs.schema import Table
from tempscale.length import interval_of, within_error
from tempscale.temperature import Temperature

FEWEST = 5
"""Texts that an interval needs to stand for the short or for the long ones."""


def summarise(run: RunOf[DiagnoseConfig]) -> dict[str, pa.Table]:
    """Write the tables of the run; returns them by name."""
    found: dict[str, list[pa.Table]] = {}
    for model in run.models:
        before: pl.DataFrame | None = None
        for temperature in run.temperatures:
            layers, heads, seen = (_parts(run, kind, model, temperature) for kind in KINDS)
            by_text = heads.group_by("text_id", maintain_order=True).agg(pl.col("sigma_a").mean())
            before = by_text if before is None else before
            key = run.key(model, temperature)
            rows: list[tuple[Table, list[dict[str, Any]]]] = [
                (SPECTRUM, _spectrum(heads, seen)), (LAYER_SUMMARY, _layer_summary(layers)),
                (FINDINGS, _findings(by_text, before, seen)), (REPEATED, _repeated(run, model, temperature)),
                (MAP, text_map.rows(seen, run.config.seed)),
            ]  # fmt: skip
            for table, own in ((LAYERS, layers.drop("interval")), (HEADS, heads.drop("interval"))):
                found.setdefault(table.name, []).append(_keyed(table, own, key))
            pair = run.part(PAIR_PARTS, model, temperature, 0)
            if run.storage.exists(pair):
                rows.append((TWO_TEXTS, run.storage.read_table(pair).to_pylist()))
            for table, each in rows:
                found.setdefault(table.name, []).append(table.build_rows([key | row for row in each]))
    tables = {name: pa.concat_tables(parts) for name, parts in found.items()}
    for name, table in tables.items():
        run.storage.write_table(f"tables/{name}.parquet", table)
    return tables


def _parts(run: RunOf[DiagnoseConfig], kind: str, model: Model, temperature: Temperature) -> pl.DataFrame:
    """All parts of a kind, with each text's length interval, by text, layer and head."""
    names = run.storage.list(run.place(kind, model, temperature))
    table = pl.DataFrame(pl.from_arrow(pa.concat_tables([run.storage.read_table(name) for name in names])))
    edges = run.config.diagnosis.intervals
    interval = np.asarray(edges)[interval_of(table["tokens"].to_numpy().astype(np.int64), edges)]
    order = [name for name in ("text_id", "layer", "head") if name in table.columns]
    return table.with_columns(pl.Series("interval", interval, dtype=pl.Int32)).sort(order)


def _keyed(table: Table, rows: pl.DataFrame, key: dict[str, Any]) -> pa.Table:
    types = table.schema()
    columns = {name: pa.repeat(pa.scalar(value, types.field(name).type), len(rows)) for name, value in key.items()}
    arrow = rows.to_arrow()
    return table.build(columns | {name: arrow.column(name).cast(types.field(name).type) for name in arrow.column_names})


def _spectrum(heads: pl.DataFrame, seen: pl.DataFrame) -> list[dict[str, Any]]:
    """A row for each length interval that has a text."""
    rows = []
    for (interval,), texts in seen.group_by("interval", maintain_order=True):
        mine = heads.filter(pl.col("interval") == interval)
        each = mine.group_by("text_id", maintain_order=True).agg(pl.col("sigma_a", "sigma_s", "sigma_a_bound").mean())
        own, words = (_resemblance(np.stack(texts[name].to_list())) for name in ("embedding", "words"))
        rows.append(
            {
                "interval": interval, "texts": len(texts), "tokens_mean": _mean(texts["tokens"]),
                "sigma_a_mean": _mean(each["sigma_a"]), "sigma_a_se": _error(each["sigma_a"]),
                "sigma_s_mean": _mean(each["sigma_s"]), "sigma_a_bound_mean": _mean(each["sigma_a_bound"]),
                "over_bound_share": float((mine["sigma_a"] > mine["sigma_a_bound"]).to_numpy().mean()),
                "cosine_mean": own[0], "cosine_se": own[1], "words_cosine_mean": words[0], "words_cosine_se": words[1],
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: row["interval"])


def _resemblance(vectors: np.ndarray) -> tuple[float | None, float | None]:
    """Mean cosine between unit vectors over all pairs, and its standard error; None where there are too few."""
    n = len(vectors)
    if n < 2:
        return None, None
    vectors = vectors.astype(np.float64)
    means = (vectors @ vectors.sum(0) - (vectors * vectors).sum(1)) / (n - 1)
    return float(means.mean()), _finite(within_error(float(means.var(ddof=1)), n)) if n > 2 else None


def _layer_summary(layers: pl.DataFrame) -> list[dict[str, Any]]:
    """A row for each layer over all texts, and for each layer and interval."""
    names = [column.removesuffix("_mean") for column in LAYER_SUMMARY.schema().names if column.endswith("_mean")]
    names = [name if name in layers.columns else f"{name}_mean" for name in names]
    over_all = layers.with_columns(pl.lit(None, pl.Int32).alias("interval"))
    rows = []
    for (layer, interval), own in pl.concat([over_all, layers]).group_by("layer", "interval", maintain_order=True):
        row: dict[str, Any] = {"layer": layer, "interval": interval, "texts": len(own)}
        row |= {f"{name}_mean": _mean(own[name]) for name in names}
        rows.append(row | {f"{name}_se": _error(own[name]) for name in names})
    return sorted(rows, key=lambda row: (row["interval"] is not None, row["interval"] or 0, row["layer"]))


def _findings(by_text: pl.DataFrame, before: pl.DataFrame, seen: pl.DataFrame) -> list[dict[str, Any]]:
    """What the measurement says: whether σ_a falls with length, and what this temperature changes in it."""
    rows = []
    mine = seen.select("text_id", "interval").join(by_text, on="text_id", maintain_order="left")
    counts = mine.group_by("interval").len().filter(pl.col("len") >= FEWEST)["interval"].sort().to_list()
    if len(counts) >= 2:
        short, long = (mine.filter(pl.col("interval") == edge)["sigma_a"].to_numpy() for edge in (counts[0], counts[-1]))
        error = math.sqrt(short.var(ddof=1) / len(short) + long.var(ddof=1) / len(long))
        rows.append(
            {
                "finding": "length",
                "texts": len(short) + len(long),
                "change": float(long.mean() - short.mean()),
                "change_se": error,
            }
        )
    difference = by_text["sigma_a"] - before["sigma_a"]
    changed = {
        "finding": "temperature",
        "texts": len(difference),
        "change": _mean(difference),
        "change_se": _error(difference),
    }
    return [*rows, changed]


def _repeated(run: RunOf[DiagnoseConfig], model: Model, temperature: Temperature) -> list[dict[str, Any]]:
    names = run.storage.list(run.place(REPEATED_PARTS, model, temperature))
    tables = [pl.DataFrame(pl.from_arrow(run.storage.read_table(name))) for name in names]
    return [
        {
            "tokens": int(table["tokens"][0]), "pairs": len(table), "cosine_mean": _mean(table["cosine"]),
            "cosine_se": _error(table["cosine"]),
        }
        for table in tables
    ]  # fmt: skip


def _mean(values: pl.Series) -> float | None:
    return _finite(values.to_numpy().astype(np.float64).mean()) if len(values.drop_nulls()) == len(values) > 0 else None


def _error(values: pl.Series) -> float | None:
    """The standard error of the mean over texts; None for one of them."""
    known = values.drop_nulls().to_numpy()
    return _finite(known.std(ddof=1) / math.sqrt(len(known))) if len(known) > 1 else None


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
