"""Means over all pairs of a large set from the pairs of small groups that share no text, with errors by the jackknife.

The mean of h(x, y) over all pairs is a U-statistic, and most of its pairs are redundant. Groups of random texts, with the
same number from each stratum (length interval), have pairs in every cell of two strata; the cells are then weighted by the
corpus's shares of pairs.

Where texts come in documents, all texts of a document go to one set of documents, and a group is drawn from one set. It then
has too many pairs inside a document, so these are separate cells, and the measured pairs of a set represent all its pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tempscale.stats.enough import GROUPS_FOR_AN_ERROR
from tempscale.stats.errors import Z_95

TEXTS_OF_A_GROUP = 20
"""Texts of one group: 190 pairs, whose factors are in memory together.

With 32 groups, and two texts of each length interval at least, the mean over 100,000 sentences has an error below .005.
"""
_OF_EACH = 2


def texts_of_a_group(texts: Int[np.ndarray, " stratum"], groups: int) -> Int[np.ndarray, " stratum"]:
    """The number of texts of each stratum in a group: two of each, and the rest by the strata's shares of the texts.

    From k_a = 2, one more text at a time goes to the stratum of largest 20·n_a/n − k_a among those with k_a < n_a/groups.

    Args:
        texts: n_a, texts of each stratum; empty strata do not count.
        groups: the number of groups wanted, ≥ 1.

    Returns:
        k_a ≥ 2 (0 for an empty stratum), in total 20, fewer if the texts do not suffice, more if there are more than ten
        strata. A stratum of fewer than k_a·groups texts is in fewer groups.
    """
    counts = np.where(texts > 0, _OF_EACH, 0)
    target = TEXTS_OF_A_GROUP * texts / max(1, int(texts.sum()))
    while counts.sum() < TEXTS_OF_A_GROUP:
        lacking = np.where((counts + 1) * groups <= texts, target - counts, -np.inf)
        if lacking.max(initial=-np.inf) == -np.inf:
            break
        counts[np.argmax(lacking)] += 1
    return counts


def shares_of_pairs(texts: Int[np.ndarray, " stratum"]) -> Float[np.ndarray, " cell"]:
    """Each cell's share of all unordered pairs, for the cells a ≤ b in row-major order, from the texts of each stratum."""
    pairs = np.multiply.outer(texts, texts).astype(np.float64)
    np.fill_diagonal(pairs, texts * (texts - 1) / 2)
    upper = pairs[np.triu_indices(len(texts))]
    return np.asarray(upper / upper.sum())


def pairs_of_sets(
    stratum: Int[np.ndarray, " text"], document: Int[np.ndarray, " text"], set_of: Int[np.ndarray, " text"],
    shape: tuple[int, int],
) -> Float[np.ndarray, "set cells"]:  # fmt: skip
    """Numbers of pairs of each set by cell a ≤ b, between documents and then inside one; `shape` is (sets, strata)."""
    sets, strata = shape
    upper = np.triu_indices(strata)
    texts = np.bincount(set_of * strata + stratum, minlength=sets * strata).reshape(shape).astype(np.float64)
    names, first, place = np.unique(document, return_index=True, return_inverse=True)
    several = np.flatnonzero(np.bincount(place) > 1)
    number = np.full(len(names), -1)
    number[several] = np.arange(len(several))
    mask = number[place] >= 0
    parts = np.bincount(number[place][mask] * strata + stratum[mask], minlength=len(several) * strata).reshape(-1, strata)
    all_pairs, inside = (_upper_pairs(counts.astype(np.float64), upper) for counts in (texts, parts))
    same = np.stack([np.bincount(set_of[first[several]], column, sets) for column in inside.T], axis=1)
    return np.concatenate([all_pairs - same, same], axis=1)


def _upper_pairs(texts: np.ndarray, upper: tuple[np.ndarray, ...]) -> np.ndarray:
    """Pairs of the cells a ≤ b from the numbers of texts (row, stratum)."""
    a, b = upper
    return np.asarray(np.where(a == b, texts[:, a] * (texts[:, a] - 1) / 2, texts[:, a] * texts[:, b]))


class GroupSums(NamedTuple):
    """Sums over the pairs of each group and cell."""

    sums: Float[np.ndarray, "group cell"]
    counts: Float[np.ndarray, "group cell"]
    """Measured pairs, or the pairs that they represent."""

    @classmethod
    def of(
        cls, values: Float[np.ndarray, " pair"], group: Int[np.ndarray, " pair"], cell: Int[np.ndarray, " pair"],
        shape: tuple[int, int],
    ) -> GroupSums:  # fmt: skip
        """The sums of pairs, each with its group and cell; `shape` is (groups, cells)."""
        flat = group * shape[1] + cell
        size = shape[0] * shape[1]
        sums = np.bincount(flat, weights=values, minlength=size).reshape(shape)
        return cls(sums, np.bincount(flat, minlength=size).reshape(shape).astype(np.float64))

    def standing_for(self, pairs: Float[np.ndarray, "group cell"]) -> GroupSums:
        """The sums over `pairs` pairs of each group and cell, with the means of the measured ones."""
        counts = np.where(self.counts > 0, pairs, 0.0)
        return GroupSums(np.where(self.counts > 0, _ratio(self.sums, self.counts) * pairs, 0.0), counts)

    def estimate(self, weights: Float[np.ndarray, " cell"], cells: Sequence[int]) -> tuple[float, float]:
        """The `weighted` mean over some cells and its jackknife error, NaN if fewer than ten groups have pairs there."""
        sums = GroupSums(self.sums[:, cells], self.counts[:, cells])
        count = int((sums.counts.sum(1) > 0).sum())
        return sums.weighted(weights[cells]), jackknife_error(sums.replicates(weights[cells])) if count > 1 else float("nan")

    def weighted(self, weights: Float[np.ndarray, " cell"]) -> float:
        """Σ W·m / Σ W over the cells that have pairs: the mean over the corpus's pairs; NaN without pairs."""
        return float(_weighted(self.sums.sum(0), self.counts.sum(0), weights))

    def replicates(self, weights: Float[np.ndarray, " cell"]) -> Float[np.ndarray, " group"]:
        """`weighted` without each group that has pairs, in turn."""
        with_pairs = self.counts.sum(1) > 0
        sums, counts = (values.sum(0) - values[with_pairs] for values in self)
        return _weighted(sums, counts, weights)


