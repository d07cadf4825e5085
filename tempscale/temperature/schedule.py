"""Attention temperature as data: the divisor of the attention logits, written and read as one canonical text.

Source: S1 (arXiv 2410.24200) eq. 6, A = softmax(QKᵀ / (τ√d)). This file imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tempscale.temperature.reading import (
    KINDS,
    TemperatureError,
    doubled,
    edge_tokens,
    folder_name,
    is_list,
    joined,
    number,
    plain_data,
)

ROLES = ("query", "document")
"""The roles that a text can have."""


@dataclass(frozen=True)
class Temperature:
    """The divisor of the attention logits: a number τ, or a schedule of numbers.

        A = softmax(QKᵀ / (τ√d))                                             S1 eq. 6

    `Temperature(0.8)` is a constant; `by_length`, `log_length`, `by_layer`, `by_head` and `by_role` make schedules. Every τ
    is in (0, 2]: the papers use (0, 1], values up to 2 are allowed for experiments. τ = 1 does not change the model. Exactly
    one field is set. Equal schedules are equal objects with equal `canonical` texts.
    """

    tau: float | None = None
    """τ if it is one number, in (0, 2]."""
    steps: tuple[tuple[int, float], ...] = ()
    """(tokens, τ): this τ from that many tokens on; ascending, the first from 0."""
    n0: int | None = None
    """τ(n) = ln n₀ / ln n above n₀ tokens."""
    layers: tuple[float | tuple[float, ...], ...] = ()
    """One τ for each layer, or a tuple with one for each head."""
    roles: tuple[tuple[str, Temperature], ...] = ()
    """(role, its temperature), «query» first."""

    def __post_init__(self) -> None:
        if not (self.steps or self.n0 is not None or self.layers or self.roles):
            object.__setattr__(self, "tau", number(self.tau))

    # ------------------------------------------------------------------------------------------ making one

    @classmethod
    def constant(cls, tau: float) -> Temperature:
        """The same τ for every text, layer and head.

        Args:
            tau: a number in (0, 2].

        Returns:
            The same as `Temperature(tau)`.

        Raises:
            TemperatureError: τ is not a number, or out of range.
        """
        return cls(tau)

    @classmethod
    def by_length(cls, steps: Mapping[Any, float]) -> Temperature:
        """τ by the number of tokens of a text: {0: 1.0, 256: 0.8} is 1.0 below 256 tokens and 0.8 from there on.

        Args:
            steps: number of tokens at which a step begins -> its τ in (0, 2]; one step begins at 0.

        Returns:
            A schedule by length; a constant if every step has the same τ.

        Raises:
            TemperatureError: lengths are not whole numbers from 0 upwards, appear twice, or a τ is out of range.
        """
        if not isinstance(steps, Mapping) or not steps:
            raise TemperatureError(
                f"by_length {steps!r} is no table; write {{0 = 1.0, 256 = 0.8}}: from 0 tokens on, from 256 on"
            )
        edges = [edge_tokens(edge) for edge in steps]
        if len(set(edges)) < len(edges):
            raise TemperatureError(f"by_length has overlapping steps: {doubled(edges)} tokens appear twice")
        if min(edges) != 0:
            raise TemperatureError(f"by_length has a gap: it starts at {min(edges)} tokens; the first step must start at 0")
        table = sorted(zip(edges, map(number, steps.values()), strict=True))
        merged = [step for place, step in enumerate(table) if place == 0 or step[1] != table[place - 1][1]]
        return cls(merged[0][1]) if len(merged) == 1 else cls(steps=tuple(merged))

    @classmethod
    def log_length(cls, n0: int) -> Temperature:
        """τ(n) = ln n₀ / ln n for n > n₀ tokens, else 1 (Kexuefm 8823, 2021: logits times log_{n₀} n).

        It keeps the entropy of attention from growing with length.

        Args:
            n0: n₀ in tokens, ≥ 2; texts of at most n₀ tokens are not changed.

        Returns:
            A schedule by length, with τ in (0, 1].

        Raises:
            TemperatureError: n₀ is not a whole number of at least 2.
        """
        if isinstance(n0, bool) or not isinstance(n0, int) or n0 < 2:
            raise TemperatureError(f"log_length {n0!r} must be a whole number of tokens, at least 2")
        return cls(n0=n0)

    @classmethod
    def by_layer(cls, taus: Sequence[float]) -> Temperature:
        """One τ for each layer.

        Args:
            taus: (layers,), each in (0, 2], first layer first.

        Returns:
            A schedule by layer, even if all τ are equal.

        Raises:
            TemperatureError: it is not a list, it is empty, or a τ is out of range.
        """
        if not is_list(taus):
            raise TemperatureError(f"by_layer {taus!r} is no list; give one τ for each layer, e.g. [1.0, 0.9, 0.8]")
        return cls(layers=tuple(map(number, taus)))

    @classmethod
    def by_head(cls, taus: Sequence[Sequence[float]]) -> Temperature:
        """One τ for each head of each layer.

        Args:
            taus: (layers, heads), each in (0, 2]: a list for each layer, first layer first.

        Returns:
            A schedule by layer and head.

        Raises:
            TemperatureError: it is not a table, rows differ in length, or a τ is out of range.
        """
        if not is_list(taus) or not all(map(is_list, taus)) or len({len(row) for row in taus}) > 1:
            raise TemperatureError(f"by_head {taus!r} is no table; give for each layer a list of one τ for each head")
        return cls(layers=tuple(tuple(map(number, row)) for row in taus))

    @classmethod
    def by_role(cls, *, query: Any, document: Any) -> Temperature:
        """One temperature for queries and one for documents.

        Args:
            query: the temperature of texts that search: any value that `of` reads, except another by_role.
            document: the temperature of texts that are searched: the same kinds of value.

        Returns:
            A schedule by role; if both are equal, that temperature itself.

        Raises:
            TemperatureError: one of them is not a temperature, or is itself by role.
        """
        parts = {"query": cls.of(query), "document": cls.of(document)}
        if any(part.roles for part in parts.values()):
            raise TemperatureError("by_role inside by_role has no meaning; give each role a number or another schedule")
        return parts["query"] if parts["query"] == parts["document"] else cls(roles=tuple(parts.items()))

    @classmethod
    def of(cls, value: Temperature | float | str | Mapping[str, Any]) -> Temperature:
        """Read a temperature from a number, its canonical text, or plain data such as {"by_length": {0: 1.0, 256: 0.8}}.

        Args:
            value: one of these, or a `Temperature`, which is returned unchanged.

        Returns:
            The temperature.

        Raises:
            TemperatureError: the value is not a temperature, or out of range.
        """
        if isinstance(value, Temperature):
            return value
        if isinstance(value, str):
            value = plain_data(value)
        if not isinstance(value, Mapping):
            return cls(value)
        if len(value) != 1 or next(iter(value)) not in KINDS:
            raise TemperatureError(
                f"temperature {dict(value)!r} is not known; write one of {', '.join(KINDS)}, e.g. {{'constant': 0.8}}"
            )
        kind, content = next(iter(value.items()))
        if kind == "by_role":
            if not isinstance(content, Mapping) or set(content) != set(ROLES):
                raise TemperatureError(
                    f"by_role {content!r} must name a temperature for query and one for document, and nothing else"
                )
            return cls.by_role(**content)
        if kind == "by_length" and is_list(content):
            content = joined(content)
        temperature: Temperature = getattr(cls, kind)(content)
        return temperature

    # ------------------------------------------------------------------------------------------ reading it

    @property
    def is_foldable(self) -> bool:
        """Whether weights can express it: a constant, or one by layer or head, of a family with a place for it."""
        return not (self.steps or self.n0 is not None or self.roles)

    def as_data(self) -> dict[str, Any]:
        """Plain data (JSON, TOML) that `of` reads: one key, the kind, with its numbers."""
        if self.steps:
            return {"by_length": {str(edge): tau for edge, tau in self.steps}}
        if self.n0 is not None:
            return {"log_length": self.n0}
        if self.layers:
            kind = "by_head" if self.per_head else "by_layer"
            return {kind: [list(taus) if isinstance(taus, tuple) else taus for taus in self.layers]}
        if self.roles:
            return {"by_role": {role: part.as_data() for role, part in self.roles}}
        return {"constant": self.tau}

    @property
    def canonical(self) -> str:
        """The one text of this temperature: equal temperatures have equal texts, and `of` reads it."""
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
        """The canonical text as a folder name, of at most 80 characters from a-z, 0-9, «_», «.» and «-»."""
        return self.canonical if self.tau is not None else folder_name(self.canonical)

    @property
    def is_identity(self) -> bool:
        """Whether it leaves the model exactly unchanged."""
        return self.tau == 1.0

    @property
    def per_head(self) -> bool:
        """Whether each head has its own τ."""
        return bool(self.layers) and isinstance(self.layers[0], tuple)

    @property
    def by_text(self) -> bool:
        """Whether τ depends on the length of the text."""
        return bool(self.steps) or self.n0 is not None

    def for_role(self, role: str | None) -> Temperature:
        """The temperature of one role; a temperature without roles returns itself.

        Args:
            role: «query» or «document», or None.

        Returns:
            A temperature that does not depend on the role.

        Raises:
            TemperatureError: the role is unknown, or required and None.
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
        """The τ of a text with this many tokens; for schedules by length and constants.

        Args:
            tokens: the length of the text, ≥ 0, special tokens included.

        Returns:
            τ in (0, 2].

        Raises:
            TemperatureError: the schedule is by layer, head or role.
        """
        if self.n0 is not None:
            return math.log(self.n0) / math.log(tokens) if tokens > self.n0 else 1.0
        if self.steps:
            return next(tau for edge, tau in reversed(self.steps) if tokens >= edge)
        if self.tau is None:
            raise TemperatureError(f"temperature {self.canonical} is no function of length")
        return self.tau

    def of_layer(self, layer: int) -> float | tuple[float, ...]:
        """The τ of one layer, or of each of its heads; for schedules by layer or head and constants.

        Args:
            layer: its number, from 0.

        Returns:
            τ in (0, 2], or a tuple (heads,) of them.

        Raises:
            TemperatureError: the schedule is by length or role.
        """
        if self.layers:
            return self.layers[layer]
        if self.tau is None:
            raise TemperatureError(f"temperature {self.canonical} is no function of the layer")
        return self.tau

    def check(self, layers: int, heads: int) -> None:
        """Raise unless a model with this many layers and heads can have this temperature.

        Args:
            layers: how many layers the model has.
            heads: how many heads each layer has.

        Raises:
            TemperatureError: the schedule has another number of layers or heads.
        """
        for part in [part for _, part in self.roles] or [self]:
            if part.layers and len(part.layers) != layers:
                raise TemperatureError(
                    f"the schedule names {len(part.layers)} layers, the model has {layers}; give one entry for each layer"
                )
            for layer, row in enumerate(part.layers):
                if isinstance(row, tuple) and len(row) != heads:
                    raise TemperatureError(
                        f"the schedule names {len(row)} heads in layer {layer}, the model has {heads}; "
                        "give one τ for each head"
                    )


def _entry(tau: float | tuple[float, ...]) -> str:
    return f"[{', '.join(map(repr, tau))}]" if isinstance(tau, tuple) else repr(tau)
