"""Where rows are that are no rows of text files: an address with settings, PATH?NAME=VALUE&NAME=VALUE, and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import masked


class Address(NamedTuple):
    """Where a store is, and its settings."""

    path: str
    settings: dict[str, str]


class Part(NamedTuple):
    """Consecutive rows of a store."""

    at: str
    """Where they are: a version, a file, or a snapshot with a range of keys; may be empty."""
    first: int
    """The number of the first row there."""
    number: int
    """The number of the first row in the store."""
    rows: int
    bytes: int = 0


def even_ranges(rows: int, bytes_of_a_row: float, most: tuple[int, int]) -> list[tuple[int, int]]:
    """The fewest even ranges with at most so many rows and bytes: the first row of each, and the row after it."""
    pieces = max(1, -(-rows // most[0]), -(-int(bytes_of_a_row * rows) // most[1]))
    return [(rows * k // pieces, rows * (k + 1) // pieces) for k in range(pieces)]


def address(source: str, known: Sequence[str]) -> Address:
    """The parts of an address; a UsageError if a setting is unknown, empty or given twice."""
    path, _, query = source.partition("?")
    settings = dict[str, str]()
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name not in known:
            raise UsageError(f"'{masked(path)}' has no setting '{name}'; its settings: {', '.join(known) or 'none'}")
        if not value or name in settings:
            raise UsageError(
                f"'{masked(path)}': the setting '{name}' is {'given twice' if value else 'empty'}; give it once"
            )
        settings[name] = unquote(value)
    return Address(path, settings)
