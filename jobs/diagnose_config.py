"""What `tempscale diagnose` is asked to do: strict. Imports neither torch nor ray."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from jobs.config import AuditConfig, Corpus, Intervals, Models
from jobs.execution_config import Execution
from jobs.strict import Strict
from tempscale.temperature import Temperature

CANDIDATES = 20_000
"""Texts whose lengths are taken, a seeded sample of the corpus, unless it is told how many."""


class Looking(Models):
    """Which models under which temperatures; every text runs alone, in float32, cut at the window."""

    long: ClassVar[str] = "truncate"
    precision: ClassVar[str] = "float32"
    token_budget: ClassVar[int | None] = None


class Diagnosis(Intervals):
    """What is looked at."""

    texts: int = Field(
        200, ge=2, le=5000, description="Texts that are looked into, as many from each length interval as there are."
    )
    piece_texts: int = Field(4, ge=1, description="Texts of one piece of work, the unit of resuming.")
    pair: tuple[str, str] | None = Field(
        None, description="Ids of two texts to be drawn token by token; the most collapsed of the most alike unless given."
    )
    versions_of: str | None = Field(
        None,
        min_length=1,
        description="Column that names the document of which a text is a version; whole documents are looked into then.",
    )
    repeated_pairs: int = Field(
        8,
        ge=0,
        le=1000,
        description="Pairs of tokens whose repetition is embedded at 8, 16, … 512 tokens (S1 App. E.4); 0 leaves it out.",
    )

    @field_validator("pair")
    @classmethod
    def _two(cls, pair: tuple[str, str] | None) -> tuple[str, str] | None:
        if pair is not None and pair[0] == pair[1]:
            raise ValueError(f"pair names '{pair[0]}' twice; give two texts")
        return pair


class DiagnoseConfig(Strict):
    """A look inside a model's layers."""

    command: ClassVar[str] = "diagnose"
    reads: ClassVar[str] = "corpus"
    """The section that names the source."""
    out: str = Field("runs/diagnose", min_length=1, description="The run folder.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of every sample.")
    keep_text: bool = Field(True, description="Whether the tokens of the two texts may stand in tables and report.")
    corpus: Corpus = Field(default_factory=lambda: Corpus.model_validate({}), description="Which texts.")
    embedding: Looking = Field(default_factory=lambda: Looking.model_validate({}), description="Models and temperatures.")
    diagnosis: Diagnosis = Field(default_factory=lambda: Diagnosis.model_validate({}), description="What is looked at.")
    execution: Execution = Field(default_factory=lambda: Execution.model_validate({}), description="Where it runs.")

    @model_validator(mode="after")
    def _fitting(self) -> DiagnoseConfig:
        if self.corpus.embedding_column is not None:
            raise ValueError("embeddings of your own have no layers to look into; leave out embedding_column")
        if self.diagnosis.versions_of is not None and (self.corpus.sample is not None or self.corpus.limit is not None):
            raise ValueError("a sample would tear documents from their versions; leave out sample and limit, or versions_of")
        return self

    def reading(self) -> AuditConfig:
        """How an audit would read the same corpus."""
        corpus = self.corpus
        # A sample would tear documents from their versions.
        if corpus.sample is None and corpus.limit is None and self.diagnosis.versions_of is None:
            corpus = corpus.model_copy(update={"sample": CANDIDATES})
        given = {"out": self.out, "seed": self.seed, "corpus": corpus.model_dump(exclude_unset=True)}
        return AuditConfig.model_validate(given)

    def identity(self) -> dict[str, Any]:
        """All that decides the tables, as plain data."""
        return self.model_dump(mode="json", exclude={"out", "execution"})

    def temperatures(self) -> list[Temperature]:
        """The temperatures in the order given; the first is the reference."""
        return [Temperature.of(value) for value in self.embedding.temperatures]
