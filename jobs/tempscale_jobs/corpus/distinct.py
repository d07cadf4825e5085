"""What concerns all units of a source: rows whose ids an earlier unit has, and which rows a sample takes.

Ids are compared by partitions of their digests, so that a task holds those of one partition only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tempscale_jobs.corpus.reading import candidates_of, ids_of
from tempscale_jobs.corpus.rows import ID_BYTES
from tempscale_jobs.runs.storage import Storage

PARTITION_IDS = 2_000_000
"""Ids of a partition, about: 50 MB while they are compared."""


def repeated(storage: Storage, units: Sequence[int], new: int, share: tuple[int, int], name: str) -> dict[int, int]:
    """Write the usable rows of the last `new` units whose ids an earlier unit has, in one partition of the ids.

    `units` are in the source's order, and inside a unit ids are distinct. `share` is (k, n): partition k of n. Returns the
    number of such rows by unit.
    """
    low, high = ((k << 64) // share[1] for k in (share[0], share[0] + 1))
    found = [_ids(storage, unit, low, high) for unit in units]
    head, tail, row = (np.concatenate(column) for column in zip(*found, strict=True))
    place = np.repeat(np.arange(len(units), dtype=np.int32), [len(own[0]) for own in found])
    order = np.lexsort((place, tail, head))
    same = np.zeros(len(order), dtype=bool)
    same[1:] = (head[order][1:] == head[order][:-1]) & (tail[order][1:] == tail[order][:-1])
    gone = order[same]
    gone = gone[place[gone] >= len(units) - new]
    unit = np.asarray(units, dtype=np.int32)[place[gone]]
    if len(gone):
        storage.write_table(name, pa.table({"unit": unit, "row": row[gone]}))
    return {int(own): int(count) for own, count in zip(*np.unique(unit, return_counts=True), strict=True)}


def _ids(storage: Storage, unit: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first eight and the last four bytes of a unit's digests from `low` to before `high`, as numbers; their rows."""
    first, end = (number.to_bytes(8, "big").ljust(ID_BYTES, b"\0") if number < 1 << 64 else None for number in (low, high))
    table = storage.read_range(ids_of(unit), "digest", first, end, columns=["digest", "row"])
    digests = digests_of(table)
    head = digests[:, :8].copy().view(">u8").ravel().astype(np.uint64)
    tail = digests[:, 8:].copy().view(">u4").ravel().astype(np.uint32)
    return head, tail, table.column("row").to_numpy()


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
