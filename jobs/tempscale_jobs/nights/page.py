"""The record of nights as a table for a terminal and as a report."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl

from tempscale_jobs.nights.charts import over_nights, reason, state, switches
from tempscale_jobs.report.sections import Part, Report, Table, group, tabled
from tempscale_jobs.report.text import FIGURES, NAMES, count, estimate, labels, model_name

_FIGURES = {name: NAMES[name] for name in (*FIGURES, "exposure_long", "truncated_share", "texts")}


def heads() -> list[str]:
    """The column heads of `table`."""
    return ["night", "model", "τ", "texts", *FIGURES.values(), "gate"]


def table(record: pl.DataFrame, last: int) -> list[list[str]]:
    """One line for each model and temperature in each of the last nights."""
    nights = record["night"].unique().sort().tail(last)
    names = labels(record["temperature"])
    return [
        [
            row["night"], model_name(row["model"]), names[row["temperature"]], f"{row['texts']:,}",
            *(estimate(row, name) for name in FIGURES), state(row),
        ]
        for row in record.filter(pl.col("night").is_in(nights.to_list())).to_dicts()
    ]  # fmt: skip


def reasons(record: pl.DataFrame, last: int) -> list[str]:
    """A line for each of the last nights of which there is something to say."""
    nights = record["night"].unique().sort().tail(last)
    runs = record.filter(pl.col("night").is_in(nights.to_list())).unique("run", keep="first", maintain_order=True)
    return [f"{state(row)} on {row['night']}: {reason(row)}" for row in runs.to_dicts() if reason(row)]


def report_of(record: pl.DataFrame) -> Report:
    """The report of a record with at least one night: figures with errors, failed checks, changes of model and corpus."""
    nights, last = record["night"].unique().sort(), record.row(-1, named=True)
    parts = [
        _part(f"h{place}", _title(rows, record), rows)
        for place, (_, rows) in enumerate(record.group_by("name", "temperature", maintain_order=True))
    ]
    failed = [f"The last night failed: {reason(last)}."] if state(last) == "failed" else []
    where = f"{count(len(nights), 'night')} · {nights[0]} to {nights[-1]}"
    return Report("The record of nights", where, parts, failed)


def _part(place: str, title: str, rows: pl.DataFrame) -> Part:
    """What the page says of one model and temperature."""
    changed = [f"From {switch['night']} on the model is {switch['model']}." for switch in switches(rows)]
    states = Counter(state(row) for row in rows.to_dicts())
    cells = [
        (night, model, f"{verdict}\n{reason(row)}" if reason(row) else verdict, _changes(row), texts, *figures)
        for row, (night, model, _, texts, *figures, verdict) in zip(
            rows.reverse().to_dicts(), table(rows, len(rows))[::-1], strict=True
        )
    ]
    names = ("night", "model", "gate", "since the night before", "texts", *FIGURES.values())
    return Part(
        place,
        title,
        f"{count(len(rows), 'night')}: {', '.join(f'{number} {name}' for name, number in states.items())}.",
        sections=[
            *group("Nights", tabled("nights", Table(names, cells, words=4)), sentences=changed),
            *group("Figures", *(over_nights(place, rows, name, label) for name, label in _FIGURES.items())),
        ],
    )


def _title(rows: pl.DataFrame, record: pl.DataFrame) -> str:
    temperature = labels(record["temperature"])[rows["temperature"][0]]
    return f"{rows['name'][0]}, {temperature}" if rows["name"][0] else temperature


def _changes(row: dict[str, Any]) -> str:
    if row["texts_added"] is None:
        return ""
    return ", ".join(f"{row[f'texts_{what}']:,} {what}" for what in ("added", "removed", "edited"))
