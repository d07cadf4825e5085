"""What `tempscale pairs` is asked to do: strict. Imports neither torch nor ray."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, model_validator

from jobs.config import Encoding
from jobs.execution_config import Execution
from jobs.strict import Strict
from tempscale.temperature import Temperature


class Pairs(Strict):
    """Which pairs of texts."""

    kind: ClassVar[str] = "pairs"
    source: str = Field(min_length=1, description="A path or glob, s3://, gs://, hf:// or hf:NAME.")
    column_a: str = Field("text_a", min_length=1, description="Column of the first texts; in a list each one makes pairs.")
    column_b: str = Field("text_b", min_length=1, description="Column of the second texts; in a list each one makes pairs.")
    limit: int | None = Field(None, ge=1, description="The first rows only.")
    max_characters: int = Field(50_000, ge=1, description="Longer texts are cut here before they are tokenised.")
    chunk_pairs: int = Field(256, ge=1, description="Most pairs of one chunk, the unit of work and of resuming.")
    chunk_characters: int = Field(
        131_072, ge=1, description="A chunk ends when its distinct texts hold this many characters."
    )

    @model_validator(mode="after")
    def _two_columns(self) -> Pairs:
        if self.column_a == self.column_b:
            raise ValueError(f"--column-a and --column-b both name '{self.column_a}'; name two columns")
        return self


class Value(Strict):
    """Which second-order collapse."""

    alpha: float = Field(1.0, ge=0, allow_inf_nan=False, description="α of SOCM = (1−d_μ)^α·d_Σ^β.")
    beta: float = Field(1.0, ge=0, allow_inf_nan=False, description="β of SOCM = (1−d_μ)^α·d_Σ^β.")
    regularization: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="0 is exact; 1e-9 is the ε of S2's published code."
    )


class PairsConfig(Strict):
    """SOCM of explicit pairs."""

    command: ClassVar[str] = "pairs"
    reads: ClassVar[str] = "pairs"
    """The section that names the source."""
    out: str = Field("runs/pairs", min_length=1, description="The run folder.")
    pairs: Pairs = Field(description="Which pairs.")
    embedding: Encoding = Field(default_factory=lambda: Encoding.model_validate({}), description="Models and temperatures.")
    socm: Value = Field(default_factory=lambda: Value.model_validate({}), description="Which value.")
    execution: Execution = Field(default_factory=lambda: Execution.model_validate({}), description="Where it runs.")

    def identity(self) -> dict[str, Any]:
        """All that decides the tables, as plain data."""
        return self.model_dump(mode="json", exclude={"out", "execution"})

    def temperatures(self) -> list[Temperature]:
        """The temperatures in the order given; the first is the reference."""
        return [Temperature.of(value) for value in self.embedding.temperatures]
