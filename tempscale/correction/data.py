"""The numbers of a fitted correction as plain data for JSON, to the bit; a ValueError for data that are none."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from tempscale.correction.curve import Curve


def packed(values: np.ndarray) -> str:
    """Numbers as base64 of little-endian float64, which JSON keeps to the bit."""
    return base64.b64encode(np.ascontiguousarray(values, "<f8").tobytes()).decode()


def unpacked(text: str, *shape: int) -> np.ndarray:
    """Numbers of this shape that `packed` wrote."""
    values = np.frombuffer(base64.b64decode(text, validate=True), "<f8").reshape(shape).astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("numbers that are not finite")
    return values


def curve_data(curve: Curve) -> dict[str, Any]:
    """A curve as data."""
    values = curve.values.tolist() if curve.values.ndim == 1 else packed(curve.values)
    return {"tokens": list(curve.tokens), "values": values}


def curve_of(data: Mapping[str, Any], *shape: int) -> Curve:
    """The curve of such data, whose values have this shape."""
    tokens = tuple(map(float, data["tokens"]))
    values = unpacked(data["values"], len(tokens), *shape) if shape else np.array(data["values"], np.float64)
    if not tokens or len(values) != len(tokens) or not np.isfinite(values).all() or list(tokens) != sorted(set(tokens)):
        raise ValueError("a curve needs ascending lengths and a finite value for each")
    if tokens[0] < 1 - 1e-9:
        raise ValueError("lengths below 1 token")
    return Curve(tokens, values)
