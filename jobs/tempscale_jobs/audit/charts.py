"""Tables -> charts with their figures. One colour a temperature, everywhere.

The tables come from `words.labelled`: their temperatures are the labels in legends and titles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from tempscale_jobs.report.charts import (
    COLOURS,
    about_zero,
    by_length,
    colour,
    lines,
    panel_title,
    point,
    rule_at,
    side_by_side,
)
from tempscale_jobs.report.sections import Drawing, Table
from tempscale_jobs.report.text import FIGURES, count, interval_name, number, share

_SCATTER_POINTS = 1500
_PANEL = (260, 260)
_ASKED = {"corpus": "asked by the texts", "queries": "asked by the queries"}


def inside_intervals(table: pl.DataFrame, edges: Sequence[int], name: str, title: str) -> Drawing | None:
    """The mean of a figure over the pairs inside each length interval, a line for each temperature (S1 Fig 1c)."""
    inside = table.filter(pl.col("interval_a") == pl.col("interval_b")).to_dicts()
    columns = f"{name}_mean", f"{name}_se_superpopulation"
    points = [point(row["temperature"], "", row["interval_a"], *(row[c] for c in columns)) for row in inside]
    return by_length(points, edges, title, zero=True)


def prefix_probe(table: pl.DataFrame) -> Drawing | None:
    """Mean cosine of the same texts at growing prefixes."""
    lengths = sorted(table["prefix_tokens"].unique())
    rows = [
        point(row["temperature"], "", str(row["prefix_tokens"]), row["cosine_mean"], row["cosine_se_superpopulation"])
        for row in table.to_dicts()
    ]
    return lines(rows, [str(length) for length in lengths], ("the same texts cut to … tokens", "mean cosine"), zero=True)


def exposure_by_length(table: pl.DataFrame, edges: Sequence[int]) -> Drawing | None:
    """Share of the neighbour slots over share of the texts, at the largest k: a dash for each kind of searches."""
    rows = table.filter(pl.col("k") == pl.col("k").max().over("asked_by")).to_dicts()
    kinds = [_ASKED[asked_by] for asked_by in dict.fromkeys(row["asked_by"] for row in rows)]
    points = [
        point(
            row["temperature"], _ASKED[row["asked_by"]] if len(kinds) > 1 else "", row["interval"], row["exposure"],
            row["exposure_se_superpopulation"],
        )
        for row in rows
    ]  # fmt: skip
    drawing = by_length(points, edges, "exposure", kinds, zero=True)
    if drawing is None:
        return None
    return drawing._replace(chart=alt.layer(rule_at(1), drawing.chart).properties(width="container", height=260))


def percentiles(card: Sequence[dict[str, Any]], edges: Sequence[int], of: str = "both texts") -> Drawing | None:
    """Percentiles of the cosine of two random texts of one length interval, or of a query and such a text, from a card."""
    same = [row for row in card if row["interval_a"] is not None and row["interval_a"] == row["interval_b"]]
    names = [interval_name(row["interval_a"], edges) for row in same]
    points = [
        point(f"{p} %", "", name, value)
        for p in ("99.9", "99", "90", "50")
        for row, name in zip(same, names, strict=True)
        if (value := row["percentiles"][p]) is not None
    ]
    return lines(points, names, (f"length of {of} in tokens", "cosine"), zero=True)


def exposure_corrected(before: pl.DataFrame, after: pl.DataFrame, edges: Sequence[int], asked_by: str) -> Drawing | None:
    """Exposure of the first temperature as it is, and with a correction by length."""
    after = after.filter(asked_by=asked_by)
    if after.is_empty():
        return None
    tables = [
        table.filter(pl.col("temperature") == after["temperature"][0], asked_by=asked_by).with_columns(
            temperature=pl.lit(name)
        )
        for name, table in (("cosine", before), ("corrected by length", after))
    ]
    return exposure_by_length(pl.concat([table.select(before.columns) for table in tables]), edges)


def heatmap(table: pl.DataFrame, edges: Sequence[int]) -> Drawing | None:
    """Mean cosine between every two length intervals, one panel per temperature."""
    if table.is_empty():
        return None
    names = [interval_name(edge, edges) for edge in edges]
    panels = {}
    for (label,), cells in table.group_by("temperature", maintain_order=True):
        both = {(row["interval_a"], row["interval_b"]): row for row in cells.to_dicts()}
        both |= {(b, a): row for (a, b), row in both.items()}
        rows = [
            {"a": interval_name(a, edges), "b": interval_name(b, edges), "mean cosine": row["cosine_mean"]}
            | {"pairs": row["pairs"]}
            for (a, b), row in sorted(both.items())
        ]
        chart = alt.Chart(alt.Data(values=rows)).mark_rect()
        chart = chart.encode(
            x=alt.X("a:O", sort=names, title="tokens"),
            y=alt.Y("b:O", sort=names[::-1], title="tokens"),
            color=alt.Color(
                "mean cosine:Q", scale=alt.Scale(scheme="blues"), legend=alt.Legend(orient="bottom", format=".2f")
            ),
            tooltip=["a:O", "b:O", alt.Tooltip("mean cosine:Q", format=".4f"), alt.Tooltip("pairs:Q", format=",")],
        )
        shown = sorted({a for a, _ in both})
        figures = [
            [interval_name(b, edges), *(number(both[a, b]["cosine_mean"]) if (a, b) in both else "–" for a in shown)]
            for b in shown
        ]
        panels[str(label)] = Drawing(chart, Table(("tokens", *(interval_name(a, edges) for a in shown)), figures))
    return side_by_side(panels, _PANEL)


def effects(table: pl.DataFrame) -> Drawing | None:
    """The changes that each temperature makes, with 95 % intervals."""
    if table.is_empty():
        return None
    rows = [
        point(row["temperature"], "", FIGURES[row["figure"]], row["change"], row["change_se_superpopulation"])
        for row in table.filter(pl.col("figure").is_in(list(FIGURES))).to_dicts()
        if row.get("interval") is None
    ]
    # The reference has the first colour, as in the other figures, and no change of its own.
    temperatures = list(dict.fromkeys([*table["reference"], *table["temperature"]]))
    return about_zero(rows, "change against the first temperature", colour(temperatures), temperatures[1:])


def scatter(table: pl.DataFrame) -> Drawing | None:
    """The plane of (d_μ, d_Σ) with its marginals (S2 Fig 17), one panel per temperature."""
    if table.is_empty():
        return None
    by_label = [(str(label), rows) for (label,), rows in table.group_by("temperature", maintain_order=True)]
    charts = [_plane(rows, label) for label, rows in by_label]
    figures = [(label, *cells) for label, rows in by_label for cells in _marginal_figures(rows.filter(kind="bin"))]
    return Drawing(
        alt.concat(*charts, columns=2, spacing=28), Table(("temperature", "d_Σ", "pairs", "share", "mean d_μ"), figures, 2)
    )


def _marginal_figures(bins: pl.DataFrame) -> list[tuple[str, ...]]:
    """The pairs of each fifth of d_Σ, and the mean d_μ of these."""
    total, width = bins["pairs"].sum(), 0.2
    middle = pl.col("d_mu") + pl.col("d_mu_width") / 2
    grouped = bins.group_by((pl.col("d_sigma") / width + 1e-9).floor().cast(pl.Int64).alias("place")).agg(
        pl.col("pairs").sum(), ((middle * pl.col("pairs")).sum() / pl.col("pairs").sum()).alias("d_mu")
    )
    return [
        (f"{width * place:.1f} to {width * (place + 1):.1f}", count(pairs, "pair"), share(pairs / total), number(d_mu))
        for place, pairs, d_mu in grouped.sort("place").iter_rows()
    ]


def _plane(table: pl.DataFrame, label: str) -> alt.Chart:
    bins, pairs = table.filter(kind="bin"), table.filter(kind="pair").head(_SCATTER_POINTS)
    size = 260
    x, y = alt.X("d_mu:Q", title="d_μ"), alt.Y("d_sigma:Q", title="d_Σ")
    points = (
        alt.Chart(
            alt.Data(values=[{"d_mu": round(r["d_mu"], 4), "d_sigma": round(r["d_sigma"], 4)} for r in pairs.to_dicts()])
        )
        .mark_circle(size=8, opacity=0.35, color=COLOURS[0])
        .encode(x=x, y=y, tooltip=[alt.Tooltip("d_mu:Q", format=".3f"), alt.Tooltip("d_sigma:Q", format=".3f")])
        .properties(width=size, height=size)
    )
    top = (
        _marginal(bins, "d_mu")
        .encode(x=alt.X("low:Q", title=None, axis=None), x2="high:Q", y=alt.Y("pairs:Q", axis=None))
        .properties(width=size, height=40)
    )
    side = (
        _marginal(bins, "d_sigma")
        .encode(y=alt.Y("low:Q", title=None, axis=None), y2="high:Q", x=alt.X("pairs:Q", axis=None))
        .properties(width=40, height=size)
    )
    return alt.vconcat(top.properties(title=panel_title(label)), alt.hconcat(points, side, spacing=4), spacing=4)


def _marginal(bins: pl.DataFrame, column: str) -> alt.Chart:
    width = bins[f"{column}_width"][0]
    counts = bins.group_by(column).agg(pl.col("pairs").sum()).sort(column).to_dicts()
    rows = [{"low": r[column], "high": r[column] + width, "pairs": r["pairs"]} for r in counts]
    return alt.Chart(alt.Data(values=rows)).mark_rect(color=COLOURS[0], opacity=0.5)
