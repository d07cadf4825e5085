"""Find the data files of a folder or glob: no hidden file, no file twice, and no table that keeps replaced rows."""

from __future__ import annotations

import glob
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from tempscale_jobs.corpus.readers import KINDS, suffix
from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import masked

_MAGIC = re.compile(r"[*?\[]")
_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""Folders by which a table of each kind is recognised."""
_ICEBERG = re.compile(r"(v\d+|\d{5}-.+)\.metadata\.json(\.gz)?")
"""Names of the files that describe an Iceberg table."""
_LEVELS_ABOVE, _FOLDERS_ASKED = 8, 64
"""So many folders above the data are checked for tables, and so many in all where each check is a request."""
_SAVED, _SPLITS = {"dataset_info.json", "state.json"}, "dataset_dict.json"
"""Files that `save_to_disk` of the library `datasets` writes: with the data of one split, and above several splits."""


class Entry(NamedTuple):
    """A name below a folder."""

    path: str
    what: str
    """file, folder or hidden."""
    real: str
    """The path without links."""


class Listing(NamedTuple):
    """The content of a folder or glob."""

    files: list[str]
    """Its data, in order."""
    hidden: list[str]
    """Hidden names that were left out: files of known kinds, and folders."""
    again: list[str]
    """Links that were left out because their files are data already."""
    folders: bool
    """Whether it has folders."""
    root: str
    """The folder with all of its files."""


def of_folder(fs: Any, root: str) -> Listing:
    """The files of known kinds below a folder; a UsageError if they are a table with replaced rows or several data sets."""
    root = root.rstrip("/") or "/"
    local = isinstance(fs, LocalFileSystem)
    paths = [] if local else fs.find(root)
    entries = list(_local(root, None, ()) if local else _visible(root, ((path, "file") for path in paths), ()))
    listing = _listing(root, entries, lambda path: suffix(path) in KINDS)
    _check_no_table(fs, listing, None if local else _tables(paths))
    names = {path[len(root.rstrip("/")) + 1 :] for path, what, _ in entries if what == "file"}
    if _SPLITS in names:
        splits = ", ".join(_strings(fs, f"{root}/{_SPLITS}", "splits"))
        raise UsageError(f"'{masked(root)}' is a data set of several splits; give the folder of one of them: {splits}")
    if names >= _SAVED:
        files = _strings(fs, f"{root}/state.json", "_data_files")
        _check_saved(fs, root, files, names)
        return listing._replace(files=[f"{root}/{name}" for name in files])
    return listing


def of_glob(fs: Any, pattern: str) -> Listing:
    """The files that match a pattern; names of existing folders in it may have brackets."""
    root, parts = _literal(fs, pattern)
    if isinstance(fs, LocalFileSystem) and fs.isdir(root):
        depth = None if "**" in parts else len(parts)
        matches, begin = re.compile(glob_translate("/".join(parts))).match, len(root.rstrip("/")) + 1
        listing = _listing(root, _local(root, depth, parts), lambda path: matches(path[begin:]) is not None)
        _check_no_table(fs, listing)
        return listing._replace(hidden=[path for path in listing.hidden if depth is None or matches(path[begin:])])
    matched = fs.glob("/".join((glob.escape(root), *parts)), detail=True)
    kinds = {path: "folder" if facts["type"] == "directory" else "file" for path, facts in matched.items()}
    listing = _listing(root, _visible(root, kinds.items(), parts), lambda path: True)
    _check_no_table(fs, listing)
    return listing


def is_below(file: str, folders: Iterable[str | os.PathLike[str]]) -> bool:
    """Whether a file of this machine is below one of some folders, after links are followed."""
    real = Path(os.path.realpath(file))
    return any(real.is_relative_to(os.path.realpath(folder)) for folder in folders)


def roots(folder: str | os.PathLike[str]) -> list[Path]:
    """The folders in which a folder's files may be: also the hub's cache, whose snapshots are links to its blobs."""
    real = Path(folder).resolve()
    caches = (path.parent.parent for path in (real, *real.parents) if path.parent.name == "snapshots")
    return [real, *(cache / "blobs" for cache in caches)]


def _literal(fs: Any, pattern: str) -> tuple[str, list[str]]:
    """The longest existing folder that a pattern begins with, and the parts that follow."""
    parts, count = pattern.split("/"), 0
    while count < len(parts) - 1:
        if _MAGIC.search(parts[count]) and not fs.isdir("/".join(parts[: count + 1])):
            break
        count += 1
    return "/".join(parts[:count]) or "/", parts[count:]


def _listing(root: str, entries: Iterable[Entry], is_data: Callable[[str], bool]) -> Listing:
    files, hidden, again, folders = list[Entry](), list[str](), list[str](), False
    for entry in entries:
        if entry.what == "hidden":
            hidden.append(entry.path)
        elif is_data(entry.path):
            folders = folders or entry.what == "folder"
            files += [entry] if entry.what == "file" else []
    path_by_real = dict[str, str]()
    # Prefer the path of a file to links to it.
    for path, _, real in sorted(files, key=lambda entry: (entry.path != entry.real, entry.path)):
        if path_by_real.setdefault(real, path) != path:
            again.append(path)
    return Listing(sorted(path_by_real.values()), sorted(hidden), sorted(again), folders, root)


def _local(root: str, depth: int | None, parts: Sequence[str]) -> Iterator[Entry]:
    """The names below a folder of this machine, at most `depth` folders deep; links are followed."""
    # Without a pattern no folder is entered twice. A pattern may match only one of a folder's paths: with one, no folder is
    # entered from itself.
    start: tuple[str, tuple[str, ...]] = (root, ())
    folders, links, entered = deque([start]), deque[tuple[str, tuple[str, ...]]](), set[str]()
    while folders or links:  # Prefer the path of a folder to links to it.
        folder, above = (folders or links).popleft()
        real = os.path.realpath(folder)
        if real in (above if parts else entered):
            continue
        entered.add(real)
        above = (*above, real)
        with os.scandir(folder) as scanned:
            entries = sorted(scanned, key=lambda entry: entry.name)
        for entry in entries:
            name, path, is_link = entry.name, os.path.join(folder, entry.name), entry.is_symlink()
            is_folder = os.path.isdir(path) if is_link else entry.is_dir()  # A link may lead to itself.
            if _is_hidden(name, parts):
                if is_folder or suffix(name) in KINDS:
                    yield Entry(path, "hidden", path)
            elif is_folder:
                yield Entry(path, "folder", path)
                if depth is None or len(above) < depth:
                    (links if is_link else folders).append((path, above))
            else:
                yield Entry(path, "file", os.path.realpath(path) if is_link else os.path.join(real, name))


def _visible(root: str, paths: Iterable[tuple[str, str]], parts: Sequence[str]) -> Iterator[Entry]:
    """Entries of a file system without links; a hidden folder is one entry, whatever is in it."""
    hidden, begin = dict[str, None](), len(root.rstrip("/")) + 1
    for path, what in paths:
        names = path[begin:].split("/")
        level = next((k for k, name in enumerate(names) if _is_hidden(name, parts)), None)
        if level is None:
            yield Entry(path, what, path)
        elif what == "folder" or suffix(path) in KINDS:
            hidden[path[:begin] + "/".join(names[: level + 1])] = None
    yield from (Entry(path, "hidden", path) for path in hidden)


def _is_hidden(name: str, parts: Sequence[str]) -> bool:
    """Whether a name below a folder marks what is no data, unless a part of a pattern asks for such names."""
    # Programs keep copies, unfinished files and logs under such names. `_year=2026` is a partition of Spark.
    if name == "lost+found":  # At the root of a volume, where only root may read it.
        return name not in parts
    if not (name.startswith(".") or (name.startswith("_") and "=" not in name)):
        return False
    return not any(part[:1] == name[0] and fnmatchcase(name, part) for part in parts)


def _check_no_table(fs: Any, listing: Listing, tables: Mapping[str, str] | None = None) -> None:
    """Raise if files belong to a table that keeps replaced rows; `tables` are the known ones below the listing's folder."""
    if "http" in fs.protocol:  # A server may answer for folders that it has not.
        return
    local, root = isinstance(fs, LocalFileSystem), listing.root.rstrip("/")
    folders = {os.path.dirname(file) for file in (*listing.files, *listing.again)}
    if local:
        folders |= {os.path.realpath(folder) for folder in folders}
    holds_data = dict[str, bool]()
    for folder in folders:
        name, above = "", 0
        while folder.strip("/") and above < _LEVELS_ABOVE:
            is_inside = folder == root or folder.startswith(f"{root}/")
            holds_data[folder] = holds_data.get(folder, False) or is_inside or name in ("data", "metadata")
            folder, _, name = folder.rpartition("/")
            above += not is_inside
    asked = 0
    for folder in sorted(holds_data, key=lambda folder: (folder.count("/"), folder)):
        kind = None
        if tables is not None and folder.startswith(f"{root}/"):
            kind = tables.get(folder)
        elif local or ("=" not in folder.rpartition("/")[2] and asked < _FOLDERS_ASKED):  # KEY=VALUE is part of a table.
            kind, asked = _kind_of_table(fs, folder, holds_data[folder]), asked + 1
        if kind is not None:
            raise _is_table(folder, kind)


