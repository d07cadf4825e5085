"""Read user-supplied embeddings from a column into texts/; no model runs.

Length collapse and exposure need only embeddings and lengths. SOCM and the prefix probe need tokens and are skipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa

from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.readers import Columns, Record
from tempscale_jobs.corpus.rows import Counts, Rejects, usable, usable_id, usable_text, whole_length
from tempscale_jobs.corpus.sources import Row
from tempscale_jobs.corpus.units import Unit, records
from tempscale_jobs.errors import UsageError
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import texts

PART = 4096


class Vector(NamedTuple):
    """A usable embedding."""

    text_id: str
    embedding: np.ndarray
    length: int
    document: int | None
    place: str = ""


class Vectors:
    """The user-supplied embeddings of a corpus, kept as parts of texts/ in the source's order."""

    what = "embedding"

    def __init__(self, folder: str, corpus: Corpus, without: str) -> None:
        self.corpus, self.folder, self._without = corpus, folder, without
        self._reader = Reader(corpus)

    @property
    def columns(self) -> Columns:
        """The columns that are read."""
        return columns_of(self.corpus)

    def settle(self) -> None:
        """Take the dimensions of the first usable embedding of the source as those of all."""
        found = usable(rows(self.corpus, self._without), self.corpus.limit, Counts(), None, lambda rows: None, self._reader)
        next(found, None)

    def items(self, unit: Unit, counts: Counts, rejects: Rejects | None, on_rows: Callable[[int], None]) -> Iterator[Vector]:
        """The usable embeddings of a unit."""
        own = (_row(self.corpus, one) for one in records(self.corpus, unit, self.columns, self._without))
        for text_id, (row, length), document, place in usable(own, unit.limit, counts, rejects, on_rows, self._reader):
            yield Vector(text_id, row, length, document, place)

    def grouped(self, items: Iterable[Vector], begins: bool = False) -> Iterator[list[Vector]]:
        """Consecutive embeddings, 4,096 a part."""
        taken = iter(items)
        return iter(lambda: list(islice(taken, PART)), [])

    def table(self, items: Sequence[Vector]) -> pa.Table:
        """Embeddings as texts/ keeps them."""
        matrix = np.stack([item.embedding for item in items])
        nothing = pa.nulls(len(items), pa.float32())
        return texts(matrix.shape[1]).build(
            {
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
        return map(Vector, ids, parts.matrix(table, "embedding"), lengths, documents)

    def characters(self, items: Sequence[Vector]) -> int:
        """Nothing: they are not embedded again."""
        return 0


class Reader:
    """Returns (embedding, length) of a row, or why it is not usable; the first usable row sets the dimensions."""

    def __init__(self, settings: Corpus) -> None:
        self._settings, self._dims = settings, settings.dims
        self._scale = np.asarray(settings.scale, dtype=np.float32)
        self._width: int | None = None

    def __call__(self, given: tuple[Any, Any, Any]) -> tuple[tuple[np.ndarray, int] | None, str | None]:
        """Read a row's values of the embedding's, the length's and the text's column."""
        embedding, length, text = given
        size, problem = self._length(length, text)
        if problem is not None:
            return None, problem
        row, problem = self._numbers(embedding)
        if row is None:
            return None, problem
        width = len(row)
        if self._width is not None and len(row) != self._width:
            return None, f"the embedding has {len(row)} dimensions where the first has {self._width}"
        if self._width is None:
            self._check(len(row))
        row = (row * self._scale)[: self._dims]
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.linalg.norm(row.astype(np.float64))
        if not np.isfinite(norm):
            return None, "the embedding is not finite"
        if norm == 0:
            return None, "the embedding is zero and has no direction"
        self._width = width
        return ((row / norm).astype(np.float32), size), None

    def _check(self, width: int) -> None:
        """Raise a UsageError if the options do not fit the first embedding."""
        if self._scale.ndim and len(self._scale) != width:
            raise UsageError(f"corpus.scale has {len(self._scale)} numbers, and the embeddings {width} dimensions")
        if self._dims is not None and self._dims > width:
            raise UsageError(f"--dims {self._dims} is more than the {width} dimensions of the embeddings")

    def _numbers(self, value: Any) -> tuple[np.ndarray | None, str | None]:
        if isinstance(value, str):  # CSV has no lists: pandas and pgvector write them as texts of this form.
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
        if value is None:
            return None, "the embedding is null"
        if self._settings.bits:
            try:
                with np.errstate(invalid="ignore"):
                    stored = value.bytes if isinstance(value, UUID) else value  # 16 bytes of a fixed width are read as one.
                    whole = np.frombuffer(stored, np.uint8) if isinstance(stored, bytes) else np.asarray(stored)
                    packed = whole.astype(np.int64)
            except (TypeError, ValueError, OverflowError):
                return None, "the embedding is no list of bytes"
            if packed.ndim != 1 or len(packed) == 0 or packed.min() < -128 or packed.max() > 255:
                return None, "the embedding is no list of bytes"
            return np.unpackbits(packed.astype(np.uint8)).astype(np.float32) * 2 - 1, None
        try:
            with np.errstate(over="ignore"):
                row = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError, OverflowError):
            return None, "the embedding is no list of numbers"
        if row.ndim != 1 or len(row) < 2:
            return None, "the embedding is no list of two numbers or more"
        return row, None

    def _length(self, length: Any, text: Any) -> tuple[int, str | None]:
        if self._settings.length_column is None:
            words, problem = usable_text(text)
            return len((words or "").split()), problem
        tokens = whole_length(length)
        return (0, "the length is no whole number from 1 on") if tokens is None else (tokens, None)


def rows(settings: Corpus, without: str | None = None) -> Iterator[Row]:
    """The rows of a source of embeddings; their `text` is (embedding, length, text)."""
    return (_row(settings, record) for record in sources.records(settings, columns_of(settings), without))


def columns_of(settings: Corpus) -> Columns:
    """The columns of a source of embeddings."""
    assert settings.embedding_column is not None
    named, optional = sources.id_columns(settings)
    wanted: dict[str, str | None] = {settings.embedding_column: "--embedding-column"}
    if settings.length_column is not None:
        wanted[settings.length_column] = "--length-column"
    else:
        wanted[settings.text_column] = "--text-column, or the lengths with --length-column"
    return Columns(wanted, named | sources.document_columns(settings), optional)


def _row(settings: Corpus, record: Record) -> Row:
    values, names = record.values, (settings.embedding_column or "", settings.length_column or "", settings.text_column)
    text_id = sources.id_in(values, settings.id_column)
    if usable_id(text_id) == (None, None):
        text_id = record.place
    return Row(record.place, text_id, tuple(map(values.get, names)), record.problem, sources.document_in(settings, values))
