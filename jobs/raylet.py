"""The Ray process of this machine that a run cannot outlive, watched so that its end is told and has its exit code."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_LOOK_SECONDS = 0.2
_INCOMPLETE = 3
_SENTENCE = (
    "error: Ray's own process on this machine ended (it was killed, or the machine ran out of memory); "
    "start the same command again to go on"
)


@contextmanager
def watched() -> Iterator[None]:
    """End this process as incomplete, with a sentence, once the raylet that it is joined to has ended.

    Ray's core would end it a few seconds later, without a word and with exit code 1, which is a failed gate's.
    """
    process = _raylet()
    if process is None:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        import psutil

        while not over.wait(_LOOK_SECONDS):
            try:
                alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                alive = False
            if not alive and not over.is_set():
                print(_SENTENCE, file=sys.stderr, flush=True)
                os._exit(_INCOMPLETE)

    watcher = threading.Thread(target=watch, name="raylet-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _raylet() -> Any:
    """This node's raylet as a process; None where it cannot be seen, as from inside another container."""
    import psutil
    import ray

    named = f"--node_id={ray.get_runtime_context().get_node_id()}"
    processes = psutil.process_iter(["name", "cmdline"])
    return next((p for p in processes if p.info["name"] == "raylet" and named in (p.info["cmdline"] or ())), None)
