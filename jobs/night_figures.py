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
    error = f"{name.removesuffix('_mean')}_se_superpopulation"
    rows = []
    for row in own.to_dicts():
        if row[name] is None:
            continue
        half = Z * (row.get(error) or 0.0)
        rows.append(
            {
                "night": row["night"], "model": row["model"], "value": row[name], "low": row[name] - half,
                "high": row[name] + half, "state": state(row), "told": _told(row, name), "why": row["gate_reason"],
            }
        )  # fmt: skip
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


def _told(row: dict[str, Any], name: str) -> str:
    if name.endswith("_share"):
        return share(row[name])
    if f"{name.removesuffix('_mean')}_se_superpopulation" in row:
        return estimate(row, name)
    return f"{row[name]:,}" if isinstance(row[name], int) else number(row[name])
