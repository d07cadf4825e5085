"""Means over all pairs of a large set from the pairs of small groups that share no text, with errors by the jackknife.

The mean of h(x, y) over all pairs is a U-statistic, and most of its pairs repeat what others say. Groups that are dealt from
random texts, the same number from each stratum (length interval), give every cell of two strata its pairs; cells are then
weighted by the corpus's own shares of pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tempscale.stats.enough import GROUPS_FOR_AN_ERROR
from tempscale.stats.errors import Z_95

TEXTS_OF_A_GROUP = 16
"""Most texts of one group: 120 pairs, whose factors are in memory together."""


def texts_of_a_group(texts: Int[np.ndarray, " stratum"], groups: int) -> Int[np.ndarray, " stratum"]:
    """How many texts of each stratum a group gets: two of each of eight strata, sixteen of one.

        k_a = min(16 / strata, n_a / groups), at least 2

    Args:
        texts: n_a, texts of each stratum; empty strata do not count.
        groups: the number of groups wanted, ≥ 1.

    Returns:
        k_a ≥ 2 (0 for an empty stratum). A stratum of fewer than k_a·groups texts is dealt to fewer groups.
    """
    most = max(2, TEXTS_OF_A_GROUP // max(1, int((texts > 0).sum())))
    return np.where(texts > 0, np.clip(texts // groups, 2, most), 0)


def shares_of_pairs(texts: Int[np.ndarray, " stratum"]) -> Float[np.ndarray, " cell"]:
    """Each cell's share of all unordered pairs of the corpus: n_a(n_a − 1)/2 inside a stratum, n_a·n_b between two.

    Args:
        texts: n_a, texts of each stratum; together at least two.

    Returns:
        W_ab of the cells a ≤ b in row-major order; they sum to 1.
    """
    pairs = np.multiply.outer(texts, texts).astype(np.float64)
    np.fill_diagonal(pairs, texts * (texts - 1) / 2)
    upper = pairs[np.triu_indices(len(texts))]
    return np.asarray(upper / upper.sum())


class GroupSums(NamedTuple):
    """Sums over the pairs of each group and cell."""

    sums: Float[np.ndarray, "group cell"]
    counts: Int[np.ndarray, "group cell"]

    @classmethod
    def of(
        cls, values: Float[np.ndarray, " pair"], group: Int[np.ndarray, " pair"], cell: Int[np.ndarray, " pair"],
        shape: tuple[int, int],
    ) -> GroupSums:  # fmt: skip
        """The sums of pairs, each with its group and cell; `shape` is (groups, cells)."""
        flat = group * shape[1] + cell
        size = shape[0] * shape[1]
        sums = np.bincount(flat, weights=values, minlength=size).reshape(shape)
        return cls(sums, np.bincount(flat, minlength=size).reshape(shape))

    def without_each(self) -> GroupSums:
        """The sums of all other groups, a row for each group left out."""
        return GroupSums(self.sums.sum(0) - self.sums, self.counts.sum(0) - self.counts)

    def means(self) -> Float[np.ndarray, " cell"]:
        """The mean of each cell over all pairs; NaN where there is none."""
        return _ratio(self.sums.sum(0), self.counts.sum(0))

    def errors(self) -> Float[np.ndarray, " cell"]:
        """The standard error of each cell's mean: the jackknife over the groups that have pairs in it.

        NaN where fewer than ten have.
        """
        left = self.without_each()
        found = np.full(self.sums.shape[1], np.nan)
        for cell in np.flatnonzero((self.counts > 0).sum(0) >= GROUPS_FOR_AN_ERROR):
            has = self.counts[:, cell] > 0
            found[cell] = jackknife_error(_ratio(left.sums[has, cell], left.counts[has, cell]))
        return found

    def weighted(self, weights: Float[np.ndarray, " cell"]) -> float:
        """Σ W·m / Σ W over the cells that have pairs: the mean over the corpus's pairs."""
        return float(_weighted(self.sums.sum(0), self.counts.sum(0), weights))

    def replicates(self, weights: Float[np.ndarray, " cell"]) -> Float[np.ndarray, " group"]:
        """`weighted` without each group in turn, of the groups that have pairs."""
        left = self.without_each()
        has = self.counts.sum(1) > 0
        return _weighted(left.sums[has], left.counts[has], weights)


def _ratio(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return np.asarray(np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0))


def _weighted(sums: np.ndarray, counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    known = np.where(counts > 0, weights, 0.0)
    means = np.divide(sums, counts, out=np.zeros(sums.shape), where=counts > 0)
    return np.asarray((known * means).sum(-1) / known.sum(-1))


def jackknife_error(replicates: Float[np.ndarray, " group"]) -> float:
    """The delete-one-group jackknife: √((G−1)/G·Σ_g(θ_(g) − θ̄)²), θ_(g) the estimate without group g (Efron & Stein 1981).

    For the plain mean of G values it is sd/√G. It has no finite-population factor: even where every text was dealt, most
    pairs were not measured.

    Args:
        replicates: θ_(g) of each group, at least two.

    Returns:
        ≥ 0, in the unit of the estimate; NaN for fewer than ten groups, which say too little of it.
    """
    groups = len(replicates)
    if groups < GROUPS_FOR_AN_ERROR:
        return float("nan")
    return float(np.sqrt((groups - 1) / groups * np.square(replicates - replicates.mean()).sum()))


def quantile(
    values: Float[np.ndarray, " pair"], group: Int[np.ndarray, " pair"], share: float
) -> tuple[float, float]:  # fmt: skip
    """A quantile over pairs and its standard error, from the error of the share of pairs below it (Woodruff 1952).

        se = (Q(p + z·s) − Q(p − z·s)) / 2z,   s the jackknife's error of the share of pairs ≤ Q(p),  z = 1.96

    Args:
        values: of each pair of one cell, at least one.
        group: the group of each pair.
        share: p in (0, 1).

    Returns:
        Q(p), interpolated linearly between order statistics, and its error; NaN where fewer than ten groups have pairs.
    """
    at = float(np.quantile(values, share))
    _, number = np.unique(group, return_inverse=True)
    below = GroupSums.of((values <= at).astype(np.float64), number, np.zeros_like(number), (int(number.max()) + 1, 1))
    error = below.errors()[0]
    if not np.isfinite(error):
        return at, float("nan")
    low, high = (float(np.quantile(values, np.clip(share + side * Z_95 * error, 0, 1))) for side in (-1, 1))
    return at, (high - low) / (2 * Z_95)


def between_strata(
    texts: Int[np.ndarray, " stratum"], means: Float[np.ndarray, " stratum"], texts_of_corpus: float
) -> float:  # fmt: skip
    """The further variance of a mean over pairs as that of another corpus, which has other shares of texts in the strata.

        (4/N)·Σ_a p_a(m_a − m̄)²,   p_a = n_a/n, m̄ = Σ_a p_a·m_a

    Args:
        texts: n_a, the corpus's texts in each stratum.
        means: m_a, the mean of a text of stratum a with all texts of the corpus; NaN where it is not known.
        texts_of_corpus: N.

    Returns:
        ≥ 0, in the square of the unit of the mean.
    """
    known = np.isfinite(means) & (texts > 0)
    p = texts[known] / texts[known].sum()
    centred = means[known] - (p * means[known]).sum()
    return float(4 * (p * centred**2).sum() / texts_of_corpus)
