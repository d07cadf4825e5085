"""Charts of a figure over the nights, for the page of the record and the report of a run."""

from __future__ import annotations

import datetime
from itertools import pairwise
from typing import Any

import altair as alt
import polars as pl

from tempscale_jobs.report.charts import COLOURS, GREY, banded, with_ends
from tempscale_jobs.report.sections import Drawing, Section, Table, drawn
from tempscale_jobs.report.text import estimate, number, share

_STATES = {"passed": COLOURS[2], "accepted": COLOURS[4], "failed": COLOURS[1], "not checked": GREY}
_MOST_TICKS = 10


def state(row: dict[str, Any]) -> str:
    """The state of a night: accepted, passed, failed or not checked."""
    if row["accepted"]:
        return "accepted"
    return "not checked" if row["gate"] == "none" else str(row["gate"])


def reason(row: dict[str, Any]) -> str:
    """What failed on a night, and what else is to be known of it; empty where there is nothing."""
    return "; ".join(filter(None, (row["gate_reason"], row.get("gate_note"))))


def over_nights(place: str, own: pl.DataFrame, name: str, title: str) -> list[Section]:
    """The section of a figure over the nights; none where it was never measured."""
    return drawn(place, name, chart(own, name, title), f"night_{name}")


def switches(own: pl.DataFrame) -> list[dict[str, Any]]:
    """The nights on which the model changed."""
    nights = [
        (night, set(rows["model_fingerprint"]), ", ".join(rows["model"].unique(maintain_order=True)))
        for (night,), rows in own.group_by("night", maintain_order=True)
    ]
    return [{"night": night, "model": model} for (_, old, _), (night, new, model) in pairwise(nights) if not old & new]


def chart(own: pl.DataFrame, name: str, title: str) -> Drawing | None:
    """A figure over the nights: one line per model with its 95 % band, one point per night, coloured by its state."""
    rows = [
        ends | {"model": row["model"], "state": state(row), "figure": _figure_text(row, name), "why": reason(row)}
        for row, ends in _nights(own, name)
    ]
    if not rows:
        return None
    first, last = (datetime.date.fromisoformat(end(row["night"] for row in rows)) for end in (min, max))
    days = {"interval": "day", "step": 1 + (last - first).days // _MOST_TICKS}  # Else Vega names a day at several hours.
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("night:T", title=None, axis=alt.Axis(format="%-d %b", labelOverlap="greedy", tickCount=days)),
        detail="model:N", color=alt.value(COLOURS[0]),
    )  # fmt: skip
    bands, line = banded(base, rows, title)
    points = base.mark_point(filled=True, size=55, opacity=1).encode(
        y=alt.Y("value:Q"),
        color=alt.Color(
            "state:N",
            scale=alt.Scale(domain=list(_STATES), range=list(_STATES.values())),
            legend=alt.Legend(orient="top", title=None),
        ),
        tooltip=[alt.Tooltip(f"{field}:N") for field in ("night", "model", "figure", "state", "why")],
    )
    layers = [*bands, line, points]
    if changed := switches(own):
        rules = alt.Chart(alt.Data(values=changed)).mark_rule(strokeDash=[4, 3], opacity=0.7)
        layers.append(rules.encode(x="night:T", tooltip=[alt.Tooltip("model:N", title="model from here on")]))
    cells = [[row[field] for field in ("night", "model", "state", "figure")] for row in rows]
    return Drawing(
        alt.layer(*layers).properties(width="container", height=200),
        Table(("night", "model", "gate", title), cells[::-1], words=3),
    )


def sparkline(own: pl.DataFrame, name: str) -> Drawing | None:
    """A figure of one model over the nights without axes, small enough for a line of text; None below two nights."""
    rows = [] if own.is_empty() else [ends for _, ends in _nights(own, name)]
    if len(rows) < 2:
        return None
    base = alt.Chart(alt.Data(values=rows)).encode(x=alt.X("night:O", axis=None), color=alt.value(COLOURS[0]))
    bands, line = banded(base, rows, None, axis=None)
    tooltip = ["night:O", alt.Tooltip("value:Q", format=".4f")]
    last = alt.Chart(alt.Data(values=rows[-1:])).mark_point(filled=True, size=30, opacity=1, color=COLOURS[0])
    layers = [*bands, line.encode(tooltip=tooltip), last.encode(x="night:O", y="value:Q", tooltip=tooltip)]
    chart = alt.layer(*layers).properties(width="container", height=34)
    return Drawing(chart, Table(("night", name), [(row["night"], number(row["value"])) for row in rows]))


def _nights(record: pl.DataFrame, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each row that has the figure, with the drawn values: its night, value and the ends of its 95 % band."""
    error = f"{name.removesuffix('_mean')}_se_superpopulation"
    known = [row for row in record.to_dicts() if row[name] is not None]
    return [(row, {"night": row["night"]} | with_ends(row[name], row.get(error))) for row in known]


def _figure_text(row: dict[str, Any], name: str) -> str:
    if name.endswith("_share"):
        return share(row[name])
    if f"{name.removesuffix('_mean')}_se_superpopulation" in row:
        return estimate(row, name)
    return f"{row[name]:,}" if isinstance(row[name], int) else number(row[name])
