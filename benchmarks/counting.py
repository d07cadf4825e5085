"""Storage operations and bytes of a run, counted in all of its processes, and its steps with what each of them took.

Counts are kept outside of the product: a setup hook of Ray's workers, and the same in the process that starts the run,
wrap the local file system. Each process adds to a small file of its own, so that nothing is lost when a worker is killed.
"""

from __future__ import annotations

import functools
import importlib
import json
import mmap
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import numpy as np
import psutil
from typing_extensions import override

from tempscale_jobs.runs.observing import Observer

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER, CONSTANTS = "TEMPSCALE_COUNTED_IN", "TEMPSCALE_CONSTANTS"
"""Environment variables: the folder of the counts, and constants of modules that workers replace, as JSON."""
ASKED = {
    "ask": ("exists", "info", "size", "isfile", "isdir"),
    "list": ("ls", "find", "glob"),
    "remove": ("rm", "rm_file", "rmdir"),
}
"""Methods of a file system by what they count as. An operation inside another is not counted."""


@dataclass(frozen=True)
class Counts:
    """Operations by kind, and bytes. A file that is opened is one read, however often it is read from."""

    read: int = 0
    write: int = 0
    list: int = 0
    ask: int = 0
    """Whether there is a file, and how long it is."""
    remove: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    names: int = 0
    """Names that were listed."""

    @property
    def operations(self) -> int:
        """All of them together."""
        return self.read + self.write + self.list + self.ask + self.remove

    @property
    def bytes(self) -> int:
        """Read and written."""
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


_NAMES = [f.name for f in fields(Counts)]


class _Own:
    """The counts of this process, in a file of their own."""

    def __init__(self, folder: str) -> None:
        file = Path(folder, f"{os.getpid()}-{uuid.uuid4().hex[:8]}")
        file.write_bytes(bytes(8 * len(_NAMES)))
        with open(file, "r+b") as stream:
            self._map = mmap.mmap(stream.fileno(), 0)
        self._values, self._lock, self._inside = np.frombuffer(self._map, np.int64), threading.Lock(), threading.local()

    def add(self, **numbers: int) -> None:
        """Add to some of the counts."""
        with self._lock:
            for name, number in numbers.items():
                self._values[_NAMES.index(name)] += number

    def counts(self) -> Counts:
        """The counts so far."""
        with self._lock:
            return Counts(*self._values.tolist())

    @contextmanager
    def operation(self, kind: str) -> Iterator[bool]:
        """Count an operation, unless it is part of another; says whether it is counted."""
        outer = not getattr(self._inside, "busy", False)
        if not outer:
            yield False
            return
        self.add(**{kind: 1})
        self._inside.busy = True
        try:
            yield True
        finally:
            self._inside.busy = False


def total(folder: str | Path) -> Counts:
    """The counts of all processes together."""
    found = [np.frombuffer(file.read_bytes(), np.int64) for file in Path(folder).iterdir()]
    return Counts(*np.sum(found, axis=0).tolist()) if found else Counts()


class _Counted:
    """An open file that counts the bytes that are read from it."""

    def __init__(self, stream: Any, own: _Own) -> None:
        self.__dict__.update(_stream=stream, _own=own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._stream, name, value)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stream.__exit__(kind, error, trace)

    def read(self, *size: Any) -> bytes:
        return self._known(self._stream.read(*size))

    def read1(self, *size: Any) -> bytes:
        return self._known(self._stream.read1(*size))

    def readline(self, *size: Any) -> bytes:
        return self._known(self._stream.readline(*size))

    def readlines(self, *hint: Any) -> list[bytes]:
        return [self._known(line) for line in self._stream.readlines(*hint)]

    def readinto(self, buffer: Any) -> int:
        found: int = self._stream.readinto(buffer)
        self._own.add(bytes_read=found or 0)
        return found

    def _known(self, data: bytes) -> bytes:
        self._own.add(bytes_read=len(data))
        return data


