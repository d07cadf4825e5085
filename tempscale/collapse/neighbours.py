"""Nearest neighbours by cosine, and which lengths they have: exposure by length interval, hubness.

How collapse affects search is measured here without labels. N_k(j) counts the queries, out of n, that have text j among
their k nearest (the k-occurrence). If a length interval b has a share p_b of the texts and a share s_b of all neighbour
slots, its exposure

    exposure_b = s_b/p_b = (mean of N_k over the texts of b)/(mean of N_k over all texts)

is 1 if no length is favoured. The skewness of N_k is hubness (Radovanović et al. 2010): few texts fill many slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tempscale.stats.errors import tell_an_error

_AT_ONCE, _LINKED = 1 << 17, 1 << 20
"""Queries whose neighbours are counted at a time, and texts whose links are: the graph of many more takes little besides."""
NOBODY = np.iinfo(np.int32).max
"""The label of an empty slot, when a text has fewer neighbours than requested."""


@dataclass(frozen=True)
class Nearest:
    """The k nearest texts of each text: largest cosine first, ties by the neighbour's label. Mergeable."""

    cosine: Float[np.ndarray, "text k"]
    """Float32; −∞ in an empty slot."""
    label: Int[np.ndarray, "text k"]
    """Int32; NOBODY in an empty slot."""

    @classmethod
    def empty(cls, texts: int, k: int) -> Nearest:
        """Lists without neighbours.

        Args:
            texts: how many texts.
            k: how many neighbours each text can have.

        Returns:
            (texts, k) of −∞ and NOBODY.
        """
        return cls(np.full((texts, k), -np.inf, np.float32), np.full((texts, k), NOBODY, np.int32))

    def merged(self, other: Nearest) -> Nearest:
        """The k nearest of both lists.

        Args:
            other: neighbours of the same texts, none of them in these lists.

        Returns:
            As many neighbours as here; the order of the two lists does not matter.
        """
        cosine = np.concatenate([self.cosine, other.cosine], axis=1)
        label = np.concatenate([self.label, other.label], axis=1)
        order = np.lexsort((label, -cosine), axis=1)[:, : self.cosine.shape[1]]
        return Nearest(np.take_along_axis(cosine, order, 1), np.take_along_axis(label, order, 1))


class Exposure(NamedTuple):
    """Shares and exposure of each length interval; each (interval,), NaN if an interval has no text."""

    texts_share: Float[np.ndarray, " interval"]
    """p_b, the interval's share of the texts, in [0, 1]."""
    slots_share: Float[np.ndarray, " interval"]
    """s_b, the interval's share of all neighbour slots, in [0, 1]."""
    exposure: Float[np.ndarray, " interval"]
    """slots_share/texts_share, ≥ 0."""
    error: Float[np.ndarray, " interval"]
    """Standard error of the exposure over repeated draws of texts and queries."""
    corrected: Float[np.ndarray, " interval"]
    """The same for repeated draws of as many texts from the finite population: 0 if all of it was drawn."""


def occurrences(label: Int[np.ndarray, "query k"], texts: int) -> Int[np.ndarray, " text"]:
    """N_k, the k-occurrence: how many queries have each text among their neighbours.

    Args:
        label: the neighbours of each query, as indices from 0; NOBODY in an empty slot.
        texts: how many texts there are.

    Returns:
        ≥ 0; the sum is the number of filled slots.
    """
    found = np.zeros(texts, np.int64)
    for start in range(0, len(label), _AT_ONCE):
        own = label[start : start + _AT_ONCE]
        found += np.bincount(own[own != NOBODY], minlength=texts)
    return found


