"""Tables -> charts. One colour a temperature, everywhere; each chart is an altair specification.

The tables come as `headline.labelled` gives them: their temperatures are the labels that stand in legends and titles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from jobs.headline import interval_name

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]
_SCATTER_POINTS = 1500
Z = 1.96


def cosine_by_length(table: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """Mean cosine inside each length interval, one line a temperature, with 95 % bands (S1 Fig 1c)."""
    inside = table.filter(pl.col("interval_a") == pl.col("interval_b"))
    return (
        None
        if inside.is_empty()
        else _line(_named(inside, edges), "interval", "length in tokens", "mean cosine", "cosine_mean", "cosine_se")
    )


def prefix_probe(table: pl.DataFrame) -> alt.Chart | None:
    """Mean cosine of the same texts at growing prefixes."""
    if table.is_empty():
        return None
    rows = table.with_columns(
        pl.col("prefix_tokens").cast(pl.String).alias("interval"), pl.col("prefix_tokens").alias("order")
    )
    return _line(rows, "interval", "the same texts cut to … tokens", "mean cosine", "cosine_mean", "cosine_se")


def socm_by_length(table: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """Mean SOCM inside each length interval."""
    inside = table.filter(pl.col("interval_a") == pl.col("interval_b"))
    return (
        None
        if inside.is_empty()
        else _line(_named(inside, edges), "interval", "length in tokens", "mean SOCM", "socm_mean", "socm_se")
    )


def exposure_by_length(table: pl.DataFrame, edges: Sequence[int], asked_by: str) -> alt.Chart | None:
    """Share of the neighbour slots over share of the texts, by length interval, at the largest k."""
    mine = table.filter((pl.col("asked_by") == asked_by) & (pl.col("k") == pl.col("k").max()))
    if mine.is_empty():
        return None
    rows = _named(mine.with_columns(pl.col("interval").alias("interval_a")).drop("interval"), edges)
    fair = alt.Chart(alt.Data(values=[{"y": 1}])).mark_rule(strokeDash=[3, 3], opacity=0.6).encode(y="y:Q")
    lines = _line(rows, "interval", "length in tokens", "exposure", "exposure", "exposure_se")
    return alt.layer(fair, lines).properties(width="container", height=240)


def heatmap(table: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """Mean cosine between every two length intervals, a panel a temperature."""
    if table.is_empty():
        return None
    mirrored = pl.concat(
        [table, table.rename({"interval_a": "interval_b", "interval_b": "interval_a"}).select(table.columns)]
    ).unique()
    rows = [
        {
            "temperature": r["temperature"],
            "a": interval_name(r["interval_a"], edges),
            "b": interval_name(r["interval_b"], edges),
        }
        | {"mean cosine": r["cosine_mean"], "pairs": r["pairs"]}
        for r in mirrored.sort("temperature", "interval_a", "interval_b").to_dicts()
    ]
    names = [interval_name(edge, edges) for edge in edges]
    panels = [
        alt.Chart(alt.Data(values=[row for row in rows if row["temperature"] == label]))
        .mark_rect()
        .encode(
            x=alt.X("a:O", sort=names, title="tokens"),
            y=alt.Y("b:O", sort=names[::-1], title="tokens"),
            color=alt.Color(
                "mean cosine:Q", scale=alt.Scale(scheme="blues"), legend=alt.Legend(orient="bottom", format=".2f")
            ),
            tooltip=["a:O", "b:O", alt.Tooltip("mean cosine:Q", format=".4f"), alt.Tooltip("pairs:Q", format=",")],
        )
        .properties(width=260, height=260, title=_title(label))
        for label in table["temperature"].unique(maintain_order=True)
    ]
    return alt.concat(*panels, columns=2, spacing=28)


def effects(table: pl.DataFrame) -> alt.Chart | None:
    """What each temperature changes, with 95 % intervals."""
    if table.is_empty():
        return None
    rows = [
        {"figure": r["figure"], "temperature": r["temperature"], "change": r["change"]}
        | _interval(r["change"], r["change_se_superpopulation"])
        for r in table.filter(pl.col("figure") != "spread_mean").to_dicts()
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("figure:N", title=None))
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(strokeDash=[3, 3], opacity=0.6).encode(x="x:Q")
    bars = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("low:Q", title="change against the first temperature"), x2="high:Q", color=_colour(table)
    )
    points = base.mark_point(filled=True, size=70).encode(
        x=alt.X("change:Q", title="change against the first temperature"),
        color=_colour(table),
        tooltip=["figure:N", "temperature:N", alt.Tooltip("change:Q", format=".4f")],
    )
    known = [bars] if any(row["low"] is not None for row in rows) else []
    return alt.layer(zero, *known, points).properties(width="container", height=140)


def scatter(table: pl.DataFrame) -> alt.Chart | None:
    """The plane of (d_μ, d_Σ) with its marginals (S2 Fig 17), a panel a temperature."""
    if table.is_empty():
        return None
    panels = [
        _plane(table.filter(pl.col("temperature") == label), label)
        for label in table["temperature"].unique(maintain_order=True)
    ]
    return alt.concat(*panels, columns=2, spacing=28)


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
    return alt.vconcat(top.properties(title=_title(label)), alt.hconcat(points, side, spacing=4), spacing=4)


def _marginal(bins: pl.DataFrame, column: str) -> alt.Chart:
    width = bins[f"{column}_width"][0]
    counts = bins.group_by(column).agg(pl.col("pairs").sum()).sort(column).to_dicts()
    rows = [{"low": r[column], "high": r[column] + width, "pairs": r["pairs"]} for r in counts]
    return alt.Chart(alt.Data(values=rows)).mark_rect(color=COLOURS[0], opacity=0.5)


def _interval(value: float, error: float | None) -> dict[str, float | None]:
    """The ends of a 95 % interval; none are drawn where the error is not known, as if it were 0."""
    return {"low": None if error is None else value - Z * error, "high": None if error is None else value + Z * error}


def _title(label: str) -> alt.TitleParams:
    """A panel's title, smaller where the label is long: a panel is no wider than 260 pixels."""
    return alt.TitleParams(text=label, fontSize=13 if len(label) <= 24 else 10)


