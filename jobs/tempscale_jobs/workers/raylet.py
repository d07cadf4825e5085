"""Watch this machine's raylet, without which a run cannot go on, and report its end with the right exit code."""

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
    """Exit as incomplete, with a sentence, if this process's raylet ends."""
    # Ray's core would exit some seconds later, without a message and with exit code 1, which means a failed gate.
    process = _raylet()
    if process is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        import psutil

        while not ended.wait(_LOOK_SECONDS):
            try:
                alive = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                alive = False
            if not alive and not ended.is_set():
                print(_SENTENCE, file=sys.stderr, flush=True)
                os._exit(_INCOMPLETE)

    watcher = threading.Thread(target=watch, name="raylet-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _raylet() -> Any:
    """The process of this node's raylet; None if it is not visible, for example from another container."""
    import psutil
    import ray

    argument = f"--node_id={ray.get_runtime_context().get_node_id()}"
    processes = psutil.process_iter(["name", "cmdline"])
    return next((p for p in processes if p.info["name"] == "raylet" and argument in (p.info["cmdline"] or ())), None)
