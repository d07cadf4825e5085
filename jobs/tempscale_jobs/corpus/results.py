"""Read what an index returns for queries: rows of a query, a text and the rank of the text.

Rows are kept in parts with their ids and, for comparisons in memory, with the keyed hashes of the ids, as in a layout.
Nothing is left out: a row that cannot be used is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.sections import Results
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.index import Shard, SourceIndex
from tempscale_jobs.corpus.readers import Columns, Record
from tempscale_jobs.corpus.rows import usable_id, whole_number_in
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import SHARDED, numbered
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.parts import SERVED
from tempscale_jobs.urls import masked

MOST_ROWS = 10_000_000
"""This process has 24 bytes of each row in memory."""
PART = 131_072
"""Rows of a part."""
_COLUMNS = Columns(dict.fromkeys(("query_id", "text_id", "rank")), {}, {})
_LARGEST_RANK = 2**31


@dataclass(frozen=True)
class ResultsIndex(SourceIndex):
    """The index of a source of results."""

    unit: ClassVar[type] = Shard
    queries: int
    """Distinct ids of queries."""
    texts: int
    """Distinct ids of texts."""
    shards: tuple[Shard, ...]


class Rows(NamedTuple):
    """All rows, in the order of the source."""

    query: np.ndarray
    """The keyed hash of the query's id, uint64."""
    text: np.ndarray
    """That of the text's."""
    rank: np.ndarray

    @classmethod
    def read(cls, storage: Storage) -> Rows:
        """The rows that `read` has written."""
        shards = [Shard(**shard) for shard in storage.read_json(SHARDED)["shards"]]
        columns = ["query_key", "text_key", "rank"]
        return cls(*storage.arrays([s.name for s in shards], columns, sum(s.texts for s in shards)))


def records(section: Results, out: str) -> Iterator[Record]:
    """The rows of the source; a UsageError if a column is missing."""
    return sources.records(section, _COLUMNS, out)


def read(storage: Storage, section: Results, out: str, seed: int, stage: Stage) -> ResultsIndex:
    """Read and check a source, unless an earlier session did; a UsageError for the first row that is wrong."""
    if index := ResultsIndex.earlier(storage, section, out):
        return index
    state = sources.identity(section, out)
    digest, shards, keys = hashlib.sha256(), list[Shard](), list[Rows]()
    with sources.unchanged(section, state, out):
        rows = _rows(section, out, seed)
        while part := list(islice(rows, PART)):
            if len(shards) * PART + len(part) > MOST_ROWS:
                raise UsageError(
                    f"{_named(section)} has more than {MOST_ROWS:,} rows, the most that are compared; give fewer queries, "
                    "or only the first ranks of each"
                )
            table = SERVED.build(dict(zip(SERVED.schema().names, zip(*part, strict=True), strict=True)))
            shards.append(Shard(numbered("shards", len(shards)), len(part)))
            storage.write_table(shards[-1].name, table)
            keys.append(Rows(*(table.column(name).to_numpy() for name in ("query_key", "text_key", "rank"))))
            for column in keys[-1]:
                digest.update(column.tobytes())
            stage.advance(len(part))
    if not shards:
        raise UsageError(f"{_named(section)} has no row")
    whole = Rows(*map(np.concatenate, zip(*keys, strict=True)))
    _check_distinct(storage, section, whole)
    return ResultsIndex(
        masked(section.source), state, digest.hexdigest(), len(whole.rank), 0, len(np.unique(whole.query)),
        len(np.unique(whole.text)), tuple(shards),
    ).kept(storage)  # fmt: skip


def row_at(storage: Storage, number: int) -> dict[str, Any]:
    """One row by its number, with its ids."""
    row: dict[str, Any] = storage.take(numbered("shards", number // PART), ["query_id", "text_id", "rank"],
                                       np.array([number % PART])).to_pylist()[0]  # fmt: skip
    return row


def any_known(storage: Storage, names: Sequence[str], keys: np.ndarray, seed: int) -> bool:
    """Whether one of these keys is that of a text in some files; no more files are read than that takes."""
    for (ids,) in storage.columns(names, ["text_id"]):
        if np.isin(np.array([keyed_hash(i, seed) for i in ids.to_pylist()], np.uint64), keys).any():
            return True
    return False


def _named(section: Results) -> str:
    return f"{section.kind} '{masked(section.source)}'"


def _rows(section: Results, out: str, seed: int) -> Iterator[tuple[str, str, int, int, int]]:
    """The cells of the table `served`, row by row."""
    for place, values, problem in records(section, out):
        ids = dict[str, str]()
        for name in ("query_id", "text_id"):
            value, reason = usable_id(values.get(name), f"the {name}")
            problem = problem or reason or (f"there is no {name}" if value is None else None)
            ids[name] = value or ""
        rank = whole_number_in(values.get("rank"))
        if problem is None and (rank is None or not 0 <= rank < _LARGEST_RANK):
            problem = f"the rank {values.get('rank')!r} is not a whole number from 1 on (or from 0)"
        if problem is not None or rank is None:
            raise UsageError(f"{_named(section)}, row {place}: {problem}; give every row a query_id, a text_id and a rank")
        query, text = ids.values()
        yield query, text, rank, keyed_hash(query, seed), keyed_hash(text, seed)


def _check_distinct(storage: Storage, section: Results, rows: Rows) -> None:
    """Raise a UsageError if a query has a rank or a text twice."""
    for name, column in (("rank", rows.rank), ("text_id", rows.text)):
        order = np.lexsort((column, rows.query))
        same = (np.diff(rows.query[order]) == 0) & (np.diff(column[order]) == 0)
        if same.any():
            row = row_at(storage, int(order[1:][same].min()))
            raise UsageError(
                f"{_named(section)}: {same.sum():,} of {len(order):,} rows repeat the {name} of another row of their query, "
                f"first {name} {row[name]!r} of query {row['query_id']!r}; give each once"
            )
