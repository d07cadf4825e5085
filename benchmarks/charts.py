"""Charts of growth in n, growth in length and scaling in workers, with their alternative texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import altair as alt
import vl_convert

from tempscale_jobs.report.charts import COLOURS

_GROWTH = {
    "texts": ("growth-in-n", "Growth in n", "texts"),
    "tokens": ("growth-in-length", "Growth in length, as many texts of each", "tokens of each text"),
}
_WIDTH, _HEIGHT = 480, 300


@dataclass(frozen=True)
class Chart:
    """A chart, its alternative text, and its benchmark."""

    chart: alt.Chart
    alt: str
    benchmark: str


def of(stem: str, rows: list[dict[str, Any]]) -> dict[str, Chart]:
    """The charts of one machine's rows by the names of their files, without those that were not measured."""
    found = {}
    growth = [row for row in rows if row["benchmark"] == "growth"]
    for grows, (name, title, axis) in _GROWTH.items():
        own = [row for row in growth if row.get("grows") == grows]
        if own:
            words = f"{title}: seconds over {grows} on logarithmic axes."
            found[f"{stem}-{name}"] = Chart(_growing(own, title, axis), words, "growth")
    own = [row for row in rows if row["benchmark"] == "workers" and "series" in row]
    if own:
        words = "Scaling in workers, with the line of one for one."
        found[f"{stem}-workers"] = Chart(_scaling(own), words, "workers")
    return found


def svg(chart: Chart) -> str:
    """The chart as an SVG with a white background, so that it is readable on dark pages too."""
    return str(vl_convert.vegalite_to_svg(chart.chart.properties(background="white").to_dict()))


def _growing(rows: list[dict[str, Any]], title: str, axis: str) -> alt.Chart:
    """Seconds over sizes on logarithmic axes, where a power law is a straight line."""
    logarithmic = alt.Scale(type="log", nice=False, padding=12)
    sizes, seconds = sorted({row["size"] for row in rows}), [row["seconds"] for row in rows]
    powers = range(math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds))) + 1)
    return _lines(
        [{"series": row["series"], "size": row["size"], "seconds": row["seconds"]} for row in rows],
        alt.X("size:Q", title=axis, scale=logarithmic, axis=alt.Axis(values=sizes, format=",", labelOverlap="greedy")),
        alt.Y("seconds:Q", title="seconds", scale=logarithmic, axis=alt.Axis(values=[10.0**k for k in powers], format="~r")),
    ).properties(title=title, width=_WIDTH, height=_HEIGHT)


def _scaling(rows: list[dict[str, Any]]) -> alt.Chart:
    """Ratios to one worker, with a dashed line where twice the workers have twice the rate."""
    counts = sorted({row["workers"] for row in rows})
    ideal = [{"series": "one for one", "workers": count, "ratio": count} for count in counts]
    x = alt.X(
        "workers:Q", title="workers", scale=alt.Scale(nice=False, padding=12), axis=alt.Axis(values=counts, format="d")
    )
    y = alt.Y("ratio:Q", title="rate over that of one worker")
    guide = alt.Chart(alt.Data(values=ideal)).mark_line(strokeDash=[4, 4], color="#767676").encode(x=x, y=y)
    lines = _lines([{key: row[key] for key in ("series", "workers", "ratio")} for row in rows], x, y)
    return alt.layer(guide, lines).properties(title="Scaling in workers (dashed: one for one)", width=_WIDTH, height=_HEIGHT)


def _lines(values: list[dict[str, Any]], x: alt.X, y: alt.Y) -> alt.Chart:
    """A line with points for each series, in the report's colours, with a legend above the chart."""
    names = list(dict.fromkeys(row["series"] for row in values))
    colour = alt.Color(
        "series:N",
        scale=alt.Scale(domain=names, range=COLOURS[: len(names)]),
        legend=alt.Legend(orient="top", title=None, symbolOpacity=1, labelLimit=0),
    )
    points = alt.OverlayMarkDef(size=45)
    return alt.Chart(alt.Data(values=values)).mark_line(point=points, strokeWidth=2).encode(x=x, y=y, color=colour)
