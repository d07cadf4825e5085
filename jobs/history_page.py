"""The record of nights as lines for a terminal and as one self-contained HTML page."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import altair as alt
import polars as pl

from jobs.figures import COLOURS, Z
from jobs.headline import estimate, labels, number, share
from jobs.page import Page, page

_FIGURES = (
    ("cosine_mean", "mean cosine", "Mean cosine over all pairs of texts."),
    (
        "collapse_gap",
        "collapse gap",
        "Mean cosine inside the longest interval of 30 texts or more minus inside the shortest.",
    ),
    ("prefix_gap", "prefix gap", "The same texts at the longest and at the shortest prefix: length without topic."),
    ("socm_mean", "mean SOCM", "Second-order collapse over all pairs of the sample."),
    ("exposure_long", "exposure of the longest texts", "Their share of all neighbour slots over their share of the texts."),
    ("truncated_share", "truncated share", "Texts of which the model saw only a part."),
    ("texts", "texts", "Size of the corpus as analysed."),
)
_STATES = {"passed": COLOURS[2], "accepted": COLOURS[4], "failed": COLOURS[1], "held to nothing": "#8a94a3"}


def heads() -> list[str]:
    """The heads of `table`."""
    return ["night", "model", "τ", "texts", "mean cosine", "collapse gap", "prefix gap", "mean SOCM", "gate"]


def table(record: pl.DataFrame, last: int) -> list[list[str]]:
    """A line for each of the last nights, model and temperature."""
    nights = record["night"].unique().sort().tail(last)
    names = labels(record["temperature"].unique(maintain_order=True))
    return [
        [
            row["night"], row["model"], names[row["temperature"]], f"{row['texts']:,}",
            *(estimate(row, name) for name in ("cosine_mean", "collapse_gap", "prefix_gap", "socm_mean")), state(row),
        ]
        for row in record.filter(pl.col("night").is_in(nights.to_list())).to_dicts()
    ]  # fmt: skip


def state(row: dict[str, Any]) -> str:
    """What became of a night."""
    if row["accepted"]:
        return "accepted"
    return "held to nothing" if row["gate"] == "none" else str(row["gate"])


def render(record: pl.DataFrame) -> Page:
    """The record as HTML: each figure over the nights with its error, what failed, changes of model and corpus.

    Args:
        record: as `history.load` gives it, with at least one night.
    """
    series: list[dict[str, Any]] = [
        {
            "id": f"h{place}",
            "name": _title(own, record),
            "charts": {name: chart(own, name, title) for name, title, _ in _FIGURES},
            "rows": [
                {"folder": row["folder"], "state": state(row), "reason": row["gate_reason"], "changes": _changes(row)}
                | dict(zip(heads(), cells, strict=True))
                for row, cells in zip(own.reverse().to_dicts(), table(own, len(own))[::-1], strict=True)
            ],
            "switches": _switches(own),
        }
        for place, (_, own) in enumerate(record.group_by("name", "temperature", maintain_order=True))
    ]
    charts = {f"{s['id']}-{key}": chart for s in series for key, chart in s["charts"].items() if chart is not None}
    nights = record["night"].unique().sort()
    return page(
        "history.html.j2", {}, charts, {}, models=series, figures=_FIGURES, nights=len(nights), first=nights[0],
        last=nights[-1],
    )  # fmt: skip


def _title(own: pl.DataFrame, record: pl.DataFrame) -> str:
    temperature = labels(record["temperature"].unique(maintain_order=True))[own["temperature"][0]]
    return f"{own['name'][0]}, {temperature}" if own["name"][0] else temperature


def _changes(row: dict[str, Any]) -> str:
    if row["texts_added"] is None:
        return ""
    return ", ".join(f"{row[f'texts_{what}']:,} {what}" for what in ("added", "removed", "edited"))


def _switches(own: pl.DataFrame) -> list[dict[str, Any]]:
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
    if switches := _switches(own):
        rules = alt.Chart(alt.Data(values=switches)).mark_rule(strokeDash=[4, 3], opacity=0.7)
        layers.append(rules.encode(x="night:T", tooltip=[alt.Tooltip("model:N", title="model from here on")]))
    return alt.layer(*layers).properties(width="container", height=200)


def _told(row: dict[str, Any], name: str) -> str:
    if name.endswith("_share"):
        return share(row[name])
    if f"{name.removesuffix('_mean')}_se_superpopulation" in row:
        return estimate(row, name)
    return f"{row[name]:,}" if isinstance(row[name], int) else number(row[name])
