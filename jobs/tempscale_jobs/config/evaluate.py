"""The settings of `tempscale evaluate`."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tempscale.correction.recipes import Recipe
from tempscale.optional import missing, needs
from tempscale.temperature.schedule import ROLES, Temperature
from tempscale_jobs.config.command import Command
from tempscale_jobs.config.option import Option, ReadBy
from tempscale_jobs.config.sections import CutModels, Execution, Intervals, Precision, RunFolder, Seed
from tempscale_jobs.config.strict import Strict
from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import masked, reason

OWN_KINDS = ("retrieval", "reranking", "classification", "clustering", "sts")
_FILES = {"retrieval": ("corpus", "queries", "qrels")} | dict.fromkeys(OWN_KINDS[1:], ("source",))


@dataclass(frozen=True)
class TaskFile:
    """A file of a task, as `sources` reads it."""

    source: str
    kind: ClassVar[str] = "task file"


class OwnTask(Strict):
    """A user's data set as a task, scored as MTEB scores tasks of its type."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="How tables call it.")
    type: Literal["retrieval", "reranking", "classification", "clustering", "sts"] = Field(
        description="The type of the task."
    )
    source: str | None = Field(None, min_length=1, description="Its rows, for every type but retrieval; as corpus.source.")
    corpus: str | None = Field(
        None, min_length=1, description="Documents (id or _id, text, title if there is one), for retrieval."
    )
    queries: str | None = Field(None, min_length=1, description="Queries (id or _id, text), for retrieval.")
    qrels: str | None = Field(
        None, min_length=1, description="Which documents answer which queries (query_id, doc_id, score), for retrieval."
    )
    where: dict[str, str] = Field(
        {}, description="Take only rows of source, or queries, with these values, such as {type = 'specific'}."
    )
    text_column: str = Field("text", min_length=1, description="Column of the texts of classification and clustering.")
    label_column: str = Field("label", min_length=1, description="Column of their labels.")
    test_share: float = Field(
        0.5, gt=0, lt=1, description="Share of the rows that test a classification; the others train it."
    )
    samples_per_label: int = Field(8, ge=1, description="Texts of each label that one experiment learns from, as in MTEB.")
    experiments: int = Field(10, ge=1, le=100, description="Experiments whose scores are averaged, as in MTEB.")
    texts_per_interval: Annotated[int | None, Option("--texts-per-interval", "Tasks", "N")] = Field(
        None,
        ge=1,
        description="Test your own classifications on at most N texts of each length interval (500 in S1); on all test rows "
        "unless given.",
    )
    windows: Annotated[bool, Option("--windows", "Tasks")] = Field(
        False, description="Fill intervals with fewer texts up with seeded windows of longer texts, marked as such."
    )

    @model_validator(mode="after")
    def _files_fit(self) -> OwnTask:
        files = _FILES[self.type]
        for name in ("source", "corpus", "queries", "qrels"):
            if (getattr(self, name) is None) == (name in files):
                verb = "needs" if name in files else "has no"
                raise ValueError(f"task '{self.name}': {self.type} {verb} {name}")
        for name in ("texts_per_interval", "windows"):
            if getattr(self, name) and self.type != "classification":
                raise ValueError(f"task '{self.name}': {name} is for classification, not for {self.type}")
        if self.windows and self.texts_per_interval is None:
            raise ValueError(f"task '{self.name}': windows fill length intervals; give texts_per_interval too")
        return self


def read_tasks(texts: list[str] | None, texts_per_interval: int | None, windows: bool | None) -> list[str | dict[str, Any]]:
    """The tasks of --task: MTEB's by name, a user's as data."""
    tasks: list[str | dict[str, Any]] = []
    by_length = {"texts_per_interval": texts_per_interval, "windows": windows}
    for text in texts or []:
        named, _, path = text.partition(":")
        name, _, kind = named.rpartition("=")
        if kind not in OWN_KINDS or not path:
            tasks.append(text)
            continue
        last = masked(path).rstrip("/").rsplit("/", 1)[-1].split(".")[0]  # Names are printed: no secret may be in them.
        task: dict[str, Any] = {"name": name or re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or kind, "type": kind}
        if kind == "retrieval":
            task |= {file: _only(path, file) for file in _FILES[kind]}
        else:
            task["source"] = path
        if kind == "classification":
            task |= {key: value for key, value in by_length.items() if value is not None}
        tasks.append(task)
    classified = any(isinstance(task, dict) and task["type"] == "classification" for task in tasks)
    if (texts_per_interval is not None or windows) and not classified:
        raise UsageError("--texts-per-interval and --windows belong to --task classification:FILE; give both")
    return tasks


def _only(folder: str, name: str) -> str:
    """The one file of a folder with this name and any ending; of BEIR's folder of qrels, `test`."""
    import fsspec

    names = [f"{name}.*"] + ["qrels/test.*"] * (name == "qrels")
    try:
        fs, path = fsspec.core.url_to_fs(os.path.expanduser(folder.rstrip("/")))
        matches: list[str] = []
        for pattern in names:
            matches = matches or fs.glob(f"{glob.escape(path)}/{pattern}")
        paths = [str(fs.unstrip_protocol(file)) if "://" in folder else str(file) for file in matches]
    except (ImportError, ValueError, OSError) as error:
        if (module := missing(error)) is not None:
            raise UsageError(needs(f"--task retrieval:{masked(folder)}", module)) from None
        raise UsageError(f"--task retrieval:{masked(folder)} cannot be opened: {reason(error, folder)}") from None
    if len(paths) != 1:
        number = "no such file" if not paths else f"{len(paths)} of them"
        raise UsageError(
            f"--task retrieval:{masked(folder)}: the folder must hold one file {name}.* (Parquet, JSONL, CSV or TSV), and "
            f"there is {number}"
        )
    return paths[0]


