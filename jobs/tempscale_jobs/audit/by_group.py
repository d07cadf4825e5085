"""What a page says of groups of texts, a section for each column of --by: which fill the results and attract themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tempscale_jobs.audit.findings import exposed_group, most_neighbours, of_row, staying_group
from tempscale_jobs.report.charts import about_one, point
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.sections import Drawing, Section, Table, drawn, group, tabled
from tempscale_jobs.report.text import count, share, share_with_error, with_error

Row = dict[str, Any]
Tables = dict[str, pl.DataFrame]
_ASKED = {"corpus": "asked by the texts", "queries": "asked by the queries"}
_OWN = {"corpus": "texts", "queries": "queries"}
_SAID = 3
"""Groups that a sentence names."""
_CHARACTERS = 40
"""A longer name of a group is cut."""


def sections(place: str, tables: Tables, row: Row, joined: Mapping[str, Row]) -> list[Section]:
    """The sections of one model; `row` is that of its first temperature, `joined` what run.json says of each column."""
    exposed, cosines = (tables[name] for name in ("group_exposure", "group_cosine"))
    found, parts = Findings.read(tables["findings"]), list[Section]()
    for place_of, by in enumerate(dict.fromkeys([*exposed["by"], *cosines["by"]])):
        rows = most_neighbours(of_row(exposed, row).filter(by=by)).to_dicts()
        parts += group(
            f"By {by}",
            drawn(place, f"by-{place_of}", _drawing(exposed.filter(by=by), rows), "exposure_by_group"),
            tabled("group_cosine", _cosines(of_row(cosines, row).filter(by=by).to_dicts())),
            sentences=[*_joined(joined.get(by)), *_sentences(rows, found)],
        )
    return parts


def _joined(known: Row | None) -> list[str]:
    """Which groups were joined."""
    if known is None or not known["joined"]:
        return []
    more = known["joined"] - len(known["names"])
    names = ", ".join(map(_short, known["names"])) + (f" and {more:,} more" if more else "")
    why = "of fewer than 30 texts, or beyond the 50 largest,"
    one = known["joined"] == 1
    return [f"{count(known['joined'], 'group')} {why} {'is' if one else 'are joined as'} (others): {names}."]


def _sentences(rows: Sequence[Row], found: Findings) -> list[str]:
    """What is beyond noise for all groups together: results that they take, and results that stay."""
    sentences = list[str]()
    for asked_by in dict.fromkeys(row["asked_by"] for row in rows):
        here = [row for row in rows if row["asked_by"] == asked_by]
        taking = [row for row in here if found.at(exposed_group(row), row).is_beyond_noise]
        parts = [
            f"{_named(row)} takes {share(row['slots_share'])}, with {share(row['texts_share'])} of the texts "
            f"(exposure {with_error(row['exposure'], row['exposure_se_superpopulation'])})"
            for row in sorted(taking, key=lambda row: -abs(row["exposure"] - 1))[:_SAID]
        ]
        none = "no group takes more or less than its share beyond noise"
        sentences.append(f"Results {_ASKED[asked_by]}: {_with_more(parts, len(taking)) or none}.")
        if not any(row["stays_se"] for row in here):
            continue
        staying = [row for row in here if found.at(staying_group(row), row).is_beyond_noise]
        parts = [
            f"{share_with_error(row['stays'], row['stays_se'])} stay in {_named(row)}, where "
            f"{share(row['stays_expected'])} would if groups did not matter"
            for row in sorted(staying, key=lambda row: -abs(row["stays"] - row["stays_expected"]))[:_SAID]
        ]
        none = "no group attracts or avoids itself beyond noise"
        sentences.append(f"Results of each group's own {_OWN[asked_by]}: {_with_more(parts, len(staying)) or none}.")
    return sentences


def _with_more(parts: Sequence[str], groups: int) -> str:
    more = groups - len(parts)
    return "; ".join([*parts, *([f"{count(more, 'other group')} also differ{'s' * (more == 1)} beyond noise"] * bool(more))])


def _drawing(table: pl.DataFrame, rows: Sequence[Row]) -> Drawing | None:
    """Exposure of each group under each temperature, and a table of the first temperature's figures."""
    kinds = dict.fromkeys(row["asked_by"] for row in rows)
    points = [
        point(
            ", ".join([row["temperature"], *([_ASKED[row["asked_by"]]] if len(kinds) > 1 else [])]), "",
            _short(row["group"]), row["exposure"], row["exposure_se_superpopulation"],
        )
        for row in most_neighbours(table).to_dicts()
    ]  # fmt: skip
    chart = about_one(points, "exposure")
    if chart is None:
        return None
    cells = {(row["group"], row["asked_by"]): row for row in rows}
    heads = [f"{what}, {_ASKED[asked_by]}" for asked_by in kinds for what in ("exposure", "results that stay", "expected")]
    lines = [
        (
            f"{_short(name)}\n{count(texts, 'text')}",
            *(cell for asked_by in kinds for cell in _figures(cells[name, asked_by])),
        )
        for name, texts in dict.fromkeys((row["group"], row["texts"]) for row in rows)
    ]
    return Drawing(chart, Table(("group", *heads), lines))


def _figures(row: Row) -> tuple[str, str, str]:
    """What a group takes, and what stays in it."""
    exposure = with_error(row["exposure"], row["exposure_se_superpopulation"])
    return exposure, share_with_error(row["stays"], row["stays_se"]), share(row["stays_expected"])


def _cosines(rows: Sequence[Row]) -> Table:
    """The mean cosine inside each group and between each two."""
    cells = {
        pair: with_error(row["cosine_mean"], row["cosine_mean_se_superpopulation"])
        for row in rows
        for pair in ((row["group_a"], row["group_b"]), (row["group_b"], row["group_a"]))
    }
    names = list(dict.fromkeys(name for pair in cells for name in pair))
    lines = [(_short(b), *(cells.get((a, b), "–") for a in names)) for b in names]
    return Table(("group", *map(_short, names)), lines)


def _named(row: Row) -> str:
    return f"{row['by']}={_short(row['group'])}"


def _short(name: str) -> str:
    return name if len(name) <= _CHARACTERS else f"{name[: _CHARACTERS - 1]}…"
