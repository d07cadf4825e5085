"""Lines with bands for charts: a colour a series, a dash a kind of line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from jobs.figures import COLOURS, Z

_DASHES = ([1, 0], [5, 4], [2, 3], [8, 3, 2, 3])


def point(series: str, line: str, x: str | float, value: float | None, error: float | None = None) -> dict[str, Any]:
    """A point of a line: its series, its kind of line, its place, value and the ends of its 95 % band."""
    ends = (None, None) if value is None or error is None else (value - Z * error, value + Z * error)
    return {"series": series, "line": line, "x": x, "value": value, "low": ends[0], "high": ends[1]}


def lines(
    rows: list[dict[str, Any]], names: list[str] | None, x_title: str, y_title: str, kinds: Sequence[str] = ()
) -> alt.Chart | None:
    """A colour a series, a dash for each of `kinds`, over named places or, where there are no names, over numbers."""
    rows = [row for row in rows if row["value"] is not None]
    if not rows:
        return None
    domain = list(dict.fromkeys(row["series"] for row in rows))
    places: dict[str, Any] = {"title": x_title, "axis": alt.Axis(labelAngle=0, labelOverlap="greedy")}
    x = alt.X("x:Q", **places) if names is None else alt.X("x:O", sort=names, **places)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=x,
        color=alt.Color(
            "series:N",
            scale=alt.Scale(domain=domain, range=[COLOURS[k % len(COLOURS)] for k in range(len(domain))]),
            legend=alt.Legend(orient="top", title=None, symbolOpacity=1, labelLimit=310, columns=1 if names is None else 0),
        ),
        detail="line:N",
    )
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", title=y_title or None), y2="high:Q")
    dash: Any = alt.value([1, 0])
    if len(kinds) > 1:
        dash = alt.StrokeDash(
            "line:N",
            scale=alt.Scale(domain=list(kinds), range=[_DASHES[k % len(_DASHES)] for k in range(len(kinds))]),
            legend=alt.Legend(orient="top", title=None, labelLimit=310, symbolSize=600),
        )
    y = alt.Y("value:Q", scale=alt.Scale(zero=False))
    line = base.mark_line(strokeWidth=2).encode(y=y, strokeDash=dash)
    # Points of their own: as an overlay of the line they would hide its dashes in the legend.
    points = base.mark_circle(size=40, opacity=1).encode(
        y=y, tooltip=[x, "series:N", "line:N", *(alt.Tooltip(f"{k}:Q", format=".4f") for k in ("value", "low", "high"))]
    )
    return alt.layer(band, line, points).properties(width="container", height=280)
