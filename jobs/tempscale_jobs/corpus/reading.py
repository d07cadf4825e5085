"""Read one unit of a source into durable parts: its usable rows, its rejected rows, and the digests of its ids.

A unit has been read when `unit-NUMBER.json` in shards/ exists, which is written last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import units
from tempscale_jobs.corpus.readers import Columns
from tempscale_jobs.corpus.rows import ID_BYTES, REPEATED, Counts, Rejects, sample_key, sampled
from tempscale_jobs.corpus.units import Unit
from tempscale_jobs.runs import sealed
from tempscale_jobs.runs.folder import numbered_in, of_unit
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.runs.storage import Storage

IDS_OF_A_GROUP = 16_384
"""Ids of a row group: a task that compares one partition of the ids reads only the row groups that it needs."""
IDS_OF_A_RUN = 1 << 17
"""Ids that are sorted together: more than most units have, and few enough for memory."""
_IDS = pa.schema(
    [("digest", pa.binary(ID_BYTES)), ("row", pa.int32()), ("text_id", pa.string()), ("place", pa.string())]
)  # fmt: skip
_CANDIDATES = pa.schema([("key", pa.uint64()), ("digest", pa.binary(ID_BYTES)), ("row", pa.int32())])


class Contents(Protocol):
    """The kind of a source's rows, and how parts keep it: texts in shards/, or a user's embeddings in texts/."""

    folder: str
    """The folder of the parts."""
    what: str
    """The name of an item in error messages."""
    corpus: Corpus
    width: int | None
    """The dimensions by which embeddings are read; None if not known yet, and for texts."""

    @property
    def columns(self) -> Columns:
        """The columns that are read."""

    def begin(self, width: int | None) -> int | None:
        """Read all units by these dimensions, or by those of the first embedding; return them, None for texts."""

    def agrees(self, widths: Iterable[tuple[int, int]]) -> bool:
        """Whether the units were read by the dimensions that most rows have; otherwise they must be read again."""

    def items(self, unit: Unit, counts: Counts, rejects: Rejects | None) -> Iterator[Any]:
        """The usable rows of a unit, as tuples with the id first and the attributes text_id and place."""

    def grouped(self, items: Iterable[Any], begins: bool = False) -> Iterator[list[Any]]:
        """Consecutive items in parts, which are smaller where a corpus begins."""

    def table(self, items: Sequence[Any]) -> pa.Table:
        """The table of a part, with the columns text_id and content_sha."""

    def items_of(self, table: pa.Table) -> Iterator[Any]:
        """The items of a part."""

    def characters(self, items: Sequence[Any]) -> int:
        """About what the items cost to embed."""


@dataclass(frozen=True)
class UnitRead:
    """The record of a unit that has been read."""

    number: int
    read: int
    usable: int
    """Rows that can be analysed, without those whose repeated ids are known."""
    reasons: dict[str, int]
    fingerprint: str
    """Sum modulo 2²⁵⁶ of the digests of its rows, in hexadecimal digits; see `fingerprint_of`."""
    first: int
    """The number of its first part."""
    parts: list[list[int]]
    """Rows and characters of each of its parts."""
    rejects: int
    """Parts of its rejected rows."""
    repeated: bool = False
    """Whether rows with ids of earlier units have been removed."""
    unnamed: int = 0
    """Usable rows without an id."""
    widths: tuple[tuple[int, int], ...] = ()
    """The number of embeddings by dimensions, in the order of their first appearance."""

    def part(self, contents: Contents, number: int) -> str:
        """The name of one of its parts."""
        return numbered_in(contents.folder, self.number, self.first + number)


def read_unit(storage: Storage, contents: Contents, unit: Unit, seed: int, state: dict[str, Any]) -> UnitRead:
    """Read a unit of several: keep its usable rows, unless a sample is drawn of them, and the digests of their ids."""
    counts, rejects, sample = Counts(), Rejects(storage, unit.number), contents.corpus.sample
    ids = UnitIds(sample, seed)
    with units.unchanged(contents.corpus, unit, state):
        items = ids.noted(contents.items(unit, counts, rejects))
        if sample is None:
            parts, fingerprint = keep_rows(storage, contents, unit.number, 0, items)
        else:
            parts, fingerprint = [], 0
            for _ in items:
                pass
        storage.write(ids_of(unit.number), ids.file())
        if sample is not None:
            storage.write_table(candidates_of(unit.number), ids.candidates)
    return _written(storage, _unit_read(unit.number, counts, (parts, fingerprint), rejects))


def read_whole(storage: Storage, contents: Contents, unit: Unit, seed: int, stage: Stage | None) -> tuple[UnitRead, int]:
    """Read a source of one unit and draw its sample; return also how many rows are kept."""
    counts, rejects, sample = Counts(stage=stage), Rejects(storage), contents.corpus.sample
    items = contents.items(unit, counts, rejects)
    parts, fingerprint = keep_rows(storage, contents, 0, 0, items if sample is None else sampled(items, sample, seed))
    return _unit_read(0, counts, (parts, fingerprint), rejects), sum(rows for rows, _ in parts)


def _unit_read(number: int, counts: Counts, written: tuple[list[list[int]], int], rejects: Rejects) -> UnitRead:
    parts, fingerprint = written
    reasons, widths = dict(counts.reasons), tuple(counts.widths.items())
    return UnitRead(
        number, counts.read, counts.usable, reasons, _hex(fingerprint), 0, parts, rejects.parts,
        unnamed=counts.unnamed, widths=widths,
    )  # fmt: skip


def without_repeated(storage: Storage, contents: Contents, unit: UnitRead, rows: np.ndarray) -> UnitRead:
    """Remove the usable rows with these numbers, whose ids an earlier unit has, and record them as rejected."""
    recorded = as_read(storage, unit.number)
    if recorded.repeated:  # A task removed them and ended before its result arrived.
        sweep(storage, contents, recorded)
        return recorded
    rejects, ids = Rejects(storage, unit.number, unit.rejects), storage.read_table(ids_of(unit.number))
    repeated = ids.filter(pa.array(np.isin(ids.column("row").to_numpy(), rows))).sort_by("row")
    for row in repeated.to_pylist():
        rejects.add(row["text_id"], row["place"], REPEATED)
    rejects.flush()
    old_parts = [unit.part(contents, number) for number in range(len(unit.parts))]
    reasons = unit.reasons | {REPEATED: unit.reasons.get(REPEATED, 0) + len(rows)}
    updated = replace(unit, usable=unit.usable - len(rows), reasons=reasons, rejects=rejects.parts, repeated=True)
    if old_parts:  # Of a sample nothing is kept yet.
        dropped, first = set(rows.tolist()), unit.first + len(unit.parts)
        remaining = (item for number, item in enumerate(_items(storage, contents, old_parts)) if number not in dropped)
        parts, fingerprint = keep_rows(storage, contents, unit.number, first, remaining)
        updated = replace(updated, first=first, parts=parts, fingerprint=_hex(fingerprint))
    updated = _written(storage, updated)
    sweep(storage, contents, updated)
    return updated


def sweep(storage: Storage, contents: Contents, unit: UnitRead) -> None:
    """Remove the parts that a unit had before its repeated ids were removed."""
    for number in range(unit.first):
        storage.remove(numbered_in(contents.folder, unit.number, number))


def choose(storage: Storage, contents: Contents, unit: Unit, rows: np.ndarray, state: dict[str, Any]) -> None:
    """Read a unit again, if its source is still in this state, and keep the rows with these numbers for the sample."""
    chosen, counts = set(rows.tolist()), Counts()
    with units.unchanged(contents.corpus, unit, state):
        items = contents.items(unit, counts, None)
        table = contents.table([item for k, item in enumerate(items) if k in chosen])
    storage.write_table(chosen_of(unit.number), table)


def regroup(storage: Storage, contents: Contents, number: int, chosen: Sequence[int]) -> UnitRead:
    """Write the chosen rows of consecutive units as the parts of one group."""
    items = _items(storage, contents, [chosen_of(unit) for unit in chosen])
    parts, fingerprint = keep_rows(storage, contents, number, 0, items)
    group = UnitRead(number, 0, 0, {}, _hex(fingerprint), 0, parts, 0)
    storage.write_json(f"{of_unit('sample', number)}.json", asdict(group))
    return group


def unit_name(unit: int) -> str:
    """The file that says that a unit has been read."""
    return f"{of_unit('unit', unit)}.json"


def ids_of(unit: int) -> str:
    """The ids of a unit's usable rows by their digests, with each row's number and place."""
    return f"{of_unit('ids', unit)}.parquet"


def candidates_of(unit: int) -> str:
    """The rows of a unit that may be in the sample: at most its size, those of smallest keyed hash."""
    return f"{of_unit('candidates', unit)}.parquet"


def chosen_of(unit: int) -> str:
    """The rows of a unit that are in the sample."""
    return f"{of_unit('chosen', unit)}.parquet"


def as_read(storage: Storage, unit: int) -> UnitRead:
    """The record of a unit that has been read."""
    return UnitRead(**storage.read_json(unit_name(unit)))


def fingerprint_of(read: Iterable[UnitRead]) -> str:
    """The fingerprint of a corpus, the sum modulo 2²⁵⁶ of its rows' SHA-256 digests, which no choice of units changes."""
    return f"sum:{_hex(sum(int(unit.fingerprint, 16) for unit in read))}"


