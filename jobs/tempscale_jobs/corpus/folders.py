"""Which files of a folder or glob are data: not the hidden ones, each once, and none of a table that keeps replaced rows."""

from __future__ import annotations

import glob
import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from tempscale_jobs.corpus.readers import KINDS, suffix
from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import masked

_MAGIC = re.compile(r"[*?\[]")
_LOGS = {"_delta_log": "Delta", ".hoodie": "Hudi"}
"""Folders that only a table of such a kind has."""
_SAVED, _SPLITS = {"dataset_info.json", "state.json"}, "dataset_dict.json"
"""What `save_to_disk` of the library `datasets` writes next to the data of one split, and next to the folders of several."""


class Entry(NamedTuple):
    """A name below a folder."""

    path: str
    what: str
    """file, folder or hidden."""
    real: str
    """The path without links."""


class Listing(NamedTuple):
    """What a folder or glob has."""

    files: list[str]
    """Its data, in order."""
    hidden: list[str]
    """Hidden names that were left out: files of known kinds, and folders."""
    again: list[str]
    """Files that were left out because links lead to files that are data already."""
    folders: bool
    """Whether folders are in it."""
    root: str
    """The folder that all of it is below."""


def of_folder(fs: Any, root: str) -> Listing:
    """The files of known kinds below a folder.

    Raises:
        UsageError: some files there are replaced rows of a table, or the folder has several data sets.
    """
    root = root.rstrip("/") or "/"
    _check_parent(fs, root)
    entries = list(_entries(fs, root))
    found = _listing(root, entries, lambda path: suffix(path) in KINDS)
    names = {path[len(root.rstrip("/")) + 1 :] for path, what, _ in entries if what == "file"}
    if _SPLITS in names:
        splits = ", ".join(_json(fs, f"{root}/{_SPLITS}")["splits"])
        raise UsageError(f"'{masked(root)}' is a data set of several splits; give the folder of one of them: {splits}")
    if names >= _SAVED:
        state = _json(fs, f"{root}/state.json")
        if state.get("_indices_data_files"):
            raise UsageError(
                f"'{masked(root)}' was saved by an old version of datasets, with its rows in another order; save it again"
            )
        return found._replace(files=[f"{root}/{one['filename']}" for one in state["_data_files"]])
    return found


def of_glob(fs: Any, pattern: str) -> Listing:
    """The files that match a pattern, whose first folders may have names with brackets."""
    root, parts = _literal(fs, pattern)
    if isinstance(fs, LocalFileSystem) and fs.isdir(root):
        _check_parent(fs, root)
        depth = None if "**" in parts else len(parts)
        matches, begin = re.compile(glob_translate("/".join(parts))).match, len(root.rstrip("/")) + 1
        found = _listing(root, _local(root, depth, parts), lambda path: matches(path[begin:]) is not None)
        return found._replace(hidden=[path for path in found.hidden if depth is None or matches(path[begin:])])
    matched = fs.glob("/".join((glob.escape(root), *parts)), detail=True)
    kinds = {path: "folder" if facts["type"] == "directory" else "file" for path, facts in matched.items()}
    return _listing(root, _visible(root, kinds.items(), parts), lambda path: True)


def _literal(fs: Any, pattern: str) -> tuple[str, list[str]]:
    """The longest folder that is where a pattern begins, and the parts that follow."""
    parts, known = pattern.split("/"), 0
    while known < len(parts) - 1:
        if _MAGIC.search(parts[known]) and not fs.isdir("/".join(parts[: known + 1])):
            break
        known += 1
    return "/".join(parts[:known]) or "/", parts[known:]


def _listing(root: str, entries: Iterable[Entry], chosen: Callable[[str], bool]) -> Listing:
    files, hidden, again, folders = list[Entry](), list[str](), list[str](), False
    for entry in entries:
        if entry.what == "hidden":
            hidden.append(entry.path)
        elif chosen(entry.path):
            folders = folders or entry.what == "folder"
            files += [entry] if entry.what == "file" else []
    kept = dict[str, str]()
    # A file's own path before links to it, whatever their names.
    for path, _, real in sorted(files, key=lambda entry: (entry.path != entry.real, entry.path)):
        if kept.setdefault(real, path) != path:
            again.append(path)
    return Listing(sorted(kept.values()), sorted(hidden), sorted(again), folders, root)


