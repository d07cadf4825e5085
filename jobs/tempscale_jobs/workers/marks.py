"""Find a text that kills the process that embeds it, by marks that are written before the work.

First a shard is marked as a whole. A worker that finds such a mark knows that another died in this shard, and marks each
micro-batch before it runs. A second death in the same micro-batch halves it, and so on down to one text, which is skipped.
A death with another cause, such as a removed node or an impatient user, only makes the marks finer.
"""

from __future__ import annotations

from typing import Any

from tempscale_jobs.errors import Damaged, IncompleteRun
from tempscale_jobs.runs.storage import Storage

MARKS = "partials/marks"
"""The folder of a run's marks, by model."""
WRITTEN = "written"
"""The mark of a shard that is written while the model works on another one."""
_MOST_ELSEWHERE = 6
"""After so many deaths outside of micro-batches a shard is given up for this session."""
_MOST = 100
"""After so many deaths in all a shard is given up. One deadly text among a hundred is found after eight model loads."""
DEADLY = "its process died each time it was embedded"
"""The reason why a deadly text is rejected."""


class Marks:
    """The marks of one shard: call `begin` before the work, `before` and `after` each micro-batch, `done` at the end."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name, self.fine = storage, name, False
        self._earlier = _read(storage, name)
        """The marks of a process that died."""
        self.known: dict[str, Any] = {}

    def begin(self, batches: list[list[int]]) -> list[list[int]]:
        """Mark the shard; return the micro-batches to run, without deadly sequences and with killing batches in halves."""
        # Sets `deadly` (sequences to skip), `halved` (whether a micro-batch was halved) and `fine` (whether each is marked:
        # a GPU must then have ended one before the next is marked).
        marks, died_before = self._earlier, self._earlier is not None
        marks = marks or {"doing": None, "last": None, "batches": None, "deadly": [], "elsewhere": 0, "deaths": 0}
        doing = marks["doing"]
        marks["deaths"] += died_before
        if marks["deaths"] > _MOST:
            raise IncompleteRun(
                f"the processes that work on {self._name} died {_MOST} times, at other texts each time; look for what "
                "ends them, such as a lack of memory, and start the same command again to go on"
            )
        if died_before and doing != WRITTEN and not isinstance(doing, list):
            marks["elsewhere"] += 1
            if marks["elsewhere"] > _MOST_ELSEWHERE:
                raise IncompleteRun(
                    f"the process that works on {self._name} died {marks['elsewhere']} times outside of the model; "
                    "look for what ends it, such as a lack of memory, and start the same command again"
                )
        elif isinstance(doing, list):
            # Half of a batch that killed twice need not kill twice itself.
            suspected = len(doing) > 1 and doing not in batches
            if doing != marks["last"] and not suspected:
                marks["last"] = doing
            elif len(doing) > 1:
                marks["batches"] = _halved(marks["batches"] or batches, doing)
                marks["last"] = None
            else:
                marks["deadly"] += doing
                marks["last"] = None
        self.fine = died_before
        self.known = marks | {"doing": None if died_before else "shard"}
        self._write()
        self.deadly: list[int] = marks["deadly"]
        self.halved = marks["batches"] is not None
        remaining = [[i for i in batch if i not in self.deadly] for batch in marks["batches"] or batches]
        return [batch for batch in remaining if batch]

    def before(self, batch: list[int]) -> None:
        """Mark a micro-batch that is about to run, if a process died in this shard before."""
        if self.fine:
            self.known["doing"] = batch
            self._write()

    def after(self) -> None:
        """Remove the mark of the micro-batch that has run."""
        if self.fine:
            self.known["doing"] = None
            self._write()

    def written(self) -> None:
        """Mark that the model has finished the shard, so that a death during the next one is not its fault."""
        self.known["doing"] = WRITTEN
        self._write()

    def done(self) -> None:
        """Remove the marks of the shard, because it is embedded."""
        self._storage.remove(self._name)

    def _write(self) -> None:
        # Not durable: the mark must survive this process, but no text crashes the machine.
        self._storage.write_json(self._name, self.known, durable=False)


def forget(storage: Storage, folder: str) -> None:
    """Reset the marks of an earlier session, which ended its workers; keep halved batches and deadly texts."""
    for name in storage.list(folder):
        marks = _read(storage, name)
        if marks is None or (marks["batches"] is None and not marks["deadly"] and marks["last"] is None):
            storage.remove(name)
        else:
            storage.write_json(name, marks | {"doing": None, "elsewhere": 0, "deaths": 0}, durable=False)


def _read(storage: Storage, name: str) -> dict[str, Any] | None:
    """A shard's marks; None if there are none or the machine's crash damaged them."""
    if not storage.exists(name):
        return None
    try:
        marks = storage.read_json(name)
    except Damaged:
        return None
    return dict(marks) if isinstance(marks, dict) and "deaths" in marks else None


def _halved(batches: list[list[int]], deadly: list[int]) -> list[list[int]]:
    """The batches with `deadly`, a batch or a part of one, in halves."""
    halved: list[list[int]] = []
    middle = (len(deadly) + 1) // 2
    for batch in batches:
        if set(deadly) <= set(batch):
            rest = [i for i in batch if i not in deadly]
            halved += [*([rest] if rest else []), deadly[:middle], deadly[middle:]]
        else:
            halved.append(batch)
    return halved