def _kind_of_table(fs: Any, folder: str, holds_data: bool) -> str | None:
    """The kind of table that a folder is; None if it is none, or if the user may not read it."""
    try:
        for name, kind in _LOGS.items():
            if fs.isdir(f"{folder}/{name}"):
                return kind
        files = fs.ls(f"{folder}/metadata", detail=False) if holds_data and fs.isdir(f"{folder}/metadata") else []
    except Exception:  # Every file system has its own exceptions.
        return None
    return "Iceberg" if any(_ICEBERG.fullmatch(path.rpartition("/")[2]) for path in files) else None


def _tables(paths: Iterable[str]) -> dict[str, str]:
    """The kind of each folder that is a table, from the paths of all files."""
    kinds = dict[str, str]()
    for path in paths:
        *folders, name = path.split("/")
        if folders and folders[-1] == "metadata" and _ICEBERG.fullmatch(name):
            kinds["/".join(folders[:-1])] = "Iceberg"
        kinds |= {"/".join(folders[:level]): _LOGS[log] for level, log in enumerate(folders) if log in _LOGS}
    return kinds


def _is_table(folder: str, kind: str) -> UsageError:
    mends = {"Delta": "give that folder itself", "Iceberg": f"give iceberg:{masked(folder)}"}
    mend = mends.get(kind, "write its current rows as Parquet files, and give these")
    return UsageError(
        f"'{masked(folder)}' is {'an' if kind == 'Iceberg' else 'a'} {kind} table, whose files may contain replaced "
        f"rows; {mend}"
    )


def _check_saved(fs: Any, root: str, files: Sequence[str], names: set[str]) -> None:
    """Raise unless all files that `state.json` lists are in its folder: its writer may not choose other files."""
    for name in files:
        path = f"{root}/{name}"
        if "/" in name or name not in names or (isinstance(fs, LocalFileSystem) and not is_below(path, roots(root))):
            raise UsageError(
                f"'{masked(root)}/state.json' lists the file '{masked(name)}', which is not in its folder; only files there "
                "are read, so put the file itself there or save the data set again"
            )


def _strings(fs: Any, path: str, key: str) -> list[str]:
    """The names that a file of `save_to_disk` lists."""
    try:
        with fs.open(path, "rb") as stream:
            saved = json.load(stream)
        if saved.get("_indices_data_files"):
            raise UsageError(
                f"'{masked(path)}' was written by an old version of datasets, with the rows in another order; save the data "
                "set again"
            )
        listed = [entry["filename"] if key == "_data_files" else entry for entry in saved[key]]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        listed = [None]
    if not all(isinstance(name, str) for name in listed):
        raise UsageError(
            f"'{masked(path)}' does not list {key} as save_to_disk of datasets writes them; save the data set again, or "
            "take the file out of the folder"
        )
    return listed
