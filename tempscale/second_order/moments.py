"""The first two moments of the token embeddings of one text.

X = [x_1..x_n] are the last layer's token embeddings, special tokens included, padding excluded. S2 (arXiv 2604.27398) eqs.
2, 3: μ = (1/n)Σx_j and Σ = (1/n)Σ(x_j−μ)(x_j−μ)ᵀ; eq. 8: X is divided by ‖μ‖ first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_ROUNDING = 4.0
"""A mean ‖μ‖ of n tokens counts as zero if it is at most this many times √n·ε·√tr Σ: see `covariance_factor`."""
_MARGIN = 2.0
"""Moments are refused at this multiple of that bound, because the mean of a factor is summed in another order."""
_ORDINARY = 40
"""Numbers whose largest is within 2^±40 are not scaled: their squares neither vanish nor overflow in float32."""
_FARTHEST = 100
"""The largest exponent of a scaling power of two: float32 can represent it and its inverse."""


def power_of_two(values: Float[Tensor, "*row dim"]) -> Float[Tensor, "*row 1"]:
    """A power of two that scales each row's largest number to about 1; 1 for a row with ordinary squares, or not finite."""
    largest = torch.linalg.vector_norm(values.detach(), ord=torch.inf, dim=-1, keepdim=True)
    largest = largest if largest.dtype == torch.float64 else largest.float()
    exponent = torch.frexp(torch.where(torch.isfinite(largest), largest, 1.0)).exponent
    exponent = torch.where(exponent.abs() > _ORDINARY, exponent.clamp(-_FARTHEST, _FARTHEST), 0)
    return torch.ldexp(torch.ones_like(largest), -exponent).to(values.dtype)


class TokenMoments(NamedTuple):
    """Token moments of several texts, each (texts,)."""

    mean_norm: Float[Tensor, " text"]
    """‖μ‖ before scaling (S2 eq. 2), ≥ 0."""
    spread: Float[Tensor, " text"]
    """S/‖μ‖² = tr Σ after scaling to ‖μ‖ = 1 (S2 eqs. 8, 12), ≥ 0; NaN where μ is zero up to rounding."""
    within_cosine: Float[Tensor, " text"]
    """Mean cosine over all pairs of tokens, (1/n²)Σ_jk cos(x_j, x_k) (S2 H.2), in [0, 1]."""


class TokenSums(NamedTuple):
    """The sums that determine the token moments of a whole text or of one chunk. Mergeable."""

    tokens: Float[Tensor, " text"]
    """n"""
    mean: Float[Tensor, "text dim"]
    """μ"""
    scatter: Float[Tensor, " text"]
    """Σ_j ‖x_j − μ‖² = n·tr Σ"""
    units: Float[Tensor, "text dim"]
    """Σ_j x_j/‖x_j‖"""

    def moments(self, epsilon: float | None = None) -> TokenMoments:
        """‖μ‖, spread and within-text cosine of each text.

            μ = (1/n)Σ_j x_j                                                     S2 eq. 2
            spread = S(X)/‖μ‖² = tr Σ/‖μ‖²,   S(X) = (1/n)Σ_j ‖x_j − μ‖²          S2 eqs. 8, 12
            within = (1/n²)Σ_jk cos(x_j, x_k) = ‖(1/n)Σ_j x_j/‖x_j‖‖²             S2 H.2

        Args:
            epsilon: relative precision of the tokens, where it is not that of the sums.

        Returns:
            Each (texts,) in the precision of the sums. The spread is NaN if ‖μ‖ is zero up to rounding, at twice the bound
            of `covariance_factor`.
        """
        scale = power_of_two(self.mean)
        norm = torch.linalg.vector_norm(self.mean * scale, dim=-1) / scale.squeeze(-1)
        within = (self.units / self.tokens.unsqueeze(-1)).square().sum(-1)
        spread = self.scatter / self.tokens / norm.square()
        most = _most_spread(self.tokens, _epsilon(self.mean.dtype) if epsilon is None else epsilon) / _MARGIN**2
        # Below this number, squares of the tokens have lost digits.
        smallest = torch.finfo(self.mean.dtype if epsilon is None else torch.float32).tiny
        spread = torch.where(norm.square() < smallest, torch.nan, spread)
        return TokenMoments(norm, torch.where(spread < most, spread, torch.nan), within)

    def merged(self, text: Int[Tensor, " chunk"], texts: int) -> TokenSums:
        """The sums of `texts` texts from those of chunks, in float64; `text` is that of each chunk (Chan et al. 1979)."""
        count, mean, scatter, units = (column.double() for column in self)

        def total(values: Tensor) -> Tensor:
            return torch.zeros(texts, *values.shape[1:], dtype=torch.float64).index_add_(0, text, values)

        tokens = total(count)
        centre = total(count.unsqueeze(-1) * mean) / tokens.unsqueeze(-1)
        between = count * (mean - centre[text]).square().sum(-1)
        return TokenSums(tokens, centre, total(scatter) + total(between), total(units))


def token_sums(hidden: Float[Tensor, "text token dim"], mask: Bool[Tensor, "text token"]) -> TokenSums:
    """Count, mean, scatter around the mean and sum of unit tokens of each text of a padded batch.

    Args:
        hidden: token embeddings; values at padded positions are ignored.
        mask: True at tokens, False at padding.

    Returns:
        TokenSums in the precision of `hidden`. The scatter is taken around the mean in a second pass, so that it keeps its
        digits if ‖μ‖² is much larger.
    """
    visible = mask.unsqueeze(-1)
    count = mask.sum(1, dtype=hidden.dtype)
    hidden = hidden.masked_fill(~visible, 0.0)
    mean = hidden.sum(1) / count.unsqueeze(-1)
    centred = (hidden - mean.unsqueeze(1)).masked_fill_(~visible, 0.0)
    tokens = hidden * power_of_two(hidden)
    unit = torch.nn.functional.normalize(tokens, dim=-1, eps=torch.finfo(hidden.dtype).tiny)
    return TokenSums(count, mean, centred.square().sum((1, 2)), unit.sum(1))


