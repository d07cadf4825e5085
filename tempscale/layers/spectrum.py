"""Attention as a low-pass filter: σ_a is its largest gain on differences between tokens.

S1 (arXiv 2410.24200) §2: DC[Z] = (1/n)11ᵀZ, HC[Z] = (I − (1/n)11ᵀ)Z, σ_a = ‖(I − (1/n)11ᵀ)A‖₂.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tempscale.layers.observe import Layer, few_rows

_LOOK_EVERY, _ELEMENTS = 8, 1 << 20
_SQUARINGS = 14


def sigma_a(attention: Float[Tensor, "*batch token token"], tolerance: float = 1e-5) -> Float[Tensor, "*batch"]:
    """σ_a = ‖(I − (1/n)11ᵀ)A‖₂ of each attention matrix (S1 §2), without decomposing the matrix.

    On a CPU: Lanczos iteration on AᵀPA, P = I − (1/n)11ᵀ, from a fixed start, with full orthogonalisation, until the
    residual of the largest Ritz pair is at most `tolerance` times its value; the relative error of σ_a² is then at most
    `tolerance`. On a GPU each step would wait for the CPU, so AᵀPA is squared fourteen times instead. Both methods approach
    σ_a from below and are within 1e-4 of it. The precision is at least float32.

    Args:
        attention: rows that sum to 1, of one unpadded text: (…, n, n).
        tolerance: when the iteration stops; it takes at most n steps.

    Returns:
        σ_a in [0, √n], (…).
    """
    a = attention if attention.dtype == torch.float64 else attention.float()
    n = a.shape[-1]
    if n == 1:
        return torch.zeros(a.shape[:-2], dtype=a.dtype, device=a.device)
    if a.is_cuda:
        return sigma_a_by_squaring(a)
    heads = torch.split(a.reshape(-1, n, n), max(1, _ELEMENTS // (n * n)))  # Never copies all heads.
    return torch.cat([_lanczos(part - part.mean(-2, keepdim=True), tolerance) for part in heads]).reshape(a.shape[:-2])


def _lanczos(flat: Tensor, tolerance: float) -> Tensor:
    """The largest singular value of each matrix (matrix, n, n) with centred columns: a mean would dominate the products."""
    n = flat.shape[-1]
    start = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(flat)
    basis = (start / start.norm()).expand(len(flat), 1, n)
    noise = 4 * torch.finfo(flat.dtype).eps * n**0.5
    scale = torch.zeros(len(flat), 1, 1, dtype=flat.dtype)
    diagonal, off_diagonal = list[Tensor](), list[Tensor]()
    for step in range(1, n + 1):
        newest = basis[:, -1:]
        following = torch.zeros_like(newest)
        for rows in few_rows(flat):  # Those of a long text are read from memory once for both products.
            following = following + newest @ rows.mT @ rows
        diagonal.append((following * newest).sum((1, 2)))
        scale = torch.maximum(scale, diagonal[-1][:, None, None])
        for _ in range(2):  # Two passes keep it orthogonal to all previous vectors.
            following = following - following @ basis.mT @ basis
        size = following.norm(dim=-1, keepdim=True)
        # If the previous vectors already span the Krylov space of the start, only noise is left: continue with zeros.
        size = size.where(size > noise * scale, 0)
        if step % _LOOK_EVERY == 0 or step == n:
            small = torch.diag_embed(torch.stack(diagonal, 1).double())
            if off_diagonal:
                off = torch.stack(off_diagonal, 1).double()
                small = small + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
            values, vectors = torch.linalg.eigh(small)
            residual = size[:, 0, 0].double() * vectors[:, -1, -1].abs()
            if step == n or bool((residual <= tolerance * values[:, -1]).all()):
                break
        off_diagonal.append(size[:, 0, 0])
        basis = torch.cat([basis, (following / size).where(size > 0, 0)], 1)
    sigma: Tensor = values[:, -1].clamp_min(0).sqrt().to(flat.dtype)
    return sigma


def sigma_a_by_squaring(attention: Float[Tensor, "*batch token token"]) -> Float[Tensor, "*batch"]:
    """σ_a (S1 §2) as in `sigma_a`, from matrix products only, so that nothing is copied to the CPU.

    Let v be the column of (AᵀPA)^(2^14) with the largest weight: σ_a = ‖PAv‖/‖v‖. Another singular value σ contributes to v
    with a weight of at most (σ/σ_a)^(2^16), and there are n − 1 others.

    Args:
        attention: as in `sigma_a`, float32 or float64.

    Returns:
        σ_a in [0, √n], (…), in the precision of the input.
    """
    centred = attention - attention.mean(-2, keepdim=True)
    power = centred.mT @ centred
    least = torch.finfo(power.dtype).tiny
    for _ in range(_SQUARINGS):
        power = power / power.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None].clamp_min(least)
        power = power @ power
    heaviest = power.diagonal(dim1=-2, dim2=-1).argmax(-1)
    vector = power.take_along_dim(heaviest[..., None, None], -1)
    result: Tensor = (centred @ vector).squeeze(-1).norm(dim=-1) / vector.squeeze(-1).norm(dim=-1).clamp_min(least)
    return result


class HeadSpectrum(NamedTuple):
    """The heads of one layer of one text, each (head,)."""

    sigma_a: Tensor
    """‖(I − (1/n)11ᵀ)A‖₂."""
    sigma_s: Tensor
    """Standard deviation of the logits of the visible tokens (S1 (4): τ_s = 1/σ_s)."""
    sigma_a_bound: Tensor
    """The bound of Theorem 3, from the measured σ_s and n."""
    theorem_2_ratio: Tensor
    """‖HC[SA(X)]‖_F / (σ_a‖W_V‖₂‖HC[X]‖_F): at most 1 (Theorem 2); NaN if the tokens differ only by rounding."""


def head_spectrum(layer: Layer, value_norms: Float[Tensor, " head"]) -> HeadSpectrum:
    """σ_a, σ_s and both theorems for each head of one layer's pass (S1 §2), in float64 except for σ_a.

    SA(X) = A·X·W_V is computed from the layer's values. Their bias is added equally by every row of A, and HC removes it.

    Args:
        layer: one layer's pass.
        value_norms: ‖W_V‖₂ of each head: `torch.linalg.matrix_norm(layer.value_weights, 2)`.

    Returns:
        Each (head,).
    """
    sigma = sigma_a(layer.attention).double()
    pairs = zip(layer.attention, layer.values, strict=True)
    after = torch.stack([high_frequency(_applied(attention, values.double())).norm() for attention, values in pairs])
    tokens = layer.attended.double()
    norm = high_frequency(tokens).norm()
    # If tokens differ only by rounding, such as copies of one token, the ratio would be one of rounding errors.
    norm = norm.where(norm > torch.finfo(layer.attended.dtype).eps * len(tokens) ** 0.5 * tokens.norm(), torch.nan)
    n = layer.attention.shape[-1]
    return HeadSpectrum(sigma, layer.sigma_s, sigma_a_bound(layer.sigma_s, n), after / (sigma * value_norms.double() * norm))


def _applied(attention: Tensor, values: Tensor) -> Tensor:
    """A·V of one head, with values in float64."""
    return torch.cat([rows.double() @ values for rows in few_rows(attention)])


def sigma_a_bound(sigma_s: Float[Tensor, "*head"], tokens: int) -> Float[Tensor, "*head"]:
    """Theorem 3 (S1): σ_a ≤ √(n / (2·√(1+e^{−2σ_s²})·(n−1)^{3/2} + 1)), for Gaussian logits.

    It is an approximation. In simulations independent Gaussian logits exceed it from a σ_s on that depends on n: 0.7 for 8
    to 32 tokens, 0.9 for 128, 1.05 for 512 and 1.15 for 1,024.

    Args:
        sigma_s: σ_s of each head, ≥ 0, (…).
        tokens: n ≥ 1.

    Returns:
        In (0, 1], (…), in the precision of `sigma_s`; 1 for one token.
    """
    spread = (1 + torch.exp(-2 * sigma_s.square())).sqrt()
    bound: Tensor = (tokens / (2 * spread * (tokens - 1) ** 1.5 + 1)) ** 0.5
    return bound


def high_frequency(tokens: Float[Tensor, "*batch token dim"]) -> Float[Tensor, "*batch token dim"]:
    """HC[Z] = (I − (1/n)11ᵀ)Z: the tokens minus their mean DC[Z] = (1/n)11ᵀZ (S1 §2).

    Args:
        tokens: Z, (…, n, d).

    Returns:
        (…, n, d) in the same precision; the columns sum to 0 except for rounding.
    """
    difference: Tensor = tokens - tokens.mean(-2, keepdim=True)
    return difference


class HighFrequency(NamedTuple):
    """‖HC‖_F after one layer, and after each of its parts, over ‖HC‖_F before; float64 scalars. Parts multiply to whole."""

    whole: Tensor
    """‖HC[X^{l+1}]‖_F / ‖HC[X^l]‖_F, as in Fig 2."""
    attention: Tensor
    """From the input of the attention to the output of W_O."""
    residual: Tensor
    """Both residual sums: from the branch to the sum."""
    norms: Tensor
    """All norms of the layer."""
    feed_forward: Tensor
    """From the input of the feed-forward to its output."""


def high_frequency_ratios(layer: Layer) -> HighFrequency:
    """The share of the differences between tokens that one layer, and each of its parts, keeps (S1 Fig 2), in float64.

    The parts are: norms, attention, residual sum, norms, feed-forward, residual sum, norms. The input of each is the output
    of the part before. If a family has no norm at one of these places, the ratio there is 1.

    Args:
        layer: one layer's pass over one text, from `layers.observe.observe`.

    Returns:
        Scalars ≥ 0; the last four multiply to the first. NaN or infinite if the tokens do not differ.
    """
    names = ("h", "attended", "attention_output", "z", "y", "fed", "feed_forward_output", "feed_forward_branch")
    norms = {name: high_frequency(getattr(layer, name).double()).norm() for name in (*names, "second_sum", "x")}

    def ratio(after: str, before: str) -> Tensor:
        quotient: Tensor = norms[after] / norms[before]
        return quotient

    around = ratio("attended", "h") * ratio("z", "attention_output") * ratio("fed", "y")
    around = around * ratio("feed_forward_branch", "feed_forward_output") * ratio("x", "second_sum")
    return HighFrequency(
        ratio("x", "h"), ratio("attention_output", "attended"), ratio("y", "z") * ratio("second_sum", "feed_forward_branch"),
        around, ratio("feed_forward_output", "fed"),
    )  # fmt: skip
