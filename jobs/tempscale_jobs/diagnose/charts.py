"""Tables of `tempscale diagnose` -> charts. The tables come with the temperatures' labels in place of their texts."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from tempscale_jobs.report.charts import COLOURS, lines, point
from tempscale_jobs.report.text import interval_name

PARTS = (
    ("hc_ratio", "whole layer"), ("hc_attention", "attention"), ("hc_residual", "residual sums"), ("hc_norms", "norms"),
    ("hc_feed_forward", "feed-forward"),
)  # fmt: skip
_CONTRACTION = (
    ("rho", "ρ = S(Z)/S(H)"), ("lambda", "λ, mean over heads"), ("r", "r = S(H)/‖μ(Y)‖²"), ("C", "C"),
)  # fmt: skip
_CONCENTRATION = (
    ("spread", "S(X)/‖μ(X)‖²"), ("spread_bound", "its bound C(1+√ρ)²r"), ("within_cosine", "within-text cosine"),
)  # fmt: skip


def filter_by_length(spectrum: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """σ_a against length for each τ with 95 % bands, of the last layer (S1 Fig 5) and as a mean over all layers.

    Dashed: Theorem 3's curve from the measured σ_s.
    """
    names, kinds = (
        [interval_name(edge, edges) for edge in sorted(spectrum["interval"].unique())],
        ["measured", "Theorem 3's curve"],
    )
    panels = []
    for end, title in (("_last", "the last layer"), ("", "mean over all layers")):
        rows = [
            point(row["temperature"], line, interval_name(row["interval"], edges), row[f"{name}{end}_mean"], error)
            for row in spectrum.to_dicts()
            for name, line, error in (
                ("sigma_a", kinds[0], row[f"sigma_a{end}_se"]), ("sigma_a_bound", kinds[1], None),
            )
        ]  # fmt: skip
        chart = lines(rows, names, ("length in tokens", "σ_a"), kinds)
        if chart is not None:
            panels.append(chart.properties(width=330, height=260, title=title))
    return alt.concat(*panels, columns=2, spacing=28) if panels else None


def resemblance(spectrum: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """Mean cosine inside each length interval, of embeddings and, dashed, of mean word embeddings (S1 Fig 3)."""
    names = [interval_name(edge, edges) for edge in sorted(spectrum["interval"].unique())]
    rows = [
        point(row["temperature"], line, interval_name(row["interval"], edges), row[f"{name}_mean"], row[f"{name}_se"])
        for row in spectrum.to_dicts()
        for name, line in (("cosine", "embeddings"), ("words_cosine", "word embeddings"))
    ]
    return lines(rows, names, ("length in tokens", "mean cosine"), ["embeddings", "word embeddings"])


def repeated(table: pl.DataFrame) -> alt.Chart | None:
    """Cosine of two texts of one repeated token each, against their length (S1 App. E.4)."""
    names = [str(n) for n in sorted(table["tokens"].unique())]
    rows = [
        point(row["temperature"], "", str(row["tokens"]), row["cosine_mean"], row["cosine_se"]) for row in table.to_dicts()
    ]
    return lines(rows, names, ("tokens", "cosine of the two texts"))


def parts(summary: pl.DataFrame) -> alt.Chart | None:
    """‖HC‖ after over ‖HC‖ before each layer and each of its parts, one panel per temperature (S1 Fig 2)."""
    mine = summary.filter(pl.col("interval").is_null() & (pl.col("layer") >= 0))
    if mine.is_empty():
        return None
    parts = (*PARTS, ("hc_attention_bound", "Theorem 2's bound on attention"))
    panels = []
    for label in mine["temperature"].unique(maintain_order=True):
        rows = [
            {"layer": row["layer"], "part": what, "ratio": row[f"{name}_mean"]}
            for row in mine.filter(pl.col("temperature") == label).to_dicts()
            for name, what in parts
        ]
        colour = alt.Color(
            "part:N",
            scale=alt.Scale(domain=[what for _, what in parts], range=COLOURS),
            legend=alt.Legend(orient="top", title=None, columns=2, labelLimit=200),
        )
        rule = alt.Chart(alt.Data(values=[{"y": 1}])).mark_rule(strokeDash=[3, 3], opacity=0.6).encode(y="y:Q")
        drawn = (
            alt.Chart(alt.Data(values=rows))
            .mark_line(point=True, strokeWidth=2)
            .encode(
                x=alt.X("layer:O", title="layer", axis=alt.Axis(labelAngle=0)),
                y=alt.Y("ratio:Q", title="‖HC‖ behind / before", scale=alt.Scale(type="log")),
                color=colour,
                tooltip=["layer:O", "part:N", alt.Tooltip("ratio:Q", format=".4f")],
            )
        )
        panels.append(alt.layer(rule, drawn).properties(width=330, height=260, title=label))
    return alt.concat(*panels, columns=2, spacing=28)


def contraction(summary: pl.DataFrame) -> alt.Chart | None:
    """ρ, λ, r and C by layer for each temperature (S2 Fig 6–16)."""
    return _by_layer(summary, _CONTRACTION)


def concentration(summary: pl.DataFrame) -> alt.Chart | None:
    """Spread, its bound and the within-text cosine by layer for each temperature, the embedding layer first (S2 Fig 4)."""
    return _by_layer(summary, _CONCENTRATION)


def text_map(table: pl.DataFrame, edges: Sequence[int]) -> alt.Chart | None:
    """The texts in the plane, coloured by length, with the origin marked, one panel per temperature (S1 Fig 1b)."""
    if table.is_empty():
        return None
    names = [interval_name(edge, edges) for edge in sorted(table["interval"].unique())]
    panels = []
    for label in table["temperature"].unique(maintain_order=True):
        points = [
            {
                "x": row["x"],
                "y": row["y"],
                "text": row["text_id"],
                "tokens": interval_name(row["interval"], edges),
                "document": row["document"],
                "length": row["tokens"],
            }
            for row in table.filter(pl.col("temperature") == label).to_dicts()
        ]
        colour = alt.Color(
            "tokens:O", sort=names, scale=alt.Scale(scheme="viridis"),
            legend=alt.Legend(orient="top", title="tokens", columns=4),
        )  # fmt: skip
        place = {axis: getattr(alt, axis.upper())(f"{axis}:Q", title=None, axis=None) for axis in "xy"}
        dots = alt.Chart(alt.Data(values=points)).mark_circle(size=32, opacity=0.75)
        dots = dots.encode(**place, color=colour, tooltip=["text:N", "tokens:O"])
        origin = alt.Chart(alt.Data(values=[{"x": 0, "y": 0}])).mark_point(shape="cross", size=140, strokeWidth=2)
        layers = [dots, origin.encode(**place)]
        if any(point["document"] is not None for point in points):  # A thin line joins the versions of a document.
            joined = alt.Chart(alt.Data(values=points)).mark_line(strokeWidth=0.7, opacity=0.35, color="#888")
            layers.insert(0, joined.encode(**place, detail="document:N", order="length:Q"))
        panels.append(alt.layer(*layers).properties(width=330, height=300, title=label))
    return alt.concat(*panels, columns=2, spacing=28)


def two_texts(table: pl.DataFrame) -> alt.Chart | None:
    """The tokens of two texts and their means in the plane, one panel per temperature (S2 Fig 1, bottom)."""
    if table.is_empty():
        return None
    panels = []
    for label in table["temperature"].unique(maintain_order=True):
        rows = table.filter(pl.col("temperature") == label)
        ids = {side: rows.filter(pl.col("side") == side)["text_id"][0] for side in "ab"}
        domain = [f"{side}: {text_id}" for side, text_id in ids.items()]
        points = [
            {"x": row["x"], "y": row["y"], "token": row["token"] or "mean", "mean": row["token"] is None}
            | {"text": f"{row['side']}: {row['text_id']}"}
            for row in rows.to_dicts()
        ]
        colour = alt.Color(
            "text:N",
            scale=alt.Scale(domain=domain, range=COLOURS[:2]),
            legend=alt.Legend(orient="top", title=None, columns=1, labelLimit=310),
        )
        base = alt.Chart(alt.Data(values=points)).encode(
            x=alt.X("x:Q", title=None, scale=alt.Scale(zero=True)), y=alt.Y("y:Q", title=None, scale=alt.Scale(zero=True)),
            color=colour, tooltip=["token:N", "text:N"],
        )  # fmt: skip
        tokens = base.transform_filter("!datum.mean").mark_circle(size=26, opacity=0.55)
        means = base.transform_filter("datum.mean").mark_point(shape="cross", size=260, strokeWidth=3, filled=False)
        row = rows.row(0, named=True)
        title = f"{label}: SOCM {row['socm']:.3f}, d_μ {row['d_mu']:.3f}, d_Σ {row['d_sigma']:.3f}"
        panels.append(alt.layer(tokens, means).properties(width=330, height=300, title=alt.TitleParams(title, fontSize=12)))
    return alt.concat(*panels, columns=2, spacing=28)


def together(summary: pl.DataFrame) -> alt.Chart | None:
    """One chart per figure for several models: a colour per model, a dash per temperature (S2 Fig 4, 6–16).

    Models with equal numbers of layers are drawn by layer, others by the share of layers passed.
    """
    mine = summary.filter(pl.col("interval").is_null())
    layers = {name: int(group["layer"].max()) + 1 for (name,), group in mine.group_by("model")}
    by_layer = len(set(layers.values())) == 1
    kinds = mine["temperature"].unique(maintain_order=True).to_list()
    panels = []
    for name, title in (*_CONCENTRATION, *_CONTRACTION, ("sigma_a_mean", "σ_a, mean over heads")):
        rows = [
            point(row["model"], row["temperature"], x, row[f"{name}_mean"], row[f"{name}_se"])
            for row in mine.to_dicts()
            for x in [row["layer"] if by_layer else (row["layer"] + 1) / layers[row["model"]]]
        ]
        chart = lines(rows, None, ("layer" if by_layer else "share of layers passed", ""), kinds)
        if chart is not None:
            panels.append(chart.properties(width=330, height=190, title=title))
    return alt.concat(*panels, columns=2, spacing=24) if panels else None


def _by_layer(summary: pl.DataFrame, columns: Sequence[tuple[str, str]]) -> alt.Chart | None:
    """One small panel per column."""
    mine = summary.filter(pl.col("interval").is_null())
    if mine.is_empty():
        return None
    panels = []
    for name, title in columns:
        rows = [
            point(row["temperature"], "", _layer_name(row["layer"]), row[f"{name}_mean"], row[f"{name}_se"])
            for row in mine.to_dicts()
            if row[f"{name}_mean"] is not None
        ]
        # The embedding layer has a place only where it has a figure.
        names = [_layer_name(k) for k in sorted(mine["layer"].unique()) if any(row["x"] == _layer_name(k) for row in rows)]
        chart = lines(rows, names, ("layer", ""))
        if chart is not None:
            panels.append(chart.properties(width=330, height=190, title=title))
    return alt.concat(*panels, columns=2, spacing=24) if panels else None


def _layer_name(layer: int) -> str:
    return "embedding" if layer < 0 else str(layer)
