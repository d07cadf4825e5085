"""Files and texts that a user gives, as plain data for a configuration."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.errors import UsageError


def read_toml(path: str, kind: str = "config") -> dict[str, Any]:
    """The content of a TOML file, which errors call a `kind` file."""
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{kind} file '{path}' is not there; give the path of a TOML file") from None
    except IsADirectoryError:
        raise UsageError(f"{kind} file '{path}' is a folder; give the path of a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{kind} file '{path}' cannot be read as TOML: {error}") from None
    except ValueError:  # Python refuses longer whole numbers.
        raise UsageError(f"{kind} file '{path}' has a number of more than {sys.get_int_max_str_digits():,} digits") from None


def read_temperature(path: str) -> dict[str, Any]:
    """A temperature as unchecked data from a TOML or JSON file."""
    if not path.endswith(".json"):
        return read_toml(path, "temperature")
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"temperature file '{path}' cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"temperature file '{path}' must hold an object such as {{\"constant\": 0.8}}")
    return data


def read_temperatures(taus: list[float] | None, file: Path | None) -> list[Any]:
    """The temperatures of --tau and --temperature."""
    return [*(taus or []), *([] if file is None else [read_temperature(str(file))])]


def temperature_of(value: Any) -> Temperature:
    """A temperature from a number or plain data."""
    try:
        return Temperature.of(value)
    except ValueError as error:
        raise UsageError(str(error)) from None


def read_edges(text: str) -> list[int]:
    """The length intervals of --intervals."""
    try:
        return [int(edge) for edge in text.split(",")]
    except ValueError:
        raise UsageError(f"--intervals '{text}' must be whole numbers with commas between them, e.g. 0,100,200") from None


def read_window(text: str) -> int | str:
    """The window of --max-length."""
    if text == "limit":
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--max-length '{text}' must be a number of tokens, or limit") from None


def read_sample(text: str) -> int | str:
    """The size of --sample."""
    if text == "all":
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--sample '{text}' must be a number of rows, or all") from None


def lay_over(data: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set the value at a path, such as ("corpus", "sample"), in nested data."""
    *sections, last = path
    for section in sections:
        inner = data.setdefault(section, {})
        if not isinstance(inner, dict):
            raise UsageError(f"'{section}' must be a table of the configuration, not {inner!r}")
        data = inner
    data[last] = value
