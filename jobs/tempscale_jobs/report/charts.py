"""Charts that several reports draw, each with its figures as a table; one colour per name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tempscale.stats.errors import Z_95
from tempscale_jobs.report.sections import Drawing, Table
from tempscale_jobs.report.text import interval_name, number, with_error

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]
GREY = "#8a94a3"
"""Of what says nothing either way."""
_DASHES = ([1, 0], [5, 4], [2, 3], [8, 3, 2, 3])
_ESTIMATE = [alt.Tooltip(f"{name}:Q", format=".4f") for name in ("value", "low", "high")]
_PANEL = 330
"""Pixels of one of several small charts."""
Point = dict[str, Any]


def with_ends(value: float | None, error: float | None) -> dict[str, float | None]:
    """A value and the ends of its 95 % interval; the ends are None where the error is not known."""
    low, high = (None, None) if value is None or error is None else (value - Z_95 * error, value + Z_95 * error)
    return {"value": value, "low": low, "high": high}


def point(series: str, line: str, x: str | float, value: float | None, error: float | None = None) -> Point:
    """A point of a line: its series, its kind of line, its place, its value and the ends of its 95 % band."""
    return {"series": series, "line": line, "x": x} | with_ends(value, error)


def figures_of(points: Sequence[Point], x_title: str) -> Table:
    """The figures of a chart: a row for each place, a column for each line; with errors where a line has any."""
    columns = list(dict.fromkeys((row["series"], row["line"]) for row in points))
    cells = {(row["x"], row["series"], row["line"]): row for row in points}
    uncertain = {(row["series"], row["line"]) for row in points if row["low"] is not None}
    rows = [
        (str(x), *(_figure(cells.get((x, *column)), column in uncertain) for column in columns))
        for x in dict.fromkeys(row["x"] for row in points)
    ]
    return Table((x_title, *(", ".join(filter(None, column)) for column in columns)), rows)


def _figure(row: Point | None, uncertain: bool) -> str:
    if row is None or not uncertain:
        return number(None if row is None else row["value"])
    return with_error(row["value"], None if row["low"] is None else (row["high"] - row["value"]) / Z_95)


def colour(names: Sequence[str], field: str = "series", colours: Sequence[str] = COLOURS) -> alt.Color:
    """A colour for each name, drawn or not, with a legend narrow enough for a phone."""
    # A legend does not break its lines by itself, and a phone has 340 pixels for it.
    columns = max(1, 340 // (30 + 7 * max(map(len, names))))
    return alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=list(names), range=[colours[k % len(colours)] for k in range(len(names))]),
        legend=alt.Legend(orient="top", title=None, symbolOpacity=1, labelLimit=310, columns=columns),
    )


def rule_at(value: float, axis: str = "y") -> alt.Chart:
    """A dashed line at a value that a reader compares with."""
    rule = alt.Chart(alt.Data(values=[{axis: value}])).mark_rule(strokeDash=[3, 3], opacity=0.6)
    return rule.encode(**{axis: f"{axis}:Q"})


def ends_known(rows: Sequence[Point]) -> bool:
    """Whether any row has an interval; a layer of nothing but unknown ends makes Vega warn on a reader's console."""
    return any(row["low"] is not None for row in rows)


def banded(
    base: alt.Chart, rows: Sequence[Point], y_title: str | None, *, zero: bool = False, axis: Any = alt.Undefined
) -> tuple[list[alt.Chart], alt.Chart]:
    """The band from low to high where any is known, and a line, on a vertical axis that begins at 0 or at the data."""
    vertical: dict[str, Any] = {"title": y_title, "scale": alt.Scale(zero=zero), "axis": axis}
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("low:Q", **vertical), y2="high:Q")
    return [band] if ends_known(rows) else [], base.mark_line(strokeWidth=2).encode(y=alt.Y("value:Q", **vertical))


def lines(
    rows: Sequence[Point],
    names: list[str] | None,
    titles: tuple[str, str],
    kinds: Sequence[str] = (),
    *,
    zero: bool = False,
) -> Drawing | None:
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
    chart = alt.layer(*bands, line, points).properties(width="container", height=280)
    ordered = rows if names is None else sorted(rows, key=lambda row: names.index(row["x"]))
    return Drawing(chart, figures_of(ordered, x_title))


def by_length(
    points: Sequence[Point], edges: Sequence[int], title: str, kinds: Sequence[str] = (), *, zero: bool = False
) -> Drawing | None:
    """Lines over length intervals: the place of a point is the lower edge of its interval."""
    names = {edge: interval_name(edge, edges) for edge in sorted({row["x"] for row in points})}
    rows = [row | {"x": names[row["x"]]} for row in points]
    return lines(rows, [*names.values()], ("length in tokens", title), kinds, zero=zero)


def about_zero(rows: Sequence[Point], title: str, colours: alt.Color, series: Sequence[str] = ()) -> Drawing | None:
    """Changes with their 95 % intervals, one row per name; each of `series` has its own place in the row."""
    if not rows:
        return None
    return Drawing(_bars(rows, title, colours, series, 0), figures_of(rows, title))


def about_one(rows: Sequence[Point], title: str) -> alt.Chart | None:
    """Ratios with their 95 % intervals, one row per name; each series has its own place in the row."""
    series = list(dict.fromkeys(row["series"] for row in rows))
    return _bars(rows, title, colour(series), series, 1) if rows else None


def _bars(rows: Sequence[Point], title: str, colours: alt.Color, series: Sequence[str], expected: float) -> alt.Chart:
    """Values with their 95 % intervals about an expected one."""
    names = list(dict.fromkeys(row["x"] for row in rows))
    y: dict[str, Any] = {"y": alt.Y("x:N", sort=names, title=None, axis=alt.Axis(labelLimit=160))}
    if series:
        y["yOffset"] = alt.YOffset("series:N", sort=list(series))
    base = alt.Chart(alt.Data(values=rows)).encode(**y, color=colours)
    bars = [base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=title), x2="high:Q")] if ends_known(rows) else []
    points = base.mark_point(filled=True, size=70).encode(
        x=alt.X("value:Q", title=title), tooltip=["x:N", "series:N", *_ESTIMATE]
    )
    height = max(100, 15 * len(rows) + 20 * len(names))
    return alt.layer(rule_at(expected, "x"), *bars, points).properties(width="container", height=height)


def side_by_side(panels: Mapping[str, Drawing | None], size: tuple[int, int] = (_PANEL, 260)) -> Drawing | None:
    """Small charts, each with its title, and one table of their figures; None where there is none."""
    drawn = {title: panel for title, panel in panels.items() if panel is not None}
    if not drawn:
        return None
    width, height = size
    charts = [panel.chart.properties(width=width, height=height, title=panel_title(title)) for title, panel in drawn.items()]
    first, heads = next(iter(drawn.values())).table.heads[0], dict[str, None]()
    for panel in drawn.values():
        heads |= dict.fromkeys(panel.table.heads[1:])
    rows = [
        (title, row[0], *(dict(zip(panel.table.heads, row, strict=True)).get(head, "–") for head in heads))
        for title, panel in drawn.items()
        for row in panel.table.rows
    ]
    return Drawing(alt.concat(*charts, columns=2, spacing=28), Table(("", first, *heads), rows, words=2))


def panel_title(label: str) -> alt.TitleParams:
    """A panel's title, smaller where it is long: a panel may be no wider than 260 pixels."""
    return alt.TitleParams(text=label, fontSize=13 if len(label) <= 24 else 10)
