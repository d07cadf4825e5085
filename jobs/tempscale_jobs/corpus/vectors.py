"""Read a user's embeddings from a column into texts/; no model runs, so SOCM and the prefix probe are left out."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa

from tempscale_jobs.config.sections import Corpus, Queries
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.readers import Columns, Record
from tempscale_jobs.corpus.rows import Counts, Rejects, usable, usable_text, whole_length
from tempscale_jobs.corpus.sources import Row
from tempscale_jobs.corpus.units import Unit, records
from tempscale_jobs.errors import UsageError
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import texts

PART = 4096
NOT_FINITE = "the embedding is not finite"


class Vector(NamedTuple):
    """A usable embedding."""

    text_id: str
    embedding: np.ndarray
    length: int
    document: int | None
    groups: Sequence[str | None] = ()
    """Its values of the columns whose values are groups."""
    place: str = ""
    digest: bytes = b""
    copy: bool = False
    """See `rows.Usable`."""


class Vectors:
    """The user-supplied embeddings of a corpus, kept as parts of texts/ in the source's order."""

    what = "embedding"

    def __init__(self, folder: str, corpus: Corpus, run_folder: str, by: Sequence[str] = ()) -> None:
        self.corpus, self.folder, self._run_folder, self._by = corpus, folder, run_folder, by
        self.width: int | None = None
        """The dimensions by which rows are read; None: those of the first row."""

    @property
    def columns(self) -> Columns:
        """The columns that are read."""
        return columns_of(self.corpus, self._by)

    def begin(self, width: int | None) -> int | None:
        """Read by these dimensions, or by those of the source's first usable embedding; return them."""
        if width is None:
            counts, reader = Counts(), Reader(self.corpus)
            source_rows = rows(self.corpus, self._run_folder, self._by)
            usable_rows = usable(source_rows, self.corpus.limit, counts, None, reader)
            if next(usable_rows, None) is None:
                self.agrees(reader.widths.items())  # Raises if a mistake in the options is the reason.
            width = reader.width
        self.width = width
        return width

    def agrees(self, widths: Iterable[tuple[int, int]]) -> bool:
        """Whether rows were read by the dimensions that most have; otherwise they must be read again, by these."""
        reader, counts = Reader(self.corpus), Counter[int]()
        for width, count in widths:  # The source's order decides between equally frequent ones.
            counts[width] += count
        if not counts:
            return True
        most = max(counts, key=counts.__getitem__)
        if (problem := reader.misfit(most)) is not None:
            raise UsageError(problem)
        before = self.width or next(width for width in counts if reader.misfit(width) is None)
        self.width = most
        return before == most

    def items(self, unit: Unit, counts: Counts, rejects: Rejects | None) -> Iterator[Vector]:
        """The usable embeddings of a unit."""
        source_rows = _rows(self.corpus, records(self.corpus, unit, self.columns, self._run_folder), self._by)
        reader = Reader(self.corpus, self.width)
        for item in usable(source_rows, unit.limit, counts, rejects, reader):
            embedding, length = item.content
            yield Vector(item.text_id, embedding, length, item.document, item.groups, item.place, item.digest, item.copy)
        counts.widths.update(reader.widths)

    def grouped(self, items: Iterable[Vector], begins: bool = False) -> Iterator[list[Vector]]:
        """Consecutive embeddings, 4,096 a part."""
        iterator = iter(items)
        return iter(lambda: list(islice(iterator, PART)), [])

    def table(self, items: Sequence[Vector]) -> pa.Table:
        """The table of a part of texts/."""
        matrix = np.stack([item.embedding for item in items])
        nothing = pa.nulls(len(items), pa.float32())
        groups = {"groups": [item.groups for item in items]} if self._by else {}
        return texts(matrix.shape[1], bool(groups)).build(
            groups
            | {
                "text_id": [item.text_id for item in items],
                "content_sha": [hashlib.sha256(row.tobytes()).hexdigest() for row in matrix],
                "document": pa.array([item.document for item in items], pa.int64()),
                "tokens": np.array([item.length for item in items], dtype=np.int32),
                "truncated": np.zeros(len(items), dtype=bool),
                "embedding": parts.fixed_lists(matrix),
                "mean_norm": nothing,
                "spread": nothing,
                "within_cosine": nothing,
                "source_row": pa.nulls(len(items), pa.int64()),
            }
        )

    def items_of(self, table: pa.Table) -> Iterator[Vector]:
        """The embeddings of a part."""
        ids, lengths, documents = (table.column(name).to_pylist() for name in ("text_id", "tokens", "document"))
        groups = table.column("groups").to_pylist() if self._by else [()] * len(ids)
        return map(Vector, ids, parts.matrix(table, "embedding"), lengths, documents, groups)

    def characters(self, items: Sequence[Vector]) -> int:
        """Zero: they are not embedded."""
        return 0


