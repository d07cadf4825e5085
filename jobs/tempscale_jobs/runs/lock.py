"""The lock of a folder, for one run at a time: a file that only one process can create, renewed while the run lives."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import psutil

from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.provenance import machine
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import masked

NAME = ".lock"
_RENEWED_SECONDS, _STALE_SECONDS, _LOOK_SECONDS = 30.0, 150.0, 5.0
_FORGOTTEN_SECONDS = 600.0
"""More than clocks of two machines differ; a lock that was not renewed for so long is dead without being watched."""
_SETTLED_SECONDS = {True: 0.2, False: 1.0}
"""Wait after taking over a dead run's lock, so that only the last of several processes still finds its own lock."""
_CLOCK_SECONDS = 2.0
"""Tolerance of a process's start time, because the clock may have been set since."""


@contextmanager
def locked(storage: Storage, waiting: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Iterator[None]:
    """Hold the folder's lock, or take over that of a dead run; `waiting` is entered while another machine's lock is watched.

    A storage that cannot lock gets no lock; a folder that cannot be written is reported by its first write.

    Raises:
        UsageError: a live run has the lock, or the storage cannot be reached.
    """
    storage.check_reachable()
    own = {
        "run": uuid.uuid4().hex, "host": socket.gethostname(), "machine": machine(), "pid": os.getpid(),
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
        with suppress(Exception):  # A lock that remains counts as a dead run's.
            if _holds(storage, own):
                storage.remove(NAME)


def _taken(storage: Storage, own: dict[str, Any], waiting: Callable[[], AbstractContextManager[Any]]) -> bool:
    """Create the lock, in place of a dead run's if there is one; return whether the storage can lock."""
    try:
        created = storage.create(NAME, _written(own))
    except (OSError, NotImplementedError):
        return False
    while True:
        if created:
            # Another process may have found the same dead lock and may now remove this one by mistake.
            time.sleep(_SETTLED_SECONDS[storage.is_local])
            if _holds(storage, own):
                return True
        other = _read(storage)
        if other is not None:
            if not _dead(other, waiting, storage):
                raise UsageError(
                    f"'{masked(storage.root)}' is in use by another run (process {other['pid']} on {other['host']}); "
                    "wait for its end or choose another --out"
                )
            own["took_over"] = {key: other[key] for key in ("host", "pid", "renewed")}
            if _read(storage) == other:
                with suppress(FileNotFoundError):
                    storage.remove(NAME)
        created = storage.create(NAME, _written(own))


def took_over(storage: Storage) -> dict[str, Any] | None:
    """The dead run whose lock this process took over: host, process and last renewal; None if there was none."""
    found = _read(storage)
    if found is None or (found["machine"], found["pid"]) != (machine(), os.getpid()):
        return None
    dead: dict[str, Any] | None = found.get("took_over")
    return dead


def _holds(storage: Storage, own: dict[str, Any]) -> bool:
    last = _read(storage)
    return last is not None and last["run"] == own["run"]


def _renew(storage: Storage, own: dict[str, Any], ended: threading.Event) -> None:
    while not ended.wait(_RENEWED_SECONDS):
        # Every storage has its own exceptions. One failure is harmless: several must fail before the lock counts as dead.
        with suppress(Exception):
            last = _read(storage)
            if last is None or last["run"] == own["run"]:  # Another run may have taken it over while this machine slept.
                storage.write(NAME, _written(own), durable=False)


def _written(own: dict[str, Any]) -> bytes:
    return json.dumps(own | {"renewed": time.time()}).encode()


def _read(storage: Storage) -> dict[str, Any] | None:
    """The content of the lock, as that of a dead run if it is damaged; None if it is gone."""
    try:
        found = dict[str, Any](json.loads(storage.read(NAME)))
    except FileNotFoundError:
        return None
    except ValueError:
        found = {}
    return {"run": "", "host": "", "machine": "", "pid": 0, "since": 0.0, "renewed": 0.0} | found


def _dead(other: dict[str, Any], waiting: Callable[[], AbstractContextManager[Any]], storage: Storage) -> bool:
    """Whether a lock's owner is gone: its process on this machine, or the renewals of its lock from another machine."""
    if other["machine"] == machine():
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
            with suppress(Exception):  # A file that is being replaced on a shared disk cannot always be read.
                now = _read(storage)
                if now != other:
                    return now is None
    return True