@dataclass
class Scatter:
    """Mean and scatter matrix MᵀM of a text whose token embeddings are read chunk by chunk; M has at most d rows."""

    tokens: int
    """n"""
    mean: Float[Tensor, " dim"]
    """μ, float64."""
    rows: Float[Tensor, "rank dim"]
    """M: MᵀM = Σ_j (x_j−μ)(x_j−μ)ᵀ."""

    @classmethod
    def of(cls, tokens: Float[Tensor, "token dim"]) -> Scatter:
        """The scatter of one chunk's token embeddings, at least one, in float64."""
        tokens = tokens.double()
        return cls(len(tokens), tokens.mean(0), _compressed(tokens - tokens.mean(0)))

    def merged(self, other: Scatter) -> Scatter:
        """The scatter of two chunks (Chan et al. 1979): MᵀM = M_1ᵀM_1 + M_2ᵀM_2 + (n_1n_2/n)(μ_1−μ_2)(μ_1−μ_2)ᵀ."""
        tokens = self.tokens + other.tokens
        step = other.mean - self.mean
        between = (self.tokens * other.tokens / tokens) ** 0.5 * step
        rows = _compressed(torch.cat([self.rows, other.rows, between.unsqueeze(0)]))
        return Scatter(tokens, self.mean + step * (other.tokens / tokens), rows)

    def factor(self) -> tuple[Float[Tensor, " dim"], Float[Tensor, "rank dim"]]:
        """The unit mean, NaN without a direction, and the factor, as from `covariance_factor` of float32 tokens."""
        norm = torch.linalg.vector_norm(self.mean)
        rows = self.rows / (norm * self.tokens**0.5)
        return _with_direction(self.mean / norm, rows, self.tokens, _epsilon(torch.float32)).float(), rows.float()


def _compressed(rows: Float[Tensor, "row dim"]) -> Float[Tensor, "rank dim"]:
    """At most d rows with the same MᵀM."""
    return torch.linalg.qr(rows).R if rows.shape[0] > rows.shape[1] else rows


def covariance_factor(
    tokens: Float[Tensor, "token dim"], *, check: bool = True
) -> tuple[Float[Tensor, " dim"], Float[Tensor, "rank dim"]]:
    """The mean and a factor of the covariance of one text, both after dividing by ‖μ‖ (S2 eqs. 2, 3, 8).

        μ = (1/n)Σ_j x_j,   Σ = (1/n)Σ_j (x_j − μ)(x_j − μ)ᵀ = FᵀF

    F = (X − μ1ᵀ)ᵀ/√n. If n > d, F is the triangular factor of its QR decomposition, which has the same FᵀF with d rows.

    Tokens that cancel have a mean of rounding errors; divided by its norm, they would give a covariance of any size. So a
    mean counts as zero if ‖μ‖ ≤ 4·√n·ε·√tr Σ before scaling, with the precision ε of the tokens, 2⁻²³ for float32 and 2⁻⁵²
    for float64: more than the rounding error of a sum of n numbers, and far less than the √(tr Σ/n) of unrelated tokens.

    Args:
        tokens: (n, d), n ≥ 1, padding excluded.
        check: whether to check the mean at once, for which the CPU waits for a GPU; else call `check_direction` later.

    Returns:
        The unit mean (d,) and F (min(n, d), d), in the precision of `tokens`. Differentiable.

    Raises:
        ValueError: there is no token, or the mean is zero up to rounding or not finite and so has no direction.
    """
    if tokens.ndim != 2 or tokens.shape[0] == 0:
        raise ValueError(f"token embeddings have shape {tuple(tokens.shape)}; expected (tokens, d) with at least one token")
    tokens = tokens * power_of_two(tokens.reshape(1, -1))  # Neither the mean's direction nor F depend on the scale.
    mean = tokens.mean(0)
    norm = torch.linalg.vector_norm(mean)
    centred = (tokens - mean) / (norm * tokens.shape[0] ** 0.5)
    unit = _with_direction(mean / norm, centred.detach(), tokens.shape[0], _epsilon(tokens.dtype))
    if check:
        check_direction(unit)
    return unit, _compressed(centred)


def check_direction(mean: Float[Tensor, " dim"]) -> None:
    """Raise a ValueError if a mean divided by its norm is NaN or 0, because it was zero up to rounding or not finite."""
    if not torch.linalg.vector_norm(mean) > 0.5:
        raise ValueError(
            "the mean of the token embeddings is zero or not finite, so it has no direction to compare (a mean that is no "
            "larger than rounding errors counts as zero)"
        )


def _with_direction(
    unit: Float[Tensor, " dim"], rows: Float[Tensor, "row dim"], tokens: int, epsilon: float
) -> Float[Tensor, " dim"]:
    """A unit mean; NaN where the rows of the covariance factor show that the mean is zero up to rounding."""
    return torch.where(rows.square().sum() < _most_spread(tokens, epsilon), unit, torch.nan)  # Without waiting for a GPU.


def _most_spread(tokens: Any, epsilon: float) -> Any:
    """The tr Σ after scaling to ‖μ‖ = 1 from which the mean of so many tokens is zero up to rounding."""
    return 1 / (_ROUNDING**2 * tokens * epsilon**2)


def _epsilon(kind: torch.dtype) -> float:
    """The relative precision of a mean of such tokens, which are summed in at least float32."""
    return min(torch.finfo(kind).eps, torch.finfo(torch.float32).eps)
