"""The settings of nights, sections [gate] and [record], which change no figure."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, field_validator

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.option import Option
from tempscale_jobs.config.strict import Strict

NIGHT = "{night}"
"""The placeholder of the night's date in `out` and in `corpus.source`."""
SHARES = {
    "truncated_share": "texts", "spread_over_2_share": "texts", "within_cosine_over_third_share": "texts",
    "rejected_share": "rows", "wrong_share": "verified_texts",
}  # fmt: skip
"""Figures that are shares, with binomial errors, and the column with the number of texts or rows behind each."""
WITH_ERRORS = (
    "cosine_mean", "collapse_gap", "prefix_gap", "exposure_short", "exposure_long", "spread_mean", "socm_mean",
    "socm_over_1_share", *SHARES,
)  # fmt: skip
"""Figures of collapse_summary with a known noise, whose drift can be checked."""
FIGURES = (
    "texts", "corpus_texts", "tokens", "rows", "rejected", "verified_texts", *WITH_ERRORS, "k_occurrence_skewness",
    "reciprocity", "near_duplicate_pairs", "effective_rank", "top_component", "socm_texts", "socm_pairs", "socm_groups",
)  # fmt: skip
"""The figures of collapse_summary, which a threshold may name."""
_THRESHOLD = re.compile(r"\s*([a-z_0-9]+)\s*(<=|>=|<|>)\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?)\s*", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_LONGEST_QUOTE = 80
DRIFT = {"cosine_mean": 0.02, "collapse_gap": 0.02, "prefix_gap": 0.02, "socm_mean": 0.02}


@dataclass(frozen=True)
class Threshold:
    """A limit of a figure."""

    figure: str
    relation: Literal["<=", ">=", "<", ">"]
    limit: float

    @classmethod
    def read(cls, text: str) -> Threshold:
        """A threshold from its text, such as `collapse_gap <= 0.15`; any other text is a ValueError."""
        match = _THRESHOLD.fullmatch(text)
        if match is None:
            raise ValueError(
                f"'{_shortened(text)}' is not of the form FIGURE <= NUMBER (or <, >=, >), such as collapse_gap <= 0.15"
            )
        figure, relation, limit = match.groups()
        if figure not in FIGURES:
            raise ValueError(f"'{_shortened(text)}' names no figure of collapse_summary; there are {', '.join(FIGURES)}")
        if math.isinf(float(limit)):
            raise ValueError(f"'{_shortened(text)}' has a limit too large for a number, which nothing exceeds")
        return cls(figure, relation, float(limit))  # type: ignore[arg-type]

    def excess(self, value: float) -> float:
        """The distance of a value beyond the limit; 0 or less if it holds (`<` and `>` do not hold at the limit)."""
        return value - self.limit if self.relation in ("<=", "<") else self.limit - value

    def holds(self, value: float) -> bool:
        """Whether a value is on the right side."""
        excess = self.excess(value)
        return excess < 0 or (excess == 0 and self.relation in ("<=", ">="))

    def __str__(self) -> str:
        return f"{self.figure} {self.relation} {self.limit:g}"


class Gate(Strict):
    """The checks of a night."""

    thresholds: list[str] = Field(
        [], description="Each `FIGURE <= NUMBER` (or <, >=, >) on a figure of collapse_summary: collapse_gap <= 0.15."
    )
    exact: bool = Field(
        False,
        description="A threshold is about the night's own corpus: a figure of all its texts fails as soon as it misses its "
        "limit. Unless set, it is about texts like these, and fails beyond the noise of others.",
    )
    temperatures: list[float | str] = Field(
        [], description="Temperatures that the gate checks, as numbers or canonical texts; all of the run unless given."
    )
    baseline: Annotated[
        str | None,
        Option(
            "--baseline", "The gate", "RUN|latest",
            more="A change beyond its size and its noise is exit code 1; the thresholds and sizes are in the configuration, "
            "[gate].",
        ),
    ] = Field(
        None,
        min_length=1,
        description="The baseline of the night: `latest`, the last passing or accepted night of the same model and "
        "temperature, or a run folder. None unless given.",
    )  # fmt: skip
    on_other_model: Literal["fail", "new-series"] = Field(
        "fail",
        description="The verdict on a night of another model than the baseline's, or measured in another way (window, "
        "prompts, precision, …). fail: the gate fails until a night is accepted; new-series: the night begins a new series, "
        "and only the thresholds are checked.",
    )
    unknown: Literal["pass", "fail"] = Field(
        "pass",
        description="The verdict on a change larger than its size in drift if its noise is not known, as of too few "
        "texts: pass, with a note, or fail.",
    )
    drift: dict[str, float] = Field(
        DRIFT, description="By figure, the size that a change from the baseline must exceed, and its noise too."
    )
    false_alarms: float = Field(
        0.01,
        gt=0,
        lt=0.5,
        description="Largest share of nights without a change that may fail by noise, over all checks of a night.",
    )
    webhook_env: str = Field(
        "TEMPSCALE_WEBHOOK",
        description="Name of the environment variable that holds the URL to which the verdict is posted, as Slack reads it. "
        "Never the URL itself.",
    )
    notify: Literal["failures", "always", "never"] = Field("failures", description="Which verdicts are posted there.")

    @field_validator("thresholds")
    @classmethod
    def _readable(cls, texts: list[str]) -> list[str]:
        read = [Threshold.read(text) for text in texts]
        if len(set(read)) < len(read):
            raise ValueError("a threshold is given twice; give each once")
        return texts

    @field_validator("drift")
    @classmethod
    def _with_errors(cls, sizes: dict[str, float]) -> dict[str, float]:
        for figure, size in sizes.items():
            if figure not in WITH_ERRORS:
                raise ValueError(
                    f"'{figure}' is no figure whose noise is known; there are {', '.join(WITH_ERRORS)}"
                    + ("; give it a threshold instead" if figure in FIGURES else "")
                )
            if not 0 <= size < float("inf"):
                raise ValueError(f"{figure} = {size}: the size of a change is 0 or more")
        return sizes

    @field_validator("webhook_env")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not name.isidentifier():  # The address is a secret and is not shown here either.
            raise ValueError("give the name of the environment variable that holds the webhook's address, not the address")
        return name

    @field_validator("temperatures")
    @classmethod
    def _are_temperatures(cls, values: list[float | str]) -> list[float | str]:
        for value in values:
            Temperature.of(value)
        return values

    def read_thresholds(self) -> list[Threshold]:
        """The thresholds."""
        return [Threshold.read(text) for text in self.thresholds]

    def holds_for(self, temperature: str) -> bool:
        """Whether anything is checked under a temperature (its canonical text)."""
        named = self.named()
        return not named or temperature in named

    def named(self) -> set[str]:
        """The canonical texts of the configured temperatures."""
        return {Temperature.of(value).canonical for value in self.temperatures}

    def asks(self) -> bool:
        """Whether a night is checked at all."""
        return bool(self.thresholds) or self.baseline is not None


def _shortened(text: str) -> str:
    """A text as an error quotes it, at most 80 characters."""
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


class RecordOfNights(Strict):
    """The record of past nights."""

    history: Annotated[str | None, Option("--history", "The gate", "DIR")] = Field(
        None,
        min_length=1,
        description="Folder of the record of nights; unless given, FOLDER/history where out is FOLDER/{night}, else history "
        "below the run folder.",
    )
    name: str = Field(
        "", description="Name of the series, where several corpora share a record: nights of one name are compared."
    )
    keep_embeddings: int | None = Field(
        None,
        ge=1,
        description="Number of nights whose embeddings are kept; older ones keep tables and report. All unless given.",
    )


def checked_night(night: str | None) -> str | None:
    """The date; a ValueError if it is none."""
    if night is not None:
        if not _DATE.fullmatch(night):
            raise ValueError(f"'{night}' is not a date such as 2026-11-22")
        datetime.date.fromisoformat(night)
    return night


def filled(text: str, night: str) -> str:
    """The text with the night's date in it."""
    return text.replace(NIGHT, night)


def history_folder(record: RecordOfNights, out: str) -> str:
    """The folder of the record of nights, for an `out` that may have {night}."""
    if record.history is not None:
        return record.history
    if NIGHT in out:
        before = out.split(NIGHT, 1)[0].rpartition("/")[0]
        return f"{before}/history" if before or out.startswith("/") else "history"
    return f"{out.rstrip('/')}/history"