class Reader:
    """Reads (embedding, length) of rows, or why one is not usable; without `width`, the first row's dimensions count."""

    def __init__(self, settings: Corpus, width: int | None = None) -> None:
        self._settings, self._dims = settings, settings.dims
        self._scale = np.asarray(settings.scale, dtype=np.float64)
        self.width = width
        self.widths = Counter[int]()
        """The number of rows by dimensions, in the order of their first appearance."""

    def __call__(self, values: tuple[Any, Any, Any]) -> tuple[tuple[np.ndarray, int] | None, str | None]:
        """Read a row's cells (embedding, length, text)."""
        embedding, length, text = values
        size, problem = self._length(length, text)
        if problem is not None:
            return None, problem
        row, problem = numbers(self._settings, embedding)
        if row is None:
            return None, problem
        width = len(row)
        self.widths[width] += 1
        if (problem := self.misfit(width)) is not None:
            return None, problem
        self.width = self.width or width
        if width != self.width:
            return None, f"the embedding has {width} dimensions where most have {self.width}"
        with np.errstate(over="ignore", invalid="ignore"):
            row = (row * self._scale)[: self._dims]
        units, problems = unit_rows(row[None])
        if problems:
            return None, problems[0]
        return (units[0].astype(np.float32), size), None

    def misfit(self, width: int) -> str | None:
        """Why the options do not fit embeddings of so many dimensions; None where they do."""
        if self._scale.ndim and len(self._scale) != width:
            return f"corpus.scale has {len(self._scale)} numbers, and the embeddings {width} dimensions"
        if self._dims is not None and self._dims > width:
            return f"--dims {self._dims} is more than the {width} dimensions of the embeddings"
        return None

    def _length(self, length: Any, text: Any) -> tuple[int, str | None]:
        if self._settings.length_column is None:
            if text is None and isinstance(self._settings, Queries):
                return 1, None
            words, problem = usable_text(text)
            return len((words or "").split()), problem
        tokens = whole_length(length)
        return (0, "the length is no whole number from 1 on") if tokens is None else (tokens, None)


def numbers(settings: Corpus, value: Any) -> tuple[np.ndarray | None, str | None]:
    """(the numbers of a cell as a float64 row, before their scale; None), or (None, the reason why there are none)."""
    if isinstance(value, str):  # CSV has no lists: pandas and pgvector write them as JSON.
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if value is None:
        return None, "the embedding is null"
    if settings.bits:
        try:
            with np.errstate(invalid="ignore"):
                stored = value.bytes if isinstance(value, UUID) else value  # 16 bytes of a fixed width are read as one.
                whole = np.frombuffer(stored, np.uint8) if isinstance(stored, bytes) else np.asarray(stored)
                packed = whole.astype(np.int64)
        except (TypeError, ValueError, OverflowError):
            return None, "the embedding is no list of bytes"
        if packed.ndim != 1 or len(packed) == 0 or packed.min() < -128 or packed.max() > 255:
            return None, "the embedding is no list of bytes"
        return np.unpackbits(packed.astype(np.uint8)).astype(np.float64) * 2 - 1, None
    try:
        row = np.asarray(value, dtype=np.float64)
    except OverflowError:  # A whole number of more than 308 digits.
        return None, NOT_FINITE
    except (TypeError, ValueError):
        return None, "the embedding is no list of numbers"
    if row.ndim != 1 or len(row) < 2:
        return None, "the embedding is no list of two numbers or more"
    return row, None


def unit_rows(rows: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
    """The rows of a float64 matrix scaled to unit length, and why some, by their number, have no direction."""
    largest = np.abs(rows).max(axis=1)
    finite = np.isfinite(largest)
    problems = dict.fromkeys(np.flatnonzero(~finite).tolist(), NOT_FINITE)
    problems |= dict.fromkeys(np.flatnonzero(largest == 0).tolist(), "the embedding is zero and has no direction")
    # Division by a power of two is exact, and afterwards squares neither overflow nor vanish.
    _, exponent = np.frexp(np.where(finite, largest, 1.0))
    scaled = np.ldexp(rows, -exponent[:, None])
    with np.errstate(invalid="ignore"):
        return scaled / np.linalg.norm(scaled, axis=1)[:, None], problems


def rows(settings: Corpus, run_folder: str | None = None, by: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a source of embeddings; their `text` is (embedding, length, text)."""
    return _rows(settings, sources.records(settings, columns_of(settings, by), run_folder), by)


def columns_of(settings: Corpus, by: Sequence[str] = ()) -> Columns:
    """The columns of a source of embeddings, and those whose values are groups."""
    assert settings.embedding_column is not None
    named, optional = sources.id_columns(settings)
    of_queries = isinstance(settings, Queries)
    option = "--queries-embedding-column" if of_queries else "--embedding-column"
    required: dict[str, str | None] = {settings.embedding_column: option}
    if settings.length_column is not None:
        required[settings.length_column] = "queries.length_column" if of_queries else "--length-column"
    elif of_queries:  # Queries may come without lengths.
        optional = optional | {settings.text_column: None}
    else:
        required[settings.text_column] = "--text-column, or the lengths with --length-column"
    return sources.with_groups(settings, Columns(required, named | sources.document_columns(settings), optional), by)


def _rows(settings: Corpus, found: Iterable[Record], by: Sequence[str]) -> Iterator[Row]:
    names = settings.embedding_column or "", settings.length_column or "", settings.text_column
    for place, values, problem in found:
        text_id, cells = sources.id_in(values, settings.id_column), tuple(map(values.get, names))
        document, groups = sources.document_in(settings, values), sources.groups_in(settings, values, by)
        yield Row(place, text_id, cells, problem, document, groups)
