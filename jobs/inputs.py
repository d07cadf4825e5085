"""What a user gives, files and the text of options, as plain data for a configuration."""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from jobs.errors import UsageError
from jobs.evaluate_config import OWN_KINDS
from jobs.urls import reason, shown
from tempscale.temperature import Temperature


def read_toml(path: str, kind: str = "config") -> dict[str, Any]:
    """The content of a TOML file; `kind` is what an error calls it.

    Raises:
        UsageError: it is not there, or not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{kind} file '{path}' is not there; give the path of a TOML file") from None
    except IsADirectoryError:
        raise UsageError(f"{kind} file '{path}' is a folder; give the path of a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{kind} file '{path}' cannot be read as TOML: {error}") from None


def read_temperature(path: str) -> dict[str, Any]:
    """A temperature as data from a TOML or JSON file.

    Raises:
        UsageError: the file cannot be read; what it holds is checked by `resolve`.
    """
    if not path.endswith(".json"):
        return read_toml(path, "temperature")
    try:
        data = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"temperature file '{path}' cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):  # TOML always is one.
        raise UsageError(f"temperature file '{path}' must hold an object such as {{\"constant\": 0.8}}")
    return data


def temperature_of(value: Any) -> Temperature:
    """A temperature from a number or plain data.

    Raises:
        UsageError: it is none.
    """
    try:
        return Temperature.of(value)
    except ValueError as error:
        raise UsageError(str(error)) from None


def read_edges(text: str) -> list[int]:
    """Interval edges from their text.

    Raises:
        UsageError: one is not a whole number.
    """
    try:
        return [int(edge) for edge in text.split(",")]
    except ValueError:
        raise UsageError(f"--intervals '{text}' must be whole numbers with commas between them, e.g. 0,100,200") from None


def read_tasks(texts: list[str], texts_per_interval: int | None, windows: bool | None) -> list[Any]:
    """The tasks that --task names: MTEB's by name, one's own as data.

    Raises:
        UsageError: a folder does not hold what a retrieval needs.
    """
    tasks: list[Any] = []
    for text in texts:
        kind, _, path = text.partition(":")
        given, _, kind = kind.rpartition("=")
        if kind not in OWN_KINDS or not path:
            tasks.append(text)
            continue
        last = shown(path).rstrip("/").rsplit("/", 1)[-1].split(".")[0]  # Names are told everywhere.
        task: dict[str, Any] = {"name": given or re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or kind, "type": kind}
        if kind == "retrieval":
            task |= {name: _only(path, name) for name in ("corpus", "queries", "qrels")}
        else:
            task["source"] = path
        if kind == "classification":
            by_length = {"texts_per_interval": texts_per_interval, "windows": windows}
            task |= {name: value for name, value in by_length.items() if value is not None}
        tasks.append(task)
    if (texts_per_interval is not None or windows) and not any(
        isinstance(t, dict) and t["type"] == "classification" for t in tasks
    ):
        raise UsageError("--texts-per-interval and --windows belong to --task classification:FILE; give both")
    return tasks


def _only(folder: str, name: str) -> str:
    """The one file of a folder that is called so, whatever its kind."""
    import fsspec

    pattern = f"{folder.rstrip('/')}/{name}.*"
    try:
        fs, path = fsspec.core.url_to_fs(os.path.expanduser(pattern))
        found = [str(fs.unstrip_protocol(file)) if "://" in folder else str(file) for file in fs.glob(path)]
    except (ImportError, ValueError, OSError) as error:
        raise UsageError(f"--task retrieval:{shown(folder)} cannot be opened: {reason(error, folder)}") from None
    if len(found) != 1:
        told = "no such file" if not found else f"{len(found)} of them"
        raise UsageError(
            f"--task retrieval:{shown(folder)}: the folder must hold one file {name}.* (Parquet, JSONL, CSV or TSV), and "
            f"there is {told}"
        )
    return found[0]


def read_pairs(texts: list[str]) -> dict[str, str]:
    """MODEL=BACKBONE as data.

    Raises:
        UsageError: a text is not of that form.
    """
    found: dict[str, str] = {}
    for text in texts:
        model, _, backbone = text.partition("=")
        if not model or not backbone:
            raise UsageError(f"--backbone '{text}' is not of the form MODEL=BACKBONE")
        found[model] = backbone
    return found


def lay_over(data: dict[str, Any], name: str, value: Any) -> None:
    """Set `name`, such as corpus.sample, in nested data."""
    *sections, last = name.split(".")
    for section in sections:
        inner = data.setdefault(section, {})
        if not isinstance(inner, dict):
            raise UsageError(f"'{section}' must be a table of the configuration, not {inner!r}")
        data = inner
    data[last] = value


def nested(given: dict[str, Any], data: dict[str, Any] | None = None) -> dict[str, Any]:
    """Options by dotted name as nested data, laid over what is there; those that were not given are left out."""
    data = {} if data is None else data
    for name, value in given.items():
        if value is not None:
            lay_over(data, name, value)
    return data
