"""Texts with the vectors that an index has of them, as the contents of a source: read into shards/ for `verify`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.readers import Columns, Record, utf8_or_bytes
from tempscale_jobs.corpus.rows import Counts, Rejects, group_of, usable, usable_text
from tempscale_jobs.corpus.sources import Row
from tempscale_jobs.corpus.units import Unit, records
from tempscale_jobs.corpus.vectors import numbers
from tempscale_jobs.tables.verify import ROWS

PART = 256
"""Rows of a part, which one piece of work embeds."""
_CHARACTERS = 1 << 19
"""A part ends at so many characters."""


class Read(NamedTuple):
    """What is read of each row beside its id."""

    text: bool = True
    vector: bool = True
    title: str | None = None
    """The column of titles."""
    by: tuple[str, ...] = ()
    """The columns of groups."""


class StoredRow(NamedTuple):
    """A text with its stored vector."""

    text_id: str
    text: str
    """Empty where the texts are in another table."""
    vector: np.ndarray
    """Empty where the vectors are in another table."""
    title: str | None
    above: str | None
    """The text of the row before it."""
    below: str | None
    """That of the row behind it."""
    groups: list[str | None]
    place: str = ""
    digest: bytes = b""
    copy: bool = False
    """See `rows.Usable`."""


class StoredVectors:
    """The rows of a table of texts and vectors, or of one of them; numbers are kept as they are stored."""

    folder = "shards"
    width: int | None = None
    """Vectors of all widths are read: a row that is cut is a finding."""

    def __init__(self, corpus: Corpus, read: Read, run_folder: str) -> None:
        self.corpus, self._read, self._run_folder = corpus, read, run_folder
        self.what = "text with a vector" if read.text and read.vector else "text" if read.text else "vector"

    @property
    def columns(self) -> Columns:
        """The columns that are read."""
        named, optional = sources.id_columns(self.corpus)
        required = dict[str, str | None]()
        if self._read.vector:
            required[str(self.corpus.embedding_column)] = "--embedding-column"
        if self._read.text:
            apart = ", or the table of the texts with --texts" if self.corpus.kind == "embeddings" else ""
            required[self.corpus.text_column] = f"--text-column{apart}"
        required |= dict.fromkeys(self._read.by, "--by" if self.corpus.kind == "embeddings" else "by in [verify]")
        if self._read.title is not None:
            required[self._read.title] = "--title-column"
        return Columns(required, named, optional)

    def begin(self, width: int | None) -> int | None:
        """Nothing: rows are read the same in all units."""
        return None

    def agrees(self, widths: Iterable[tuple[int, int]]) -> bool:
        """Yes: rows of all widths are kept."""
        return True

    def items(self, unit: Unit, counts: Counts, rejects: Rejects | None) -> Iterator[StoredRow]:
        """The rows of a unit that have a text and a vector."""
        rows = self._rows(records(self.corpus, unit, self.columns, self._run_folder))
        for row in usable(rows, unit.limit, counts, rejects, self._content):
            vector, _, text, (above, below), record = row.content
            values = record.values
            title = None if self._read.title is None else usable_text(values.get(self._read.title))[0]
            groups = [group_of(values.get(name)) for name in self._read.by]
            yield StoredRow(row.text_id, text, vector, title, above, below, groups, row.place, row.digest, row.copy)

    def _rows(self, rows: Iterable[Record]) -> Iterator[Row]:
        """Rows whose `text` is the record with the texts of the rows above and below it."""
        above, framed = None, chain(rows, (None,))
        for record, after in pairwise(framed):
            assert record is not None
            below = None if after is None else self._text(after)[0]
            text_id = utf8_or_bytes(sources.id_in(record.values, self.corpus.id_column))
            yield Row(record.place, text_id, (record, above, below), record.problem)
            above = self._text(record)[0]

    def _text(self, record: Record) -> tuple[str | None, str | None]:
        if not self._read.text:
            return "", None
        text, problem = usable_text(record.values.get(self.corpus.text_column))
        return (None if text is None else text[: self.corpus.max_characters]), problem

    def _content(self, cells: tuple[Record, str | None, str | None]) -> tuple[Any, str | None]:
        """(vector, length, text, texts around, record), or why the row cannot be compared."""
        record, above, below = cells
        text, problem = self._text(record)
        if text is None:
            return None, problem
        if not self._read.vector:
            return (np.zeros(0), len(text), text, (above, below), record), None
        vector, problem = numbers(self.corpus, record.values.get(str(self.corpus.embedding_column)))
        return (None if vector is None else (vector, len(text), text, (above, below), record)), problem

    def grouped(self, items: Iterable[StoredRow], begins: bool = False) -> Iterator[list[StoredRow]]:
        """Consecutive rows in parts, limited in rows and characters."""
        current, characters = list[StoredRow](), 0
        for item in items:
            current.append(item)
            characters += len(item.text)
            if len(current) == PART or characters >= _CHARACTERS:
                yield current
                current, characters = [], 0
        if current:
            yield current

    def table(self, items: Sequence[StoredRow]) -> pa.Table:
        """The table of a part."""
        shas = [hashlib.sha256(item.text.encode() + item.vector.tobytes()).hexdigest() for item in items]
        columns: dict[str, Any] = {name: [getattr(item, name) for item in items] for name in KEPT}
        return ROWS.build(columns | {"content_sha": shas})

    def items_of(self, table: pa.Table) -> Iterator[StoredRow]:
        """The rows of a part."""
        return iter(rows_of(table))

    def characters(self, items: Sequence[StoredRow]) -> int:
        """The characters of all these texts."""
        return sum(len(item.text) for item in items)


KEPT = ("text_id", "text", "vector", "title", "above", "below", "groups")
"""The fields of a row that its part has."""


def rows_of(table: pa.Table) -> list[StoredRow]:
    """The rows of a part."""
    return [
        StoredRow(**row | {"vector": np.array(row["vector"], dtype=np.float64)}) for row in table.select(KEPT).to_pylist()
    ]
