"""Read the rows of Lance and Delta tables, at the version that is current when reading begins."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

import fsspec

from tempscale.model.checkpoint import first_line
from tempscale_jobs.corpus.readers import KINDS, Columns, Record, batches_as_records, check_columns, suffix
from tempscale_jobs.errors import UsageError

_PACKAGES = {"lance": "pylance", "delta": "deltalake"}


def kind(source: str) -> str | None:
    """`lance` or `delta` if a source is such a table, by its prefix (lance:, delta:), its ending or its content."""
    for name in _PACKAGES:
        if source.startswith(f"{name}:"):
            return name
    if source.rstrip("/").endswith(".lance"):
        return "lance"
    if suffix(source) in KINDS or any(magic in source for magic in "*?[") or source.startswith("docstrings:"):
        return None
    try:
        fs, path = fsspec.core.url_to_fs(os.path.expanduser(source))
        return "delta" if fs.isdir(f"{path.rstrip('/')}/_delta_log") else None
    except Exception:  # A broken source is reported where it is opened.
        return None


def version(source: str) -> int:
    """The number of the table's current version."""
    table = _open(source)
    return int(table.version if kind(source) == "lance" else table.version())


def records(source: str, columns: Columns) -> Iterator[Record]:
    """All rows in the table's order; the table's name and a number name each row."""
    data = _open(source)
    name = _path(source).rstrip("/").rpartition("/")[2]
    found = kind(source)
    try:
        data = data.to_pyarrow_dataset() if found == "delta" else data
        present = list(data.schema.names)
    except BaseException as error:  # The table is damaged, or has features that the package cannot read.
        raise _readable(error, f"'{name}' cannot be read as a {str(found).capitalize()} table") from None
    wanted = check_columns(present, name, columns)
    try:
        yield from batches_as_records(data.to_batches(columns=wanted), name)
    except BaseException as error:
        raise _readable(error, f"'{name}' cannot be read to its end", "; mend the table") from None


def _path(source: str) -> str:
    return os.path.expanduser(source.removeprefix("lance:").removeprefix("delta:"))


def _open(source: str) -> Any:
    found, path = kind(source), _path(source)
    assert found is not None
    name = path.rstrip("/").rpartition("/")[2]
    try:
        module = importlib.import_module("lance" if found == "lance" else "deltalake")
    except ImportError:
        raise UsageError(
            f"'{name}' is a {found.capitalize()} table; install its reader: pip install 'tempscale[{found}]' "
            f"(the package {_PACKAGES[found]})"
        ) from None
    try:
        return module.dataset(path) if found == "lance" else module.DeltaTable(path)
    except BaseException as error:
        raise _readable(error, f"'{name}' cannot be opened as a {found.capitalize()} table", "", path) from None


def _readable(error: BaseException, what: str, mend: str = "", path: str = "") -> BaseException:
    """Turn a library's error into a UsageError; each library has its own errors, and a Rust panic is not an Exception."""
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, UsageError)):
        return error
    reason = first_line(error).replace(path, os.path.basename(path.rstrip("/"))) if path else first_line(error)
    return UsageError(f"{what}: {reason}{mend}")
