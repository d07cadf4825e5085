"""Correct the row groups of a table of embeddings: write parts below vectors/ and the rejected rows.

A unit is read a few rows at a time, so memory does not depend on the size of its row groups. The rows of a part depend on
the files and the settings alone. A unit is finished when its file in shards/ exists, which is written last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from threadpoolctl import threadpool_limits

from tempscale.correction.values import Correction
from tempscale_jobs.config.correct import Embeddings
from tempscale_jobs.corpus import hub, readers, sources, stores, vectors
from tempscale_jobs.corpus.readers import KINDS, Columns, suffix
from tempscale_jobs.corpus.rows import Rejects, named_group, not_a_group, whole_length
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import numbered_in, of_unit
from tempscale_jobs.runs.memory import return_freed
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables import parts
from tempscale_jobs.urls import masked

VECTORS = "vectors"
"""The folder of corrected embeddings."""
AT_ONCE = 8192
"""Rows that are corrected at once."""
ROWS_OF_A_PART = 65_536
_READERS = 16
_SHOWN = 24
"""Characters of a wrong length in its reason."""


class RowGroups(NamedTuple):
    """Consecutive row groups of one file, or rows of a part of a store."""

    number: int
    file: str
    """The file, or the part."""
    place: str
    """The name of the file in the places of its rows."""
    groups: tuple[int, ...]
    first: int
    """The number of its first row in the file."""
    rows: int
    begin: int = 0
    """The number of its first row in the part of a store."""
    names: tuple[str, ...] = ()
    """All columns of the store."""


@dataclass(frozen=True)
class Task:
    """The context of every task, which is sent to each and therefore small."""

    storage: Storage
    given: Embeddings
    correction: Correction
    side: str
    equal_norms: bool

    @property
    def of_documents(self) -> bool:
        """Whether documents are corrected."""
        return self.side == "documents"

    def done(self, unit: int) -> str:
        """The name of the file that marks a unit as finished."""
        return f"{of_unit('corrected', unit)}.json"


def columns_of(given: Embeddings, groups: str | None = None) -> Columns:
    """The required columns of every file; `groups` is that of the groups that the correction depends on."""
    needed: dict[str, str | None] = {} if groups is None else {groups: None}
    needed[given.column] = "--embedding-column"
    if given.length_column is not None:
        needed[given.length_column] = "--length-column"
    return Columns(needed, {}, {})


def plan(given: Embeddings, columns: Columns, out: str) -> tuple[RowGroups, ...]:
    """The units of all files, in order; a UsageError if one is no Parquet, lacks a column or has others than the first."""
    source = given.source
    if source.startswith("docstrings:") or hub.is_dataset(source):
        raise UsageError(f"embeddings '{masked(source)}': give Parquet files, arrays or a table of vectors")
    if (store := stores.of(source)) is not None:
        return _of_store(given, store, columns)
    fs, files = sources.expand(given, out)
    places = sources.places(files)
    for file in files:
        if KINDS.get(suffix(file)) != "parquet":
            raise UsageError(f"embeddings '{masked(file)}' is no Parquet file; write the table as Parquet first")

    def footer(file: str, place: str) -> tuple[pa.Schema, list[int]]:
        with sources.readable(file), fs.open(file, "rb") as stream:
            opened = pq.ParquetFile(stream, pre_buffer=False)
            readers.check_columns(opened.schema_arrow.names, place, columns)
            sizes = [opened.metadata.row_group(k).num_rows for k in range(opened.metadata.num_row_groups)]
            return opened.schema_arrow.remove_metadata(), sizes

    units = list[RowGroups]()
    with ThreadPoolExecutor(_READERS) as pool:
        footers = list(pool.map(footer, files, places))
    for file, place, (schema, sizes) in zip(files, places, footers, strict=True):
        _check_schema(given, file, schema, footers[0][0])
        groups, first, rows = list[int](), 0, 0
        for group, size in enumerate([*sizes, given.unit_rows + 1]):
            if groups and rows + size > given.unit_rows:
                units.append(RowGroups(len(units), file, place, tuple(groups), first, rows))
                groups, first, rows = [], first + rows, 0
            groups.append(group)
            rows += size
    return _with_rows(given, units)


def _of_store(given: Embeddings, store: stores.Store, columns: Columns) -> tuple[RowGroups, ...]:
    source, name, units = given.source, store.name(given.source), list[RowGroups]()
    stores.names_of(store, source, columns)
    names = tuple(store.columns(source))
    for part in store.parts(source, names, (given.unit_rows, stores.UNDIVIDED)):
        for k in range(0, part.rows, given.unit_rows):
            rows = min(given.unit_rows, part.rows - k)
            units.append(RowGroups(len(units), part.at, name, (), part.number + k, rows, part.first + k, names))
    found = _with_rows(given, units)
    if (first := next(batches(given, found[0]), None)) is not None:
        _check_schema(given, name, first.schema, first.schema)
    return found


def _with_rows(given: Embeddings, units: list[RowGroups]) -> tuple[RowGroups, ...]:
    """The units that have rows; a UsageError if none has."""
    if not any(unit.rows for unit in units):
        raise UsageError(f"embeddings '{masked(given.source)}' has no row")
    return tuple(unit for unit in units if unit.rows)


def local_files(given: Embeddings, units: tuple[RowGroups, ...]) -> list[str]:
    """The files of this machine that are read."""
    if (store := stores.of(given.source)) is not None:
        return store.files(given.source)
    return [unit.file for unit in units] if sources.is_local(given) else []


def _check_schema(embeddings: Embeddings, file: str, schema: pa.Schema, first: pa.Schema) -> None:
    """Raise if a file's embeddings are no lists of numbers, or if it has other columns than the first file."""
    kind = schema.field(embeddings.column).type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    numbers = (pa.types.is_floating, pa.types.is_integer, pa.types.is_decimal)
    if not listed or not any(holds(kind.value_type) for holds in numbers):
        raise UsageError(f"column '{embeddings.column}' of '{masked(file)}' holds {kind}; embeddings are lists of numbers")
    if embeddings.length_column is not None and embeddings.length_column in schema.names:
        kind = schema.field(embeddings.length_column).type
        if pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
            raise UsageError(f"column '{embeddings.length_column}' of '{masked(file)}' holds {kind}; lengths are numbers")
    if schema.names != first.names:
        raise UsageError(f"'{masked(file)}' has other columns than the first file: {', '.join(schema.names)}")


