"""A figure over the nights of a record, as the record's own page and the report of a run draw it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import altair as alt
import polars as pl

from jobs.figures import COLOURS, Z
from jobs.headline import estimate, number, share

_STATES = {"passed": COLOURS[2], "accepted": COLOURS[4], "failed": COLOURS[1], "held to nothing": "#8a94a3"}


def state(row: dict[str, Any]) -> str:
    """What became of a night."""
    if row["accepted"]:
        return "accepted"
    return "held to nothing" if row["gate"] == "none" else str(row["gate"])


def switches(own: pl.DataFrame) -> list[dict[str, Any]]:
    """The nights on which the model became another."""
    nights = [
        (night, set(rows["model_fingerprint"]), ", ".join(rows["model"].unique(maintain_order=True)))
        for (night,), rows in own.group_by("night", maintain_order=True)
    ]
    return [{"night": night, "model": model} for (_, old, _), (night, new, model) in pairwise(nights) if not old & new]


def chart(own: pl.DataFrame, name: str, title: str) -> alt.Chart | None:
    """A figure over the nights: a line a model with its 95 % band, a point a night by what became of it."""
    rows = [
        band | {"model": row["model"], "state": state(row), "told": _told(row, name), "why": row["gate_reason"]}
        for row, band in _bands(own, name)
    ]
    if not rows:
        return None
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("night:T", title=None, axis=alt.Axis(format="%-d %b", labelOverlap="greedy"))
    )
    y = alt.Y("low:Q", title=title, scale=alt.Scale(zero=False))
    band = base.mark_area(opacity=0.15, color=COLOURS[0]).encode(y=y, y2="high:Q", detail="model:N")
    line = base.mark_line(color=COLOURS[0], strokeWidth=1.5).encode(y=alt.Y("value:Q"), detail="model:N")
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        y=alt.Y("value:Q"),
        color=alt.Color(
            "state:N",
            scale=alt.Scale(domain=list(_STATES), range=list(_STATES.values())),
            legend=alt.Legend(orient="top", title=None),
        ),
        tooltip=[alt.Tooltip(f"{field}:N") for field in ("night", "model", "told", "state", "why")],
    )
    layers = [band, line, points]
    if changed := switches(own):
        rules = alt.Chart(alt.Data(values=changed)).mark_rule(strokeDash=[4, 3], opacity=0.7)
        layers.append(rules.encode(x="night:T", tooltip=[alt.Tooltip("model:N", title="model from here on")]))
    return alt.layer(*layers).properties(width="container", height=200)


def sparkline(own: pl.DataFrame, name: str) -> alt.Chart | None:
    """The same of one model without axes, small enough for a line of text; None below two nights."""
    rows = [] if own.is_empty() else [band for _, band in _bands(own, name)]
    if len(rows) < 2:
        return None
    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("night:O", axis=None))
    band = base.mark_area(opacity=0.2, color=COLOURS[0]).encode(
        y=alt.Y("low:Q", axis=None, scale=alt.Scale(zero=False)), y2="high:Q"
    )
    tooltip = ["night:O", alt.Tooltip("value:Q", format=".4f")]
    line = base.mark_line(color=COLOURS[0], strokeWidth=1.5).encode(y=alt.Y("value:Q", axis=None), tooltip=tooltip)
    last = alt.Chart(alt.Data(values=rows[-1:])).mark_point(filled=True, size=30, opacity=1, color=COLOURS[0])
    layers = [band, line, last.encode(x="night:O", y="value:Q", tooltip=tooltip)]
    return alt.layer(*layers).properties(width="container", height=34)


def _bands(own: pl.DataFrame, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each night that knows the figure, and its value with the ends of its 95 % band; without an error it has no width."""
    error = f"{name.removesuffix('_mean')}_se_superpopulation"
    known = [(row, Z * (row.get(error) or 0.0)) for row in own.to_dicts() if row[name] is not None]
    return [
        (row, {"night": row["night"], "value": row[name], "low": row[name] - half, "high": row[name] + half})
        for row, half in known
    ]


def _told(row: dict[str, Any], name: str) -> str:
    if name.endswith("_share"):
        return share(row[name])
    if f"{name.removesuffix('_mean')}_se_superpopulation" in row:
        return estimate(row, name)
    return f"{row[name]:,}" if isinstance(row[name], int) else number(row[name])
