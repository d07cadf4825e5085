"""The life of a run, from its lock to run.json; all commands that write a run folder use it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from tempscale_jobs.config.command import Command
from tempscale_jobs.errors import Damaged, OtherModel, UsageError
from tempscale_jobs.runs import folder, inventory, lock, mending, places
from tempscale_jobs.runs.folder import Run
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import bfloat16, nodes
from tempscale_jobs.workers.cluster import Cluster, check_reachable, session, session_ahead

Config = TypeVar("Config", bound=Command)


class Lifecycle:
    """A run in progress. The record that it keeps becomes run.json when the run ends without an error."""

    def __init__(self, config: Command, run: Run, journal: Journal, held: lock.Lock) -> None:
        self.run, self.lock = run, held
        self._config, self._journal = config, journal
        self._earlier = _earlier(run, config)
        self.is_mended = False
        """Whether the run was complete, and makes something of it again."""
        self._record: dict[str, Any] | None = None

    @contextmanager
    def cluster_ahead(self) -> Iterator[None]:
        """Start Ray while the block reads the corpus; `cluster` in the block waits for it."""
        with session_ahead(self._config.execution):
            yield

    @contextmanager
    def cluster(self, **shared: Storage) -> Iterator[Cluster]:
        """Join or start Ray; check that its machines share the run folder and the folders of the options in `shared`."""
        # Numbers merged in this process must not depend on the number of its cores.
        with session(self._config.execution, self._journal) as cluster, threadpool_limits(1):
            folders = {"out": self.run.storage} | shared
            nodes.check_run(self.run, [(f"--{option}", storage) for option, storage in folders.items()])
            yield cluster

    def settled(self, config: Config, cluster: Cluster) -> Config:
        """The configuration with the precision that the workers' processors decide; as it is where float32 is asked for."""
        asked = config.embedding.precision
        if asked == "float32":
            return config
        with self._journal.stage("precision of the model") as stage:
            found = bfloat16.settle(self.run, cluster, asked)
            stage.note = f"{found.precision}: {found.why}"
        embedding = config.embedding.model_copy(update={"precision": found.precision})
        return config.model_copy(update={"embedding": embedding})

    @property
    def earlier(self) -> dict[str, Any] | None:
        """The content of run.json if the run ended before this call; the file itself may be damaged."""
        return self._earlier

    def done(
        self, stage: str, check_unchanged: Callable[[dict[str, Any]], None],
        write_report: Callable[[dict[str, Any]], None] | None = None,
    ) -> dict[str, Any] | None:  # fmt: skip
        """The content of run.json if the run is complete, after `check_unchanged` has compared its sources with it.

        None also where a file of the complete run is damaged or missing: what the run then does makes it again. A report
        alone is written from the tables by `write_report`.
        """
        if self._earlier is None:
            return None
        storage = self.run.storage
        with self._journal.stage(stage) as running:
            check_unchanged(self._earlier)
            damaged = set(inventory.damaged(storage, self._earlier))
            if not damaged:
                running.note = "the run is complete: nothing to do"
                return self._earlier
            drawn = {name for name in damaged if name == folder.REPORT or name.startswith("figures/")}
            if damaged - drawn - {folder.DONE} or (drawn and write_report is None):
                running.note = mending.reopen(storage, self._earlier, sorted(damaged))
                self.is_mended = True
                return None
            if drawn and write_report is not None:
                write_report(self._earlier)
                inventory.note(storage, drawn)
            if folder.DONE in damaged:
                storage.write_json(folder.DONE, self._earlier)
            running.note = f"damaged or missing, and made again: {', '.join(sorted(damaged))}"
        return self._earlier

    def record(self, **facts: Any) -> dict[str, Any]:
        """Keep and return the content of run.json: the common facts of a run, `facts`, and each stage's seconds and memory.

        `models` and `versions` in `facts` are merged into the common ones. A complete run of which something was made again
        keeps its record.
        """
        self.lock.check()
        if self.is_mended and self._earlier is not None:
            return self.keep(self._earlier)
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
            self.lock.check()
            inventory.write(self.run.storage, self._record)
            folder.complete(self.run, self._record)


def _earlier(run: Run, config: Command) -> dict[str, Any] | None:
    """The content of run.json of a complete run.

    Raises:
        UsageError: it is damaged, and so is its copy.
    """
    if not run.complete:
        return None
    try:
        found = inventory.record(run.storage)
    except Damaged as error:
        raise UsageError(f"{error}; start over with --fresh, or choose another --out") from None
    if found is None:  # What the inventory of a run without run.json says cannot be read.
        folder.remove_results(run.storage, config.command)
    return found


def mended(command: Callable[..., Run]) -> Callable[..., Run]:
    """The same command, which makes again what it finds damaged in its own folder and then goes on.

    Raises:
        Damaged: a file is damaged that the run did not make, or one is damaged again after it was made again.
    """

    @functools.wraps(command)
    def run(config: Config, journal: Journal, *, fresh: bool = False) -> Run:
        mended = set[str]()
        while True:
            try:
                return command(config, journal, fresh=fresh)
            except Damaged as error:
                if not error.mended:
                    raise
                if error.path in mended:
                    raise Damaged(
                        f"{error}, right after it was made again; check the disk or memory of the machines before you start "
                        "the same command again",
                        error.path,
                    ) from None
                mended.add(error.path)
                with journal.stage("make again what is damaged") as stage:
                    stage.note = f"{error}; {error.mended}"
                fresh = False

    return run


def _nothing() -> None:
    """There is nothing to check."""


@contextmanager
def running(
    config: Command, journal: Journal, *, fresh: bool = False, check: Callable[[], None] = _nothing,
    check_inputs: Callable[[], None] = _nothing,
) -> Iterator[Lifecycle]:  # fmt: skip
    """Lock the folder, open the run in it, and complete the run when the block ends without an error.

    `check` raises if something else that the run needs cannot be used; it is called before anything in the folder changes.
    `check_inputs` raises if the first rows of the inputs cannot be used, so that a mistake in them is answered before Ray
    starts, and does not delete the run that a fresh one replaces; it is not called once the run has read them.

    Raises:
        UsageError: another run has the lock; the folder, its place, the models or the inputs cannot be used.
        IncompleteRun: the run stopped before its end; the same call resumes it.
    """

    def unlocked() -> None:
        with journal.stage("lock the folder") as stage:
            stage.note = "its storage has no locks: see that no other run writes there"

    places.check(config)
    with lock.locked(Storage(config.out), lambda: journal.stage("look whether another run lives"), unlocked) as held:
        check()
        if fresh or not folder.has_read(Storage(config.out)):
            check_inputs()
        if fresh:
            check_reachable(config.execution)
        run = folder.begin(config, fresh=fresh)
        journal.follow(run)
        life = Lifecycle(config, run, journal, held)
        try:
            yield life
        except OtherModel:
            folder.check_models(run)
            raise
        except Damaged as error:  # While the folder is still locked.
            error.mended = mending.mend(run.storage, config.command, error)
            raise
        life.finish()
