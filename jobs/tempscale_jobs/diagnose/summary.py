"""Partial tables of the steps -> the tables of `tempscale diagnose`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tempscale.collapse.length import interval_of
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.diagnose import findings
from tempscale_jobs.diagnose.findings import Looked, error, mean, resemblance
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.columns import Table
from tempscale_jobs.tables.diagnose import (
    EQUAL_NORMS,
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


def summarise(
    run: Run, edges: Sequence[int], seed: int, document_of: Mapping[str, str], sources: Mapping[str, int]
) -> dict[str, pa.Table]:
    """Write the tables of the run; returns them by name.

    `document_of` is the document of which a text is a version; `sources` that of which it is a part, for errors.
    """
    table_parts: dict[str, list[pa.Table]] = {}
    base: dict[Temperature, Looked] = {}
    for model in run.models:
        first: Looked | None = None
        for temperature in run.temperatures:
            layers, heads, seen = (
                _parts(run.storage, run.place(kind, model, temperature), edges, sources) for kind in KINDS
            )
            if seen.is_empty():
                raise UsageError(f"model {model.label} gives no finite embedding for any text that was looked into")
            last = layers.filter(pl.col("layer") == layers["layer"].max())
            at_end = pl.col("layer") == pl.col("layer").max()
            by_text = heads.group_by("text_id", maintain_order=True).agg(
                pl.col("source").first(), all=pl.col("sigma_a").mean(), last=pl.col("sigma_a").filter(at_end).mean()
            )
            looked = Looked(by_text, last.select("text_id", "source", "within_cosine"), seen)
            first = looked if first is None else first
            rows_of_findings = findings.rows(looked, first, base.setdefault(temperature, looked), document_of)
            documents = [document_of.get(text_id) for text_id in seen["text_id"]]
            placed = findings.map_rows(seen.with_columns(pl.Series("document", documents, pl.String)), seed)
            rows: list[tuple[Table, list[dict[str, Any]]]] = [
                (SPECTRUM, _spectrum(heads, seen)), (LAYER_SUMMARY, _layer_summary(layers)), (FINDINGS, rows_of_findings),
                (EQUAL_NORMS, [findings.equal_norms(seen)]), (REPEATED, _repeated(run, model, temperature)), (MAP, placed),
            ]  # fmt: skip
            key = run.key(model, temperature)
            for table, frame in ((LAYERS, layers.drop("interval", "source")), (HEADS, heads.drop("interval", "source"))):
                table_parts.setdefault(table.name, []).append(_keyed(table, frame, key))
            pair = run.part(PAIR_PARTS, model, temperature, 0)
            if run.storage.exists(pair):
                rows.append((TWO_TEXTS, run.storage.read_table(pair).to_pylist()))
            for table, table_rows in rows:
                table_parts.setdefault(table.name, []).append(table.build_rows([key | row for row in table_rows]))
    tables = {name: pa.concat_tables(parts) for name, parts in table_parts.items()}
    frames = {name: pl.DataFrame(pl.from_arrow(tables[name])) for name in (FINDINGS.name, HEADS.name, EQUAL_NORMS.name)}
    tables["findings"] = findings.decide(frames).table()
    for name, table in tables.items():
        run.storage.write_table(f"tables/{name}.parquet", table)
    return tables


def _parts(storage: Storage, place: str, edges: Sequence[int], sources: Mapping[str, int]) -> pl.DataFrame:
    """All parts in a folder with each text's length interval and document, sorted by text, layer and head."""
    table = pl.DataFrame(pl.from_arrow(pa.concat_tables([storage.read_table(name) for name in storage.list(place)])))
    interval = np.asarray(edges)[interval_of(table["tokens"].to_numpy().astype(np.int64), edges)]
    order = [name for name in ("text_id", "layer", "head") if name in table.columns]
    source = pl.Series("source", [sources.get(text_id) for text_id in table["text_id"]], pl.Int64)
    return table.with_columns(pl.Series("interval", interval, dtype=pl.Int32), source).sort(order)


def _keyed(table: Table, rows: pl.DataFrame, key: dict[str, Any]) -> pa.Table:
    types = table.schema()
    columns = {name: pa.repeat(pa.scalar(value, types.field(name).type), len(rows)) for name, value in key.items()}
    arrow = rows.to_arrow()
    return table.build(columns | {name: arrow.column(name).cast(types.field(name).type) for name in arrow.column_names})


def _spectrum(heads: pl.DataFrame, seen: pl.DataFrame) -> list[dict[str, Any]]:
    """One row per length interval that has texts."""
    rows = []
    for (interval,), texts in seen.group_by("interval", maintain_order=True):
        mine = heads.filter(pl.col("interval") == interval)
        row = {"interval": interval, "texts": len(texts), "tokens_mean": mean(texts["tokens"])}
        for end, subset in (("_last", mine.filter(pl.col("layer") == mine["layer"].max())), ("", mine)):
            means = pl.col("sigma_a", "sigma_s", "sigma_a_bound").mean()
            by_text = subset.group_by("text_id", maintain_order=True).agg(means, pl.col("source").first())
            row |= {f"{name}{end}_mean": mean(by_text[name]) for name in ("sigma_a", "sigma_s", "sigma_a_bound")}
            row[f"sigma_a{end}_se"] = error(by_text["sigma_a"], by_text["source"])
        row["over_bound_share"] = float((mine["sigma_a"] > mine["sigma_a_bound"]).to_numpy().mean())
        for name, column in (("cosine", "embedding"), ("words_cosine", "words")):
            row[f"{name}_mean"], row[f"{name}_se"] = resemblance(np.stack(texts[column].to_list()), texts["source"])
        rows.append(row)
    return sorted(rows, key=lambda row: row["interval"])


def _layer_summary(layers: pl.DataFrame) -> list[dict[str, Any]]:
    """One row per layer over all texts, and one per layer and interval."""
    names = [column.removesuffix("_mean") for column in LAYER_SUMMARY.schema().names if column.endswith("_mean")]
    names = [name if name in layers.columns else f"{name}_mean" for name in names]
    over_all = layers.with_columns(pl.lit(None, pl.Int32).alias("interval"))
    rows = []
    for (layer, interval), group in pl.concat([over_all, layers]).group_by("layer", "interval", maintain_order=True):
        row: dict[str, Any] = {"layer": layer, "interval": interval, "texts": len(group)}
        row |= {f"{name}_mean": mean(group[name]) for name in names}
        rows.append(row | {f"{name}_se": error(group[name], group["source"]) for name in names})
    return sorted(rows, key=lambda row: (row["interval"] is not None, row["interval"] or 0, row["layer"]))


def _repeated(run: Run, model: Model, temperature: Temperature) -> list[dict[str, Any]]:
    names = run.storage.list(run.place(REPEATED_PARTS, model, temperature))
    tables = [pl.DataFrame(pl.from_arrow(run.storage.read_table(name))) for name in names]
    return [
        {
            "tokens": int(table["tokens"][0]), "pairs": len(table), "cosine_mean": mean(table["cosine"]),
            "cosine_se": error(table["cosine"], None),
        }
        for table in tables
        if len(table)
    ]  # fmt: skip
