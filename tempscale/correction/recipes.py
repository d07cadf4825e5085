"""The name of a correction before it is fitted, such as «remove_top(1)»: one canonical text for one recipe."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tempscale.correction.errors import CorrectionError

LEAST_TEXTS = 100
"""The least number of documents, and of queries, that a correction is fitted to."""
LEAST_ASKING = 30
"""The least number of queries where only their mean counts."""
_EXAMPLES = (
    "length, length(4), centre, centre(unit), centre_by_length, centre_by(language), remove_mean_direction, remove_top(1), "
    "whiten(0.5), csls(10, 0.5)"
)
_COLUMN = re.compile(r"[\w .-]{1,60}")
"""A column's name: it becomes a part of a file's name."""


@dataclass(frozen=True)
class Recipe:
    """A kind of correction with its parameters."""

    kind: str
    """A name in `PARAMETERS`."""
    parameters: tuple[int | float | str, ...] = ()
    """Its parameters, in the order of `PARAMETERS`."""

    @classmethod
    def of(cls, text: str) -> Recipe:
        """Read a recipe such as «length», «remove_top(2)» or «csls(10, 0.5)»; omitted parameters have their defaults."""
        match = re.fullmatch(r"([a-z_]+)\s*(?:\(([^()]*)\))?", str(text).strip())
        if not match or match[1] not in PARAMETERS:
            raise CorrectionError(f"there is no correction {str(text)!r}; there are {_EXAMPLES}")
        arguments = [part.strip() for part in (match[2] or "").split(",") if part.strip()]
        expected = PARAMETERS[match[1]]
        if len(arguments) > len(expected):
            raise CorrectionError(f"{match[1]} takes {_named(expected)}, not {match[2].strip()!r}")
        values = [
            parameter.read(match[1], arguments[k]) if k < len(arguments) else parameter.omitted(match[1])
            for k, parameter in enumerate(expected)
        ]
        return cls(match[1], tuple(values))

    @property
    def canonical(self) -> str:
        """The recipe as one text: equal recipes have equal texts."""
        expected = PARAMETERS[self.kind]
        values = list(self.parameters)
        while values and values[-1] == expected[len(values) - 1].default and not expected[len(values) - 1].always:
            values.pop()
        return f"{self.kind}({', '.join(map(_plain, values))})" if values else self.kind

    @property
    def asks(self) -> bool:
        """Whether it cannot be fitted without queries."""
        return self.kind in ("length", "centre", "centre_by_length", "centre_by", "csls")

    @property
    def column(self) -> str | None:
        """The column whose values are the groups of documents that it depends on; None of most corrections."""
        return str(self.parameters[0]) if self.kind == "centre_by" else None


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kind of correction."""

    name: str
    default: Any
    least: float = 0.0
    most: float = float("inf")
    words: tuple[str, ...] = ()
    """Its possible values, if it is a word."""
    always: bool = False
    """Whether the canonical text contains it even if it has its default."""
    column: bool = False
    """Whether it is the name of a column, which has no default."""

    def omitted(self, kind: str) -> Any:
        """Its value where none is written."""
        if self.column:
            raise CorrectionError(f"{kind} needs {self.name}, such as {kind}(language)")
        return self.default

    def read(self, kind: str, text: str) -> Any:
        """Its value, from text."""
        if self.column:
            if _COLUMN.fullmatch(text):
                return text
            raise CorrectionError(
                f"{self.name} of {kind} has at most 60 letters, digits, spaces and any of _ . -, unlike {text!r}; rename it"
            )
        if self.words:
            if text in self.words:
                return text
            raise CorrectionError(f"{self.name} of {kind} can be {' or '.join(self.words)}, not {text!r}")
        whole = isinstance(self.default, int)
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = None
        if value is None or not self.least <= value <= self.most:
            bounds = (
                f"at least {_plain(self.least)}"
                if self.most == float("inf")
                else (f"from {_plain(self.least)} to {_plain(self.most)}")
            )
            raise CorrectionError(f"{self.name} of {kind} is a{' whole' * whole} number {bounds}, not {text!r}")
        return value


PARAMETERS: dict[str, tuple[Parameter, ...]] = {
    "length": (Parameter("the number of knots", 2, 2, 20),),
    "centre": (Parameter("the variant", "plain", words=("plain", "unit")),),
    "centre_by_length": (Parameter("the number of knots", 2, 2, 20),),
    "centre_by": (Parameter("the column", None, always=True, column=True),),
    "remove_mean_direction": (),
    "remove_top": (Parameter("the number of components", 1, 1, 1000, always=True),),
    "whiten": (Parameter("the power", 1.0, 0.0, 1.0, always=True),),
    "csls": (
        Parameter("the number of neighbours", 10, 1, 1000, always=True),
        Parameter("the weight", 0.5, 0.0, 1.0, always=True),
    ),
}
"""The kinds of correction, with their parameters."""


def columns_of(recipes: Iterable[str]) -> tuple[str, ...]:
    """The columns of groups that some recipes depend on, each once."""
    columns = (Recipe.of(recipe).column for recipe in recipes)
    return tuple(dict.fromkeys(column for column in columns if column is not None))


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _named(parameters: tuple[Parameter, ...]) -> str:
    return " and ".join(parameter.name for parameter in parameters)
