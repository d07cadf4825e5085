"""The settings and sections that several commands share."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from tempscale.model.budgets import GPU_BUDGET, GPU_NUMBERS, TOKEN_BUDGET
from tempscale.model.settings import Prompts
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.given import read_edges, read_temperatures, read_window
from tempscale_jobs.config.nights import NIGHT
from tempscale_jobs.config.option import Option, ReadBy
from tempscale_jobs.config.strict import Strict

QUICK_START_CORPUS = "docstrings:scipy"
PUBLISHED_REGULARIZATION = 1e-9
"""ε of S2's published code, for --paper."""

RunFolder = Annotated[str, Option("--out", "The run", "DIR"), Field(min_length=1, description="The run folder.")]
Seed = Annotated[int, Option("--seed", "What is measured"), Field(ge=0, lt=2**63, description="Seed of every sample.")]
Alpha = Annotated[
    float,
    Option("--alpha", "What is measured", "α"),
    Field(ge=0, description="α of SOCM = (1−d_μ)^α·d_Σ^β (S2 eq. 30)."),
]
Beta = Annotated[
    float,
    Option("--beta", "What is measured", "β"),
    Field(ge=0, description="β of SOCM = (1−d_μ)^α·d_Σ^β (S2 eq. 30)."),
]
Regularization = Annotated[
    float,
    Option(
        "--paper", "What is measured", sets=PUBLISHED_REGULARIZATION,
        help="d_Σ as S2's published code has it, with its ε = 1e-9; a little lower.",
    ),
    Field(
        ge=0,
        description="ε of S2's published code, which used 1e-9 and lowers d_Σ by 0.005 to 0.012; 0 is exact.",
    ),
]  # fmt: skip


Temperatures = Annotated[
    list[float | dict[str, Any]],
    Option(
        "--tau", "Model and temperature", "T", kind=list[float],
        help="Attention temperature in (0, 2]; changes are reported against the first.",
    ),
    Option(
        "--temperature", "Model and temperature", "FILE", kind=Path,
        help="A temperature or schedule as data, TOML or JSON: log_length = 64. Added after --tau.",
    ),
    ReadBy(read_temperatures),
]  # fmt: skip


MaxCharacters = Annotated[int, Field(ge=1, description="Longer texts are cut here before they are tokenised.")]
MaxRejected = Annotated[
    float,
    Field(
        ge=0, le=1, allow_inf_nan=False,
        description="Largest share of the rows that may be rejected; if more are, the run ends with exit code 2.",
    ),
]  # fmt: skip


def _distinct_columns(columns: list[str]) -> list[str]:
    if len(set(columns)) < len(columns):
        raise ValueError("--by names a column twice; give each once")
    return columns


By = Annotated[list[str], Option("--by", "Texts", "COLUMN"), AfterValidator(_distinct_columns)]
"""Columns whose values are groups of texts."""


