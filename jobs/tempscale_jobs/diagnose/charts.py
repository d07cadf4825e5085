"""Tables of `tempscale diagnose` -> charts with their figures. The tables have labels in place of temperatures."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import polars as pl

from tempscale_jobs.report.charts import COLOURS, by_length, figures_of, lines, point, rule_at, side_by_side
from tempscale_jobs.report.sections import Drawing, Table
from tempscale_jobs.report.text import interval_name, number

PARTS = (
    ("hc_ratio", "whole layer"), ("hc_attention", "attention"), ("hc_residual", "residual sums"), ("hc_norms", "norms"),
    ("hc_feed_forward", "feed-forward"),
)  # fmt: skip
CONTRACTION = (
    ("rho", "ρ = S(Z)/S(H)"), ("lambda", "λ, mean over heads"), ("r", "r = S(H)/‖μ(Y)‖²"), ("C", "C"),
)  # fmt: skip
CONCENTRATION = (
    ("spread", "S(X)/‖μ(X)‖²"), ("spread_bound", "its bound C(1+√ρ)²r"), ("within_cosine", "within-text cosine"),
)  # fmt: skip
"""What S2 draws by layer: Fig 6–16, and Fig 4."""
_SMALL = (330, 190)


def filter_by_length(spectrum: pl.DataFrame, edges: Sequence[int]) -> Drawing | None:
    """σ_a against length for each τ with 95 % bands, of the last layer (S1 Fig 5) and as a mean over all layers.

    Dashed: Theorem 3's curve from the measured σ_s.
    """
    measured, curve = "measured", "Theorem 3's curve"
    panels = {}
    for end, title in (("_last", "the last layer"), ("", "mean over all layers")):
        points = []
        for row in spectrum.to_dicts():
            place = row["temperature"], row["interval"]
            points.append(point(place[0], measured, place[1], row[f"sigma_a{end}_mean"], row[f"sigma_a{end}_se"]))
            points.append(point(place[0], curve, place[1], row[f"sigma_a_bound{end}_mean"]))
        panels[title] = by_length(points, edges, "σ_a", [measured, curve])
    return side_by_side(panels)


def resemblance(spectrum: pl.DataFrame, edges: Sequence[int]) -> Drawing | None:
    """Mean cosine inside each length interval, of embeddings and, dashed, of mean word embeddings (S1 Fig 3)."""
    kinds = {"cosine": "embeddings", "words_cosine": "word embeddings"}
    points = [
        point(row["temperature"], kind, row["interval"], row[f"{name}_mean"], row[f"{name}_se"])
        for row in spectrum.to_dicts()
        for name, kind in kinds.items()
    ]
    return by_length(points, edges, "mean cosine", [*kinds.values()])


def repeated(table: pl.DataFrame) -> Drawing | None:
    """Cosine of two texts of one repeated token each, against their length (S1 App. E.4)."""
    names = [str(n) for n in sorted(table["tokens"].unique())]
    rows = [
        point(row["temperature"], "", str(row["tokens"]), row["cosine_mean"], row["cosine_se"]) for row in table.to_dicts()
    ]
    return lines(rows, names, ("tokens", "cosine of the two texts"))


def parts(summary: pl.DataFrame) -> Drawing | None:
    """‖HC‖ after over ‖HC‖ before each layer and each of its parts, one panel per temperature (S1 Fig 2)."""
    over_all = summary.filter(pl.col("interval").is_null() & (pl.col("layer") >= 0))
    parts = (*PARTS, ("hc_attention_bound", "Theorem 2's bound on attention"))
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=[what for _, what in parts], range=COLOURS),
        legend=alt.Legend(orient="top", title=None, columns=2, labelLimit=200),
    )
    panels = {}
    for (label,), layers in over_all.group_by("temperature", maintain_order=True):
        rows = [point(what, "", row["layer"], row[f"{name}_mean"]) for row in layers.to_dicts() for name, what in parts]
        rows = [row for row in rows if row["value"] is not None]
        drawn = alt.Chart(alt.Data(values=rows)).mark_line(point=True, strokeWidth=2)
        drawn = drawn.encode(
            x=alt.X("x:O", title="layer", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("value:Q", title="‖HC‖ after / before", scale=alt.Scale(type="log")),
            color=colour,
            tooltip=["x:O", "series:N", alt.Tooltip("value:Q", format=".4f")],
        )
        panels[str(label)] = Drawing(alt.layer(rule_at(1), drawn), figures_of(rows, "layer"))
    return side_by_side(panels)


def text_map(table: pl.DataFrame, edges: Sequence[int], distances: Table) -> Drawing | None:
    """The texts in the plane, coloured by length, with the origin marked, one panel per temperature (S1 Fig 1b)."""
    if table.is_empty():
        return None
    names = [interval_name(edge, edges) for edge in sorted(table["interval"].unique())]
    colour = alt.Color(
        "tokens:O", sort=names, scale=alt.Scale(scheme="viridis"),
        legend=alt.Legend(orient="top", title="tokens", columns=4),
    )  # fmt: skip
    place = {axis: getattr(alt, axis.upper())(f"{axis}:Q", title=None, axis=None) for axis in "xy"}
    origin = alt.Chart(alt.Data(values=[{"x": 0, "y": 0}])).mark_point(shape="cross", size=140, strokeWidth=2)
    charts = []
    for (label,), texts in table.group_by("temperature", maintain_order=True):
        columns = texts.select("x", "y", "document", pl.col("text_id").alias("text"), pl.col("tokens").alias("length"))
        tokens = [interval_name(edge, edges) for edge in texts["interval"]]
        points = columns.with_columns(tokens=pl.Series(tokens)).to_dicts()
        dots = alt.Chart(alt.Data(values=points)).mark_circle(size=32, opacity=0.75)
        dots = dots.encode(**place, color=colour, tooltip=["text:N", "tokens:O"])
        layers = [dots, origin.encode(**place)]
        if texts["document"].null_count() < len(texts):  # A thin line joins the versions of a document.
            joined = alt.Chart(alt.Data(values=points)).mark_line(strokeWidth=0.7, opacity=0.35, color="#888")
            layers.insert(0, joined.encode(**place, detail="document:N", order="length:Q"))
        charts.append(alt.layer(*layers).properties(width=330, height=300, title=str(label)))
    return Drawing(alt.concat(*charts, columns=2, spacing=28), distances)


def two_texts(table: pl.DataFrame) -> Drawing | None:
    """The tokens of two texts and their means in the plane, one panel per temperature (S2 Fig 1, bottom)."""
    if table.is_empty():
        return None
    charts, figures = [], []
    for (label,), tokens in table.group_by("temperature", maintain_order=True):
        ids = {side: tokens.filter(side=side)["text_id"][0] for side in "ab"}
        points = [
            {"x": row["x"], "y": row["y"], "token": row["token"] or "mean", "mean": row["token"] is None}
            | {"text": f"{row['side']}: {row['text_id']}"}
            for row in tokens.to_dicts()
        ]
        colour = alt.Color(
            "text:N",
            scale=alt.Scale(domain=[f"{side}: {text_id}" for side, text_id in ids.items()], range=COLOURS[:2]),
            legend=alt.Legend(orient="top", title=None, columns=1, labelLimit=310),
        )
        place = {axis: getattr(alt, axis.upper())(f"{axis}:Q", title=None, scale=alt.Scale(zero=True)) for axis in "xy"}
        base = alt.Chart(alt.Data(values=points)).encode(**place, color=colour, tooltip=["token:N", "text:N"])
        clouds = base.transform_filter("!datum.mean").mark_circle(size=26, opacity=0.55)
        means = base.transform_filter("datum.mean").mark_point(shape="cross", size=260, strokeWidth=3, filled=False)
        first = tokens.row(0, named=True)
        title = f"{label}: SOCM {first['socm']:.3f}, d_μ {first['d_mu']:.3f}, d_Σ {first['d_sigma']:.3f}"
        charts.append(alt.layer(clouds, means).properties(width=330, height=300, title=alt.TitleParams(title, fontSize=12)))
        lengths = [str(tokens.filter(side=side)["token"].count()) for side in "ab"]
        figures.append((str(label), *(number(first[name]) for name in ("socm", "d_mu", "d_sigma")), *lengths))
    heads = ("temperature", "SOCM", "d_μ", "d_Σ", *(f"tokens of {text_id}" for text_id in ids.values()))
    return Drawing(alt.concat(*charts, columns=2, spacing=28), Table(heads, figures))


def together(summary: pl.DataFrame) -> Drawing | None:
    """One chart per figure for several models: a colour per model, a dash per temperature (S2 Fig 4, 6–16).

    Models with equal numbers of layers are drawn by layer, others by the share of layers passed.
    """
    mine = summary.filter(pl.col("interval").is_null())
    layers = {name: int(group["layer"].max()) + 1 for (name,), group in mine.group_by("model")}
    by_layer = len(set(layers.values())) == 1
    kinds = mine["temperature"].unique(maintain_order=True).to_list()
    panels = {}
    for name, title in (*CONCENTRATION, *CONTRACTION, ("sigma_a_mean", "σ_a, mean over heads")):
        rows = [
            point(row["model"], row["temperature"], x, row[f"{name}_mean"], row[f"{name}_se"])
            for row in mine.to_dicts()
            for x in [row["layer"] if by_layer else round((row["layer"] + 1) / layers[row["model"]], 4)]
        ]
        panels[title] = lines(rows, None, ("layer" if by_layer else "share of layers passed", ""), kinds)
    return side_by_side(panels, _SMALL)


def by_layer(summary: pl.DataFrame, columns: Sequence[tuple[str, str]]) -> Drawing | None:
    """Figures by layer for each temperature, the embedding layer first: a small panel per column."""
    layers, panels = summary.filter(pl.col("interval").is_null()).to_dicts(), {}
    for name, title in columns:
        # The embedding layer has a place only where it has a figure.
        known = [row for row in layers if row[f"{name}_mean"] is not None]
        rows = [
            point(row["temperature"], "", _layer_name(row["layer"]), row[f"{name}_mean"], row[f"{name}_se"]) for row in known
        ]
        names = [_layer_name(layer) for layer in sorted({row["layer"] for row in known})]
        panels[title] = lines(rows, names, ("layer", ""))
    return side_by_side(panels, _SMALL)


def _layer_name(layer: int) -> str:
    return "embedding" if layer < 0 else str(layer)
