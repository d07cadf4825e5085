"""How far the numbers of a stored vector may be from those of the model that made it.

    ‖v − u‖ ≤ δ‖u‖   ⇒   1 − cos(v, u) ≤ 1 − √(1 − δ²)   and   |‖v‖/‖u‖ − 1| ≤ δ

δ is the sum of the error of the computation, which is measured, and of the error of storage, which follows from the format.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_UNIT = {"float64": 2.0**-24, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Half the distance of two neighbouring numbers in [1, 2): the largest relative error of rounding to the nearest.

float64 has that of float32: it holds numbers of float32 that were written as text.
"""
_HALF_SMALLEST = {"float64": 0.0, "float32": 2.0**-150, "float16": 2.0**-25, "bfloat16": 2.0**-134}
"""Half the distance of the smallest (subnormal) numbers: the largest absolute error there."""
_LARGEST_WHOLE = 255.0
_DECIMALS = range(3, 9)
"""Decimal places to which numbers are rounded in text."""


class Compared(NamedTuple):
    """A stored vector against the model's."""

    cosine: float
    norm_ratio: float | None
    """‖v‖/‖u‖; None where the format keeps no norm."""
    distance: float
    """δ: the largest ‖v − u‖/‖u‖ that computation and storage explain."""

    @property
    def is_within(self) -> bool:
        """Whether the direction is the model's."""
        return bool(1 - self.cosine <= largest_gap(self.distance))

    @property
    def has_its_norm(self) -> bool:
        """Whether the norm is the model's, as far as the format keeps it."""
        return self.norm_ratio is None or abs(self.norm_ratio - 1) <= self.distance


def is_float(kind: str) -> bool:
    """Whether a format keeps numbers as they are, up to their last digits: not codes, not bits."""
    return kind not in ("int8", "bits")


