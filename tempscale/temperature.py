"""Attention temperature as data: what divides the logits, written and read back as one canonical text.

Source: S1 (arXiv 2410.24200) eq. 6, A = softmax(QKᵀ / (τ√d)). This file imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PAPER_RANGE = (0.0, 1.0)
LARGEST_TAU = 2.0


class TemperatureError(ValueError):
    """A temperature that cannot be used, said in one sentence."""


@dataclass(frozen=True)
class Temperature:
    """The number τ that divides the attention logits of every layer and head (S1 eq. 6).

    τ is in (0, 2]: the papers use (0, 1], values up to 2 are allowed for experiments. τ = 1 is the model as it is.
    """

    tau: float

    def __post_init__(self) -> None:
        if isinstance(self.tau, bool) or not isinstance(self.tau, (int, float)):
            raise TemperatureError(f"temperature {self.tau!r} is not a number; give a τ in (0, {LARGEST_TAU:g}], e.g. 0.8")
        # An integer too large for a float is out of range like any other.
        if abs(self.tau) > LARGEST_TAU or not math.isfinite(self.tau) or not 0.0 < self.tau <= LARGEST_TAU:
            raise TemperatureError(
                f"temperature {self.tau!r} is out of range; τ must be above 0 and at most {LARGEST_TAU:g} "
                "(the papers use 0 < τ ≤ 1)"
            )
        object.__setattr__(self, "tau", float(self.tau))

    @classmethod
    def constant(cls, tau: float) -> Temperature:
        """The same τ for every text, layer and head."""
        return cls(tau)

    @classmethod
    def of(cls, value: Temperature | float | str | Mapping[str, Any]) -> Temperature:
        """Read a temperature from a number, its text, or plain data such as {"constant": 0.8}.

        Raises:
            TemperatureError: the value is no temperature, or out of range.
        """
        if isinstance(value, Temperature):
            return value
        if isinstance(value, Mapping):
            if set(value) != {"constant"}:
                raise TemperatureError(f"temperature {dict(value)!r} is not known; write {{'constant': 0.8}}")
            return cls(value["constant"])
        if isinstance(value, str):
            try:
                return cls(float(value))
            except ValueError as error:
                if isinstance(error, TemperatureError):
                    raise
                raise TemperatureError(f"temperature {value!r} is not a number; give a τ such as 0.8") from None
        return cls(value)

    def as_data(self) -> dict[str, float]:
        """Plain data that `of` reads back."""
        return {"constant": self.tau}

    @property
    def canonical(self) -> str:
        """The one text of this temperature: equal temperatures have equal texts, and `of` reads it back."""
        return repr(self.tau)

    @property
    def slug(self) -> str:
        """The canonical text as a folder name."""
        return self.canonical

    @property
    def is_identity(self) -> bool:
        """Whether the model is left exactly as it is."""
        return self.tau == 1.0
