"""What a page says of served results: the recall of the index, the lengths that it loses, and what it never returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from tempscale_jobs.audit.findings import recalled
from tempscale_jobs.audit.words import text_in_words
from tempscale_jobs.report.charts import by_length, point
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.sections import Section, Table, drawn, group, tabled
from tempscale_jobs.report.text import count, interval_name, share, share_with_error
from tempscale_jobs.tables.audit import OF_QUERIES, OF_TEXTS

Row = dict[str, Any]
_BY = {OF_QUERIES: "queries of this length", OF_TEXTS: "nearest texts of this length"}
_SHOWN = 10


def section(
    place: str, tables: Mapping[str, pl.DataFrame], known: Mapping[str, Any], edges: Sequence[int],
    excerpts: Mapping[str, Row] | None,
) -> list[Section]:  # fmt: skip
    """The section of one model; `place` begins the key of its chart, `known` is what run.json says of the model."""
    rows = tables["served_recall"]
    if rows.is_empty():
        return []
    of_k = rows.filter(pl.col("k") == pl.col("k").max())
    points = [
        point(_BY[row["by"]], "", int(row["group"]), row["recall"], row["recall_se"])
        for row in of_k.filter(pl.col("by").is_in([*_BY])).to_dicts()
    ]
    by_group = [
        (row["by"], row["group"], f"{row['exact']:,}", _recall(row), f"{row['never_served']:,}")
        for row in of_k.filter(pl.col("by").is_not_null(), ~pl.col("by").is_in([*_BY])).to_dicts()
    ]
    heads = ("column", "group of texts", "exact nearest texts", "recall", "texts never served")
    missed = [
        (text_in_words(row, excerpts), f"{row['exact_times']:,}", f"{row['served_times']:,}")
        for row in tables["served_missed"].head(_SHOWN).to_dicts()
    ]
    return group(
        "Served results compared with exact ones",
        drawn(place, "served", by_length(points, edges, "recall", zero=True)),
        tabled("served-by-group", Table(heads, by_group)),
        tabled("missed", Table(("text", "queries that miss it", "rows of the results that have it"), missed)),
        sentences=[*sentences(rows, Findings.read(tables["findings"]), edges), *unknown_ids(known.get("served", {}))],
    )


def sentences(rows: pl.DataFrame, found: Findings, edges: Sequence[int]) -> Iterator[str]:
    """The recall of all queries, the lengths that differ from it beyond noise, and what is missed altogether."""
    *_, row = rows.filter(pl.col("by").is_null()).sort("k").to_dicts()
    if row["recall"] is None:
        yield f"No query of the {row['without_results']:,} that were compared has results."
        return
    k, queries = row["k"], "1 query" if row["queries"] == 1 else f"{row['queries']:,} queries"
    alone = ""
    if k > 1:
        alone = f", and of the nearest alone {_recall(rows.filter(pl.col('by').is_null(), k=1).row(0, named=True))}"
    of_queries = f"the {count(k, 'exact nearest text')} of a query (recall at {k}){alone}, over {queries}"
    yield f"The index returns {_recall(row)} of {of_queries}. {_left_out(row)}".strip()
    for one in rows.filter(pl.col("by").is_not_null(), k=k).to_dicts():
        state = found.at(recalled(one), one).state
        if state in ("up", "down"):
            side = "more" if state == "up" else "fewer"
            yield f"{_of_which(one, edges)} it returns {_recall(one)}: {side} than of all, beyond noise."
    if row["never_served"]:
        yield (
            f"Of the {count(row['exact_texts'], 'text')} among the {k} exact nearest of some query, {row['never_served']:,} "
            f"are missed and never among the first {k} results of any query."
        )


def _of_which(row: Row, edges: Sequence[int]) -> str:
    """The queries or texts that a recall is of, as the begin of a sentence."""
    if row["by"] not in _BY:
        return f"Of nearest texts of {row['by']} {row['group']}"
    length = f"{interval_name(int(row['group']), edges)} tokens"
    return f"To queries of {length}" if row["by"] == OF_QUERIES else f"Of nearest texts of {length}"


def _left_out(row: Row) -> str:
    """The queries without results, and those with few."""
    parts, asked = list[str](), row["queries"] + row["without_results"]
    if without := row["without_results"]:
        parts.append(f"{without:,} of {asked:,} queries ({share(without / asked)}) have no results and count in no recall.")
    if fewer := row["fewer_results"]:
        parts.append(f"{fewer:,} of {row['queries']:,} have fewer than {row['k']} results; what is not there is missed.")
    return " ".join(parts)


def unknown_ids(facts: Mapping[str, Any]) -> Iterator[str]:
    """What the results name that the audit does not know."""
    for kind, unknown in facts.get("unknown", {}).items():
        if unknown["ids"]:
            where, so = ("queries", "are not compared") if kind == "queries" else ("corpus", "count as wrong results")
            yield (
                f"{unknown['ids']:,} of {unknown['of']:,} ids of {kind} in the results are not in the {where} (first "
                f"{unknown['first']!r}), and {so}."
            )


def _recall(row: Row) -> str:
    return share_with_error(row["recall"], row["recall_se"])
