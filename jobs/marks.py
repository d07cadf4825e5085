"""Which text kills the process that embeds it: a mark is left before the work, and whoever finds one learns from it.

A shard is marked as a whole. A worker that finds such a mark knows that another died there, and marks each micro-batch
before it runs. A second death on the same micro-batch halves it, and so on down to one text, which is left out. A death
that had another cause, a node that was taken away or an impatient user, costs no more than finer marks.
"""

from __future__ import annotations

from typing import Any

from jobs.errors import IncompleteRun
from jobs.storage import Storage

MARKS = "partials/marks"
"""Where the marks of a run are, by model."""
_MOST_ELSEWHERE = 6
"""Deaths outside of micro-batches after which a shard is given up for this session."""
_MOST = 100
"""All deaths after which it is. A text that kills among a hundred takes eight, each as long as a model takes to load."""
DEADLY = "its process died each time it was embedded"
"""Why such a text is not analysed."""


class Marks:
    """The marks of one shard. `begin` before the work, `before` each micro-batch, `after` it, `done` at its end."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name, self._fine = storage, name, False
        self._known: dict[str, Any] = {}

    def begin(self, batches: list[list[int]]) -> list[list[int]]:
        """The micro-batches to run: `batches`, without what is known to kill, in halves where one of them does.

        Attributes set: `deadly`, sequences that are left out; `halved`, whether some micro-batch is not as it was.
        """
        known = _read(self._storage, self._name)
        found = known is not None
        known = known or {"doing": None, "last": None, "batches": None, "deadly": [], "elsewhere": 0, "deaths": 0}
        doing = known["doing"]
        known["deaths"] += found
        if known["deaths"] > _MOST:
            raise IncompleteRun(
                f"the processes that work on {self._name} died {_MOST} times, for ever other texts; look for what ends "
                "them, such as memory, and start the same command again to go on"
            )
        if found and not isinstance(doing, list):
            known["elsewhere"] += 1
            if known["elsewhere"] > _MOST_ELSEWHERE:
                raise IncompleteRun(
                    f"the process that works on {self._name} died {known['elsewhere']} times outside of the model; "
                    "look for what ends it, such as memory, and start the same command again"
                )
        elif isinstance(doing, list):
            # Of a batch that was halved because it kills, one half is known to: no need to see it do so twice.
            suspected = len(doing) > 1 and doing not in batches
            if doing != known["last"] and not suspected:
                known["last"] = doing
            elif len(doing) > 1:
                known["batches"] = _halved(known["batches"] or batches, doing)
                known["last"] = None
            else:
                known["deadly"] += doing
                known["last"] = None
        self._fine = found
        self._known = known | {"doing": None if found else "shard"}
        self._write()
        self.deadly: list[int] = known["deadly"]
        self.halved = known["batches"] is not None
        remaining = [[i for i in batch if i not in self.deadly] for batch in known["batches"] or batches]
        return [batch for batch in remaining if batch]

    def before(self, batch: list[int]) -> None:
        """Mark what is about to run, where a process has died in this shard before."""
        if self._fine:
            self._known["doing"] = batch
            self._write()

    def after(self) -> None:
        """No micro-batch is running."""
        if self._fine:
            self._known["doing"] = None
            self._write()

    def done(self) -> None:
        """The shard is embedded."""
        self._storage.remove(self._name)

    def _write(self) -> None:
        # It must outlive this process, not the machine: the machine's end would be no text's doing.
        self._storage.write_json(self._name, self._known, durable=False)


def forget(storage: Storage, folder: str) -> None:
    """Take no mark of an earlier session for a death: its workers were ended with it. What was learned is kept."""
    for name in storage.list(folder):
        known = _read(storage, name)
        if known is None or (known["batches"] is None and not known["deadly"] and known["last"] is None):
            storage.remove(name)
        else:
            storage.write_json(name, known | {"doing": None, "elsewhere": 0, "deaths": 0}, durable=False)


def _read(storage: Storage, name: str) -> dict[str, Any] | None:
    """A mark; None where there is none, or none that outlived the fall of the machine."""
    if not storage.exists(name):
        return None
    try:
        known = storage.read_json(name)
    except ValueError:
        return None
    return dict(known) if isinstance(known, dict) and "deaths" in known else None


def _halved(batches: list[list[int]], deadly: list[int]) -> list[list[int]]:
    """The batches with the one that killed, which may be a part of one of them, in halves."""
    found: list[list[int]] = []
    middle = (len(deadly) + 1) // 2
    for batch in batches:
        if set(deadly) <= set(batch):
            rest = [i for i in batch if i not in deadly]
            found += [*([rest] if rest else []), deadly[:middle], deadly[middle:]]
        else:
            found.append(batch)
    return found
