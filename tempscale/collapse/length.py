"""Length collapse: mean cosine inside and between length intervals, in closed form, with standard errors.

S1 (arXiv 2410.24200) Fig 1c, 3. For unit embeddings u and intervals a, b with sums s_a = Σ_{i∈a} u_i and second moments M_a
= Σ_{i∈a} u_i u_iᵀ, over all unordered pairs,

    Σ cos  = s_a·s_b             (a ≠ b),   (‖s_a‖² − n_a)/2        (a = b)
    Σ cos² = ⟨M_a, M_b⟩_F        (a ≠ b),   (‖M_a‖_F² − n_a)/2      (a = b)

in O(n·d²), without computing any pair. Pairs share texts, so standard errors come from the means of the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL

_BLOCK = 65_536

Floats = Float[np.ndarray, "..."]
"""Float64 of any shape."""


def interval_of(tokens: Int[np.ndarray, " text"], edges: Sequence[int]) -> Int[np.ndarray, " text"]:
    """The interval [edge_k, edge_{k+1}) that contains each length; the last interval is open.

    Args:
        tokens: lengths in tokens, special tokens included, none below the first edge.
        edges: lower edges in tokens, (intervals,), ascending.

    Returns:
        The number of the interval of each length, from 0.
    """
    return np.asarray(np.searchsorted(np.asarray(edges), tokens, side="right") - 1)


@dataclass(frozen=True)
class CosineSums:
    """Sums over the texts of each interval that determine all pairwise means and variances (S1 Fig 1c). Mergeable."""

    texts: Int[np.ndarray, " interval"]
    """n_a, the number of texts, int64."""
    vectors: Float[np.ndarray, "interval dim"]
    """s_a = Σ u_i, float64."""
    squares: Float[np.ndarray, "interval dim dim"]
    """M_a = Σ u_i u_iᵀ, float64."""
    norms: Floats
    """Σ‖u_i‖² and Σ‖u_i‖⁴ of each interval, (interval, 2): n_a up to float32 rounding of the embeddings."""

    @classmethod
    def of(cls, embeddings: Float[np.ndarray, "text dim"], interval: Int[np.ndarray, " text"], intervals: int) -> CosineSums:
        """The sums of one block of unit embeddings, in float64; 0 for an interval without a text."""
        dim = embeddings.shape[1]
        texts = np.bincount(interval, minlength=intervals).astype(np.int64)
        vectors, squares = np.zeros((intervals, dim)), np.zeros((intervals, dim, dim))
        norms = np.zeros((intervals, 2))
        for k in np.flatnonzero(texts):
            rows = embeddings[interval == k].astype(np.float64)
            vectors[k], squares[k] = rows.sum(0), rows.T @ rows
            lengths = np.einsum("nd,nd->n", rows, rows)
            norms[k] = lengths.sum(), (lengths**2).sum()
        return cls(texts, vectors, squares, norms)

    def spread(self, place: Int[np.ndarray, " interval"], intervals: int) -> CosineSums:
        """The same sums in a list of `intervals` intervals, at these places; 0 elsewhere."""
        texts, dim = np.zeros(intervals, np.int64), self.vectors.shape[1]
        vectors, squares, norms = np.zeros((intervals, dim)), np.zeros((intervals, dim, dim)), np.zeros((intervals, 2))
        texts[place], vectors[place], squares[place], norms[place] = self.texts, self.vectors, self.squares, self.norms
        return CosineSums(texts, vectors, squares, norms)

    def merged(self, other: CosineSums) -> CosineSums:
        """The sums of two sets of texts over the same intervals."""
        return CosineSums(
            self.texts + other.texts, self.vectors + other.vectors, self.squares + other.squares, self.norms + other.norms
        )

    def pairs(self) -> Int[np.ndarray, "interval interval"]:
        """Unordered pairs between intervals and, on the diagonal, inside intervals; symmetric."""
        between: np.ndarray = np.multiply.outer(self.texts, self.texts)
        np.fill_diagonal(between, self.texts * (self.texts - 1) // 2)
        return between

    def sums(self) -> tuple[Floats, Floats]:
        """Σ cos and Σ cos² over the unordered pairs of each cell (S1 Fig 1c).

            Σ cos  = s_a·s_b             (a ≠ b),   (‖s_a‖² − n_a)/2        (a = b)
            Σ cos² = ⟨M_a, M_b⟩_F        (a ≠ b),   (‖M_a‖_F² − n_a)/2      (a = b)

        Returns:
            Both float64, symmetric (interval, interval).
        """
        first = self.vectors @ self.vectors.T
        flat = self.squares.reshape(len(self.texts), -1)
        second = flat @ flat.T
        for power, total in enumerate((first, second)):
            np.fill_diagonal(total, (np.diagonal(total) - self.norms[:, power]) / 2)
        return first, second

    def spectrum(self) -> Floats:
        """λ_k/Σλ, ascending: the shares of the eigenvalues of UᵀU/n of all texts, whose embeddings U are not centred."""
        eigenvalues = np.linalg.eigvalsh(self.squares.sum(0) / self.texts.sum()).clip(min=0.0)
        return np.asarray(eigenvalues / eigenvalues.sum())


def effective_rank(spectrum: Floats) -> float:
    """exp(−Σ_k p_k ln p_k), p the shares of the eigenvalues of UᵀU/n.

    Args:
        spectrum: p, (d,), the `CosineSums.spectrum` of n texts.

    Returns:
        From 1 (all equal) to min(n, d).
    """
    share = spectrum[spectrum > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


def top_component(spectrum: Floats) -> float:
    """λ₁/Σλ of the eigenvalues of UᵀU/n: the largest mean squared cosine of the texts with any one direction.

    Args:
        spectrum: λ/Σλ, (d,), the `CosineSums.spectrum` of n texts.

    Returns:
        From 1/min(n, d) to 1 (all on one line), and at least ‖(1/n)Σu_i‖².
    """
    return float(spectrum.max())


def text_means(
    embeddings: Float[np.ndarray, "text dim"], interval: Int[np.ndarray, " text"], sums: CosineSums
) -> Float[np.ndarray, "text interval"]:
    """Each text's mean cosine with the other texts of each interval: u_i·s_b/n_b, without the text itself.

    Args:
        embeddings: of unit norm.
        interval: the length interval of each text, from 0.
        sums: the sums of all texts, including these.

    Returns:
        Float64 in [−1, 1]; NaN if the interval has no other text.
    """
    rows = embeddings.astype(np.float64)
    totals = rows @ sums.vectors.T
    counts = np.broadcast_to(sums.texts.astype(np.float64), totals.shape).copy()
    itself = np.arange(len(rows)), interval
    totals[itself] -= np.einsum("nd,nd->n", rows, rows)
    counts[itself] -= 1
    return np.asarray(np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0))


def mean_cosines(embeddings: Float[np.ndarray, "text dim"]) -> Float[np.ndarray, " text"]:
    """Each text's mean cosine with all others: (u_i·Σu − ‖u_i‖²)/(n − 1), in float64, a block of texts at a time.

    Args:
        embeddings: at least two unit vectors.

    Returns:
        Float64 in [−1, 1].
    """
    starts = range(0, len(embeddings), _BLOCK)
    total = sum(embeddings[start : start + _BLOCK].astype(np.float64).sum(0) for start in starts)
    sums = []
    for start in starts:
        rows = embeddings[start : start + _BLOCK].astype(np.float64)
        sums.append(rows @ total - (rows * rows).sum(1))
    return np.asarray(np.concatenate(sums) / (len(embeddings) - 1))


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations of some values; mergeable (Chan et al. 1979)."""

    values: Floats
    """The number of values, (column,)."""
    mean: Floats
    """Their mean, (column,); 0 without values."""
    deviation: Floats
    """Σ(v − mean)², (column,)."""

    @classmethod
    def of(cls, values: Float[np.ndarray, "text column"]) -> Moments:
        """The moments of each column of values, in float64; NaN is ignored."""
        present = ~np.isnan(values)
        count = present.sum(0).astype(np.float64)
        mean = np.divide(np.where(present, values, 0.0).sum(0), count, out=np.zeros_like(count), where=count > 0)
        return cls(count, mean, np.where(present, (values - mean) ** 2, 0.0).sum(0))

    def merged(self, other: Moments) -> Moments:
        """The moments of two sets of values."""
        count = self.values + other.values
        share = np.divide(other.values, count, out=np.zeros_like(count), where=count > 0)
        step = other.mean - self.mean
        return Moments(count, self.mean + step * share, self.deviation + other.deviation + step**2 * self.values * share)

    def variance(self) -> Floats:
        """Sample variance (n − 1), (column,); NaN for fewer than two values."""
        missing = np.full_like(self.mean, np.nan)
        return np.asarray(np.divide(self.deviation, self.values - 1, out=missing, where=self.values > 1))


def gap_intervals(texts: Sequence[int]) -> tuple[int, int] | None:
    """The two intervals of the collapse gap, which is the mean cosine inside the longest minus that inside the shortest.

    Args:
        texts: how many texts each interval has, shortest first.

    Returns:
        The numbers of the shortest and the longest interval with enough texts; None if there are not two of them.
    """
    enough = [k for k, count in enumerate(texts) if count >= TEXTS_FOR_AN_INTERVAL]
    return (enough[0], enough[-1]) if len(enough) >= 2 else None
