"""The progress of a run for people: a line for each stage, with a progress bar, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from tempscale_jobs.errors import visible
from tempscale_jobs.outlets import WIDTH, wrapped
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import Run
from tempscale_jobs.runs.memory import PeakMemory, return_freed
from tempscale_jobs.runs.observing import Observer, Slow, State, Unit, Work
from tempscale_jobs.runs.pace import Pace
from tempscale_jobs.urls import hidden

_LOG_SECONDS = 60.0
_BAR, _SHORTEST_NAME = 12, 12
"""Columns of the bar, and of the name beside it at least."""


class Stage:
    """A stage in progress: `advance` moves its bar, and `note` becomes its closing line."""

    def __init__(
        self, name: str, total: int | None, journal: Journal, unit: Unit | None = None, pace: Pace | None = None
    ) -> None:  # fmt: skip
        console = journal.console
        self.note = ""
        self.pace = pace or Pace(total)
        self._advanced = False
        self._observers, self._unit = journal.observers, unit
        self._console, self._name, self._total, self._done, self._logged = console, name, total, 0, time.monotonic()
        self._now = ""
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(TextColumn(" "), BarColumn(_BAR), _ProgressColumn(self), console=console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task(name, total=total)

    def advance(self, count: int, work: float | None = None) -> None:
        """Add `count` to what is done; `work` is what it cost, if pieces differ (see `Pace`)."""
        self._done += count
        self.pace.add(count, work)
        for observer in self._observers:
            observer.progress(self._done)
            # The first call brings the work of an earlier session, which was counted then.
            if self._unit is not None and self._advanced:
                observer.count(self._unit, count)
        self._advanced = True
        if self._bar is not None:
            self._bar.update(self._task, advance=count)
        elif not self._console.quiet and time.monotonic() - self._logged > _LOG_SECONDS:
            self._logged = time.monotonic()
            _say(self._console, f"{self._name}: {self._counted()}")

    def resize(self, total: int, work: float | None = None) -> None:
        """Set the total to what is known now; see `Pace` for `work`."""
        self._total = total
        self.pace.resize(total if work is None else work)
        for observer in self._observers:
            observer.resize(total)
        if self._bar is not None:
            self._bar.update(self._task, total=total)

    def tell(self, what: str) -> None:
        """Show what the stage does now."""
        for observer in self._observers:
            observer.say("progress", what)
        self._now = what
        if self._bar is None:
            _say(self._console, f"{self._name}: {what}")

    def progress(self, width: int) -> str:
        """What the stage does now and how far it is, in so many columns; a longer name is cut."""
        named = f"{self._name}: {self._now}" if self._now else self._name
        counted = f": {self._counted()}" if self._total or self._done else ""
        room = max(_SHORTEST_NAME, width - len(counted))
        return (named if len(named) <= room else f"{named[: room - 1]}…") + counted

    def _counted(self) -> str:
        """How much is done, the rate and the time left."""
        of_total = f" of {self._total:,}" if self._total else ""
        return f"{self._done:,}{of_total}{in_words(self.pace)}"

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()


class _ProgressColumn(ProgressColumn):
    """What a stage does and how far it is, beside its bar."""

    max_refresh = 0.5

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage

    def render(self, task: Task) -> Text:
        """The line, without a break."""
        return Text(visible(self._stage.progress(WIDTH - _BAR - 3)), no_wrap=True)


def in_words(pace: Pace) -> str:
    """The rate and the time left, as the end of a line; empty until they are known."""
    rate, left = pace.rate(), pace.left()
    speed = "" if rate is None else f", {rate:,.0f}/s" if rate >= 1 else f", {60 * rate:,.1f}/min"
    return speed + ("" if left is None else f", about {duration(left)} left")


def _say(console: Console, text: str) -> None:
    """Print a line below a stage."""
    console.print("\n".join(wrapped(text, "    ", "  ")), highlight=False, markup=False, soft_wrap=True)


def _closing(name: str, note: str, seconds: float) -> Text:
    """The line of a stage that has ended: how long it took, its name and what it did."""
    took, said = f"{seconds:7.1f} s  ", f"{name}: {note}" if note else name
    lines = wrapped(visible(hidden(said), "\t"), " " * (4 + len(took)))
    return Text("\n").join([Text.assemble("  ", ("✓", "green"), " ", took, lines[0].lstrip()), *map(Text, lines[1:])])


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.1 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Journal:
    """Reports the stages and keeps their seconds and peak memory for run.json."""

    def __init__(self, console: Console, observers: Sequence[Observer] = ()) -> None:
        self.console, self.observers = console, observers
        self.outcome = ""
        self.steps: dict[str, dict[str, Any]] = {}
        self._memory = PeakMemory()

    def follow(self, run: Run) -> None:
        """Make all observers follow this run."""
        begun = folder.started(run)
        for observer in self.observers:
            observer.follow(begun["run"], run.night, run.storage)

    def count(self, unit: Unit, number: int) -> None:
        """Add a number of texts, pairs, rejected rows or cache hits."""
        for observer in self.observers:
            observer.count(unit, number)

    def slow(self, pieces: Sequence[Slow], new: Sequence[Slow]) -> None:
        """Report the pieces of work that are slow now; `new` are those that were not before."""
        for observer in self.observers:
            observer.slow(pieces, new)
        for piece in new:
            median = duration(piece.median_seconds) if piece.median_seconds >= 1 else "less than 1 s"
            so_far = f"{piece.piece} has taken {duration(piece.seconds)} so far"
            _say(self.console, f"slow: {so_far}, the median of the others is {median}")

    def work(self, work: Work) -> None:
        """Report how the work of a step goes on."""
        for observer in self.observers:
            observer.work(work)

    def lost(self, why: str) -> None:
        """Report that a worker was lost, whose pieces of work go to others."""
        for observer in self.observers:
            observer.lost(why)
        _say(self.console, f"lost: {why}")

    def end(self, state: State, message: str = "") -> None:
        """Report the end of the run."""
        for observer in self.observers:
            observer.end(state, hidden(message))

    @contextmanager
    def stage(
        self, name: str, total: int | None = None, unit: Unit | None = None, pace: Pace | None = None
    ) -> Iterator[Stage]:
        """Run a stage, of `total` units if that is known; its line is printed if it ends without an error."""
        start = time.monotonic()
        self._memory.reset()
        for observer in self.observers:
            observer.stage(name, total)
        stage = Stage(name, total, self, unit, pace)
        try:
            yield stage
        finally:
            stage.close()
        return_freed()
        seconds = time.monotonic() - start
        self.steps[name] = {"seconds": round(seconds, 2), "peak_memory_bytes": self._memory.peak()}
        for observer in self.observers:
            observer.say("done", stage.note, seconds)
        self.console.print(_closing(name, stage.note, seconds), highlight=False, soft_wrap=True)

    @property
    def peak_memory_bytes(self) -> int:
        """The largest peak of all stages so far."""
        return max((step["peak_memory_bytes"] for step in self.steps.values()), default=0)

    def close(self) -> None:
        """Stop measuring memory."""
        self._memory.stop()
