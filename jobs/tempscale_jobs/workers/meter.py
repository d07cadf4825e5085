"""The metrics of workers, which Ray publishes for Prometheus; a metric that fails does not end a run."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import lru_cache
from typing import Any

from tempscale_jobs.runs.observing import ascii_label

COUNTERS = {
    "texts": "texts that workers have embedded, under every temperature",
    "tokens": "tokens of these texts",
    "model_seconds": "seconds in which workers ran their models",
    "waiting_seconds": "seconds in which workers' models waited for work or for storage",
    "halvings": "micro-batches that were halved, because memory did not hold one",
}
"""The counters of workers, each `tempscale_worker_NAME_total`, with their descriptions."""
LABELS = ("run", "model", "step")


@lru_cache
def _counter(name: str) -> Any:
    from ray.util import metrics

    return metrics.Counter(f"tempscale_worker_{name}_total", COUNTERS[name], LABELS)


class Meter:
    """Counts the work of one worker."""

    def __init__(self, run: str, model: str) -> None:
        self._labels = {"run": run, "model": ascii_label(model)}
        self.step = ""
        """The step that it works on."""

    def add(self, name: str, amount: float) -> None:
        """Add to one of the counters."""
        with suppress(Exception):
            import ray

            if amount and ray.is_initialized():
                _counter(name).inc(amount, self._labels | {"step": self.step})


class Turn:
    """A lock on a worker's model that counts how long the model ran and waited."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._lock = meter, threading.Lock()
        self._began = self._ended = time.monotonic()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._began = time.monotonic()
        self._meter.add("waiting_seconds", self._began - self._ended)

    def __exit__(self, *error: object) -> None:
        self._ended = time.monotonic()
        self._meter.add("model_seconds", self._ended - self._began)
        self._lock.release()

    def locked(self) -> bool:
        """Whether a piece of work has the turn."""
        return self._lock.locked()
