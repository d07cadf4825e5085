"""Ray, started or joined, and the one way this project waits for its tasks."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from jobs import raylet
from jobs.errors import IncompleteRun, RunError, UsageError
from jobs.execution_config import Execution
from tempscale.checkpoint import first_line

_OBJECT_STORE_BYTES = 1 << 30
_TO_COME = "autoscaled_gpus"
"""Ray's custom resource by which a head says how many GPUs its autoscaler can bring."""
_NO_PROGRESS_SECONDS = 3600
"""Longer than a shard takes anywhere. A text that kills its process is found by marks, long before."""
_CONNECT_SECONDS = 10
_LEAST_PATIENCE_SECONDS = 30
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "POLARS_MAX_THREADS": "1",
}

Item = TypeVar("Item")


@dataclass(frozen=True)
class Cluster:
    """What the run may use at once."""

    workers: int
    gpus: int
    """GPUs of each worker: 0 or 1."""
    shuffle_seed: int | None = None

    def ordered(self, items: Sequence[Item]) -> list[Item]:
        """Items in their own order, or in a seeded random one."""
        items = list(items)
        if self.shuffle_seed is not None:
            random.Random(self.shuffle_seed).shuffle(items)  # noqa: S311 - an order, not a secret
        return items


@contextmanager
def session(execution: Execution) -> Iterator[Cluster]:
    """Join the Ray cluster that is named or already joined, else start one in this process and stop it at the end.

    Raises:
        UsageError: the cluster cannot be reached.
    """
    import ray

    warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
    started = not ray.is_initialized()
    if started:
        _start(execution)
    try:
        _configure_data()
        resources = ray.cluster_resources()
        # A cluster whose GPU workers start from none says by its head how many its autoscaler can bring.
        gpus = int(max(resources.get("GPU", 0), resources.get(_TO_COME, 0)))
        # One logical CPU stays free for tokenising beside the model actors.
        workers = execution.workers or gpus or max(1, int(resources.get("CPU", 1)) - 1)
        with raylet.watched() if started else nullcontext():
            yield Cluster(workers, 1 if gpus else 0, execution.shuffle_seed)
    finally:
        if started:
            ray.shutdown()


def _start(execution: Execution) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    environment = {"env_vars": _ONE_THREAD}
    if execution.address is not None:
        if execution.address == "auto" and "://" in os.environ.get("RAY_ADDRESS", ""):  # Ray would go there, as a client.
            raise UsageError("RAY_ADDRESS names no machine of a cluster but a client's or dashboard's address; unset it")
        check_reachable(execution)
        try:
            with _silenced_stderr(), _signals_kept():
                ray.init(address=execution.address, runtime_env=environment, **quiet)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            raise UsageError(f"the Ray cluster at '{execution.address}' cannot be joined: {first_line(error)}") from None
        return
    # The dashboard would listen on a port and cost 100 MB; the auth token would be written into the user's home.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    workers = execution.workers or os.cpu_count() or 1
    try:
        with _silenced_stderr(), _signals_kept():
            ray.init(
                address="local", num_cpus=workers + 1, include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES,
                runtime_env=environment, **quiet,
            )  # fmt: skip
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        raise IncompleteRun(
            "Ray did not start on this machine within half a minute: it has too much else to do; the same command goes on"
        ) from None