class Corpus(Strict):
    """The source of texts."""

    kind: ClassVar[str] = "corpus"
    source: Annotated[str, Option("--corpus", "Texts", "SRC")] = Field(
        QUICK_START_CORPUS,
        min_length=1,
        description="Parquet, JSONL, CSV or text: a file, folder or glob (local, s3://, gs://, hf://datasets/…); a Lance or "
        "Delta table (lance:PATH or delta:PATH if its name does not show it); iceberg:TABLE; postgres://…?table=NAME; "
        "qdrant:PATH/NAME; vectors in .npy, .npz or .faiss; hf:NAME[:CONFIG][:SPLIT]; or docstrings:PKG,…",
    )
    id_column: Annotated[str | None, Option("--id-column", "Texts")] = Field(
        None, description="Column of the ids; `id` where there is one, else a digest of text and place."
    )
    text_column: Annotated[str, Option("--text-column", "Texts")] = Field(
        "text", min_length=1, description="Column of the texts."
    )
    document_column: Annotated[str | None, Option("--document-column", "Texts")] = Field(
        None,
        min_length=1,
        description="Column that names the document of which a text is a part: errors then are those of other documents, "
        "not of independent texts (docstrings: of their modules).",
    )
    sample: Annotated[int | None, Option("--sample", "Texts", "N", excludes="limit")] = Field(
        None,
        ge=1,
        description="A seeded random sample of N texts, stable from night to night: drawn by their ids, or without ids by "
        "their content.",
    )
    limit: Annotated[int | None, Option("--limit", "Texts", "N", excludes="sample")] = Field(
        None, ge=1, description="The first N rows only: these rows then are the corpus."
    )
    embedding_column: Annotated[str | None, Option("--embedding-column", "Texts")] = Field(
        None, min_length=1, description="Column of your own embeddings, lists of numbers: no model is run."
    )
    length_column: Annotated[str | None, Option("--length-column", "Texts")] = Field(
        None, min_length=1, description="Column of the lengths, with embedding_column; words of the texts unless given."
    )
    dims: Annotated[int | None, Option("--dims", "Texts", "N")] = Field(
        None, ge=2, description="Leading dimensions of embedding_column to keep, for Matryoshka models."
    )
    bits: bool = Field(False, description="Whether embedding_column packs eight dimensions of ±1 into each byte.")
    scale: float | list[float] = Field(
        1.0, description="Factor for the integers of embedding_column: one number, or one for each dimension."
    )
    max_characters: MaxCharacters = 50_000
    max_rejected: Annotated[MaxRejected, Option("--max-rejected", "Texts", "S")] = 0.5
    unit_rows: int = Field(131_072, ge=1, description="Most rows of a unit of the source, which one task reads.")
    unit_bytes: int = Field(
        32 << 20, ge=1, description="Most bytes of a unit; but a CSV file or a compressed file is never divided."
    )

    @model_validator(mode="after")
    def _belongs_to_embeddings(self) -> Corpus:
        if self.embedding_column is None:
            names = [name for name in ("length_column", "dims", "bits", "scale") if name in self.model_fields_set]
            if names:
                raise ValueError(f"{names[0]} belongs to embedding_column; give both")
        return self

    @model_validator(mode="after")
    def _one_of_sample_and_limit(self) -> Corpus:
        if self.sample is not None and self.limit is not None:
            raise ValueError("sample and limit exclude each other; give one of them")
        return self


class Queries(Corpus):
    """Texts that search the corpus."""

    kind: ClassVar[str] = "queries"
    without_option: ClassVar[frozenset[str]] = frozenset(Corpus.model_fields) - {"source", "embedding_column"}
    source: Annotated[str, Option("--queries", "Texts", "SRC")] = Field(
        min_length=1,
        description="Texts that search the corpus, from a source like corpus.source, to measure which texts fill results.",
    )
    embedding_column: Annotated[str | None, Option("--queries-embedding-column", "Texts")] = Field(
        None, min_length=1, description="Column of your own embeddings of the queries, if the corpus has embeddings."
    )


class Results(Strict):
    """The results of searches."""

    kind: ClassVar[str] = "results"
    source: Annotated[str, Option("--results", "Texts", "SRC")] = Field(
        min_length=1,
        description="What your index returns for the queries, to compare it with the exact nearest texts: columns query_id, "
        "text_id and rank (1 is the nearest), from a source like corpus.source.",
    )


class Models(Strict, allow_inf_nan=True):  # `Temperature` checks its numbers itself.
    """The models and the temperatures."""

    if TYPE_CHECKING:

        @property
        def precision(self) -> str:
            """The precision of a model: a setting of most commands; `diagnose` always takes float32."""

    models: Annotated[list[str], Option("--model", "Model and temperature", "M")] = Field(
        [], description="Folders or hub names, NAME or NAME@REVISION; the installed demo MiniLM unless given."
    )
    temperatures: Temperatures = Field(
        [1.0, 0.8], min_length=1, description="Numbers τ or schedules such as {log_length = 64}; the first is the reference."
    )
    max_length: Annotated[
        int | Literal["limit"] | None,
        Option("--max-length", "Model and temperature", "N|limit", kind=str),
        ReadBy(read_window),
    ] = Field(
        None,
        description="Most tokens of a text; limit: as many as each model has positions for. Each model's own window in "
        "sentence-transformers unless given.",
    )
    prompts: Annotated[Prompts, Option("--prompts", "Model and temperature")] = Field(
        "default",
        description="Text before each text. default: as SentenceTransformer.encode adds by itself, for most models nothing; "
        "model: the model's own prompts for queries and documents; none.",
    )

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


class CutModels(Models):
    """The models and the temperatures; every text is cut at the window."""

    long: ClassVar[str] = "truncate"
    compiled: ClassVar[bool] = False
    packed: ClassVar[bool] = False
    token_budget: ClassVar[int | None] = None


