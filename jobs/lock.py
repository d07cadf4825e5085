"""One run at a time in a folder: a file that only one process can create, renewed while the run lives."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

from jobs.errors import UsageError
from jobs.storage import Storage
from jobs.urls import shown

NAME = ".lock"
_RENEWED_SECONDS, _STALE_SECONDS, _LOOK_SECONDS = 30.0, 150.0, 5.0
_FORGOTTEN_SECONDS = 600.0
"""Longer than two machines' clocks differ: a lock that was not renewed for so long need not be watched."""
_SETTLED_SECONDS = {True: 0.2, False: 1.0}
"""In which, locally and remotely, of several that take over a dead run's lock all but the last see that theirs is gone."""
_CLOCK_SECONDS = 2.0
"""A process's start is told by the clock of today, which may have been set since."""


@contextmanager
def held(storage: Storage, waiting: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Iterator[None]:
    """Hold the folder's lock; one whose owner has died is taken over.

    A folder that cannot be written, or a storage that cannot lock, is left to whoever writes first to speak of.

    Args:
        storage: the folder.
        waiting: entered while a lock of another machine is watched, which takes minutes.

    Raises:
        UsageError: another run that lives holds it, or the storage cannot be reached.
    """
    storage.check_reachable()
    own = {
        "run": uuid.uuid4().hex, "host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(),
        "since": psutil.Process().create_time(),
    }  # fmt: skip
    if not _taken(storage, own, waiting):
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(storage, own, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(Exception):  # A lock that stays is found to be a dead run's; what the run has done stands.
            if _holds(storage, own):
                storage.remove(NAME)


def _taken(storage: Storage, own: dict[str, Any], waiting: Callable[[], AbstractContextManager[Any]]) -> bool:
    """Create the lock, over that of a dead run where there is one; whether the storage has such a thing as a lock."""
    try:
        created = storage.create(NAME, _written(own))
    except (OSError, NotImplementedError):
        return False
    while True:
        if created:
            # Someone else may have seen the same death a moment ago, and be about to remove the wrong lock.
            time.sleep(_SETTLED_SECONDS[storage.is_local])
            if _holds(storage, own):
                return True
        other = _read(storage)
        if other is not None:
            if not _dead(other, waiting, storage):
                raise UsageError(
                    f"'{shown(storage.root)}' is in use by another run (process {other['pid']} on {other['host']}); "
                    "wait for its end or choose another --out"
                )
            own["took_over"] = {key: other[key] for key in ("host", "pid", "renewed")}
            if _read(storage) == other:
                with suppress(FileNotFoundError):
                    storage.remove(NAME)
        created = storage.create(NAME, _written(own))


def took_over(storage: Storage) -> dict[str, Any] | None:
    """Of which dead run this process took the lock over: its host, process and last sign of life; None if of none."""
    found = _read(storage)
    if found is None or (found["machine"], found["pid"]) != (_machine(), os.getpid()):
        return None
    dead: dict[str, Any] | None = found.get("took_over")
    return dead


def _holds(storage: Storage, own: dict[str, Any]) -> bool:
    last = _read(storage)
    return last is not None and last["run"] == own["run"]


def _renew(storage: Storage, own: dict[str, Any], ended: threading.Event) -> None:
    while not ended.wait(_RENEWED_SECONDS):
        # Every storage has exceptions of its own. The next one may succeed, and several may fail before it counts as dead.
        with suppress(Exception):
            last = _read(storage)
            if last is None or last["run"] == own["run"]:  # Of a machine that slept, another may have taken it over.
                storage.write(NAME, _written(own), durable=False)


def _written(own: dict[str, Any]) -> bytes:
    return json.dumps(own | {"renewed": time.time()}).encode()


def _read(storage: Storage) -> dict[str, Any] | None:
    """What the lock says, a dead run's where it is damaged; None where it has just gone."""
    try:
        found = dict[str, Any](json.loads(storage.read(NAME)))
    except FileNotFoundError:
        return None
    except ValueError:
        found = {}
    return {"run": "", "host": "", "machine": "", "pid": 0, "since": 0.0, "renewed": 0.0} | found


def _dead(other: dict[str, Any], waiting: Callable[[], AbstractContextManager[Any]], storage: Storage) -> bool:
    """Whether the owner of a lock is gone: on this machine its process, elsewhere its renewals, by this machine's clock."""
    if other["machine"] == _machine():
        try:
            process = psutil.Process(other["pid"])
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            return bool(abs(process.create_time() - other["since"]) > _CLOCK_SECONDS)
        except psutil.NoSuchProcess:
            return True
    if time.time() - other["renewed"] > _FORGOTTEN_SECONDS:
        return True
    with waiting():
        begun = time.monotonic()
        while time.monotonic() - begun < _STALE_SECONDS:
            time.sleep(_LOOK_SECONDS)
            with suppress(Exception):  # On a shared disk a file that is being replaced cannot always be read.
                now = _read(storage)
                if now != other:
                    return now is None
    return True


@lru_cache(maxsize=1)
def _machine() -> str:
    """What tells a machine or container from every other, also of the same name: numbers of processes are its own."""
    found = [socket.gethostname()]
    with suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip())
        found.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(found)
