"""Memory of this process and of all it started."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import psutil
import pyarrow as pa

_SAMPLE_SECONDS, _SAMPLE_SHARE = 2.0, 0.02
"""Interval of measurements, and their largest share of the time: a measurement visits all pages of all processes."""


class PeakMemory:
    """Summed PSS of this process and all its children, sampled in the background."""

    def __init__(self) -> None:
        self._peak, self._stopped = 0, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def reset(self) -> None:
        """Forget the peak so far."""
        self._peak = 0

    def peak(self) -> int:
        """Bytes at the peak since the last `reset`."""
        self._peak = max(self._peak, summed_pss())
        return self._peak

    def stop(self) -> None:
        """Measure no more."""
        self._stopped.set()

    def _watch(self) -> None:
        pause = _SAMPLE_SECONDS
        while not self._stopped.wait(pause):
            start = time.monotonic()
            self._peak = max(self._peak, summed_pss())
            pause = max(_SAMPLE_SECONDS, (time.monotonic() - start) / _SAMPLE_SHARE)


def summed_pss() -> int:
    """Bytes of memory of this process and its children together, with shared pages counted once."""
    total = 0
    for process in [psutil.Process(os.getpid()), *psutil.Process(os.getpid()).children(recursive=True)]:
        try:
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.rss)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def return_freed() -> None:
    """Return freed memory to the system: many allocations of many sizes fragment the heap by hundreds of MB."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
