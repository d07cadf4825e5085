"""Second-order collapse of mean pooling: how much two texts differ in what the mean does not keep.

S2 (arXiv 2604.27398). Each text's token embeddings are divided by ‖μ‖ (eq. 8). Then

    (5)     d_μ  = ‖μ_1 − μ_2‖²/4 = (1 − cos)/2                                      in [0, 1]
    (6)     d_Σ  = tr(Σ_1 + Σ_2 − 2(Σ_1^½ Σ_2 Σ_1^½)^½)/4                             ≥ 0
    (4)     SOCM = (1 − d_μ)·d_Σ          (30) SOCM_{α,β} = (1 − d_μ)^α · d_Σ^β        ≥ 0

With factors Σ_i = F_iᵀF_i the cross term is the nuclear norm ‖F_1F_2ᵀ‖_* of a small n_1×n_2 matrix; no d×d matrix is
ever formed. W₂² = 4(d_μ + d_Σ) is the squared Bures–Wasserstein distance of the two Gaussians. The papers assume
tr Σ ≤ 2, which real texts break, so SOCM may pass 1: it is never clipped above.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tempscale.moments import covariance_factor

_BATCH_ELEMENTS = 4_000_000
"""Float64 elements of cross-Gram blocks worked on at once: 32 MB, about what stays near the cores."""


class Socm(NamedTuple):
    """d_μ, d_Σ and SOCM: scalars for two texts, matrices for many."""

    d_mu: Tensor
    d_sigma: Tensor
    socm: Tensor


def socm(x1: Float[Tensor, "token1 dim"], x2: Float[Tensor, "token2 dim"], *, alpha: float = 1.0, beta: float = 1.0) -> Socm:
    """Second-order collapse of two texts (S2 eqs. 4–6, 30). Differentiable.

    Args:
        x1, x2: token embeddings (tokens, d) of the last layer, special tokens included, padding excluded.
        alpha, beta: exponents of eq. 30.

    Returns:
        Scalars d_mu in [0, 1], d_sigma ≥ 0, socm ≥ 0, in the precision given. Symmetric in its arguments; the same for
        any rotation and any positive scaling of either text.

    Raises:
        ValueError: shapes do not fit, a text without tokens, or a mean of zero.
    """
    if x1.shape[-1] != x2.shape[-1]:
        raise ValueError(f"token embeddings have {x1.shape[-1]} and {x2.shape[-1]} dimensions; both texts need the same")
    mean1, factor1 = covariance_factor(x1)
    mean2, factor2 = covariance_factor(x2)
    d_mu = ((mean1 - mean2).square().sum() / 4).clamp_max(1)
    cross = torch.linalg.matrix_norm(factor1 @ factor2.mT, ord="nuc")
    d_sigma = ((factor1.square().sum() + factor2.square().sum() - 2 * cross) / 4).clamp_min(0)
    return Socm(d_mu, d_sigma, socm_value(d_mu, d_sigma, alpha, beta))


def socm_value(d_mu: Tensor, d_sigma: Tensor, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    """SOCM_{α,β} = (1 − d_μ)^α · d_Σ^β, elementwise (S2 eqs. 4, 30); α = β = 1 is SOCM itself."""
    if alpha == 1.0 and beta == 1.0:
        return (1 - d_mu) * d_sigma
    return (1 - d_mu).clamp_min(0) ** alpha * d_sigma**beta


def pairwise_socm(
    texts: Sequence[Float[Tensor, "token dim"]], *, regularization: float = 0.0, alpha: float = 1.0, beta: float = 1.0
) -> Socm:
    """SOCM of every pair of texts (S2 eqs. 4–6, 30).

    Args:
        texts: token embeddings of each text, (tokens_i, d).
        regularization: 0 is exact. 1e-9 adds what the published code adds, see `cross_nuclear_norms`.
        alpha, beta: exponents of eq. 30.

    Returns:
        Three float64 matrices (texts, texts), symmetric, with a diagonal of 0.

    Raises:
        ValueError: as `socm`.
    """
    if not texts:
        empty = torch.zeros(0, 0, dtype=torch.float64)
        return Socm(empty, empty, empty)
    widths = {x.shape[-1] for x in texts}
    if len(widths) > 1:
        raise ValueError(
            f"token embeddings have {' and '.join(map(str, sorted(widths)))} dimensions; all texts need the same"
        )
    parts = [covariance_factor(x) for x in texts]
    # The published code's value depends on which text of a pair comes first, so paper mode keeps their order.
    order = list(range(len(parts)))
    if not regularization:
        order.sort(key=lambda i: parts[i][1].shape[0])
    means = torch.stack([parts[i][0] for i in order])
    factors = [parts[i][1] for i in order]
    # Rank-sorted chunks keep padding small. Only pairs i < j are computed, and mirrored; a text's distance to itself is 0.
    size, n = 32, len(order)
    d_mu = torch.zeros(n, n, dtype=torch.float64)
    d_sigma = torch.zeros(n, n, dtype=torch.float64)
    for start in range(0, n, size):
        rows = slice(start, min(start + size, n))
        blocks = [(slice(i, i + 1), slice(i + 1, rows.stop)) for i in range(start, rows.stop - 1)]
        blocks += [(rows, slice(j, j + size)) for j in range(rows.stop, n, size)]
        for a, b in blocks:
            tile = socm_tile(means[a], factors[a], means[b], factors[b], regularization=regularization)
            d_mu[a, b], d_sigma[a, b] = tile.d_mu.cpu(), tile.d_sigma.cpu()
    back = torch.argsort(torch.tensor(order))
    d_mu, d_sigma = ((upper + upper.mT)[back][:, back] for upper in (d_mu, d_sigma))
    return Socm(d_mu, d_sigma, socm_value(d_mu, d_sigma, alpha, beta))


def socm_tile(
    means1: Float[Tensor, "text1 dim"],
    factors1: Sequence[Float[Tensor, "rank1 dim"]],
    means2: Float[Tensor, "text2 dim"],
    factors2: Sequence[Float[Tensor, "rank2 dim"]],
    *,
    regularization: float = 0.0,
) -> Socm:
    """d_μ, d_Σ and SOCM of every text of one list with every text of another (S2 eqs. 4–6).

    Args:
        means1, means2: unit means.
        factors1, factors2: covariance factors as `covariance_factor` returns them; similar ranks inside a list cost less.
        regularization: see `cross_nuclear_norms`.

    Returns:
        Float64 matrices (texts1, texts2). d_Σ is clamped at 0, where rounding could take it below.
    """
    difference = means1.double().unsqueeze(1) - means2.double().unsqueeze(0)
    # Unit means in float32 are so to 1e-7: opposite ones could otherwise take d_μ above 1 and SOCM below 0.
    d_mu = (difference.square().sum(-1) / 4).clamp_max_(1)
    cross = cross_nuclear_norms(factors1, factors2, regularization=regularization)
    d_sigma = ((traces(factors1).unsqueeze(1) + traces(factors2).unsqueeze(0) - 2 * cross) / 4).clamp_min_(0)
    return Socm(d_mu, d_sigma, socm_value(d_mu, d_sigma))


def traces(factors: Sequence[Float[Tensor, "rank dim"]]) -> Float[Tensor, " text"]:
    """Tr Σ = ‖F‖_F² of each text, in float64."""
    return torch.stack([factor.double().square().sum() for factor in factors])


def cross_nuclear_norms(
    factors1: Sequence[Float[Tensor, "rank1 dim"]],
    factors2: Sequence[Float[Tensor, "rank2 dim"]],
    *,
    regularization: float = 0.0,
) -> Float[Tensor, "text1 text2"]:
    """‖F_1F_2ᵀ‖_* = tr (Σ_1^½ Σ_2 Σ_1^½)^½ of every pair of texts of two lists (the cross term of S2 eq. 6).

    One product in the factors' precision gives all cross blocks G; the singular values of each are the roots of the
    eigenvalues of its smaller Gram matrix, taken in float64 (in float32 the small ones would drown). Against float64
    throughout, d_Σ differs by less than 1e-6 on float32 factors of unit-mean texts.

    Args:
        factors1, factors2: covariance factors (rank_i, d).
        regularization: ε > 0 gives tr (S Σ_2 S + εI)^½ with S = (Σ_1 + εI)^½, as S2's published code does: the roots of
            the eigenvalues of F_2(Σ_1 + εI)F_2ᵀ plus ε, and (d − rank_2)·√ε. It lowers d_Σ by about (d − r)√ε/2 and
            depends a little on which text comes first.

    Returns:
        Float64 (texts1, texts2), ≥ 0.
    """
    dim = factors1[0].shape[1]
    norms = torch.empty(len(factors1), len(factors2), dtype=torch.float64, device=factors1[0].device)
    rank1, rank2 = max(f.shape[0] for f in factors1), max(f.shape[0] for f in factors2)
    if rank1 > rank2 and not regularization:
        return cross_nuclear_norms(factors2, factors1).mT
    padded2 = _padded(factors2, rank2)
    columns = max(1, _BATCH_ELEMENTS // (rank1 * rank2))
    for row, factor in enumerate(factors1):
        for start in range(0, len(factors2), columns):
            block = padded2[start : start + columns]
            gram = (factor @ block.reshape(-1, dim).mT).reshape(factor.shape[0], -1, rank2).permute(1, 0, 2).double()
            if regularization:
                second = block.double()
                squares = torch.linalg.eigvalsh(gram.mT @ gram + regularization * (second @ second.mT)).clamp_min_(0)
                total = (squares + regularization).sqrt_().sum(-1) + (dim - rank2) * regularization**0.5
            else:
                total = torch.linalg.eigvalsh(gram @ gram.mT).clamp_min_(0).sqrt_().sum(-1)
            norms[row, start : start + columns] = total
    return norms


def _padded(factors: Sequence[Tensor], rank: int) -> Tensor:
    """Factors stacked with rows of zeros below, which add only singular values of zero."""
    padded = factors[0].new_zeros(len(factors), rank, factors[0].shape[1])
    for row, factor in enumerate(factors):
        padded[row, : factor.shape[0]] = factor
    return padded
