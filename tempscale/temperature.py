"""Attention temperature as data: what divides the logits, written and read back as one canonical text.

Source: S1 (arXiv 2410.24200) eq. 6, A = softmax(QKᵀ / (τ√d)). This file imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LARGEST_TAU = 2.0
ROLES = ("query", "document")
_KINDS = ("constant", "by_length", "log_length", "by_layer", "by_head", "by_role")


class TemperatureError(ValueError):
    """A temperature that cannot be used, said in one sentence."""


@dataclass(frozen=True)
class Temperature:
    """What divides the attention logits: a number τ, or a schedule of numbers (S1 eq. 6).

    `Temperature(0.8)` is a constant; `by_length`, `log_length`, `by_layer`, `by_head` and `by_role` make the others. Every
    τ is in (0, 2]: the papers use (0, 1], values up to 2 are allowed for experiments. τ = 1 is the model as it is.
    Exactly one field is set. Equal schedules are equal objects with equal `canonical` texts.
    """

    tau: float | None = None
    steps: tuple[tuple[int, float], ...] = ()
    """(tokens, τ): from that many tokens on, ascending, the first from 0."""
    n0: int | None = None
    """τ(n) = ln n₀ / ln n above n₀ tokens."""
    layers: tuple[float | tuple[float, ...], ...] = ()
    """For each layer a τ, or one for each head."""
    roles: tuple[tuple[str, Temperature], ...] = ()

    def __post_init__(self) -> None:
        if not (self.steps or self.n0 is not None or self.layers or self.roles):
            object.__setattr__(self, "tau", _number(self.tau))

    # ------------------------------------------------------------------------------------------ making one

    @classmethod
    def constant(cls, tau: float) -> Temperature:
        """The same τ for every text, layer and head."""
        return cls(tau)

    @classmethod
    def by_length(cls, steps: Mapping[Any, float]) -> Temperature:
        """τ by the text's tokens: {0: 1.0, 256: 0.8} is 1.0 below 256 tokens and 0.8 from there on.

        Raises:
            TemperatureError: lengths are not whole numbers from 0 upwards, appear twice, or a τ is out of range.
        """
        if not isinstance(steps, Mapping) or not steps:
            raise TemperatureError(
                f"by_length {steps!r} is no table; write {{0 = 1.0, 256 = 0.8}}: from 0 tokens on, from 256 on"
            )
        edges = [_length(edge) for edge in steps]
        if len(set(edges)) < len(edges):
            raise TemperatureError(f"by_length has overlapping steps: {_doubled(edges)} tokens appear twice")
        if min(edges) != 0:
            raise TemperatureError(f"by_length has a gap: it starts at {min(edges)} tokens; the first step must start at 0")
        table = sorted(zip(edges, map(_number, steps.values()), strict=True))
        merged = [step for place, step in enumerate(table) if place == 0 or step[1] != table[place - 1][1]]
        return cls(merged[0][1]) if len(merged) == 1 else cls(steps=tuple(merged))

    @classmethod
    def log_length(cls, n0: int) -> Temperature:
        """τ(n) = ln n₀ / ln n for n > n₀ tokens, else 1: it keeps the entropy of attention from growing with length.

        (Kexuefm 8823, 2021: logits times log_{n₀} n.)

        Raises:
            TemperatureError: n₀ is not a whole number of at least 2.
        """
        if isinstance(n0, bool) or not isinstance(n0, int) or n0 < 2:
            raise TemperatureError(f"log_length {n0!r} must be a whole number of tokens, at least 2")
        return cls(n0=n0)

    @classmethod
    def by_layer(cls, taus: Sequence[float]) -> Temperature:
        """One τ for each layer, first layer first."""
        if not _is_list(taus):
            raise TemperatureError(f"by_layer {taus!r} is no list; give one τ for each layer, e.g. [1.0, 0.9, 0.8]")
        return cls(layers=tuple(map(_number, taus)))

    @classmethod
    def by_head(cls, taus: Sequence[Sequence[float]]) -> Temperature:
        """One τ for each head of each layer: a list for each layer, first layer first."""
        if not _is_list(taus) or not all(map(_is_list, taus)) or len({len(row) for row in taus}) > 1:
            raise TemperatureError(f"by_head {taus!r} is no table; give for each layer a list of one τ for each head")
        return cls(layers=tuple(tuple(map(_number, row)) for row in taus))

    @classmethod
    def by_role(cls, *, query: Any, document: Any) -> Temperature:
        """One temperature for queries and one for documents, each anything `of` reads but another by_role."""
        parts = {"query": cls.of(query), "document": cls.of(document)}
        if any(part.roles for part in parts.values()):
            raise TemperatureError("by_role inside by_role has no meaning; give each role a number or another schedule")
        return parts["query"] if parts["query"] == parts["document"] else cls(roles=tuple(parts.items()))

    @classmethod
    def of(cls, value: Temperature | float | str | Mapping[str, Any]) -> Temperature:
        """Read a temperature from a number, its canonical text, or plain data such as {"by_length": {0: 1.0, 256: 0.8}}.

        Raises:
            TemperatureError: the value is no temperature, or out of range.
        """
        if isinstance(value, Temperature):
            return value
        if isinstance(value, str):
            return _parse(value)
        if not isinstance(value, Mapping):
            return cls(value)
        if len(value) != 1 or next(iter(value)) not in _KINDS:
            raise TemperatureError(
                f"temperature {dict(value)!r} is not known; write one of {', '.join(_KINDS)}, e.g. {{'constant': 0.8}}"
            )
        kind, content = next(iter(value.items()))
        if kind == "by_role":
            if not isinstance(content, Mapping) or set(content) != set(ROLES):
                raise TemperatureError(
                    f"by_role {content!r} must name a temperature for query and one for document, and nothing else"
                )
            return cls.by_role(**content)
        if kind == "by_length" and _is_list(content):
            content = _joined(content)
        found: Temperature = getattr(cls, kind)(content)
        return found

    # ------------------------------------------------------------------------------------------ reading it

    def as_data(self) -> dict[str, Any]:
        """Plain data (JSON, TOML) that `of` reads back."""
        if self.steps:
            return {"by_length": {str(edge): tau for edge, tau in self.steps}}
        if self.n0 is not None:
            return {"log_length": self.n0}
        if self.layers:
            return {
                "by_head" if self.per_head else "by_layer": [list(t) if isinstance(t, tuple) else t for t in self.layers]
            }
        if self.roles:
            return {"by_role": {role: part.as_data() for role, part in self.roles}}
        return {"constant": self.tau}

    @property
    def canonical(self) -> str:
        """The one text of this temperature: equal temperatures have equal texts, and `of` reads it back."""
        if self.steps:
            return f"by_length({', '.join(f'{edge}: {tau!r}' for edge, tau in self.steps)})"
        if self.n0 is not None:
            return f"log_length({self.n0})"
        if self.layers:
            return f"{'by_head' if self.per_head else 'by_layer'}({', '.join(map(_entry, self.layers))})"
        if self.roles:
            return f"by_role({', '.join(f'{role}: {part.canonical}' for role, part in self.roles)})"
        return repr(self.tau)

    @property
    def slug(self) -> str:
        """The canonical text as a folder name."""
        if self.tau is not None:
            return self.canonical
        import hashlib
        import re

        plain = re.sub(r"[^a-z0-9_.]+", "-", self.canonical).strip("-")
        # Names of folders end at 255 bytes: long schedules are told apart by a digest.
        return plain if len(plain) <= 80 else f"{plain[:60]}-{hashlib.sha256(self.canonical.encode()).hexdigest()[:12]}"

    @property
    def is_identity(self) -> bool:
        """Whether the model is left exactly as it is."""
        return self.tau == 1.0

    @property
    def per_head(self) -> bool:
        """Whether each head has its own τ."""
        return bool(self.layers) and isinstance(self.layers[0], tuple)

    @property
    def by_text(self) -> bool:
        """Whether τ depends on the text's length."""
        return bool(self.steps) or self.n0 is not None

    def for_role(self, role: str | None) -> Temperature:
        """The temperature of one role; without roles, itself.

        Raises:
            TemperatureError: the role is unknown, or needed and not given.
        """
        if role is not None and role not in ROLES:
            raise TemperatureError(f"role {role!r} is not known; roles are {' and '.join(ROLES)}")
        if not self.roles:
            return self
        if role is None:
            raise TemperatureError(
                f"temperature {self.canonical} depends on the role: encode with encode_query or encode_document, "
                "or say which with role(model, 'query')"
            )
        return dict(self.roles)[role]

    def of_length(self, tokens: int) -> float:
        """The τ of a text of this many tokens; for schedules that know lengths, and constants."""
        if self.n0 is not None:
            return math.log(self.n0) / math.log(tokens) if tokens > self.n0 else 1.0
        if self.steps:
            return next(tau for edge, tau in reversed(self.steps) if tokens >= edge)
        if self.tau is None:
            raise TemperatureError(f"temperature {self.canonical} is no function of length")
        return self.tau

    def of_layer(self, layer: int) -> float | tuple[float, ...]:
        """The τ of one layer, or of each of its heads; for schedules that know layers, and constants."""
        if self.layers:
            return self.layers[layer]
        if self.tau is None:
            raise TemperatureError(f"temperature {self.canonical} is no function of the layer")
        return self.tau

    def check(self, layers: int, heads: int) -> None:
        """Raise unless a model of so many layers and heads can have this temperature.

        Raises:
            TemperatureError: it has more or fewer.
        """
        for part in [part for _, part in self.roles] or [self]:
            if part.layers and len(part.layers) != layers:
                raise TemperatureError(
                    f"the schedule names {len(part.layers)} layers, the model has {layers}; give one entry for each layer"
                )
            for number, row in enumerate(part.layers):
                if isinstance(row, tuple) and len(row) != heads:
                    raise TemperatureError(
                        f"the schedule names {len(row)} heads in layer {number}, the model has {heads}; "
                        "give one τ for each head"
                    )


