"""Pieces of work that take ten times as long as others of their step, such as one on a slow node or of a huge file.

The driver says here which pieces it hands out and which have come back. A thread looks every ten seconds at those that are
still in flight, so that the loops that wait for pieces need not wake up for it.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

from tempscale_jobs.runs.observing import Slow

FACTOR = 10
"""A piece is slow when it takes longer than so many times the median of the finished ones."""
LEAST_FINISHED = 5
"""There is no median of fewer."""
LEAST_SECONDS = 30.0
"""No piece is slow that takes less."""
LOOK_SECONDS = 10.0
_JOIN_SECONDS = 10.0

Report = Callable[[list[Slow], list[Slow]], None]
"""Is called with all pieces that are slow now, the slowest first, and with those of them that are new."""


class Kind(NamedTuple):
    """What the pieces of a step are called, and which of them are compared."""

    name: str | Callable[[Any], str] = "piece"
    """A noun, which the number or numbers of a piece follow (shard 7; tile 3, 4), or a function that names a piece.

    The function is called in another thread, for slow pieces only.
    """
    cost: Callable[[Any], float] | None = None
    """About how much work a piece is, in any unit, where pieces are known to differ."""
    alike: Callable[[Any], Hashable] | None = None
    """Pieces are compared with those of which this is the same; without it all pieces of the step are."""

    def named(self, item: Any) -> str:
        """The name of a piece."""
        if callable(self.name):
            return self.name(item)
        return f"{self.name} {', '.join(map(str, item)) if isinstance(item, tuple) else item}"

    def of(self, items: Sequence[Any]) -> Kind:
        """The same for the numbers of these items."""
        cost, alike = self.cost, self.alike
        return Kind(
            lambda k: self.named(items[k]),
            None if cost is None else lambda k: cost(items[k]),
            None if alike is None else lambda k: alike(items[k]),
        )


PIECE, TILE = Kind(), Kind("tile")


@dataclass
class _Piece:
    item: Any
    lane: Hashable
    given: float
    since: float | None
    """When it began; None while it waits for those ahead of it."""
    name: str | None = None
    """Its name, once it is slow."""


class Pieces:
    """The pieces of one step: those in flight, and the seconds of those that have finished."""

    def __init__(self, watch: Watch, kind: Kind, at_once: int, finished: Callable[[list[Any]], list[Any]]) -> None:
        self._watch, self._kind, self._at_once, self._finished = watch, kind, at_once, finished
        self._flying: dict[Any, _Piece] = {}
        self._lanes: dict[Hashable, dict[Any, _Piece]] = {}
        self._rates: dict[Hashable, array[float]] = {}
        """The seconds of finished pieces for their cost, sorted."""

    def __enter__(self) -> Pieces:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """The step has ended, with all of its pieces."""
        self._watch.close(self)

    def begin(self, key: Any, item: Any, lane: Hashable = None) -> None:
        """A piece is handed out, to a worker where `lane` names it: a lane runs its first pieces, and others wait behind."""
        with self._watch.lock:
            own, now = self._lanes.setdefault(lane, {}), self._watch.clock()
            own[key] = self._flying[key] = _Piece(item, lane, now, now if len(own) < self._at_once else None)

    def end(self, key: Any, done: bool = True) -> None:
        """A piece has come back; one that is not `done` has failed and says nothing of the others."""
        with self._watch.lock:
            named = self._end(key, done)
        if named:
            self._watch.report()

    def slow(self) -> tuple[list[Slow], list[Slow]]:
        """The slow pieces, and those of them that were not slow before."""
        with self._watch.lock:
            keys = [key for key, piece in self._flying.items() if piece.since is not None]
        # The driver may have been busy with something else when these came back.
        for key in self._finished(keys) if keys else []:
            with self._watch.lock:
                self._end(key, True)
        with self._watch.lock:
            found = [(piece, usual) for piece in self._flying.values() if (usual := self._exceeded(piece)) is not None]
        every, new = list[Slow](), list[Slow]()
        for piece, usual in found:
            first = piece.name is None
            piece.name = self._kind.named(piece.item) if piece.name is None else piece.name
            slow = Slow(piece.name, self._seconds(piece), usual)
            every.append(slow)
            new += [slow] * first
        return every, new

    def _start(self, lane: Hashable) -> None:
        for piece in islice(self._lanes.get(lane, {}).values(), self._at_once):
            if piece.since is None:
                piece.since = self._watch.clock()

    def _end(self, key: Any, done: bool) -> bool:
        """Take a piece out of its lane, in which the next one begins; return whether it was slow."""
        piece = self._flying.pop(key, None)
        if piece is None:
            return False
        if done:
            # One that overtook others began at some time since it was given: its seconds are rather too many.
            begun = piece.given if piece.since is None else piece.since
            insort(self._alike(piece), (self._watch.clock() - begun) / self._cost(piece))
        own = self._lanes[piece.lane]
        del own[key]
        self._start(piece.lane)
        if not own:
            del self._lanes[piece.lane]
        return piece.name is not None

    def _exceeded(self, piece: _Piece) -> float | None:
        """The median that a slow piece exceeds; None of a piece that is not slow."""
        rates = self._alike(piece)
        if piece.since is None or len(rates) < LEAST_FINISHED:
            return None
        usual, seconds = median(rates) * self._cost(piece), self._seconds(piece)
        return usual if piece.name is not None or seconds > max(LEAST_SECONDS, FACTOR * usual) else None

    def _alike(self, piece: _Piece) -> array[float]:
        return self._rates.setdefault(None if self._kind.alike is None else self._kind.alike(piece.item), array("d"))

    def _cost(self, piece: _Piece) -> float:
        return 1.0 if self._kind.cost is None else max(self._kind.cost(piece.item), 1e-12)

    def _seconds(self, piece: _Piece) -> float:
        return 0.0 if piece.since is None else self._watch.clock() - piece.since


class Watch:
    """The steps in progress of one session on Ray; it stays in the process that made it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.lock = clock, threading.Lock()
        self._steps: list[Pieces] = []
        self.tell: Report | None = None
        self._reporting = threading.RLock()
        self._reported = False
        """Whether the last report had a piece."""

    def step(
        self, kind: Kind, at_once: int = 1, finished: Callable[[list[Any]], list[Any]] | None = None
    ) -> Pieces:  # fmt: skip
        """A step whose lanes run `at_once` pieces each; `finished` says which keys of pieces in flight have come back.

        Without it the keys are references of Ray.
        """
        pieces = Pieces(self, kind, at_once, _come_back if finished is None else finished)
        with self.lock:
            self._steps.append(pieces)
        return pieces

    def close(self, pieces: Pieces) -> None:
        """A step has ended, with all of its pieces."""
        with self.lock:
            there = pieces in self._steps
            self._steps = [step for step in self._steps if step is not pieces]
        if there and self._reported:
            self.report()

    @contextmanager
    def reported(self, report: Report) -> Iterator[None]:
        """Look at all pieces in flight every ten seconds, and report the slow ones."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(LOOK_SECONDS):
                self.report()

        self.tell, thread = report, threading.Thread(target=look, name="slow", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_JOIN_SECONDS)  # Before Ray itself ends, which it asks.
            with self.lock:
                self._steps = []
            self.report()
            self.tell = None

    def report(self) -> None:
        """Report the slow pieces, if there are any or were any; an error in that does not end the run."""
        with self._reporting, suppress(Exception):
            if self.tell is None:
                return
            with self.lock:
                steps = list(self._steps)
            found = [step.slow() for step in steps]
            every, new = ([slow for own in found for slow in own[k]] for k in (0, 1))
            if every or self._reported:
                self._reported = bool(every)
                self.tell(sorted(every, key=lambda slow: -slow.seconds), new)


def _come_back(references: Sequence[Any]) -> list[Any]:
    """The references of Ray whose results are there."""
    import ray

    done, _ = ray.wait(list(references), num_returns=len(references), timeout=0, fetch_local=False)
    return list(done)
