"""The one description of a run: strict, TOML in, JSON out. Imports neither torch nor ray.

What decides the tables (`identity`) is apart from how they are computed (`Execution`, `out`).
"""

from __future__ import annotations

import datetime
from itertools import pairwise
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from jobs.execution_config import CachedExecution
from jobs.night_config import NIGHT, Gate, Record, checked_night, filled, history_folder
from jobs.strict import Strict, checked
from tempscale.temperature import Temperature

QUICK_START_CORPUS = "docstrings:scipy,torch"
QUICK_START_SAMPLE = 2000
QUICK_START_SOCM_SAMPLE = 400
QUICK_START_PROBE_SAMPLE = 60


class Corpus(Strict, allow_inf_nan=False):
    """Which texts."""

    kind: ClassVar[str] = "corpus"
    source: str = Field(
        QUICK_START_CORPUS,
        min_length=1,
        description="A path or glob, s3://, gs://, hf://, a Lance or Delta table "
        "(lance:PATH, delta:PATH where its name does not tell), hf:NAME or docstrings:PKG,...",
    )
    id_column: str | None = Field(
        None, description="Column of the ids; `id` where there is one, else a digest of text and place."
    )
    text_column: str = Field("text", min_length=1, description="Column of the texts.")
    sample: int | None = Field(None, ge=1, description="A seeded random sample of this many texts.")
    limit: int | None = Field(None, ge=1, description="The first rows only: these rows then are the corpus.")
    embedding_column: str | None = Field(
        None, min_length=1, description="Column of embeddings of your own: lists of numbers. No model is run then."
    )
    length_column: str | None = Field(
        None, min_length=1, description="Column of the lengths beside embedding_column; words of the texts unless given."
    )
    dims: int | None = Field(
        None, ge=2, description="Leading dimensions of embedding_column to keep, for Matryoshka models."
    )
    bits: bool = Field(False, description="Whether embedding_column packs eight dimensions of ±1 into each byte.")
    scale: float | list[float] = Field(
        1.0, description="What the integers of embedding_column are multiplied by, one number or one a dimension."
    )
    max_characters: int = Field(50_000, ge=1, description="Longer texts are cut here before they are tokenised.")

    @model_validator(mode="after")
    def _belongs_to_embeddings(self) -> Corpus:
        if self.embedding_column is None:
            given = [name for name in ("length_column", "dims", "bits", "scale") if name in self.model_fields_set]
            if given:
                raise ValueError(f"{given[0]} belongs to embedding_column; give both")
        return self

    @model_validator(mode="after")
    def _one_of_sample_and_limit(self) -> Corpus:
        if self.sample is not None and self.limit is not None:
            raise ValueError("sample and limit exclude each other; give one of them")
        return self


class Queries(Corpus):
    """Texts that search the corpus."""

    kind: ClassVar[str] = "queries"
    source: str = Field(min_length=1, description="As corpus.source.")


class Models(Strict):
    """Which models under which temperatures."""

    models: list[str] = Field([], description="Folders or hub names; the installed demo MiniLM unless given.")
    temperatures: list[float | dict[str, Any]] = Field(
        [1.0, 0.8], min_length=1, description="Numbers τ or schedules such as {log_length = 64}; the first is the reference."
    )
    max_length: int | None = Field(None, ge=3, description="Tokens a text is cut to; the model's own limit unless given.")

    @field_validator("temperatures")
    @classmethod
    def _readable(cls, values: list[float | dict[str, Any]]) -> list[float | dict[str, Any]]:
        texts = [Temperature.of(value).canonical for value in values]
        if len(set(texts)) < len(texts):
            raise ValueError(f"temperatures {', '.join(texts)} name one twice; give each once")
        return values

    @field_validator("models")
    @classmethod
    def _distinct(cls, values: list[str]) -> list[str]:
        if len(set(values)) < len(values):
            raise ValueError("a model is named twice; give each once")
        return values


class Encoding(Models):
    """Which models under which temperatures, and how they run."""

    long: Literal["truncate", "chunk"] = Field(
        "truncate",
        description="What becomes of a text beyond max_length: cut and counted, or run in chunks whose tokens together are "
        "the text's.",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="What the model computes in; bfloat16 is faster, and how far it is off is measured and reported.",
    )
    token_budget: int | None = Field(
        None, ge=1, description="Padded tokens of one micro-batch; 1,024 on a CPU and 16,384 on a GPU unless given."
    )
    tune_batches: bool = Field(
        False, description="Measure once, before the pool starts, which token_budget is fastest on this device and model."
    )


