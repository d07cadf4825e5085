"""Tables -> charts. One colour a temperature, everywhere; each chart is an altair specification.

The tables come from `words.labelled`: their temperatures are the labels in legends and titles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import polars as pl

from tempscale_jobs.report.charts import COLOURS, about_zero, colour, lines, point
from tempscale_jobs.report.text import interval_name

_SCATTER_POINTS = 1500


def cosine_by_length(table: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """Mean cosine inside each length interval, one line a temperature, with 95 % bands (S1 Fig 1c)."""
    return _by_length(table.filter(pl.col("interval_a") == pl.col("interval_b")), edges, "mean cosine", "cosine")


def prefix_probe(table: pl.DataFrame) -> alt.Chart | None:
    """Mean cosine of the same texts at growing prefixes."""
    lengths = sorted(table["prefix_tokens"].unique())
    rows = [
        point(row["temperature"], "", str(row["prefix_tokens"]), row["cosine_mean"], row["cosine_se_superpopulation"])
        for row in table.to_dicts()
    ]
    return lines(rows, [str(length) for length in lengths], ("the same texts cut to … tokens", "mean cosine"), zero=True)


def socm_by_length(table: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """Mean SOCM inside each length interval."""
    return _by_length(table.filter(pl.col("interval_a") == pl.col("interval_b")), edges, "mean SOCM", "socm")


def exposure_by_length(table: pl.DataFrame, edges: Sequence[int], asked_by: str) -> alt.Chart | None:
    """Share of the neighbour slots over share of the texts, by length interval, at the largest k."""
    rows = table.filter((pl.col("asked_by") == asked_by) & (pl.col("k") == pl.col("k").max()))
    chart = _by_length(rows.rename({"interval": "interval_a", "exposure": "exposure_mean"}), edges, "exposure", "exposure")
    if chart is None:
        return None
    fair = alt.Chart(alt.Data(values=[{"y": 1}])).mark_rule(strokeDash=[3, 3], opacity=0.6).encode(y="y:Q")
    return alt.layer(fair, chart).properties(width="container", height=240)


def percentiles(card: Sequence[dict[str, Any]], edges: Sequence[int]) -> alt.Chart | None:
    """Percentiles of the cosine of two random texts of one length interval, from its `calibration.card`."""
    same = [row for row in card if row["interval_a"] is not None and row["interval_a"] == row["interval_b"]]
    names = [interval_name(row["interval_a"], edges) for row in same]
    points = [
        point(f"{p} %", "", name, value)
        for p in ("99.9", "99", "90", "50")
        for row, name in zip(same, names, strict=True)
        if (value := row["percentiles"][p]) is not None
    ]
    return lines(points, names, ("length of both texts in tokens", "cosine"), zero=True)


def exposure_corrected(before: pl.DataFrame, after: pl.DataFrame, edges: Sequence[int], asked_by: str) -> alt.Chart | None:
    """Exposure of the first temperature as it is, and with a correction by length."""
    if after.filter(asked_by=asked_by).is_empty():
        return None
    tables = [
        table.filter(pl.col("temperature") == after["temperature"][0]).with_columns(pl.lit(name).alias("temperature"))
        for name, table in (("cosine", before), ("corrected by length", after))
    ]
    return exposure_by_length(pl.concat([t.select(before.columns) for t in tables]), edges, asked_by)


def _by_length(table: pl.DataFrame, edges: Sequence[int], title: str, name: str) -> alt.Chart | None:
    """A figure's mean over length intervals, a line for each temperature."""
    names = [interval_name(edge, edges) for edge in sorted(table["interval_a"].unique())]
    rows = [
        point(
            row["temperature"], "", interval_name(row["interval_a"], edges), row[f"{name}_mean"],
            row[f"{name}_se_superpopulation"],
        )
        for row in table.to_dicts()
    ]  # fmt: skip
    return lines(rows, names, ("length in tokens", title), zero=True)


def heatmap(table: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """Mean cosine between every two length intervals, one panel per temperature."""
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
    """The changes that each temperature makes, with 95 % intervals."""
    if table.is_empty():
        return None
    rows = [
        point(row["temperature"], "", row["figure"], row["change"], row["change_se_superpopulation"])
        for row in table.filter(pl.col("figure") != "spread_mean").to_dicts()
    ]
    # The reference has the first colour, as in the other figures, and no change of its own.
    temperatures = list(dict.fromkeys([*table["reference"], *table["temperature"]]))
    return about_zero(rows, "change against the first temperature", colour(temperatures), temperatures[1:])


def scatter(table: pl.DataFrame) -> alt.Chart | None:
    """The plane of (d_μ, d_Σ) with its marginals (S2 Fig 17), one panel per temperature."""
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


def _title(label: str) -> alt.TitleParams:
    """A panel's title, smaller where the label is long: a panel is no wider than 260 pixels."""
    return alt.TitleParams(text=label, fontSize=13 if len(label) <= 24 else 10)
