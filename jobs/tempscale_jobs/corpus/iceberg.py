"""Read an Iceberg table from a folder or a catalogue by its library, at the snapshot that is current when reading begins."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import fsspec
import pyarrow as pa

from tempscale.optional import missing, needs
from tempscale_jobs.corpus.address import Part, address
from tempscale_jobs.corpus.folders import is_below
from tempscale_jobs.corpus.readers import between
from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import masked, reason

FIXED = True
_PREFIX = "iceberg:"
_VERSION = re.compile(r"v?(\d+).*\.metadata\.json(\.gz)?")
"""The name of a file that describes a version of the table."""


def kind(source: str) -> str | None:
    """`iceberg`, by the prefix."""
    return "iceberg" if source.startswith(_PREFIX) else None


def name(source: str) -> str:
    """The table's name."""
    return masked(_where(source)).rstrip("/").rpartition("/")[2]


def state(source: str) -> dict[str, Any]:
    """The table's identity and its current snapshot."""
    with _readable(source):
        table, _ = _table(source)
        snapshot = table.current_snapshot()
        return {"table": str(table.metadata.table_uuid), "snapshot": snapshot and snapshot.snapshot_id}


def files(source: str) -> list[str]:
    """The table's folder, if it is on this machine."""
    folder = _where(source)
    return [os.path.abspath(folder)] if _is_folder(source) and "://" not in folder else []


def columns(source: str) -> list[str]:
    """The names of the columns."""
    with _readable(source):
        return [field.name for field in _table(source)[0].schema().fields]


def parts(source: str, names: Sequence[str], most: tuple[int, int]) -> list[Part]:
    """The data files in the order in which they were added."""
    found, number = list[Part](), 0
    with _readable(source):
        table, described = _table(source)
        snapshot = table.current_snapshot()
        if snapshot is None:
            return []
        added = _added(source, table, snapshot)
        for task in sorted(_tasks(table, snapshot.snapshot_id), key=lambda task: added[task.file.file_path]):
            rows = int(task.file.record_count)
            if task.delete_files:  # How many rows they delete is known only after reading.
                rows = sum(
                    batch.num_rows for batch in _read(table, snapshot.snapshot_id, task, [table.schema().fields[0].name])
                )
            at = json.dumps([described, snapshot.snapshot_id, task.file.file_path])
            found.append(Part(at, 0, number, rows, int(task.file.file_size_in_bytes)))
            number += rows
    return [part for part in found if part.rows]


def batches(source: str, at: str, names: Sequence[str], rows: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    """Rows of a data file, in a snapshot, without those that are deleted."""
    described, snapshot, file = json.loads(at)
    with _readable(source):
        table, _ = _table(source, described)
        (task,) = (task for task in _tasks(table, snapshot) if task.file.file_path == file)
        for batch in between(_read(table, snapshot, task, names), *rows):
            yield batch.select(list(names))


def release(source: str) -> None:
    """Nothing is held: a snapshot stays."""


def _where(source: str) -> str:
    return os.path.expanduser(address(source.removeprefix(_PREFIX), []).path)


def _is_folder(source: str) -> bool:
    """Whether a source is a folder, and not CATALOGUE.NAMESPACE.TABLE."""
    return "/" in _where(source)


def _table(source: str, described: str = "") -> tuple[Any, str]:
    """The table, and the file that describes its version; as this file `described` it, where a folder is read."""
    where = _where(source)
    try:
        if not _is_folder(source):
            catalogue, _, identifier = where.partition(".")
            if "." not in identifier:
                raise UsageError(f"'{where}' names no table; give iceberg:CATALOGUE.NAMESPACE.TABLE or iceberg:./FOLDER")
            return importlib.import_module("pyiceberg.catalog").load_catalog(catalogue).load_table(identifier), ""
        static = importlib.import_module("pyiceberg.table").StaticTable
    except ImportError as error:
        raise UsageError(needs(f"'{name(source)}', an Iceberg table,", missing(error) or "pyiceberg")) from None
    described = described or _newest(where)
    return static.from_metadata(described), described


def _newest(folder: str) -> str:
    """The file that describes the newest version of a table in a folder."""
    fs, path = fsspec.core.url_to_fs(folder)
    fs.invalidate_cache()
    inside = fs.ls(f"{path.rstrip('/')}/metadata", detail=False) if fs.isdir(f"{path.rstrip('/')}/metadata") else []
    versions = [(int(match[1]), file) for file in inside if (match := _VERSION.fullmatch(file.rpartition("/")[2]))]
    if not versions:
        raise UsageError(
            f"'{masked(folder)}' is no Iceberg table: its folder metadata/ describes no version; give a table's folder"
        )
    newest = max(versions)[1]
    return str(fs.unstrip_protocol(newest)) if "://" in folder else os.path.abspath(newest)


def _tasks(table: Any, snapshot: int) -> list[Any]:
    return list(table.scan(snapshot_id=snapshot).plan_files())


def _added(source: str, table: Any, snapshot: Any) -> dict[str, tuple[int, str]]:
    """When each data file was added; raises a UsageError if a file of a folder's table is not below the folder."""
    _check_below(source, [snapshot.manifest_list])
    manifests = snapshot.manifests(table.io)
    _check_below(source, [manifest.manifest_path for manifest in manifests])
    entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
    _check_below(source, [entry.data_file.file_path for entry in entries])
    return {entry.data_file.file_path: (entry.sequence_number or 0, entry.data_file.file_path) for entry in entries}


def _check_below(source: str, paths: Sequence[str]) -> None:
    folder = _where(source)
    for path in paths if _is_folder(source) else ():
        local = path.removeprefix("file://")
        below = (
            is_below(local, [folder])
            if "://" not in folder
            else path.startswith(f"{folder.rstrip('/')}/") and ".." not in path
        )
        if not below:
            raise UsageError(
                f"table '{masked(folder)}' names the file '{masked(path)}', which is not in the table's folder; only files "
                "there are read, so read the table by its catalogue"
            )


def _read(table: Any, snapshot: int, task: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a data file."""
    scan = table.scan(snapshot_id=snapshot, selected_fields=tuple(names))
    arrow_scan = importlib.import_module("pyiceberg.io.pyarrow").ArrowScan
    yield from arrow_scan(table.metadata, table.io, scan.projection(), scan.row_filter).to_record_batches([task])


@contextmanager
def _readable(source: str) -> Iterator[None]:
    try:
        yield
    except (UsageError, GeneratorExit, KeyboardInterrupt):
        raise
    except Exception as error:  # The library, file systems and catalogues have many types of errors.
        if (module := missing(error)) is not None:
            raise UsageError(needs(f"'{name(source)}', an Iceberg table,", module)) from None
        raise UsageError(f"'{name(source)}' cannot be read as an Iceberg table: {reason(error, _where(source))}") from None
