"""What an evaluation runs: tasks and benchmarks of mteb by name, and tasks of one's own; loaded where they are scored."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jobs import sources
from jobs.errors import UsageError
from jobs.evaluate_config import EvaluateConfig, OwnTask, TaskFile
from jobs.evaluate_schema import CELLS
from jobs.runs import Model, RunOf
from tempscale.checkpoint import first_line, read_json, resolve
from tempscale.temperature import Temperature

_ALIKE = 5


class Unit(NamedTuple):
    """One task of a run."""

    name: str
    benchmark: str | None
    """Whose choice of subsets it has; None where the task is named itself."""
    own: dict[str, Any] | None
    """An `OwnTask` as plain data."""
    sides: bool
    """Whether it has queries and documents."""

    def temperatures(self, run: RunOf[Any]) -> list[Temperature]:
        """Those of the run; the grid's pairs of roles for tasks with two sides only."""
        return run.temperatures if self.sides else given(run)

    @property
    def slug(self) -> str:
        """The name as a folder's."""
        return "".join(c if c.isalnum() or c in "._-" else f"%{ord(c):02x}" for c in self.name)


Evaluation = RunOf[EvaluateConfig]
"""An evaluation."""


def folder(run: Evaluation, model: Model, temperature: Temperature, unit: Unit) -> str:
    """Where a cell's parts lie; `result.json` is written last."""
    return f"{run.place(CELLS, model, temperature)}/task={unit.slug}"


def given(run: Evaluation) -> list[Temperature]:
    """The run's temperatures without the grid's pairs of roles."""
    return run.temperatures[: len(run.config.embedding.temperatures)]


def expand(tasks: Sequence[str | OwnTask]) -> list[Unit]:
    """The tasks of a run in the order given, those of a benchmark each by itself; a task that comes twice, once.

    Raises:
        UsageError: mteb is not installed, or knows no task or benchmark of a name.
    """
    found: dict[str, Unit] = {}
    for task in tasks:
        own = None
        if isinstance(task, OwnTask):
            library()  # Without it a task of one's own cannot be scored either.
            own = Unit(task.name, None, task.model_dump(mode="json"), task.type in ("retrieval", "reranking"))
        for unit in [own] if own is not None else _named(str(task)):
            earlier = found.setdefault(unit.name, unit)
            if (earlier.own is None) != (unit.own is None):
                raise UsageError(f"task '{unit.name}' is both yours and MTEB's; give yours another name")
    return list(found.values())


def _named(name: str) -> list[Unit]:
    mteb = library()
    try:
        return [Unit(task.metadata.name, name, None, _sides(task)) for task in mteb.get_benchmark(name).tasks]
    except (KeyError, ValueError):
        pass
    try:
        task = mteb.get_task(name)
        return [Unit(task.metadata.name, None, None, _sides(task))]
    except (KeyError, ValueError):
        known = [*(b.name for b in mteb.get_benchmarks()), *(t.metadata.name for t in mteb.get_tasks())]
        lower = {other.lower(): other for other in known}
        alike = [lower[other] for other in difflib.get_close_matches(name.lower(), lower, _ALIKE, 0.6)]
        hint = f"; did you mean {' or '.join(alike)}?" if alike else "; mteb.get_tasks() lists its names"
        raise UsageError(f"MTEB has no task or benchmark '{name}'{hint} (data of your own: --task TYPE:FOLDER)") from None


def _sides(task: Any) -> bool:
    return str(task.metadata.type) in ("Retrieval", "Reranking", "InstructionRetrieval", "InstructionReranking")


def library() -> Any:
    """The module mteb.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import mteb
    except ImportError:
        raise UsageError("tempscale evaluate needs mteb; install it: pip install 'tempscale[evaluate]'") from None
    return mteb


def load(unit: Unit, seed: int, tokenizer: Any, edges: Sequence[int]) -> Any:
    """The task with its data.

    Args:
        unit: which.
        seed: of what is drawn from data of one's own.
        tokenizer: tells lengths where texts are to be chosen by length interval.
        edges: of the length intervals.

    Raises:
        UsageError: its data cannot be had or used; one sentence.
    """
    if unit.own is not None:
        from jobs.own_tasks import build  # With mteb, which not everyone has.

        return build(OwnTask.model_validate(unit.own), seed, tokenizer, edges)
    mteb = library()
    if unit.benchmark is None:
        task = mteb.get_task(unit.name)
    else:
        task = next(task for task in mteb.get_benchmark(unit.benchmark).tasks if task.metadata.name == unit.name)
    if "text" not in task.metadata.modalities:
        raise UsageError(f"task '{unit.name}' is about {' and '.join(task.metadata.modalities)}; only texts are embedded")
    try:
        task.load_data()
    except Exception as error:  # The hub's client has exceptions of its own, and so has each data set's script.
        if isinstance(error, (ConnectionError, TimeoutError)) or "offline" in str(error).lower():
            raise UsageError(
                f"task '{unit.name}' needs the network, which does not answer ({first_line(error)}); start the same command "
                "again where it does, or give the data as a task of your own"
            ) from None
        raise UsageError(f"task '{unit.name}': its data cannot be loaded: {first_line(error)}") from None
    return task


def state(unit: Unit) -> dict[str, Any] | None:
    """What shows whether the files of a task of one's own changed between two looks; None for the hub's."""
    if unit.own is None:
        return None
    names = ("source", "corpus", "queries", "qrels")
    try:
        return {name: sources.state(TaskFile(unit.own[name])) for name in names if unit.own[name] is not None}
    except UsageError as error:  # Told where the cell is made.
        return {"problem": str(error)}


def prompts(model: str) -> dict[str, str]:
    """The prompts that a sentence-transformers folder names; none where it names none."""
    file = Path(resolve(model)) / "config_sentence_transformers.json"
    found = read_json(file) if file.is_file() else {}
    return {name: text for name, text in (found.get("prompts") or {}).items() if isinstance(text, str)}


def texts(task: Any) -> Iterator[str]:
    """The texts of a loaded task, documents before queries."""
    parts = task.dataset.values() if task.dataset is not None else ()
    for part in parts:
        splits = part.values() if hasattr(part, "values") else [part]
        for split in splits:
            # Retrieval has a data set for each side; the other types one a split.
            sides = [split[name] for name in ("corpus", "queries") if name in split] if isinstance(split, dict) else [split]
            for rows in sides:
                for name in ("text", "sentences", "sentence1", "sentence2"):
                    if name in getattr(rows, "column_names", ()):
                        yield from (text for text in rows[name] if isinstance(text, str) and text.strip())
