"""Check the folders that a run writes to: its workers must share them, and they must contain no source of the run."""

from __future__ import annotations

import os
import re
from typing import Any

from tempscale_jobs.config.command import Command
from tempscale_jobs.errors import UsageError, visible
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import masked

_UNWRITABLE = {
    "memory": "workers do not share a memory",
    **dict.fromkeys(
        ("simplecache", "filecache", "blockcache", "cached", "libarchive", "gist", "dask", "jupyter"),
        "its storage has no folders",
    ),
    **dict.fromkeys(("http", "https", "data", "git", "github", "zip", "tar", "reference"), "nothing can be written there"),
}
_PREFIXES = ("lance:", "delta:", "hf:", "qdrant:", "faiss:", "iceberg:")
_SERVERS = ("postgres://", "postgresql://", "http://", "https://")
_ONE_SLASH = re.compile(r"[a-z0-9]{2,}:/(?!/)")
_READ = ("source", "corpus", "queries", "qrels", "texts", "earlier", "audits")
"""Settings that name what a run reads."""


def check(config: Command) -> None:
    """Raise a UsageError unless the folders that a run writes to can hold its results and hold nothing that it reads."""
    data = config.model_dump(mode="json")
    check_name("--out", config.out)
    for section, name in (("execution", "cache"), ("record", "history")):
        if folder := (data.get(section) or {}).get(name):
            check_name(f"--{name}", folder)
    for source in _sources({name: value for name, value in data.items() if name not in ("out", "execution", "record")}):
        _check_apart(source, config.out)


def check_name(option: str, name: str) -> None:
    """Raise a UsageError unless a name is that of one folder."""
    scheme, remote, rest = name.partition("://")
    if visible(name) != name:
        why = "it has control characters"
    elif "::" in name:
        why = "it is a chain of addresses"
    elif _ONE_SLASH.match(name):
        why = "an address has two slashes after its scheme"
    elif remote and scheme != scheme.lower() and scheme.lower() not in _UNWRITABLE:
        why = "the scheme of an address must be in small letters"
    elif remote and scheme.lower() in _UNWRITABLE:
        why = _UNWRITABLE[scheme.lower()]
    elif remote and scheme != "file" and any(part in ("", ".", "..") for part in rest.rstrip("/").split("/")):
        why = "a part of it is empty, . or .."
    else:
        return
    raise UsageError(f"{option} '{masked(name)}' names no folder for results, because {why}; name a folder")


def _sources(value: Any) -> list[str]:
    """The sources in a configuration."""
    if isinstance(value, list):
        return [text for inner in value for text in _sources(inner)]
    if not isinstance(value, dict):
        return []
    named = [value.get(name) for name in _READ]
    texts = [text for name in named for text in (name if isinstance(name, list) else [name]) if isinstance(text, str)]
    return texts + [text for inner in value.values() for text in _sources(inner)]


def _check_apart(source: str, out: str) -> None:
    is_dataset = source.startswith("hf:") and not source.startswith("hf://")
    path = source
    for prefix in _PREFIXES:
        if path.startswith(prefix) and not path.startswith("hf://"):
            path = path.removeprefix(prefix)
    if source.startswith("docstrings:") or "::" in path or path.startswith(_SERVERS):
        return
    if is_dataset:
        path = path if os.path.isdir(path) else path.partition(":")[0]
        if not os.path.isdir(path):
            return
    read, written = _folder(path), _folder(out)
    if f"{read}/".startswith(f"{written}/"):
        raise UsageError(
            f"'{masked(source)}' is in --out '{masked(out)}', whose files a run removes when it starts over; "
            "choose another --out"
        )
    if is_dataset and f"{written}/".startswith(f"{read}/"):
        raise UsageError(
            f"--out '{masked(out)}' is in the data set '{masked(source)}', all of whose files are read; choose another --out"
        )


def _folder(name: str) -> str:
    """The full name of a file, or of a folder, without links."""
    root = Storage(name).root
    return root if "://" in root and not root.startswith("file://") else os.path.realpath(root.removeprefix("file://"))
