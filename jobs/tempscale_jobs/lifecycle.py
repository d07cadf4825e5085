"""The life of a run, from its lock to run.json, for all commands that write a run folder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from tempscale_jobs.config.command import Command
from tempscale_jobs.errors import Damaged, OtherModel, UsageError
from tempscale_jobs.runs import folder, inventory, lock, mending, places
from tempscale_jobs.runs.folder import Run
from tempscale_jobs.runs.journal import Journal, Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import bfloat16, nodes
from tempscale_jobs.workers.cluster import Cluster, check_reachable, session
from tempscale_jobs.workers.dispatch import ask_for_workers

Config = TypeVar("Config", bound=Command)


class Lifecycle:
    """A run in progress, whose record becomes run.json when the run ends without an error."""

    def __init__(self, config: Command, run: Run, journal: Journal, folder_lock: lock.Lock) -> None:
        self.run, self.lock = run, folder_lock
        self._config, self.journal = config, journal
        self.finished = _record(run, config)
        """The content of run.json if the run was complete before this call; the file itself may be damaged."""
        self.is_mended = False
        """Whether the run was complete, and some of its files are made again."""
        self._record: dict[str, Any] | None = None

    @contextmanager
    def cluster(self, **shared: Storage) -> Iterator[Cluster]:
        """Join or start Ray; check that its machines share the run folder and the folders of the options in `shared`."""
        # Sums in this process must not depend on the number of cores.
        with session(self._config.execution, self.journal) as cluster, threadpool_limits(1):
            folders = {"out": self.run.storage} | shared
            nodes.check_run(self.run, [(f"--{option}", storage) for option, storage in folders.items()])
            cached = getattr(self._config.execution, "cache", None) is not None
            if self._config.runs_models and not cached:  # A cache may leave little to embed.
                ask_for_workers(cluster)
            yield cluster

    def with_precision(self, config: Config, cluster: Cluster) -> Config:
        """The configuration with the precision for the workers' processors, if it is not float32."""
        requested = config.embedding.precision
        if requested == "float32":
            return config
        with self.journal.stage("precision of the model") as stage:
            decision = bfloat16.decide(self.run, cluster, requested)
            stage.note = f"{decision.precision}: {decision.why}"
        embedding = config.embedding.model_copy(update={"precision": decision.precision})
        return config.model_copy(update={"embedding": embedding})

    @cached_property
    def damaged(self) -> set[str]:
        """The files of a finished run that are damaged or missing."""
        return set(inventory.damaged(self.run.storage, self.finished)) if self.finished is not None else set()

    @property
    def damaged_drawings(self) -> set[str]:
        """Damaged or missing report and figures, which follow from the tables; empty if other files are damaged too."""
        drawings = {name for name in self.damaged if name == folder.REPORT or name.startswith("figures/")}
        return set() if self.damaged - drawings - {folder.DONE} else drawings

    def note_restored(self, stage: Stage, names: set[str]) -> None:
        """Note in the inventory that files of a finished run were written again, and write a damaged run.json."""
        storage = self.run.storage
        if names:
            inventory.note(storage, names)
        if folder.DONE in self.damaged:
            storage.write_json(folder.DONE, self.finished)
        stage.note = f"damaged or missing, and made again: {', '.join(sorted(self.damaged))}"

    def reopen_if_damaged(self, stage: Stage) -> bool:
        """Remove the damaged files of a finished run, so that they are made again; return whether any but run.json was."""
        if self.finished is not None and self.damaged - {folder.DONE}:
            stage.note = mending.reopen(self.run.storage, self.finished, sorted(self.damaged))
            self.is_mended = True
            return True
        stage.note = "the run is complete: nothing to do"
        if self.damaged:
            self.note_restored(stage, set())
        return False

    def record(self, **facts: Any) -> dict[str, Any]:
        """Keep and return the content of run.json: a run's common facts with `facts` merged in, and each stage's cost."""
        # A complete run of which something was made again keeps its record.
        self.lock.check()
        if self.is_mended and self.finished is not None:
            return self.keep(self.finished)
        common = folder.facts(self.run, self._config)
        for label, additions in facts.pop("models", {}).items():
            common["models"][label] |= additions
        common["versions"] |= facts.pop("versions", {})
        stages = {"steps": dict(self.journal.steps), "peak_memory_bytes": self.journal.peak_memory_bytes}
        return self.keep(common | facts | stages)

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


def _record(run: Run, config: Command) -> dict[str, Any] | None:
    """The content of run.json of a complete run; a UsageError if the file and its copy are damaged."""
    if not run.complete:
        return None
    try:
        record = inventory.record(run.storage)
    except Damaged as error:
        raise UsageError(f"{error}; start over with --fresh, or choose another --out") from None
    if record is None:  # The run has neither run.json nor a readable inventory.
        folder.remove_results(run.storage, config.command)
    return record


def mended(command: Callable[..., Run]) -> Callable[..., Run]:
    """The same command, which makes again what it finds damaged in its own folder and then goes on."""

    @functools.wraps(command)
    def run(config: Config, journal: Journal, *, fresh: bool = False) -> Run:
        mended_paths = set[str]()
        while True:
            try:
                return command(config, journal, fresh=fresh)
            except Damaged as error:
                if not error.mended:
                    raise
                if error.path in mended_paths:
                    raise Damaged(
                        f"{error}, right after it was made again; check the disk or memory of the machines before you start "
                        "the same command again",
                        error.path,
                    ) from None
                mended_paths.add(error.path)
                with journal.stage("replace damaged files") as stage:
                    stage.note = f"{error}; {error.mended}"
                fresh = False

    return run


class Opening:
    """A locked folder, in which a run is about to begin or to go on."""

    def __init__(self, config: Command, journal: Journal, folder_lock: lock.Lock, fresh: bool) -> None:
        self._config, self._journal, self._lock, self._fresh = config, journal, folder_lock, fresh

    @property
    def will_read(self) -> bool:
        """Whether the run will read its inputs."""
        # A mistake in their first rows is answered before Ray starts, and before a fresh run removes the earlier one.
        return self._fresh or not folder.has_read(Storage(self._config.out))

    @contextmanager
    def run(self) -> Iterator[Lifecycle]:
        """Open the run, and complete it when the block ends without an error."""
        config = self._config
        if self._fresh:
            check_reachable(config.execution)
        run = folder.begin(config, fresh=self._fresh)
        self._journal.follow(run)
        life = Lifecycle(config, run, self._journal, self._lock)
        try:
            yield life
            life.finish()
        except OtherModel:
            folder.check_models(run)
            raise
        except Damaged as error:  # Mend it here, while the folder is locked.
            error.mended = mending.mend(run.storage, config.command, error)
            raise


@contextmanager
def locked(config: Command, journal: Journal, *, fresh: bool = False) -> Iterator[Opening]:
    """Lock the folder of a run; nothing in it changes before `Opening.run`."""

    def unlocked() -> None:
        with journal.stage("lock the folder") as stage:
            stage.note = "the storage has no locks: make sure that no other run writes there"

    places.check(config)
    with lock.locked(Storage(config.out), lambda: journal.stage("check for another run"), unlocked) as folder_lock:
        yield Opening(config, journal, folder_lock, fresh)
