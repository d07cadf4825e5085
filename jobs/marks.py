"""Which text kills the process that embeds it: a mark is left before the work, and whoever finds one learns from it.

A shard is marked as a whole. A worker that finds such a mark knows that another died there, and marks each micro-batch
before it runs. A second death on the same micro-batch halves it, and so on down to one text, which is left out. A death
that had another cause, a node that was taken away or an impatient user, costs no more than finer marks.
"""

from __future__ import annotations

from typing import Any

from jobs.storage import Storage

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
        found = self._storage.exists(self._name)
        known = (
            self._storage.read_json(self._name) if found else {"doing": None, "last": None, "batches": None, "deadly": []}
        )
        doing = known["doing"]
        if isinstance(doing, list):
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
        known = storage.read_json(name)
        if known["batches"] is None and not known["deadly"] and known["last"] is None:
            storage.remove(name)
        else:
            storage.write_json(name, known | {"doing": None})


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
