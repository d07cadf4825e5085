"""Embeddings of one's own: a column of numbers becomes texts/, and no model is run.

Length collapse and exposure need embeddings and lengths alone. What needs tokens, SOCM and the prefix probe, is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from jobs import blocks, corpus, parts, schema, sources
from jobs.config import Corpus
from jobs.corpus import Counts, Rejects
from jobs.errors import UsageError
from jobs.readers import Columns
from jobs.runs import GIVEN, SHARDED, Run
from jobs.sources import Row

_PART = 4096


def take(run: Run, on_rows: Callable[[int], None]) -> dict[str, Any]:
    """Read the embeddings once and leave them as parts of texts/, unless they are there.

    Returns:
        The index, as `corpus.shard` does, without shards.

    Raises:
        UsageError: the source cannot be read, holds no usable embedding, or changed since the run began.
    """
    config, storage = run.config, run.storage
    state = sources.state(config.corpus, config.out)
    if storage.exists(SHARDED):
        index: dict[str, Any] = storage.read_json(SHARDED)
        corpus.check_unchanged(config, index)
        return index
    for left in ("texts", "rejected"):
        storage.remove(left)
    counts, digest, temperature = Counts(), hashlib.sha256(), run.temperatures[0]
    reader = Reader(config.corpus)
    found = corpus.usable(rows(config.corpus, config.out), config, counts, Rejects(storage), on_rows, reader)
    if config.corpus.sample is not None:
        found = corpus.sampled(found, config.corpus.sample, config.seed)
    for number, some in enumerate(iter(lambda: list(islice(found, _PART)), [])):
        table = _table(some)
        for text_id, sha in zip(*(table.column(name).to_pylist() for name in ("text_id", "content_sha")), strict=True):
            digest.update(f"{len(text_id)}:{text_id}:{sha}\n".encode())
        storage.write_table(run.part("texts", GIVEN, temperature, number), table)
        counts.analysed += len(some)
    index = corpus.index_of(config, state, counts, digest.hexdigest(), [])
    storage.write_json(SHARDED, index)
    return index


def check_queries(run: Run, queries: Run) -> None:
    """Raise unless the embeddings of queries can be compared with those of the corpus.

    Raises:
        UsageError: they have another number of dimensions.
    """
    widths = [blocks.dimensions(one, GIVEN, one.temperatures[0]) for one in (queries, run)]
    if widths[0] != widths[1]:
        raise UsageError(f"the queries have {widths[0]} dimensions, and the corpus {widths[1]}")


class Reader:
    """(embedding, length) of a row, or the reason why it is not usable. The first usable row tells the dimensions."""

    def __init__(self, settings: Corpus) -> None:
        self._settings, self._dims = settings, settings.dims
        self._scale = np.asarray(settings.scale, dtype=np.float32)
        self._width: int | None = None

    def __call__(self, given: tuple[Any, Any, Any]) -> tuple[tuple[np.ndarray, int] | None, str | None]:
        """`given`: what the columns of the embedding, the length and the text hold."""
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
        """Raise where options do not fit the first embedding."""
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
            usable, problem = corpus.usable_text(text)
            return len((usable or "").split()), problem
        number = isinstance(length, (int, float)) and not isinstance(length, bool)
        if not number or not 1 <= length < 2**31 or not float(length).is_integer():
            return 0, "the length is no whole number from 1 on"
        return int(length), None


def rows(settings: Corpus, without: str | None = None) -> Iterator[Row]:
    """Rows whose `text` is (embedding, length, text).

    Raises:
        UsageError: as `sources.records`.
    """
    assert settings.embedding_column is not None
    id_column = "id" if settings.id_column is None else settings.id_column
    ids: dict[str, str | None] = {id_column: "--id-column"}
    named, optional = ({}, ids) if settings.id_column is None else (ids, {})
    wanted: dict[str, str | None] = {settings.embedding_column: "--embedding-column"}
    if settings.length_column is not None:
        wanted[settings.length_column] = "--length-column"
    else:
        wanted[settings.text_column] = "--text-column, or the lengths with --length-column"
    for record in sources.records(settings, Columns(wanted, named, optional), without):
        values = record.values
        columns = (settings.embedding_column, settings.length_column or "", settings.text_column)
        yield Row(record.place, _id(values.get(id_column), record.place), tuple(map(values.get, columns)), record.problem)


def _id(value: Any, place: str) -> Any:
    """The id; the row's place where it has none, since an embedding has no digest worth a name."""
    if value is None:
        return place
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


Found = tuple[str, tuple[np.ndarray, int]]


def _table(some: list[Found]) -> pa.Table:
    matrix = np.stack([row for _, (row, _) in some])
    nothing = pa.nulls(len(some), pa.float32())
    return schema.texts(matrix.shape[1]).build(
        {
            "text_id": [text_id for text_id, _ in some],
            "content_sha": [hashlib.sha256(row.tobytes()).hexdigest() for row in matrix],
            "tokens": np.array([length for _, (_, length) in some], dtype=np.int32),
            "truncated": np.zeros(len(some), dtype=bool),
            "embedding": parts.fixed_lists(matrix),
            "mean_norm": nothing,
            "spread": nothing,
            "within_cosine": nothing,
        }
    )
