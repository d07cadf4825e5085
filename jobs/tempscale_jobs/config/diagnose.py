"""The settings of `tempscale diagnose`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, field_validator, model_validator

from tempscale_jobs.config.command import Command
from tempscale_jobs.config.option import Option, ReadBy
from tempscale_jobs.config.sections import Corpus, CutModels, Execution, Intervals, RunFolder, Seed

CANDIDATES = 20_000
"""Texts of the seeded sample whose lengths are measured, unless `sample` or `limit` is given."""


class Looking(CutModels):
    """The models and the temperatures; every text runs alone, in float32, cut at the window."""

    precision: ClassVar[str] = "float32"


class Diagnosis(Intervals):
    """The texts and pairs to look into."""

    texts: Annotated[int, Option("--texts", "What is measured", "N")] = Field(
        200, ge=2, le=5000, description="Texts to look into, as evenly from all length intervals as possible."
    )
    piece_texts: int = Field(4, ge=1, description="Texts of one piece of work.")
    pair: Annotated[tuple[str, str] | None, Option("--pair", "What is measured", "ID ID"), ReadBy(tuple)] = Field(
        None, description="Ids of two texts to draw token by token; the most collapsed of the most alike unless given."
    )
    versions_of: Annotated[str | None, Option("--versions-of", "What is measured", "COLUMN")] = Field(
        None,
        min_length=1,
        description="Column that names the document of which a text is a version, such as a summary: whole documents are "
        "looked into, and the effect of length is reported at equal content.",
    )
    repeated_pairs: Annotated[int, Option("--repeated-pairs", "What is measured", "N")] = Field(
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


class DiagnoseConfig(Command):
    """A look inside a model's layers."""

    command: ClassVar[str] = "diagnose"
    reads: ClassVar[str] = "corpus"
    without_option: ClassVar[frozenset[str]] = frozenset(
        {"corpus.embedding_column", "corpus.length_column", "corpus.dims", "execution.log_format"}
    )
    out: RunFolder = "runs/diagnose"
    seed: Seed = 0
    keep_text: Annotated[bool, Option("--text/--no-text", "The run")] = Field(
        True, description="Whether the tokens of the two texts may be in tables and report."
    )
    corpus: Corpus = Field(default_factory=lambda: Corpus.model_validate({}), description="Which texts.")
    embedding: Looking = Field(default_factory=lambda: Looking.model_validate({}), description="Models and temperatures.")
    diagnosis: Diagnosis = Field(default_factory=lambda: Diagnosis.model_validate({}), description="What is looked at.")
    execution: Execution = Field(default_factory=lambda: Execution.model_validate({}), description="Where it runs.")

    @model_validator(mode="after")
    def _fitting(self) -> DiagnoseConfig:
        if self.corpus.embedding_column is not None:
            raise ValueError("your own embeddings have no layers to look into; leave out embedding_column")
        if self.diagnosis.versions_of is not None and (self.corpus.sample is not None or self.corpus.limit is not None):
            raise ValueError("a sample would separate versions of a document; leave out sample and limit, or versions_of")
        return self

    def candidates(self) -> Corpus:
        """The corpus that texts are chosen from: a sample, unless it would separate documents from their versions."""
        corpus = self.corpus
        if corpus.sample is not None or corpus.limit is not None or self.diagnosis.versions_of is not None:
            return corpus
        return corpus.model_copy(update={"sample": CANDIDATES})
