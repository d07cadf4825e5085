"""Read the rows of Lance and Delta tables, at the version that is current when reading begins."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import fsspec
import pyarrow as pa

from tempscale.optional import missing, needs
from tempscale_jobs.corpus.address import Part
from tempscale_jobs.corpus.folders import is_below
from tempscale_jobs.corpus.readers import KINDS, between, sizes_of, suffix
from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import masked, reason

FIXED = True
_MODULES = {"lance": "lance", "delta": "deltalake"}


def kind(source: str) -> str | None:
    """`lance` or `delta` if a source is such a table, by its prefix (lance:, delta:), its ending or its content."""
    for prefix in _MODULES:
        if source.startswith(f"{prefix}:"):
            return prefix
    if source.rstrip("/").endswith(".lance"):
        return "lance"
    if suffix(source) in KINDS or any(magic in source for magic in "*?") or source.startswith("docstrings:"):
        return None
    try:
        fs, path = fsspec.core.url_to_fs(os.path.expanduser(source))
        return "delta" if fs.isdir(f"{path.rstrip('/')}/_delta_log") else None
    except Exception:  # A broken source is reported where it is opened.
        return None


def state(source: str) -> dict[str, Any]:
    """The number of the table's current version, and a digest of its files' names, which are unique to it."""
    table = _open(source)
    with _read_to_its_end(name(source)):
        names = "\n".join(sorted(_files_of(table, source)))
    digest = hashlib.blake2b(names.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return {"version": _version(table, source), "files": digest}


def files(source: str) -> list[str]:
    """The table's folder, if it is on this machine."""
    folder = os.path.abspath(_path(source))
    return [folder] if os.path.exists(folder) else []


def columns(source: str) -> list[str]:
    """The names of the table's columns."""
    return list(_data(_checked(source), source).schema.names)


def parts(source: str, names: Sequence[str], most: tuple[int, int]) -> list[Part]:
    """The table's fragments; `at` is the version, for Delta with the file."""
    table = _checked(source)
    version, data = _version(table, source), _data(table, source)
    found, first = list[Part](), 0
    with _read_to_its_end(name(source)):
        for fragment in data.get_fragments():
            rows = int(fragment.count_rows())
            if kind(source) == "lance":
                found.append(Part(str(version), first, first, rows))
            else:
                size = sum(group_bytes for _, _, group_bytes in sizes_of(fragment.metadata, names))
                found.append(Part(f"{version} {fragment.path}", 0, first, rows, size))
            first += rows
    return found


def batches(source: str, at: str, names: Sequence[str], rows: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    """A span of rows in the version and file `at`; see `parts`."""
    first, last = rows
    version, _, file = at.partition(" ")
    data = _data(_open(source, int(version)), source)
    with _read_to_its_end(name(source)):
        if not file:
            yield from data.to_batches(columns=list(names), offset=first, limit=last - first)
        else:
            (fragment,) = (candidate for candidate in data.get_fragments() if candidate.path == file)
            # With the schema of the table, rows have also the columns in their folder's name.
            yield from between(fragment.to_batches(columns=list(names), schema=data.schema), first, last)


def release(source: str) -> None:
    """Nothing is held: a version stays."""


def _data(table: Any, source: str) -> Any:
    """The data of a table."""
    table_kind = kind(source)
    try:
        return table.to_pyarrow_dataset() if table_kind == "delta" else table
    except BaseException as error:  # The table is damaged, or has features that the package cannot read.
        raise _readable(error, f"'{name(source)}' cannot be read as a {str(table_kind).capitalize()} table") from None


@contextmanager
def _read_to_its_end(called: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        raise _readable(error, f"'{called}' cannot be read to its end", "; mend the table") from None


def _path(source: str) -> str:
    """The path of a table."""
    return os.path.expanduser(source.removeprefix("lance:").removeprefix("delta:"))


def name(source: str) -> str:
    """The name of a table's folder."""
    return masked(_path(source)).rstrip("/").rpartition("/")[2]


def _open(source: str, version: int | None = None) -> Any:
    table_kind, root, called = kind(source), _path(source), name(source)
    assert table_kind is not None
    try:
        module = importlib.import_module(_MODULES[table_kind])
    except ImportError as error:
        package = missing(error) or _MODULES[table_kind]
        raise UsageError(needs(f"'{called}', a {table_kind.capitalize()} table,", package)) from None
    try:
        return module.dataset(root, version=version) if table_kind == "lance" else module.DeltaTable(root, version=version)
    except BaseException as error:
        raise _readable(error, f"'{called}' cannot be opened as a {table_kind.capitalize()} table", "", root) from None


def _checked(source: str) -> Any:
    """A table, opened, of which all files are below its folder."""
    table = _open(source)
    with _read_to_its_end(name(source)):
        _check_below(_path(source), _files_of(table, source))
    return table


def _version(table: Any, source: str) -> int:
    return int(table.version if kind(source) == "lance" else table.version())


def _files_of(table: Any, source: str) -> list[str]:
    return _files_of_lance(table) if kind(source) == "lance" else _files_of_delta(table)


def _files_of_lance(table: Any) -> list[str]:
    """The files of a Lance table, by their paths below it or, in another folder, with that folder's path."""
    bases = {number: str(base.path) for number, base in table.base_paths().items()}
    return [
        f"data/{file.path}" if file.base_id is None else f"{bases.get(file.base_id, '..')}/{file.path}"
        for fragment in table.get_fragments()
        for file in fragment.data_files()
    ]


def _files_of_delta(table: Any) -> list[str]:
    """The files of a Delta table, as its log names them."""
    return [unquote(path) for path in pa.table(table.get_add_actions()).column("path").to_pylist()]


def _check_below(table: str, files: list[str]) -> None:
    """Raise a UsageError if a table names a file that is not below its folder: its writer may not choose other files."""
    local = "://" not in table
    for file in files:
        below = not (os.path.isabs(file) or "://" in file or ".." in file.split("/"))
        if below and local:
            below = is_below(os.path.join(table, file), [table])
        if not below:
            raise UsageError(
                f"table '{masked(table)}' names the file '{masked(file)}', which is not in the table's folder; only files "
                "there are read, so copy the table with its files"
            )


def _readable(error: BaseException, what: str, mend: str = "", path: str = "") -> BaseException:
    """Turn a library's error into a UsageError; libraries have many types of errors, and a Rust panic is no Exception."""
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, UsageError)):
        return error
    why = reason(error, path).replace(masked(path), os.path.basename(masked(path).rstrip("/"))) if path else reason(error)
    return UsageError(f"{what}: {why}{mend}")
