"""Configurations that take nothing for granted: unknown keys are errors, and each problem is one sentence."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from jobs.errors import UsageError

_LONGEST_ECHO = 80
_OPTIONS = {
    "corpus.source": "--corpus", "corpus.id_column": "--id-column", "corpus.text_column": "--text-column",
    "corpus.sample": "--sample", "corpus.limit": "--limit", "embedding.models": "--model",
    "embedding.temperatures": "--tau or --temperature", "embedding.max_length": "--max-length",
    "embedding.long": "--long", "embedding.precision": "--precision",
    "analysis.intervals": "--intervals", "analysis.socm_sample": "--socm-sample", "analysis.socm_cell_se": "--socm-se",
    "analysis.socm_top_over": "--socm-top-over", "analysis.cosine": "--cosine",
    "analysis.cosine_precision": "--cosine-precision", "analysis.neighbours": "--neighbours",
    "seed": "--seed", "out": "--out", "night": "--night", "gate.baseline": "--baseline", "record.history": "--history",
    "execution.workers": "--workers", "execution.address": "--address", "execution.cache": "--cache",
    "execution.log_format": "--log-format",
    "pairs.source": "--pairs", "pairs.column_a": "--column-a", "pairs.column_b": "--column-b", "pairs.limit": "--limit",
    "socm.alpha": "--alpha", "socm.beta": "--beta",
}  # fmt: skip
"""The option of the command line that gives a field."""

Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """Unknown keys and wrong types are errors; nothing the user wrote is changed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def checked(kind: type[Model], data: dict[str, Any]) -> Model:
    """A configuration of this kind from plain data.

    Raises:
        UsageError: one sentence for each thing that is wrong, naming the field and the value.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise UsageError("; ".join(_sentence(problem) for problem in error.errors())) from None
    except UnicodeEncodeError as error:  # What a validator says of a text quotes it.
        raise UsageError(f"the configuration holds a text that is not valid UTF-8: {error.object!r}") from None


def _sentence(problem: Any) -> str:
    # A value that may have several types is named with each type that it is not.
    parts = [str(part) for part in problem["loc"] if part not in ("float", "dict[str,any]")]
    field = ".".join(parts) or "the configuration"
    if (option := _OPTIONS.get(".".join(parts[:2]))) is not None:
        field += f" ({option})"
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"'{field}' is not an option of the configuration; see docs/configuration.md"
    if problem["type"] == "value_error":
        return f"{field}: {message}"
    try:
        given = repr(problem["input"])
    except RecursionError:  # Thousands of tables in one another, which TOML writes as one dotted key.
        given = "tables nested too deeply to be shown"
    given = given if len(given) <= _LONGEST_ECHO else f"{given[:_LONGEST_ECHO]}…"
    return f"{field} = {given}: {message[0].lower()}{message[1:]}"
