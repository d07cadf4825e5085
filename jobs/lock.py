"""One run at a time in a folder: a file that only one process can create, renewed while the run lives."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from jobs.errors import IncompleteRun, UsageError
from jobs.storage import Storage

NAME = ".lock"
_RENEWED_SECONDS, _STALE_SECONDS, _LOOK_SECONDS = 30.0, 150.0, 5.0


@contextmanager
def held(storage: Storage) -> Iterator[None]:
    """Hold the folder's lock; one whose owner has died is taken over.

    A folder that cannot be written, or a storage that cannot lock, is left to whoever writes first to speak of.

    Raises:
        UsageError: another run that lives holds it.
    """
    own = {
        "run": uuid.uuid4().hex, "host": socket.gethostname(), "pid": os.getpid(),
        "since": psutil.Process().create_time(),
    }  # fmt: skip
    try:
        while not storage.create(NAME, _written(own)):
            _wait_for_its_death(storage)
    except (OSError, NotImplementedError):
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
        last = _read(storage)
        if last is not None and last["run"] == own["run"]:
            storage.remove(NAME)


def _wait_for_its_death(storage: Storage) -> None:
    """Remove the lock of a run that is dead; of one on another machine the missing renewals tell, after a while."""
    first = other = _read(storage)
    while other is not None and not _dead(other):
        if other["host"] == socket.gethostname() or other != first:
            raise UsageError(
                f"'{storage.root}' is in use by another run (process {other['pid']} on {other['host']}); "
                "wait for its end or choose another --out"
            )
        time.sleep(_LOOK_SECONDS)
        other = _read(storage)
    if other is not None and _read(storage) == other:
        storage.remove(NAME)


def _renew(storage: Storage, own: dict[str, Any], ended: threading.Event) -> None:
    while not ended.wait(_RENEWED_SECONDS):
        with suppress(IncompleteRun, OSError):  # The next one may succeed, and several may fail before it counts as dead.
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
    return {"run": "", "host": "", "pid": 0, "since": 0.0, "renewed": 0.0} | found


def _dead(other: dict[str, Any]) -> bool:
    """Whether the owner of a lock is gone: on this machine its process, elsewhere its renewals."""
    if other["host"] == socket.gethostname():
        try:
            return bool(psutil.Process(other["pid"]).create_time() != other["since"])
        except psutil.NoSuchProcess:
            return True
    return bool(time.time() - other["renewed"] > _STALE_SECONDS)
