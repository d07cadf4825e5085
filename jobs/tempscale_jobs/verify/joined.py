"""Vectors and texts of two tables, joined by their ids.

A sample is drawn by a hash of the ids, the same in both tables, so it holds the same ids of both as far as both have them:
an id that only one sample has, below the largest hash of the other, is missing in the other table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.rows import Rejects
from tempscale_jobs.corpus.stored import PART
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import numbered_in, of_unit
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.verify import ROWS

AT_ONCE = 200_000
"""Rows of both tables that are joined in memory at once."""
_UNIT = 99_999_999
"""The number in the names of the parts of rejected/ with ids that are missing in one table."""
_OF_TEXTS = ("text", "title", "above", "below")
NO_TEXT, NO_VECTOR = "no text has this id", "no vector has this id"


class Joined(NamedTuple):
    """The rows of both tables."""

    rows: Index
    missing: dict[str, int]
    """How many of the ids that were looked at are missing in one table, by the reason of their rejection."""
    ids: int
    """The ids that were looked at."""


def join(vectors: tuple[Storage, Index], texts: tuple[Storage, Index], seed: int) -> Joined:
    """Write the rows that have a vector and a text in pieces of their own, and the ids without one to rejected/."""
    storage, shards, missing, total = vectors[0], list[Shard](), dict.fromkeys((NO_TEXT, NO_VECTOR), 0), 0
    rejects = Rejects(storage, _UNIT)
    for rows, alone in _partitions(vectors, texts, seed):
        for reason, ids in alone.items():
            missing[reason] += len(ids)
            for text_id in ids:
                rejects.add(text_id, "", reason)
        total += rows.num_rows + sum(map(len, alone.values()))
        for first in range(0, rows.num_rows, PART):
            piece = rows.slice(first, PART)
            name = f"{of_unit('joined', len(shards))}.parquet"
            storage.write_table(name, piece)
            shards.append(Shard(name, piece.num_rows, sum(map(len, piece.column("text").to_pylist()))))
    rejects.flush()
    if not shards:
        raise UsageError("--embeddings and --texts have no id in common: nothing can be compared; see --id-column")
    return Joined(replace(vectors[1], shards=tuple(shards)), missing, total)


def keep_rejected(texts: Storage, storage: Storage) -> None:
    """Keep the rejected rows of the table of texts with those of the vectors."""
    for number, name in enumerate(texts.list("rejected")):
        storage.write_table(numbered_in("rejected", _UNIT - 1, number), texts.read_table(name))


def _partitions(
    vectors: tuple[Storage, Index], texts: tuple[Storage, Index], seed: int
) -> Iterator[tuple[pa.Table, dict[str, list[str]]]]:  # fmt: skip
    """Ranges of the hash of ids: the joined rows, and the ids that one table lacks."""
    reach = min(_reach(*vectors, seed), _reach(*texts, seed))
    ranges = max(1, -(-max(vectors[1].analysed, texts[1].analysed) // AT_ONCE))
    files = [_split(*side, seed, ranges) for side in (vectors, texts)]
    for k in range(ranges):
        yield _joined(*(_rows(side[0], names[k], seed, reach) for side, names in zip((vectors, texts), files, strict=True)))


def _split(storage: Storage, index: Index, seed: int, ranges: int) -> list[list[str]]:
    """The files of each range of the hash: the shards themselves if there is one range, else new ones, each row in one."""
    names = [list[str]() for _ in range(ranges)]
    if ranges == 1:
        return [[shard.name for shard in index.shards]]
    waiting, rows = [list[pa.Table]() for _ in range(ranges)], 0
    for shard in index.shards:
        table = storage.read_table(shard.name)
        range_of = np.array([keyed_hash(text_id, seed) * ranges >> 64 for text_id in table.column("text_id").to_pylist()])
        for k in np.unique(range_of).tolist():
            waiting[k].append(table.filter(pa.array(range_of == k)))
        rows += table.num_rows
        if rows >= AT_ONCE or shard == index.shards[-1]:
            for k, tables in enumerate(waiting):
                if tables:
                    names[k].append(f"{of_unit('range', k)}-{len(names[k]):08d}.parquet")
                    storage.write_table(names[k][-1], pa.concat_tables(tables))
            waiting, rows = [list[pa.Table]() for _ in range(ranges)], 0
    return names


def _reach(storage: Storage, index: Index, seed: int) -> int:
    """The largest hash up to which all ids of a table are known."""
    if index.analysed == index.usable:
        return (1 << 64) - 1
    names = [shard.name for shard in index.shards]
    ids = (text_id for (column,) in storage.columns(names, ["text_id"]) for text_id in column.to_pylist())
    return max(keyed_hash(text_id, seed) for text_id in ids)


def _rows(storage: Storage, names: Sequence[str], seed: int, reach: int) -> pa.Table:
    """The rows of some files whose hash is known in both tables."""
    tables = [ROWS.schema().empty_table()]
    for name in names:
        table = storage.read_table(name)
        inside = [keyed_hash(text_id, seed) <= reach for text_id in table.column("text_id").to_pylist()]
        tables.append(table.filter(pa.array(inside)))
    return pa.concat_tables(tables).combine_chunks()


def _joined(vectors: pa.Table, texts: pa.Table) -> tuple[pa.Table, dict[str, list[str]]]:
    place_of: dict[Any, int] = {text_id: k for k, text_id in enumerate(texts.column("text_id").to_pylist())}
    ids = vectors.column("text_id").to_pylist()
    both = [k for k, text_id in enumerate(ids) if text_id in place_of]
    rows = vectors.take(pa.array(both, pa.int64()))
    matched = texts.take(pa.array([place_of[ids[k]] for k in both], pa.int64()))
    for name in _OF_TEXTS:
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), matched.column(name))
    with_vector = set(ids)
    alone = {NO_TEXT: [i for i in ids if i not in place_of], NO_VECTOR: [i for i in place_of if i not in with_vector]}
    return rows, alone
