"""The state of a file, by which a change is noticed: size, time and place and, for local files, a digest.

A local file that replaced one of the same size and time has another inode or change time. So has a copy that keeps times
(rsync -a, another machine): then digests decide.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

_KNOWN = 3
"""Entries of a state without reading the file: its size, its time, and its place or tags."""
_DIGESTED_BYTES = 1 << 30
_WINDOW_BYTES = 8 << 20
_END_BYTES = 1 << 16
_READERS = 8


def of_local(file: str) -> list[Any]:
    """Size, time, and inode with change time, which differ if a file replaced one of the same size and time."""
    facts = os.stat(file)
    return [facts.st_size, str(facts.st_mtime), f"{facts.st_ino}:{facts.st_ctime_ns}"]


def of_remote(info: Mapping[str, Any]) -> list[Any]:
    """Size, time and tags of a remote file, which each file system names differently."""
    when = next((info[name] for name in ("mtime", "LastModified", "ETag", "blob_id") if info.get(name)), None)
    tags = [str(info[name]) for name in ("ETag", "VersionId", "generation", "blob_id") if info.get(name)]
    return [info.get("size"), str(when), " ".join(tags)]


def digested(files: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """The states of local files, each with the share of the file that is digested and the digest."""
    # Of more than a gibibyte in all, a gibibyte is digested: the beginning of each 8 MiB. The end of each file always is.
    part = min(1.0, _DIGESTED_BYTES / max(1, sum(facts[0] for facts in files.values())))
    with ThreadPoolExecutor(_READERS) as pool:
        digests = pool.map(lambda name: digest(name, part, *files[name]), files)
        return {name: [*files[name], part, file_digest] for name, file_digest in zip(files, digests, strict=True)}


@lru_cache(maxsize=65_536)
def digest(file: str, part: float, size: int, *known: Any) -> str:
    """A digest of a local file in a known state: of the share `part` of each window, and of its end."""
    hasher = hashlib.blake2b(digest_size=16)
    with open(file, "rb") as stream:
        for start in range(0, size, _WINDOW_BYTES):
            stream.seek(start)
            hasher.update(stream.read(math.ceil(part * min(_WINDOW_BYTES, size - start))))
        stream.seek(max(0, size - _END_BYTES))
        hasher.update(stream.read(_END_BYTES))
    return hasher.hexdigest()


def is_same(file: str, before: Any, now: Any) -> bool:
    """Whether a file or version is unchanged; digests decide for a local file that only moved."""
    if not isinstance(before, list) or not isinstance(now, list):
        return bool(before == now)
    if before[:2] != now[:2]:
        return False
    if len(before) < _KNOWN or before[2] == now[2]:  # An older version wrote two.
        return True
    return len(before) > _KNOWN and bool(before[-1] == digest(file, before[-2], *now))


def content(facts: Any) -> Any:
    """The size and digest of a local file's state, which do not depend on where and when it was written."""
    return [facts[0], *facts[_KNOWN:]] if isinstance(facts, list) and len(facts) > _KNOWN else facts