def _number(tau: Any) -> float:
    if isinstance(tau, bool) or not isinstance(tau, (int, float)):
        raise TemperatureError(f"temperature {tau!r} is not a number; give a τ in (0, {LARGEST_TAU:g}], e.g. 0.8")
    # An integer too large for a float is out of range like any other.
    if abs(tau) > LARGEST_TAU or not math.isfinite(tau) or not 0.0 < tau <= LARGEST_TAU:
        raise TemperatureError(
            f"temperature {tau!r} is out of range; τ must be above 0 and at most {LARGEST_TAU:g} (the papers use 0 < τ ≤ 1)"
        )
    return float(tau)


def _length(edge: Any) -> int:
    """A number of tokens; TOML and JSON write the keys of a table as texts."""
    if isinstance(edge, str) and edge.strip().isdecimal():
        edge = int(edge)
    if isinstance(edge, bool) or not isinstance(edge, int) or edge < 0:
        raise TemperatureError(f"by_length has a step at {edge!r}; steps start at whole numbers of tokens, from 0")
    return edge


def _joined(rows: Sequence[Any]) -> dict[int, float]:
    """Steps from rows {from, to, tau}, in any order, which must follow one another."""
    for row in rows:
        if not isinstance(row, Mapping) or not {"from", "tau"} <= set(row) <= {"from", "to", "tau"}:
            raise TemperatureError(f"by_length row {row!r} must be {{from = 0, to = 256, tau = 1.0}}; the last has no `to`")
    steps = [(_length(row["from"]), None if row.get("to") is None else _length(row["to"]), row["tau"]) for row in rows]
    steps.sort(key=lambda step: step[0])
    for (_, stop, _), after in zip(steps, [*steps[1:], None], strict=True):
        start = None if after is None else after[0]
        if stop == start:
            continue
        problem = "an overlap" if start is not None and (stop is None or stop > start) else "a gap"
        follows = "and none follows" if start is None else f"the next starts at {start}"
        raise TemperatureError(f"by_length has {problem}: one step runs to {'its end' if stop is None else stop}, {follows}")
    return {start: tau for start, _, tau in steps}


