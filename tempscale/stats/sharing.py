"""The error of a mean over values that share things: queries that share a relevant document, windows that share a text.

As for pairs that share texts (`stats.dyads`). For n values with residuals e_i = v_i − mean, where a_ij = 1 if i and j share
at least one thing (every value shares with itself) and 0 otherwise,

    V = (1/n²) Σ_ij a_ij e_i e_j .
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped
from scipy import sparse

from tempscale.stats.paired import Error


class Sharing(NamedTuple):
    """What each value has: value number `value[k]` has `thing[k]`."""

    value: Shaped[np.ndarray, " entry"]
    thing: Shaped[np.ndarray, " entry"]
    """Numbers or names."""


def mean(values: Float[np.ndarray, " value"], sharing: Sharing) -> Error:
    """The mean, with the standard error √(c·V) for things drawn like these.

    Residuals are taken about the mean of these values, so V is too small. The factor c corrects its expectation where values
    that share are equally correlated: with M = I − 11ᵀ/n,

        c = 1ᵀA1 / tr(A·M·A·M) .

    For G clusters of equal size c = G/(G−1), and without anything shared n/(n−1), which gives sd/√n. V is not a sum of
    squares where things overlap, so it can be 0 or negative; then the error of independent values is used.

    Args:
        values: finite.
        sharing: has at least one entry for each value.

    Returns:
        No error where nothing determines it: fewer than two values, or all share with all.
    """
    n = len(values)
    if n < 2:
        return Error(float(values.mean()) if n else None, None)
    _, thing = np.unique(sharing.thing, return_inverse=True)
    entries = np.ones(len(thing))
    has = sparse.csr_array((entries, (sharing.value, thing)), shape=(n, int(thing.max()) + 1))
    shares = (has @ has.T).astype(bool).astype(np.float64)
    degree = shares @ np.ones(n)
    # A is symmetric of zeros and ones: tr(AA) = 1ᵀA1.
    total = float(degree.sum())
    expected = total - 2 * float(degree @ degree) / n + total**2 / n**2
    value = float(values.mean())
    if expected <= 1e-9 * total:
        return Error(value, None)
    residual = values.astype(np.float64) - value
    variance = float(residual @ (shares @ residual)) / n**2 * total / expected
    independent = float(residual @ residual) / (n * (n - 1))
    return Error(value, math.sqrt(variance if variance > 0 else independent))
