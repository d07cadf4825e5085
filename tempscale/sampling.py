"""What a mean over listed pairs is worth when pairs share texts: the dyadic-robust standard error.

Aronow, Samii & Assenova, «Cluster-robust variance estimation for dyadic data» (2015). For N pairs with residuals
e_p = v_p − mean, where p ~ q says that two pairs share at least one text (every pair shares with itself),

    V = (1/N²) Σ_{p ~ q} e_p e_q .

With S_t = Σ_{p ∋ t} e_p and T_u the sum of e over all pairs of the same two texts u = {i, j}, i ≠ j, which Σ_t S_t² counts
twice, N²V = Σ_t S_t² − Σ_u T_u²: two pairs are never compared.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Shaped


def dyadic_error(
    values: Float[np.ndarray, " pair"], first: Shaped[np.ndarray, " pair"], second: Shaped[np.ndarray, " pair"]
) -> float:
    """Standard error of the mean over pairs that share texts: √(c·V), for pairs of texts drawn like these.

    Residuals are taken about their own mean, so V comes out too small where few texts carry many pairs. c makes its
    expectation right under v_{ij} = a_i + a_j with independent a (a bias-reduced linearisation, Bell & McCaffrey 2002):
    with B the pairs × texts incidence, A_pq = 1 where p ~ q, and M = I − 11ᵀ/N,

        c = 1ᵀBBᵀ1 / tr(A·M·BBᵀ·M) .

    Without shared texts c = N/(N−1), which gives the ordinary standard error sd/√N; for G clusters of equal size that
    share no text, such as queries with negatives of their own, c = G/(G−1).

    V is no square and may come out at or below 0, which no variance is. Then the error of independent pairs stands in
    for it, which is 0 for equal values only.

    Args:
        values: one finite number a pair.
        first, second: the pair's texts, as numbers or names. Their order does not matter, a pair may come more than
            once, and a text may stand beside itself.

    Returns:
        ≥ 0; NaN where the pairs cannot tell: fewer than two, or all about one text.

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
    one, other = np.minimum(place[:pairs], place[pairs:]), np.maximum(place[:pairs], place[pairs:])
    two = one != other

    def by_text(weights: np.ndarray) -> np.ndarray:
        """Sum over each text's pairs."""
        sums = np.bincount(one, weights, len(texts))
        return np.asarray(sums + np.bincount(other[two], weights[two], len(texts)))

    _, same = np.unique(one * len(texts) + other, return_inverse=True)
    degree, times = by_text(np.ones(pairs)), np.bincount(same)
    # Pairs that share a text with each pair: 1ᵀA.
    sharing = degree[one] + np.where(two, degree[other] - times[same], 0.0)
    model = float(degree @ degree)
    expected = model - 2 * float(degree @ by_text(sharing)) / pairs + model * float(sharing.sum()) / pairs**2
    if expected <= 1e-9 * model:
        return float("nan")
    residual = values - values.mean()
    sums, repeated = by_text(residual), np.bincount(same[two], residual[two])
    variance = (float(sums @ sums) - float(repeated @ repeated)) / pairs**2 * model / expected
    independent = float(residual @ residual) / (pairs * (pairs - 1))
    return float(np.sqrt(variance if variance > 0 else independent))
