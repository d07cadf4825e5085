"""Parts of all chunks -> the tables and the closing lines of `tempscale pairs`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tempscale.stats.dyads import dyadic_error
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.pairs import Value
from tempscale_jobs.pairs import findings
from tempscale_jobs.pairs.chunks import PairIndex
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.tables.pairs import PAIRS, PAIRS_SUMMARY, PARTIALS


def summarise(run: Run, value: Value, index: PairIndex) -> dict[str, pa.Table]:
    """Write the tables of the run; returns them by name."""
    names = ["pair", "pair_id", "text_id_a", "text_id_b", "content_a", "content_b"]
    heads = [run.storage.read_table(chunk.name, names) for chunk in index.shards]
    pairs, summaries = [], []
    for model in run.models:
        before: np.ndarray | None = None
        for temperature in run.temperatures:
            parts, part_heads = [], []
            for number, head in enumerate(heads):
                part = run.storage.read_table(run.part(PARTIALS, model, temperature, number))
                parts.append(part)
                # Both are sorted by pair; a part lacks the rejected pairs.
                part_heads.append(head.take(np.searchsorted(head.column("pair").to_numpy(), part.column("pair").to_numpy())))
            part, head = pa.concat_tables(parts).combine_chunks(), pa.concat_tables(part_heads).combine_chunks()
            pairs.append(_pairs(run, model, temperature, part, head))
            first = None if before is None else (run.temperatures[0].canonical, before)
            summaries.append(run.key(model, temperature) | _summary(part, head, first) | value.model_dump())
            before = part.column("socm").to_numpy() if before is None else before
    tables = {"pairs": pa.concat_tables(pairs), "pairs_summary": PAIRS_SUMMARY.build_rows(summaries)}
    tables["findings"] = findings.decide({"pairs_summary": pl.DataFrame(pl.from_arrow(tables["pairs_summary"]))}).table()
    for name, table in tables.items():
        run.storage.write_table(f"tables/{name}.parquet", table)
    return tables


def _pairs(run: Run, model: Model, temperature: Temperature, part: pa.Table, head: pa.Table) -> pa.Table:
    """The rows of the pairs table under one temperature."""
    types = PAIRS.schema()
    key = {name: pa.repeat(pa.scalar(value, types.field(name).type), part.num_rows)
           for name, value in run.key(model, temperature).items()}  # fmt: skip
    named = {name: head.column(name) for name in ("pair_id", "text_id_a", "text_id_b")}
    return PAIRS.build(key | named | {name: part.column(name) for name in part.column_names})


def _summary(part: pa.Table, head: pa.Table, reference: tuple[str, np.ndarray] | None) -> dict[str, Any]:
    """The summary of one model and temperature; `reference` is the first temperature, and each pair's SOCM under it."""
    # Offsets of 64 bits: the digests of seventeen million pairs have more than 2³¹ bytes.
    digests = [head.column(f"content_{letter}").cast(pa.large_string()) for letter in "ab"]
    contents = pa.concat_arrays([column.combine_chunks() for column in digests])
    place = contents.dictionary_encode().indices.to_numpy()
    first, second = place[: part.num_rows], place[part.num_rows :]
    truncated = np.zeros(place.max() + 1, dtype=bool)
    for letter, side in (("a", first), ("b", second)):
        truncated[side[part.column(f"truncated_{letter}").to_numpy()]] = True
    socm = part.column("socm").to_numpy()
    change = None if reference is None else socm - reference[1]
    return {
        "pairs": part.num_rows,
        "texts": len(truncated),
        "truncated_share": float(truncated.mean()),
        "d_mu_mean": float(part.column("d_mu").to_numpy().mean()),
        "d_sigma_mean": float(part.column("d_sigma").to_numpy().mean()),
        "socm_mean": float(socm.mean()),
        "socm_se": _error(socm, first, second),
        **{f"socm_p{share:02d}": float(np.quantile(socm, share / 100)) for share in (5, 50, 95)},
        "socm_over_1_share": float((socm > 1).mean()),
        "reference": None if reference is None else reference[0],
        "socm_change": None if change is None else float(change.mean()),
        "socm_change_se": None if change is None else _error(change, first, second),
    }


def _error(values: np.ndarray, first: np.ndarray, second: np.ndarray) -> float | None:
    """The standard error clustered on shared texts; None where the pairs are too few."""
    error = dyadic_error(values, first, second)
    return None if math.isnan(error) else error
