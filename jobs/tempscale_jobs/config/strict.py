"""Strict configurations: unknown keys are errors, and each problem is one sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tempscale_jobs.config.option import setting_at
from tempscale_jobs.errors import UsageError

_LONGEST_ECHO = 80
_BITS = 63

Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """Unknown keys and wrong types are errors; no value is changed."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    without_option: ClassVar[frozenset[str]] = frozenset()
    """Settings, by their path from here, whose option only other commands have."""


def checked(kind: type[Model], data: dict[str, Any]) -> Model:
    """A configuration of this kind from plain data; a UsageError names the field and value of each mistake."""
    if large := [*_large_numbers(data)]:
        numbers = "; ".join(f"{_named(kind, path)} is a number of {_digits(value):,} digits" for path, value in large)
        raise UsageError(f"{numbers}; give a whole number of at most 2^{_BITS} − 1")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise UsageError("; ".join(_sentence(kind, problem) for problem in error.errors())) from None
    except UnicodeEncodeError as error:  # A validator quoted the text.
        raise UsageError(f"the configuration holds a text that is not valid UTF-8: {error.object!r}") from None


def _large_numbers(data: Any) -> Iterator[tuple[tuple[str, ...], int]]:
    """The whole numbers in plain data that do not fit into 64 bits, with their paths."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), data)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [((*path, str(name)), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            waiting += [((*path, str(place)), inner) for place, inner in enumerate(value)]
        elif isinstance(value, int) and value.bit_length() > _BITS:
            yield path, value


def _digits(value: int) -> int:
    """About how many digits a whole number has that is too large for Python to print."""
    return math.ceil(value.bit_length() * math.log10(2))


def _named(kind: type[BaseModel], path: tuple[str, ...]) -> str:
    """The name of a field in a sentence, with its options."""
    field = ".".join(path) or "the configuration"
    setting = setting_at(kind, path)
    options = "" if setting is None else setting.named()
    return f"{field} ({options})" if options else field


def _sentence(kind: type[BaseModel], problem: Any) -> str:
    # pydantic names a value of several types with each type that it is not.
    field = _named(kind, tuple(str(part) for part in problem["loc"] if part not in ("float", "dict[str,any]")))
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"'{field}' is not an option of the configuration; see docs/configuration.md"
    if problem["type"] == "missing":
        return f"{field} is missing, and has no default; give it"
    if problem["type"] == "value_error":
        return f"{field}: {message}"
    try:
        value = repr(problem["input"])
    except RecursionError:  # A dotted key of TOML may nest thousands of tables.
        value = "tables nested too deeply to be shown"
    value = value if len(value) <= _LONGEST_ECHO else f"{value[:_LONGEST_ECHO]}…"
    return f"{field} = {value}: {message[0].lower()}{message[1:]}"
