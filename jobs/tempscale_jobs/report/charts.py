"""Charts that several reports draw: lines with 95 % bands, and changes with 95 % intervals; one colour per name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from tempscale.stats.errors import Z_95

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]
GREY = "#8a94a3"
"""Of what says nothing either way."""
_DASHES = ([1, 0], [5, 4], [2, 3], [8, 3, 2, 3])
_ESTIMATE = [alt.Tooltip(f"{name}:Q", format=".4f") for name in ("value", "low", "high")]


def with_ends(value: float | None, error: float | None) -> dict[str, float | None]:
    """A value and the ends of its 95 % interval; the ends are None where the error is not known."""
    low, high = (None, None) if value is None or error is None else (value - Z_95 * error, value + Z_95 * error)
    return {"value": value, "low": low, "high": high}


def point(series: str, line: str, x: str | float, value: float | None, error: float | None = None) -> dict[str, Any]:
    """A point of a line: its series, its kind of line, its place, its value and the ends of its 95 % band."""
    return {"series": series, "line": line, "x": x} | with_ends(value, error)


def colour(names: Sequence[str], field: str = "series", colours: Sequence[str] = COLOURS) -> alt.Color:
    """A colour for each name, drawn or not, with a legend narrow enough for a phone."""
    # A legend does not break its lines by itself, and a phone has 340 pixels for it.
    columns = max(1, 340 // (30 + 7 * max(map(len, names))))
    return alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=list(names), range=[colours[k % len(colours)] for k in range(len(names))]),
        legend=alt.Legend(orient="top", title=None, symbolOpacity=1, labelLimit=310, columns=columns),
    )


def ends_known(rows: list[dict[str, Any]]) -> bool:
    """Whether any row has an interval; a layer of nothing but unknown ends makes Vega warn on a reader's console."""
    return any(row["low"] is not None for row in rows)


def banded(
    base: alt.Chart, rows: list[dict[str, Any]], y_title: str | None, *, zero: bool = False, axis: Any = alt.Undefined
) -> tuple[list[alt.Chart], alt.Chart]:
    """The band from low to high where any is known, and a line, on a vertical axis that begins at 0 or at the data."""
    vertical: dict[str, Any] = {"title": y_title, "scale": alt.Scale(zero=zero), "axis": axis}
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", **vertical), y2="high:Q")
    return [band] if ends_known(rows) else [], base.mark_line(strokeWidth=2).encode(y=alt.Y("value:Q", **vertical))


def lines(
    rows: list[dict[str, Any]],
    names: list[str] | None,
    titles: tuple[str, str],
    kinds: Sequence[str] = (),
    *,
    zero: bool = False,
) -> alt.LayerChart | None:
    """Lines with bands: one colour per series, one dash per kind, over named places or, without names, over numbers.

    `titles` are those of the horizontal and of the vertical axis.
    """
    x_title, y_title = titles
    rows = [row for row in rows if row["value"] is not None]
    if not rows:
        return None
    places: dict[str, Any] = {"title": x_title, "axis": alt.Axis(labelAngle=0, labelOverlap="greedy")}
    x = alt.X("x:Q", **places) if names is None else alt.X("x:O", sort=names, **places)
    series = list(dict.fromkeys(row["series"] for row in rows))
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, color=colour(series), detail="line:N")
    bands, line = banded(base, rows, y_title or None, zero=zero)
    tooltips: list[Any] = [x, "series:N"]
    if len(kinds) > 1:
        dash = alt.StrokeDash(
            "line:N",
            scale=alt.Scale(domain=list(kinds), range=[_DASHES[k % len(_DASHES)] for k in range(len(kinds))]),
            legend=alt.Legend(orient="top", title=None, labelLimit=310, symbolSize=600),
        )
        line, tooltips = line.encode(strokeDash=dash), [*tooltips, "line:N"]
    # A separate layer of points: as an overlay of the line they would hide its dashes in the legend.
    points = base.mark_circle(size=40, opacity=1).encode(y="value:Q", tooltip=[*tooltips, *_ESTIMATE])
    return alt.layer(*bands, line, points).properties(width="container", height=280)


def about_zero(
    rows: list[dict[str, Any]], title: str, colours: alt.Color, series: Sequence[str] = ()
) -> alt.LayerChart | None:
    """Changes with their 95 % intervals, one row per name; each of `series` has its own place in the row."""
    if not rows:
        return None
    names = list(dict.fromkeys(row["x"] for row in rows))
    y: dict[str, Any] = {"y": alt.Y("x:N", sort=names, title=None, axis=alt.Axis(labelLimit=160))}
    if series:
        y["yOffset"] = alt.YOffset("series:N", sort=list(series))
    base = alt.Chart(alt.Data(values=rows)).encode(**y, color=colours)
    zero = alt.Chart(alt.Data(values=[{"x": 0}])).mark_rule(strokeDash=[3, 3], opacity=0.6).encode(x="x:Q")
    bars = [base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q")] if ends_known(rows) else []
    points = base.mark_point(filled=True, size=70).encode(
        x=alt.X("value:Q", title=title), tooltip=["x:N", "series:N", *_ESTIMATE]
    )
    height = max(100, 15 * len(rows) + 20 * len(names))
    return alt.layer(zero, *bars, points).properties(width="container", height=height)
