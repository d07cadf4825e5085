"""Second-order collapse of mean pooling: the difference of two texts that their means do not show.

S2 (arXiv 2604.27398). The token embeddings of each text are divided by ‖μ‖ (eq. 8). Then

    (5)     d_μ  = ‖μ_1 − μ_2‖²/4 = (1 − cos)/2                                      in [0, 1]
    (6)     d_Σ  = tr(Σ_1 + Σ_2 − 2(Σ_1^½ Σ_2 Σ_1^½)^½)/4                             ≥ 0
    (4)     SOCM = (1 − d_μ)·d_Σ          (30) SOCM_{α,β} = (1 − d_μ)^α · d_Σ^β        ≥ 0

With factors Σ_i = F_iᵀF_i the cross term is the nuclear norm ‖F_1F_2ᵀ‖_* of a small n_1×n_2 matrix, so no d×d matrix is ever
computed. W₂² = 4(d_μ + d_Σ) is the squared Bures–Wasserstein distance of the two Gaussians. The papers assume tr Σ ≤ 2. Many
real texts exceed this, so SOCM can be above 1; it is never clipped there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tempscale.second_order.moments import covariance_factor
from tempscale.second_order.nuclear import all_nuclear_norms, cross_nuclear_norms, paired_nuclear_norms

__all__ = [
    "Socm", "cross_nuclear_norms", "socm", "socm_pairs", "socm_square", "socm_tile", "socm_value", "traces",
]  # fmt: skip


class Socm(NamedTuple):
    """d_μ, d_Σ and SOCM: scalars for two texts, matrices for many."""

    d_mu: Tensor
    """d_μ = ‖μ_1 − μ_2‖²/4 in [0, 1] (S2 eq. 5)."""
    d_sigma: Tensor
    """d_Σ ≥ 0 (S2 eq. 6)."""
    socm: Tensor
    """(1 − d_μ)^α · d_Σ^β ≥ 0 (S2 eqs. 4, 30); never clipped above."""


def socm(x1: Float[Tensor, "token1 dim"], x2: Float[Tensor, "token2 dim"], *, alpha: float = 1.0, beta: float = 1.0) -> Socm:
    """Second-order collapse of two texts, from their token embeddings. Differentiable; `tempscale.socm` takes texts too.

        d_μ = ‖μ_1 − μ_2‖²/4,   d_Σ = (tr Σ_1 + tr Σ_2 − 2‖F_1F_2ᵀ‖_*)/4      S2 eqs. 5, 6
        SOCM_{α,β} = (1 − d_μ)^α · d_Σ^β                                      S2 eqs. 4, 30

    with ‖μ‖ = 1 (eq. 8) and Σ = FᵀF. Singular values are computed by torch, in the precision of the input.

    Args:
        x1, x2: token embeddings (tokens, d) of the last layer, special tokens included, padding excluded.
        alpha, beta: exponents of eq. 30; 1 and 1 give SOCM itself.

    Returns:
        Scalars d_mu in [0, 1], d_sigma ≥ 0, socm ≥ 0, in the precision of the input. Symmetric in the two texts; unchanged
        by any rotation of both texts and any positive scaling of either one.

    Raises:
        ValueError: the dimensions differ, a text has no tokens, or a mean is zero up to rounding or not finite (see
            `covariance_factor`).
    """
    mean1, factor1 = covariance_factor(x1)
    mean2, factor2 = covariance_factor(x2)
    if len(mean1) != len(mean2):
        raise ValueError(f"token embeddings have {len(mean1)} and {len(mean2)} dimensions; both texts need the same")
    d_mu = ((mean1 - mean2).square().sum() / 4).clamp_max(1)
    cross = torch.linalg.matrix_norm(factor1 @ factor2.mT, ord="nuc")
    d_sigma = ((factor1.square().sum() + factor2.square().sum() - 2 * cross) / 4).clamp_min(0)
    return Socm(d_mu, d_sigma, socm_value(d_mu, d_sigma, alpha, beta))


def socm_value(d_mu: Tensor, d_sigma: Tensor, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """SOCM_{α,β} = (1 − d_μ)^α · d_Σ^β, elementwise (S2 eqs. 4, 30).

    Args:
        d_mu: d_μ in [0, 1], (…).
        d_sigma: d_Σ ≥ 0, (…).
        alpha, beta: exponents ≥ 0; 1 and 1 give SOCM itself.

    Returns:
        SOCM_{α,β} ≥ 0, (…).
    """
    if alpha == 1.0 and beta == 1.0:
        return (1 - d_mu) * d_sigma
    return (1 - d_mu).clamp_min(0) ** alpha * d_sigma**beta


def socm_square(
    means: Float[Tensor, "text dim"],
    factors: Sequence[Float[Tensor, "rank dim"]],
    *,
    regularization: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Socm:
    """SOCM of every pair of texts whose unit means and covariance factors are known (S2 eqs. 4–6, 30).

    Args:
        means: unit means, at least one.
        factors: covariance factors from `covariance_factor`.
        regularization: 0 is exact. 1e-9 adds the regularization of the published code, see `cross_nuclear_norms`.
        alpha, beta: exponents of eq. 30.

    Returns:
        Three float64 matrices (texts, texts), symmetric, with a diagonal of 0.
    """
    trace, cross = traces(factors), all_nuclear_norms(factors, regularization=regularization)
    d_mu = _squared_distances(means, means).fill_diagonal_(0)
    # Summed in one order for (i, j) and (j, i), so that the matrix is symmetric to the bit.
    d_mu = d_mu.triu() + d_mu.triu(1).mT
    d_sigma = ((trace.unsqueeze(1) + trace.unsqueeze(0) - 2 * cross) / 4).clamp_min_(0).fill_diagonal_(0)
    return Socm(d_mu, d_sigma, socm_value(d_mu, d_sigma, alpha, beta))


def socm_tile(
    means1: Float[Tensor, "text1 dim"],
    factors1: Sequence[Float[Tensor, "rank1 dim"]],
    means2: Float[Tensor, "text2 dim"],
    factors2: Sequence[Float[Tensor, "rank2 dim"]],
    *,
    regularization: float = 0.0,
) -> Socm:
    """d_μ, d_Σ and SOCM of every text of one list with every text of another (S2 eqs. 4–6, 30).

    Args:
        means1, means2: unit means.
        factors1, factors2: covariance factors from `covariance_factor`.
        regularization: see `socm_square`.

    Returns:
        Float64 matrices (texts1, texts2). Where rounding gives a negative d_Σ, it is set to 0.
    """
    d_mu = _squared_distances(means1, means2)
    cross = cross_nuclear_norms(factors1, factors2, regularization=regularization)
    d_sigma = ((traces(factors1).unsqueeze(1) + traces(factors2).unsqueeze(0) - 2 * cross) / 4).clamp_min_(0)
    return Socm(d_mu, d_sigma, socm_value(d_mu, d_sigma))


def socm_pairs(
    means: Float[Tensor, "text dim"],
    factors: Sequence[Float[Tensor, "rank dim"]],
    first: Sequence[int],
    second: Sequence[int],
    *,
    regularization: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Socm:
    """d_μ, d_Σ and SOCM of the listed pairs of some texts (S2 eqs. 4–6, 30).

    Args:
        means: unit means.
        factors: covariance factors from `covariance_factor`, at least one.
        first, second: indices of the texts of each pair. A text paired with itself has a d_Σ of exactly 0.
        regularization: see `cross_nuclear_norms`; the value of the published code depends a little on which text is first.
        alpha, beta: exponents of eq. 30.

    Returns:
        Float64 vectors (pairs,). Where rounding gives a negative d_Σ, it is set to 0.
    """
    left, right = (torch.tensor(list(places), dtype=torch.long) for places in (first, second))
    unit, trace = means.double().cpu(), traces(factors)
    # Float32 means have unit norm only to 1e-7, so for opposite means d_μ could be above 1.
    d_mu = ((unit[left] - unit[right]).square_().sum(1) / 4).clamp_max_(1)
    cross = paired_nuclear_norms(factors, first, second, regularization=regularization)
    d_sigma = ((trace[left] + trace[right] - 2 * cross) / 4).clamp_min_(0)
    d_sigma[left == right] = 0.0
    return Socm(d_mu, d_sigma, socm_value(d_mu, d_sigma, alpha, beta))


def _squared_distances(means1: Tensor, means2: Tensor) -> Tensor:
    """d_μ = ‖μ_1 − μ_2‖²/4 = (1 − cos)/2 of unit means; from differences, since a product loses digits of close means."""
    first, second = means1.double().cpu(), means2.double().cpu()
    distances = torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist").square_().div_(4)
    # Float32 means have unit norm only to 1e-7, so for opposite means d_μ could be above 1 and SOCM below 0.
    return distances.clamp_max_(1)


def traces(factors: Sequence[Float[Tensor, "rank dim"]]) -> Float[Tensor, " text"]:
    """Tr Σ = ‖F‖_F² of each text (S2 eq. 3 after eq. 8).

    Args:
        factors: covariance factors (rank_i, d), at least one.

    Returns:
        Float64 (texts,), ≥ 0, on the CPU; the papers assume at most 2.
    """
    return torch.stack([factor.double().square().sum() for factor in factors]).cpu()
