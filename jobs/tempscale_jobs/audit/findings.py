"""What an audit found, decided from its tables: the state of each figure, what it rests on, what does not follow from it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale.stats.errors import Z_95
from tempscale_jobs.report.findings import Finding, Findings, changed, finding, measured, state, together
from tempscale_jobs.report.text import count, interval_name
from tempscale_jobs.tables.audit import OF_QUERIES, OF_TEXTS

Row = dict[str, Any]
Tables = dict[str, pl.DataFrame]
CHANGES = ("collapse_gap", "prefix_gap", "cosine_mean", "socm_mean")
"""The figures whose change under another temperature is a finding."""
READ = ("collapse_summary", "temperature_effect", "exposure", "what_if", "group_exposure", "served_recall")
"""The tables from which findings are decided; the last three are only there if they were asked for."""
_WITHOUT_ERRORS = ("effective_rank", "top_component", "k_occurrence_skewness", "reciprocity")
_LEAST_EXPOSURE = 0.01
"""What a length that is never returned counts as, which has no logarithm."""
_OVERSHOT = 1 / 3
_NOT_SHOWN = {
    "collapse_gap": "that length is the cause: texts of other lengths are other texts",
    "prefix_gap": "anything outside these lengths; longer prefixes also say more",
    "exposure": "that these texts are wrong results",
    "stays": "that the groups are the cause: texts of one group may be about the same things",
    "change": "that search becomes better or worse",
    "recall": "why: filters, deleted texts, or an index of other vectors lose results too",
}


def inside(interval: int) -> str:
    """The name of the mean cosine of two texts of one length, by its first number of tokens."""
    return f"cosine_mean of two texts from {interval} tokens"


def exposed(interval: int, asked_by: str) -> str:
    """The name of the finding on the share of search results that a length takes."""
    return f"exposure from {interval} tokens, asked by {asked_by}"


def exposed_group(row: Row) -> str:
    """The name of the finding on the share of search results that a group takes, from its row of group_exposure."""
    return f"exposure of {row['by']}={row['group']}, asked by {row['asked_by']}"


def staying_group(row: Row) -> str:
    """The name of the finding on the share of a group's results that are texts of the group."""
    return f"results that stay in {row['by']}={row['group']}, asked by {row['asked_by']}"


def recalled(row: Row) -> str:
    """The name of the finding on the recall of queries, or of nearest texts, of a length or group."""
    if row["by"] not in (OF_QUERIES, OF_TEXTS):
        return f"recall at {row['k']} of texts of {row['by']} {row['group']}"
    return f"recall at {row['k']} of {'queries' if row['by'] == OF_QUERIES else 'texts'} from {row['group']} tokens"


def decide(tables: Tables, edges: Sequence[int]) -> Findings:
    """The findings of an audit, from its tables and the lower edges of the length intervals."""
    return Findings(found for row in tables["collapse_summary"].to_dicts() for found in _of_row(row, tables, edges))


def with_findings(tables: Tables, edges: Sequence[int]) -> Tables:
    """The tables of a finished run with its findings, which an older version did not store."""
    return tables if "findings" in tables else tables | {"findings": decide(tables, edges).frame()}


def _of_row(row: Row, tables: Tables, edges: Sequence[int]) -> Iterator[Finding]:
    """The findings of one model under one temperature."""
    texts = count(row["texts"], "text")
    yield _measured(row, "cosine_mean", f"all pairs of {texts}")
    ends = [interval_name(row[f"gap_{end}"], edges) for end in ("shortest", "longest") if row[f"gap_{end}"] is not None]
    yield _compared(row, "collapse_gap", f"texts of {' and of '.join(ends)} tokens")
    yield _compared(row, "prefix_gap", _prefixes(row))
    yield _measured(row, "socm_mean", _socm_pairs(row))
    for name in ("truncated_share", "rejected_share", "spread_over_2_share", *_WITHOUT_ERRORS):
        yield _measured(row, name, texts)
    for asked_by in ("corpus", "queries"):
        yield from _exposures(row, tables, asked_by)
    if "group_exposure" in tables:
        yield from _groups(row, tables["group_exposure"])
    if "what_if" in tables:
        yield from _variants(row, tables["what_if"])
    if "served_recall" in tables:
        yield from _served(row, tables["served_recall"])
    for effect in of_row(tables["temperature_effect"], row).to_dicts():
        value, error = effect["change"], effect["change_se_superpopulation"]
        if effect["figure"] in CHANGES:
            basis = f"differences on the same texts, from {effect['reference']}"
            grounds = {"rests_on": basis, "not_shown": _NOT_SHOWN["change"]}
            edge = effect.get("interval")  # A run of an older version does not know it.
            figure = effect["figure"] if edge is None else inside(edge)
            yield finding(row, changed(figure), state(value, error), value, error, **grounds)