def check_reachable(execution: Execution) -> None:
    """Raise where nothing listens at the address's HOST:PORT; Ray itself would go on trying for minutes.

    Raises:
        UsageError: nothing does.
    """
    address = execution.address
    if address is None:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise UsageError(f"the Ray cluster at '{address}' cannot be reached: {error.strerror or error}") from None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself and would end the process at once, with a dump and the signal's number as exit code."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _silenced_stderr() -> Iterator[None]:
    """Keep what Ray's C++ core prints on starting off the terminal; its errors come as exceptions."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _configure_data() -> None:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # What hangs ends as incomplete.
    context.execution_no_progress_timeout_s = _NO_PROGRESS_SECONDS
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def results(
    cluster: Cluster, submit: Callable[[Item], Any], items: Sequence[Item], ahead: int = 2
) -> Iterator[tuple[Item, Any]]:
    """Run one Ray task an item; yields (item, result) as they finish.

    Args:
        cluster: how many workers there are.
        submit: starts one task.
        items: what to start them with.
        ahead: tasks in flight for each worker, which bounds what they hold together.

    Raises:
        IncompleteRun: a task failed for good.
    """
    import ray

    waiting, flying = cluster.ordered(items)[::-1], dict[Any, Item]()
    with readable_failures():
        while waiting or flying:
            while waiting and len(flying) < ahead * cluster.workers:
                item = waiting.pop()
                flying[submit(item)] = item
            done, _ = ray.wait(list(flying), num_returns=1)
            for reference in done:
                yield flying.pop(reference), ray.get(reference)


def tile_results(
    cluster: Cluster, work: Callable[..., Any], arguments: tuple[Any, ...], items: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], Any]]:
    """Work through super-tiles: `work(*arguments, i, j)` as tasks, or on GPU actors that keep what they have read.

    No more tiles are in flight than there are workers: each holds two blocks of texts.

    Raises:
        IncompleteRun: a task failed for good.
    """
    import ray

    if not cluster.gpus:
        task = ray.remote(work)
        yield from results(cluster, lambda tile: task.remote(*arguments, *tile), items, ahead=1)
        return
    from ray.util import ActorPool

    actor = ray.remote(num_gpus=1, max_restarts=-1, max_task_retries=-1)(TileActor)
    with readable_failures():
        pool = ActorPool(started([actor.remote(work, arguments) for _ in range(min(cluster.workers, len(items)))]))
        yield from pool.map_unordered(lambda worker, tile: worker.work.remote(*tile), cluster.ordered(items))


def started(actors: Sequence[Any]) -> list[Any]:
    """The actors that have started: at least one, and those that need no more than twice its time.

    A cluster can be smaller than it said, since a dead node is counted until it is missed: what were given to an actor
    that finds no place would wait for ever.

    Raises:
        IncompleteRun: an actor failed to start.
    """
    import ray

    begun = time.monotonic()
    pending = {actor.__ray_ready__.remote(): actor for actor in actors}
    with readable_failures():
        if not ray.wait(list(pending), num_returns=1, timeout=_NO_PROGRESS_SECONDS)[0]:
            raise IncompleteRun(
                "no worker found a place in the Ray cluster within an hour; see what holds its processors or GPUs "
                "(ray status), and start the same command again"
            )
        patience = max(_LEAST_PATIENCE_SECONDS, 2 * (time.monotonic() - begun))
        done, late = ray.wait(list(pending), num_returns=len(pending), timeout=patience)
        ray.get(done)
    for reference in late:
        ray.kill(pending[reference])
    return [pending[reference] for reference in done]


class TileActor:
    """Works through tiles on one GPU; a process of its own, so that blocks read for one tile serve the next."""

    def __init__(self, work: Callable[..., Any], arguments: tuple[Any, ...], device: str = "cuda") -> None:
        self._work, self._arguments, self._device = work, arguments, device

    def work(self, i: int, j: int) -> tuple[tuple[int, int], Any]:
        """One tile and its result."""
        return (i, j), self._work(*self._arguments, i, j, device=self._device)


@contextmanager
def readable_failures() -> Iterator[None]:
    """Turn what Ray raises for a failed task into the sentence that its cause is."""
    import ray.exceptions

    try:
        yield
    except (ray.exceptions.RayError, RuntimeError) as error:
        if isinstance(error, RunError) and not isinstance(error, ray.exceptions.RayError):
            raise
        cause = _root_cause(error)
        if isinstance(cause, RunError):
            raise type(cause)(str(cause)) from None
        raise IncompleteRun(failure(cause)) from error


def failure(error: BaseException) -> str:
    """The sentence about what failed in a worker."""
    if isinstance(error, RunError):
        return str(error)
    return f"a worker failed with {type(error).__name__}: {first_line(error)}; start the same command again to go on"


def _root_cause(error: BaseException) -> BaseException:
    """The user code's own exception under Ray's wrappers."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        inner = getattr(error, "cause", None) or error.__cause__
        if isinstance(inner, BaseException):
            error = inner
    return error
