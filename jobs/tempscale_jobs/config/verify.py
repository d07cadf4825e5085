"""The settings of `tempscale verify`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tempscale.model.settings import Prompts
from tempscale_jobs.config.command import Command
from tempscale_jobs.config.given import read_sample
from tempscale_jobs.config.option import Option, ReadBy
from tempscale_jobs.config.sections import By, Corpus, Execution, LongTexts, Models, RunFolder, Seed, Temperatures
from tempscale_jobs.config.strict import Strict
from tempscale_jobs.errors import UsageError

SAMPLE = 3000
"""Rows that are embedded again: without a wrong one among them, at most .1 % of all are wrong (95 %, one-sided)."""
_OF_CORPUS = (
    "source", "id_column", "text_column", "limit", "embedding_column", "bits", "scale", "max_characters", "max_rejected",
    "unit_rows", "unit_bytes",
)  # fmt: skip
"""The settings by which an audit's rows are read; `dims` there is what the audit keeps of a vector, not what it has."""
_DRAWN_FIRST = 4
"""Times as many rows are drawn at random first; of them the sample takes lengths and groups in proportion."""


def _checked_sample(size: int | str) -> int | str:
    if isinstance(size, int) and size < 1:
        raise ValueError(f"--sample {size} must be 1 or more, or all")
    return size


Sample = Annotated[
    int | Literal["all"],
    Option("--sample", "Texts", "N|all", kind=str),
    ReadBy(read_sample),
    AfterValidator(_checked_sample),
    Field(description="Rows to embed again and compare, drawn by their ids in proportion to lengths and groups; or all."),
]
Groups = Annotated[
    By,
    Field(description="Columns whose values are groups, such as source, date or tenant, each with its share of wrong rows."),
]
Computed = Annotated[
    Literal["float32", "float16", "bfloat16"],
    Option("--computed", "Model and temperature", "P"),
    Field(description="The precision in which the index's vectors were computed, however they are stored."),
]
Candidates = Annotated[
    list[str],
    Option("--candidate", "Model and temperature", "M"),
    Field(description="Models that may have made the vectors that are not the model's."),
]
EarlierRun = Annotated[
    str | None,
    Option("--earlier", "Model and temperature", "RUN"),
    Field(
        min_length=1,
        description="A finished audit of the same texts, from about when the vectors were made: it knows which texts were "
        "edited since.",
    ),
]
MaxWrong = Annotated[
    float,
    Option("--max-wrong", "The gate", "S"),
    Field(
        ge=0,
        le=1,
        description="Share of wrong rows that passes: exit code 1 if the lower end of the 95 % confidence interval is above "
        "it. With 0 one wrong row fails.",
    ),
]


class Stored(Corpus):
    """The vectors, and in the same table their texts."""

    kind: ClassVar[str] = "embeddings"
    without_option: ClassVar[frozenset[str]] = frozenset({"document_column", "sample", "limit", "length_column"})
    source: Annotated[str, Option("--embeddings", "Texts", "SRC")] = Field(
        min_length=1,
        description="The vectors and their texts: Parquet, JSONL or CSV, a file, folder or glob (local, s3://, gs://, "
        "hf://datasets/…), or another source as of corpus.source.",
    )
    embedding_column: Annotated[str, Option("--embedding-column", "Texts")] = Field(
        "embedding", min_length=1, description="Column of the vectors, lists of numbers."
    )
    title_column: Annotated[str | None, Option("--title-column", "Texts")] = Field(
        None, min_length=1, description="Column of titles, which an index may have put before the texts."
    )
    dims: Annotated[int | None, Option("--dims", "Texts", "N")] = Field(
        None, ge=2, description="The model's leading dimensions that the vectors have, for Matryoshka models."
    )
    bits: bool = Field(False, description="Whether embedding_column packs eight dimensions of ±1 into each byte.")
    scale: float | list[float] = Field(
        1.0, description="Factor for the integers of embedding_column: one number, or one for each dimension."
    )
    offset: float | list[float] | None = Field(
        None,
        description="Added to these integers times their scale, as in codes of sentence-transformers: the least number and "
        "128 scales.",
    )

    @model_validator(mode="after")
    def _offset_of_a_scale(self) -> Stored:
        if self.offset is not None and "scale" not in self.model_fields_set:
            raise ValueError("offset belongs to the scale of whole numbers; give both")
        return self