def _doubled(edges: Iterable[int]) -> str:
    found = list(edges)
    return ", ".join(str(edge) for edge in sorted(set(found)) if found.count(edge) > 1)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0


def _entry(tau: float | tuple[float, ...]) -> str:
    return f"[{', '.join(map(repr, tau))}]" if isinstance(tau, tuple) else repr(tau)


def _parse(text: str) -> Temperature:
    """The temperature of a canonical text, or of a number's text."""
    import json
    import re

    name, bracket, inside = text.strip().partition("(")
    try:
        if not bracket:
            return Temperature(float(text))
        if name not in _KINDS or not inside.endswith(")"):
            raise ValueError(text)
        inside = inside[:-1]
        if name == "log_length":
            return Temperature.log_length(int(inside))
        if name == "by_role":
            query, document = re.fullmatch(r"query: (.+), document: (.+)", inside).groups()  # type: ignore[union-attr]
            return Temperature.by_role(query=query, document=document)
        if name == "by_length":
            pairs = [step.split(":") for step in inside.split(",")]
            if len({_length(edge.strip()) for edge, _ in pairs}) < len(pairs):
                raise TemperatureError(f"by_length has overlapping steps in {text!r}")
            return Temperature.by_length({edge.strip(): float(tau) for edge, tau in pairs})
        return Temperature.of({name: json.loads(f"[{inside}]")} if name != "constant" else {name: float(inside)})
    except TemperatureError:
        raise
    except (ValueError, AttributeError, RecursionError):
        raise TemperatureError(
            f"temperature {text!r} is not a number; give a τ such as 0.8 or a schedule such as log_length(128)"
        ) from None
