"""What concerns all units of a source: rows whose ids an earlier unit has, and which rows a sample takes.

Ids are compared by partitions of their digests, so that a task holds those of one partition only. The ids of many units are
merged first, sixteen by sixteen: a partition is then read from a few files, not from one of each unit, and all partitions of
all units together grow as the texts do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tempscale_jobs.corpus.reading import IDS_OF_A_GROUP, candidates_of, ids_of
from tempscale_jobs.corpus.rows import ID_BYTES
from tempscale_jobs.runs.folder import of_unit
from tempscale_jobs.runs.storage import Storage

PARTITION_IDS = 2_000_000
"""Ids of a partition, about: 50 MB while they are compared."""


TOGETHER = 16
"""Lists of ids that are merged into one."""


class SortedIds(NamedTuple):
    """The sorted ids of 16 ** `level` consecutive units, `number` of that level, in files of equal ranges of all digests."""

    level: int
    number: int
    files: int
    """A unit's ids are in one file, those of more in as many as partitions: a task holds one of them."""

    @property
    def names(self) -> list[str]:
        """The names of its files."""
        if not self.level:
            return [ids_of(self.number)]
        return [f"{of_unit(f'ids-{self.level}', self.number)}-{k:08d}.parquet" for k in range(self.files)]

    def read(self, storage: Storage, low: int, high: int) -> pa.Table:
        """The digests from `low` to before `high`, as their first eight bytes, with the unit and the row of each."""
        own = self.names[low * self.files >> 64 : ((high - 1) * self.files >> 64) + 1]
        columns = ["digest", "row", *(["unit"] if self.level else [])]
        found = pa.concat_tables([storage.read_range(name, "digest", *_between(low, high), columns=columns) for name in own])
        if self.level:
            return found
        return found.append_column("unit", pa.array(np.full(found.num_rows, self.number, np.int32)))


def lists(rows: Sequence[int]) -> list[SortedIds]:
    """As few lists as hold the ids of units with so many rows, in their order."""
    found, at, level = list[SortedIds](), 0, 0
    while TOGETHER ** (level + 1) <= len(rows):
        level += 1
    for own in range(level, -1, -1):
        size = TOGETHER**own
        found += [_list(own, number, rows) for number in range(at // size, len(rows) // size)]
        at = len(rows) // size * size
    return found


def merges(rows: Sequence[int]) -> Iterator[list[tuple[SortedIds, list[SortedIds]]]]:
    """The merged lists of units with so many rows, each with those it is merged from, by level; one needs the one below."""
    level = 1
    while count := len(rows) // TOGETHER**level:
        below = [_list(level - 1, number, rows) for number in range(count * TOGETHER)]
        yield [(_list(level, k, rows), below[k * TOGETHER : (k + 1) * TOGETHER]) for k in range(count)]
        level += 1


def _list(level: int, number: int, rows: Sequence[int]) -> SortedIds:
    size = TOGETHER**level
    own = sum(rows[number * size : (number + 1) * size])
    return SortedIds(level, number, max(1, -(-own // PARTITION_IDS)) if level else 1)


def merge(storage: Storage, ids: SortedIds, merged_from: Sequence[SortedIds], number: int) -> None:
    """Write one file of a merged list."""
    found = pa.concat_tables([own.read(storage, *_range(number, ids.files)) for own in merged_from])
    storage.write_table(ids.names[number], found.sort_by("digest"), rows_of_group=IDS_OF_A_GROUP)


def repeated(
    storage: Storage, ids: Sequence[SortedIds], first: int, share: tuple[int, int], name: str
) -> dict[int, int]:  # fmt: skip
    """Write the usable rows of units from `first` on whose ids an earlier unit has, in one partition of the ids.

    `ids` are those of all units up to the last, and inside a unit they are distinct. `share` is (k, n): partition k of n.
    Returns the number of such rows by unit.
    """
    found = [own.read(storage, *_range(*share)) for own in ids]
    head, tail = (np.concatenate(column) for column in zip(*map(_halves, found), strict=True))
    place, row = (np.concatenate([own.column(column).to_numpy() for own in found]) for column in ("unit", "row"))
    order = np.lexsort((place, tail, head))
    same = np.zeros(len(order), dtype=bool)
    same[1:] = (head[order][1:] == head[order][:-1]) & (tail[order][1:] == tail[order][:-1])
    gone = order[same]
    gone = gone[place[gone] >= first]
    unit = place[gone]
    if len(gone):
        storage.write_table(name, pa.table({"unit": unit, "row": row[gone]}))
    return {int(own): int(count) for own, count in zip(*np.unique(unit, return_counts=True), strict=True)}


def _range(number: int, count: int) -> tuple[int, int]:
    """One of `count` equal ranges of all digests, [low, high), as their first eight bytes."""
    return (number << 64) // count, (number + 1 << 64) // count


def _between(low: int, high: int) -> tuple[bytes | None, bytes | None]:
    """The digests that a range begins with and that follows it; None for its end where it is that of all."""
    first, end = (value.to_bytes(8, "big").ljust(ID_BYTES, b"\0") if value < 1 << 64 else None for value in (low, high))
    return first, end


def _halves(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The first eight and the last four bytes of digests, as numbers."""
    digests = digests_of(table)
    head = digests[:, :8].copy().view(">u8").ravel().astype(np.uint64)
    tail = digests[:, 8:].copy().view(">u4").ravel().astype(np.uint32)
    return head, tail


def digests_of(table: pa.Table) -> np.ndarray:
    """The column `digest` as bytes (rows, 12)."""
    column = table.column("digest").combine_chunks()
    if not len(column):
        return np.zeros((0, ID_BYTES), np.uint8)
    flat = np.frombuffer(column.buffers()[1], np.uint8, len(column) * ID_BYTES, column.offset * ID_BYTES)
    return flat.reshape(-1, ID_BYTES)


def rows_by_unit(storage: Storage, names: Sequence[str]) -> dict[int, np.ndarray]:
    """The sorted rows of each unit in tables of (unit, row)."""
    if not names:
        return {}
    both = pa.concat_tables([storage.read_table(name) for name in names])
    unit, row = (both.column(name).to_numpy() for name in ("unit", "row"))
    return {int(own): np.sort(row[unit == own]) for own in np.unique(unit)}


def sampled(storage: Storage, units: Sequence[int], size: int, gone: Sequence[str], name: str) -> dict[int, int]:
    """Write the rows of smallest keyed hash of all units, `size` of them, without the repeated rows in `gone`.

    Returns the number of such rows by unit. Rows of equal hash are taken by the digest of their id.
    """
    least = pa.table({"key": pa.array([], pa.uint64()), "digest": pa.array([], pa.binary(ID_BYTES)),
                      "row": pa.array([], pa.int32()), "unit": pa.array([], pa.int32())})  # fmt: skip
    repeated_rows, nothing = rows_by_unit(storage, gone), np.zeros(0, np.int32)
    for unit in units:
        own = storage.read_table(candidates_of(unit))
        own = own.filter(pa.array(~np.isin(own.column("row").to_numpy(), repeated_rows.get(unit, nothing))))
        both = pa.concat_tables([least, own.append_column("unit", pa.array(np.full(own.num_rows, unit), pa.int32()))])
        least = both.sort_by([("key", "ascending"), ("digest", "ascending")]).slice(0, size).combine_chunks()
    found = least.select(["unit", "row"]).sort_by([("unit", "ascending"), ("row", "ascending")])
    storage.write_table(name, found)
    counts = np.unique(found.column("unit").to_numpy(), return_counts=True)
    return {int(own): int(count) for own, count in zip(*counts, strict=True)}
