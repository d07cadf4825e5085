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
"""Seconds between two status files on local (True) and remote storage."""
LINE_SECONDS = 30.0

Unit = Literal["texts", "pairs", "rejected", "cache_hits"]
State = Literal["running", "complete", "incomplete", "failed"]


class Slow(NamedTuple):
    """An unfinished piece of work that takes much longer than others of its step."""

    piece: str
    """Its name, such as «shard 7»."""
    seconds: float
    """Its time so far."""
    median_seconds: float
    """The median time of the finished ones."""

    def rounded(self) -> dict[str, Any]:
        """The fields for JSON."""
        return {"piece": self.piece, "seconds": round(self.seconds), "median_seconds": round(self.median_seconds, 1)}


class Work(NamedTuple):
    """The numbers of pieces of work and of workers."""

    left: int | None
    """Unfinished pieces; None if not known."""
    alive: int
    """Workers that have started."""
    wanted: int
    """All workers of the step, also those that wait for a place."""
    retried: int = 0
    """Pieces that were given out again since the last report."""


def ascii_label(text: str) -> str:
    """A text as a label of Ray's metrics, in ASCII."""
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
        if self.run is None:  # A run may contain another run.
            self.run, self.night = run, night

    def stage(self, name: str, total: int | None) -> None:
        """Begin a stage."""
        self.name, self.done, self.total, self.slow_pieces = name, 0, total, ()

    def resize(self, total: int) -> None:
        """Set the stage's total."""
        self.total = total

    def progress(self, done: int) -> None:
        """Set the amount of the stage that is done."""
        self.done = done

    def count(self, unit: Unit, number: int) -> None:
        """Add a number of texts, pairs, rejected rows or cache hits."""

    def slow(self, pieces: Sequence[Slow], new: Sequence[Slow]) -> None:
        """Set the pieces that are slow now, and the new ones of them; other threads call this too."""
        self.slow_pieces = pieces

    def work(self, work: Work) -> None:
        """Report the progress of a step's pieces."""

    def lost(self, why: str) -> None:
        """Report a lost worker, whose pieces go to others."""
        self.lost_workers.append(why)

    def say(self, event: str, message: str, seconds: float | None = None) -> None:
        """Report the end of a stage or another event."""

    def end(self, state: State, message: str) -> None:
        """Report the end of the run."""


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
        # Print the line at once, because another thread may print too.
        print(sealed.shown(json.dumps(line | facts, ensure_ascii=False)) + "\n", end="", file=sys.stderr, flush=True)

    @override
    def end(self, state: State, message: str) -> None:
        self.name, self.done, self.total = None, 0, None
        self.say(state, message)


class StatusFile(Observer):
    """Writes `status.json` in the run folder for polling; it is not one of the run's results."""

    def __init__(self) -> None:
        super().__init__()
        self._storage: Storage | None = None
        self._started, self._written = now(), 0.0
        self._updated = self._started
        self._lock = threading.Lock()

    @override
    def follow(self, run: str, night: str, storage: Storage) -> None:
        super().follow(run, night, storage)
        # A complete run has its last status.
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
        """Whether it is time to write the file again."""
        return self._storage is not None and time.monotonic() - self._written >= STATUS_SECONDS[self._storage.is_local]

    def _write(self, state: State, message: str, moved: bool = True) -> None:
        """Write the file; `updated` changes only if the run has `moved`, so that it shows a run that hangs."""
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
            self._set("stage", 0, stage=before)
        self._set("stage", 1, stage=name)
        self._set_slow()

    @override
    def slow(self, pieces: Sequence[Slow], new: Sequence[Slow]) -> None:
        super().slow(pieces, new)
        self._set_slow()

    @override
    def count(self, unit: Unit, number: int) -> None:
        if number:
            self._add(unit, number)

    @override
    def work(self, work: Work) -> None:
        self.works, step = True, self.name or ""
        self._set("workers", work.alive, step=step, state="alive")
        self._set("workers", work.wanted, step=step, state="wanted")
        if work.left is not None:
            self._set("pieces_left", work.left, step=step)
        if work.retried:
            self._add("retries", work.retried, step=step)

    @override
    def say(self, event: str, message: str, seconds: float | None = None) -> None:
        if seconds is not None:
            self._set("step_seconds", seconds, step=self.name or "")

    @override
    def end(self, state: State, message: str) -> None:
        self._end_work()
        if self.name is not None:
            self._set("stage", 0, stage=self.name)
        self.slow_pieces = ()
        self._set_slow()

    def _end_work(self) -> None:
        """Set the stage's workers and pieces to 0."""
        if self.works:
            self.work(Work(0, 0, 0, 0))
            self.works = False

    def _set_slow(self) -> None:
        if self.run is not None:
            self._set("slow_pieces", len(self.slow_pieces))

    def _set(self, name: str, value: float, **labels: str) -> None:
        with suppress(Exception):  # A failing metric must not end the run.
            if (gauge := self._metric(name)) is not None:
                gauge.set(value, self._labels(labels))

    def _add(self, name: str, number: int, **labels: str) -> None:
        with suppress(Exception):
            if (counter := self._metric(name)) is not None:
                counter.inc(number, self._labels(labels))

    def _labels(self, labels: dict[str, str]) -> dict[str, str]:
        return {"run": self.run or "", **{name: ascii_label(label) for name, label in labels.items()}}

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
