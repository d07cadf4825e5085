"""What a page says of the decomposition of the prefix gap: a bar and a sentence for each part."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale.collapse.decomposition import FIGURES
from tempscale_jobs.audit.findings import together
from tempscale_jobs.report.charts import about_zero, colour, point
from tempscale_jobs.report.findings import state
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


def _moved(row: Row) -> str:
    """A verb for a difference, and the difference."""
    figure = with_error(row["value"], row["se"])
    return {
        "up": f"brings them closer, by {figure}", "down": f"moves them apart, by {figure}",
        "noise": f"makes no difference beyond noise ({figure})",
    }.get(state(row["value"], row["se"], z=together(len(FIGURES))), f"makes a difference of {figure}")  # fmt: skip
