"""Loops compiled by numba, and kept on disk: where that cannot be, each process compiles them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., Any])
_REORDERED = {"reassoc", "contract", "nsz"}


def compiled(loop: Loop) -> Loop:
    """The loop, compiled at its first call for each type of its arguments."""
    return _kept(loop)


def summing(loop: Loop) -> Loop:
    """The same for sums, whose terms may be added in another order, that of the processor's lanes."""
    return _kept(loop, fastmath=_REORDERED)


def _kept(loop: Loop, **options: Any) -> Loop:
    how = {"error_model": "numpy", "boundscheck": False, "nogil": True} | options
    try:
        found: Loop = njit(cache=True, **how)(loop)
    except RuntimeError:  # numba's, where neither this folder nor the user's cache can be written, as in some containers.
        found = njit(**how)(loop)
    return found
