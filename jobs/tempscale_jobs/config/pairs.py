"""The settings of `tempscale pairs`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from tempscale_jobs.config.command import Command
from tempscale_jobs.config.option import Option
from tempscale_jobs.config.sections import (
    Alpha,
    Beta,
    Encoding,
    Execution,
    MaxCharacters,
    MaxRejected,
    Regularization,
    RunFolder,
)
from tempscale_jobs.config.strict import Strict


class Pairs(Strict):
    """The source of pairs of texts."""

    kind: ClassVar[str] = "pairs"
    source: Annotated[str, Option("--pairs", "Pairs", "FILE", required=True)] = Field(
        min_length=1,
        description="Parquet, JSONL or CSV with two columns of texts: a file, folder or glob (local, s3://, gs://, "
        "hf://datasets/…), or hf:NAME[:CONFIG][:SPLIT].",
    )
    column_a: Annotated[str, Option("--column-a", "Pairs")] = Field(
        "text_a", min_length=1, description="Column of the first texts; each of a list makes pairs."
    )
    column_b: Annotated[str, Option("--column-b", "Pairs")] = Field(
        "text_b", min_length=1, description="Column of the second texts; each of a list makes pairs."
    )
    limit: Annotated[int | None, Option("--limit", "Pairs", "N")] = Field(None, ge=1, description="The first N rows only.")
    max_characters: MaxCharacters = 50_000
    max_rejected: Annotated[
        MaxRejected,
        Option("--max-rejected", "Pairs", "S"),
        Field(description="Largest share of the pairs that may be rejected; if more are, the run ends with exit code 2."),
    ] = 0.5
    chunk_pairs: int = Field(256, ge=1, description="Most pairs of one chunk, the unit of work and of resuming.")
    chunk_characters: int = Field(
        131_072, ge=1, description="A chunk ends when its distinct texts have this many characters."
    )

    @model_validator(mode="after")
    def _two_columns(self) -> Pairs:
        if self.column_a == self.column_b:
            raise ValueError(f"--column-a and --column-b both name '{self.column_a}'; name two columns")
        return self


class Value(Strict):
    """The parameters of SOCM."""

    alpha: Alpha = 1.0
    beta: Beta = 1.0
    regularization: Regularization = 0.0


class PairsConfig(Command):
    """SOCM of explicit pairs."""

    command: ClassVar[str] = "pairs"
    reads: ClassVar[str] = "pairs"
    without_option: ClassVar[frozenset[str]] = frozenset({"embedding.tune_batches", "execution.log_format"})
    out: RunFolder = "runs/pairs"
    pairs: Pairs = Field(description="Which pairs.")
    embedding: Encoding = Field(default_factory=lambda: Encoding.model_validate({}), description="Models and temperatures.")
    socm: Value = Field(default_factory=lambda: Value.model_validate({}), description="Which value.")
    execution: Execution = Field(default_factory=lambda: Execution.model_validate({}), description="Where it runs.")