def check_lengths(given: Embeddings, units: tuple[RowGroups, ...]) -> None:
    """Raise a UsageError if the first rows have texts instead of lengths, and none is a number in digits."""
    first = next(batches(given, units[0]), None)
    if given.length_column is None or first is None:
        return
    cells = [cell for cell in readers.values(first.column(given.length_column).combine_chunks()) if cell is not None]
    if cells and isinstance(cells[0], (str, bytes)) and not any(map(whole_length, cells)):
        file, text = units[0].place, str(cells[0])[:_SHOWN]
        raise UsageError(f"column '{given.length_column}' of '{file}' holds '{text}'; lengths are numbers")


def check_groups(given: Embeddings, units: tuple[RowGroups, ...], column: str) -> None:
    """Raise a UsageError if the first value of the column of groups is nested."""
    if (first := next(batches(given, units[0]), None)) is not None:
        cells = (cell for cell in readers.values(first.column(column).combine_chunks()) if cell is not None)
        if (problem := not_a_group(column, next(cells, None), "the correction")) is not None:
            raise UsageError(f"embeddings '{masked(given.source)}': {problem}")


def other_dimensions(given: Embeddings, units: tuple[RowGroups, ...], wanted: int) -> int | None:
    """The most frequent dimensions if no embedding that is read has the `wanted` ones; None if one has, or all are null."""
    # All of the first unit is looked at, and the first rows of the others: how many rows fit is known when all are read.
    sizes = Counter[int]()
    for unit in units:
        for batch in batches(given, unit):
            sizes.update(pc.list_value_length(batch.column(given.column)).drop_null().to_pylist())
            if wanted in sizes:
                return None
            if unit is not units[0]:
                break
    return sizes.most_common(1)[0][0] if sizes else None


def correct(number: int, task: Task, units: dict[int, RowGroups]) -> None:
    """Correct a unit, unless it is finished."""
    if not task.storage.exists(task.done(number)):
        with threadpool_limits(1):  # The last bits of a product may depend on the number of threads.
            task.storage.write_json(task.done(number), correct_unit(task, units[number]))
        return_freed()


def correct_unit(task: Task, unit: RowGroups) -> dict[str, Any]:
    """Write the parts of a unit; return the number of corrected rows and the reasons of rejected ones."""
    rejects, reasons = Rejects(task.storage, unit.number), Counter[str]()
    waiting, number, corrected, row = list[pa.Table](), 0, 0, unit.first
    for batch in batches(task.given, unit):
        table, wrong = moved_rows(task, batch)
        for k, reason in sorted(wrong.items()):
            rejects.add(None, f"{unit.place}:{row + k}", reason)
        reasons.update(wrong.values())
        row, corrected = row + batch.num_rows, corrected + table.num_rows
        waiting.append(table)
        if sum(block.num_rows for block in waiting) >= ROWS_OF_A_PART:
            number, waiting = _written(task, unit, number, waiting), []
    _written(task, unit, number, waiting)
    rejects.flush()
    return {"rows": unit.rows, "corrected": corrected, "reasons": dict(sorted(reasons.items()))}


