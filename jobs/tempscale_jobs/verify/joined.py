"""Vectors and texts of two tables, joined by their ids.

A sample is drawn by a hash of the ids, the same in both tables, so it holds the same ids of both as far as both have them:
an id that only one sample has, below the largest hash of the other, is missing in the other table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.rows import Rejects
from tempscale_jobs.corpus.stored import PART
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import numbered_in, of_unit
from tempscale_jobs.runs.storage import Storage

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
    parts = max(1, -(-max(vectors[1].analysed, texts[1].analysed) // AT_ONCE))
    for k in range(parts):
        low, high = (k * (1 << 64) // parts, (k + 1) * (1 << 64) // parts)
        sides = [_rows(*side, seed, (low, min(high, reach + 1))) for side in (vectors, texts)]
        yield _joined(*sides)


def _reach(storage: Storage, index: Index, seed: int) -> int:
    """The largest hash up to which all ids of a table are known."""
    if index.analysed == index.usable:
        return (1 << 64) - 1
    names = [shard.name for shard in index.shards]
    ids = (text_id for (column,) in storage.columns(names, ["text_id"]) for text_id in column.to_pylist())
    return max(keyed_hash(text_id, seed) for text_id in ids)


def _rows(storage: Storage, index: Index, seed: int, bounds: tuple[int, int]) -> pa.Table:
    low, high = bounds
    tables = []
    for shard in index.shards:
        table = storage.read_table(shard.name)
        inside = [low <= keyed_hash(text_id, seed) < high for text_id in table.column("text_id").to_pylist()]
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
