"""A report as data: the answer, at most four figures and what to do for each model, then sections."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tempscale_jobs.report.terms import meanings
from tempscale_jobs.report.text import model_name

CAPTIONS = Path(__file__).parent / "templates" / "captions.toml"


class Table(NamedTuple):
    """Rows of text below their heads; in a cell, what follows the first line is small print."""

    heads: Sequence[str]
    """All empty where the rows need none."""
    rows: Sequence[Sequence[str]]
    words: int = 1
    """So many columns, from the left, hold words; the others hold figures."""


class Drawing(NamedTuple):
    """A chart, and its figures as a table for readers without JavaScript."""

    chart: Any
    table: Table


@dataclass(frozen=True)
class Section:
    """A part of a report below its title: sentences, a chart, a table, smaller sections."""

    title: str
    sentences: Sequence[str] = ()
    note: str = ""
    """Small print: how to read the chart or the table."""
    key: str = ""
    """Names the chart: its element on the page, its file."""
    drawing: Drawing | None = None
    table: Table | None = None
    parts: Sequence[Section] = ()
    folded: bool = False
    searched: bool = False
    """Whether a reader may search its rows."""

    def texts(self) -> Iterator[str]:
        """What the section itself says, without the rows of its tables."""
        yield from (self.title, *self.sentences, self.note)
        for table in filter(None, (self.table, self.drawing and self.drawing.table)):
            yield from table.heads

    def walk(self) -> Iterator[Section]:
        """The section and all that are in it."""
        yield self
        for part in self.parts:
            yield from part.walk()


@cache
def _captions() -> dict[str, list[str]]:
    """The title of each chart and table, and how to read it."""
    captions: dict[str, list[str]] = tomllib.loads(CAPTIONS.read_text("utf-8"))
    return captions


def caption(name: str, **words: str) -> tuple[str, str]:
    """The title and the small print of a chart or table; `words` are filled in where it has braces."""
    title, note = (text.format(**words) if words else text for text in _captions()[name])
    return title, note


def drawn(place: str, name: str, drawing: Drawing | None, captioned: str = "", **words: str) -> list[Section]:
    """A section of one chart with its caption; none without the chart. Its key is that of its part and its own name."""
    if drawing is None:
        return []
    title, note = caption(captioned or name, **words)
    return [Section(title, note=note, key=f"{place}-{name}", drawing=drawing)]


def tabled(captioned: str, table: Table, sentences: Sequence[str] = ()) -> list[Section]:
    """A section of one table with its caption; none without a row."""
    title, note = caption(captioned)
    return [Section(title, sentences, note, table=table)] if table.rows else []


def group(
    title: str, *parts: Sequence[Section], sentences: Sequence[str] = (), folded: bool = False, searched: bool = False
) -> list[Section]:
    """A section of smaller ones; none where it would be empty."""
    smaller = [section for part in parts for section in part]
    whole = Section(title, sentences, parts=smaller, folded=folded, searched=searched)
    return [whole] if smaller or sentences else []


class Figure(NamedTuple):
    """A figure of the first screen, with what it says and how it changes."""

    name: str
    value: str
    error: str = ""
    says: str = ""
    changes: Sequence[str] = ()
    key: str = ""
    trend: Drawing | None = None


@dataclass(frozen=True)
class Part:
    """What a report says of one model, or of one question."""

    id: str
    """Begins the keys of its charts."""
    name: str
    answer: str = ""
    figures: Sequence[Figure] = ()
    to_do: Sequence[tuple[str, str]] = ()
    """What to do: a sentence, and the command for it or nothing."""
    sections: Sequence[Section] = ()


@dataclass(frozen=True)
class Report:
    """A report: a question, and what each part answers."""

    title: str
    where: str
    """Of what, how much and when."""
    parts: Sequence[Part]
    alerts: Sequence[str] = ()
    """What a reader must know before the answer: a failed check, missing cells, rejected rows."""
    notes: Sequence[str] = ()
    """Small print below the first screen."""
    before: Sequence[Section] = ()
    """What comes before the sections of the parts."""
    after: Sequence[Section] = ()
    """What comes after them."""

    @property
    def terms(self) -> list[str]:
        """What the symbols of the first screen mean."""
        return meanings(self._first_screen())

    @property
    def further_terms(self) -> list[str]:
        """What the symbols of the sections mean that the first screen does not have."""
        texts = (text for section in self.walk() for text in section.texts())
        return meanings([*self.notes, *texts], self._first_screen())

    def _first_screen(self) -> list[str]:
        figures = [figure for part in self.parts for figure in part.figures]
        named = [text for figure in figures for text in (figure.name, figure.says, *figure.changes)]
        said = [text for part in self.parts for text in (part.answer, *(text for text, _ in part.to_do))]
        return [*self.alerts, *said, *named]

    def walk(self) -> Iterator[Section]:
        """All sections."""
        for section in (*self.before, *(section for part in self.parts for section in part.sections), *self.after):
            yield from section.walk()


def subject(run: Mapping[str, Any], *what: str) -> str:
    """What a report is about, from the content of run.json: the corpus, `what`, the models, and when it was made."""
    source = str(run.get("corpus", {}).get("source", "")).rstrip("/").split("/")[-1]
    made = f"{run['finished'][:16]} UTC".replace("T", " ", 1) if "finished" in run else ""
    return " · ".join(filter(None, (source, *what, ", ".join(map(model_name, run.get("models", {}))), made)))
