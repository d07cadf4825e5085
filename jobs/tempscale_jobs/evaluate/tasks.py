"""The tasks of an evaluation: mteb's tasks and benchmarks by name, and a user's; workers load their data."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from tempscale.optional import missing, needs
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.evaluate import Corrected, OwnTask, Scoring, TaskFile
from tempscale_jobs.corpus import sources
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import Model, Run, place
from tempscale_jobs.tables.evaluate import CELLS
from tempscale_jobs.urls import reason

_ALIKE = 5
PLAIN = "none"
"""The name for embeddings without a correction."""
PIECE_TEXTS = 16_384
"""The most texts that are batched together: a larger call of mteb is divided into such pieces."""
_READ_BYTES = 64_000_000


class RunTask(NamedTuple):
    """One task of a run."""

    name: str
    benchmark: str | None
    """The benchmark that chooses its subsets; None if the user named the task itself."""
    own: dict[str, Any] | None
    """A user's `OwnTask` as plain data; None for a task of mteb."""
    sides: bool
    """Whether the task has queries and documents."""

    @property
    def slug(self) -> str:
        """The name in a form that is safe in paths."""
        return "".join(c if c.isalnum() or c in "._-" else f"%{ord(c):02x}" for c in self.name)


@dataclass(frozen=True)
class Evaluation:
    """The run, its tasks, and the sections of the configuration that its steps read."""

    run: Run
    units: tuple[RunTask, ...]
    embedding: Scoring
    edges: tuple[int, ...]
    """Lower edges of the length intervals."""
    seed: int
    corrections: Corrected = field(default_factory=lambda: Corrected.model_validate({}))

    @functools.cached_property
    def states(self) -> dict[str, Any]:
        """The state of each task's data when the run begins, in which workers must read it."""
        return {unit.name: state(unit) for unit in self.units}

    @property
    def given(self) -> list[Temperature]:
        """The run's temperatures without the grid's pairs of roles."""
        return self.run.temperatures[: len(self.embedding.temperatures)]

    def temperatures(self, unit: RunTask) -> list[Temperature]:
        """The temperatures of a task, with the grid's pairs of roles if it has two sides."""
        return self.run.temperatures if unit.sides else self.given

    @property
    def cells(self) -> int:
        """Number of cells of one model."""
        return sum(len(self.temperatures(unit)) for unit in self.units)


def folder(model: Model, temperature: Temperature, unit: RunTask) -> str:
    """The folder of a cell; `result.json` is written last."""
    return f"{place(CELLS, model, temperature)}/task={unit.slug}"


def corrected_folder(cell: str, recipe: str) -> str:
    """The folder of a cell's results with a correction, or with `PLAIN`."""
    return f"{cell}/corrected/{slug_of(recipe)}"


def slug_of(recipe: str) -> str:
    """A correction's canonical text as part of a file's name: csls(10, 0.5) is csls-10-0.5."""
    return recipe.replace("(", "-").replace(")", "").replace(", ", "-")


def expand(tasks: Sequence[str | OwnTask]) -> list[RunTask]:
    """The distinct tasks of a run in the configured order, with each benchmark replaced by its tasks."""
    units: dict[str, RunTask] = {}
    for task in tasks:
        user_unit = None
        if isinstance(task, OwnTask):
            library()  # A user's task needs mteb too.
            user_unit = RunTask(task.name, None, task.model_dump(mode="json"), task.type in ("retrieval", "reranking"))
        for unit in [user_unit] if user_unit is not None else _named(str(task)):
            earlier = units.setdefault(unit.name, unit)
            if (earlier.own is None) != (unit.own is None):
                raise UsageError(f"task '{unit.name}' is both yours and MTEB's; give yours another name")
    return list(units.values())


def _named(name: str) -> list[RunTask]:
    mteb = library()
    try:
        return [RunTask(task.metadata.name, name, None, _sides(task)) for task in mteb.get_benchmark(name).tasks]
    except (KeyError, ValueError):
        pass
    try:
        task = mteb.get_task(name)
        return [RunTask(task.metadata.name, None, None, _sides(task))]
    except (KeyError, ValueError):
        known = [*(b.name for b in mteb.get_benchmarks()), *(t.metadata.name for t in mteb.get_tasks())]
        lower = {other.lower(): other for other in known}
        alike = [lower[other] for other in difflib.get_close_matches(name.lower(), lower, _ALIKE, 0.6)]
        hint = f"; did you mean {' or '.join(alike)}?" if alike else "; mteb.get_tasks() lists its names"
        raise UsageError(f"MTEB has no task or benchmark '{name}'{hint} (your own data: --task TYPE:FOLDER)") from None