class Embedding(Encoding):
    """Which models under which temperatures, and how texts are grouped."""

    shard_texts: int = Field(512, ge=1, description="Most texts of one shard, the unit of work and of resuming.")
    shard_characters: int = Field(131_072, ge=1, description="A shard ends when it holds this many characters.")


class Intervals(Strict):
    """By which lengths texts are told apart."""

    intervals: list[int] = Field(
        [0, 32, 64, 100, 200, 300, 400, 500],
        min_length=1,
        description="Lower edges of the length intervals in tokens, from 0, ascending; the last is open.",
    )

    @field_validator("intervals")
    @classmethod
    def _ascending(cls, edges: list[int]) -> list[int]:
        if edges[0] != 0 or any(later <= earlier for earlier, later in pairwise(edges)):
            raise ValueError(f"intervals {edges} must start at 0 and ascend, e.g. 0,100,200")
        return edges


class Analysis(Intervals, allow_inf_nan=False):
    """What is measured on the embeddings."""

    socm_sample: int = Field(
        1000, ge=0, le=5000, description="Texts of the SOCM sample; all their pairs are computed. 0 leaves SOCM out."
    )
    socm_cell_se: float | None = Field(
        None,
        gt=0,
        description="Wanted standard error of mean SOCM in each cell of intervals: the sample is then drawn by interval, as "
        "large as that takes and socm_sample allows, and weighted back.",
    )
    socm_alpha: float = Field(1.0, ge=0, description="α of SOCM_{α,β} = (1−d_μ)^α·d_Σ^β (S2 eq. 30).")
    socm_beta: float = Field(1.0, ge=0, description="β of SOCM_{α,β}.")
    socm_regularization: float = Field(
        0.0, ge=0, description="ε of the published code, which used 1e-9 and lowers d_Σ by 0.005 to 0.012; 0 is exact."
    )
    socm_tolerance: float = Field(
        0.0, ge=0, description="Largest error of d_Σ that may be traded for speed on long texts; certified. 0 is exact."
    )
    probe_sample: int = Field(200, ge=0, description="Texts of the prefix probe. 0 leaves it out.")
    socm_top_over: Literal["sample", "corpus"] = Field(
        "sample",
        description="Whether the most collapsed pairs are those of the SOCM sample or, found by exact bounds, of all texts.",
    )
    worst_pairs: int = Field(20, ge=1, le=1000, description="Pairs kept in each ranking of the most collapsed.")
    cosine: Literal["full", "moments"] = Field(
        "full",
        description="full: every pair, with percentiles, near-duplicates and neighbours. moments: mean and variance only, "
        "in closed form, at once.",
    )
    cosine_precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="What embeddings are rounded to for the pairs' products; tf32 and bfloat16 are faster on a GPU. Means "
        "and variances stay exact; percentiles, near-duplicates and neighbours move by at most 0.001 or 0.008.",
    )
    neighbours: int = Field(
        10, ge=0, le=1000, description="Nearest texts kept of each text, for exposure and hubness. 0 leaves them out."
    )
    near_duplicate: float = Field(0.95, gt=-1, le=1, description="Cosine from which a pair is a near-duplicate.")
    worst_duplicates: int = Field(100, ge=0, le=100_000, description="Near-duplicates listed; all are counted.")

    @model_validator(mode="after")
    def _fitting(self) -> Analysis:
        if self.socm_top_over == "corpus" and self.cosine != "full":
            raise ValueError("socm_top_over = corpus needs every cosine; leave cosine at full")
        if self.socm_tolerance and self.socm_regularization:
            raise ValueError("socm_tolerance and socm_regularization exclude each other; give one of them")
        return self


