"""What a page says of the prefix gap, a bar and a sentence for each part, and of the tenths that a vector follows."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from tempscale.collapse.decomposition import FIGURES
from tempscale.collapse.positions import TENTHS
from tempscale_jobs.report.charts import about_zero, colour, lines, point, side_by_side
from tempscale_jobs.report.findings import state, together
from tempscale_jobs.report.sections import Section, drawn, group
from tempscale_jobs.report.text import count, with_error

Row = dict[str, Any]
_NAMES = {
    "prefix_gap": "longer prefixes", "pooling": "averaging segments", "context": "reading them together",
    "fixed_content": "first segment repeated", "topic_change": "other texts' segments",
}  # fmt: skip


def section(place: str, table: pl.DataFrame) -> list[Section]:
    """The chart, with sentences on the first temperature; `place` begins its key."""
    if table.is_empty():
        return []
    rows = [point(row["temperature"], "", _NAMES[row["figure"]], row["value"], row["se"]) for row in table.to_dicts()]
    temperatures = table["temperature"].unique(maintain_order=True).to_list()
    drawing = about_zero(rows, "difference of mean cosines", colour(temperatures), temperatures)
    sentences = _sentences(table.filter(temperature=temperatures[0]))
    return group("What the prefix gap is made of", drawn(place, "decomposition", drawing), sentences=sentences)


def _sentences(table: pl.DataFrame) -> list[str]:
    """What each figure of one temperature says, and no more than its error allows."""
    rows = {row["figure"]: row for row in table.to_dicts()}
    first = rows["prefix_gap"]
    short, long = first["tokens_short"], first["tokens_long"]
    gap, pooling, context, fixed, topic = (_moved(rows[name]) if name in rows else "" for name in FIGURES)
    sentences = [
        f"A longer prefix, {long} tokens instead of {short} of each of the same {count(first['texts'], 'text')}, {gap}.",
        f"Averaging their segments of {short} tokens, each embedded alone, {pooling}. That the model reads these tokens "
        f"together {context}. The two add up to the first figure.",
        f"The first {short} tokens alone, repeated up to {long}: that {fixed}.",
        f"The same {short} tokens, followed by other texts instead of their own: that {topic}.",
    ]
    return sentences if topic else sentences[:-1]


def by_tenth(place: str, table: pl.DataFrame) -> list[Section]:
    """The chart of all lengths, a panel for each temperature, with a sentence on the longest under the first one."""
    if table.is_empty():
        return []
    panels = {}
    for temperature in table["temperature"].unique(maintain_order=True).to_list():
        rows = table.filter(temperature=temperature).to_dicts()
        points = [point(f"{row['tokens']} tokens", "", str(row["tenth"]), row["cosine"], row["se"]) for row in rows]
        titles = ("tenth of the text", "cosine with it replaced")
        panels[temperature] = lines(points, [str(k + 1) for k in range(TENTHS)], titles)
    drawing = next(iter(panels.values())) if len(panels) == 1 else side_by_side(panels)
    first = table.filter(temperature=table["temperature"][0]).filter(pl.col("tokens") == pl.col("tokens").max())
    return group("Position", drawn(place, "positions", drawing), sentences=[followed(first.to_dicts())])


def followed(rows: list[Row]) -> str:
    """Which tenth the vector follows most and least, where that is beyond noise of all pairs of tenths."""
    most, least = (choose(rows, key=lambda row: row["cosine"]) for choose in (min, max))
    texts, tokens = count(rows[0]["texts"], "text"), rows[0]["tokens"]
    figures = [with_error(row["cosine"], row["se"]) for row in (most, least)]
    beginning = f"Of {texts} of {tokens} tokens, one tenth replaced by another text's"
    if None in (most["se"], least["se"]):
        return f"{beginning} leaves a cosine from {figures[0]} to {figures[1]}; too few documents to compare tenths."
    error = math.hypot(most["se"], least["se"])
    if state(least["cosine"] - most["cosine"], error, z=together(TENTHS * (TENTHS - 1) // 2)) != "up":
        return f"{beginning} leaves a cosine from {figures[0]} to {figures[1]}: no two tenths differ beyond noise."
    return (
        f"{beginning} changes the vector most where it is tenth {most['tenth']} (cosine {figures[0]}), least where it is "
        f"tenth {least['tenth']} ({figures[1]})."
    )


def _moved(row: Row) -> str:
    """A verb for a difference, and the difference."""
    figure = with_error(row["value"], row["se"])
    return {
        "up": f"brings them closer, by {figure}", "down": f"moves them apart, by {figure}",
        "noise": f"makes no difference beyond noise ({figure})",
    }.get(state(row["value"], row["se"], z=together(len(FIGURES))), f"makes a difference of {figure}")  # fmt: skip
