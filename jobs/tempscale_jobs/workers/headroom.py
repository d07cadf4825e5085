"""Watch this machine's memory: above a threshold Ray ends every new worker, so a run cannot go on."""

from __future__ import annotations

import _thread
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tempscale_jobs.errors import IncompleteRun

_LOOK_SECONDS = 1.0
_THRESHOLD, _DEFAULT_THRESHOLD = "RAY_memory_usage_threshold", 0.95
_REFRESH = "RAY_memory_monitor_refresh_ms"
"""Ray's variables of its memory monitor, which is off where the second is 0."""


@contextmanager
def kept(patience: float = 60.0) -> Iterator[None]:
    """Interrupt the block with an IncompleteRun when more memory than Ray allows is in use for `patience` seconds."""
    # Ray would end workers and start them again without an end.
    threshold = _threshold()
    ended, full = threading.Event(), threading.Event()

    def watch() -> None:
        since = time.monotonic()
        while not ended.wait(min(_LOOK_SECONDS, patience / 4)):
            if used_share() <= threshold:
                since = time.monotonic()
            elif time.monotonic() - since > patience:
                full.set()
                _interrupt()
                return

    watcher = threading.Thread(target=watch, name="memory-watch", daemon=True)
    if threshold < 1:
        watcher.start()
    try:
        yield
    except KeyboardInterrupt:
        if not full.is_set():
            raise
        raise IncompleteRun(
            f"no memory is left: more than {threshold:.0%} of this machine's is in use, where Ray ends every worker; end "
            "other processes, or use fewer --workers, and start the same command again to go on"
        ) from None
    finally:
        ended.set()


def used_share() -> float:
    """The share of this machine's, or this container's, memory that is in use, as Ray measures it."""
    from ray._common.utils import get_system_memory
    from ray._private.utils import get_used_memory

    return float(get_used_memory() / get_system_memory())


def _threshold() -> float:
    """Ray's threshold; 1 where its monitor is off."""
    if os.environ.get(_REFRESH) == "0":
        return 1.0
    with suppress(ValueError):
        threshold = float(os.environ.get(_THRESHOLD, _DEFAULT_THRESHOLD))
        return _DEFAULT_THRESHOLD if math.isnan(threshold) else threshold
    return _DEFAULT_THRESHOLD


def _interrupt() -> None:
    """Raise KeyboardInterrupt in the main thread, wherever it waits."""
    if signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
        os.kill(os.getpid(), signal.SIGTERM)  # The command line handles it even where Ctrl-C is ignored.
    else:
        _thread.interrupt_main()
