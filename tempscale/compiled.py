"""Loops compiled by numba and cached on disk; if no folder can be written, each process compiles them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., Any])
_REORDERED = {"reassoc", "contract", "nsz"}


def compiled(loop: Loop, **options: Any) -> Loop:
    """The loop, compiled at its first call with each type of arguments."""
    options = {"error_model": "numpy", "boundscheck": False, "nogil": True} | options
    try:
        result: Loop = njit(cache=True, **options)(loop)
    except RuntimeError:  # numba can write neither to this folder nor to the user's cache, as in some containers.
        result = njit(**options)(loop)
    return result


def summing(loop: Loop) -> Loop:
    """A compiled sum whose terms may be added in another order, that of the processor's lanes."""
    return compiled(loop, fastmath=_REORDERED)