class UnitIds:
    """Collects the ids of a unit's usable rows in a Parquet file, sorted by digest in runs, and a sample's candidates."""

    def __init__(self, sample: int | None, seed: int) -> None:
        self._sample, self._seed = sample, seed
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, _IDS, compression="zstd", write_page_checksum=True)
        self._run, self._rows = list[tuple[bytes, str, str, bool]](), 0
        self.candidates = _CANDIDATES.empty_table()
        """At most as many rows as the sample has, those of smallest keyed hash."""

    def noted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Pass the items on and note the id of each."""
        for item in items:
            self._run.append((item.digest, item.text_id, item.place, item.copy))
            if len(self._run) == IDS_OF_A_RUN:
                self._flush()
            yield item

    def file(self) -> bytes:
        """The file, once all items have been noted."""
        self._flush()
        self._writer.close()
        return sealed.sealed(self._sink.getvalue().to_pybytes())

    def _flush(self) -> None:
        digest, text_id, place, copy = zip(*self._run, strict=True) if self._run else ((), (), (), ())
        run = pa.table([digest, range(self._rows, self._rows + len(digest)), text_id, place], schema=_IDS)
        self._writer.write_table(run.sort_by("digest"), row_group_size=IDS_OF_A_GROUP)
        if self._sample is not None:
            # Copies get their keys when those in all units are counted: see `distinct.copies`.
            first = np.flatnonzero(~np.array(copy, dtype=bool))
            names = [sample_key(digest[k], text_id[k], 0) for k in first.tolist()]
            keys = pa.array([keyed_hash(name, self._seed) for name in names], pa.uint64())
            candidates = pa.concat_tables(
                [self.candidates, run.select(["digest", "row"]).take(pa.array(first)).add_column(0, "key", keys)]
            )
            self.candidates = candidates.sort_by([("key", "ascending"), ("digest", "ascending")]).slice(0, self._sample)
        self._run, self._rows = [], self._rows + len(digest)


def _hex(number: int) -> str:
    return f"{number % (1 << 256):064x}"


def _items(storage: Storage, contents: Contents, names: Sequence[str]) -> Iterator[Any]:
    for name in names:
        yield from contents.items_of(storage.read_table(name))


def keep_rows(
    storage: Storage, contents: Contents, unit: int, first: int, items: Iterable[Any]
) -> tuple[list[list[int]], int]:  # fmt: skip
    """Write items as the parts of a unit; return each part's rows and characters, and the sum of the rows' digests."""
    parts, fingerprint = list[list[int]](), 0
    for number, group in enumerate(contents.grouped(items, begins=(unit, first) == (0, 0)), first):
        table = contents.table(group)
        storage.write_table(numbered_in(contents.folder, unit, number), table)
        parts.append([len(group), contents.characters(group)])
        for text_id, sha in zip(*(table.column(name).to_pylist() for name in ("text_id", "content_sha")), strict=True):
            row = f"{len(text_id)}:{text_id}:{sha}\n".encode()
            fingerprint += int.from_bytes(hashlib.sha256(row).digest(), "big")
    return parts, fingerprint


def _written(storage: Storage, unit: UnitRead) -> UnitRead:
    storage.write_json(unit_name(unit.number), asdict(unit))
    return unit