def _ratio(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    sums, counts = np.asarray(sums), np.asarray(counts)
    return np.asarray(np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0))


def _weighted(sums: np.ndarray, counts: np.ndarray, weights: np.ndarray) -> np.ndarray:
    used = np.where(counts > 0, weights, 0.0)
    means = np.divide(sums, counts, out=np.zeros(sums.shape), where=counts > 0)
    return _ratio((used * means).sum(-1), used.sum(-1))


def jackknife_error(replicates: Float[np.ndarray, " group"]) -> float:
    """The delete-one-group jackknife: √((G−1)/G·Σ_g(θ_(g) − θ̄)²), θ_(g) the estimate without group g (Efron & Stein 1981).

    For the plain mean of G values it is sd/√G. It has no finite-population factor: even if every text is in a group, most
    pairs are not measured.

    Args:
        replicates: θ_(g) of each group, at least two.

    Returns:
        ≥ 0, in the unit of the estimate; NaN for fewer than ten groups.
    """
    groups = len(replicates)
    if groups < GROUPS_FOR_AN_ERROR:
        return float("nan")
    return float(np.sqrt((groups - 1) / groups * np.square(replicates - replicates.mean()).sum()))


def quantile(
    values: Float[np.ndarray, " pair"], group: Int[np.ndarray, " pair"], share: float,
    weights: Float[np.ndarray, " pair"] | None = None,
) -> tuple[float, float]:  # fmt: skip
    """A quantile over pairs and its standard error, from the error of the share of pairs below it (Woodruff 1952).

        se = (Q(p + z·s) − Q(p − z·s)) / 2z,   s the jackknife's error of the share of pairs ≤ Q(p),  z = 1.96

    Args:
        values: of each pair of one cell, at least one.
        group: the group of each pair.
        share: p in (0, 1).
        weights: the number of pairs that each represents; by default equal.

    Returns:
        Q(p), interpolated linearly between order statistics (with weights, the first value up to which the share is p), and
        its error; NaN if fewer than ten groups have pairs, or if p ± z·s reaches 0 or 1: such a quantile needs more pairs.
    """
    weights = np.ones(len(values)) if weights is None else weights
    linear = bool((weights == weights[0]).all())

    def at(shares: float | np.ndarray) -> np.ndarray:
        options = {} if linear else {"method": "inverted_cdf", "weights": weights}
        return np.quantile(values, shares, **options)  # type: ignore[call-overload,no-any-return]

    value = float(at(share))
    _, number = np.unique(group, return_inverse=True)
    sums = np.bincount(number, weights * (values <= value))
    below = GroupSums(sums[:, None], np.bincount(number, weights)[:, None])
    error = jackknife_error(below.replicates(np.ones(1)))
    ends = share + np.array([-1, 1]) * Z_95 * error
    if not np.isfinite(error) or ends[0] <= 0 or ends[1] >= 1 or (error == 0 and (values != value).any()):
        return value, float("nan")
    low, high = at(ends)
    return value, float(high - low) / (2 * Z_95)


def between_strata(
    texts: Int[np.ndarray, " stratum"], means: Float[np.ndarray, " stratum"], texts_of_corpus: float
) -> float:  # fmt: skip
    """The additional variance of a mean over pairs for another corpus, which has other shares of texts in the strata.

        (4/N)·Σ_a p_a(m_a − m̄)²,   p_a = n_a/n, m̄ = Σ_a p_a·m_a

    Args:
        texts: n_a, the corpus's texts in each stratum.
        means: m_a, the mean of a text of stratum a with all texts of the corpus; NaN where it is unknown.
        texts_of_corpus: N.

    Returns:
        ≥ 0, in the square of the unit of the mean.
    """
    measured = np.isfinite(means) & (texts > 0)
    p = texts[measured] / texts[measured].sum()
    centred = means[measured] - (p * means[measured]).sum()
    return float(4 * (p * centred**2).sum() / texts_of_corpus)


def covariance_of_shares(
    stratum: Int[np.ndarray, " text"], strata: int, document: Int[np.ndarray, " text"] | None = None
) -> Float[np.ndarray, "stratum stratum"]:
    """C, for which mᵀ·C·m is the variance of `between_strata`, also for differences m of two models' means.

        C = 4/N·(diag p − p·pᵀ),   of documents  C = 4·G/(G−1)·Σ_g d_g·d_gᵀ/N²,   d_ga = n_ga − n_g·p_a

    Args:
        stratum: of each text, from 0.
        strata: the number of strata.
        document: the document of each text; by default texts are drawn separately.

    Returns:
        Symmetric; its rows sum to 0, so that a constant added to m has no effect.
    """
    texts = len(stratum)
    p = np.bincount(stratum, minlength=strata) / texts
    if document is None:
        return np.asarray(4 / texts * (np.diag(p) - np.outer(p, p)))
    names, place = np.unique(document, return_inverse=True)
    table = np.bincount(place * strata + stratum, minlength=len(names) * strata).reshape(-1, strata)
    moved = table - np.outer(table.sum(1), p)
    return np.asarray(4 * len(names) / (len(names) - 1) * moved.T @ moved / texts**2)
