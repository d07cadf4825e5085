"""Nearest neighbours by cosine and whose texts they are: exposure by length interval, hubness.

What collapse does to search, without labels. N_k(j) is how many of n queries have text j among their k nearest (the
k-occurrence). A length interval b with a share p_b of the texts takes a share s_b of all neighbour slots, and its

    exposure_b = s_b/p_b = (mean of N_k over the texts of b)/(mean of N_k over all texts)

is 1 where no length is favoured. The skewness of N_k is hubness (Radovanović et al. 2010): few texts answer everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

NOBODY = np.iinfo(np.int32).max
"""Stands where a text has fewer neighbours than were asked for."""


@dataclass(frozen=True)
class Nearest:
    """The k nearest texts of each text: largest cosine first, ties by the neighbour's rank by id. Mergeable."""

    cosine: Float[np.ndarray, "text k"]
    """Float32; −∞ where there is none."""
    label: Int[np.ndarray, "text k"]
    """Ranks by id, int32; NOBODY where there is none."""

    @classmethod
    def empty(cls, texts: int, k: int) -> Nearest:
        """No neighbours yet."""
        return cls(np.full((texts, k), -np.inf, np.float32), np.full((texts, k), NOBODY, np.int32))

    def merged(self, other: Nearest) -> Nearest:
        """The k nearest of both lists, which share no neighbour."""
        cosine = np.concatenate([self.cosine, other.cosine], axis=1)
        label = np.concatenate([self.label, other.label], axis=1)
        order = np.lexsort((label, -cosine), axis=1)[:, : self.cosine.shape[1]]
        return Nearest(np.take_along_axis(cosine, order, 1), np.take_along_axis(label, order, 1))


class Exposure(NamedTuple):
    """Who takes the neighbour slots, by length interval; each (interval,), NaN where an interval has no text."""

    texts_share: Float[np.ndarray, " interval"]
    slots_share: Float[np.ndarray, " interval"]
    exposure: Float[np.ndarray, " interval"]
    """slots_share/texts_share, ≥ 0."""
    error: Float[np.ndarray, " interval"]
    """Standard error of the exposure were texts and queries drawn again."""


def occurrences(label: Int[np.ndarray, "query k"], texts: int) -> Int[np.ndarray, " text"]:
    """N_k: how many queries have each text among their neighbours."""
    return np.bincount(label[label != NOBODY].ravel(), minlength=texts)


def skewness(occurrence: Int[np.ndarray, " text"]) -> float:
    """E[(N_k − mean)³]/sd³, the hubness of Radovanović et al. 2010; 0 where every text occurs equally often."""
    centred = occurrence - occurrence.mean()
    deviation = np.sqrt((centred**2).mean())
    return float((centred**3).mean() / deviation**3) if deviation > 0 else 0.0


def exposure(
    label: Int[np.ndarray, "query k"], interval: Int[np.ndarray, " text"], intervals: int, own: bool = True
) -> Exposure:
    """Exposure of each length interval from the neighbours of some queries.

    Args:
        label: the neighbours of each query, as places in `interval`; NOBODY where there are fewer than k.
        interval: length interval of every text that could be a neighbour.
        intervals: how many there are.
        own: the queries are the texts themselves, in the same order.

    Returns:
        Shares, exposures and their errors. The error adds up what each text moves: as a neighbour by its own N_k, as a
        query by the share of its slots that the interval takes, together where it is both (the influence function of a
        ratio of sums).
    """
    texts, queries = len(interval), len(label)
    filled = label != NOBODY
    slots = int(filled.sum())
    owner = np.where(filled, interval[np.where(filled, label, 0)], -1)
    occurrence = occurrences(label, texts).astype(np.float64)
    shares = np.bincount(interval, minlength=intervals) / texts
    taken = np.bincount(owner[filled], minlength=intervals) / max(1, slots)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = taken / np.where(shares > 0, shares, np.nan)
    error = np.full(intervals, np.nan)
    per_query = slots / max(1, queries)
    for b in np.flatnonzero(shares > 0):
        here = interval == b
        # As a neighbour: N_k relative to its mean, of the interval's own texts, around the interval's exposure.
        as_text = np.where(here, occurrence / (slots / texts) - ratio[b], 0.0) / shares[b] / texts
        as_query = ((owner == b).sum(1) / per_query - taken[b]) / shares[b] / queries
        if own:
            error[b] = np.sqrt(((as_text + as_query) ** 2).sum())
        else:
            error[b] = np.sqrt((as_text**2).sum() + (as_query**2).sum())
    return Exposure(shares, taken, ratio, error)