def float_format(row: Float[np.ndarray, " dim"]) -> str:
    """The coarsest format that holds all numbers of a vector: a floating-point format, or so many decimals, as in text."""
    single = row.astype(np.float32)
    if not np.array_equal(single.astype(np.float64), row):
        places = next((k for k in _DECIMALS if np.array_equal(np.round(row, k), row)), None)
        return "float64" if places is None else f"{places} decimals"
    if not (single.view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        half = single.astype(np.float16)
    return "float16" if np.array_equal(half.astype(np.float32), single) else "float32"


def is_whole(row: Float[np.ndarray, " dim"]) -> bool:
    """Whether a vector holds the whole numbers of eight bits, such as an index of int8 without its scale."""
    largest = np.abs(row).max(initial=0.0)
    return bool(1 < largest <= _LARGEST_WHOLE and np.array_equal(row, np.rint(row)))


def float_error(kind: str, dim: int, norm: float) -> float:
    """The largest relative distance ‖v − u‖/‖u‖ after rounding each of the d numbers of u to the nearest of a format.

    |v_k − u_k| ≤ ε|u_k| for normal numbers and ≤ half the smallest number for the others, so the distance is at most
    ε + √d·smallest/(2‖u‖); of k decimals √d·10⁻ᵏ/(2‖u‖).
    """
    if kind.endswith(" decimals"):
        return step_error(10.0 ** -int(kind.split()[0]), dim, norm)
    return _UNIT[kind] + (float(np.sqrt(dim)) * _HALF_SMALLEST[kind] / norm if norm else 0.0)


def step_error(step: float | Float[np.ndarray, " dim"], dim: int, norm: float) -> float:
    """The same after rounding each number to a multiple of its step: ‖v − u‖ ≤ √(Σ(step_k/2)²)."""
    steps = np.broadcast_to(np.asarray(step, dtype=np.float64), (dim,))
    return float(np.linalg.norm(steps / 2)) / norm if norm else 0.0


def largest_gap(distance: float) -> float:
    """The largest 1 − cos(v, u) of vectors with ‖v − u‖ ≤ distance·‖u‖; 2 where the distance says nothing."""
    return 1 - float(np.sqrt(1 - distance * distance)) if distance < 1 else 2.0


class Storage(NamedTuple):
    """How a source stores its vectors, as far as its options say it."""

    bits: bool = False
    scale: float | tuple[float, ...] | None = None
    """Factor for whole numbers; None where none is given."""
    offset: float | tuple[float, ...] | None = None
    """What is added to them afterwards."""

    def numbers(self, stored: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
        """The numbers of a vector, with its scale and offset."""
        if self.scale is None:
            return stored
        numbers: np.ndarray = stored * _each(self.scale, len(stored)) + _each(self.offset or 0.0, len(stored))
        return numbers

    def fits(self, dim: int) -> bool:
        """Whether there are a scale and an offset for each dimension."""
        return all(len(each) >= dim for each in (self.scale, self.offset) if isinstance(each, tuple))

    def format_of(self, row: Float[np.ndarray, " dim"]) -> str:
        """The format of a vector: the one that the options name, else the coarsest that holds its numbers."""
        if self.bits:
            return "bits"
        return "int8" if self.scale is not None or is_whole(row) else float_format(row)

    def compare(self, stored: Float[np.ndarray, " dim"], model: Float[np.ndarray, " dim"], error: float) -> Compared:
        """A stored vector v against the model's u.

        Args:
            stored: the numbers in the source, before their scale; with a direction.
            model: u, of the same width.
            error: relative error of the computation, ‖u' − u‖/‖u‖ for the vector u' that was stored.

        Returns:
            Cosine, ratio of the norms, and the distance that error and the vector's own format explain.
        """
        kind = self.format_of(stored)
        if kind == "bits":
            return compare_bits(stored, model, error)
        if kind == "int8":
            scale = None if self.scale is None else _each(self.scale, len(stored))
            # A database that normalises does so before it takes codes.
            norm, unit = float(np.linalg.norm(self.numbers(stored))), model / np.linalg.norm(model)
            near_unit = scale is not None and abs(norm - 1) < abs(norm - float(np.linalg.norm(model)))
            offset = None if self.offset is None else _each(self.offset, len(stored))
            return compare_codes(stored, unit if near_unit else model, error, scale, offset)
        return compare_floats(stored, model, error, kind)


def _each(value: float | tuple[float, ...], dim: int) -> Float[np.ndarray, " dim"]:
    """One number for each dimension."""
    numbers = np.atleast_1d(np.asarray(value, dtype=np.float64))
    each: np.ndarray = np.broadcast_to(numbers, (dim,)) if len(numbers) == 1 else numbers[:dim]
    return each


def compare_floats(
    stored: Float[np.ndarray, " dim"], model: Float[np.ndarray, " dim"], error: float, kind: str
) -> Compared:  # fmt: skip
    """A vector in a floating-point format against the model's u."""
    norm = float(np.linalg.norm(model))
    return Compared(cosine(stored, model), float(np.linalg.norm(stored)) / norm, error + float_error(kind, len(model), norm))


def compare_codes(
    codes: Float[np.ndarray, " dim"], model: Float[np.ndarray, " dim"], error: float,
    scale: float | Float[np.ndarray, " dim"] | None, offset: float | Float[np.ndarray, " dim"] | None = None,
) -> Compared:  # fmt: skip
    """A vector of int8 codes, v_k = s_k·c_k + o_k, against the model's u, of which codes keep at most 127 steps.

    Without a scale only the direction is known; the one step for all dimensions is then the one that fits best,
    s = ⟨u, c⟩/⟨c, c⟩, if it is positive. With an offset a code may be off by a whole step, since sentence-transformers cuts
    numbers off where others round them.
    """
    known = scale is not None
    step = np.asarray(scale if known else max(float(model @ codes) / float(codes @ codes), 0.0), dtype=np.float64)
    shift = 0.0 if offset is None else offset
    stored = codes * step + shift
    low, high = min(-128.0, codes.min()), max(127.0, codes.max())
    clipped = np.clip(model, low * step + shift, high * step + shift) if np.all(step > 0) else model
    norm = float(np.linalg.norm(clipped))
    ratio = float(np.linalg.norm(stored)) / norm if known and norm else None
    direction = stored if np.any(step) else codes
    steps = step if offset is None else 2 * step
    return Compared(cosine(direction, clipped), ratio, error + step_error(steps, len(codes), norm))


def compare_bits(signs: Float[np.ndarray, " dim"], model: Float[np.ndarray, " dim"], error: float) -> Compared:
    """A vector of signs ±1 against the signs of u, of which those of |u_k| ≤ error·‖u‖ may be either."""
    certain = np.abs(model) > error * np.linalg.norm(model)
    expected = np.where(certain, np.where(model > 0, 1.0, -1.0), signs)
    return Compared(cosine(signs, expected), None, 0.0)


def cosine(a: Float[np.ndarray, " dim"], b: Float[np.ndarray, " dim"]) -> float:
    """cos(a, b) in float64, exact for equal directions; 0 where one has none.

    1 − cos is computed as half the squared distance of the unit vectors, which keeps all digits of a small angle.
    """
    largest = float(np.abs(a).max()), float(np.abs(b).max())
    if not all(largest) or not np.isfinite(largest).all():
        return 0.0
    a, b = a / largest[0], b / largest[1]  # Squares of huge or tiny numbers overflow or vanish.
    distance = a / np.linalg.norm(a) - b / np.linalg.norm(b)
    return 1 - float(distance @ distance) / 2
