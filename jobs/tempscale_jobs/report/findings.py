"""What a run found, as data: decided once from its tables; sentences, pages and messages are made of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import polars as pl
import pyarrow as pa

from tempscale.stats.errors import Z_95
from tempscale_jobs.report.text import labels, with_error
from tempscale_jobs.runs.sealed import shown
from tempscale_jobs.tables.columns import SCHEMA_VERSION
from tempscale_jobs.tables.findings import FINDINGS
from tempscale_jobs.urls import masked

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
    """What to run about it; it names folders of this run, so it is no column of the table."""

    @property
    def largest(self) -> float | None:
        """The largest size that the 95 % interval of a difference from 0 holds."""
        return None if self.value is None or self.error is None else abs(self.value) + Z_95 * self.error

    @property
    def is_beyond_noise(self) -> bool:
        """Whether the figure differs from what is expected by more than noise."""
        return self.state in ("up", "down")

    def __str__(self) -> str:
        """The figure and the half-width of its 95 % interval."""
        return with_error(self.value, self.error)


_STORED = tuple(column.name for column in FINDINGS.columns if column.name in Finding._fields)


def finding(
    row: Mapping[str, Any], figure: str, state: State, value: float | None, error: float | None = None, **grounds: Any
) -> Finding:
    """The finding of a figure for the model and the temperature of a row; `grounds` are left out of an absent one."""
    found = Finding(figure, row["model"], row["temperature"], row["tau"], state, value, error)
    return found if state == "absent" else found._replace(**grounds)


def state(value: float | None, error: float | None, expected: float = 0.0, z: float = Z_95) -> State:
    """Whether a figure differs from what is expected, by more than z standard errors."""
    if value is None or error is None:
        return "absent" if value is None else "unknown"
    if abs(value - expected) <= z * error:
        return "noise"
    return "up" if value > expected else "down"


def together(tests: int) -> float:
    """The standard errors within which 95 % of several tests together stay by chance (Bonferroni)."""
    return NormalDist().inv_cdf(1 - 0.025 / max(1, tests))


def measured(value: float | None) -> State:
    """The state of a figure that is compared with nothing."""
    return "absent" if value is None else "measured"


def changed(figure: str) -> str:
    """The name of the finding on the change of a figure."""
    return f"change of {figure}"


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
        version = {"schema_version": SCHEMA_VERSION}
        return FINDINGS.build_rows([{name: getattr(row, name) for name in _STORED} | version for row in self.rows])

    def frame(self) -> pl.DataFrame:
        """The table `findings` as `load_tables` gives it."""
        return pl.DataFrame(pl.from_arrow(self.table()))

    @classmethod
    def read(cls, table: pl.DataFrame) -> Findings:
        """The findings of a table."""
        return cls(Finding(**row) for row in table.select(_STORED).to_dicts())

    @classmethod
    def stored(cls, tables: dict[str, pl.DataFrame], decide: Callable[[dict[str, pl.DataFrame]], Findings]) -> Findings:
        """The findings of a finished run; an older version stored none, so that they are decided now."""
        return cls.read(tables["findings"]) if "findings" in tables else decide(tables)

    def with_commands(self, commands: Mapping[Finding, str]) -> Findings:
        """The same, with what to run about some of them."""
        return Findings(row._replace(command=commands.get(row, row.command)) for row in self.rows)

    def as_data(self) -> list[dict[str, Any]]:
        """The findings for JSON, without what is empty."""
        return [{key: value for key, value in row._asdict().items() if value not in (None, "")} for row in self.rows]


def labelled(tables: Mapping[str, pl.DataFrame], temperatures: Iterable[str]) -> dict[str, pl.DataFrame]:
    """The tables with a short label in place of each temperature and each reference."""
    names = labels(temperatures)
    return {
        key: table.with_columns(pl.col(c).replace(names) for c in ("temperature", "reference") if c in table.columns)
        for key, table in tables.items()
    }


def of_each_model(tables: Mapping[str, pl.DataFrame], name: str) -> dict[str, dict[str, pl.DataFrame]]:
    """Each model's rows of the tables, in the order in which the table `name` has the models."""
    return {
        model: {key: table.filter(model=model) for key, table in tables.items() if "model" in table.columns}
        for model in tables[name]["model"].unique(maintain_order=True)
    }


class Document(NamedTuple):
    """What --json prints of a command."""

    run: str
    """The folder."""
    answers: dict[str, str]
    """The answer of the command, by model."""
    findings: Findings
    more: dict[str, Any] | None = None
    """What only this command has, such as the verdict of the gate."""

    def as_json(self) -> str:
        """The document, without characters that a terminal obeys and addresses with secrets."""
        data = {"run": masked(self.run), "answers": self.answers} | (self.more or {})
        data["findings"] = self.findings.as_data()
        return shown(json.dumps(data, ensure_ascii=False, indent=2))