@contextmanager
def _wrapped(folder: str, constants: Mapping[str, Any]) -> Iterator[_Own]:
    """Count in this process, with other values of constants, `module:NAME`."""
    from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

    from tempscale_jobs.runs import storage

    own = _Own(folder)

    def counted(kind: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(*given: Any, **how: Any) -> Any:
            with own.operation(kind) as outer:
                found = method(*given, **how)
            if outer and kind == "list":
                own.add(names=len(found))
            return found

        return wrapper

    opened, temporary = LocalFileOpener._open, storage._temporary

    def reading(self: Any) -> None:
        opened(self)
        if "r" in self.mode and not isinstance(self.f, _Counted):
            own.add(read=1)
            self.f = _Counted(self.f, own)

    def writing(target: str, data: bytes, durable: bool) -> Any:
        own.add(write=1, bytes_written=len(data))
        return temporary(target, data, durable)

    with ExitStack() as stack:
        for kind, names in ASKED.items():
            for name in names:
                stack.enter_context(mock.patch.object(LocalFileSystem, name, counted(kind, getattr(LocalFileSystem, name))))
        stack.enter_context(mock.patch.object(LocalFileOpener, "_open", reading))
        stack.enter_context(mock.patch.object(storage, "_temporary", writing))
        for place, value in constants.items():
            module, name = place.split(":")
            stack.enter_context(mock.patch.object(importlib.import_module(module), name, value))
        yield own


_held = ExitStack()


def install() -> None:
    """Count in a worker from now on: the setup hook of Ray's workers."""
    _held.enter_context(_wrapped(os.environ[FOLDER], json.loads(os.environ[CONSTANTS])))


@contextmanager
def counted(folder: Path, constants: Mapping[str, Any] | None = None) -> Iterator[_Own]:
    """Count in this process and in the workers of the Ray that it starts in the block, in files in `folder`.

    `constants` are values that replace those of modules, `module:NAME`, in all of these processes.
    """
    import ray

    folder.mkdir(parents=True, exist_ok=True)
    init, given = ray.init, dict(constants or {})
    paths = [str(REPOSITORY), str(REPOSITORY / "jobs"), *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {FOLDER: str(folder), CONSTANTS: json.dumps(given), "PYTHONPATH": os.pathsep.join(paths)}

    def with_hook(*arguments: Any, **how: Any) -> Any:
        environment = dict(how.pop("runtime_env", None) or {})
        environment["env_vars"] = environment.get("env_vars", {}) | more
        return init(*arguments, **how, runtime_env=environment | {"worker_process_setup_hook": f"{__name__}.install"})

    with _wrapped(str(folder), given) as own, mock.patch.object(ray, "init", with_hook):
        yield own


def audited(folder: Path, data: Mapping[str, Any], constants: Mapping[str, Any] | None = None) -> dict[str, Step]:
    """Run an audit in a process of its own, which is its driver, with its run in `folder`; return its steps."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {"data": {**data, "out": str(folder / "run")}, "constants": constants or {}}
    (folder / "given.json").write_text(json.dumps(given), "utf-8")
    command = [sys.executable, "-c", "import sys; from benchmarks import counting; counting.main(sys.argv[1])", str(folder)]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    found = json.loads((folder / "steps.json").read_text("utf-8"))
    return {
        name: Step(**step | {whose: Counts(**step[whose]) for whose in ("driver", "every")}) for name, step in found.items()
    }


def main(folder: str) -> None:
    """Run the audit that `audited` has written down."""
    given, counts = json.loads(Path(folder, "given.json").read_text("utf-8")), Path(folder, "counts")
    with counted(counts, given["constants"]) as own:
        from rich.console import Console

        from tempscale_jobs.audit.run import audit
        from tempscale_jobs.config.audit import resolve
        from tempscale_jobs.runs.journal import Journal

        steps = Steps(own, counts)
        with steps.watched(), closing(Journal(Console(stderr=True), [steps])) as journal:
            audit(resolve(given["data"]), journal)
    found = {name: asdict(step) for name, step in steps.steps.items()}
    Path(folder, "steps.json").write_text(json.dumps(found), "utf-8")


# --- steps ------------------------------------------------------------------------------------------------------------


PARTS = {
    "tempscale_jobs.audit.run:layout": "layout",
    "tempscale_jobs.steps.cosine:gather": "cosine: blocks",
    "tempscale_jobs.steps.cosine:_closed_form": "cosine: sums",
    "tempscale_jobs.steps.cosine:_text_means": "cosine: means by text",
    "tempscale_jobs.steps.cosine:compare_grid": "cosine: tiles",
    "tempscale_jobs.steps.exposure:_duplicates": "exposure: near-duplicates of the tiles",
    "tempscale_jobs.steps.neighbours:merge": "exposure: neighbours of the tiles",
    "tempscale_jobs.steps.neighbours:search": "exposure: neighbours of a sample",
    "tempscale_jobs.steps.counts:count": "exposure: counts",
    "tempscale_jobs.steps.source_order:look": "order of the source",
}
"""Functions of the process that starts a run which are steps of their own inside a stage, or between stages."""
OF_TILES = ("cosine: tiles", "exposure: near-duplicates of the tiles", "exposure: neighbours of the tiles")
"""The steps that grow as the pairs of panels do."""
_SAMPLE_SECONDS = 0.02


@dataclass
class Step:
    """What a step took; one that occurs several times is added up."""

    seconds: float = 0.0
    driver_seconds: float = 0.0
    """Processor time of the process that starts the run."""
    driver_peak_bytes: int = 0
    """The largest memory of its own of this process, without files that are mapped into it."""
    driver: Counts = field(default_factory=Counts)
    every: Counts = field(default_factory=Counts)
    """Of all processes."""


class Steps(Observer):
    """The steps of a run by name, in their order: the stages of the journal, PARTS, and what is between stages."""

    def __init__(self, own: _Own, folder: Path) -> None:
        super().__init__()
        self.steps: dict[str, Step] = {}
        self._own, self._folder, self._names = own, folder, ["start"]
        self._peak, self._process, self._stopped = 0, psutil.Process(), threading.Event()
        self._last = self._now()

    @override
    def stage(self, name: str, total: int | None) -> None:
        super().stage(name, total)
        self._turn([name])

    @override
    def say(self, event: str, message: str, seconds: float | None = None) -> None:
        if event == "done":
            self._turn([f"after {self._names[-1]}"])

    @contextmanager
    def watched(self) -> Iterator[Steps]:
        """Note the steps of what runs in the block."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            with ExitStack() as stack:
                for place, step in PARTS.items():
                    module, name = place.split(":")
                    target = importlib.import_module(module)
                    stack.enter_context(mock.patch.object(target, name, self._noted(step, getattr(target, name))))
                yield self
        finally:
            self._turn(["end"])
            self._stopped.set()
            thread.join()

    def _noted(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*given: Any, **how: Any) -> Any:
            before = self._names
            self._turn([*before, step])
            try:
                return function(*given, **how)
            finally:
                self._turn(before)

        return wrapper

    def _turn(self, names: list[str]) -> None:
        """End the step so far, and begin another."""
        seconds, processor, driver, every = self._now()
        self._peak = max(self._peak, self._memory())
        step = self.steps.setdefault(self._names[-1], Step())
        step.seconds += seconds - self._last[0]
        step.driver_seconds += processor - self._last[1]
        step.driver += driver - self._last[2]
        step.every += every - self._last[3]
        step.driver_peak_bytes = max(step.driver_peak_bytes, self._peak)
        self._names, self._peak, self._last = names, 0, (seconds, processor, driver, every)

    def _now(self) -> tuple[float, float, Counts, Counts]:
        return time.monotonic(), time.process_time(), self._own.counts(), total(self._folder)

    def _watch(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            self._peak = max(self._peak, self._memory())

    def _memory(self) -> int:
        memory = self._process.memory_info()
        return int(memory.rss - memory.shared)
