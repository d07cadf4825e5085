"""The lock of a folder: a file that only one process can create, and that its run renews."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

from tempscale_jobs.errors import IncompleteRun, RunError, UsageError
from tempscale_jobs.interrupts import release_logging
from tempscale_jobs.runs.provenance import machine
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import masked, reason

NAME = ".lock"
RENEWED_SECONDS, _STALE_SECONDS, _LOOK_SECONDS = 30.0, 150.0, 5.0
_FORGOTTEN_SECONDS = 600.0
"""A lock that was not renewed for so long is dead and need not be watched: clocks of machines differ by less."""
SETTLED_SECONDS = {True: 0.2, False: 1.0}
"""Wait after taking over a dead run's lock: only the last of several processes then still finds its own lock."""
_CLOCK_SECONDS = 2.0
"""Tolerance of a process's start time where the kernel counts no ticks: the clock may have been set since."""
_TRY_AGAIN_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Waits between tries while a storage gives no answer."""
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""Errors of a disk that another try does not mend."""
_UNREADABLE_LOOKS, _UNREADABLE_SECONDS = 5, 0.1


class Lock:
    """The lock of this process, or none if the storage cannot lock."""

    def __init__(self, storage: Storage, own: dict[str, Any] | None) -> None:
        self._storage, self._owner = storage, own
        self.lost = threading.Event()
        """Set when the lock could not be renewed because it was gone or another run's."""

    def check(self) -> None:
        """Raise an IncompleteRun if another run may have locked the folder."""
        if self._owner is None:
            return
        owner = self._owner
        if self.lost.is_set() or not _tried(lambda: _holds(self._storage, owner)):
            raise IncompleteRun(
                f"the lock of '{masked(self._storage.root)}' was lost while this run went on (its machine slept, its "
                "storage was out of reach, or somebody removed it), so another run may have written there; start the same "
                "command again"
            )


@contextmanager
def locked(
    storage: Storage, waiting: Callable[[], AbstractContextManager[Any]] = nullcontext,
    unlocked: Callable[[], None] = lambda: None,
) -> Iterator[Lock]:  # fmt: skip
    """Hold the folder's lock, or take over a dead run's; `waiting` is entered while another machine's lock is watched."""
    # A storage that cannot lock gets no lock, and `unlocked` is called. A folder that cannot be written is reported by its
    # first write.
    storage.check_reachable()
    owner = {
        "run": uuid.uuid4().hex, "host": socket.gethostname(), "machine": machine(), "pid": os.getpid(),
        "since": psutil.Process().create_time(), "ticks": started_ticks(os.getpid()),
    }  # fmt: skip
    if not _taken(storage, owner, waiting, unlocked):
        yield Lock(storage, None)
        return
    lock, ended = Lock(storage, owner), threading.Event()
    thread = threading.Thread(target=_renew, args=(storage, owner, ended, lock.lost), daemon=True)
    thread.start()
    try:
        yield lock
    finally:
        ended.set()
        release_logging()
        thread.join()
        with suppress(Exception):  # A lock that stays behind counts as a dead run's.
            if _holds(storage, owner):
                storage.remove(NAME)


def _taken(
    storage: Storage, owner: dict[str, Any], waiting: Callable[[], AbstractContextManager[Any]], unlocked: Callable[[], None]
) -> bool:
    """Create the lock, or replace a dead run's; return whether the storage can lock."""
    try:
        created = _created(storage, owner)
    except NotImplementedError:
        unlocked()
        return False
    except OSError as error:
        try:
            storage.write(f"{NAME}-trial", b"")
            storage.remove(f"{NAME}-trial")
        except IncompleteRun:
            return False
        raise UsageError(
            f"'{masked(storage.root)}' cannot be locked, so two runs could write there at the same time: "
            f"{reason(error, storage.root)}; choose another --out"
        ) from None
    while True:
        if created:
            # Another process that found the same dead lock may now remove this one by mistake.
            time.sleep(SETTLED_SECONDS[storage.is_local])
            if _tried(lambda: _holds(storage, owner)):
                return True
        other = _tried(lambda: _read(storage))
        if other is not None:
            if not owner_is_gone(other, waiting, storage):
                raise UsageError(
                    f"'{masked(storage.root)}' is in use by another run (process {other['pid']} on {other['host']}); "
                    "wait for its end or choose another --out"
                )
            owner["took_over"] = {key: other[key] for key in ("host", "pid", "renewed")}
            if _tried(lambda: _read(storage)) == other:
                with suppress(FileNotFoundError):
                    storage.remove(NAME)
        created = _created(storage, owner)


