"""Sources that are neither text files nor data sets of the hub: arrays and tables, read by number of row.

Each kind is a module with the functions of `Store`. Rows come as Arrow batches, so that every command reads every kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from tempscale_jobs.corpus import arrays, faiss_files, iceberg, lakes, postgres, qdrant
from tempscale_jobs.corpus.address import Part
from tempscale_jobs.corpus.readers import Columns, Record, batches_as_records, check_columns

UNDIVIDED = 1 << 62
"""More rows and bytes than a store has."""


class Store(Protocol):
    """A kind of store; `source` is the address that the user wrote, and all errors are UsageErrors."""

    FIXED: bool
    """Whether parts stay as they were planned whatever is written meanwhile, as in a version of a table."""

    def kind(self, source: str) -> str | None:
        """The name of the kind, if a source is of it."""

    def name(self, source: str) -> str:
        """The name of the store in messages and in the places of its rows."""

    def state(self, source: str) -> dict[str, Any]:
        """Facts that change when the content does; those of a local file by its name, see `states.of_local`."""

    def files(self, source: str) -> list[str]:
        """The files and folders of this machine that are read."""

    def columns(self, source: str) -> list[str]:
        """The names of the columns."""

    def parts(self, source: str, names: Sequence[str], most: tuple[int, int]) -> list[Part]:
        """Its parts in order, for units of so many rows and bytes."""

    def batches(self, source: str, at: str, names: Sequence[str], rows: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        """The rows from the first to before the last of a part, with these columns."""

    def release(self, source: str) -> None:
        """Give back what was held so that the source stays as it was."""


_STORES: tuple[Store, ...] = (arrays, faiss_files, postgres, qdrant, iceberg, lakes)


def of(source: str) -> Store | None:
    """The kind of store that a source is; None if it is none."""
    return next((store for store in _STORES if store.kind(source) is not None), None)


def names_of(store: Store, source: str, columns: Columns) -> list[str]:
    """The columns to read that a store has; a UsageError if a required one is missing."""
    return check_columns(store.columns(source), store.name(source), columns)


def records(store: Store, source: str, columns: Columns) -> Iterator[Record]:
    """All rows of a store, in its order, each named by the store and a number."""
    names = names_of(store, source, columns)
    for part in store.parts(source, names, (UNDIVIDED, UNDIVIDED)):
        batches = store.batches(source, part.at, names, (part.first, part.first + part.rows))
        yield from batches_as_records(batches, store.name(source), part.number)