def skewness(occurrence: Int[np.ndarray, " text"]) -> float:
    """E[(N_k − mean)³]/sd³, the hubness of Radovanović et al. 2010.

    Args:
        occurrence: N_k of each text, at least one.

    Returns:
        Any number: above 0 if a few texts are neighbours of many queries; 0 if every text occurs equally often.
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
    documents: Int[np.ndarray, " text"] | None = None,
    asking: Int[np.ndarray, " query"] | None = None,
) -> Exposure:
    """Exposure of each length interval, from the neighbours of some queries.

    A slot is a dyad of the query and the text that fills it, and slots that share a text are dependent (Aronow, Samii &
    Assenova 2015, as in `stats.dyads`). Let e = (1[the filler is in b] − s_b)/(p_b·slots) for each slot; S_t the sum of e
    over the slots that text t fills or whose query it is; D_t = exposure_b·(1[t is in b] − p_b)/(p_b·n) the effect of t on
    p_b; and T_u the sum of e over the slots between the same two texts u. Then

        V = Σ_t (S_t − D_t)² − Σ_u T_u² ,      of n texts out of N:   (1 − n/N)·(V + (n/N)·Σ_u T_u²) ,

    because a slot is drawn again only if both its texts are. Where texts come in documents, V is that of other documents: t
    and u then are documents and pairs of two, and a slot inside one document counts once in its S_t and in no T_u.

    Args:
        label: the neighbours of each query, as indices into `interval`; NOBODY in an empty slot.
        interval: length interval of every text that could be a neighbour.
        intervals: how many length intervals there are.
        own: the queries are the texts themselves, in the same order.
        population: number of texts that these were drawn from.
        documents: the document of each text, as whole numbers; without it each text is drawn by itself.
        asking: the same of each query, unless the queries are the texts.

    Returns:
        Shares, exposures and their errors. V is not a sum of squares; if it is 0 or negative, Σ_u T_u² is used instead.
        `corrected` is about the texts of this population, so documents do not change it. `error` is NaN where the documents
        of the texts, or of the queries, are too few for an error (`stats.errors.tell_an_error`).
    """
    texts = len(interval)
    occurrence = occurrences(label, texts)
    slots = int(occurrence.sum())
    shares = np.bincount(interval, minlength=intervals) / texts
    taken = np.bincount(interval, occurrence, intervals) / max(1, slots)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = taken / np.where(shares > 0, shares, np.nan)
    error, corrected = np.full((2, intervals), np.nan)
    fillers = _fillers(label, interval, intervals)
    mutual = _mutual(label, interval, intervals) if own else np.zeros((intervals, intervals))
    drawn = min(1.0, texts / population)
    clusters, enough = None, all(tell_an_error(own) for own in (documents, asking) if own is not None)
    if documents is not None or asking is not None:
        filled = label != NOBODY
        asker, filler = np.nonzero(filled)[0], label[filled]
        texts_of = np.arange(texts) if documents is None else np.unique(documents, return_inverse=True)[1]
        asked = np.arange(len(label)) if asking is None else np.unique(asking, return_inverse=True)[1]
        queries_of = texts_of if own else texts_of.max() + 1 + asked
        clusters = _Clusters.of(texts_of, queries_of[asker], texts_of[filler])
    for b in np.flatnonzero(shares > 0):
        # What a slot adds to S depends on the interval of its filler alone, and D on that of the text.
        slot = ((np.arange(intervals) == b) - taken[b]) / (shares[b] * max(1, slots))
        share = ratio[b] * ((np.arange(intervals) == b) - shares[b]) / (shares[b] * texts)
        nodes = 0.0
        for start in range(0, max(texts, len(label)), _AT_ONCE):
            here = slice(start, start + _AT_ONCE)
            of_text = occurrence[here] * slot[interval[here]] - share[interval[here]]
            of_query = fillers[here] @ slot
            nodes += float(((of_text + of_query) ** 2).sum() if own else (of_text**2).sum() + (of_query**2).sum())
        dyads = float(slots * taken @ slot**2 + slot @ mutual @ slot)
        variance = nodes - dyads if nodes > dyads else dyads
        error[b], corrected[b] = np.sqrt(variance), np.sqrt((1 - drawn) * (variance + drawn * dyads))
        if not enough:
            error[b] = np.nan
        elif clusters is not None:
            error[b] = clusters.error(slot[interval[filler]], share[interval])
    return Exposure(shares, taken, ratio, error, corrected)


class _Clusters(NamedTuple):
    """The documents of texts and of both ends of each slot."""

    texts: Int[np.ndarray, " text"]
    asker: Int[np.ndarray, " slot"]
    filler: Int[np.ndarray, " slot"]
    pair: Int[np.ndarray, " slot"]
    """The number of the pair of two documents of each slot."""
    documents: int
    """How many documents there are."""

    @classmethod
    def of(cls, texts: np.ndarray, asker: np.ndarray, filler: np.ndarray) -> _Clusters:
        names, place = np.unique(np.concatenate([texts, asker, filler]), return_inverse=True)
        own, one, other = np.split(place, [len(texts), len(texts) + len(asker)])
        _, pair = np.unique(np.minimum(one, other) * len(names) + np.maximum(one, other), return_inverse=True)
        return cls(own, one, other, pair, len(names))

    def error(self, slot: Float[np.ndarray, " slot"], share: Float[np.ndarray, " text"]) -> float:
        """√V over documents: `slot` is e of each slot, `share` the part of D of each text."""
        between = self.asker != self.filler
        nodes = np.bincount(self.filler, slot, self.documents) - np.bincount(self.texts, share, self.documents)
        nodes += np.bincount(self.asker[between], slot[between], self.documents)
        dyads = float(np.square(np.bincount(self.pair[between], slot[between])).sum()) if between.any() else 0.0
        squares = float(np.square(nodes).sum())
        return float(np.sqrt(squares - dyads if squares > dyads else dyads))


def _fillers(
    label: Int[np.ndarray, "query k"], interval: Int[np.ndarray, " text"], intervals: int
) -> Int[np.ndarray, "query interval"]:
    """How many neighbours of each query are of each interval."""
    found = np.zeros((len(label), intervals), np.uint16)
    for start in range(0, len(label), _AT_ONCE):
        own = label[start : start + _AT_ONCE]
        of = np.where(own == NOBODY, -1, interval[np.where(own == NOBODY, 0, own)])
        for b in range(intervals):
            found[start : start + len(own), b] = (of == b).sum(1)
    return found


def _mutual(
    label: Int[np.ndarray, "text k"], interval: Int[np.ndarray, " text"], intervals: int
) -> Float[np.ndarray, "interval interval"]:
    """How many slots have a filler that has the query among its neighbours too, by the intervals of both."""
    texts, counts = len(interval), np.zeros((intervals, intervals))
    for least in range(0, texts, _LINKED):  # Links of the texts whose smaller number is in this range, as numbers.
        links = [np.zeros(0, np.int64)]
        for start in range(0, texts, _AT_ONCE):
            own = label[start : start + _AT_ONCE]
            query = np.arange(start, start + len(own), dtype=own.dtype)[:, None]
            lower, upper = np.minimum(query, own), np.maximum(query, own)
            here = (own != NOBODY) & (lower >= least) & (lower < least + _LINKED)
            links.append(lower[here].astype(np.int64) * texts + upper[here])
        every = np.concatenate(links)
        every.sort()
        both = every[1:][every[1:] == every[:-1]]  # A link and its way back.
        one, other = interval[both // texts], interval[both % texts]
        pairs = np.bincount(one * intervals + other, minlength=intervals**2).reshape(intervals, intervals)
        counts += pairs + pairs.T
    return counts
