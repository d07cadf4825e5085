"""Give pieces of work to Ray's actors and tasks, and take their results. No other file does that.

One loop serves both kinds of workers: a crew of model actors, which load the model once for all steps, and tasks. Work
begins with the first actor that has started, and the others join as they start: a cluster may have no place for them yet,
or be smaller than Ray says, and a piece that is given to an actor without a place would wait without end.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from tempscale_jobs.errors import AGAIN, IncompleteRun, SickWorker
from tempscale_jobs.runs.folder import GIVEN, LOST, Model, Run, now
from tempscale_jobs.runs.journal import Journal, Stage
from tempscale_jobs.runs.observing import Slow, Work
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.actor import ModelActor, PlainActor, Started
from tempscale_jobs.workers.cluster import HELPER_CPUS, NODE_LABEL, Cluster, draining_nodes, grows, machines
from tempscale_jobs.workers.failures import failure, raise_changed, raise_reported, readable_failures, sick

if TYPE_CHECKING:
    import pyarrow as pa
    import ray.data

    from tempscale_jobs.config.sections import CutModels, Encoding
    from tempscale_jobs.config.verify import OneModel

RETRIES = 3
"""How often a piece that ends its actor's process is tried again if it has no marks."""
FOR_EVER = -1
"""Retries of a piece with marks, which find what ends its process."""
_UNREACHED = 2
"""How often a piece is given out again after all of Ray's retries failed to reach its worker."""
SICK_STARTS = 2
"""After so many workers could not start or continue on a machine, no other is started there."""
_REPORT_SECONDS = 1.0
"""The shortest time between two reports to the journal."""
_DRAINING_SECONDS = 5.0
"""The shortest time between two questions to Ray which machines are about to leave."""
NO_PROGRESS_SECONDS = 3600
"""No shard takes longer, and marks find a text that kills its process much earlier."""
ANSWER_SECONDS = 60
"""The other machines are waited for so long after the first answer."""
PATIENCE_SECONDS = 60
"""After so long without a result an idle actor is ended, since a busy one may have lost its place."""
_NO_PROGRESS = (
    "no worker finished a piece of work within an hour: one hangs, or its machine is gone and no other took its place; see "
    "ray status, and start the same command again"
)
_NO_PLACE = (
    "no worker started in the Ray cluster within an hour; see what holds its processors or GPUs (ray status), or what ends "
    "a worker while it loads the model, such as too little memory, and start the same command again"
)

SLOW_FACTOR = 10
"""A piece is slow if it takes longer than this many medians of the finished ones."""
LEAST_FINISHED = 5
"""No piece counts as slow before so many are finished."""
LEAST_SECONDS = 30.0
"""No piece counts as slow that takes less."""
LOOK_SECONDS = 10.0
_NAME_SECONDS = 5
"""The longest time to read the name of a slow piece."""

BESIDE_ACTORS: Mapping[str, Any] = {"num_cpus": HELPER_CPUS, "scheduling_strategy": "SPREAD"}
"""Options for tasks that must run while actors occupy all CPUs."""


class Piece(NamedTuple):
    """A piece of a step's work, which one worker does, and which is repeated as a whole if its worker dies."""

    number: Any
    """The number of the piece, or the two numbers of a tile."""
    arguments: tuple[Any, ...] = ()
    """The arguments of the step's function."""
    name: str = ""
    """Its name for people, such as «shard 7»."""
    files: tuple[str, ...] = ()
    """The durable parts that it writes; it is finished when all of them exist."""
    size: int = 0
    """Its share of the step's total, as the progress bar counts: texts, or pairs."""
    cost: float = 1.0
    """About how much work it is, in any unit of the step."""
    alike: str = ""
    """Its time is compared with that of pieces with the same value."""
    most: float = NO_PROGRESS_SECONDS
    """The seconds that it may take."""


