"""What a page says of variants of the vectors: a sentence, a line of the table and a point of the chart for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from tempscale.correction.variant_names import chunks_of, model_of
from tempscale_jobs.nights.words import carried, threshold_line
from tempscale_jobs.report.charts import COLOURS, ends_known, with_ends
from tempscale_jobs.report.findings import state, together
from tempscale_jobs.report.sections import Drawing, Section, Table, drawn, group, tabled
from tempscale_jobs.report.text import count, interval_name, share, share_with_error, with_error

Row = dict[str, Any]
_ASKED = {"corpus": "a text", "queries": "a query"}


def section(place: str, tables: Mapping[str, pl.DataFrame], edges: Sequence[int]) -> list[Section]:
    """The section of one model; `place` begins the key of its chart."""
    table, thresholds = tables["what_if"], tables["what_if_thresholds"]
    variants = _overall(table)
    if len(variants) < 2:
        return []
    return group(
        "What if the vectors were stored or changed in another way",
        drawn(place, "what-if", _drawing(variants, table, edges)),
        tabled("what-if-by-group", _by_group(variants, table)),
        tabled("what-if-thresholds", _by_length(thresholds, edges)),
        sentences=[
            *(sentence(row, table, edges) for row in variants if row["what"]),
            *(carried(row, "", f" of {row['what']}") for row in _overall(thresholds)),
        ],
    )


def _overall(table: pl.DataFrame) -> list[Row]:
    """The rows of all askers, that of the vectors as they are first; or of all pairs."""
    rows: list[Row] = table.filter(pl.col("by").is_null()).to_dicts()
    return rows


def sentence(row: Row, table: pl.DataFrame, edges: Sequence[int]) -> str:
    """What one variant keeps, costs and changes."""
    if chunks_of(row["what"]) is not None:
        return _of_chunks(row, table)
    as_it_is = _as_it_is(table)
    parts = [
        f"{row['what']} keeps {_kept(row)} of the {count(row['k'], 'nearest text')} of {_ASKED[row['asked_by']]}, at "
        f"{_size(row)} a vector instead of {_size(as_it_is)}"
    ]
    if model_of(row["what"]) is not None:
        lost = as_it_is["vectors"] - row["vectors"]
        if lost > 0:
            parts.append(f"{count(lost, 'text')} that it rejects {'counts' if lost == 1 else 'count'} as not found")
        return f"{'; '.join([*parts, *_gap(row, as_it_is, ', each by its own tokens,')])}."
    moved = _moved(row, table)
    parts += [
        f"exposure of texts of {interval_name(int(one['group']), edges)} tokens moves by {_change(one)}, to "
        f"{with_error(one['exposure'], one['exposure_se_superpopulation'])}"
        for one in moved[:1]
    ]
    if not moved:
        parts.append("no length's exposure moves beyond noise")
    return f"{'; '.join(parts)}."


def _of_chunks(row: Row, table: pl.DataFrame) -> str:
    """What chunks instead of whole texts keep, cost and change."""
    as_it_is = _as_it_is(table)
    parts = [
        f"{row['what']} makes {count(row['vectors'], 'chunk')} of {count(as_it_is['vectors'], 'text')}, and "
        f"{share(row['truncated_share'])} of them are longer than the model reads, instead of "
        f"{share(as_it_is['truncated_share'])}"
    ]
    if row["neighbours_kept"] is not None:
        parts.append(
            f"the {count(row['k'], 'nearest chunk')} of a query are from {row['texts_found']:.1f} different texts, with "
            f"{_kept(row)} of the {count(row['k'], 'nearest text')}"
        )
    return f"{'; '.join([*parts, *_gap(row, as_it_is, ', of chunks,')])}."


def _gap(row: Row, as_it_is: Row, whose: str = "") -> list[str]:
    """The collapse gap of other vectors of the texts; nothing where it was not measured."""
    if row["collapse_gap"] is None or as_it_is["collapse_gap"] is None:
        return []
    before, after = (with_error(one["collapse_gap"], one["collapse_gap_se_superpopulation"]) for one in (as_it_is, row))
    return [f"the collapse gap{whose} is {after} instead of {before}"]


def _as_it_is(table: pl.DataFrame) -> Row:
    row: Row = table.filter(what="").row(0, named=True)
    return row


def _moved(row: Row, table: pl.DataFrame) -> list[Row]:
    """The lengths whose exposure a variant moves beyond the noise of all lengths together, the largest move first."""
    rows = table.filter(pl.col("what") == row["what"], by="length").to_dicts()
    known = [one for one in rows if one["exposure_change_se_superpopulation"]]
    z = together(len(known))
    beyond = [
        one
        for one in known
        if state(one["exposure_change"], one["exposure_change_se_superpopulation"], z=z) in ("up", "down")
    ]
    return sorted(beyond, key=lambda one: -abs(one["exposure_change"]))


def _kept(row: Row) -> str:
    return share_with_error(row["neighbours_kept"], row["neighbours_kept_se"])


def _change(row: Row) -> str:
    return with_error(row["exposure_change"], row["exposure_change_se_superpopulation"])


def _size(row: Row) -> str:
    """The bytes of a vector."""
    return count(int(row["vector_bytes"]), "byte")


def _drawing(variants: Sequence[Row], table: pl.DataFrame, edges: Sequence[int]) -> Drawing:
    """Neighbours kept against bytes, a point for each variant, and the figures of each, also by length."""
    points = [
        {"what": row["what"] or "as it is", "bytes": row["vector_bytes"] * row["vectors"] / variants[0]["vectors"]}
        | with_ends(
            100 * row["neighbours_kept"], None if row["neighbours_kept_se"] is None else 100 * row["neighbours_kept_se"]
        )
        for row in variants
        if row["neighbours_kept"] is not None
    ]
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("bytes:Q", title="bytes of the vectors of a text", scale=alt.Scale(type="log"))
    )
    y = alt.Y("value:Q", title="nearest texts that stay, %", scale=alt.Scale(zero=True))
    dots = base.mark_circle(size=60, opacity=1, color=COLOURS[0]).encode(y=y, tooltip=["what:N", "bytes:Q", "value:Q"])
    names = base.mark_text(align="left", dx=7, dy=-7).encode(y=y, text="what:N")
    bars = [base.mark_rule(color=COLOURS[0]).encode(y=alt.Y("low:Q"), y2="high:Q")] if ends_known(points) else []
    chart = alt.layer(*bars, dots, names).properties(width="container", height=280)
    by_length = {(row["what"], int(row["group"])): row for row in table.filter(by="length").to_dicts()}
    lengths = sorted({edge for _, edge in by_length})
    rows = [
        (row["what"] or "as it is", f"{row['vectors']:,} × {_size(row)}", _kept(row), with_error(
            row["collapse_gap_change"], row["collapse_gap_change_se_superpopulation"]
        ), *(_cell(None if model_of(row["what"]) else by_length.get((row["what"], edge))) for edge in lengths))
        for row in variants
    ]  # fmt: skip
    heads = ("variant", "vectors", "nearest texts that stay", "change of the collapse gap")
    return Drawing(chart, Table((*heads, *(f"{interval_name(edge, edges)} tokens" for edge in lengths)), rows))


def _by_group(variants: Sequence[Row], table: pl.DataFrame) -> Table:
    """What each variant keeps and changes for the groups of the columns of --by."""
    rows = table.filter(pl.col("by").is_not_null(), pl.col("by") != "length").to_dicts()
    by_variant = {(row["by"], row["group"], row["what"]): row for row in rows}
    names = [row["what"] for row in variants]
    groups = dict.fromkeys((row["by"], row["group"]) for row in rows)
    cells = [(*group, *(_cell(by_variant.get((*group, what))) for what in names)) for group in groups]
    return Table(("column", "group", *(what or "as it is" for what in names)), cells)


def _by_length(thresholds: pl.DataFrame, edges: Sequence[int]) -> Table:
    """The thresholds of two texts of one length that are carried over to other models."""
    rows = thresholds.filter(by="length").to_dicts()
    heads = ("variant", "two texts of", "threshold", "passes", "the variant's", "stay")
    return Table(heads, [(row["what"], *threshold_line(row, edges)) for row in rows])


def _cell(row: Row | None) -> str:
    """The neighbours that a length or group keeps, and the exposure that it has."""
    if row is None:
        return "–"
    kept = "–" if row["neighbours_kept"] is None else share(row["neighbours_kept"])
    exposure = "–" if row["exposure"] is None else with_error(row["exposure"], row["exposure_se_superpopulation"])
    return f"{kept}\nexposure {exposure}"