def _named(rows: pl.DataFrame, edges: Sequence[int]) -> pl.DataFrame:
    names = [interval_name(edge, edges) for edge in rows["interval_a"]]
    return rows.with_columns(pl.Series("interval", names), pl.col("interval_a").alias("order"))


def _colour(table: pl.DataFrame) -> Any:
    first = [] if "reference" not in table.columns else table["reference"].unique().to_list()
    domain = list(dict.fromkeys([*first, *table["temperature"]]))
    # A legend does not break its lines by itself, and a phone gives it 340 pixels.
    columns = max(1, 340 // (30 + 7 * max(map(len, domain))))
    return alt.Color(
        "temperature:N",
        scale=alt.Scale(domain=domain, range=COLOURS[: len(domain)]),
        legend=alt.Legend(orient="top", title=None, symbolOpacity=1, labelLimit=310, columns=columns),
    )


def _line(rows: pl.DataFrame, x: str, x_title: str, y_title: str, value: str, error: str) -> alt.Chart:
    data = [
        {"x": r[x], "order": r["order"], "temperature": r["temperature"], "value": r[value]}
        | _interval(r[value], r[f"{error}_superpopulation"])
        for r in rows.sort("order").to_dicts()
    ]
    names = list(dict.fromkeys(row["x"] for row in data))
    base = alt.Chart(alt.Data(values=data)).encode(
        x=alt.X("x:O", sort=names, title=x_title, axis=alt.Axis(labelAngle=0, labelOverlap="greedy")), color=_colour(rows)
    )
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=y_title), y2="high:Q")
    tooltip = [
        "x:O",
        "temperature:N",
        alt.Tooltip("value:Q", format=".4f"),
        alt.Tooltip("low:Q", format=".4f"),
        alt.Tooltip("high:Q", format=".4f"),
    ]
    line = base.mark_line(point=alt.OverlayMarkDef(size=45), strokeWidth=2).encode(
        y=alt.Y("value:Q", title=y_title), tooltip=tooltip
    )
    layers = [band, line] if any(row["low"] is not None for row in data) else [line]
    return alt.layer(*layers).properties(width="container", height=280)
