"""The record of nights as a table for a terminal and as one self-contained HTML page."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.nights.charts import chart, reason, state, switches
from tempscale_jobs.report.page import Page, page
from tempscale_jobs.report.text import estimate, labels

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


def heads() -> list[str]:
    """The column heads of `table`."""
    return ["night", "model", "τ", "texts", "mean cosine", "collapse gap", "prefix gap", "mean SOCM", "gate"]


def table(record: pl.DataFrame, last: int) -> list[list[str]]:
    """One line for each model and temperature in each of the last nights."""
    nights = record["night"].unique().sort().tail(last)
    names = labels(record["temperature"].unique(maintain_order=True))
    return [
        [
            row["night"], row["model"], names[row["temperature"]], f"{row['texts']:,}",
            *(estimate(row, name) for name in ("cosine_mean", "collapse_gap", "prefix_gap", "socm_mean")), state(row),
        ]
        for row in record.filter(pl.col("night").is_in(nights.to_list())).to_dicts()
    ]  # fmt: skip


def reasons(record: pl.DataFrame, last: int) -> list[str]:
    """A line for each of the last nights of which there is something to say."""
    nights = record["night"].unique().sort().tail(last)
    runs = record.filter(pl.col("night").is_in(nights.to_list())).unique("run", keep="first", maintain_order=True)
    return [f"{state(row)} on {row['night']}: {reason(row)}" for row in runs.to_dicts() if reason(row)]


def render(record: pl.DataFrame) -> Page:
    """The page of a record with at least one night: figures with errors, failed checks, changes of model and corpus."""
    series: list[dict[str, Any]] = [
        {
            "id": f"h{place}",
            "name": _title(rows, record),
            "charts": {name: chart(rows, name, title) for name, title, _ in _FIGURES},
            "rows": [
                {"folder": row["folder"], "state": state(row), "reason": reason(row), "changes": _changes(row)}
                | dict(zip(heads(), cells, strict=True))
                for row, cells in zip(rows.reverse().to_dicts(), table(rows, len(rows))[::-1], strict=True)
            ],
            "switches": switches(rows),
        }
        for place, (_, rows) in enumerate(record.group_by("name", "temperature", maintain_order=True))
    ]
    charts = {f"{s['id']}-{key}": chart for s in series for key, chart in s["charts"].items() if chart is not None}
    nights = record["night"].unique().sort()
    return page(
        "history.html.j2", {}, charts, {}, models=series, figures=_FIGURES, nights=len(nights), first=nights[0],
        last=nights[-1],
    )  # fmt: skip


def _title(rows: pl.DataFrame, record: pl.DataFrame) -> str:
    temperature = labels(record["temperature"].unique(maintain_order=True))[rows["temperature"][0]]
    return f"{rows['name'][0]}, {temperature}" if rows["name"][0] else temperature


def _changes(row: dict[str, Any]) -> str:
    if row["texts_added"] is None:
        return ""
    return ", ".join(f"{row[f'texts_{what}']:,} {what}" for what in ("added", "removed", "edited"))
