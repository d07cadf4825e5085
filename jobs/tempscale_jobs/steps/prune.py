"""List a cache, or prune it: remove unused keys and texts that no run has, and merge small files."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tempscale_jobs.errors import Damaged, RunError, UsageError
from tempscale_jobs.runs.folder import finished
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.cache import BUCKETS, KEY, write_bucket
from tempscale_jobs.urls import masked

_OURS = re.compile(r"(?:bucket-[0-9]{3}/)?[0-9a-f]{24}\.parquet")
"""Names of the files of a cache in the folder of a key, or of a bucket."""
_ABANDONED_SECONDS = 86_400
"""An unfinished file that has not changed for this long belongs to no live run."""


class CacheKey(NamedTuple):
    """One key of a cache and the size of its contents."""

    place: str
    values: dict[str, Any]
    texts: int
    files: int
    bytes: int


def listed(root: str) -> list[CacheKey]:
    """Every key of a cache, the last used first."""
    store = Storage(root)
    store.check_reachable()
    keys = [name.removesuffix(f"/{KEY}") for name in store.list("") if name.endswith(f"/{KEY}")]
    if not keys:
        raise UsageError(f"'{masked(root)}' is no cache; give the folder that --cache named")
    entries = [entry for place in keys if (entry := _contents_of(store, place)) is not None]
    return sorted(entries, key=lambda entry: (entry.values["last_used"], entry.place), reverse=True)


def prune(root: str, unused_days: int | None, keep: list[str], on_key: Callable[[str], None] = lambda text: None) -> int:
    """Remove keys unused for `unused_days` and texts in none of the runs `keep`, merge each bucket; return freed bytes."""
    store, entries = Storage(root), listed(root)
    hashes = _contents(keep) if keep else None
    store.sweep(_ABANDONED_SECONDS)
    today = datetime.datetime.now(datetime.UTC).date()
    for entry in entries:
        on_key(f"{entry.values['name']}, τ {entry.values['temperature']}")
        age = (today - datetime.date.fromisoformat(entry.values["last_used"])).days
        if unused_days is not None and age >= unused_days:
            for name in [f"{entry.place}/{KEY}", *_files(store, entry.place)]:
                store.remove(name)
            store.remove_empty(entry.place)  # A run may write to it at the same time.
            continue
        for number in range(BUCKETS):
            _merge(store, entry.place, number, hashes)
    remaining = [_contents_of(store, entry.place) for entry in entries if store.exists(f"{entry.place}/{KEY}")]
    return sum(entry.bytes for entry in entries) - sum(entry.bytes for entry in remaining if entry is not None)


def _contents_of(store: Storage, place: str) -> CacheKey | None:
    """A key with its size; None if its file is damaged, which the next run rewrites, or not that of a key."""
    try:
        values = store.read_json(f"{place}/{KEY}")
        datetime.date.fromisoformat(values["last_used"])
    except (RunError, TypeError, KeyError, ValueError):
        return None
    if not all(isinstance(values.get(name), str) for name in ("name", "temperature")):
        return None
    files = _files(store, place)
    rows = sum(_rows(store, name) for name in files)
    return CacheKey(place, values, rows, len(files), sum(store.size(name) for name in files))


def _files(store: Storage, place: str) -> list[str]:
    """The files of a cache below a folder, recognised by their names."""
    return [name for name in store.list(place) if _OURS.fullmatch(name.removeprefix(f"{place}/"))]


def _rows(store: Storage, name: str) -> int:
    """The number of texts in a file; 0 if it is damaged."""
    try:
        return store.rows(name)
    except (OSError, RunError):
        return 0


def _contents(runs: list[str]) -> np.ndarray:
    """The hashes of all texts of some runs, sorted."""
    found = list[np.ndarray]()
    for folder in runs:
        storage = finished(folder, "--keep ", "; give run folders whose texts are to be kept")
        if not (names := storage.list("texts")):
            raise UsageError(f"'{masked(folder)}' no longer has its texts: they were pruned; give runs that have theirs")
        found += [_hashes(storage.read_table(name, ["content_sha"]).column("content_sha")) for name in names]
    return np.unique(np.concatenate(found))


def _hashes(digests: pa.ChunkedArray) -> np.ndarray:
    """64-bit hashes of digests, because a run may have a hundred million; a collision keeps one text too many."""
    hashes: np.ndarray = pl.Series(digests).hash().to_numpy()
    return hashes


def _merge(store: Storage, place: str, number: int, hashes: np.ndarray | None) -> None:
    """Replace a bucket's files by one with each text once, or only the texts of these `hashes`."""
    tables = _readable(store, f"{place}/bucket-{number:03d}")
    # Files of other columns or dimensions than the first stay as they are: no run uses them.
    tables = {name: table for name, table in tables.items() if table.schema.equals(next(iter(tables.values())).schema)}
    if not tables or (len(tables) == 1 and hashes is None):
        return
    table = pa.concat_tables(tables.values()).combine_chunks()
    if hashes is not None:
        of_texts = _hashes(table.column("content_sha"))
        table = table.filter(np.searchsorted(hashes, of_texts, "right") > np.searchsorted(hashes, of_texts))
    shas = table.column("content_sha").to_pylist()
    first = {sha: row for row, sha in reversed(list(enumerate(shas)))}
    written = write_bucket(store, place, number, table.take([first[sha] for sha in sorted(first)])) if first else None
    for name in tables:  # After the new file is written, because a run may use the cache at the same time.
        if name != written:
            with suppress(FileNotFoundError):
                store.remove(name)


def _readable(store: Storage, bucket: str) -> dict[str, pa.Table]:
    """The files of a bucket by name; damaged files are removed, and their texts will be embedded again."""
    tables = dict[str, pa.Table]()
    for name in _files(store, bucket):
        try:
            tables[name] = store.read_table(name)
        except Damaged:
            store.remove(name)
        except (OSError, RunError):
            continue
    return tables
