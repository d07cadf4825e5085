"""Configurations that take nothing for granted: unknown keys are errors, and each problem is one sentence."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tempscale_jobs.config.option import setting_at
from tempscale_jobs.errors import UsageError

_LONGEST_ECHO = 80

Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """Unknown keys and wrong types are errors; nothing the user wrote is changed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    without_option: ClassVar[frozenset[str]] = frozenset()
    """Settings, by their path from here, whose option belongs to other commands only."""


def checked(kind: type[Model], data: dict[str, Any]) -> Model:
    """A configuration of this kind from plain data; a UsageError has a sentence for each mistake, with field and value."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise UsageError("; ".join(_sentence(kind, problem) for problem in error.errors())) from None
    except UnicodeEncodeError as error:  # What a validator says of a text quotes it.
        raise UsageError(f"the configuration holds a text that is not valid UTF-8: {error.object!r}") from None


def _sentence(kind: type[BaseModel], problem: Any) -> str:
    # A value that may have several types is named with each type that it is not.
    parts = [str(part) for part in problem["loc"] if part not in ("float", "dict[str,any]")]
    field = ".".join(parts) or "the configuration"
    if (setting := setting_at(kind, tuple(parts))) is not None and (options := setting.named()):
        field += f" ({options})"
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