class AuditConfig(Strict):
    """A whole audit."""

    command: ClassVar[str] = "audit"
    reads: ClassVar[str] = "corpus"
    """The section that names the source."""
    out: str = Field(
        "runs/audit", min_length=1, description="The run folder; {night} in it, and in the sources, stands for the night."
    )
    night: str | None = Field(None, description="Date of the night, such as 2026-11-22; today's in UTC unless given.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of every sample.")
    keep_text: bool = Field(True, description="Whether excerpts of the worst pairs' texts may stand in tables and report.")
    corpus: Corpus = Field(default_factory=lambda: Corpus.model_validate({}), description="Which texts.")
    queries: Queries | None = Field(None, description="Texts that search the corpus, for its exposure; keys as corpus.")
    embedding: Embedding = Field(
        default_factory=lambda: Embedding.model_validate({}), description="Models and temperatures."
    )
    analysis: Analysis = Field(default_factory=lambda: Analysis.model_validate({}), description="What is measured.")
    execution: CachedExecution = Field(
        default_factory=lambda: CachedExecution.model_validate({}), description="Where it runs."
    )
    gate: Gate = Field(default_factory=lambda: Gate.model_validate({}), description="What a night is held to.")
    record: Record = Field(default_factory=lambda: Record.model_validate({}), description="What is kept of a night.")

    @field_validator("night")
    @classmethod
    def _is_a_date(cls, night: str | None) -> str | None:
        return checked_night(night)

    @model_validator(mode="after")
    def _own_embeddings_have_no_model(self) -> AuditConfig:
        own = self.corpus.embedding_column is not None
        if self.queries is not None and (self.queries.embedding_column is not None) != own:
            raise ValueError("corpus and queries need embeddings of one kind: give embedding_column for both or neither")
        if not own:
            return self
        if self.embedding.models or "temperatures" in self.embedding.model_fields_set:
            raise ValueError("embeddings of your own have neither model nor temperature; leave out --model and --tau")
        for_models = {"max_length", "long", "precision", "token_budget", "tune_batches"} & self.embedding.model_fields_set
        if for_models or self.execution.cache is not None:
            name = min(for_models, default="cache")
            raise ValueError(f"embeddings of your own are not embedded again; leave out {name}")
        if self.analysis.socm_top_over == "corpus" or self.analysis.socm_cell_se is not None:
            raise ValueError("SOCM needs token embeddings, which embeddings of your own do not tell; leave out its options")
        return self

    @model_validator(mode="after")
    def _exact_bounds(self) -> AuditConfig:
        coarse = self.embedding.precision != "float32" and self.execution.cache is not None
        if coarse and self.analysis.socm_top_over == "corpus":
            raise ValueError(
                "socm_top_over = corpus compares texts with what the cache holds of them, which bfloat16 makes too coarse; "
                "leave out one of cache, precision and socm_top_over"
            )
        return self

    @model_validator(mode="after")
    def _held_temperatures_are_measured(self) -> AuditConfig:
        measured = [temperature.canonical for temperature in self.temperatures()]
        if absent := sorted(self.gate.named() - set(measured)):
            raise ValueError(f"gate.temperatures names {', '.join(absent)}, and the run measures {', '.join(measured)}")
        return self

    def identity(self) -> dict[str, Any]:
        """All that decides the tables, as plain data."""
        return self.model_dump(mode="json", exclude={"out", "execution", "night", "gate", "record"})

    def tonight(self) -> AuditConfig:
        """The same with the night's date in place of {night}, and with the folder of its record."""
        night = self.night or datetime.datetime.now(datetime.UTC).date().isoformat()
        history = filled(history_folder(self.record, self.out), night)
        read = {name: own for name in ("corpus", "queries") if (own := getattr(self, name)) is not None}
        dated = NIGHT in self.out or any(NIGHT in own.source for own in read.values())
        return self.model_copy(
            update={name: own.model_copy(update={"source": filled(own.source, night)}) for name, own in read.items()}
            | {
                "out": filled(self.out, night),
                "night": night if dated else self.night,
                "record": self.record.model_copy(update={"history": history}),
            }
        )

    def temperatures(self) -> list[Temperature]:
        """The temperatures in the order given; the first is the reference."""
        if self.corpus.embedding_column is not None:
            return [Temperature.of(1.0)]
        return [Temperature.of(value) for value in self.embedding.temperatures]


def with_quick_start(data: dict[str, Any]) -> dict[str, Any]:
    """The data with the quick start's sample sizes, where no corpus is named."""
    corpus, analysis = data.setdefault("corpus", {}), data.setdefault("analysis", {})
    if isinstance(corpus, dict) and isinstance(analysis, dict) and "source" not in corpus:
        if "limit" not in corpus:
            corpus.setdefault("sample", QUICK_START_SAMPLE)
        analysis.setdefault("socm_sample", QUICK_START_SOCM_SAMPLE)
        analysis.setdefault("probe_sample", QUICK_START_PROBE_SAMPLE)
    return data


def resolve(data: dict[str, Any]) -> AuditConfig:
    """A checked configuration of tonight from plain data.

    Raises:
        UsageError: as `checked`.
    """
    return checked(AuditConfig, data).tonight()
