"""The progress of a run for machines: JSON lines, a status file to poll, and metrics of the Ray cluster."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from typing_extensions import override

from tempscale_jobs.runs import sealed
from tempscale_jobs.runs.folder import DONE, now
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import hidden

STATUS = "status.json"
STATUS_SECONDS = {True: 5.0, False: 30.0}
"""How often a stage writes the status file, remotely (False) and locally (True)."""
LINE_SECONDS = 30.0

Unit = Literal["texts", "pairs", "rejected", "cache_hits"]
State = Literal["running", "complete", "incomplete", "failed"]


class Slow(NamedTuple):
    """A piece of work in flight that takes much longer than others of its step."""

    piece: str
    """Its name, such as «shard 7»."""
    seconds: float
    """How long it has taken so far."""
    median_seconds: float
    """The median of the finished ones."""

    def rounded(self) -> dict[str, Any]:
        """The same for JSON."""
        return {"piece": self.piece, "seconds": round(self.seconds), "median_seconds": round(self.median_seconds, 1)}


class Work(NamedTuple):
    """Pieces of work, and the workers that they are given to."""

    left: int | None
    """Pieces that are not done; None where it is not known."""
    alive: int
    """Workers that have started;"""
    wanted: int
    """and all that should work, those that wait for a place among them."""
    retried: int = 0
    """Pieces that were given out again since the last time."""


def ascii_label(text: str) -> str:
    """A text as a label of Ray's metrics, which are ASCII."""
    return text.replace("τ", "tau").encode("ascii", "replace").decode()


class Observer:
    """Receives the progress of a run and keeps the current stage; subclasses report it."""

    def __init__(self) -> None:
        self.run: str | None = None
        self.night: str | None = None
        self.name: str | None = None
        self.done = 0
        self.total: int | None = None
        self.slow_pieces: Sequence[Slow] = ()
        self.lost_workers: list[str] = []

    def follow(self, run: str, night: str, storage: Storage) -> None:
        """Follow this run from now on."""
        if self.run is None:  # A run may have another one inside it.
            self.run, self.night = run, night

    def stage(self, name: str, total: int | None) -> None:
        """A stage begins."""
        self.name, self.done, self.total, self.slow_pieces = name, 0, total, ()

    def resize(self, total: int) -> None:
        """The stage's total, as it is known now."""
        self.total = total

    def progress(self, done: int) -> None:
        """The amount `done` of the stage so far."""
        self.done = done

    def count(self, unit: Unit, number: int) -> None:
        """Add a number of texts, pairs, rejected rows or cache hits."""

    def slow(self, pieces: Sequence[Slow], new: Sequence[Slow]) -> None:
        """The pieces that are slow now, and those of them that are new; called from another thread, too."""
        self.slow_pieces = pieces

    def work(self, work: Work) -> None:
        """How the work of a step goes on."""

    def lost(self, why: str) -> None:
        """A worker was lost, whose pieces of work go to others."""
        self.lost_workers.append(why)

    def say(self, event: str, message: str, seconds: float | None = None) -> None:
        """Report the end of a stage or another event."""

    def end(self, state: State, message: str) -> None:
        """The run ended."""


class JsonLines(Observer):
    """Prints JSON objects to standard error, one in a line."""

    def __init__(self) -> None:
        super().__init__()
        self._written = 0.0

    @override
    def stage(self, name: str, total: int | None) -> None:
        super().stage(name, total)
        self._written = time.monotonic()
        self.say("begin", "")

    @override
    def progress(self, done: int) -> None:
        super().progress(done)
        if time.monotonic() - self._written >= LINE_SECONDS:
            self._written = time.monotonic()
            self.say("progress", "")

    @override
    def slow(self, pieces: Sequence[Slow], new: Sequence[Slow]) -> None:
        super().slow(pieces, new)
        for piece in new:
            self._print("slow", piece.rounded())

    @override
    def lost(self, why: str) -> None:
        super().lost(why)
        self.say("lost", why)

    @override
    def say(self, event: str, message: str, seconds: float | None = None) -> None:
        facts = {} if seconds is None else {"seconds": round(seconds, 2)}
        self._print(event, facts | ({"message": hidden(message)} if message else {}))

    def _print(self, event: str, facts: dict[str, Any]) -> None:
        line: dict[str, Any] = {"time": now(), "run": self.run, "night": self.night, "stage": self.name, "event": event}
        if self.total is not None or self.done:
            line |= {"done": self.done, "total": self.total}
        # In one piece, because another thread may print, too.
        print(sealed.shown(json.dumps(line | facts, ensure_ascii=False)) + "\n", end="", file=sys.stderr, flush=True)

    @override
    def end(self, state: State, message: str) -> None:
        self.name, self.done, self.total = None, 0, None
        self.say(state, message)


