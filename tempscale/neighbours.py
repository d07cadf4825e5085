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
from scipy import sparse

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
        """No neighbours yet.

        Args:
            texts: how many texts.
            k: how many neighbours each will have.

        Returns:
            (texts, k) of −∞ and NOBODY.
        """
        return cls(np.full((texts, k), -np.inf, np.float32), np.full((texts, k), NOBODY, np.int32))

    def merged(self, other: Nearest) -> Nearest:
        """The k nearest of both lists.

        Args:
            other: of the same texts, without a neighbour that is here.

        Returns:
            As many as here, the same whichever of the two was first.
        """
        cosine = np.concatenate([self.cosine, other.cosine], axis=1)
        label = np.concatenate([self.label, other.label], axis=1)
        order = np.lexsort((label, -cosine), axis=1)[:, : self.cosine.shape[1]]
        return Nearest(np.take_along_axis(cosine, order, 1), np.take_along_axis(label, order, 1))


class Exposure(NamedTuple):
    """Who takes the neighbour slots, by length interval; each (interval,), NaN where an interval has no text."""

    texts_share: Float[np.ndarray, " interval"]
    """p_b, its share of the texts, in [0, 1]."""
    slots_share: Float[np.ndarray, " interval"]
    """s_b, its share of all neighbour slots, in [0, 1]."""
    exposure: Float[np.ndarray, " interval"]
    """slots_share/texts_share, ≥ 0."""
    error: Float[np.ndarray, " interval"]
    """Standard error of the exposure were texts and queries drawn again."""
    corrected: Float[np.ndarray, " interval"]
    """The same were as many texts drawn again from the finite population: 0 where it was drawn whole."""


def occurrences(label: Int[np.ndarray, "query k"], texts: int) -> Int[np.ndarray, " text"]:
    """N_k, the k-occurrence: how many queries have each text among their neighbours.

    Args:
        label: the neighbours of each query, as places from 0; NOBODY where there are fewer than k.
        texts: how many texts there are.

    Returns:
        ≥ 0; they add up to the slots that are filled.
    """
    return np.bincount(label[label != NOBODY].ravel(), minlength=texts)


def skewness(occurrence: Int[np.ndarray, " text"]) -> float:
    """E[(N_k − mean)³]/sd³, the hubness of Radovanović et al. 2010.

    Args:
        occurrence: N_k of each text, at least one.

    Returns:
        Any number: above 0 where few texts answer many queries; 0 where every text occurs equally often.
    """
    centred = occurrence - occurrence.mean()
    deviation = np.sqrt((centred**2).mean())
    return float((centred**3).mean() / deviation**3) if deviation > 0 else 0.0


def exposure(
    label: Int[np.ndarray, "query k"],
    interval: Int[np.ndarray, " text"],
    intervals: int,
    own: bool = True,
    population: float = np.inf,
) -> Exposure:
    """Exposure of each length interval from the neighbours of some queries.

    A slot ties the query that asks to the text that fills it, so slots are dyads, dependent where they share a text (Aronow,
    Samii & Assenova 2015, as in `sampling`). With e = (1[the filler is of b] − s_b)/(p_b·slots) of each slot, S_t the sum of
    e over the slots that text t fills or asks for, D_t = exposure_b·(1[t is of b] − p_b)/(p_b·n) what t moves in p_b, and
    T_u the sum of e over the slots between the same two texts u,

        V = Σ_t (S_t − D_t)² − Σ_u T_u² ,      of n texts out of N:   (1 − n/N)·(V + (n/N)·Σ_u T_u²) ,

    for a slot is drawn again only where both its texts are.

    Args:
        label: the neighbours of each query, as places in `interval`; NOBODY where there are fewer than k.
        interval: length interval of every text that could be a neighbour.
        intervals: how many there are.
        own: the queries are the texts themselves, in the same order.
        population: texts that these were drawn from.

    Returns:
        Shares, exposures and their errors. V is no square; where it comes out at or below 0, Σ_u T_u² stands for it.
    """
    texts, queries = len(interval), len(label)
    filled = label != NOBODY
    slots, asker, filler = int(filled.sum()), np.nonzero(filled)[0], label[filled]
    occurrence = occurrences(label, texts)
    shares = np.bincount(interval, minlength=intervals) / texts
    taken = np.bincount(interval[filler], minlength=intervals) / max(1, slots)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = taken / np.where(shares > 0, shares, np.nan)
    error, corrected = np.full((2, intervals), np.nan)
    mutual = _mutual(asker, filler, texts) if own else (filler[:0], filler[:0])
    drawn = min(1.0, texts / population)
    for b in np.flatnonzero(shares > 0):
        here = interval == b
        slot = (here - taken[b]) / (shares[b] * max(1, slots))
        of_text = occurrence * slot - ratio[b] * (here - shares[b]) / (shares[b] * texts)
        of_query = np.bincount(asker, slot[filler], queries)
        nodes = ((of_text + of_query) ** 2).sum() if own else (of_text**2).sum() + (of_query**2).sum()
        dyads = (occurrence * slot**2).sum() + (slot[mutual[0]] * slot[mutual[1]]).sum()
        variance = nodes - dyads if nodes > dyads else dyads
        error[b], corrected[b] = np.sqrt(variance), np.sqrt((1 - drawn) * (variance + drawn * dyads))
    return Exposure(shares, taken, ratio, error, corrected)


def _mutual(
    asker: Int[np.ndarray, " slot"], filler: Int[np.ndarray, " slot"], texts: int
) -> tuple[Int[np.ndarray, " slot"], Int[np.ndarray, " slot"]]:
    """Both ends of every slot whose filler has the asker among its own neighbours too."""
    asked = sparse.csr_array((np.ones(len(asker), np.int8), (asker, filler)), shape=(texts, texts))
    ends: tuple[np.ndarray, np.ndarray] = asked.multiply(asked.T).nonzero()
    return ends
