"""The life of a run, from its lock to run.json; all commands that write a run folder use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import threadpool_limits

from tempscale_jobs.config.command import Command
from tempscale_jobs.runs import folder, lock
from tempscale_jobs.runs.folder import Run
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import engine, nodes
from tempscale_jobs.workers.engine import Cluster


class Lifecycle:
    """A run in progress. The record that it keeps becomes run.json when the run ends without an error."""

    def __init__(self, config: Command, run: Run, journal: Journal) -> None:
        self.run = run
        self._config, self._journal = config, journal
        self._record: dict[str, Any] | None = None

    @contextmanager
    def cluster(self, **shared: Storage) -> Iterator[Cluster]:
        """Join or start Ray; check that its machines share the run folder and the folders of the options in `shared`."""
        # Numbers merged in this process must not depend on the number of its cores.
        with engine.session(self._config.execution) as cluster, threadpool_limits(1):
            folders = {"out": self.run.storage} | shared
            nodes.check_run(self.run, [(f"--{option}", storage) for option, storage in folders.items()])
            yield cluster

    def record(self, **facts: Any) -> dict[str, Any]:
        """Keep and return the content of run.json: the common facts of a run, `facts`, and each stage's seconds and memory.

        `models` and `versions` in `facts` are merged into the common ones.
        """
        known = folder.facts(self.run, self._config)
        for label, more in facts.pop("models", {}).items():
            known["models"][label] |= more
        known["versions"] |= facts.pop("versions", {})
        stages = {"steps": dict(self._journal.steps), "peak_memory_bytes": self._journal.peak_memory_bytes}
        return self.keep(known | facts | stages)

    def keep(self, record: dict[str, Any]) -> dict[str, Any]:
        """Keep and return a record as the content of run.json."""
        self._record = record
        return record

    def finish(self) -> None:
        """Write run.json, if a record was kept."""
        if self._record is not None:
            folder.complete(self.run, self._record)


@contextmanager
def running(
    config: Command, journal: Journal, *, fresh: bool = False, check: Callable[[], None] = lambda: None
) -> Iterator[Lifecycle]:
    """Lock the folder, open the run in it, and complete the run when the block ends without an error.

    `check` raises if the inputs cannot be used; it is called before anything in the folder changes.

    Raises:
        UsageError: another run has the lock; the folder, the models or the inputs cannot be used.
        IncompleteRun: the run stopped before its end; the same call resumes it.
    """
    with lock.locked(Storage(config.out), lambda: journal.stage("look whether another run lives")):
        check()
        if fresh:
            engine.check_reachable(config.execution)
        run = folder.begin(config, fresh=fresh)
        journal.follow(run)
        life = Lifecycle(config, run, journal)
        yield life
        life.finish()