Precision = Annotated[Literal["float32", "tf32", "bfloat16", "auto"], Option("--precision", "Model and temperature")]


LongTexts = Annotated[
    Literal["truncate", "chunk"],
    Option("--long", "Model and temperature"),
    Field(description="Texts longer than max_length are cut and counted, or run in chunks of it, so that all tokens count."),
]


class Encoding(Models):
    """The models, the temperatures, and how models run."""

    long: LongTexts = "truncate"
    precision: Precision = Field(
        "float32",
        description="Precision of the model. bfloat16 is for processors that multiply in it (a GPU of compute capability 8 "
        "or more, a CPU with AMX or AVX-512 BF16; others are slower); its error is reported. tf32 is for such GPUs: "
        "products have 11 bits. auto takes bfloat16 if every worker has such a processor.",
    )
    compiled: Annotated[bool, Option("--compile/--no-compile", "Model and temperature")] = Field(
        False,
        description="Let torch.compile compile the model, once for all shapes and every constant τ: a minute at first, for "
        "large corpora on GPUs. Last digits differ.",
    )
    packed: Annotated[bool, Option("--packed/--padded", "Model and temperature")] = Field(
        False,
        description="Run the texts of a micro-batch one after the other without padding, for GPUs in bfloat16 and families "
        "without a position bias. Last digits differ.",
    )
    token_budget: int | None = Field(
        None,
        ge=1,
        description=f"Padded tokens of one micro-batch; unless given {TOKEN_BUDGET:,} on a CPU, and on a GPU "
        f"{GPU_BUDGET:,}, or fewer for a model of more than {GPU_NUMBERS // GPU_BUDGET:,} dimensions.",
    )
    tune_batches: Annotated[bool, Option("--tune-batches", "Model and temperature")] = Field(
        False, description="Measure once, before the pool starts, which token_budget is fastest on this device and model."
    )


class Intervals(Strict):
    """The length intervals that texts are compared by."""

    intervals: Annotated[
        list[int],
        Option("--intervals", "What is measured", "EDGES", kind=str),
        ReadBy(read_edges),
    ] = Field(
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


class Execution(Strict):
    """Where and on how many workers it runs; only the last digits of cached texts depend on it."""

    workers: Annotated[int | None, Option("--workers", "The run", "N")] = Field(
        None, ge=1, description="Model actors and tile tasks at once; all cores or GPUs unless given."
    )
    address: Annotated[str | None, Option("--address", "The run", "RAY")] = Field(
        None,
        description="A Ray cluster of which this machine is one: auto or HOST:PORT; an in-process Ray unless given.",
    )
    actors_per_gpu: Annotated[int, Option("--actors-per-gpu", "The run", "N")] = Field(
        1, ge=1, le=16, description="Model actors that share one GPU, each with its own model; more for small models."
    )
    log_format: Annotated[Literal["text", "json"], Option("--log-format", "The run")] = Field(
        "text", description="text: lines for people. json: one JSON object a line, each with the run's id."
    )
    quiet: Annotated[bool, Option("--quiet", "The run")] = Field(
        False, description="Print no progress, only errors and, at the end, the result."
    )
    shuffle_seed: int | None = Field(
        None, description="Submit work in a seeded random order, to prove that order changes nothing."
    )

    @field_validator("address")
    @classmethod
    def _no_client(cls, address: str | None) -> str | None:
        if address is not None and address.startswith("ray://"):
            raise ValueError(
                "Ray Data does not run through Ray's client, ray://; start the command on a machine of the cluster with "
                "--address auto, such as by: tempscale submit --address http://HEAD:8265 -- audit …"
            )
        return address


class CachedExecution(Execution):
    """Where and on how many workers it runs, with embeddings of earlier runs."""

    cache: Annotated[str | None, Option("--cache", "The run", "DIR")] = Field(
        None,
        min_length=1,
        description="A folder, local or remote, of embeddings by content: texts of earlier runs are taken from it, new ones "
        "are added.",
    )

    @field_validator("cache")
    @classmethod
    def _of_all_nights(cls, cache: str | None) -> str | None:
        if cache is not None and NIGHT in cache:
            raise ValueError(f"all nights share a cache; leave {NIGHT} out of its name")
        return cache
