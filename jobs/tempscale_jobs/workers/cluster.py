"""Start or join Ray."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tempscale_jobs.config.sections import Execution
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.interrupts import release_logging
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.urls import reason
from tempscale_jobs.workers import headroom, private, raylet

_OBJECT_STORE_BYTES = 1 << 30
_TO_COME = "autoscaled_gpus"
"""The custom resource of Ray that declares how many GPUs the autoscaler can start."""
DATA_SECONDS = 3600
"""Ray Data ends after so long without progress; no unit or shard takes longer."""
_CONNECT_SECONDS = 10
_SIGTERM_SECONDS = 0.005
"""Interval at which the handler of SIGTERM is restored while Ray ends."""
_NOT_LET_IN = "; if it asks for another token, set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
"""Advice where Ray got a token and does not say why it could not connect."""
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The variables that torch's allocator reads: the first since torch 2.9, the second before."""
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
}
"""The environment of workers: Ray starts one for each processor, so more threads would compete for processors."""

HELPER_CPUS = 0.001
"""The claim of a task that runs next to actors. It is not 0: a task that claims nothing may be placed on a node without
processors, such as a cluster's head, and no autoscaler starts a node for it.
"""

_OVER_A_JOBS = {"RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
"""Adds our variables for workers to those of a submitted job; otherwise Ray refuses equal names, even with equal values."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Cluster:
    """The workers that the run may use at the same time."""

    workers: int
    gpus: int
    """GPUs of each worker: 0 or 1, which `actors_per_gpu` of them share."""
    shuffle_seed: int | None = None
    actors_per_gpu: int = 1
    keeps_crew: bool = False
    """Whether model actors, which may hold all CPUs, stay while tasks run: then tasks claim none."""
    one_at_a_time: bool = False
    """Whether only one task runs at a time, in one process: for work that takes less time than another process to start."""
    journal: Journal | None = field(default=None, compare=False, repr=False)
    """Receives the slow pieces of work."""

    @property
    def claim(self) -> dict[str, float]:
        """A worker's claim of Ray's resources: its share of a GPU, or a CPU less the claim of helpers."""
        # With a GPU it claims no CPU, which Ray would add: tasks that tokenise need those. Without a GPU, workers with whole
        # CPUs could leave nothing to the helpers of a cluster that has become smaller.
        return {"num_gpus": 1 / self.actors_per_gpu, "num_cpus": 0} if self.gpus else {"num_cpus": 1 - HELPER_CPUS}

    @property
    def resource(self) -> str:
        """The resource that workers claim."""
        return "GPU" if self.gpus else "CPU"

    @property
    def preparing(self) -> dict[str, Any]:
        """The claim of a task that prepares work: a whole CPU where workers claim GPUs only."""
        return {"num_cpus": 1 if self.gpus else HELPER_CPUS}

    @property
    def tasks(self) -> int:
        """Tasks that may run on CPUs at once: as many as workers or, where these have GPUs, all CPUs but one."""
        if self.one_at_a_time:
            return 1
        if not self.gpus:
            return self.workers
        import ray

        return max(self.workers, int(ray.cluster_resources().get("CPU", 1)) - 1)

    def ordered(self, items: Sequence[Item]) -> list[Item]:
        """The items in the given order, or in a seeded random order."""
        items = list(items)
        if self.shuffle_seed is not None:
            random.Random(self.shuffle_seed).shuffle(items)  # noqa: S311 - an order, not a secret
        return items


NODE_LABEL = "ray.io/node-id"
"""The label that Ray gives each node."""


def machines(cluster: Cluster) -> list[str]:
    """The ids of the nodes that a worker can be placed on."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    return [node["NodeID"] for node in nodes if node["Resources"].get(cluster.resource, 0) > 0]


def grows(cluster: Cluster) -> bool:
    """Whether the cluster declares more GPUs than it has."""
    import ray

    resources = ray.cluster_resources()
    return cluster.gpus > 0 and resources.get(_TO_COME, 0) > resources.get("GPU", 0)


def draining_nodes() -> set[str]:
    """The ids of the nodes that are about to leave the cluster; empty if Ray does not say."""
    from ray._private.state import state

    with suppress(Exception):  # This is no public part of Ray: a run works without it.
        return set(state.get_draining_nodes())
    return set()


def initialized() -> bool:
    """Whether Ray runs in this process, without importing it."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


@contextmanager
def session(execution: Execution, journal: Journal | None = None) -> Iterator[Cluster]:
    """Join the configured or already joined Ray cluster, or start Ray in this process and stop it at the end."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
    with nullcontext() if initialized() else _ray(execution):
        import ray

        configure_data()
        resources = ray.cluster_resources()
        # A cluster that starts without GPU workers declares the number that its autoscaler can start.
        gpus = int(max(resources.get("GPU", 0), resources.get(_TO_COME, 0)))
        # Leave one logical CPU for tokenising.
        workers = execution.workers or gpus * execution.actors_per_gpu or max(1, int(resources.get("CPU", 1)) - 1)
        yield Cluster(workers, 1 if gpus else 0, execution.shuffle_seed, execution.actors_per_gpu, journal=journal)


@contextmanager
def _ray(execution: Execution) -> Iterator[None]:
    """Join the configured cluster, or start Ray on this machine, until the block ends."""
    is_joined = execution.address is not None
    with private.surroundings(is_joined) as folder:
        import ray  # noqa: F401 - Ray reads its environment when it is imported.

        handler = signal.getsignal(signal.SIGTERM)
        try:
            try:
                if is_joined:
                    _join(execution)
                else:
                    _start(execution, folder)
            except SystemExit:  # Ray's handler would end the process with another exit code.
                raise KeyboardInterrupt from None
            finally:
                _hear_sigterm(handler)
            with raylet.watched(), nullcontext() if is_joined else headroom.kept():
                yield
        finally:
            _end(handler)


def _hear_sigterm(handler: Any) -> None:
    """Restore the handler of SIGTERM, which Ray replaces when it starts."""
    # Only the main thread may set handlers.
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def _end(handler: Any) -> None:
    """End Ray, and meanwhile restore the handler of SIGTERM, which Ray removes; a signal waits until Ray has ended."""
    import ray

    interrupted: BaseException | None = None
    release_logging()
    with ThreadPoolExecutor(1, "ray ends") as thread:
        ending = thread.submit(ray.shutdown)
        while not ending.done():
            try:
                _hear_sigterm(handler)
                wait([ending], _SIGTERM_SECONDS)
            except KeyboardInterrupt as error:
                interrupted = error
    if interrupted is not None:
        raise interrupted
    ending.result()


def holds_gpus(execution: Execution) -> bool:
    """Whether the workers of a run have GPUs: of this machine, or of the cluster that it joins."""
    if execution.address is None and not initialized():
        import torch

        return torch.cuda.device_count() > 0  # This asks the driver and does not initialise CUDA.
    with session(execution) as cluster:
        return bool(cluster.gpus)


def _join(execution: Execution) -> None:
    import ray
    from ray.exceptions import AuthenticationError

    if execution.address == "auto" and "://" in os.environ.get("RAY_ADDRESS", ""):  # Ray would start as a client.
        raise UsageError("RAY_ADDRESS names no machine of a cluster but a client's or dashboard's address; unset it")
    check_reachable(execution)
    try:
        with private.variables_set(_OVER_A_JOBS):
            ray.init(address=execution.address, runtime_env={"env_vars": _ONE_THREAD}, **_quiet())
    except AuthenticationError:
        raise UsageError(
            f"the Ray cluster at '{execution.address}' asks for its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
            "or RAY_AUTH_TOKEN_PATH where it is not in ~/.ray/auth_token"
        ) from None
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        mend = "" if os.environ.get("RAY_AUTH_MODE") != "token" else _NOT_LET_IN
        problem = f"the Ray cluster at '{execution.address}' cannot be joined: {reason(error)}{mend}"
        raise UsageError(problem) from None


def _start(execution: Execution, folder: str) -> None:
    import ray

    before, cpus = set(_children()), cpus_of_ray(execution.workers, os.cpu_count() or 1, holds_gpus(execution))
    try:
        # Workers that Ray starts at once do not get a runtime_env: they would stay idle, and the first task and the first
        # actor would each wait two seconds for another worker.
        with private.variables_set(_ONE_THREAD):
            ray.init(
                address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=folder, **_quiet(),
            )  # fmt: skip
        private.close_folders(folder)
    except BaseException as error:
        if not ray.is_initialized():  # Ray would end the processes that it began only with this process.
            for process in set(_children()) - before:
                process.kill()
        if "timed out during startup" not in str(error):
            raise
        raise IncompleteRun(
            "Ray did not start on this machine within half a minute: the machine is too busy; start the same command again"
        ) from None


def cpus_of_ray(workers: int | None, processors: int, gpus: bool) -> int:
    """The CPUs of a Ray that is started here: one for each worker and one more; with GPUs all, which tokenise for them."""
    wanted = (workers or processors) + 1
    return max(wanted, processors) if gpus else wanted


def _children() -> list[Any]:
    """The processes below this one."""
    import psutil

    return list(psutil.Process().children(recursive=True))


def _quiet() -> dict[str, Any]:
    """Options for every start of Ray: print nothing, and import nothing from the current folder."""
    return {"log_to_driver": False, "logging_level": logging.ERROR, "job_config": private.job()}


def check_reachable(execution: Execution) -> None:
    """Raise a UsageError if nothing listens at the address's HOST:PORT; Ray would try for minutes."""
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


def configure_data() -> None:
    """Let Ray Data print nothing, and end its waits."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A pipeline that hangs ends as an incomplete run.
    context.execution_no_progress_timeout_s = DATA_SECONDS
    # Its errors reach us as exceptions, which become sentences; it would also print tracebacks. ray-data.log in the
    # cluster's logs has them, and its warnings.
    logger = logging.getLogger("ray.data")
    logger.setLevel(logging.WARNING)
    for handler in [*logger.handlers]:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            logger.removeHandler(handler)


def grow_segments() -> None:
    """Let torch's allocator grow its segments of a GPU's memory, unless the node's environment says otherwise."""
    # Blocks of many sizes would fragment fixed segments. The allocator reads its settings when CUDA is first used.
    if not any(os.environ.get(name) for name in ALLOCATOR):
        os.environ.update(dict.fromkeys(ALLOCATOR, "expandable_segments:True"))
