"""What a run found, as data: decided once from its tables; sentences, pages and messages are made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import polars as pl
import pyarrow as pa

from tempscale.stats.errors import Z_95
from tempscale_jobs.report.text import with_error
from tempscale_jobs.tables.columns import SCHEMA_VERSION
from tempscale_jobs.tables.findings import FINDINGS

State = Literal["absent", "unknown", "noise", "up", "down", "measured"]


class Finding(NamedTuple):
    """One figure and what may be said of it."""

    figure: str
    model: str
    temperature: str
    """Canonical text of the temperature."""
    tau: float | None
    """The temperature where it is one number."""
    state: State
    value: float | None
    error: float | None = None
    """Standard error for other texts, or documents."""
    rests_on: str = ""
    not_shown: str = ""
    command: str = ""

    @property
    def largest(self) -> float | None:
        """The largest size that the 95 % interval of a difference from 0 holds."""
        return None if self.value is None or self.error is None else abs(self.value) + Z_95 * self.error

    def __str__(self) -> str:
        """The figure and the half-width of its 95 % interval."""
        return with_error(self.value, self.error)


def state(value: float | None, error: float | None, expected: float = 0.0, z: float = Z_95) -> State:
    """Whether a figure differs from what is expected, by more than z standard errors."""
    if value is None or error is None:
        return "absent" if value is None else "unknown"
    if abs(value - expected) <= z * error:
        return "noise"
    return "up" if value > expected else "down"


def measured(value: float | None) -> State:
    """The state of a figure that is compared with nothing."""
    return "absent" if value is None else "measured"


class Findings:
    """The findings of a run, by figure, model and temperature."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.rows = tuple(findings)
        self._by_key = {(row.figure, row.model, row.temperature): row for row in self.rows}

    def of(self, figure: str, model: str, temperature: str) -> Finding:
        """The finding of a figure; an absent one where the run has none."""
        return self._by_key.get((figure, model, temperature), Finding(figure, model, temperature, None, "absent", None))

    def named(self, figure: str, model: str) -> list[Finding]:
        """A figure's findings under all temperatures that have one."""
        return [row for row in self.rows if (row.figure, row.model) == (figure, model)]

    def at(self, figure: str, row: Mapping[str, Any]) -> Finding:
        """The finding of a figure for the model and the temperature of a row of a table."""
        return self.of(figure, row["model"], row["temperature"])

    def table(self) -> pa.Table:
        """The table `findings`."""
        return FINDINGS.build_rows([row._asdict() | {"schema_version": SCHEMA_VERSION} for row in self.rows])

    @classmethod
    def read(cls, table: pl.DataFrame) -> Findings:
        """The findings of a table."""
        return cls(Finding(**row) for row in table.select(Finding._fields).to_dicts())

    def with_commands(self, commands: Mapping[Finding, str]) -> Findings:
        """The same, with what to run about some of them."""
        return Findings(row._replace(command=commands.get(row, row.command)) for row in self.rows)

    def as_data(self) -> list[dict[str, Any]]:
        """The findings for JSON, without what is empty."""
        return [{key: value for key, value in row._asdict().items() if value not in (None, "")} for row in self.rows]
