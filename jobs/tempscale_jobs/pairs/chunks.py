"""Split a source into chunks of pairs of usable texts, and record every row without a pair.

A cell is one text or a list of texts; each text of column a makes a pair with each text of column b in its row. Texts with
equal content are one text. Chunks depend on the source and the configuration alone; `shards/index.json` is written last.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tempscale_jobs.config.pairs import Pairs
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.index import SourceIndex
from tempscale_jobs.corpus.readers import Columns, Record
from tempscale_jobs.corpus.rows import Rejects, check_rejected, nothing_usable, usable_id, usable_text
from tempscale_jobs.runs.folder import numbered
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.pairs import CHUNK
from tempscale_jobs.urls import masked

_ID_CHARACTERS = 24


class PairText(NamedTuple):
    """A usable text of a pair; `element` is its place in a list, such as `[2]`, or empty."""

    text_id: str
    text: str
    content: str
    cut: bool
    element: str


class Pair(NamedTuple):
    """Two usable texts and their place in the source."""

    pair_id: str
    place: str
    a: PairText
    b: PairText


@dataclass
class PairCounts:
    """The counts of rows, of pairs and of rejections, while the source is read."""

    rows: int = 0
    pairs: int = 0
    lost: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    stage: Stage | None = None
    """The stage whose progress is counted in rows."""


@dataclass(frozen=True)
class Chunk:
    """A file of pairs below shards/, which one task measures."""

    name: str
    pairs: int


@dataclass(frozen=True)
class PairIndex(SourceIndex):
    """The index of a source of pairs."""

    unit: ClassVar[type] = Chunk
    rejected_reasons: dict[str, int]
    pairs: int
    pairs_rejected: int
    shards: tuple[Chunk, ...]


def chunk(storage: Storage, settings: Pairs, out: str, stage: Stage | None = None) -> PairIndex:
    """Read the source once and write its chunks, unless an earlier session did; a UsageError if it changed since then."""
    if index := PairIndex.earlier(storage, settings, out):
        return index
    state, counts, rejects = sources.identity(settings, out), PairCounts(stage=stage), Rejects(storage)
    digest, chunks = hashlib.sha256(), list[Chunk]()
    with sources.unchanged(settings, state, out):
        for number, pairs in enumerate(_chunks(pairs_of_rows(settings, out, counts, rejects), settings)):
            name = numbered("shards", number)
            for pair in pairs:
                ids = (pair.pair_id, pair.a.text_id, pair.b.text_id)
                digest.update(f"{'|'.join(f'{len(i)}:{i}' for i in ids)}:{pair.a.content}:{pair.b.content}\n".encode())
            storage.write_table(name, CHUNK.build_rows([_row(counts.pairs + k, pair) for k, pair in enumerate(pairs)]))
            chunks.append(Chunk(name, len(pairs)))
            counts.pairs += len(pairs)
        rejects.flush()
    reasons = dict(sorted(counts.reasons.items()))
    if counts.pairs == 0:
        raise nothing_usable(settings, "pair", counts.rows, reasons)
    check_rejected(settings, (counts.lost, counts.pairs + counts.lost), reasons, storage.root, "pair")
    return PairIndex(
        masked(settings.source), state, digest.hexdigest(), counts.rows, sum(reasons.values()), reasons, counts.pairs,
        counts.lost, tuple(chunks),
    ).kept(storage)  # fmt: skip


def records(settings: Pairs, out: str) -> Iterator[Record]:
    """The rows of the source, in order."""
    texts: dict[str, str | None] = {settings.column_a: "--column-a", settings.column_b: "--column-b"}
    yield from sources.records(settings, Columns(texts, {}, dict.fromkeys(("id", "id_a", "id_b"))), out)


def pairs_of_rows(settings: Pairs, out: str, counts: PairCounts, rejects: Rejects) -> Iterator[Pair]:
    """The pairs of all rows; a row or text without a pair is counted and recorded with a reason."""
    for record in records(settings, out):
        if settings.limit is not None and counts.rows >= settings.limit:
            return
        counts.rows += 1
        counts.lost += _pairs_named(record, settings)
        if counts.stage is not None:
            counts.stage.advance(1)
        row_id, problem = usable_id(record.values.get("id"))

        def reject(element: str, reason: str, row_id: str | None = row_id, place: str = record.place) -> None:
            counts.reasons[reason] += 1
            rejects.add(row_id, f"{place}{element}", reason)

        if record.problem is not None or problem is not None:
            reject("", str(record.problem or problem))
            continue
        first = _sides(record, settings.column_a, "id_a", settings.max_characters, reject)
        if not first:
            continue  # The row has a reason; column b is not checked too.
        second = _sides(record, settings.column_b, "id_b", settings.max_characters, reject)
        counts.lost -= len(first) * len(second)
        for a in first:
            for b in second:
                element = a.element + b.element
                yield Pair(f"{row_id or record.place}{element}", f"{record.place}{element}", a, b)


def _pairs_named(record: Record, settings: Pairs) -> int:
    """The number of pairs in a row, at least one, so that a rejected row counts."""
    cells = (record.values.get(name) for name in (settings.column_a, settings.column_b))
    return max(1, math.prod(len(cell) if isinstance(cell, list) else 1 for cell in cells))


def _sides(
    record: Record, column: str, id_column: str, max_characters: int, reject: Callable[[str, str], None]
) -> list[PairText]:
    """The usable texts of one column of a row; `reject` gets the others."""
    content, ids = (
        value.tolist() if isinstance(value, np.ndarray) else value  # Parquet's lists of numbers are read as arrays.
        for value in map(record.values.get, (column, id_column))
    )
    listed = isinstance(content, list)
    texts: list[Any] = content if isinstance(content, list) else [content]
    if listed and not texts:
        reject("", f"{column}: the list is empty")
    if isinstance(ids, list) and not (listed and len(ids) == len(texts)):
        reject("", f"{id_column}: {len(ids)} ids for {len(texts) if listed else 'one'} of {column}")
        return []
    sides = []
    for k, value in enumerate(texts):
        element = f"[{k}]" if listed else ""
        text, reason = usable_text(value)
        text_id, bad_id = usable_id(ids[k] if isinstance(ids, list) else ids)
        if text is None or bad_id is not None:
            reject(element, f"{column}: {reason}" if text is None else f"{id_column}: {bad_id}")
            continue
        if text_id is not None and not isinstance(ids, list):
            text_id += element
        shortened = text[:max_characters]
        sha = hashlib.sha256(shortened.encode()).hexdigest()
        sides.append(PairText(text_id or sha[:_ID_CHARACTERS], shortened, sha, len(text) > max_characters, element))
    return sides


def _chunks(pairs: Iterator[Pair], settings: Pairs) -> Iterator[list[Pair]]:
    """Lists of consecutive pairs; a chunk ends at its limit of pairs or of characters in distinct texts."""
    current: list[Pair] = []
    seen: set[str] = set()
    characters = 0
    for pair in pairs:
        current.append(pair)
        for side in (pair.a, pair.b):
            if side.content not in seen:
                seen.add(side.content)
                characters += len(side.text)
        if len(current) == settings.chunk_pairs or characters >= settings.chunk_characters:
            yield current
            current, seen, characters = [], set(), 0
    if current:
        yield current


def _row(number: int, pair: Pair) -> dict[str, Any]:
    row: dict[str, Any] = {"pair": number, "pair_id": pair.pair_id, "place": pair.place}
    for letter, side in (("a", pair.a), ("b", pair.b)):
        row |= {f"text_id_{letter}": side.text_id, f"text_{letter}": side.text}
        row |= {f"content_{letter}": side.content, f"cut_{letter}": side.cut}
    return row
