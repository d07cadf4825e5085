"""What a page says of the texts that are found most: who they are, what is found instead if they go, and what none finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl

from tempscale.collapse.hubs import TIMES
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale_jobs.report.sections import Section, Table, group, tabled
from tempscale_jobs.report.text import count, interval_name, number, share, with_error
from tempscale_jobs.runs.folder import REMOVE

Row = dict[str, Any]


class _Words(NamedTuple):
    """What is said of those who ask."""

    title: str
    asker: str
    askers: str
    found: str
    """What happens to a text that they find."""

    def number(self, n: int) -> str:
        """So many askers."""
        return f"{n:,} {self.asker if n == 1 else self.askers}"


_WORDS = {
    "corpus": _Words("Texts that are most often a neighbour", "text", "texts", "a neighbour of"),
    "queries": _Words("Texts that are returned most", "query", "queries", "returned to"),
}
"""Nobody searches where texts of the corpus ask."""


def section(named: pl.DataFrame, removal: pl.DataFrame, edges: Sequence[int], is_listed: bool) -> list[Section]:
    """The section of one model, from its tables; `is_listed` where its texts that go are in remove.txt."""
    rows = removal.to_dicts()
    if not rows:
        return []
    whole, by_length = rows[0], rows[1:]
    words, texts = _WORDS[whole["asked_by"]], named.filter(asked_by=whole["asked_by"]).to_dicts()
    sentences = [*_who(texts, words), *_without(whole, by_length, edges, is_listed), *_never(whole)]
    heads = ("text", "kind", f"{words.askers} that have it", "near-duplicates", "may go")
    cells = [
        (_text(row), row["kinds"], f"{row['times']:,} ({share(row['times'] / row['askers'])})",
         f"{row['near_duplicates']:,}", "yes" if row["goes"] else "no")
        for row in texts
    ]  # fmt: skip
    return group(words.title, tabled("named", Table(heads, cells, words=2)), sentences=sentences)


def _text(row: Row) -> str:
    """A text by its id and length, with what it begins with."""
    excerpt = [row["excerpt"]] if row["excerpt"] else []
    return "\n".join([f"{row['text_id']} · {count(row['tokens'], 'token')}", *excerpt])


def _who(texts: Sequence[Row], words: _Words) -> list[str]:
    """How many hubs and copies there are."""
    if not texts:
        return []
    hubs = [row for row in texts if "hub" in row["kinds"]]
    copies = len(texts) - len(hubs)
    sentences = []
    if hubs:
        what = "is a hub: it is" if len(hubs) == 1 else "are hubs: each is"
        sentences.append(
            f"{count(len(hubs), 'text')} {what} {words.found} at least {TIMES} times as many {words.askers} as the mean "
            f"text of its length, and more than chance explains. The first is {words.found} "
            f"{hubs[0]['times']:,} of {words.number(hubs[0]['askers'])}; each has {count(hubs[0]['k'], 'nearest text')}."
        )
    if copies:
        others = count(copies, "other text" if hubs else "text")
        sentences.append(f"{others} of those found most {'has' if copies == 1 else 'have'} near-duplicates.")
    return sentences


def _without(whole: Row, by_length: Sequence[Row], edges: Sequence[int], is_listed: bool) -> list[str]:
    """Who gains if the texts that may go are removed."""
    removed, words = whole["removed"], _WORDS[whole["asked_by"]]
    if not removed:
        return []
    changed, askers = whole["askers_changed"], whole["askers"]
    sentence = (
        f"If the {count(removed, 'text')} {f'in {REMOVE}' if is_listed else 'that may go'} {'is' if removed == 1 else 'are'}"
        f" removed, {changed:,} of {words.number(askers)} ({share(changed / askers)}) get others in their place"
    )
    gaining = [
        row for row in by_length
        if row["texts"] >= TEXTS_FOR_AN_INTERVAL and row["times_after"] is not None
        and row["times_after"] > row["times_before"]
    ]  # fmt: skip
    if gaining:
        most = max(gaining, key=lambda row: row["times_after"] / max(row["times_before"], 1e-9))
        before, after = (_exposure(most, when) for when in ("before", "after"))
        sentence += (
            f". Texts of {interval_name(most['interval'], edges)} tokens gain most: each that stays is {words.found} "
            f"{number(most['times_after'])} {words.askers} in the mean instead of {number(most['times_before'])}, and "
            f"their exposure is {after} instead of {before}"
        )
    return [f"{sentence}. For these {words.askers} this is counted exactly."]


def _exposure(row: Row, when: str) -> str:
    return with_error(row[f"exposure_{when}"], row[f"exposure_{when}_se_superpopulation"])


def _never(whole: Row) -> list[str]:
    """How many texts no query returns."""
    if whole["never"] is None:
        return []
    return [
        f"{whole['never']:,} of {count(whole['texts'], 'text')} ({share(whole['never_share'])}) are returned to none of "
        f"{_WORDS['queries'].number(whole['askers'])}."
    ]


def hubs(named: pl.DataFrame, asked_by: str) -> list[Row]:
    """The hubs of one model."""
    rows: list[Row] = named.filter(pl.col("asked_by") == asked_by, pl.col("kinds").str.contains("hub")).to_dicts()
    return rows