def read_backbones(texts: list[str]) -> dict[str, str]:
    """The backbones of --backbone, by model."""
    backbones: dict[str, str] = {}
    for text in texts:
        model, _, backbone = text.partition("=")
        if not model or not backbone:
            raise UsageError(f"--backbone '{text}' is not of the form MODEL=BACKBONE")
        backbones[model] = backbone
    return backbones


def task_names(tasks: list[str | OwnTask]) -> list[str]:
    """The name of each task in tables."""
    return [task if isinstance(task, str) else task.name for task in tasks]


Tasks = Annotated[
    list[str | OwnTask],
    Option(
        "--task", "Tasks", "TASK", kind=list[str], alias="--tasks",
        more="Your own are [NAME=]TYPE:PATH, of type retrieval, reranking, classification, clustering or sts; PATH is a "
        "file, for retrieval a folder with corpus, queries and qrels, as BEIR's are.",
    ),
    ReadBy(read_tasks),
]  # fmt: skip


class Scoring(CutModels):
    """The models and the temperatures; texts are cut at the window."""

    precision: Precision = Field(
        "float32",
        description="Precision of the model; bfloat16 changes scores a little and is faster only on processors that have "
        "it: auto takes it there.",
    )
    role_grid: Annotated[bool, Option("--role-grid", "Model and temperature")] = Field(
        False,
        description="Score retrieval also at every pair of a query τ and a document τ (S1 Fig 9), and so with a τ for one "
        "side only (S1 Table 2).",
    )


def canonical_recipes(recipes: list[str]) -> list[str]:
    """The canonical texts of corrections; a ValueError for an unknown or a repeated one."""
    texts = [Recipe.of(text).canonical for text in recipes]
    twice = sorted({text for text in texts if texts.count(text) > 1})
    if twice:
        raise ValueError(f"the correction {twice[0]} is given twice")
    return texts


class Corrected(Strict):
    """Corrections of embeddings that retrieval is also scored with, at the first temperature, for `tempscale tune`."""

    recipes: list[str] = Field([], description="Corrections such as length, centre or whiten(0.5).")
    _canonical = field_validator("recipes")(canonical_recipes)
    held_out: float = Field(0.5, gt=0, lt=1, description="Share of the queries that no correction is fitted on.")


class EvaluateConfig(Command):
    """Downstream scores under attention temperatures."""

    command: ClassVar[str] = "evaluate"
    files: ClassVar[tuple[str, ...]] = ("cells", "cell_documents", "mteb")
    worth_resuming: ClassVar[tuple[str, ...]] = ("cells", "cell_documents")
    packages: ClassVar[tuple[str, ...]] = ("mteb", "scikit-learn")
    reads: ClassVar[str] = "tasks"
    outside_identity: ClassVar[frozenset[str]] = frozenset({"out", "execution", "audits", "backbones"})
    """Audits and backbones only add comparisons to the scores, so they may be given later."""
    without_option: ClassVar[frozenset[str]] = frozenset({"execution.log_format"})
    out: RunFolder = "runs/evaluate"
    seed: Seed = 0
    tasks: Tasks = Field(
        min_length=1, description="MTEB tasks and benchmarks by name, such as MTEB(eng, v2), and your own tasks."
    )
    embedding: Scoring = Field(default_factory=lambda: Scoring.model_validate({}), description="Models and temperatures.")
    audits: Annotated[list[str], Option("--audit", "What is measured", "RUN")] = Field(
        [], description="Finished audits of the same models, whose SOCM is compared with the scores (S2 Fig 5, Table 1)."
    )
    backbones: Annotated[
        dict[str, str],
        Option("--backbone", "What is measured", "MODEL=BACKBONE", kind=list[str]),
        ReadBy(read_backbones),
    ] = Field({}, description="The backbone of each model, by label, to report differences from it.")
    analysis: Intervals = Field(default_factory=lambda: Intervals.model_validate({}), description="Length intervals.")
    corrected: Corrected = Field(
        default_factory=lambda: Corrected.model_validate({}), description="Corrections that are scored."
    )
    execution: Execution = Field(default_factory=lambda: Execution.model_validate({}), description="Where it runs.")

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The checked configuration; a UsageError that names --task if there is no task."""
        if not data.get("tasks"):
            raise UsageError(
                "no task is named; give --task with a task or benchmark of MTEB, such as SciFact, or your own as TYPE:PATH"
            )
        return super().from_data(data)

    @model_validator(mode="after")
    def _backbones_have_audits(self) -> EvaluateConfig:
        if self.backbones and not self.audits:
            raise ValueError("backbones are compared by figures of audits; give audits (--audit RUN) too")
        return self

    @field_validator("tasks")
    @classmethod
    def _distinct(cls, tasks: list[str | OwnTask]) -> list[str | OwnTask]:
        names = task_names(tasks)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"task '{twice[0]}' is named twice; give each once, or another name: NAME=TYPE:PATH")
        return tasks

    def temperatures(self) -> list[Temperature]:
        """The temperatures in the order given, the first the reference, then the grid's pairs of roles."""
        given = [Temperature.of(value) for value in self.embedding.temperatures]
        if not self.embedding.role_grid:
            return given
        plain = [temperature for temperature in given if not temperature.roles]
        pairs = [Temperature.by_role(**dict(zip(ROLES, (a, b), strict=True))) for a in plain for b in plain if a != b]
        return [*given, *(pair for pair in pairs if pair not in given)]
