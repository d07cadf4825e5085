"""Read user-supplied embeddings from a column into texts/; no model runs.

Length collapse and exposure need only embeddings and lengths. SOCM and the prefix probe need tokens and are skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import shards, sources
from tempscale_jobs.corpus.readers import Columns
from tempscale_jobs.corpus.shards import Counts, Index, Rejects
from tempscale_jobs.corpus.sources import Row
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import GIVEN, Run
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import texts

_PART = 4096


def take(run: Run, corpus: Corpus, seed: int, without: str, on_rows: Callable[[int], None] = lambda rows: None) -> Index:
    """Read the embeddings and write them as parts of texts/, if this was not done before; the index has no shards.

    Raises:
        UsageError: the source cannot be read, has no usable embedding, or changed since the run began.
    """
    storage = run.storage
    if index := Index.earlier(storage, corpus, without, "texts"):
        return index
    state, counts, digest = sources.state(corpus, without), Counts(), hashlib.sha256()
    found = shards.usable(rows(corpus, without), corpus.limit, counts, Rejects(storage), on_rows, Reader(corpus))
    if corpus.sample is not None:
        found = shards.sampled(found, corpus.sample, seed)
    for number, some in enumerate(iter(lambda: list(islice(found, _PART)), [])):
        table = _table(some)
        for text_id, sha in zip(*(table.column(name).to_pylist() for name in ("text_id", "content_sha")), strict=True):
            digest.update(f"{len(text_id)}:{text_id}:{sha}\n".encode())
        storage.write_table(run.part("texts", GIVEN, run.temperatures[0], number), table)
        counts.analysed += len(some)
    return shards.write_index(storage, corpus, state, counts, digest.hexdigest(), [])


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
        if value is None:
            return None, "the embedding is null"
        if self._settings.bits:
            try:
                with np.errstate(invalid="ignore"):
                    whole = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.asarray(value)
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
            usable, problem = shards.usable_text(text)
            return len((usable or "").split()), problem
        number = isinstance(length, (int, float)) and not isinstance(length, bool)
        if not number or not 1 <= length < 2**31 or not float(length).is_integer():
            return 0, "the length is no whole number from 1 on"
        return int(length), None


def rows(settings: Corpus, without: str | None = None) -> Iterator[Row]:
    """The rows of a source of embeddings; their `text` is (embedding, length, text)."""
    assert settings.embedding_column is not None
    id_column = "id" if settings.id_column is None else settings.id_column
    ids: dict[str, str | None] = {id_column: "--id-column"}
    named, optional = ({}, ids) if settings.id_column is None else (ids, {})
    wanted: dict[str, str | None] = {settings.embedding_column: "--embedding-column"}
    if settings.length_column is not None:
        wanted[settings.length_column] = "--length-column"
    else:
        wanted[settings.text_column] = "--text-column, or the lengths with --length-column"
    named |= sources.document_columns(settings)
    for record in sources.records(settings, Columns(wanted, named, optional), without):
        values = record.values
        columns = (settings.embedding_column, settings.length_column or "", settings.text_column)
        content, document = tuple(map(values.get, columns)), sources.document_in(settings, values)
        yield Row(record.place, _id(values.get(id_column), record.place), content, record.problem, document)


def _id(value: Any, place: str) -> Any:
    """The id, or the row's place if it has none."""
    if value is None:
        return place
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


Found = tuple[str, tuple[np.ndarray, int], int | None]


def _table(some: list[Found]) -> pa.Table:
    matrix = np.stack([row for _, (row, _), _ in some])
    nothing = pa.nulls(len(some), pa.float32())
    return texts(matrix.shape[1]).build(
        {
            "text_id": [text_id for text_id, *_ in some],
            "content_sha": [hashlib.sha256(row.tobytes()).hexdigest() for row in matrix],
            "document": pa.array([document for *_, document in some], pa.int64()),
            "tokens": np.array([length for _, (_, length), _ in some], dtype=np.int32),
            "truncated": np.zeros(len(some), dtype=bool),
            "embedding": parts.fixed_lists(matrix),
            "mean_norm": nothing,
            "spread": nothing,
            "within_cosine": nothing,
        }
    )
