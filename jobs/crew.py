"""Model actors that stay for several small steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobs.actor import RETRIES, ModelActor, Process, arguments
from jobs.engine import Cluster, failure, readable_failures, started

if TYPE_CHECKING:
    from jobs.runs import Model, RunOf


class Crew:
    """Model actors that stay for several small steps, so that the model is loaded once for all of them."""

    def __init__(self, run: RunOf[Any], cluster: Cluster, model: Model) -> None:
        self._run, self._cluster, self._model = run, cluster, model
        self._actors: list[Any] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        import ray

        for worker in self._actors:
            ray.kill(worker)

    def work(self, process: Process, pieces: dict[int, pa.Table]) -> Iterator[dict[str, Any]]:
        """Hand `process` each piece on some actor; yields what it reports, as the pieces finish.

        Raises:
            IncompleteRun: a worker failed for good.
        """
        if not pieces:
            return
        from ray.util import ActorPool

        self._hire(min(self._cluster.workers, len(pieces)))
        team, numbers = ActorPool(self._actors), self._cluster.ordered(sorted(pieces))
        with readable_failures():
            yield from team.map_unordered(lambda worker, k: worker.run.remote(process, k, pieces[k]), numbers)

    def attempt(
        self, process: Process, pieces: dict[int, pa.Table]
    ) -> Iterator[tuple[int, dict[str, Any] | None, str | None]]:
        """The same, but a piece that ends its process each time it is tried is given up and the others go on.

        Yields:
            The piece's number with what it reports, or with why it was given up.

        Raises:
            IncompleteRun: no worker can be started any more.
        """
        if not pieces:
            return
        import ray
        import ray.exceptions

        self._hire(min(self._cluster.workers, len(pieces)))
        idle, waiting = list(self._actors), self._cluster.ordered(sorted(pieces))[::-1]
        flying: dict[Any, tuple[Any, int]] = {}
        unreached: set[int] = set()
        while waiting or flying:
            while waiting and idle:
                worker, number = idle.pop(), waiting.pop()
                flying[worker.run.remote(process, number, pieces[number])] = worker, number
            (done,), _ = ray.wait(list(flying), num_returns=1)
            worker, number = flying.pop(done)
            try:
                report = ray.get(done)
            except ray.exceptions.RayError as error:
                # A worker that Ray could not reach for a while says nothing of its piece: that may try another one.
                if isinstance(error, ray.exceptions.ActorUnavailableError) and number not in unreached:
                    unreached.add(number)
                    waiting.insert(0, number)
                else:
                    yield number, None, failure(error)
                ray.kill(worker)  # Whatever is left of it: its restarts are used up.
                self._actors.remove(worker)
                self._hire(len(self._actors) + 1)
                idle.append(self._actors[-1])
            else:
                idle.append(worker)
                yield number, report, None

    def _hire(self, wanted: int) -> None:
        """Start actors until there are so many."""
        import ray

        resources: dict[str, Any] = {"num_gpus": 1} if self._cluster.gpus else {"num_cpus": 1}
        # A piece that kills its process is tried again, but not for ever.
        worker = ray.remote(max_restarts=RETRIES, max_task_retries=RETRIES, **resources)(ModelActor)
        missing = wanted - len(self._actors)
        if missing > 0:
            how = arguments(self._run, self._cluster, self._model)
            self._actors += started([worker.remote(**how) for _ in range(missing)])