class StatusFile(Observer):
    """Writes `status.json` in the run folder, to be polled; it is no part of the run's results."""

    def __init__(self) -> None:
        super().__init__()
        self._storage: Storage | None = None
        self._started, self._written = now(), 0.0
        self._updated = self._started
        self._lock = threading.Lock()

    @override
    def follow(self, run: str, night: str, storage: Storage) -> None:
        super().follow(run, night, storage)
        # The status file of a complete run already says how it ended.
        if self._storage is None and not storage.exists(DONE):
            self._storage = storage
            self._write("running", "")

    @override
    def stage(self, name: str, total: int | None) -> None:
        super().stage(name, total)
        self._write("running", "")

    @override
    def progress(self, done: int) -> None:
        super().progress(done)
        if self._is_due:
            self._write("running", "")

    @override
    def slow(self, pieces: Sequence[Slow], new: Sequence[Slow]) -> None:
        changed = bool(new) or len(pieces) != len(self.slow_pieces)
        super().slow(pieces, new)
        if changed or self._is_due:
            self._write("running", "", moved=False)

    @override
    def lost(self, why: str) -> None:
        super().lost(why)
        self._write("running", "", moved=False)

    @override
    def end(self, state: State, message: str) -> None:
        self.slow_pieces = ()
        self._write(state, message)

    @property
    def _is_due(self) -> bool:
        """Whether the file is as old as it may become."""
        return self._storage is not None and time.monotonic() - self._written >= STATUS_SECONDS[self._storage.is_local]

    def _write(self, state: State, message: str, moved: bool = True) -> None:
        """Write the file; `updated` stays as it is where nothing has `moved`, so that it shows a run that hangs."""
        if self._storage is None:
            return
        with self._lock, suppress(Exception):  # The run itself reports a folder that cannot be written.
            self._written = time.monotonic()
            self._updated = now() if moved else self._updated
            status = {
                "run": self.run, "night": self.night, "state": state, "stage": self.name, "done": self.done,
                "total": self.total, "started": self._started, "updated": self._updated, "message": message,
                "slow": [piece.rounded() for piece in self.slow_pieces], "lost": list(self.lost_workers),
            }  # fmt: skip
            self._storage.write_json(STATUS, status, durable=False, plain=True)


METRICS = {
    name: ("Counter", f"{name.replace('_', ' ')} of tempscale runs", ("run",))
    for name in ("texts", "pairs", "rejected", "cache_hits")
} | {
    "retries": ("Counter", "pieces of work that were given out again", ("run", "step")),
    "stage": ("Gauge", "1 for the stage under way", ("run", "stage")),
    "step_seconds": ("Gauge", "seconds that a step took", ("run", "step")),
    "slow_pieces": ("Gauge", "pieces of work in flight that take ten times the median of their step", ("run",)),
    "pieces_left": ("Gauge", "pieces of work of a step that are not done", ("run", "step")),
    "workers": ("Gauge", "workers that are alive, or wanted", ("run", "step", "state")),
}
"""The metrics of runs, each `tempscale_NAME` and a counter `tempscale_NAME_total`: kind, meaning, labels."""


class RayMetrics(Observer):
    """Publishes counters and the stage as Ray metrics, which Prometheus can read, while Ray runs."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: dict[str, Any] = {}
        self.works = False
        """Whether workers were counted in this stage."""

    @override
    def stage(self, name: str, total: int | None) -> None:
        before = self.name
        self._end_work()
        super().stage(name, total)
        if before is not None:
            self._set(before, 0)
        self._set(name, 1)
        self._set_slow()

    @override
    def slow(self, pieces: Sequence[Slow], new: Sequence[Slow]) -> None:
        super().slow(pieces, new)
        self._set_slow()

    @override
    def count(self, unit: Unit, number: int) -> None:
        with suppress(Exception):  # A failing metric must not end the run.
            if number and (counter := self._metric(unit)) is not None:
                counter.inc(number, {"run": self.run or ""})

    @override
    def work(self, work: Work) -> None:
        labels, self.works = {"run": self.run or "", "step": ascii_label(self.name or "")}, True
        with suppress(Exception):
            if (gauge := self._metric("workers")) is None:
                return
            gauge.set(work.alive, labels | {"state": "alive"})
            gauge.set(work.wanted, labels | {"state": "wanted"})
            if work.left is not None:
                self._metric("pieces_left").set(work.left, labels)
            if work.retried:
                self._metric("retries").inc(work.retried, labels)

    @override
    def say(self, event: str, message: str, seconds: float | None = None) -> None:
        with suppress(Exception):
            if seconds is not None and (gauge := self._metric("step_seconds")) is not None:
                gauge.set(seconds, {"run": self.run or "", "step": ascii_label(self.name or "")})

    @override
    def end(self, state: State, message: str) -> None:
        self._end_work()
        if self.name is not None:
            self._set(self.name, 0)
        self.slow_pieces = ()
        self._set_slow()

    def _end_work(self) -> None:
        """Nobody works on the stage any more, and nothing of it is left."""
        if self.works:
            self.work(Work(0, 0, 0, 0))
            self.works = False

    def _set_slow(self) -> None:
        with suppress(Exception):
            if self.run is not None and (gauge := self._metric("slow_pieces")) is not None:
                gauge.set(len(self.slow_pieces), {"run": self.run})

    def _set(self, stage: str, value: int) -> None:
        with suppress(Exception):
            if (gauge := self._metric("stage")) is not None:
                gauge.set(value, {"run": self.run or "", "stage": ascii_label(stage)})

    def _metric(self, name: str) -> Any:
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            return None
        if name not in self.metrics:
            from ray.util import metrics

            kind, description, labels = METRICS[name]
            ending = "_total" if kind == "Counter" else ""
            self.metrics[name] = getattr(metrics, kind)(f"tempscale_{name}{ending}", description, labels)
        return self.metrics[name]
