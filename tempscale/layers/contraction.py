"""Why the token embeddings of one text become more similar from layer to layer: λ, ρ, r, C and the bound that they give.

S2 (arXiv 2604.27398) §6. With S(M) = (1/n)Σ‖m_j − μ(M)‖² (12), the spread after the first residual sum is at most
(1+√ρ)²·S(H). The spread of a layer's output, relative to its mean, is therefore at most C·(1+√ρ)²·r (47).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tempscale.layers.observe import Layer, few_rows


class Contraction(NamedTuple):
    """One layer of one text; float64 scalars."""

    rho: Tensor
    """ρ = S(Z)/S(H): the spread after attention relative to the spread of the layer's input. ≥ 0."""
    r: Tensor
    """r = S(H)/‖μ(Y)‖² (14): the input's spread relative to the mean after the residual sum. ≥ 0."""
    c: Tensor
    """C = [S(X)/‖μ(X)‖²] / [S(Y)/‖μ(Y)‖²] (Definition 3): the effect of the rest of the layer on the spread. ≥ 0."""
    spread: Tensor
    """S(X)/‖μ(X)‖² of the layer's output."""
    bound: Tensor
    """C(1+√ρ)²r, never below `spread` (47)."""
    within_cosine: Tensor
    """Mean cosine over all pairs of tokens in the output, j = k included: ‖mean of unit tokens‖² (H.2). In [0, 1]."""


class Concentration(NamedTuple):
    """The similarity of one text's tokens after any layer; float64 scalars."""

    spread: Tensor
    """S(X)/‖μ(X)‖² (S2 12). ≥ 0."""
    within_cosine: Tensor
    """Mean cosine over all pairs of tokens, j = k included: ‖mean of unit tokens‖² (S2 H.2). In [0, 1]."""
    norm_variation: Tensor
    """Standard deviation of the tokens' norms over their mean. ≥ 0; 0 where S2's Appendix J holds, see `concentration`."""


def concentration(tokens: Float[Tensor, "token dim"]) -> Concentration:
    """The spread of a text's tokens over the square of their mean, their mean cosine, and the variation of their norms.

        S(X)/‖μ(X)‖²   S2 eq. 12          w = (1/n²)Σ_{j,k}cos(x_j, x_k) = ‖mean of unit tokens‖²   S2 H.2

    S2's Appendix J takes γ and β of the last norm as equal in all dimensions, so that all tokens have one norm. Then
    S(X)/‖μ(X)‖² = 1/w − 1, and a mean cosine w ≥ 1/3 gives tr Σ ≤ 2. `norm_variation` measures the violation of this.

    Args:
        tokens: X, the output of a layer or of the embedding layer; at least one row.

    Returns:
        Float64 scalars; NaN or infinite if a token or the mean is zero.
    """
    x = tokens.double()
    norms = x.norm(dim=-1, keepdim=True)
    return Concentration(
        scatter(x) / _square(x.mean(0)), _square((x / norms).mean(0)), norms.std(correction=0) / norms.mean()
    )


def contraction(layer: Layer) -> Contraction:
    """ρ, r, C, S(X)/‖μ(X)‖², its bound and the within-text cosine of one layer's pass.

        ρ = S(Z)/S(H),   r = S(H)/‖μ(Y)‖²                                    S2 eq. 14
        C = [S(X)/‖μ(X)‖²] / [S(Y)/‖μ(Y)‖²]                                  S2 Definition 3
        S(X)/‖μ(X)‖² ≤ C·(1 + √ρ)²·r                                         S2 eq. 47

    Args:
        layer: one layer's pass over one text, from `layers.observe.observe`.

    Returns:
        Float64 scalars; NaN or infinite if the tokens do not differ (such as one token) or a mean is zero.
    """
    h, z, y, x = (tokens.double() for tokens in (layer.h, layer.z, layer.y, layer.x))
    rho, r = scatter(z) / scatter(h), scatter(h) / _square(y.mean(0))
    spread, within_cosine, _ = concentration(x)
    c = spread / (scatter(y) / _square(y.mean(0)))
    return Contraction(rho, r, c, spread, c * (1 + rho.sqrt()).square() * r, within_cosine)


def head_contraction(layer: Layer, gains: Float[Tensor, " head"]) -> Float[Tensor, " head"]:
    """λ_h = ‖W^o_hW^v_h‖²_op·‖PA_h‖²_F/(n−1), P = I − (1/n)11ᵀ (S2 13), of each head; float64, NaN for one token.

    The layer's λ is the mean over heads, as published. λ bounds the spread after one head relative to the spread before it,
    on average over directions. It is not a contraction factor of the whole layer, which adds its heads.

    Args:
        layer: one layer's pass.
        gains: the result of `gain` for this layer.

    Returns:
        λ_h ≥ 0, (head,).
    """
    n = layer.attention.shape[-1]
    squares = torch.stack([_differences(attention) for attention in layer.attention])
    result: Tensor = gains.double().square() * squares / (n - 1 if n > 1 else torch.nan)
    return result


def _differences(attention: Tensor) -> Tensor:
    """‖PA‖²_F of one head, in float64."""
    squares = torch.zeros((), dtype=torch.float64, device=attention.device)
    mean = squares.expand(attention.shape[1])
    for rows in few_rows(attention):
        mean = mean + rows.double().sum(0) / len(attention)
    for rows in few_rows(attention):
        squares = squares + (rows.double() - mean).square().sum()
    return squares


def gain(layer: Layer) -> Float[Tensor, " head"]:
    """‖W^o_hW^v_h‖_op of each head (in S2 eq. 13), which depends on the weights alone.

    It is computed from two QR decompositions and the singular values of a width×width product, without a d×d matrix.

    Args:
        layer: a pass of this layer over any text.

    Returns:
        Float64 (head,), ≥ 0.
    """
    out, value = layer.output_weights.double(), layer.value_weights.double()
    right = torch.linalg.qr(value.mT, mode="r").R
    left = torch.linalg.qr(out, mode="r").R
    result: Tensor = torch.linalg.matrix_norm(left @ right.mT, 2)
    return result


def scatter(tokens: Float[Tensor, "token dim"]) -> Tensor:
    """S(M) = (1/n)Σ‖m_j − μ(M)‖² (S2 eq. 12).

    Args:
        tokens: M, at least one row.

    Returns:
        A scalar ≥ 0, in the precision of `tokens`.
    """
    return (tokens - tokens.mean(0)).square().sum() / len(tokens)


def _square(vector: Tensor) -> Tensor:
    return vector.square().sum()
