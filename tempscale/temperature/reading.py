"""Read a τ, a number of tokens and a table of steps, or raise an error of one sentence. This file imports no torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LARGEST_TAU = 2.0
"""Every τ is in (0, 2]: the papers use (0, 1], values up to 2 are allowed for experiments."""
KINDS = ("constant", "by_length", "log_length", "by_layer", "by_head", "by_role")
"""The kinds of schedule, as data and canonical texts name them."""


class TemperatureError(ValueError):
    """A temperature cannot be used; the message is one sentence."""


def number(tau: Any) -> float:
    """A τ in (0, 2] as a float."""
    if isinstance(tau, bool) or not isinstance(tau, (int, float)):
        raise TemperatureError(f"temperature {tau!r} is not a number; give a τ in (0, {LARGEST_TAU:g}], e.g. 0.8")
    # An integer too large for a float is out of range like any other.
    if abs(tau) > LARGEST_TAU or not math.isfinite(tau) or not 0.0 < tau <= LARGEST_TAU:
        raise TemperatureError(
            f"temperature {tau!r} is out of range; τ must be above 0 and at most {LARGEST_TAU:g} (the papers use 0 < τ ≤ 1)"
        )
    return float(tau)


def edge_tokens(edge: Any) -> int:
    """The start of a step in tokens, ≥ 0; a string of digits is accepted, since keys in TOML and JSON are strings."""
    if isinstance(edge, str) and edge.strip().isdecimal():
        edge = int(edge)
    if isinstance(edge, bool) or not isinstance(edge, int) or edge < 0:
        raise TemperatureError(f"by_length has a step at {edge!r}; steps start at whole numbers of tokens, from 0")
    return edge


def joined(rows: Sequence[Any]) -> dict[int, float]:
    """The start of each step and its τ, not yet checked, from rows {from, to, tau} in any order that leave no gap."""
    for row in rows:
        if not isinstance(row, Mapping) or not {"from", "tau"} <= set(row) <= {"from", "to", "tau"}:
            raise TemperatureError(f"by_length row {row!r} must be {{from = 0, to = 256, tau = 1.0}}; the last has no `to`")
    steps = [
        (edge_tokens(row["from"]), None if row.get("to") is None else edge_tokens(row["to"]), row["tau"]) for row in rows
    ]
    steps.sort(key=lambda step: step[0])
    for (_, stop, _), after in zip(steps, [*steps[1:], None], strict=True):
        start = None if after is None else after[0]
        if stop == start:
            continue
        problem = "an overlap" if start is not None and (stop is None or stop > start) else "a gap"
        follows = "and none follows" if start is None else f"the next starts at {start}"
        raise TemperatureError(f"by_length has {problem}: one step runs to {'its end' if stop is None else stop}, {follows}")
    return {start: tau for start, _, tau in steps}


def doubled(edges: Iterable[int]) -> str:
    """The numbers that appear more than once, ascending, as text with commas."""
    values = list(edges)
    return ", ".join(str(edge) for edge in sorted(set(values)) if values.count(edge) > 1)


def is_list(value: Any) -> bool:
    """Whether a value is a list or tuple that is not empty; a string is not a list."""
    return isinstance(value, (list, tuple)) and len(value) > 0


def plain_data(text: str) -> dict[str, Any]:
    """The plain data that `Temperature.of` reads and checks, from a number or "by_length(0: 1.0, 256: 0.8)" as text."""
    name, bracket, inside = text.strip().partition("(")
    try:
        if not bracket:
            return {"constant": float(text)}
        if name not in KINDS or not inside.endswith(")"):
            raise ValueError(text)
        inside = inside[:-1]
        if name == "log_length":
            return {name: int(inside)}
        if name == "constant":
            return {name: float(inside)}
        if name == "by_role":
            if inside.count(name) > 9:  # Each level of nesting adds a few calls to the stack.
                raise RecursionError(text)
            query, document = re.fullmatch(r"query: (.+), document: (.+)", inside).groups()  # type: ignore[union-attr]
            return {name: {"query": query, "document": document}}
        if name == "by_length":
            pairs = [step.split(":") for step in inside.split(",")]
            if len({edge_tokens(edge.strip()) for edge, _ in pairs}) < len(pairs):
                raise TemperatureError(f"by_length has overlapping steps in {text!r}")
            return {name: {edge.strip(): float(tau) for edge, tau in pairs}}
        return {name: json.loads(f"[{inside}]")}
    except TemperatureError:
        raise
    except (ValueError, AttributeError, RecursionError):
        raise TemperatureError(
            f"temperature {text!r} is not a number; give a τ such as 0.8 or a schedule such as log_length(128)"
        ) from None


def folder_name(canonical: str) -> str:
    """A canonical text as a folder name of at most 80 characters from a-z, 0-9, «_», «.» and «-»."""
    plain = re.sub(r"[^a-z0-9_.]+", "-", canonical).strip("-")
    # Folder names are limited to 255 bytes, so long schedules are distinguished by a digest.
    return plain if len(plain) <= 80 else f"{plain[:60]}-{hashlib.sha256(canonical.encode()).hexdigest()[:12]}"