def _variants(row: Row, table: pl.DataFrame) -> Iterator[Finding]:
    """How many nearest texts each variant of the vectors keeps."""
    overall = of_row(table, row).filter(pl.col("by").is_null(), pl.col("what") != "")
    for r in overall.drop_nulls("neighbours_kept").to_dicts():
        basis = f"the {count(r['k'], 'nearest text')} of {r['askers']:,}, by exact searches"
        grounds = {"rests_on": basis, "not_shown": _NOT_SHOWN["change"]}
        value, error = r["neighbours_kept"], r["neighbours_kept_se"]
        yield finding(row, f"neighbours kept by {r['what']}", measured(value), value, error, **grounds)


def _served(row: Row, table: pl.DataFrame) -> Iterator[Finding]:
    """The recall of served results, for which lengths and groups it differs, and how many texts are never served."""
    rows = of_row(table, row)
    for whole in rows.filter(pl.col("by").is_null()).to_dicts():
        k, error = whole["k"], whole["recall_se"]
        basis = f"the {count(k, 'nearest text')} of {whole['queries']:,} queries, by exact searches"
        grounds = {"rests_on": basis, "not_shown": _NOT_SHOWN["recall"]}
        yield finding(row, f"recall at {k}", measured(whole["recall"]), whole["recall"], error, **grounds)
        if k < rows["k"].max():
            continue
        groups = rows.filter(pl.col("by").is_not_null(), k=k).to_dicts()
        known = [r for r in groups if r["difference_se"] is not None]
        tested = [r for r in known if min(r["queries"], r["exact_texts"] or r["queries"]) >= TEXTS_FOR_AN_INTERVAL]
        z = together(len(tested))
        for r in groups:
            compared = state(r["recall"], r["difference_se"] if r in tested else None, whole["recall"] or 0.0, z)
            yield finding(row, recalled(r), compared, r["recall"], r["recall_se"], **grounds)
        basis = f"{count(whole['exact_texts'], 'text')} among the {k} exact nearest of a query"
        yield finding(
            row, "texts never served", measured(whole["never_served"]), float(whole["never_served"]), rests_on=basis,
            not_shown=_NOT_SHOWN["recall"],
        )  # fmt: skip


def _measured(row: Row, figure: str, rests_on: str) -> Finding:
    value = row.get(figure)  # A run of an older version lacks newer figures.
    return finding(row, figure, measured(value), value, _error(row, figure), rests_on=rests_on)


def _compared(row: Row, figure: str, rests_on: str) -> Finding:
    value, error = row[figure], _error(row, figure)
    return finding(row, figure, state(value, error), value, error, rests_on=rests_on, not_shown=_NOT_SHOWN[figure])


def _error(row: Row, figure: str) -> float | None:
    return row.get(f"{figure.removesuffix('_mean')}_se_superpopulation")


def _prefixes(row: Row) -> str:
    cut = f"cut to {row['prefix_shortest']} and to {row['prefix_longest']} tokens"
    return f"the same {count(row['prefix_texts'] or 0, 'text')} {cut}"


def _socm_pairs(row: Row) -> str:
    if row["socm_groups"] is None:
        return f"all pairs of {count(row['socm_texts'], 'text')}"
    return f"{count(row['socm_pairs'], 'pair')} in {row['socm_groups']} groups of texts"


