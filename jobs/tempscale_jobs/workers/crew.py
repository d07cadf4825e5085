"""A crew of model actors for all steps that run the model.

Work begins with the first actor that has started; the others join as they start. A cluster may have no place for them yet,
or be smaller than Ray says, and what is given to an actor without a place would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.runs.folder import GIVEN
from tempscale_jobs.workers.actor import (
    RETRIES,
    TURNS,
    Encoding,
    ModelActor,
    PlainActor,
    Process,
    arguments,
    ended,
    prepared,
)
from tempscale_jobs.workers.engine import (
    NO_PROGRESS,
    NO_PROGRESS_SECONDS,
    Cluster,
    Item,
    await_one,
    failure,
    raise_changed,
    readable_failures,
    results,
)
from tempscale_jobs.workers.slow import PIECE, TILE, Kind, Pieces

_PATIENCE_SECONDS = 60
"""So long work may take before an actor that has none makes room for one that may have lost its place."""
_UNREACHED = 2
"""How often a piece of work is given out again after Ray could not reach its worker in any of its retries."""
_NAME_SECONDS = 5
"""So long the name of a piece may take."""

if TYPE_CHECKING:
    import ray.data

    from tempscale_jobs.runs.folder import Model, Run


class Crew:
    """Model actors that live through several steps, so that each loads the model only once."""

    def __init__(self, run: Run, cluster: Cluster, model: Model, encoding: Encoding) -> None:
        self._run, self._cluster, self._model, self._encoding = run, cluster, model, encoding
        self.actors: list[Any] = []
        self.beginning: dict[Any, Any] = {}
        """Actors that have not started yet, by the reference that tells when they have."""
        self._stream: Generator[Any] | None = None
        self._unloaded = False

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:
            self._stream.close()  # Before Ray itself ends, without which Ray Data cannot.
        self.dismiss()

    def dismiss(self) -> None:
        """End the actors; the next work starts others."""
        import ray

        for worker in [*self.actors, *self.beginning.values()]:
            ray.kill(worker)
        self.actors, self.beginning = [], {}

    def stream(
        self, process: Process, work: dict[int, pa.Table], prepare: Callable[..., pa.Table], arguments: dict[str, Any],
        what: str = "shard",
    ) -> Iterator[dict[str, Any]]:  # fmt: skip
        """Stream pieces of work through tasks of Ray Data, which `prepare` them, to the actors; yield each report.

        Prepared pieces go from the tasks to the actors and not through this process. A piece whose process dies is given to
        the restarted actor again, as often as that happens: marks must tell what ends it. `what` is a piece's noun.
        """
        if not work:
            return
        self._begin(min(self._cluster.workers, len(work)))  # While these load the model, the tasks begin.
        blocks = self._stream = _blocks(prepared(work, prepare, arguments, self._cluster))
        self.hire(min(self._cluster.workers, len(work)))
        with readable_failures():
            submit = lambda worker, block: _patient(worker.take, -1).remote(process, block)  # noqa: E731
            for reports in self.each(submit, blocks, Kind(lambda block: _named(what, block))):
                for report in reports:
                    if report.get("failure"):
                        raise ended(report) from RuntimeError(report["traceback"])
                    yield report

    def each(self, submit: Callable[[Any, Any], Any], items: Iterable[Any], kind: Kind = PIECE) -> Iterator[Any]:
        """Give the items to the actors as these become free, a second one to each ahead; yield results as they come."""
        with self._cluster.watch.step(kind) as pieces:
            yield from self._each_of(submit, items, pieces)

    def _each_of(self, submit: Callable[[Any, Any], Any], items: Iterable[Any], pieces: Pieces) -> Iterator[Any]:
        import ray
        import ray.exceptions

        idle, flying = [*self.actors, *self.actors], dict[Any, tuple[Any, Any, int]]()
        again: list[tuple[Any, int]] = []
        """Items whose worker could not be reached, and how often that has happened to each."""

        def give(item: Any, unreached: int = 0) -> None:
            worker = idle.pop(0)
            reference = submit(worker, item)
            flying[reference] = worker, item, unreached
            pieces.begin(reference, item, worker)

        def landed() -> Iterator[Any]:
            done = self._next(flying)
            if done in self.beginning:
                idle.extend(2 * [self._join(done)])
                return
            worker, item, unreached = flying.pop(done)
            try:
                found = ray.get(done)
            except ray.exceptions.ActorUnavailableError:
                # Ray counts as a retry each attempt to reach a worker whose node it does not know to be lost yet.
                if unreached == _UNREACHED:
                    raise
                pieces.end(done, done=False)
                again.append((item, unreached + 1))
                idle[:] = [other for other in idle if other is not worker]
                self._await(worker)
                return
            idle.append(worker)
            pieces.end(done)
            yield found

        for item in items:
            while not idle:
                yield from landed()
            give(item)
        while flying or again:
            if again and idle:
                give(*again.pop())
                continue
            while not again and not self._is_next(flying) and self._make_room([worker for worker, *_ in flying.values()]):
                pass
            yield from landed()

    def _next(self, flying: Iterable[Any]) -> Any:
        """What is done next: work, or the start of an actor."""
        import ray

        done, _ = ray.wait([*flying, *self.beginning], num_returns=1, timeout=NO_PROGRESS_SECONDS)
        if not done:
            raise IncompleteRun(NO_PROGRESS)
        return done[0]

    def _is_next(self, flying: Iterable[Any]) -> bool:
        """Whether work is done, or an actor started, within a minute."""
        import ray

        return bool(
            ray.wait([*flying, *self.beginning], num_returns=1, timeout=min(_PATIENCE_SECONDS, NO_PROGRESS_SECONDS))[0]
        )

    def _make_room(self, busy: Iterable[Any]) -> bool:
        """End an actor that has nothing to do, and those that have not started; return whether there was one.

        Where a node has gone, an actor that has work may wait for a place to start again.
        """
        import ray

        for worker in self.beginning.values():
            ray.kill(worker)
        self.beginning = {}
        working = list(busy)
        spare = next((worker for worker in self.actors if worker not in working), None)
        if spare is not None:
            self.actors.remove(spare)
            ray.kill(spare)
        return spare is not None

    def work(
        self, process: Process, pieces: dict[int, pa.Table], retries: int = RETRIES, kind: Kind = PIECE
    ) -> Iterator[dict[str, Any]]:
        """Run `process` on each piece; yield each report as it finishes. -1 `retries` are for pieces with marks."""
        if not pieces:
            return
        self.hire(min(self._cluster.workers, len(pieces)))
        numbers = self._cluster.ordered(_costliest_first(sorted(pieces), kind))
        with readable_failures():
            submit = lambda worker, k: _patient(worker.run, retries).remote(process, k, pieces[k])  # noqa: E731
            yield from self.each(submit, numbers, kind)

    def attempt(
        self, process: Process, pieces: dict[int, pa.Table], kind: Kind = PIECE
    ) -> Iterator[tuple[int, dict[str, Any] | None, str | None]]:
        """Like `work`, but give up a piece that ends its process in every try; yield (number, report, reason given up)."""
        if not pieces:
            return
        with self._cluster.watch.step(kind) as watched:
            yield from self._attempt(process, pieces, _costliest_first(sorted(pieces), kind), watched)

    def _attempt(
        self, process: Process, pieces: dict[int, pa.Table], numbers: list[int], watched: Pieces
    ) -> Iterator[tuple[int, dict[str, Any] | None, str | None]]:
        import ray
        import ray.exceptions

        self.hire(min(self._cluster.workers, len(pieces)))
        idle, waiting = list(self.actors), self._cluster.ordered(numbers)[::-1]
        flying: dict[Any, tuple[Any, int]] = {}
        unreached: set[int] = set()
        while waiting or flying:
            while waiting and idle:
                worker, number = idle.pop(), waiting.pop()
                reference = _patient(worker.run).remote(process, number, pieces[number])
                flying[reference] = worker, number
                watched.begin(reference, number, worker)
            while not waiting and not self._is_next(flying) and self._make_room([worker for worker, _ in flying.values()]):
                idle = [worker for worker in idle if worker in self.actors]
            done = self._next(flying)
            if done in self.beginning:
                idle.append(self._join(done))
                continue
            worker, number = flying.pop(done)
            try:
                report = ray.get(done)
            except ray.exceptions.RayError as error:
                watched.end(done, done=False)
                raise_changed(error)
                # If Ray could not reach the worker, the piece may be good: try it once more on another worker.
                if isinstance(error, ray.exceptions.ActorUnavailableError) and number not in unreached:
                    unreached.add(number)
                    waiting.insert(0, number)
                else:
                    yield number, None, failure(error)
                ray.kill(worker)  # It may be anywhere in its restarts.
                self.actors.remove(worker)
                self._begin(len(self.actors) + len(self.beginning) + 1)
                if not self.actors:
                    self.hire(1)
                    idle += self.actors
            else:
                idle.append(worker)
                watched.end(done)
                yield number, report, None

    def call(
        self, function: Callable[..., Any], items: Sequence[Item], arguments: Callable[[Item], Sequence[Any]],
        kind: Kind = PIECE, socm: bool = False,
    ) -> Iterator[Item]:  # fmt: skip
        """Run a function that needs no model on the arguments of each item; yield each item as it is done.

        The actors have imported what it needs. Where they hold GPUs, tasks on CPUs run it; but one that computes `socm` they
        run themselves, with device=«cuda», if their GPUs are made for it.
        """
        if not items:
            return
        items = _costliest_first(items, kind)
        on_gpus = socm and bool(self._cluster.gpus) and self._compute_socm(min(self._cluster.workers, len(items)))
        if self._cluster.gpus and not on_gpus:
            yield from self._by_tasks(function, items, arguments, kind)
            return
        self.hire(min(self._cluster.workers, len(items)))
        yield from self._called(function, items, arguments, kind, {"device": "cuda"} if on_gpus else {})

    def tiles(
        self, work: Callable[..., Any], arguments: tuple[Any, ...], items: Sequence[tuple[int, int]], kind: Kind = TILE
    ) -> Iterator[tuple[int, int]]:  # fmt: skip
        """Run `work(*arguments, i, j)` for each super-tile; yield each as it is done. No step that needs the model follows.

        Where the actors hold GPUs they run it, with device=«cuda»: CUDA has begun there, and their blocks stay there.
        Elsewhere tasks do, as many at once as there are workers, because each has two blocks of texts in memory; the actors
        must have been dismissed, which hold the processors.
        """
        if not items:
            return
        if not self._cluster.gpus:
            yield from self._by_tasks(work, items, lambda item: (*arguments, *item), kind, ahead=1)
            return
        if not self._unloaded:
            for worker in self.actors:
                worker.unload.remote()  # Nobody waits for it: an actor may have lost its node.
        self._unloaded = True  # Actors that start from now on have no model.
        self.hire(min(self._cluster.workers, len(items)))
        yield from self._called(work, items, lambda item: (*arguments, *item), kind, {"device": "cuda"})

    def _by_tasks(
        self, function: Callable[..., Any], items: Sequence[Item], arguments: Callable[[Item], Sequence[Any]], kind: Kind,
        ahead: int = 2,
    ) -> Iterator[Item]:  # fmt: skip
        """Give tasks on CPUs a function of each of these items; yield each item as it is done."""
        import ray

        task = ray.remote(function)
        submit = lambda item: task.remote(*arguments(item))  # noqa: E731
        yield from (item for item, _ in results(self._cluster, submit, items, ahead, kind))

    def _called(
        self, function: Callable[..., Any], items: Sequence[Item], arguments: Callable[[Item], Sequence[Any]], kind: Kind,
        how: dict[str, Any],
    ) -> Iterator[Item]:  # fmt: skip
        """Give the actors a function of each of these items; yield each item as it is done."""
        with readable_failures():
            give = lambda worker, k: _patient(worker.call).remote(k, function, *arguments(items[k]), **how)  # noqa: E731
            for number in self.each(give, self._cluster.ordered(range(len(items))), kind.of(items)):
                yield items[number]

    def _compute_socm(self, wanted: int) -> bool:
        """Whether every actor's GPU computes SOCM."""
        import ray

        self.hire(wanted)
        with readable_failures():
            asked = [worker.computes_socm.remote() for worker in self.actors]
            return all(ray.get(asked, timeout=NO_PROGRESS_SECONDS))

    def _begin(self, wanted: int) -> None:
        """Start actors, without waiting for them, until there are `wanted`."""
        import ray

        turns = TURNS if self._cluster.gpus else 1
        how: dict[str, Any] = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": turns} | self._cluster.claim
        missing = wanted - len(self.actors) - len(self.beginning)
        if missing > 0:
            kind_of_actor: type[PlainActor] = PlainActor
            given: dict[str, Any] = {"gpus": self._cluster.gpus}
            if self._model != GIVEN and not self._unloaded:
                kind_of_actor, given = ModelActor, arguments(self._run, self._cluster, self._model, self._encoding)
            worker = ray.remote(**how)(kind_of_actor)
            new = [worker.remote(**given) for _ in range(missing)]
            self.beginning |= {actor.started.remote(): actor for actor in new}

    def hire(self, wanted: int) -> None:
        """Start actors until there are `wanted`, and wait for the first of all."""
        import ray

        self._begin(wanted)
        if not self.actors:
            await_one(list(self.beginning))
        ready, _ = ray.wait(list(self.beginning), num_returns=len(self.beginning), timeout=0) if self.beginning else ([], [])
        for reference in ready:
            self._join(reference)

    def _await(self, worker: Any) -> None:
        """Give an actor that cannot be reached no work until it has started again."""
        if worker in self.actors:
            self.actors.remove(worker)
            self.beginning[worker.started.remote()] = worker

    def _join(self, reference: Any) -> Any:
        """Count an actor that has started among those that get work; raise what prevented it."""
        import ray

        worker = self.beginning.pop(reference)
        with readable_failures():
            ray.get(reference)
        self.actors.append(worker)
        return worker


def _blocks(data: ray.data.Dataset) -> Generator[Any]:
    """References to the blocks of a stream of Ray Data, as they are made. It starts here, not at the first block."""
    bundles = data.iter_internal_ref_bundles()
    return (block for bundle in bundles for block in bundle.block_refs)


def _named(what: str, block: Any) -> str:
    """The name of a piece that Ray Data prepared, which only its block knows; see `Kind.name`."""
    import ray

    try:
        return f"{what} {ray.get(block, timeout=_NAME_SECONDS).column('number')[0].as_py()}"
    except Exception:  # Its node may be lost.
        return f"a {what}"


def _patient(method: Any, retries: int = RETRIES) -> Any:
    """A method of an actor that Ray calls again so often where its process dies; for ever with -1."""
    return method.options(max_task_retries=retries)


def _costliest_first(items: Iterable[Item], kind: Kind) -> list[Item]:
    """The items in such an order that no costly one keeps one worker busy after the others are done."""
    cost = kind.cost
    return list(items) if cost is None else sorted(items, key=lambda item: -cost(item))
