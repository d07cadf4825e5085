"""Compare all units of a source: find rows whose ids an earlier unit has, and draw a sample.

Ids are compared by partitions of their digests, so that a task has those of one partition only. Ids inside one unit are
distinct already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.corpus.reading import candidates_of, ids_of
from tempscale_jobs.corpus.rows import ID_BYTES, sample_key
from tempscale_jobs.runs.storage import Storage

_DRAWN = pa.schema([("key", pa.uint64()), ("digest", pa.binary(ID_BYTES)), ("row", pa.int32()), ("unit", pa.int32())])
_BY_PLACE = [("digest", "ascending"), ("unit", "ascending"), ("row", "ascending")]
PARTITION_IDS = 2_000_000
"""About so many ids make a partition: 50 MB while they are compared."""


def repeated(storage: Storage, units: Sequence[int], share: tuple[int, int], name: str) -> dict[int, int]:
    """Write the usable rows of partition k of n (`share`) whose ids an earlier unit has; return their number by unit."""
    partition = _equal(storage, units, share)
    repeated_rows = partition.table.filter(pa.array((partition.before > 0) & ~partition.of_content))
    if repeated_rows.num_rows:
        storage.write_table(name, repeated_rows.select(["unit", "row"]))
    counts = np.unique(repeated_rows.column("unit").to_numpy(), return_counts=True)
    return {int(unit): int(count) for unit, count in zip(*counts, strict=True)}


class Draw(NamedTuple):
    """The size and the seed of a sample."""

    size: int
    seed: int


def copies(storage: Storage, units: Sequence[int], draw: Draw, share: tuple[int, int], name: str) -> None:
    """Write one partition's rows without ids whose content an earlier row has: the `draw.size` of smallest keyed hash."""
    partition = _equal(storage, units, share)
    copy_rows = np.flatnonzero((partition.before > 0) & partition.of_content)
    table = partition.table.take(pa.array(copy_rows))
    digests, before = table.column("digest").to_pylist(), partition.before[copy_rows].tolist()
    row_names = (sample_key(digest, "", number) for digest, number in zip(digests, before, strict=True))
    keys = pa.array([keyed_hash(row_name, draw.seed) for row_name in row_names], pa.uint64())
    table = table.add_column(0, "key", keys).sort_by([("key", "ascending"), *_BY_PLACE])
    storage.write_table(name, table.slice(0, draw.size).combine_chunks())


class _Equal(NamedTuple):
    """Rows of all units in one partition of their digests."""

    table: pa.Table
    """Digest, unit and row, sorted by all three."""
    before: np.ndarray
    """The number of earlier rows with the same digest."""
    of_content: np.ndarray
    """Whether the digest is of the content, because the row has no id."""


def _equal(storage: Storage, units: Sequence[int], share: tuple[int, int]) -> _Equal:
    low, end = _range(*share)
    read = {unit: storage.read_range(ids_of(unit), "digest", low, end, columns=["digest", "row"]) for unit in units}
    numbered = [rows.append_column("unit", pa.array(np.full(len(rows), unit, np.int32))) for unit, rows in read.items()]
    table = pa.concat_tables(numbered)
    head, tail = _halves(table)
    unit, row = (table.column(column).to_numpy() for column in ("unit", "row"))
    order = np.lexsort((row, unit, tail, head))
    head, tail = head[order], tail[order]
    same = np.zeros(len(order), dtype=bool)
    same[1:] = (head[1:] == head[:-1]) & (tail[1:] == tail[:-1])
    place = np.arange(len(order))
    before = place - np.maximum.accumulate(np.where(same, 0, place))
    return _Equal(table.take(pa.array(order)), before, (tail & 1).astype(bool))


def _first_of_equal(table: pa.Table) -> np.ndarray:
    """Whether each row is the first of consecutive rows with the same key and digest."""
    keys, digests = table.column("key").to_numpy(), digests_of(table)
    is_first = np.ones(len(keys), dtype=bool)
    is_first[1:] = (keys[1:] != keys[:-1]) | (digests[1:] != digests[:-1]).any(1)
    return is_first


def _range(number: int, count: int) -> tuple[bytes | None, bytes | None]:
    """The first digest of one of `count` equal ranges and of the next range; None after the last."""
    low, end = ((k << 64) // count for k in (number, number + 1))
    first, after = (value.to_bytes(8, "big").ljust(ID_BYTES, b"\0") if value < 1 << 64 else None for value in (low, end))
    return first, after


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
    table = pa.concat_tables([storage.read_table(name) for name in names])
    unit, row = (table.column(name).to_numpy() for name in ("unit", "row"))
    return {int(number): np.sort(row[unit == number]) for number in np.unique(unit)}


def sampled(
    storage: Storage, units: Sequence[int], size: int, other: tuple[Sequence[str], Sequence[str]], name: str
) -> dict[int, int]:  # fmt: skip
    """Write the sample; return its rows by unit; `other` is (tables of repeated rows to leave out, tables of `copies`)."""
    repeated_tables, copy_tables = other
    drawn = pa.concat_tables(
        [_DRAWN.empty_table(), *(storage.read_table(file).select(_DRAWN.names) for file in copy_tables)]
    )
    repeated_rows, nothing = rows_by_unit(storage, repeated_tables), np.zeros(0, np.int32)
    for unit in units:
        rows = storage.read_table(candidates_of(unit))
        rows = rows.filter(pa.array(~np.isin(rows.column("row").to_numpy(), repeated_rows.get(unit, nothing))))
        merged = pa.concat_tables([drawn, rows.append_column("unit", pa.array(np.full(rows.num_rows, unit), pa.int32()))])
        merged = merged.sort_by([("key", "ascending"), *_BY_PLACE])
        # Of equal contents in several units this is the first; the others are in the tables of `copies`, with other keys.
        drawn = merged.filter(pa.array(_first_of_equal(merged))).slice(0, size).combine_chunks()
    places = drawn.select(["unit", "row"]).sort_by([("unit", "ascending"), ("row", "ascending")])
    storage.write_table(name, places)
    counts = np.unique(places.column("unit").to_numpy(), return_counts=True)
    return {int(number): int(count) for number, count in zip(*counts, strict=True)}
