"""Columns with type, unit and meaning, the tables made of them, and the columns that many tables share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """One kind of Parquet file."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    def schema(self) -> pa.Schema:
        """The Arrow schema, each field with its unit and meaning as metadata."""
        return pa.schema(
            [pa.field(c.name, c.type, metadata={"unit": c.unit, "meaning": c.meaning}) for c in self.columns],
            metadata={"table": self.name, "schema_version": str(SCHEMA_VERSION)},
        )

    def build(self, columns: dict[str, Any]) -> pa.Table:
        """Build a table from columns by name; a missing or unknown column is an error."""
        self._check(set(columns))
        return pa.Table.from_pydict(columns, schema=self.schema())

    def build_rows(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        """Build a table from rows; every row must have exactly the table's columns."""
        for row in rows:
            self._check(set(row))
        return pa.Table.from_pylist(list(rows), schema=self.schema())

    def _check(self, names: set[str]) -> None:
        if names != (expected := {c.name for c in self.columns}):
            raise ValueError(
                f"{self.name}: missing columns {sorted(expected - names)}, unknown columns {sorted(names - expected)}"
            )


def finite(value: float) -> float | None:
    """The value, or None where it is not finite."""
    return float(value) if math.isfinite(value) else None


TEXT, INT, BIG, FLOAT, BOOL = pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.bool_()

KEY = (
    Column("model", TEXT, "", "short name of the model"),
    Column("temperature", TEXT, "", "canonical text of the temperature schedule"),
    Column("tau", FLOAT, "", "the temperature where it is one number, else null"),
    Column("schema_version", INT, "", "version of this table's columns"),
)
"""The first columns of every table."""
_SUPER = "the same for other texts or, where they come in documents, other documents: for another corpus or night"


def with_error(name: str, meaning: str, unit: str = "") -> tuple[Column, Column, Column]:
    """The columns of a figure and its two standard errors."""
    return (
        Column(name, FLOAT, unit, meaning),
        Column(f"{name.removesuffix('_mean')}_se", FLOAT, "", "standard error for this corpus; 0 when every text was used"),
        Column(f"{name.removesuffix('_mean')}_se_superpopulation", FLOAT, "", _SUPER),
    )  # fmt: skip
