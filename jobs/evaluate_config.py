"""What `tempscale evaluate` is asked to do: strict. Imports neither torch nor ray nor mteb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from jobs.config import Intervals, Models
from jobs.execution_config import Execution
from jobs.strict import Strict
from tempscale.temperature import ROLES, Temperature

OWN_KINDS = ("retrieval", "reranking", "classification", "clustering", "sts")
_FILES = {"retrieval": ("corpus", "queries", "qrels")} | dict.fromkeys(OWN_KINDS[1:], ("source",))


@dataclass(frozen=True)
class TaskFile:
    """A file of a task, as `sources` reads it."""

    source: str
    kind: ClassVar[str] = "task file"


class OwnTask(Strict):
    """A data set of one's own as a task, scored as MTEB scores tasks of its type."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="How tables call it.")
    type: Literal["retrieval", "reranking", "classification", "clustering", "sts"] = Field(
        description="What is asked of the embeddings."
    )
    source: str | None = Field(None, min_length=1, description="Its rows, for every type but retrieval; as corpus.source.")
    corpus: str | None = Field(None, min_length=1, description="Documents (id, text, title if there is one), for retrieval.")
    queries: str | None = Field(None, min_length=1, description="Queries (id, text), for retrieval.")
    qrels: str | None = Field(
        None, min_length=1, description="Which documents answer which queries (query_id, doc_id, score), for retrieval."
    )
    where: dict[str, str] = Field(
        {}, description="Rows of source, or queries, to take: those with these values, such as {type = 'specific'}."
    )
    text_column: str = Field("text", min_length=1, description="Column of the texts of classification and clustering.")
    label_column: str = Field("label", min_length=1, description="Column of their labels.")
    test_share: float = Field(
        0.5, gt=0, lt=1, description="Share of the rows that a classification is tested on; the others are learned from."
    )
    samples_per_label: int = Field(8, ge=1, description="Texts of each label that one experiment learns from, as in MTEB.")
    experiments: int = Field(10, ge=1, le=100, description="Experiments whose scores are averaged, as in MTEB.")
    texts_per_interval: int | None = Field(
        None,
        ge=1,
        description="Test a classification on so many texts of each length interval (500 in S1), if there are so "
        "many; on all test rows unless given.",
    )
    windows: bool = Field(
        False, description="Fill length intervals that hold fewer with seeded windows of longer texts, marked as such."
    )

    @model_validator(mode="after")
    def _files_fit(self) -> OwnTask:
        wanted = _FILES[self.type]
        for name in ("source", "corpus", "queries", "qrels"):
            if (getattr(self, name) is None) == (name in wanted):
                verb = "needs" if name in wanted else "has no"
                raise ValueError(f"task '{self.name}': {self.type} {verb} {name}")
        for name in ("texts_per_interval", "windows"):
            if getattr(self, name) and self.type != "classification":
                raise ValueError(f"task '{self.name}': {name} is for classification, not for {self.type}")
        if self.windows and self.texts_per_interval is None:
            raise ValueError(f"task '{self.name}': windows fill length intervals; give texts_per_interval too")
        return self


class Scoring(Models):
    """Which models under which temperatures; texts are cut at the window."""

    long: ClassVar[str] = "truncate"
    token_budget: ClassVar[int | None] = None
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="What the model computes in; bfloat16 is faster and moves scores a little."
    )
    prompts: Literal["none", "model"] = Field(
        "none", description="Whether the prompts that the model's folder names stand before queries and documents."
    )
    role_grid: bool = Field(
        False,
        description="Also every pair of a query τ and a document τ for retrieval (S1 Fig 9), with τ for one side only "
        "among them (S1 Table 2).",
    )


class EvaluateConfig(Strict):
    """Downstream scores under attention temperatures."""

    command: ClassVar[str] = "evaluate"
    reads: ClassVar[str] = "tasks"
    """The section that names the source."""
    out: str = Field("runs/evaluate", min_length=1, description="The run folder.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of every sample.")
    tasks: list[str | OwnTask] = Field(
        min_length=1, description="MTEB tasks and benchmarks by name, such as MTEB(eng, v2), and tasks of your own."
    )
    embedding: Scoring = Field(default_factory=lambda: Scoring.model_validate({}), description="Models and temperatures.")
    audits: list[str] = Field(
        [],
        description="Finished audits of the same models, whose SOCM is set beside the scores (S2 Fig 5, Table 1).",
    )
    backbones: dict[str, str] = Field({}, description="Which model each was made from, by label, for differences to it.")
    analysis: Intervals = Field(default_factory=lambda: Intervals.model_validate({}), description="Length intervals.")
    execution: Execution = Field(default_factory=lambda: Execution.model_validate({}), description="Where it runs.")

    @model_validator(mode="after")
    def _backbones_have_audits(self) -> EvaluateConfig:
        if self.backbones and not self.audits:
            raise ValueError("backbones are compared by what audits measured of them; give audits (--audit RUN) too")
        return self

    @field_validator("tasks")
    @classmethod
    def _distinct(cls, tasks: list[str | OwnTask]) -> list[str | OwnTask]:
        names = [task if isinstance(task, str) else task.name for task in tasks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"task '{twice[0]}' is named twice; give each once, or names of its own: NAME=TYPE:PATH")
        return tasks

    def identity(self) -> dict[str, Any]:
        """All that decides the tables, as plain data."""
        # Audits and backbones decide what stands beside the scores: they may be given later.
        return self.model_dump(mode="json", exclude={"out", "execution", "audits", "backbones"})

    def temperatures(self) -> list[Temperature]:
        """The temperatures in the order given, the first the reference, then the grid's pairs of roles."""
        given = [Temperature.of(value) for value in self.embedding.temperatures]
        if not self.embedding.role_grid:
            return given
        plain = [temperature for temperature in given if not temperature.roles]
        pairs = [Temperature.by_role(**dict(zip(ROLES, (a, b), strict=True))) for a in plain for b in plain if a != b]
        return [*given, *(pair for pair in pairs if pair not in given)]
