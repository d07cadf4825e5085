"""Start or join Ray."""

from __future__ import annotations

import ctypes
import logging
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tempscale_jobs.config.sections import Execution
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.outlets import Outlet
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.urls import reason
from tempscale_jobs.workers import headroom, private, raylet

_OBJECT_STORE_BYTES = 1 << 30
_TO_COME = "autoscaled_gpus"
"""The custom resource of Ray with the number of GPUs that the autoscaler can start."""
DATA_SECONDS = 3600
"""After which Ray Data ends where nothing moves; longer than any unit or shard takes."""
_CONNECT_SECONDS = 10
_NOT_LET_IN = "; if it asks for another token, set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
"""What to do where Ray was given a token and does not say why it could not connect."""
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The variables that torch's allocator reads: the first from 2.9 on, the second before."""
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "POLARS_MAX_THREADS": "1",
}
"""The environment of workers. Ray starts as many of them as there are processors, and one thread more would take turns with
another's."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Cluster:
    """The workers that the run may use at the same time."""

    workers: int
    gpus: int
    """GPUs of each worker: 0 or 1, which `actors_per_gpu` of them share."""
    shuffle_seed: int | None = None
    actors_per_gpu: int = 1
    journal: Journal | None = field(default=None, compare=False, repr=False)
    """Is told which pieces of work are slow."""

    @property
    def claim(self) -> dict[str, float]:
        """What a worker claims of Ray's resources: its share of a GPU, or a CPU."""
        return {"num_gpus": 1 / self.actors_per_gpu} if self.gpus else {"num_cpus": 1}

    @property
    def tasks(self) -> int:
        """Tasks that may run on CPUs at once: as many as workers; where these hold GPUs, as there are CPUs but one."""
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


class _Ahead:
    """Ray, which starts in a thread while this process does something else, or waits for it.

    In the main thread Ray would take SIGTERM for itself, and end the process with a code of its own while it starts. The
    thread lives as long as Ray does: the kernel ends a child process with the thread that started it.
    """

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._error: BaseException | None = None
        self._kept = ExitStack()
        """What lasts as long as Ray does."""
        self._folder = self._kept.enter_context(private.surroundings(joined=execution.address is not None))
        # Set here, in the main thread: progress bars replace sys.stderr too, and put back what they found.
        self._stderr = _beside_two()
        self._replaced = _inherited() if execution.address is None else {}
        self._done, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            _start(self._execution, self._folder)
        except BaseException as error:
            self._error = error
        self._done.set()
        self._ended.wait()

    def wait(self) -> None:
        """Wait until Ray has started; raise what prevented it."""
        self._done.wait()
        self._restore()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop Ray, if it started."""
        import ray

        self._done.wait()
        self._restore()
        with self._kept:
            if self._error is None or ray.is_initialized():
                ray.shutdown()
            self._ended.set()
            self._thread.join()
        if self._stderr is not None:
            sys.stderr, mine = self._stderr, sys.stderr
            mine.close()

    def _restore(self) -> None:
        for name, value in self._replaced.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._replaced = {}


def _inherited() -> dict[str, str | None]:
    """Set what Ray's processes on this machine inherit; return what this process had.

    A runtime_env would do it too, but not of the workers that Ray starts with itself: those would stay idle, and the first
    task and the first actor would each wait two seconds for another.
    """
    if "polars" in sys.modules:
        sys.modules["polars"].thread_pool_size()  # The threads of this process are begun before: it has all its processors.
    own = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    return own


@contextmanager
def _sigterm_kept(inherited: bool) -> Iterator[None]:
    """Put back this process's handler of SIGTERM when Ray has started, whose core would end the process by a dump.

    Only the main thread may do that in Python, and it reads the corpus meanwhile. The command line waits for the signal in a
    thread and blocks it in all others (see `cli.app`); where it is `inherited`, Ray's own processes must hear it.
    """
    get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
    get.restype = put.restype = ctypes.c_void_p
    get.argtypes, put.argtypes = [ctypes.c_int], [ctypes.c_int, ctypes.c_void_p]
    own = get(signal.SIGTERM)
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK if inherited else signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        put(signal.SIGTERM, own)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


_ahead: list[_Ahead] = []
"""At most one."""


@contextmanager
def session_ahead(execution: Execution) -> Iterator[None]:
    """Start Ray on this machine in the background; a `session` in the block waits for it. A cluster is joined there only."""
    if initialized() or execution.address is not None:
        yield
        return
    _ahead.append(_Ahead(execution))
    try:
        yield
    finally:
        _ahead.pop().stop()


def initialized() -> bool:
    """Whether Ray runs in this process, without importing it."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


