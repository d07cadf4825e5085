"""The error of a mean over listed pairs that share texts: the dyadic-robust standard error.

Aronow, Samii & Assenova, «Cluster-robust variance estimation for dyadic data» (2015). For N pairs with residuals e_p = v_p −
mean, where p ~ q means that the two pairs share at least one text (every pair shares with itself),

    V = (1/N²) Σ_{p ~ q} e_p e_q .

Let S_t = Σ_{p ∋ t} e_p, and let T_u be the sum of e over all pairs of the same two texts u = {i, j}, i ≠ j, which Σ_t S_t²
counts twice. Then N²V = Σ_t S_t² − Σ_u T_u², so no two pairs have to be compared.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Shaped


def dyadic_error(
    values: Float[np.ndarray, " pair"], first: Shaped[np.ndarray, " pair"], second: Shaped[np.ndarray, " pair"]
) -> float:
    """Standard error of the mean over pairs that share texts: √(c·V), for pairs of texts drawn like these.

    Residuals are taken about the mean of these values, so V is too small if a few texts are in many of the pairs. The factor
    c corrects its expectation under v_{ij} = a_i + a_j with independent a (a bias-reduced linearisation, Bell & McCaffrey
    2002). With B the pairs × texts incidence, A_pq = 1 if p ~ q, and M = I − 11ᵀ/N,

        c = 1ᵀBBᵀ1 / tr(A·M·BBᵀ·M) .

    Without shared texts c = N/(N−1), which gives the ordinary standard error sd/√N. For G clusters of equal size that share
    no text, such as queries with separate negatives, c = G/(G−1).

    V is not a sum of squares, so it can be 0 or negative, unlike a variance. Then the error of independent pairs is used,
    which is 0 only for equal values.

    Args:
        values: one finite number a pair.
        first, second: the texts of each pair, as numbers or names. Their order does not matter, a pair may be listed more
            than once, and a text may be paired with itself.

    Returns:
        ≥ 0; NaN if the pairs do not determine an error: fewer than two pairs, or all pairs about one text.

    Raises:
        ValueError: lengths differ, or a value is not finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if not len(values) == len(first) == len(second):
        raise ValueError(f"{len(values)} values, {len(first)} and {len(second)} texts; each pair needs one of each")
    if not np.isfinite(values).all():
        raise ValueError("a value is not finite; leave its pair out")
    pairs = len(values)
    if pairs < 2:
        return float("nan")
    texts, place = np.unique(np.concatenate([first, second]), return_inverse=True)
    low, high = np.minimum(place[:pairs], place[pairs:]), np.maximum(place[:pairs], place[pairs:])
    distinct = low != high

    def by_text(weights: np.ndarray) -> np.ndarray:
        """The sum over the pairs of each text."""
        sums = np.bincount(low, weights, len(texts))
        return np.asarray(sums + np.bincount(high[distinct], weights[distinct], len(texts)))

    _, same = np.unique(low * len(texts) + high, return_inverse=True)
    degree, times = by_text(np.ones(pairs)), np.bincount(same)
    # For each pair the number of pairs that share a text with it: 1ᵀA.
    sharing = degree[low] + np.where(distinct, degree[high] - times[same], 0.0)
    model = float(degree @ degree)
    expected = model - 2 * float(degree @ by_text(sharing)) / pairs + model * float(sharing.sum()) / pairs**2
    if expected <= 1e-9 * model:
        return float("nan")
    residual = values - values.mean()
    sums, repeated = by_text(residual), np.bincount(same[distinct], residual[distinct])
    variance = (float(sums @ sums) - float(repeated @ repeated)) / pairs**2 * model / expected
    independent = float(residual @ residual) / (pairs * (pairs - 1))
    return float(np.sqrt(variance if variance > 0 else independent))
