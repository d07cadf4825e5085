"""Tables of `tempscale tune` -> one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tempscale_jobs.report.charts import COLOURS, GREY, about_zero, by_length, colour, point
from tempscale_jobs.report.provenance import how_made
from tempscale_jobs.report.sections import Drawing, Figure, Part, Report, Section, Table, drawn, group, subject, tabled
from tempscale_jobs.report.text import Edges, count, interval_name, labels, number, share, signed, with_error
from tempscale_jobs.tune import words as sentences
from tempscale_jobs.urls import masked

_KINDS = ("chosen", "eligible", "not eligible")


def report_of(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Report:
    """The report of a run of `tune`, from its tables by name and the content of run.json."""
    choice, config = run["choice"], run["config"]["choosing"]
    by_scores = choice["by"] == "scores"
    table = tables["tuning_scores" if by_scores else "tuning_collapse"]
    names = labels(table["temperature"])
    labelled = table.with_columns(pl.col("temperature").replace(names))
    with_correction = pl.format("{} at {}", "correction", "temperature")
    labelled = labelled.with_columns(
        pl.when(pl.col("correction").is_null()).then("temperature").otherwise(with_correction).alias("temperature")
    )
    if by_scores:
        where, sections = f"by scores on {', '.join(choice['tasks'])}", _by_scores(labelled)
        made = how_made(run, "how_tune_scores", names)
    else:
        where = f"without labels, {count(choice['texts'], 'text')}, {choice['probed']} of them probed"
        intervals = tables["tuning_intervals"].with_columns(pl.col("temperature").replace(names))
        sections = _by_collapse(labelled, intervals, Edges.of(run, "choosing"))
        keep, neighbours = share(config["keep_neighbours"]), str(config["neighbours"])
        made = how_made(run, "how_tune_collapse", names, keep=keep, neighbours=neighbours)
    evidence = group("In words", sentences=sentences.evidence(run, tables))
    answer, figures = sentences.answer(run, tables), _figures(labelled, by_scores)
    part = Part("t", ", ".join(run["models"]), answer, figures, _to_do(run), [*evidence, *sections])
    return Report("Which attention temperature?", subject(run, where), [part], after=[made])


def _figures(table: pl.DataFrame, by_scores: bool) -> list[Figure]:
    """What the choice rests on: under the first candidate, and what the chosen one changes."""
    first, chosen = table.row(0, named=True), table.filter("chosen").row(0, named=True)
    columns = {"dev": "development score", "held": "held-out score"}
    if not by_scores:
        columns = {"prefix_gap": "prefix gap", "exposure_long": "exposure of the longest texts"}
    return [
        Figure(
            f"{label}, {first['temperature']}",
            number(first[f"{name}_score" if by_scores else name]),
            changes=[
                f"change with {chosen['temperature']}: "
                f"{signed(with_error(chosen[f'{name}_change'], chosen[f'{name}_change_se']))}"
            ]
            if chosen != first
            else [],
        )
        for name, label in columns.items()
    ]


def _to_do(run: dict[str, Any]) -> list[tuple[str, str]]:
    """The commands that use the choice, with what a reader must know of it."""
    mixed = " Embed queries and the whole index again, together: vectors of the two models do not mix."
    lead = f"The choice is in temperature.json next to this page.{'' if run['choice']['correction'] else mixed}"
    commands = sentences.then(run, masked(run["config"]["out"]))
    return [(lead if place == 0 else "Then:", command) for place, command in enumerate(commands)]


def _by_scores(table: pl.DataFrame) -> list[Section]:
    cells = [
        [
            number(row["dev_score"]), with_error(row["dev_change"], row["dev_change_se"]), number(row["held_score"]),
            with_error(row["held_change"], row["held_change_se"]),
        ]
        for row in table.to_dicts()
    ]  # fmt: skip
    return group(
        "Candidates",
        drawn("t", "scores", _halves(table), "halves"),
        _candidates("by_scores", table, Table(("development score", "change", "held-out score", "change"), cells)),
    )  # fmt: skip


def _by_collapse(table: pl.DataFrame, intervals: pl.DataFrame, edges: Sequence[int]) -> list[Section]:
    first, *others = table.to_dicts()
    cells = [[number(first["prefix_gap"]), number(first["exposure_long"]), "–", "–"]]
    cells += [
        [
            with_error(row["prefix_gap_change"], row["prefix_gap_change_se"]) if row["prefix_gap"] is not None else "–",
            with_error(row["exposure_long_change"], row["exposure_long_change_se"]),
            f"{row['rise']:.1f}, {interval_name(row['rise_interval'], edges)}".replace("-", "−"), share(row["short_kept"]),
        ]
        for row in others
    ]  # fmt: skip
    heads = ("prefix gap", "exposure", "largest rise ÷ error", "short texts' neighbours kept")
    inside = [point(row["temperature"], "", row["interval"], row["cosine_mean"]) for row in intervals.to_dicts()]
    exposure = _changes(table, "exposure_long_change", "change of the longest texts' exposure")
    return group(
        "Candidates",
        drawn("t", "gap", _changes(table, "prefix_gap_change", "change of the prefix gap")),
        drawn("t", "exposure", exposure, "exposure_change"),
        drawn("t", "intervals", by_length(inside, edges, "mean cosine")),
        _candidates("by_collapse", table, Table(heads, cells)),
    )  # fmt: skip


def _candidates(captioned: str, table: pl.DataFrame, figures: Table) -> list[Section]:
    """A row for each candidate, with the reason why it is chosen or not."""
    names = [f"{row['temperature']}\n{row['reason']}" for row in table.to_dicts()]
    rows = [(name, *cells) for name, cells in zip(names, figures.rows, strict=True)]
    return tabled(captioned, Table(("candidate", *figures.heads), rows))


def _kind(row: dict[str, Any]) -> str:
    return "chosen" if row["chosen"] else "eligible" if row["eligible"] else "not eligible"


def _halves(table: pl.DataFrame) -> Drawing | None:
    """The change of the score on both parts, with 95 % intervals."""
    parts = {"development part": "dev", "held-out part": "held"}
    rows = [
        point(part, "", row["temperature"], row[f"{name}_change"], row[f"{name}_change_se"])
        for row in table.to_dicts()[1:]
        for part, name in parts.items()
    ]
    return about_zero(rows, "change of the mean score", colour([*parts]), [*parts])


def _changes(table: pl.DataFrame, name: str, title: str) -> Drawing | None:
    """The change of a figure under each candidate with its 95 % interval, coloured by whether it may be chosen."""
    known = [row for row in table.to_dicts()[1:] if row[name] is not None]
    rows = [point(_kind(row), "", row["temperature"], row[name], row[f"{name}_se"]) for row in known]
    return about_zero(rows, title, colour(_KINDS, colours=[COLOURS[2], COLOURS[0], GREY]))