@contextmanager
def session(execution: Execution, journal: Journal | None = None) -> Iterator[Cluster]:
    """Join the configured or already joined Ray cluster, or start one in this process and stop it at the end.

    The journal is told which pieces of work are slow.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
    if _ahead:
        _ahead[-1].wait()
    begun_ahead, started = bool(_ahead), not initialized()
    own = _Ahead(execution) if started else None  # Before Ray is imported, which reads its environment then.
    try:
        if own is not None:
            own.wait()
        import ray

        configure_data()
        resources = ray.cluster_resources()
        # A cluster that starts without GPU workers declares the number that its autoscaler can start.
        gpus = int(max(resources.get("GPU", 0), resources.get(_TO_COME, 0)))
        # Keep one logical CPU for tokenising.
        workers = execution.workers or gpus * execution.actors_per_gpu or max(1, int(resources.get("CPU", 1)) - 1)
        with ExitStack() as watches:
            if started or begun_ahead:
                watches.enter_context(raylet.watched())
            if begun_ahead or (started and execution.address is None):
                watches.enter_context(headroom.kept())
            yield Cluster(workers, 1 if gpus else 0, execution.shuffle_seed, execution.actors_per_gpu, journal)
    finally:
        if own is not None:
            own.stop()


def holds_gpus(execution: Execution) -> bool:
    """Whether the workers of a run hold GPUs: those of this machine, or of the cluster that it joins."""
    if execution.address is None and not initialized():
        import torch

        return torch.cuda.device_count() > 0  # It asks the driver, and does not begin CUDA.
    with session(execution) as cluster:
        return bool(cluster.gpus)


def _start(execution: Execution, folder: str) -> None:
    import ray
    from ray.exceptions import AuthenticationError

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "job_config": private.job()}
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    if execution.address is not None:
        if execution.address == "auto" and "://" in os.environ.get("RAY_ADDRESS", ""):  # Ray would be a client there.
            raise UsageError("RAY_ADDRESS names no machine of a cluster but a client's or dashboard's address; unset it")
        check_reachable(execution)
        try:
            with _silenced_stderr(), _sigterm_kept(inherited=False):
                ray.init(address=execution.address, runtime_env={"env_vars": _ONE_THREAD}, **quiet)
        except AuthenticationError:
            raise UsageError(
                f"the Ray cluster at '{execution.address}' asks for its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
                "or RAY_AUTH_TOKEN_PATH where it is not in ~/.ray/auth_token"
            ) from None
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            mend = "" if os.environ.get("RAY_AUTH_MODE") != "token" else _NOT_LET_IN
            problem = f"the Ray cluster at '{execution.address}' cannot be joined: {reason(error)}{mend}"
            raise UsageError(problem) from None
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    workers = execution.workers or os.cpu_count() or 1
    try:
        with _silenced_stderr(), _sigterm_kept(inherited=True):
            ray.init(
                address="local", num_cpus=workers + 1, include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES,
                _temp_dir=folder, **quiet,
            )  # fmt: skip
        private.close_folders(folder)
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        raise IncompleteRun(
            "Ray did not start on this machine within half a minute: it has too much else to do; the same command goes on"
        ) from None


def check_reachable(execution: Execution) -> None:
    """Raise a UsageError if nothing listens at the address's HOST:PORT; Ray itself would try for minutes."""
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
def _silenced_stderr() -> Iterator[None]:
    """Hide the start messages of Ray's C++ core; its errors are raised as exceptions. What Python writes is still seen."""
    own = _beside_two()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        if own is not None:
            sys.stderr, other = own, sys.stderr
            other.close()
        os.close(kept)
        os.close(nowhere)


def _beside_two() -> Any:
    """Let `sys.stderr` write to a copy of file descriptor 2; return what it was, or None where it is no such file."""
    own = sys.stderr
    own.flush()
    if not _is_two(own):
        return None
    sys.stderr = Outlet(open(os.dup(2), "w", buffering=1, encoding=own.encoding, errors=own.errors))  # noqa: SIM115
    return own


def _is_two(stream: Any) -> bool:
    """Whether a stream writes to file descriptor 2."""
    try:
        return bool(stream.fileno() == 2)
    except (OSError, ValueError, AttributeError):  # As test runners replace it.
        return False


def configure_data() -> None:
    """Ray Data in silence, and with an end to its waits."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # A pipeline that hangs ends as an incomplete run.
    context.execution_no_progress_timeout_s = DATA_SECONDS
    # Its errors reach us as exceptions, which become sentences; it would print their tracebacks besides.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


def grow_segments() -> None:
    """Let torch's allocator grow its segments of a GPU's memory, which blocks of many sizes would fragment.

    Before CUDA is first used, when the allocator reads its settings. What the environment of the node says is kept.
    """
    if not any(os.environ.get(name) for name in ALLOCATOR):
        os.environ.update(dict.fromkeys(ALLOCATOR, "expandable_segments:True"))
