"""Nuclear norms from matrix products alone, for a GPU: ‖G‖_* = tr(QᵀG) with Q the orthogonal polar factor of G.

Q is the limit of X ← (aI + bXXᵀ + c(XXᵀ)²)X. Each step uses the odd quintic that is closest to 1 on the interval that
contains the remaining singular values (Amsel, Persson, Musco & Gower 2025, "The Polar Express"; its limit is the classical
Newton–Schulz step). If p is the composition of the steps, the result is Σ σp(σ): it is too small by less than σ for each
singular value σ below the first interval. That interval cannot begin much lower than the rounding error, which the first
steps amplify as they amplify small singular values: 1e-5 in float32, 1e-10 in float64. The blocks are therefore multiplied
in float32 and iterated in float64, which GPUs such as A100 and H100 compute as fast as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

SMALLEST = {torch.float32: 1e-5, torch.float64: 1e-10}
"""The lower end of the first interval, relative to ‖G‖_F; smaller singular values are counted only in part."""
MARGIN = 1.01
"""Rounding may move a singular value above its interval, where a quintic falls quickly."""
BATCH_ELEMENTS = 1 << 26
"""Elements of the cross blocks computed at once: 512 MB of float64, plus three times as much for temporary results."""


class Stacked(NamedTuple):
    """Covariance factors in one tensor on a device, so that one copy pads many."""

    rows: Float[Tensor, "row dim"]
    """The rows of all factors, and a row of zeros."""
    starts: np.ndarray
    """The first row of each factor."""
    ranks: np.ndarray
    """The number of its rows."""

    @classmethod
    def of(cls, factors: Sequence[Float[Tensor, "rank dim"]]) -> Stacked:
        """Factors in one piece."""
        ranks = np.array([factor.shape[0] for factor in factors], np.int64)
        rows = torch.cat([*factors, factors[0].new_zeros(1, factors[0].shape[1])])
        return cls(rows, np.cumsum(ranks) - ranks, ranks)

    def part(self, which: slice | np.ndarray) -> Stacked:
        """Some of the texts."""
        return Stacked(self.rows, self.starts[which], self.ranks[which])

    def padded(self) -> Float[Tensor, "text rank dim"]:
        """All texts, filled up with zeros to the largest rank."""
        starts, ranks = torch.from_numpy(np.stack([self.starts, self.ranks])).to(self.rows.device)[:, :, None]
        inside = torch.arange(int(self.ranks.max(initial=0)), device=self.rows.device)
        return self.rows[torch.where(inside < ranks, starts + inside, len(self.rows) - 1)]


def polar_norms(factors1: Stacked, factors2: Stacked) -> Float[Tensor, "text1 text2"]:
    """‖F_1F_2ᵀ‖_* in float64 on the factors' device, from float32 products; `factors1` must be sorted by rank."""
    padded2 = factors2.padded()
    texts, rank2, dim = padded2.shape
    norms = torch.zeros(len(factors1.ranks), texts, dtype=torch.float64, device=padded2.device)
    if rank2 == 0:
        return norms
    start = 0
    while start < len(norms):
        stop = _chunk(factors1.ranks, start, rank2 * texts)
        padded1 = factors1.part(slice(start, stop)).padded()
        rank1 = padded1.shape[1]
        if rank1:
            product = padded1.reshape(-1, dim) @ padded2.reshape(-1, dim).mT
            blocks = product.reshape(stop - start, rank1, -1, rank2).transpose(1, 2).reshape(-1, rank1, rank2)
            norms[start:stop] = nuclear_norms(blocks.double()).reshape(stop - start, -1)
        start = stop
    return norms


def pair_norms(factors: Sequence[Float[Tensor, "rank dim"]], first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """‖F_iF_jᵀ‖_* (pairs,) in float64 of listed pairs, from float32 products; pairs of similar shape run together."""
    stacked = Stacked.of(factors)
    ranks = stacked.ranks
    taller = ranks[first] >= ranks[second]
    tall, narrow = np.where(taller, first, second), np.where(taller, second, first)
    order = np.lexsort((ranks[tall], ranks[narrow]))
    norms, start = np.zeros(len(first)), 0
    while start < len(order):
        # The narrow side is sorted, so the last pair of a chunk has its most rows.
        elements = np.maximum.accumulate(ranks[tall[order[start:]]]) * ranks[narrow[order[start:]]]
        fitting = elements * np.arange(1, len(elements) + 1) <= BATCH_ELEMENTS
        stop = start + max(1, int(np.argmin(fitting)) if not fitting.all() else len(fitting))
        pairs = order[start:stop]
        if ranks[narrow[pairs]].max():
            rows, columns = (stacked.part(side[pairs]).padded() for side in (narrow, tall))
            norms[pairs] = nuclear_norms((rows @ columns.mT).double()).cpu().numpy()
        start = stop
    return norms


def nuclear_norms(blocks: Float[Tensor, "pair row column"]) -> Float[Tensor, " pair"]:
    """Sum of the singular values of each matrix of a batch: ‖G‖_* = tr(QᵀG), Q the polar factor of G.

    Args:
        blocks: G, float32 or float64.

    Returns:
        ≥ 0, in the batch's precision; a singular value below `SMALLEST` of ‖G‖_F is counted only in part.
    """
    if blocks.shape[1] > blocks.shape[2]:
        blocks = blocks.mT
    blocks = blocks.contiguous()
    scale = torch.linalg.matrix_norm(blocks, keepdim=True)
    x = blocks / torch.where(scale > 0, scale, 1.0)
    for a, b, c in quintics(SMALLEST[blocks.dtype]):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x * blocks).sum((1, 2)).clamp_min_(0)


@lru_cache(maxsize=4)
def quintics(smallest: float) -> tuple[tuple[float, float, float], ...]:
    """(a, b, c) of the steps x ← ax + bx³ + cx⁵ that take every singular value in [smallest, 1] to 1."""
    steps, low, high = [], smallest, 1.0
    while True:
        (a, b, c), error = closest_to_one(low, high * MARGIN)
        steps.append((a, b, c))
        low, high = 1 - error, 1 + error
        if error < 0.02:  # From here the classical quintic converges cubically despite rounding.
            return (*steps, *[(15 / 8, -10 / 8, 3 / 8)] * 3)


def closest_to_one(low: float, high: float) -> tuple[tuple[float, float, float], float]:
    """The odd quintic with the smallest maximum distance from 1 on [low, high], and that distance (Remez's exchange)."""
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


def _chunk(ranks: np.ndarray, start: int, columns: int) -> int:
    """The end of the chunk of texts, at least one, whose padded blocks fit in a batch."""
    stop = start + 1
    while stop < len(ranks) and (stop + 1 - start) * ranks[stop] * columns <= BATCH_ELEMENTS:
        stop += 1
    return stop
