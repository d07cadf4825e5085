"""The settings of `tempscale tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from tempscale.correction.recipes import columns_of
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.command import Command
from tempscale_jobs.config.evaluate import EvaluateConfig, OwnTask, Tasks, canonical_recipes
from tempscale_jobs.config.given import read_temperature
from tempscale_jobs.config.option import Option, ReadBy
from tempscale_jobs.config.sections import CachedExecution, Corpus, CutModels, Intervals, Precision, RunFolder, Seed

SAMPLE = 1000
"""Texts of the corpus for a choice without labels, unless `sample` or `limit` is given."""


CORRECTIONS = [
    "length", "centre", "centre(unit)", "centre_by_length", "remove_mean_direction", "remove_top(1)", "whiten(0.5)",
    "csls(10, 0.5)",
]  # fmt: skip
"""The corrections that are tried unless others are given."""


def default_candidates(window: int) -> list[float | dict[str, Any]]:
    """The default candidates; steps by length are at a quarter and half of a window, at most at 128 and 256 tokens."""
    quarter, half = (min(edge, max(edge // 32, window // share)) for edge, share in ((128, 4), (256, 2)))
    steps = ((quarter, 0.9), (quarter, 0.8), (half, 0.8))
    constants = [1.0, 0.95, 0.9, 0.8, 0.7, 0.5]
    by_length = [{"by_length": {"0": 1.0, str(edge): tau}} for edge, tau in steps]
    return [*constants, {"log_length": quarter // 2}, {"log_length": quarter}, *by_length]


def read_candidates(taus: list[float] | None, files: list[Path] | None) -> list[Any]:
    """The candidates of --tau and --temperature; schedules alone are compared with τ = 1."""
    schedules = [read_temperature(str(file)) for file in files or []]
    return [*(taus or ([1.0] if schedules else [])), *schedules]


def read_corrections(recipes: list[str]) -> list[str]:
    """The corrections of --correction; «none» alone is no correction."""
    return [] if recipes == ["none"] else recipes


class TunedModel(CutModels):
    """The model and the candidates; texts are cut at the window."""

    models: Annotated[
        list[str],
        Option("--model", "Model and temperature", "M", kind=str),
        ReadBy(lambda model: [model]),
    ] = Field(
        [], max_length=1, description="The model, a folder or hub name (NAME@REVISION); the installed demo unless given."
    )
    temperatures: Annotated[
        list[float | dict[str, Any]],
        Option(
            "--tau", "Model and temperature", "T", kind=list[float],
            help="A constant to try; the first stays unless another is better (default: 1.0, five others and five schedules "
            "by length).",
        ),
        Option(
            "--temperature", "Model and temperature", "FILE", kind=list[Path],
            help="A schedule to try as data, TOML or JSON; added after --tau.",
        ),
        ReadBy(read_candidates),
    ] = Field(
        default_candidates(512),
        min_length=2,
        description="The candidates: constants, and schedules by length; the first stays unless another is better. In a "
        "window below 512 tokens the default schedules begin at a quarter and half of it.",
    )  # fmt: skip
    precision: Precision = Field(
        "float32", description="Precision of the model; auto takes bfloat16 if every worker's processor has it."
    )


class Choosing(Intervals):
    """The options of the choice."""

    corrections: Annotated[
        list[str], Option("--correction", "Model and temperature", "RECIPE", kind=list[str]), ReadBy(read_corrections)
    ] = Field(
        CORRECTIONS,
        description="Corrections of the first temperature's embeddings to try, for which no text is embedded again: "
        "length, centre, centre(unit), centre_by_length, centre_by(COLUMN), remove_mean_direction, remove_top(K), "
        "whiten(POWER), csls(K, WEIGHT), or none. With labels for retrieval; without labels length alone.",
    )
    _canonical = field_validator("corrections")(canonical_recipes)
    layers: Annotated[bool, Option("--layers/--no-layers", "Model and temperature")] = Field(
        True, description="Try also one τ for each layer, found by gradient."
    )
    layer_texts: int = Field(48, ge=8, le=2000, description="Long texts for this search.")
    layer_tokens: int = Field(256, ge=64, description="Tokens of their long prefix; the short one is 32.")
    layer_steps: int = Field(10, ge=1, le=1000, description="Steps of the search.")
    held_out: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="With labels: share of queries, texts or pairs that do not choose but confirm the choice.",
    )
    probe_sample: int = Field(100, ge=30, description="Without labels: texts of the prefix probe.")
    neighbours: int = Field(
        10, ge=1, le=1000, description="Without labels: nearest texts of each text, for exposure and keep_neighbours."
    )
    keep_neighbours: float = Field(
        0.9,
        ge=0,
        le=1,
        description="Without labels: share of their nearest texts at the first temperature that short texts must keep.",
    )


class TuneConfig(Command):
    """A choice of a temperature for a model: by scores where there are tasks, else by what collapses in a corpus."""

    command: ClassVar[str] = "tune"
    files: ClassVar[tuple[str, ...]] = ("layers.json", "measured", "temperature.json", "corrections")
    worth_resuming: ClassVar[tuple[str, ...]] = (
        "layers.json", "measured/cells", "measured/cell_documents", "measured/shards/index.json",
        "measured/shards/plan.json", "measured/run.json",
    )  # fmt: skip
    reads: ClassVar[str] = "tasks"
    without_option: ClassVar[frozenset[str]] = frozenset({
        "corpus.embedding_column", "corpus.length_column", "corpus.dims", "execution.cache", "execution.log_format",
    })  # fmt: skip
    out: RunFolder = "runs/tune"
    seed: Seed = 0
    corpus: Corpus | None = Field(
        None,
        description=f"Texts without labels, to choose by their collapse; {SAMPLE:,} of them "
        "unless sample or limit says otherwise.",
    )
    tasks: Tasks = Field(
        [],
        description="MTEB tasks and benchmarks by name, and your own tasks, as for tempscale evaluate: the choice is made "
        "by their scores. Without tasks it is made by the collapse in the corpus.",
    )
    embedding: TunedModel = Field(
        default_factory=lambda: TunedModel.model_validate({}), description="The model and the candidates."
    )
    choosing: Choosing = Field(default_factory=lambda: Choosing.model_validate({}), description="How it is chosen.")
    execution: CachedExecution = Field(
        default_factory=lambda: CachedExecution.model_validate({}), description="Where it runs."
    )

    @model_validator(mode="after")
    def _fitting(self) -> TuneConfig:
        if self.tasks and self.corpus is not None:
            raise ValueError("tasks choose by scores and a corpus by what collapses; give one of them")
        if self.corpus is not None and self.corpus.embedding_column is not None:
            raise ValueError("your own embeddings have no temperature to choose; leave out embedding_column")
        clustering = [task.name for task in self.tasks if isinstance(task, OwnTask) and task.type == "clustering"]
        if clustering:
            raise ValueError(
                f"task '{clustering[0]}': a clustering has no score of each text, so no part can be held out; leave it out"
            )
        if self.tasks and self.execution.cache is not None:
            raise ValueError("a cache holds texts of a corpus, and scores do not read it; leave out execution.cache")
        self._check_columns()
        if any(temperature.roles for temperature in self.temperatures()):
            raise ValueError("a temperature by role is no candidate; tempscale evaluate --role-grid tries pairs of roles")
        return self

    def _check_columns(self) -> None:
        """Raise a ValueError if a correction depends on a column that no document has."""
        by_column = [recipe for recipe in self.choosing.corrections if columns_of([recipe])]
        if not by_column:
            return
        (column,) = columns_of(by_column[:1])
        if not self.tasks:
            raise ValueError(
                f"{by_column[0]} is chosen by scores and fitted to queries: give your own data by --task retrieval:FOLDER, "
                "or leave it out"
            )
        if (named := next((task for task in self.tasks if isinstance(task, str)), None)) is not None:
            raise ValueError(
                f"{by_column[0]} reads the column '{column}' of documents, which task '{named}' of MTEB is not known to "
                "have: give your own data by --task retrieval:FOLDER, or leave it out"
            )

    def texts(self) -> Corpus:
        """The corpus; a sample of it unless `sample` or `limit` is given."""
        corpus = self.corpus if self.corpus is not None else Corpus.model_validate({})
        if corpus.sample is None and corpus.limit is None:
            return corpus.model_copy(update={"sample": SAMPLE})
        return corpus

    def evaluation(self, candidates: list[Temperature]) -> EvaluateConfig:
        """The configuration that scores the candidates."""
        return EvaluateConfig.model_validate(self._shared(candidates) | {
            "execution": self.execution.model_dump(exclude={"cache"}),
            "tasks": [task if isinstance(task, str) else task.model_dump(exclude_unset=True) for task in self.tasks],
            "analysis": {"intervals": self.choosing.intervals},
            "corrected": {"recipes": self.choosing.corrections, "held_out": self.choosing.held_out},
        })  # fmt: skip

    def audit(self, candidates: list[Temperature]) -> AuditConfig:
        """The configuration that measures the collapse under the candidates."""
        choosing = self.choosing
        return AuditConfig.model_validate(self._shared(candidates) | {
            "execution": self.execution.model_dump(),
            "corpus": self.texts().model_dump(exclude_unset=True),
            "keep_text": False,
            "analysis": {
                "intervals": choosing.intervals, "socm_sample": 0, "probe_sample": choosing.probe_sample, "probe": "prefix",
                "neighbours": choosing.neighbours,
            },
        })  # fmt: skip

    def fitting(self, window: int) -> TuneConfig:
        """The same with the default candidates for a model's window, unless candidates were given."""
        if "temperatures" in self.embedding.model_fields_set:
            return self
        embedding = self.embedding.model_copy(update={"temperatures": default_candidates(window)})
        return self.model_copy(update={"embedding": embedding})

    def _shared(self, candidates: list[Temperature]) -> dict[str, Any]:
        embedding = self.embedding
        return {
            "out": f"{self.out.rstrip('/')}/measured", "seed": self.seed,
            "embedding": {
                "models": embedding.models,
                "temperatures": [t.tau if t.tau is not None else t.as_data() for t in candidates],
                "max_length": embedding.max_length, "prompts": embedding.prompts, "precision": embedding.precision,
            },
        }  # fmt: skip
