"""How fast a stage goes and how long the rest of it takes."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

WINDOW_SECONDS = 30.0
"""The rate is that of the last half minute; before that, the time left is what was expected."""


class _Mark(NamedTuple):
    at: float
    shown: float
    work: float


class Pace:
    """The pace of a stage, measured each time that a piece is done.

    Pieces of one stage differ: `work` is what a piece costs in any unit, such as tokens, and the time left is that of the
    work left at the rate of the last half minute. The rate begins with the first piece that this session finishes, so that
    neither the start of workers nor the compiling of functions counts, nor what an earlier session did.
    """

    def __init__(self, work: float | None = None, expected: float | None = None) -> None:
        self._total, self._expected, self._begun = work, expected, time.monotonic()
        self._origin: _Mark | None = None
        self._marks: deque[_Mark] = deque()
        self._settled = 0.0
        """The seconds that the marks must span before there is a rate."""

    def add(self, shown: float, work: float | None = None) -> None:
        """Count what was done: the number that is shown, and its work, which is the same number unless given.

        The first call says what was done before.
        """
        now, work = time.monotonic(), shown if work is None else work
        if self._origin is None:
            self._origin = _Mark(now, shown, work)
            if self._expected is not None and self._total:
                self._expected *= max(0.0, 1 - work / self._total)
            return
        last = self._marks[-1] if self._marks else self._origin
        if not self._marks:
            self._settled = min(now - self._origin.at, WINDOW_SECONDS)
        self._marks.append(_Mark(now, last.shown + shown, last.work + work))
        # Keep one mark that is older than the window, from which it is measured.
        while len(self._marks) > 2 and self._marks[1].at <= now - WINDOW_SECONDS:
            self._marks.popleft()

    def resize(self, work: float) -> None:
        """Set the total work to what is known now."""
        self._total = work

    def rate(self) -> float | None:
        """What is shown, per second, over the last half minute; None until as long has passed as the first piece took.

        Before that the pieces of all workers, which began together, end together: a rate between these ends is none.
        """
        return self._per_second("shown")

    def left(self) -> float | None:
        """Seconds left; None where that is not known, as when more have gone by than were expected."""
        seconds = self._seconds_left()
        return seconds if seconds is None or seconds > 0 else None

    def _seconds_left(self) -> float | None:
        now, rate = time.monotonic(), self._per_second("work")
        elapsed = now - self._begun
        if self._expected is not None and (
            rate is None or (elapsed < min(WINDOW_SECONDS, self._expected) and not self._half_done())
        ):
            return self._expected - elapsed
        if self._total is None or rate is None:
            return None
        # Since the last piece was done, the next one goes on.
        return (self._total - self._marks[-1].work) / rate - (now - self._marks[-1].at)

    def _half_done(self) -> bool:
        """Whether half of the work is done, which tells more than what was expected."""
        return bool(self._total and self._marks and self._marks[-1].work >= self._total / 2)

    def _per_second(self, name: str) -> float | None:
        if len(self._marks) < 2:
            return None
        first, last = self._marks[0], self._marks[-1]
        amount, seconds = float(getattr(last, name) - getattr(first, name)), last.at - first.at
        return amount / seconds if amount > 0 and seconds > 0 and seconds >= self._settled else None
