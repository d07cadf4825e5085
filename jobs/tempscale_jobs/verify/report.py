"""Tables of `tempscale verify` -> the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from tempscale_jobs.report.charts import COLOURS
from tempscale_jobs.report.provenance import how_made
from tempscale_jobs.report.sections import Drawing, Figure, Part, Report, Table, drawn, group, subject, tabled
from tempscale_jobs.report.text import count, labels, number, share
from tempscale_jobs.verify.summary import ANY, NOT_EXPLAINED
from tempscale_jobs.verify.words import answer, measured_by, missing, named, whole

_SHOWN = 50
_GROUPS_SHOWN = 100
_SHARE = {"share": "share"}
_LIMITS = {"at least": "low", "at most": "high"}
"""The columns of a share's confidence interval, by name."""


def report_of(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Report:
    """The report of a run of `verify`, from its tables by name and the content of run.json."""
    total, name = whole(tables["verify_summary"])[0], tables["verified"]["model"][0]
    rejected = run["embeddings"]["rejected"] + run.get("texts", {"rejected": 0})["rejected"]
    lost = f"{count(rejected, 'row')} without a text, a vector or an id of its own: rejected/ lists them."
    alerts = [*([lost] if rejected else []), *missing(run)]
    names = labels(tables["verified"]["temperature"])
    made = how_made(run, "how_verify", names, corpus=[run["embeddings"]["source"]])
    return Report(
        "Are these vectors the model's?", subject(run, count(total["sampled"], "vector")), [part_of(tables, "m0", name)],
        alerts, notes=measured_by(run), after=[made],
    )  # fmt: skip


def part_of(tables: Mapping[str, pl.DataFrame], place: str, name: str) -> Part:
    """The answer, the figures behind it, and the sections on the wrong vectors."""
    summary, verified = tables["verify_summary"], tables["verified"]
    total, *causes = whole(summary)
    columns = _SHARE if total["low"] == total["high"] else _SHARE | _LIMITS  # Of all rows nothing is uncertain.
    figures = [Figure("wrong" if name == "share" else name, share(total[column])) for name, column in columns.items()]
    figures += [Figure("compared", f"{total['sampled']:,}")]
    wrong = verified.filter(pl.col("wrong"))
    sections = [
        *tabled("causes", _causes(causes, columns)),
        *tabled("by_group", _by_group(summary, columns)),
        *drawn(place, "cosines", _cosines(wrong.filter(pl.col("cause").is_null()))),
        *group("Wrong vectors", tabled("wrong_vectors", _rows(wrong)), folded=True, searched=True),
    ]
    return Part(place, name, answer(summary), figures, _to_do(total, causes), sections)


def _to_do(total: Mapping[str, Any], causes: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    if not total["wrong"]:
        return []
    lines = [("Embed the wrong rows again; tables/verified.parquet names those of the sample, with what explains each.", "")]
    if causes[0]["cause"] == NOT_EXPLAINED:
        lines.append(("Name models that may have made the vectors that nothing explains, by --candidate.", ""))
    return lines


def _causes(causes: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> Table:
    cells = [(row["cause"], f"{row['wrong']:,}", *(share(row[name]) for name in columns.values())) for row in causes]
    return Table(("cause", "vectors", *columns), cells)


def _by_group(summary: pl.DataFrame, columns: Mapping[str, str]) -> Table:
    rows = summary.filter(pl.col("by").is_not_null() & (pl.col("cause") == ANY)).sort("share", descending=True)
    cells = [
        (named(row), f"{row['sampled']:,}", f"{row['wrong']:,}", *(share(row[name]) for name in columns.values()))
        for row in rows.head(_GROUPS_SHOWN).to_dicts()
    ]
    return Table(("group", "compared", "wrong", *columns), cells)


def _cosines(unexplained: pl.DataFrame) -> Drawing | None:
    """How near the vectors that nothing explains are to the model's."""
    cosines = unexplained["cosine"].drop_nulls()
    if cosines.is_empty():
        return None
    bins = (cosines * 20).floor().cast(pl.Int64).clip(-20, 19).value_counts().sort("cosine").to_dicts()
    rows = [{"low": row["cosine"] / 20, "high": (row["cosine"] + 1) / 20, "vectors": row["count"]} for row in bins]
    x = alt.X("low:Q", bin="binned", title="cosine with the model's vector")
    chart = alt.Chart(alt.Data(values=rows)).mark_bar(color=COLOURS[0])
    chart = chart.encode(x=x, x2="high:Q", y=alt.Y("vectors:Q", title="vectors"), tooltip=["low:Q", "high:Q", "vectors:Q"])
    table = Table(
        ("cosine from", "to", "vectors"), [(number(r["low"]), number(r["high"]), f"{r['vectors']:,}") for r in rows]
    )
    return Drawing(chart.properties(width="container", height=220), table)


def _rows(wrong: pl.DataFrame) -> Table:
    cells = [
        (
            row["text_id"],
            row["cause"] or NOT_EXPLAINED,
            f"{row['tokens']:,}",
            number(row["cosine"]),
            number(row["norm_ratio"]),
        )
        for row in wrong.sort("cosine", nulls_last=False).head(_SHOWN).to_dicts()
    ]
    return Table(("row", "cause", "tokens", "cosine", "norm over the model's"), cells, words=2)