def _entries(fs: Any, root: str) -> Iterator[Entry]:
    """The names below a folder."""
    if isinstance(fs, LocalFileSystem):
        yield from _local(root, None, ())
        return
    found = [(path, "file") for path in fs.find(root)]
    for path, _ in found:
        folders = path[len(root.rstrip("/")) + 1 :].split("/")
        for level, name in enumerate(folders[:-1]):
            log = name == "metadata" and folders[-1].endswith(".metadata.json") and level == len(folders) - 2
            if log or name in _LOGS:
                raise _is_table("/".join((root, *folders[:level])), "Iceberg" if log else _LOGS[name])
    yield from _visible(root, found, ())


def _local(root: str, depth: int | None, parts: Sequence[str]) -> Iterator[Entry]:
    """The names below a folder of this machine, so many folders deep; links are followed, and no folder is entered twice."""
    folders, links, entered = deque([(root, 1)]), deque[tuple[str, int]](), set[str]()
    while folders or links:  # A folder's own path before links to it.
        folder, level = (folders or links).popleft()
        real = os.path.realpath(folder)
        if real in entered:
            continue
        entered.add(real)
        with os.scandir(folder) as scanned:
            inside = sorted(scanned, key=lambda entry: entry.name)
        for entry in inside:
            name, path, is_link = entry.name, os.path.join(folder, entry.name), entry.is_symlink()
            is_folder = os.path.isdir(path) if is_link else entry.is_dir()  # A link may lead to itself.
            if is_folder and (name in _LOGS or (name == "metadata" and _is_iceberg(os.listdir(path)))):
                raise _is_table(folder, _LOGS.get(name, "Iceberg"))
            if _is_hidden(name, parts):
                if is_folder or suffix(name) in KINDS:
                    yield Entry(path, "hidden", path)
            elif is_folder:
                yield Entry(path, "folder", path)
                if depth is None or level < depth:
                    (links if is_link else folders).append((path, level + 1))
            else:
                yield Entry(path, "file", os.path.realpath(path) if is_link else os.path.join(real, name))


def _visible(root: str, found: Iterable[tuple[str, str]], parts: Sequence[str]) -> Iterator[Entry]:
    """Paths of a file system without links; of what is below a hidden name, only that name."""
    hidden, begin = dict[str, None](), len(root.rstrip("/")) + 1
    for path, what in found:
        names = path[begin:].split("/")
        level = next((k for k, name in enumerate(names) if _is_hidden(name, parts)), None)
        if level is None:
            yield Entry(path, what, path)
        elif what == "folder" or suffix(path) in KINDS:
            hidden[path[:begin] + "/".join(names[: level + 1])] = None
    yield from (Entry(path, "hidden", path) for path in hidden)


def _is_hidden(name: str, parts: Sequence[str]) -> bool:
    """Whether a name below a folder marks what is no data, unless a part of a pattern asks for such names.

    Programs keep copies, unfinished files and logs under them. `_year=2026` is a partition of Spark.
    """
    if not (name.startswith(".") or (name.startswith("_") and "=" not in name)):
        return False
    return not any(part[:1] == name[0] and fnmatchcase(name, part) for part in parts)


def _is_iceberg(names: Iterable[str]) -> bool:
    return any(name.endswith(".metadata.json") for name in names)


def _check_parent(fs: Any, root: str) -> None:
    """Raise if a folder is the data of an Iceberg table."""
    parent, _, name = root.rpartition("/")
    if name == "data" and fs.isdir(f"{parent}/metadata"):
        inside = (path.rpartition("/")[2] for path in fs.ls(f"{parent}/metadata", detail=False))
        if _is_iceberg(inside):
            raise _is_table(parent, "Iceberg")


def _is_table(folder: str, kind: str) -> UsageError:
    mend = "give that folder itself" if kind == "Delta" else "write its current rows as Parquet files, and give these"
    return UsageError(
        f"'{masked(folder)}' is {'an' if kind == 'Iceberg' else 'a'} {kind} table, some of whose files hold rows that were "
        f"replaced; {mend}"
    )


def _json(fs: Any, path: str) -> Any:
    with fs.open(path, "rb") as stream:
        return json.load(stream)