def missing(storage: Storage, pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces that are not finished."""
    folders = {name.rpartition("/")[0] for piece in pieces for name in piece.files}
    existing = {name for folder in folders for name in storage.list(folder)}
    return [piece for piece in pieces if not existing.issuperset(piece.files)]


def sums(pieces: Iterable[Piece]) -> tuple[int, float]:
    """The summed sizes and costs of some pieces."""
    pieces = list(pieces)
    return sum(piece.size for piece in pieces), sum(piece.cost for piece in pieces)


def advance_by_finished(stage: Stage, pieces: Sequence[Piece], left: Sequence[Piece]) -> None:
    """Begin the progress of a step with the finished pieces: all but those that are `left`."""
    (size, cost), (left_size, left_cost) = sums(pieces), sums(left)
    stage.advance(size - left_size, cost - left_cost)


def run_tasks(
    cluster: Cluster, function: Callable[..., Any], pieces: Iterable[Piece], ahead: int = 1,
    how: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Piece, Any]]:  # fmt: skip
    """Run a function of each piece's arguments in tasks, at most `ahead` for each CPU; yield pieces with their results."""
    if how is None and cluster.keeps_crew:
        how, ahead = BESIDE_ACTORS, 1
    tasks = _Tasks(cluster, function, ahead, how or {})
    with readable_failures():
        for piece, result, _ in _results(tasks, _ordered(cluster, pieces), cluster.journal):
            yield piece, result


def results(
    cluster: Cluster, function: Callable[..., Any], work: Sequence[tuple[Any, ...]], name: str,
    where: Mapping[str, Any] | None = None,
) -> list[Any]:  # fmt: skip
    """The results of a function of each of these arguments, in order, from tasks that run while actors occupy the CPUs."""
    options = {"num_cpus": 0} | dict(where) if where else BESIDE_ACTORS
    pieces = [Piece(k, arguments, f"{name} {k}") for k, arguments in enumerate(work)]
    by_number = {piece.number: result for piece, result in run_tasks(cluster, function, pieces, how=options)}
    return [by_number[k] for k in range(len(work))]


def share(value: Any) -> Any:
    """A reference to a value, for many tasks."""
    import ray

    return ray.put(value)


def later(cluster: Cluster, function: Callable[..., Any], *arguments: Any) -> Any:
    """A reference to the result of a task with these arguments, for other tasks; it has ended where one runs at a time."""
    import ray

    reference = _remote(function).remote(*arguments)
    if cluster.one_at_a_time:
        ended, _ = ray.wait([reference], timeout=NO_PROGRESS_SECONDS, fetch_local=False)
        if not ended:
            raise IncompleteRun(_NO_PROGRESS)
    return reference


@lru_cache(maxsize=16)
def _remote(function: Callable[..., Any]) -> Any:
    """A function as a task of Ray; cached, because Ray sends each new task to all workers."""
    import ray

    return ray.remote(**BESIDE_ACTORS)(function)


def ask_for_workers(cluster: Cluster) -> None:
    """Let an autoscaler start the nodes of all workers, which may take minutes, while the source is read."""
    import ray

    share = max(cluster.claim.values())  # The share of a GPU, or of a CPU.
    absent = cluster.workers - int(ray.cluster_resources().get(cluster.resource, 0) / share)
    for _ in range(absent):  # Ray sees waiting tasks, and forgets them when this process ends.
        ray.remote(**cluster.claim)(_nothing).remote()


def _nothing() -> None:
    """A task that ends as soon as there is a place for it."""


def ask_nodes(
    function: Callable[..., Any], arguments: Mapping[str | None, tuple[Any, ...]],
    claim: Mapping[str, float] | None = None, patience: float = ANSWER_SECONDS, linger: float = 0,
) -> Generator[tuple[str | None, Any]]:  # fmt: skip
    """Run a function on these nodes (None: any); yield (node, answer), with None for one later than `patience` seconds."""
    # A node that dies gives no answer. `linger` is how long the others may still work after the caller has stopped.
    import ray
    import ray.exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    dead = (
        ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError, ray.exceptions.WorkerCrashedError,
        ray.exceptions.LocalRayletDiedError,
    )  # fmt: skip
    task, left = ray.remote(**{"num_cpus": 0.0} | dict(claim or {}))(function), dict[Any, str | None]()
    for node, node_arguments in arguments.items():
        place = {} if node is None else {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        left[task.options(**place).remote(*node_arguments)] = node
    end, is_first = time.monotonic() + NO_PROGRESS_SECONDS, True
    try:
        while left:
            ready, _ = ray.wait(list(left), num_returns=1, timeout=max(0.0, end - time.monotonic()))
            if not ready and is_first:
                raise IncompleteRun(_NO_PLACE)
            if not ready:
                yield from dict.fromkeys(left.values()).items()
                return
            node = left.pop(ready[0])
            with readable_failures(), suppress(*dead):
                yield node, ray.get(ready[0])
            if is_first:
                end, is_first = time.monotonic() + patience, False
    finally:
        if linger and left:
            ray.wait(list(left), num_returns=len(left), timeout=linger)


def run_with_ray_data(
    cluster: Cluster, function: Callable[..., None], pieces: Sequence[Piece], shared: Mapping[str, Any],
    where: Mapping[str, Any],
) -> Iterator[Piece]:  # fmt: skip
    """Run `function(*arguments, **shared)` of each piece in tasks of Ray Data; yield each finished piece."""
    import ray

    if not pieces:
        return
    by_number, tasks = {piece.number: piece for piece in pieces}, min(cluster.tasks, len(pieces))
    data = _prepared(cluster, function, pieces, shared, tasks, **where)
    with Flights(cluster.journal, tasks) as flights, readable_failures():
        # Ray Data does not say when a task begins, but it starts `tasks` at once, in their order.
        for piece in _ordered(cluster, pieces):
            flights.begin(piece.number, piece, None)
        with closing(_blocks(data)) as blocks:  # Ray Data ends when its iterator is closed, which must be before Ray ends.
            for report in (row for block in blocks for row in ray.get(block).to_pylist()):
                flights.end(report["number"], finished=report["failure"] is None)
                raise_reported(report)
                yield by_number[report["number"]]


class Crew:
    """Model actors that serve several steps, so that each loads the model only once."""

    def __init__(self, run: Run, cluster: Cluster, model: Model, encoding: Encoding | CutModels | OneModel) -> None:
        self._run, self._cluster, self._model, self._encoding = run, cluster, model, encoding
        self.actors: list[Any] = []
        self.starting: dict[Any, Any] = {}
        """Actors that have not started yet, by the reference of their first answer."""
        self._said: dict[Any, Started] = {}
        """The first answer of each actor."""
        self._sick: Counter[str] = Counter()
        """The number of actors that could not work on each machine, by the id of its node."""
        self._leaving: tuple[float, set[str]] = (0.0, set())
        """When Ray was asked which nodes are about to leave, and its answer."""
        self._stream: Generator[Any] | None = None
        self._unloaded = False

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:
            self._stream.close()  # Ray Data must end before Ray does.
        self.dismiss()

    def dismiss(self) -> None:
        """End the actors; the next step starts others, on any machine."""
        import ray

        for worker in [*self.actors, *self.starting.values()]:
            ray.kill(worker)
        self.actors, self.starting = [], {}
        self._sick.clear()

    def run(
        self, function: Callable[..., Any], pieces: Sequence[Piece], retries: int = RETRIES
    ) -> Iterator[tuple[Piece, Any]]:
        """Run `function(worker, *arguments)` of each piece on an actor; yield each piece with its result."""
        with readable_failures():
            for piece, result, _ in self._on_actors(_Call("run", function, retries), pieces):
                yield piece, result

    def finish(
        self, function: Callable[..., Any], every: Sequence[Piece], stage: Stage, retries: int = RETRIES
    ) -> None:  # fmt: skip
        """Run the pieces whose files are missing, as the progress of a stage."""
        left = missing(self._run.storage, every)
        advance_by_finished(stage, every, left)
        for piece, _ in self.run(function, left, retries):
            stage.advance(piece.size)

    def attempt(
        self, function: Callable[..., Any], pieces: Sequence[Piece]
    ) -> Iterator[tuple[Piece, Any, str | None]]:  # fmt: skip
        """Like `run`, but give up a piece that ends its process in every try; yield (piece, result, why given up)."""
        yield from self._on_actors(_Call("run", function, RETRIES, ahead=1, gives_up=True), pieces)

    def stream(
        self, function: Callable[..., Any], pieces: Sequence[Piece], prepare: Callable[..., pa.Table],
        shared: Mapping[str, Any],
    ) -> Iterator[Piece]:  # fmt: skip
        """Run `function(worker, number, prepared)` on what Ray Data's tasks prepare; yield each finished piece."""
        # Prepared pieces go to the actors and not through this process. A piece whose process dies is tried again without
        # end: marks must find what ends it.
        if not pieces:
            return
        by_number, workers = {piece.number: piece for piece in pieces}, min(self._cluster.workers, len(pieces))
        self.start(workers)  # The tasks begin while these load the model.
        tasks = min(actor.ahead(self._cluster), len(pieces))
        blocks = self._stream = _blocks(_prepared(self._cluster, prepare, pieces, shared, tasks))
        self.hire(workers)
        with readable_failures():
            block_pieces = (Piece(None, (block,)) for block in blocks)
            actors = _Actors(self, _Call("take", function, FOR_EVER))
            for _, reports, _ in _results(actors, block_pieces, self._cluster.journal, len(pieces)):
                for report in reports:
                    raise_reported(report)
                    yield by_number[report["number"]]

    def call(self, function: Callable[..., Any], pieces: Sequence[Piece], socm: bool = False) -> Iterator[Piece]:
        """Run a function that needs no model on the arguments of each piece; yield each piece when it is finished."""
        # The actors have imported what it needs. Where they hold GPUs, tasks on CPUs run it, unless it computes `socm` and
        # their GPUs are made for that.
        if not pieces:
            return
        workers = min(self._cluster.workers, len(pieces))
        on_gpus = socm and bool(self._cluster.gpus) and self._compute_socm(workers)
        if self._cluster.gpus and not on_gpus:
            yield from (piece for piece, _ in run_tasks(self._cluster, function, pieces, ahead=2))
            return
        yield from self._called(function, pieces, {"device": "cuda"} if on_gpus else {})

    def tiles(self, function: Callable[..., Any], pieces: Sequence[Piece]) -> Iterator[Piece]:
        """Run a function of each super-tile; yield each piece when it is finished; no step may need the model afterwards."""
        # Actors with GPUs run it: CUDA has begun on them and their blocks stay on the device. Otherwise tasks do, one a
        # worker, since each has two blocks in memory: next to the actors, or, once these are dismissed, in their place.
        if not pieces:
            return
        if not self._cluster.gpus:
            cluster = replace(self._cluster, keeps_crew=bool(self.actors))
            yield from (piece for piece, _ in run_tasks(cluster, function, pieces))
            return
        if not self._unloaded:
            for worker in self.actors:
                worker.unload.remote()  # Do not wait: an actor may have lost its node.
        self._unloaded = True  # New actors load no model.
        yield from self._called(function, pieces, {"device": "cuda"})

    def _called(
        self, function: Callable[..., Any], pieces: Sequence[Piece], more: dict[str, Any]
    ) -> Iterator[Piece]:  # fmt: skip
        """Let the actors run a function of each of these pieces; yield each finished piece."""
        with readable_failures():
            yield from (piece for piece, *_ in self._on_actors(_Call("call", function, RETRIES, more=more), pieces))

    def _on_actors(self, call: _Call, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Any, str | None]]:
        """Hire actors for some pieces, and let them work; yield as `_results` does."""
        if pieces:
            self.hire(min(self._cluster.workers, len(pieces)))
            yield from _results(_Actors(self, call), _ordered(self._cluster, pieces), self._cluster.journal)

    def _compute_socm(self, count: int) -> bool:
        """Whether the GPUs of all started actors compute SOCM."""
        self.hire(count)
        return all(self._said[worker].computes_socm for worker in self.actors)

    def start(self, wanted: int) -> None:
        """Start actors, without waiting for them, until there are `wanted`."""
        import ray

        turns = actor.TURNS if self._cluster.gpus else 1
        options: dict[str, Any] = {
            "max_restarts": -1,
            "max_task_retries": -1,
            "max_concurrency": turns,
        } | self._cluster.claim
        if refused := sorted(node for node, count in self._sick.items() if node and count >= SICK_STARTS):
            options["label_selector"] = {NODE_LABEL: f"!in({','.join(refused)})"}
        absent = wanted - len(self.actors) - len(self.starting)
        if absent > 0:
            kind_of_actor: type[PlainActor] = PlainActor
            arguments: dict[str, Any] = {"gpus": self._cluster.gpus}
            if self._model != GIVEN and not self._unloaded:
                kind_of_actor = ModelActor
                arguments = actor.arguments(self._run, self._cluster, self._model, self._encoding)
            worker = ray.remote(**options)(kind_of_actor)
            new = [worker.remote(**arguments) for _ in range(absent)]
            self.starting |= {handle.started.remote(): handle for handle in new}

    def hire(self, wanted: int) -> None:
        """Start actors until there are `wanted`, and wait for the first; an IncompleteRun if none starts within an hour."""
        import ray

        self.start(wanted)
        while not self.actors:
            with readable_failures():
                ready, _ = ray.wait(list(self.starting), num_returns=1, timeout=NO_PROGRESS_SECONDS)
            if not ready:
                raise IncompleteRun(_NO_PLACE)
            self.join(ready[0])
        if self.starting:
            for reference in ray.wait(list(self.starting), num_returns=len(self.starting), timeout=0)[0]:
                if reference in self.starting:  # Replacing a sick one may have ended those that had not started.
                    self.join(reference)

    def join(self, reference: Any) -> list[Any]:
        """Give a started actor work from now on, and return it; return nothing if it is sick and another is started."""
        import ray

        worker = self.starting.pop(reference)
        with readable_failures():
            try:
                self._said[worker] = ray.get(reference)
            except ray.exceptions.RayError as error:
                if (why := sick(error)) is None:
                    raise
                self.replace_sick(worker, why)
                return []
        self.actors.append(worker)
        return [worker]

    def wait_for(self, worker: Any) -> None:
        """Give an unreachable actor no work until it has started again."""
        if worker in self.actors:
            self.actors.remove(worker)
            self.starting[worker.started.remote()] = worker

    def replace(self, worker: Any) -> None:
        """End an actor, perhaps in the middle of its restarts, and start another."""
        import ray

        self._leave_out(worker)
        self.start(len(self.actors) + len(self.starting) + 1)
        ray.kill(worker)

    def _leave_out(self, worker: Any) -> None:
        """Remove an actor from the crew."""
        self.actors = [other for other in self.actors if other is not worker]
        self.starting = {reference: other for reference, other in self.starting.items() if other is not worker}

    def replace_sick(self, worker: Any, why: SickWorker) -> None:
        """Replace an actor that cannot work; after two failures on its machine, on another machine."""
        import ray

        self._leave_out(worker)
        machine = why.node or (self._said[worker].node if worker in self._said else "")
        self._sick[machine] += 1
        self._note_lost(why)
        ended = [worker]
        if self._is_left():
            wanted = len(self.actors) + len(self.starting) + 1
            if self._sick[machine] == SICK_STARTS:  # Actors that wait for a place would take the place of the ended one.
                ended += self.starting.values()
                self.starting = {}
            self.start(wanted)
        for one in ended:  # End them after the start of others: Ray hands out a returned GPU first.
            ray.kill(one)
        if not self.actors and not self.starting:
            raise IncompleteRun(f"no machine of the cluster is left that a worker can start on; {why}{AGAIN}") from why

    def _is_left(self) -> bool:
        """Whether a worker may start on some machine, or on one to come."""
        if self._sick[""] >= SICK_STARTS:
            return False
        return grows(self._cluster) or any(self._sick[node] < SICK_STARTS for node in machines(self._cluster))

    def _note_lost(self, why: SickWorker) -> None:
        """Report a lost worker, and record it for run.json."""
        note = {"machine": why.machine or "unknown", "reason": str(why), "time": now()}
        self._run.storage.write_json(f"{LOST}/{uuid.uuid4().hex[:12]}.json", note)
        if self._cluster.journal is not None:
            self._cluster.journal.lost(str(why))

    def on_leaving_nodes(self) -> list[Any]:
        """The actors on nodes that are about to leave the cluster."""
        asked, leaving = self._leaving
        if time.monotonic() - asked > _DRAINING_SECONDS:
            leaving = draining_nodes()
            self._leaving = (time.monotonic(), leaving)
        return [worker for worker in self.actors if leaving and self._said[worker].node in leaving]

    def make_room(self, busy: Collection[Any]) -> bool:
        """End an idle actor, and those that have not started; return whether there was an idle one."""
        # Where a node has gone, an actor that has work may wait for a place to start again.
        import ray

        for worker in self.starting.values():
            ray.kill(worker)
        self.starting = {}
        spare = next((worker for worker in self.actors if worker not in busy), None)
        if spare is not None:
            self.actors.remove(spare)
            ray.kill(spare)
        return spare is not None


class _Call(NamedTuple):
    """A method of actors, and options for calling it with pieces."""

    method: str
    function: Callable[..., Any]
    retries: int
    ahead: int = 2
    """Pieces that an actor has at once; the second waits for the first."""
    gives_up: bool = False
    """Whether a piece that fails is reported and the others go on."""
    more: Mapping[str, Any] = {}
    """Keyword arguments of the function."""

    @property
    def name(self) -> str:
        """The name in Ray's dashboard of a piece without a name."""
        return str(getattr(getattr(self.function, "func", self.function), "__name__", self.method))


class _Tasks:
    """Tasks on CPUs, without workers: a place takes one piece, which any process runs."""

    gives_up = False

    def __init__(self, cluster: Cluster, function: Callable[..., Any], ahead: int, options: Mapping[str, Any]) -> None:
        import ray

        self._task = ray.remote(**options)(function) if options else ray.remote(function)
        self.at_once = cluster.tasks
        """Pieces that run at once in the places of one worker; others wait for them."""
        self.idle: list[Any] = [None] * (ahead * self.at_once)
        """The worker of each place that is free for a piece."""

    @property
    def starting(self) -> Mapping[Any, Any]:
        """Workers that have not started yet, by the reference of their first answer."""
        return {}

    @property
    def numbers(self) -> tuple[int, int]:
        """The numbers of started and of wanted workers."""
        return self.at_once, self.at_once

    def give(self, worker: Any, piece: Piece) -> Any:
        """Begin a piece; return the reference of its result."""
        task = self._task.options(name=piece.name) if piece.name else self._task
        return task.remote(*piece.arguments)

    def join(self, reference: Any) -> None:
        """Add a worker that has started."""

    def lose(self, worker: Any, for_good: bool) -> None:
        """Remove a worker that cannot be reached, until it has started again or `for_good`."""

    def replace_sick(self, worker: Any, why: SickWorker) -> None:
        """Replace a worker that cannot work on its machine."""

    def leave(self, busy: Collection[Any]) -> None:
        """Remove workers on machines that are about to leave the cluster, once they are not busy."""

    def make_room(self, busy: Collection[Any]) -> bool:
        """End an idle worker; return whether there was one."""
        return False


class _Actors(_Tasks):
    """The actors of a crew."""

    def __init__(self, crew: Crew, call: _Call) -> None:
        self._crew, self._call, self.gives_up = crew, call, call.gives_up
        self.at_once, self.idle = 1, call.ahead * crew.actors

    @property
    @override
    def starting(self) -> Mapping[Any, Any]:
        return self._crew.starting

    @property
    @override
    def numbers(self) -> tuple[int, int]:
        started = len(self._crew.actors)
        return started, started + len(self._crew.starting)

    @override
    def give(self, worker: Any, piece: Piece) -> Any:
        how = {"max_task_retries": self._call.retries, "name": piece.name or self._call.name}
        method = getattr(worker, self._call.method).options(**how)
        return method.remote(self._call.function, *piece.arguments, **self._call.more)

    @override
    def join(self, reference: Any) -> None:
        self.idle += self._call.ahead * self._crew.join(reference)

    @override
    def lose(self, worker: Any, for_good: bool) -> None:
        self.idle = [other for other in self.idle if other is not worker]
        (self._crew.replace if for_good else self._crew.wait_for)(worker)

    @override
    def replace_sick(self, worker: Any, why: SickWorker) -> None:
        self.idle = [other for other in self.idle if other is not worker]
        if worker in self._crew.actors:  # Its other piece may have reported this before.
            self._crew.replace_sick(worker, why)

    @override
    def leave(self, busy: Collection[Any]) -> None:
        for worker in self._crew.on_leaving_nodes():
            self.idle = [other for other in self.idle if other is not worker]
            if worker not in busy:
                self._crew.replace(worker)

    @override
    def make_room(self, busy: Collection[Any]) -> bool:
        ended = self._crew.make_room(busy)
        self.idle = [worker for worker in self.idle if worker in self._crew.actors]
        return ended


def _ordered(cluster: Cluster, pieces: Iterable[Piece]) -> Iterable[Piece]:
    """A list of pieces with the costliest first, so that none keeps one worker busy at the end; an iterator as it is."""
    if not isinstance(pieces, Sequence):
        return pieces
    return cluster.ordered(sorted(pieces, key=lambda piece: -piece.cost))


def _results(
    workers: _Tasks, pieces: Iterable[Piece], journal: Journal | None, total: int | None = None
) -> Iterator[tuple[Piece, Any, str | None]]:  # fmt: skip
    """Give pieces, `total` in all if they are no list, to free workers; yield each with its result or why it is given up."""
    import ray
    import ray.exceptions

    waiting, retried = iter(pieces), list[tuple[Piece, int]]()
    """Pieces to give out again, with how often the worker of each could not be reached."""
    following: tuple[Piece, int] | None = None
    progress = _Progress(journal, len(pieces) if isinstance(pieces, Sequence) else total)
    with Flights(journal, workers.at_once) as flights:
        while True:
            following = following or _following(retried, waiting)
            if following is None and not flights.flying:
                progress.report(workers, is_last=True)
                return
            progress.report(workers)
            workers.leave([flight.worker for flight in flights.flying.values()])
            if following is not None and workers.idle:
                worker, (piece, unreached), following = workers.idle.pop(0), following, None
                flights.begin(workers.give(worker, piece), piece, worker, unreached)
                continue
            reference = _next(workers, flights, nothing_waits=following is None)
            if reference in workers.starting:
                workers.join(reference)
                continue
            flight = flights.flying[reference]
            try:
                result = ray.get(reference)
            except ray.exceptions.RayError as error:
                flights.end(reference, finished=False)
                raise_changed(error)
                if (times := _again(workers, flight, error, progress)) is not None:
                    retried.append((flight.piece, times))
                    continue
                if not workers.gives_up:
                    raise
                workers.lose(flight.worker, for_good=True)
                yield flight.piece, None, failure(error)
            else:
                flights.end(reference)
                workers.idle.append(flight.worker)
                progress.finish()
                yield flight.piece, result, None


def _again(workers: _Tasks, flight: _Flight, error: Exception, progress: _Progress) -> int | None:
    """How often a failed piece's worker could not be reached, if the piece is to be given out again; else None."""
    import ray.exceptions

    unreached: int | None = None
    if isinstance(error, ray.exceptions.NodeDiedError) and progress.is_recent(flight.piece.most):
        workers.idle.append(flight.worker)
        unreached = flight.unreached
    # A piece may have killed an actor that died, but not one that reports what is wrong.
    elif (why := sick(error)) is not None and (why.node or not workers.gives_up):
        workers.replace_sick(flight.worker, why)
        unreached = flight.unreached
    # While Ray does not know that a worker's node is lost, each attempt to reach it uses up a retry.
    elif isinstance(error, ray.exceptions.ActorUnavailableError) and flight.unreached < _UNREACHED:
        workers.lose(flight.worker, for_good=False)
        unreached = flight.unreached + 1
    progress.retried += unreached is not None
    return unreached


@dataclass
class _Progress:
    """The progress of a step's pieces."""

    journal: Journal | None
    left: int | None
    retried: int = 0
    """Pieces that were given out again since the last report."""
    _finished: float = field(default_factory=time.monotonic)
    _reported: float = 0.0

    def is_recent(self, seconds: float) -> bool:
        """Whether a piece was finished, or the step began, within the last `seconds`."""
        return time.monotonic() - self._finished < seconds

    def finish(self) -> None:
        """Count a finished piece."""
        self._finished = time.monotonic()
        self.left = None if self.left is None else self.left - 1

    def report(self, workers: _Tasks, is_last: bool = False) -> None:
        """Report to the journal, at most once a second, and at the end."""
        if self.journal is None or (not is_last and time.monotonic() - self._reported < _REPORT_SECONDS):
            return
        self._reported = time.monotonic()
        self.journal.work(Work(self.left, *workers.numbers, self.retried))
        self.retried = 0


def _following(retried: list[tuple[Piece, int]], waiting: Iterator[Piece]) -> tuple[Piece, int] | None:
    """The next piece to give out, and how often its worker could not be reached."""
    if retried:
        return retried.pop()
    piece = next(waiting, None)
    return None if piece is None else (piece, 0)


def _next(workers: _Tasks, flights: Flights, nothing_waits: bool) -> Any:
    """The reference of the next result or started worker; an IncompleteRun after an hour, or the longest time of a piece."""
    while nothing_waits:
        reference = _back(workers, flights, min(PATIENCE_SECONDS, NO_PROGRESS_SECONDS))
        if reference is not None:
            return reference
        if not workers.make_room([flight.worker for flight in flights.flying.values()]):
            break
    most = max((flight.piece.most for flight in flights.flying.values()), default=NO_PROGRESS_SECONDS)
    reference = _back(workers, flights, most)
    if reference is None:
        raise IncompleteRun(_NO_PROGRESS)
    return reference


def _back(workers: _Tasks, flights: Flights, seconds: float) -> Any | None:
    """The reference of a result or a start within some seconds; None if there is none."""
    import ray

    ready, _ = ray.wait([*flights.flying, *workers.starting], num_returns=1, timeout=seconds)
    return ready[0] if ready else None


@dataclass
class _Flight:
    """A piece that a worker has."""

    piece: Piece
    worker: Any
    unreached: int
    given: float
    began: float | None
    """None while it waits for earlier pieces of its worker."""
    back: bool = False
    """Whether its result has arrived."""
    slow: str = ""
    """Its name, once it is slow."""


@dataclass
class Flights:
    """The pieces of one step that workers have; a thread looks for slow ones every ten seconds."""

    journal: Journal | None
    at_once: int
    clock: Callable[[], float] = time.monotonic
    flying: dict[Any, _Flight] = field(default_factory=dict)
    _of_worker: defaultdict[int, dict[Any, _Flight]] = field(default_factory=lambda: defaultdict(dict))
    """The pieces of each worker, in the order in which it got them."""
    _rates: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """The sorted seconds by cost of finished pieces, by `alike`."""
    _lock: Any = field(default_factory=threading.RLock)
    _reporting: Any = field(default_factory=threading.RLock)
    _ended: threading.Event = field(default_factory=threading.Event)
    _reported: bool = False
    """Whether the last report had a piece."""

    def __enter__(self) -> Flights:
        if self.journal is not None:
            self._thread = threading.Thread(target=self._look_again, name="slow", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        with self._lock:
            self.flying.clear()
        self.look()
        if self.journal is not None:
            self._thread.join(LOOK_SECONDS)  # The thread uses Ray, which is about to end.

    def begin(self, reference: Any, piece: Piece, worker: Any, unreached: int = 0) -> None:
        """Note that a worker gets a piece."""
        with self._lock:
            now, flights = self.clock(), self._of_worker[id(worker)]
            flight = _Flight(piece, worker, unreached, now, now if len(flights) < self.at_once else None)
            self.flying[reference] = flights[reference] = flight

    def end(self, reference: Any, finished: bool = True) -> None:
        """Note that a piece has come back, `finished` or failed."""
        with self._lock:
            flight = self.flying.pop(reference)
            self._land(reference, flight, finished)
        if flight.slow:
            self.look()

    def look(self) -> None:
        """Report the slow pieces, if there are any or were any; errors here do not end the run."""
        with self._reporting, suppress(Exception):
            if self.journal is None:
                return
            with self._lock:
                for reference in self.come_back():  # The driver may not have taken their results yet.
                    self._land(reference, self.flying[reference], finished=True)
                snapshot = [(flight, self._exceeded(flight), self.clock()) for flight in self.flying.values()]
            slow, new = list[Slow](), list[Slow]()
            for flight, usual, now in snapshot:  # Release the lock first: reading a name may take seconds.
                if usual is None or flight.began is None:
                    continue
                is_new = not flight.slow
                flight.slow = flight.slow or _name(flight.piece)
                slow.append(Slow(flight.slow, now - flight.began, usual))
                new += slow[-1:] * is_new
            if slow or self._reported:
                self._reported = bool(slow)
                self.journal.slow(sorted(slow, key=lambda entry: -entry.seconds), new)

    def _look_again(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.look()

    def _land(self, reference: Any, flight: _Flight, finished: bool) -> None:
        """Note that a piece has ended, so that its worker's next one begins."""
        if flight.back:
            return
        flight.back, flights = True, self._of_worker[id(flight.worker)]
        del flights[reference]
        if finished:
            # The start of a piece that overtook others is unknown; this overestimates its time.
            began = flight.given if flight.began is None else flight.began
            insort(self._rates[flight.piece.alike], (self.clock() - began) / max(flight.piece.cost, 1e-12))
        for other in islice(flights.values(), self.at_once):
            other.began = self.clock() if other.began is None else other.began

    def _exceeded(self, flight: _Flight) -> float | None:
        """The usual time that a slow piece exceeds; None for a piece that is not slow."""
        rates = self._rates[flight.piece.alike]
        if flight.back or flight.began is None or len(rates) < LEAST_FINISHED:
            return None
        usual, seconds = median(rates) * max(flight.piece.cost, 1e-12), self.clock() - flight.began
        return usual if flight.slow or seconds > max(LEAST_SECONDS, SLOW_FACTOR * usual) else None

    def come_back(self) -> list[Any]:
        """The references of begun pieces whose results have arrived; pieces of Ray Data have no references."""
        import ray

        keys = [key for key, flight in self.flying.items() if flight.began is not None and not flight.back]
        references = [key for key in keys if isinstance(key, ray.ObjectRef)]
        if not references:
            return []
        return list(ray.wait(references, num_returns=len(references), timeout=0, fetch_local=False)[0])


def _name(piece: Piece) -> str:
    """The name of a piece; if Ray Data prepared it, the name is in its block."""
    import ray

    if piece.number is not None:
        return piece.name or f"piece {piece.number}"
    try:
        return str(ray.get(piece.arguments[0], timeout=_NAME_SECONDS).column("name")[0].as_py())
    except Exception:  # Its node may be lost.
        return "a piece"


def _prepared(
    cluster: Cluster, prepare: Callable[..., pa.Table | None], pieces: Sequence[Piece], shared: Mapping[str, Any],
    tasks: int, **where: Any,
) -> ray.data.Dataset:  # fmt: skip
    """A stream of Ray Data: `tasks` tasks on CPUs prepare the pieces, one a block, on the nodes that `where` allows."""
    import ray.data

    rows = [
        {"number": piece.number, "name": piece.name, "arguments": list(piece.arguments)}
        for piece in cluster.ordered(pieces)
    ]  # fmt: skip
    # The node that has the files may be a head, which offers no processors.
    claim = {"num_cpus": 0} if where else cluster.preparing
    return ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        actor.prepared, batch_size=1, batch_format="pyarrow", compute=ray.data.TaskPoolStrategy(size=tasks),
        fn_kwargs={"prepare": prepare, "shared": dict(shared)}, **claim, **where,
    )  # fmt: skip


def _blocks(data: ray.data.Dataset) -> Generator[Any]:
    """References to the blocks of a stream of Ray Data, as they are made."""
    bundles = data.iter_internal_ref_bundles()  # The stream starts here, not at the first block.
    return (block for bundle in bundles for block in bundle.block_refs)