def _exposures(row: Row, tables: Tables, asked_by: str) -> Iterator[Finding]:
    """Whether each length takes more than its share of the results, or less."""
    rows = exposures(tables, row, asked_by)
    tested = [r for r in rows if r["texts"] >= TEXTS_FOR_AN_INTERVAL and r["exposure_se_superpopulation"]]
    z = together(len(tested))
    for r in rows:
        error = r["exposure_se_superpopulation"] if r in tested else None
        basis = f"the {count(r['k'], 'nearest text')} of {r['queries']:,}, of {count(len(tested), 'length')} tested together"
        grounds = {"rests_on": basis, "not_shown": _NOT_SHOWN["exposure"]}
        name = exposed(r["interval"], asked_by)
        yield finding(row, name, state(r["exposure"], error, 1.0, z), r["exposure"], error, **grounds)


def _groups(row: Row, table: pl.DataFrame) -> Iterator[Finding]:
    """Whether each group takes more than its share of the results, or less, and keeps more of its own, or fewer."""
    rows = most_neighbours(of_row(table, row))
    for part in rows.partition_by("by", "asked_by", maintain_order=True):
        of_part = part.to_dicts()
        tested = [r for r in of_part if r["texts"] >= TEXTS_FOR_AN_INTERVAL and r["exposure_se_superpopulation"]]
        staying = [r for r in of_part if r["stays_se"]]
        for r in of_part:
            nearest = f"the {count(r['k'], 'nearest text')} of each"
            error = r["exposure_se_superpopulation"] if r in tested else None
            basis = f"{nearest}, of {count(len(tested), 'group')} tested together"
            grounds = {"rests_on": basis, "not_shown": _NOT_SHOWN["exposure"]}
            known = state(r["exposure"], error, 1.0, together(len(tested)))
            yield finding(row, exposed_group(r), known, r["exposure"], error, **grounds)
            basis = f"{nearest} of this group, of {count(len(staying), 'group')} tested together"
            grounds = {"rests_on": basis, "not_shown": _NOT_SHOWN["stays"]}
            known = state(r["stays"], r["stays_se"], r["stays_expected"] or 0.0, together(len(staying)))
            yield finding(row, staying_group(r), known, r["stays"], r["stays_se"], **grounds)


def by_correction(before: float, after: float, errors: tuple[float | None, float | None], z: float = Z_95) -> str:
    """What a correction does to an exposure whose fair value is 1, beyond z standard errors of before and after.

    `overshoots`: it ends on the other side of 1, at least a third as far; else `fairer` or `less fair` where it ends nearer
    to 1 or further away; `noise` where errors explain the difference or are not known. On a log scale, on which half and
    twice the share are equally far.
    """
    if None in errors:
        return "noise"
    here, there = (math.log(max(exposure, _LEAST_EXPOSURE)) for exposure in (before, after))
    noise = [z * (errors[k] or 0.0) / max(exposure, _LEAST_EXPOSURE) for k, exposure in enumerate((before, after))]
    if here * there < 0 and abs(there) > max(noise[1], _OVERSHOT * abs(here)):
        return "overshoots"
    gain = abs(here) - abs(there)
    if abs(gain) <= math.hypot(*noise):
        return "noise"
    return "fairer" if gain > 0 else "less fair"


def most_neighbours(table: pl.DataFrame) -> pl.DataFrame:
    """The rows among the most neighbours."""
    return table.filter(pl.col("k") == pl.col("k").max())


def exposures(tables: Tables, row: Row, asked_by: str) -> list[Row]:
    """The rows of exposure among the most neighbours, by those who ask."""
    rows: list[Row] = most_neighbours(of_row(tables["exposure"], row)).filter(asked_by=asked_by).to_dicts()
    return rows


def of_row(table: pl.DataFrame, row: Row) -> pl.DataFrame:
    """The rows of the same model and temperature."""
    return table.filter((pl.col("model") == row["model"]) & (pl.col("temperature") == row["temperature"]))
