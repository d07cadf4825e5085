"""A finished audit to compare."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import finished, finished_audit, place
from tempscale_jobs.runs.inventory import results
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.layout import documents_of
from tempscale_jobs.tables.audit import COLLAPSE_SUMMARY
from tempscale_jobs.tables.parts import DOCUMENT

Row = dict[str, Any]
_TEXT_COLUMNS = ["text_id", "content_sha", "tokens", "embedding"]


@dataclass(frozen=True)
class Finished:
    """A finished audit to compare."""

    storage: Storage
    record: dict[str, Any]
    tables: dict[str, pl.DataFrame]

    @classmethod
    def read(cls, folder: str) -> Finished:
        """Read the run in a folder; raises UsageError unless it is a finished audit."""
        record, tables = results(finished(folder))  # Names a file that is damaged.
        storage, _ = finished_audit(folder, mend="; compare takes two audits")
        return cls(storage, record, tables)

    def rows(self) -> list[Row]:
        """The rows of collapse_summary, each with its model's fingerprint."""
        rows = self.tables["collapse_summary"].to_dicts()
        unknown = dict.fromkeys(c.name for c in COLLAPSE_SUMMARY.columns)  # A run of an older version lacks newer columns.
        return [unknown | row | {"fingerprint": self.record["models"][row["model"]]["fingerprint"]} for row in rows]

    @property
    def has_texts(self) -> bool:
        """Whether it is of texts, not of a user's vectors; digests of contents are of these."""
        return self.record["config"]["corpus"].get("embedding_column") is None

    def texts(self, row: Row) -> pl.DataFrame | None:
        """The texts under one model and temperature with their embeddings; None where the embeddings were pruned."""
        parts = self.storage.list(place("texts", row["model"], Temperature.of(row["temperature"])), ".parquet")
        return pl.concat(self.storage.read_frames(parts, _TEXT_COLUMNS, DOCUMENT)) if parts else None


@dataclass(frozen=True)
class Side:
    """One model and temperature of one of two audits."""

    run: Finished
    row: Row
    """Its row of collapse_summary."""
    texts: pl.DataFrame | None
    """Its texts with their embeddings; None where they were pruned."""

    @property
    def edges(self) -> list[int]:
        """The lower edges of the length intervals."""
        edges: list[int] = self.run.record["config"]["analysis"]["intervals"]
        return edges

    @cached_property
    def histograms(self) -> pl.DataFrame:
        """Its rows of cosine_histogram; empty where not every pair was compared."""
        table = self.run.tables.get("cosine_histogram", pl.DataFrame())
        return table if table.is_empty() else table.filter(model=self.row["model"], temperature=self.row["temperature"])

    @cached_property
    def graph(self) -> list[str]:
        """The parts of its neighbours; empty where they were not searched, or were pruned."""
        folder = place("neighbours", self.row["model"], Temperature.of(self.row["temperature"]))
        return self.run.storage.list(folder, ".parquet")


def documents_of_both(both: pl.DataFrame) -> np.ndarray | None:
    """The document of each text of two joined runs, one of which may not have named them; None where neither has."""
    columns = [pa.chunked_array([both[name].to_arrow()]) for name in ("document", "document_b")]
    known = [documents_of([column], both["text_id"].to_list()) for column in columns]
    return known[0] if known[1] is None else known[1]