def _sides(task: Any) -> bool:
    return str(task.metadata.type) in ("Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking")


def library() -> Any:
    """The module mteb; raises UsageError if it is not installed."""
    try:
        import mteb
    except ImportError as error:
        raise UsageError(needs("the scoring of tasks", missing(error) or "mteb")) from None
    return mteb


def load(unit: RunTask, seed: int, tokenizer: Any, edges: Sequence[int], columns: Sequence[str] = ()) -> Any:
    """An mteb task with its data; only a user's task needs seed, tokenizer, edges and the `columns` of `build`."""
    if unit.own is not None:
        from tempscale_jobs.evaluate.own_tasks import build  # It imports mteb, which may not be installed.

        return build(OwnTask.model_validate(unit.own), seed, tokenizer, edges, columns)
    mteb = library()
    if unit.benchmark is None:
        task = mteb.get_task(unit.name)
    else:
        task = next(task for task in mteb.get_benchmark(unit.benchmark).tasks if task.metadata.name == unit.name)
    if "text" not in task.metadata.modalities:
        raise UsageError(f"task '{unit.name}' is about {' and '.join(task.metadata.modalities)}; only texts are embedded")
    try:
        task.load_data()
    except Exception as error:  # The hub's client and each data set's script raise exceptions of many types.
        if isinstance(error, (ConnectionError, TimeoutError)) or "offline" in str(error).lower():
            raise UsageError(
                f"task '{unit.name}' needs the network, which does not answer ({reason(error)}); start the same command "
                "again where it does, or give the data as your own task"
            ) from None
        raise UsageError(f"task '{unit.name}': its data cannot be loaded: {reason(error)}") from None
    return task


def check(units: Sequence[RunTask], seed: int, columns: Sequence[str] = ()) -> None:
    """Raise a UsageError if the files of a user's task cannot be used; at most 64 MB are read for this, and one row of
    larger documents that need `columns`.
    """
    from tempscale_jobs.evaluate.own_tasks import build, check_first  # It imports mteb, which may not be installed.

    for unit in units:
        if unit.own is None:
            continue
        current = state(unit) or {}
        if "problem" in current:
            raise UsageError(current["problem"])
        sizes = {name: facts[0] for files in current.values() for name, facts in files.items() if isinstance(facts, list)}
        is_known = all(size is not None and sources.is_read_twice(name) for name, size in sizes.items())
        own = OwnTask.model_validate(unit.own)
        if sizes and is_known and sum(sizes.values()) <= _READ_BYTES:
            build(own, seed, columns=columns)
        elif columns and own.corpus is not None and sources.is_read_twice(own.corpus):
            check_first(own, columns)


def state(unit: RunTask) -> dict[str, Any] | None:
    """The state of the files of a user's task; None for a task of the hub."""
    if unit.own is None:
        return None
    names = ("source", "corpus", "queries", "qrels")
    try:
        return {name: sources.content(TaskFile(unit.own[name])) for name in names if unit.own[name] is not None}
    except UsageError as error:  # The cell reports it when it is scored.
        return {"problem": str(error)}


def texts(task: Any) -> Iterator[str]:
    """The texts of a loaded task, documents before queries."""
    parts = task.dataset.values() if task.dataset is not None else ()
    for part in parts:
        splits = part.values() if hasattr(part, "values") else [part]
        for split in splits:
            # Retrieval has a data set for each side of a split; other types have one for a split.
            sides = [split[name] for name in ("corpus", "queries") if name in split] if isinstance(split, dict) else [split]
            for rows in sides:
                for name in ("text", "sentences", "sentence1", "sentence2"):
                    if name in (names := getattr(rows, "column_names", ())):
                        titles = rows["title"] if name == "text" and "title" in names else repeat(None)
                        for candidates in zip(rows[name], titles, strict=False):  # A document may be its title alone.
                            yield from [text for text in candidates if isinstance(text, str) and text.strip()][:1]