class OfCorpus(Stored):
    """The vectors of an audit, which errors call its corpus."""

    kind: ClassVar[str] = "corpus"


class OneModel(Models):
    """The model and the temperature that the vectors should be of."""

    precision: ClassVar[str] = "float32"
    compiled: ClassVar[bool] = False
    packed: ClassVar[bool] = False
    token_budget: ClassVar[int | None] = None
    long: LongTexts = "truncate"
    temperatures: Temperatures = Field(
        [1.0], min_length=1, max_length=1, description="The temperature, one number or schedule."
    )


class VerifyConfig(Command):
    """Stored vectors against the model's own."""

    command: ClassVar[str] = "verify"
    reads: ClassVar[str] = "embeddings"
    files: ClassVar[tuple[str, ...]] = ("other",)
    without_option: ClassVar[frozenset[str]] = frozenset({"execution.log_format"})
    out: RunFolder = "runs/verify"
    seed: Seed = 0
    embeddings: Stored = Field(description="Which vectors.")
    texts: Annotated[str | None, Option("--texts", "Texts", "SRC")] = Field(
        None, min_length=1, description="The texts, where they are in another table; both tables then need ids."
    )
    sample: Sample = SAMPLE
    by: Groups = Field([])
    embedding: OneModel = Field(default_factory=lambda: OneModel.model_validate({}), description="Which model.")
    computed: Computed = "float32"
    candidates: Candidates = Field([])
    earlier: EarlierRun = None
    max_wrong: MaxWrong = 0.0
    execution: Execution = Field(default_factory=lambda: Execution.model_validate({}), description="Where it runs.")

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The checked configuration; a UsageError if no vectors are named."""
        section = data.get("embeddings", {})
        if isinstance(section, dict) and "source" not in section:
            raise UsageError("give the vectors: --embeddings SRC, a table with columns id, text and embedding")
        return super().from_data(data)

    @model_validator(mode="after")
    def _one(self) -> VerifyConfig:
        if len(self.embedding.models) > 1:
            raise ValueError("the vectors are of one model; give others by --candidate")
        return self

    @property
    def model_names(self) -> list[str]:
        """The model, then the candidates."""
        return [*super().model_names, *self.candidates]

    def texts_drawn(self) -> Corpus:
        """The section by which the table of texts is read: all of it, since the vectors have been drawn."""
        same = ("id_column", "text_column", "max_characters", "max_rejected", "unit_rows", "unit_bytes")
        return Corpus.model_validate({"source": self.texts} | {name: getattr(self.drawn(), name) for name in same})

    def drawn(self) -> Stored:
        """The section by which rows are read: several times the sample, or all rows."""
        size = None if self.sample == "all" else _DRAWN_FIRST * self.sample
        return self.embeddings.model_copy(update={"sample": size})


class OfAudit(Strict):
    """A sample of the vectors of an audit of your own, verified as `tempscale verify` does."""

    model: str = Field(min_length=1, description="The model that made the vectors: a folder or hub name.")
    max_length: int | Literal["limit"] | None = Field(None, description="Its window, as in [embedding].")
    prompts: Prompts = Field("default", description="Its prompts, as in [embedding].")
    sample: Sample = SAMPLE
    by: Groups = Field([])
    computed: Computed = "float32"
    candidates: Candidates = Field([])
    earlier: EarlierRun = None
    max_wrong: MaxWrong = 0.0
    shared: ClassVar[frozenset[str]] = frozenset({"sample", "by", "computed", "candidates", "earlier", "max_wrong"})
    """The settings that `tempscale verify` has too."""
    without_option: ClassVar[frozenset[str]] = shared

    def of(self, corpus: Corpus, **run: Any) -> VerifyConfig:
        """The configuration of `tempscale verify` for the vectors of a corpus; `run` has its folder, seed and execution."""
        model = {"models": [self.model], "max_length": self.max_length, "prompts": self.prompts}
        vectors = OfCorpus.model_validate({name: getattr(corpus, name) for name in _OF_CORPUS})
        settings = {name: getattr(self, name) for name in self.shared}
        return VerifyConfig.model_validate({"embeddings": vectors, "embedding": model} | settings | run)