def batches(given: Embeddings, unit: RowGroups) -> Iterator[pa.Table]:
    """The rows of a unit, a few at a time."""
    if (store := stores.of(given.source)) is not None:
        rows = store.batches(given.source, unit.file, unit.names, (unit.begin, unit.begin + unit.rows))
        # As many at once as of a Parquet file, so that the parts are the same.
        yield from readers.of_rows(map(pa.table, rows), AT_ONCE)
        return
    with sources.readable(unit.file), sources.file_system(given).open(unit.file, "rb") as stream:
        file = pq.ParquetFile(stream, pre_buffer=False)
        for batch in file.iter_batches(batch_size=AT_ONCE, row_groups=list(unit.groups), use_threads=False):
            yield pa.table(batch)


def _written(task: Task, unit: RowGroups, number: int, waiting: list[pa.Table]) -> int:
    """Write a part, if it has a row; return the number of the next part."""
    whole = pa.concat_tables(waiting) if waiting else None
    if whole is None or not whole.num_rows:
        return number
    name = numbered_in(VECTORS, unit.number, number)
    task.storage.write_table(name, whole.replace_schema_metadata(None), rows_of_group=AT_ONCE)
    return number + 1


def moved_rows(task: Task, batch: pa.Table) -> tuple[pa.Table, dict[int, str]]:
    """The usable rows of a batch with corrected embeddings, and why the others are not usable, by number."""
    embeddings, correction = task.given, task.correction
    needed = correction.needs_tokens if task.of_documents else correction.needs_query_tokens
    column = batch.column(embeddings.column).combine_chunks()
    wrong = dict[int, str]()
    sizes = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    for k in np.flatnonzero(sizes != correction.dim).tolist():
        message = f"the embedding has {sizes[k]} dimensions, and the correction {correction.dim}"
        wrong[k] = "the embedding is null" if sizes[k] < 0 else message
    lengths = np.ones(batch.num_rows)
    if needed:
        assert embeddings.length_column is not None, "the command requires it"
        tokens_of = readers.values(batch.column(embeddings.length_column).combine_chunks())
        whole = list(map(whole_length, tokens_of))
        lengths = np.array([length or 1 for length in whole])
        for k in (k for k, length in enumerate(whole) if length is None):
            stored = "null" if tokens_of[k] is None else str(tokens_of[k])[:_SHOWN]
            wrong.setdefault(k, f"the length is {stored}; it must be a whole number of tokens from 1 on")
    groups, unnamed = _groups(task, batch)
    wrong = unnamed | wrong
    usable = np.setdiff1d(np.arange(batch.num_rows), list(wrong))
    flat = column.take(pa.array(usable)).flatten()
    rows = pc.fill_null(pc.cast(flat, pa.float64(), safe=False), float("nan")).to_numpy(zero_copy_only=False)
    rows, refused = vectors.unit_rows(rows.reshape(len(usable), correction.dim))
    wrong |= {int(usable[k]): reason for k, reason in refused.items()}
    good = np.setdiff1d(np.arange(len(usable)), list(refused))
    rows, usable = rows[good], usable[good]
    tokens = torch.from_numpy(lengths[usable].astype(np.int64)) if needed else None
    if task.of_documents:
        of_rows = None if groups is None else [groups[k] for k in usable.tolist()]
        moved = correction.documents(torch.from_numpy(rows), tokens, groups=of_rows, equal_norms=task.equal_norms).numpy()
    else:
        moved = correction.queries(torch.from_numpy(rows), tokens, equal_norms=task.equal_norms).numpy()
    place = batch.column_names.index(embeddings.column)
    usable_rows = batch.take(pa.array(usable))
    return usable_rows.set_column(place, embeddings.column, parts.fixed_lists(moved)), wrong


def _groups(task: Task, batch: pa.Table) -> tuple[list[str] | None, dict[int, str]]:
    """The groups of documents, where the correction depends on them, and why rows have none, by number."""
    column = task.correction.recipe.column
    if column is None or not task.of_documents:
        return None, {}
    cells = readers.values(batch.column(column).combine_chunks())
    problems = {k: not_a_group(column, cell, "the correction") for k, cell in enumerate(cells)}
    return list(map(named_group, cells)), {k: problem for k, problem in problems.items() if problem is not None}
