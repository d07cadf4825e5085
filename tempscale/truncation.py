"""Covariance factors with fewer rows, and a proof of what that costs.

F = UsVᵀ is cut to its k largest singular values. Against any other factor G, by Horn's inequality for the singular
values of a product,

    0 ≤ ‖FGᵀ‖_* − ‖F_kGᵀ‖_* ≤ ‖(F − F_k)Gᵀ‖_* ≤ Σ_j s_{k+j}(F)·s_j(G),

so with S_j the largest s_j of all texts, b_i = Σ_j s_{k_i+j}(F_i)·S_j bounds what text i loses against any of them, and a
pair computed from two cut factors (its traces left whole) has d_Σ too large by at most (b_1 + b_2)/2. Tighter than
√ε·√tr/2 with ε the dropped trace, which follows from it by Cauchy and Schwarz.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Truncated(NamedTuple):
    """Cut factors and what each may cost."""

    factors: list[Float[Tensor, "rank dim"]]
    """sVᵀ of the singular values kept; the factor itself where nothing could be left out."""
    loss: Float[Tensor, " text"]
    """b_i/2 of each text, float64: d_Σ of a pair is at most the sum of both texts' losses too large."""


def truncate(factors: Sequence[Float[Tensor, "rank dim"]], tolerance: float) -> Truncated:
    """Cut each factor as far as d_Σ of every pair of these texts stays within `tolerance`.

        0 ≤ ‖FGᵀ‖_* − ‖F_kGᵀ‖_* ≤ Σ_j s_{k+j}(F)·s_j(G)

    Args:
        factors: covariance factors (rank_i, d).
        tolerance: largest error of d_Σ allowed, split evenly between the two texts; 0 keeps everything.

    Returns:
        The factors with fewer rows, in their own precision, and what each may cost, ≤ tolerance/2. Singular values are
        taken from Gram matrices in float64.

    Raises:
        ValueError: a tolerance below 0.
    """
    if not tolerance >= 0:
        raise ValueError(f"tolerance {tolerance} must be 0 (exact) or above")
    loss = torch.zeros(len(factors), dtype=torch.float64)
    if not tolerance or not factors:
        return Truncated(list(factors), loss)
    spectra = [_spectrum(factor) for factor in factors]
    longest = max(len(s) for s, _ in spectra)
    envelope = torch.zeros(longest, dtype=torch.float64)
    for s, _ in spectra:
        envelope[: len(s)] = torch.maximum(envelope[: len(s)], s)
    cut = []
    for i, (s, basis) in enumerate(spectra):
        # bounds[k] is b_i with k kept: the dropped values, from the largest, against the largest of any text.
        bounds = torch.stack([(s[k:] * envelope[: len(s) - k]).sum() for k in range(len(s) + 1)])
        kept = int((bounds > tolerance).sum())  # b_i/2 within half the tolerance.
        if kept == len(s):
            cut.append(factors[i])
            continue
        loss[i] = bounds[kept] / 2
        cut.append((basis[:, :kept].mT @ factors[i].double()).to(factors[i].dtype))
    return Truncated(cut, loss)


def _spectrum(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, descending, and left singular vectors, from the Gram matrix in float64."""
    gram = factor.double() @ factor.double().mT
    values, vectors = torch.linalg.eigh(gram)
    return values.flip(0).clamp_min(0).sqrt().cpu(), vectors.flip(1)
