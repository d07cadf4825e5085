"""Nuclear norms by matrix products alone, for a GPU: ‖G‖_* = tr(QᵀG) with Q the orthogonal polar factor of G.

Q comes from X ← (aI + bXXᵀ + c(XXᵀ)²)X, each step the odd quintic that lies closest to 1 on the interval that still
holds the singular values (Amsel, Persson, Musco & Gower 2025, "The Polar Express"; the classical Newton–Schulz step is
its limit). With p the composition of the steps the result is Σ σp(σ): too small by less than σ where σ lies below the
first interval. The interval cannot begin much lower than rounding, which the first steps lift as they lift small singular
values: 1e-5 in float32, 1e-10 in float64. So the blocks are multiplied in float32 and iterated in float64, which the
processors that such jobs run on do at the rate of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

_SMALLEST = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Where the first interval begins, relative to ‖G‖_F: smaller singular values count in part."""
_MARGIN = 1.01
"""Rounding may lift a singular value above its interval, where a quintic falls off."""
_BATCH_ELEMENTS = 1 << 26
"""Elements of the cross blocks worked on at once: 512 MB of float64, and three times as much beside them."""


def polar_norms(
    factors1: Sequence[Float[Tensor, "rank1 dim"]], factors2: Sequence[Float[Tensor, "rank2 dim"]]
) -> Float[Tensor, "text1 text2"]:
    """‖F_1F_2ᵀ‖_* of every text of one list with every text of another: products in float32, the rest in float64.

    Args:
        factors1: covariance factors (rank_i, d), of ascending rank.
        factors2: the same; all are padded to the largest rank.

    Returns:
        Float64, ≥ 0, on the factors' device.
    """
    padded2 = torch.nn.utils.rnn.pad_sequence(list(factors2), batch_first=True)
    rank2, dim = padded2.shape[1], padded2.shape[2]
    norms = torch.zeros(len(factors1), len(factors2), dtype=torch.float64, device=padded2.device)
    if rank2 == 0:
        return norms
    start = 0
    while start < len(factors1):
        stop = _chunk(factors1, start, rank2 * len(factors2))
        padded1 = torch.nn.utils.rnn.pad_sequence(list(factors1[start:stop]), batch_first=True)
        rank1 = padded1.shape[1]
        if rank1:
            product = padded1.reshape(-1, dim) @ padded2.reshape(-1, dim).mT
            blocks = product.reshape(stop - start, rank1, -1, rank2).transpose(1, 2).reshape(-1, rank1, rank2)
            norms[start:stop] = nuclear_norms(blocks.double()).reshape(stop - start, -1)
        start = stop
    return norms


def nuclear_norms(blocks: Float[Tensor, "pair row column"]) -> Float[Tensor, " pair"]:
    """Σ of the singular values of each matrix of a batch: ‖G‖_* = tr(QᵀG), Q the polar factor of G.

    Args:
        blocks: G, float32 or float64.

    Returns:
        ≥ 0, in the batch's precision; a singular value below `_SMALLEST` of ‖G‖_F counts in part.
    """
    if blocks.shape[1] > blocks.shape[2]:
        blocks = blocks.mT
    blocks = blocks.contiguous()
    scale = torch.linalg.matrix_norm(blocks, keepdim=True)
    x = blocks / torch.where(scale > 0, scale, 1.0)
    for a, b, c in quintics(_SMALLEST[blocks.dtype]):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x * blocks).sum((1, 2)).clamp_min_(0)


@lru_cache(maxsize=4)
def quintics(smallest: float) -> tuple[tuple[float, float, float], ...]:
    """The steps x ← ax + bx³ + cx⁵ that take every singular value of an interval to 1.

    Args:
        smallest: where the interval begins, in (0, 1); it ends at 1.

    Returns:
        (a, b, c) of each step.
    """
    steps, low, high = [], smallest, 1.0
    while True:
        (a, b, c), error = _closest_to_one(low, high * _MARGIN)
        steps.append((a, b, c))
        low, high = 1 - error, 1 + error
        if error < 0.02:  # From here the classical quintic converges cubically, whatever rounding does.
            return (*steps, *[(15 / 8, -10 / 8, 3 / 8)] * 3)


def _closest_to_one(low: float, high: float) -> tuple[tuple[float, float, float], float]:
    """The odd quintic with the least largest distance from 1 on [low, high], and that distance (Remez's exchange)."""
    points = np.array([low, low + (high - low) / 3, low + 2 * (high - low) / 3, high])
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    for _ in range(200):
        a, b, c, error = np.linalg.solve(np.stack([points, points**3, points**5, signs], axis=1), np.ones(4))
        inner = np.sort(np.sqrt(np.roots([5 * c, 3 * b, a]).astype(complex)).real)
        moved = np.array([low, *np.clip(inner, low, high), high])
        if np.abs(moved - points).max() < 1e-15:
            break
        points = moved
    return (float(a), float(b), float(c)), float(abs(error))


def _chunk(factors: Sequence[Tensor], start: int, columns: int) -> int:
    """Where a chunk of texts ends whose padded blocks fit; at least one text."""
    stop = start + 1
    while stop < len(factors) and (stop + 1 - start) * factors[stop].shape[0] * columns <= _BATCH_ELEMENTS:
        stop += 1
    return stop
