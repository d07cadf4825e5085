"""The settings of `tempscale correct`."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.command import Command
from tempscale_jobs.config.option import Option
from tempscale_jobs.config.sections import Execution, MaxRejected, RunFolder
from tempscale_jobs.config.strict import Strict

if TYPE_CHECKING:
    from tempscale_jobs.config.fitted import Saved


class Embeddings(Strict):
    """The table of embeddings."""

    kind: ClassVar[str] = "embeddings"
    source: Annotated[str, Option("--embeddings", "Texts", "FILE", required=True)] = Field(
        min_length=1,
        description="Parquet with a column of embeddings: a file, folder or glob (local, s3://, gs://, hf://datasets/…); a "
        "table of a database or arrays, as of corpus.source. All other columns are kept.",
    )
    column: Annotated[str, Option("--embedding-column", "Texts")] = Field(
        "embedding", min_length=1, description="Column of the embeddings: lists of numbers."
    )
    length_column: Annotated[str | None, Option("--length-column", "Texts")] = Field(
        None,
        min_length=1,
        description="Column of the texts' lengths in tokens before they were cut, for corrections that depend on them.",
    )
    max_rejected: Annotated[MaxRejected, Option("--max-rejected", "Texts", "S")] = 0.5
    unit_rows: int = Field(
        131_072, ge=1, description="Most rows of one unit of work, unless a row group of the file has more."
    )


class CorrectConfig(Command):
    """A fitted correction for a table of embeddings."""

    command: ClassVar[str] = "correct"
    files: ClassVar[tuple[str, ...]] = ("vectors",)
    reads: ClassVar[str] = "embeddings"
    runs_models: ClassVar[bool] = False
    without_option: ClassVar[frozenset[str]] = frozenset({"execution.actors_per_gpu", "execution.log_format"})
    out: RunFolder = "runs/corrected"
    embeddings: Embeddings = Field(description="Which embeddings.")
    correction: Annotated[str, Option("--correction", "What is measured", "FILE", required=True)] = Field(
        min_length=1, description="The fitted correction: a file of corrections/ in a run of tempscale tune or audit."
    )
    fitted_on: Annotated[str | None, Option("--fitted-on", "What is measured", "TASK")] = Field(
        None, description="The task of the correction, if the file has several: TASK, or TASK/SPLIT/SUBSET."
    )
    side: Annotated[Literal["documents", "queries"], Option("--side", "What is measured")] = Field(
        "documents", description="Whether the embeddings are of documents or of queries."
    )
    equal_norms: Annotated[bool, Option("--equal-norms", "What is measured")] = Field(
        False,
        description="Add one coordinate, so that an index of cosines or distances ranks as the inner product does.",
    )
    model: Annotated[str | None, Option("--model", "Model and temperature", "NAME")] = Field(
        None, description="The model of the embeddings, by name or folder, which must be the correction's."
    )
    execution: Execution = Field(default_factory=lambda: Execution.model_validate({}), description="Where it runs.")

    @cached_property
    def saved(self) -> Saved:
        """The correction, read once; raises a UsageError if it cannot be."""
        from tempscale_jobs.config import fitted  # It imports torch.

        return fitted.load(self.correction, self.fitted_on)

    def identity(self) -> dict[str, Any]:
        """All that decides the result; the correction by its content."""
        settings = super().identity() | {"correction": self.saved.correction.digest}
        return {name: value for name, value in settings.items() if name not in ("fitted_on", "model")}

    def temperatures(self) -> list[Temperature]:
        """Empty, since no model runs."""
        return []
