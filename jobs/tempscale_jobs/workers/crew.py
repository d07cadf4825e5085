"""A crew of model actors for several small steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tempscale_jobs.workers.actor import RETRIES, Encoding, ModelActor, Process, arguments
from tempscale_jobs.workers.engine import Cluster, failure, readable_failures, started

if TYPE_CHECKING:
    from tempscale_jobs.runs.folder import Model, Run


class Crew:
    """Model actors that live through several small steps, so that the model is loaded only once."""

    def __init__(self, run: Run, cluster: Cluster, model: Model, encoding: Encoding) -> None:
        self._run, self._cluster, self._model, self._encoding = run, cluster, model, encoding
        self._actors: list[Any] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        import ray

        for worker in self._actors:
            ray.kill(worker)

    def work(self, process: Process, pieces: dict[int, pa.Table]) -> Iterator[dict[str, Any]]:
        """Run `process` on each piece; yield each report as it finishes."""
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
        """Like `work`, but give up a piece that ends its process in every try; yield (number, report, reason given up)."""
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
                # If Ray could not reach the worker, the piece may be good: try it once more on another worker.
                if isinstance(error, ray.exceptions.ActorUnavailableError) and number not in unreached:
                    unreached.add(number)
                    waiting.insert(0, number)
                else:
                    yield number, None, failure(error)
                ray.kill(worker)  # Its restarts are used up.
                self._actors.remove(worker)
                self._hire(len(self._actors) + 1)
                idle.append(self._actors[-1])
            else:
                idle.append(worker)
                yield number, report, None

    def _hire(self, wanted: int) -> None:
        """Start actors until there are `wanted` of them."""
        import ray

        resources: dict[str, Any] = {"num_gpus": 1} if self._cluster.gpus else {"num_cpus": 1}
        # Limit the retries of a piece that kills its process.
        worker = ray.remote(max_restarts=RETRIES, max_task_retries=RETRIES, **resources)(ModelActor)
        missing = wanted - len(self._actors)
        if missing > 0:
            how = arguments(self._run, self._cluster, self._model, self._encoding)
            self._actors += started([worker.remote(**how) for _ in range(missing)])