def _created(storage: Storage, owner: dict[str, Any]) -> bool:
    """Create the file unless it exists; a file of this run counts as created even if the storage raised an error."""
    return bool(_tried(lambda: storage.create(NAME, _written(owner)) or _holds(storage, owner)))


def _tried(operation: Callable[[], Any]) -> Any:
    """The result of `operation`, tried again while the storage gives no answer; an IncompleteRun if it never gives one."""
    for wait in (*_TRY_AGAIN_SECONDS, None):
        try:
            return operation()
        except (NotImplementedError, RunError):
            raise
        except OSError as error:
            if wait is None or error.errno in _LASTING:
                raise
        except Exception as error:  # Every storage has its own exceptions.
            if wait is None:
                raise IncompleteRun(
                    f"whether another run uses the folder is not known, because its storage gives no answer "
                    f"({reason(error)}); nothing was begun, start the same command again"
                ) from None
        time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def took_over(storage: Storage) -> dict[str, Any] | None:
    """The dead run whose lock this process took over: host, process and last renewal; None if there was none."""
    content = _read(storage)
    if content is None or (content["machine"], content["pid"]) != (machine(), os.getpid()):
        return None
    dead: dict[str, Any] | None = content.get("took_over")
    return dead


def _holds(storage: Storage, owner: dict[str, Any]) -> bool:
    current = _read(storage)
    return current is not None and current["run"] == owner["run"]


def _renew(storage: Storage, owner: dict[str, Any], ended: threading.Event, lost: threading.Event) -> None:
    while not ended.wait(RENEWED_SECONDS):
        # Every storage has its own exceptions. The lock counts as dead only after several failures.
        with suppress(Exception):
            if not _holds(storage, owner):  # Another run may have taken it over while this machine slept.
                lost.set()
                return
            storage.write(NAME, _written(owner), durable=False)


def _written(owner: dict[str, Any]) -> bytes:
    return json.dumps(owner | {"renewed": time.time()}).encode()


def _read(storage: Storage) -> dict[str, Any] | None:
    """The content of the lock, or that of a dead run if it stays damaged; None if it is gone."""
    content: dict[str, Any] = {}
    for _ in range(_UNREADABLE_LOOKS):
        try:
            content = dict[str, Any](json.loads(storage.read(NAME)).items())
            break
        except FileNotFoundError:
            return None
        except (ValueError, AttributeError):  # Without hard links a file appears before its content.
            time.sleep(_UNREADABLE_SECONDS)
    return {"run": "", "host": "", "machine": "", "pid": 0, "since": 0.0, "renewed": 0.0} | content


def owner_is_gone(other: dict[str, Any], waiting: Callable[[], AbstractContextManager[Any]], storage: Storage) -> bool:
    """Whether a lock's owner is gone: its process on this machine, or its renewals from another machine."""
    if other["machine"] == machine():
        try:
            process = psutil.Process(other["pid"])
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            if other.get("ticks") is not None:
                return bool(other["ticks"] != started_ticks(other["pid"]))
            return bool(abs(process.create_time() - other["since"]) > _CLOCK_SECONDS)
        except psutil.NoSuchProcess:
            return True
    if time.time() - other["renewed"] > _FORGOTTEN_SECONDS:
        return True
    with waiting():
        start = time.monotonic()
        while time.monotonic() - start < _STALE_SECONDS:
            time.sleep(_LOOK_SECONDS)
            with suppress(Exception):  # A file that is being replaced on a shared disk cannot always be read.
                current = _read(storage)
                if current != other:
                    return current is None
    return True


def started_ticks(pid: int) -> int | None:
    """The start of a process in ticks since boot, which no clock changes; None if it is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])  # The name, in parentheses, may hold anything.
