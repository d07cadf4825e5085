"""Exposure of length intervals: which lengths fill the neighbour slots.

This measures the effect of collapse on search without labels. If a length interval b has a share p_b of the texts and a
share s_b of all neighbour slots, its exposure

    exposure_b = s_b/p_b = (mean of N_k over the texts of b)/(mean of N_k over all texts)

is 1 if no length is favoured; N_k(j) counts the queries that have text j among their k nearest. Exposures and their errors
follow from counts of slots (`Slots`): sums of whole numbers over ranges of texts, the same for any division.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import lcm
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tempscale.collapse.neighbours import NOBODY
from tempscale.stats.errors import enough_documents

AT_ONCE = 1 << 17
"""Queries whose neighbours are counted together."""
_COUNTS = 1 << 22
"""Counts of units by interval that are made together."""


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
    """The same for repeated draws of as many texts from the finite population: 0 if all were drawn and all are queries."""


class QueryNeighbours(NamedTuple):
    """The nearest texts of some queries."""

    unit: Int[np.ndarray, " query"]
    """The unit of each query (see `Slots`)."""
    text: Int[np.ndarray, "query k"]
    """Its nearest texts, numbered from 0; NOBODY in an empty slot."""


class Units(NamedTuple):
    """The numbers of the units (see `Slots`) of texts and of queries."""

    texts: Int[np.ndarray, " text"] | None
    """The unit of each text; None where each text is a unit with its number."""
    queries: Int[np.ndarray, " query"] | None
    """The unit of each query that is no text, counted from `first`; None where each query is a unit."""
    first: int
    """The number of the first unit of these queries."""
    total: int
    """How many units there are."""

    @classmethod
    def of(
        cls,
        texts: int,
        queries: int = 0,
        documents: Int[np.ndarray, " text"] | None = None,
        query_documents: Int[np.ndarray, " query"] | None = None,
    ) -> Units:
        """The units of `texts` texts and `queries` further queries; if documents are given, these are the units."""
        text_units, first = _numbered(documents, texts)
        query_units, query_count = _numbered(query_documents, queries)
        return cls(text_units, query_units, first, first + query_count)

    def of_queries(self, numbers: Int[np.ndarray, " query"], from_corpus: bool) -> Int[np.ndarray, " query"]:
        """The unit of each query, from its number among the texts (`from_corpus`) or among the queries that are no texts."""
        if from_corpus:
            return numbers if self.texts is None else self.texts[numbers]
        return self.first + (numbers if self.queries is None else self.queries[numbers])


def _numbered(names: Int[np.ndarray, " text"] | None, count: int) -> tuple[Int[np.ndarray, " text"] | None, int]:
    """A number for each of some names, int32, and how many names differ; `count` without names."""
    if names is None or not count:
        return None, count
    different, number = np.unique(names, return_inverse=True)
    return number.astype(np.int32), len(different)


@dataclass(frozen=True)
class Slots:
    """Counts of neighbour slots from which exposures and their errors follow. Mergeable.

    A slot is a dyad of two units: that of the query, and that of the text that fills it. A unit is drawn as a whole: it is a
    text, a query that is no text, or a document with its texts.
    """

    texts: Int[np.ndarray, " interval"]
    """The texts of each interval, int64 as all counts."""
    filled: Int[np.ndarray, " interval"]
    """Slots by the interval of their filler."""
    units: Int[np.ndarray, "2*interval 2*interval"]
    """Σ_d y_d y_dᵀ over units d. y_d: the slots that d fills or asks, by the interval of their filler, a slot inside one
    unit once; then the texts of d by interval."""
    asked: Int[np.ndarray, "interval interval"]
    """Σ_d a_d a_dᵀ, a_d the slots that d asks and others fill."""
    pairs: Int[np.ndarray, "interval interval"]
    """Σ_u b_u b_uᵀ over pairs u of two units, b_u the slots between the two."""

    def merged(self, other: Slots) -> Slots:
        """The counts of two sets of units of one graph, added."""
        return Slots(
            self.texts + other.texts, self.filled + other.filled, self.units + other.units, self.asked + other.asked,
            self.pairs + other.pairs,
        )  # fmt: skip


def slots(
    neighbours: Iterable[QueryNeighbours],
    interval: Int[np.ndarray, " text"],
    intervals: int,
    units: range,
    *,
    count: int,
    unit: Int[np.ndarray, " text"] | None = None,
) -> tuple[Slots, Int[np.ndarray, " unit"]]:
    """Count the slots of some units.

    Args:
        neighbours: all queries with their nearest texts, each once.
        interval: length interval of every text that could be a neighbour.
        intervals: how many length intervals there are.
        units: consecutive units; the counts of ranges that contain each unit once add up to those of all.
        count: the number of all units.
        unit: the unit of each text; by default each text is a unit with its number.

    Returns:
        The counts, and how many slots each of these units fills: N_k where units are texts.
    """
    low, width = units.start, len(units)
    fills, asks, between = [], [], []
    for query, filler, filling in _filled(neighbours, unit):
        kind = interval[filler].astype(np.int64)
        inside = (filling >= low) & (filling < units.stop)
        fills.append((filling[inside] - low) * intervals + kind[inside])
        apart = query != filling
        inside = (query >= low) & (query < units.stop) & apart
        asks.append((query[inside] - low) * intervals + kind[inside])
        least = np.minimum(query, filling)
        inside = (least >= low) & (least < units.stop) & apart
        between.append(((least[inside] - low) * count + np.maximum(query, filling)[inside]) * intervals + kind[inside])
    by_filler, by_query = (_table(keys, width, intervals) for keys in (fills, asks))
    texts = _texts(interval, unit, intervals, units)
    of_unit = np.concatenate([by_filler + by_query, texts], axis=1)
    counts = Slots(
        texts.sum(0), by_filler.sum(0), of_unit.T @ of_unit, by_query.T @ by_query, _pairs(between, intervals)
    )  # fmt: skip
    return counts, by_filler.sum(1)


def _filled(
    neighbours: Iterable[QueryNeighbours], unit: Int[np.ndarray, " text"] | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The query's unit, the filler and the filler's unit of every filled slot, in large chunks."""
    for queries in neighbours:
        for start in range(0, len(queries.text), AT_ONCE):
            nearest = queries.text[start : start + AT_ONCE]
            filled = nearest != NOBODY
            filler = nearest[filled]
            query = np.repeat(queries.unit[start : start + AT_ONCE].astype(np.int64), filled.sum(1))
            yield query, filler, (filler if unit is None else unit[filler]).astype(np.int64)


def _table(keys: list[np.ndarray], rows: int, columns: int) -> Int[np.ndarray, "row column"]:
    """How often each number row·columns + column occurs."""
    flat = np.concatenate([np.zeros(0, np.int64), *keys])
    return np.bincount(flat, minlength=rows * columns).reshape(rows, columns)


def _texts(
    interval: Int[np.ndarray, " text"], unit: Int[np.ndarray, " text"] | None, intervals: int, units: range
) -> Int[np.ndarray, "unit interval"]:
    """The number of texts of each interval in each of these units."""
    if unit is None:
        kinds = interval[units.start : units.stop].astype(np.int64)
        return _table([np.arange(len(kinds)) * intervals + kinds], len(units), intervals)
    inside = (unit >= units.start) & (unit < units.stop)
    keys = (unit[inside].astype(np.int64) - units.start) * intervals + interval[inside]
    return _table([keys], len(units), intervals)


def _pairs(keys: list[np.ndarray], intervals: int) -> Int[np.ndarray, "interval interval"]:
    """Σ b_u bᵤᵀ of the pairs u, from pair·intervals + interval of the filler of each slot between two units."""
    flat = np.concatenate([np.zeros(0, np.int64), *keys])
    flat.sort()
    starts = np.flatnonzero(np.concatenate([[True], flat[1:] != flat[:-1]])) if len(flat) else np.zeros(0, np.int64)
    number = np.diff(np.append(starts, len(flat)))
    pair, kind = np.divmod(flat[starts], intervals)
    squares = np.diag(np.bincount(kind, number.astype(np.float64) ** 2, intervals).astype(np.int64))
    for step in range(1, intervals):  # The slots of one pair by another filler are next to each other.
        same = np.flatnonzero(pair[step:] == pair[:-step])
        if not len(same):
            break
        crossed = np.zeros_like(squares)
        np.add.at(crossed, (kind[same], kind[same + step]), number[same] * number[same + step])
        squares += crossed + crossed.T
    return squares


def exposures(
    texts: Slots,
    population: float = np.inf,
    documents: Slots | None = None,
    query_share: float = 1.0,
) -> Exposure:
    """Exposure of each length interval, with the errors that its slots have as dyads.

    Slots that share a unit are dependent (Aronow, Samii & Assenova 2015, as in `stats.dyads`). Let e = (1[the filler is in
    b] − s_b)/(p_b·slots) of each slot; S_t the sum of e over the slots that text t fills or whose query it is; D_t =
    exposure_b·(1[t is in b] − p_b)/(p_b·n) the effect of t on p_b; and T_u the sum of e over the slots between the same two
    texts u. Then

        V = Σ_t (S_t − D_t)² − Σ_u T_u² .

    If n of N texts are drawn, and r of these are queries, a text is drawn with the chance π = n/N and is a query with the
    chance πρ, ρ = r/n. With A_q the sum of e over the slots of query q, the error within this population is the root of

        (1 − π)·V + π(1 − ρ)·(Σ_q A_q² − Σ e²) + π(1 − πρ)·Σ e² + π(1 − π)·(Σ_u T_u² − Σ e²) ,

    which is (1 − ρ)·Σ_q A_q² if all texts of a corpus can be found and some of them are queries, and
    (1 − π)·(V + π·Σ_u T_u²) if all are queries. If texts come in documents, V is about other documents: t and u then are
    documents and pairs of documents, and a slot inside one document counts once in its S_t and in no T_u.

    Args:
        texts: the counts of all slots, each text a unit by itself.
        population: N; by default texts are drawn from an infinite corpus.
        documents: the counts by document; by default each text is drawn separately.
        query_share: ρ, where the queries are texts.

    Returns:
        Shares, exposures and their errors, computed from the counts in exact fractions. V is not a sum of squares; if it is
        0 or negative, Σ_u T_u² is used instead. Documents do not change `corrected`, which is about this population's texts.
    """
    count, filled = [int(n) for n in texts.texts], [int(n) for n in texts.filled]
    n, slots, intervals = sum(count), max(1, sum(filled)), len(count)
    shares, slot_shares = np.array(count) / n, np.array(filled) / slots
    ratio, error, corrected = np.full((3, intervals), np.nan)
    drawn, asks = Fraction(min(1.0, n / population)), Fraction(min(1.0, query_share))
    for b in (b for b in range(intervals) if count[b]):
        s, p = Fraction(filled[b], slots), Fraction(count[b], n)
        ratio[b] = float(s / p)
        slot = [((c == b) - s) / (p * slots) for c in range(intervals)]
        share = [s / p * ((a == b) - p) / (p * n) for a in range(intervals)]
        variance = _variance(texts, slot, share)
        squares = sum((count * e**2 for count, e in zip(filled, slot, strict=True)), Fraction(0))
        queries, dyads = _square(texts.asked, slot), _square(texts.pairs, slot)
        error[b] = float(variance if documents is None else _variance(documents, slot, share)) ** 0.5
        total = (1 - drawn) * variance + drawn * (1 - asks) * (queries - squares)
        total += drawn * (1 - drawn * asks) * squares + drawn * (1 - drawn) * (dyads - squares)
        corrected[b] = float(max(Fraction(0), total)) ** 0.5
    return Exposure(shares, slot_shares, ratio, error, corrected)


class Change(NamedTuple):
    """What another search of the same texts by the same queries does to exposures; each (interval,), NaN without texts."""

    change: Float[np.ndarray, " interval"]
    """The exposure of the other search, less that of the first."""
    error: Float[np.ndarray, " interval"]
    """Standard error over repeated draws of texts and queries."""


def change(
    graphs: tuple[Int[np.ndarray, "query k"], Int[np.ndarray, "query k"]],
    interval: Int[np.ndarray, " text"],
    intervals: int,
    units: Units,
    numbers: Int[np.ndarray, " query"] | None = None,
) -> Change:
    """The change of each exposure from one graph to another, with the error that it has because both share units.

    As V of `exposures`, of the difference of the two: a slot of the first graph has the weight −e, one of the second e, each
    with its own s_b; D_t is that of the change. Slots of both graphs between the same two units are one dyad.

    Args:
        graphs: the neighbours of each query in the first and in the second, as indices into `interval`; NOBODY in an empty
            slot.
        interval: length interval of every text that could be a neighbour.
        intervals: how many length intervals there are.
        units: those of texts and queries.
        numbers: the number of each query among the texts; by default the queries are no texts.

    Returns:
        The second exposure less the first, and its error; see `exposures` where V is 0 or negative.
    """
    (first, second), texts = graphs, len(interval)
    asking = units.of_queries(np.arange(len(first)) if numbers is None else numbers, numbers is not None)
    # The kinds of the second graph's slots are numbered behind those of the first; their texts are the same units.
    twice = np.concatenate([interval, interval.astype(np.int64) + intervals])
    of_texts = np.arange(texts) if units.texts is None else units.texts
    lists = [QueryNeighbours(asking, first), QueryNeighbours(asking, np.where(second == NOBODY, NOBODY, second + texts))]
    return _change(_counted(lists, twice, 2 * intervals, units.total, np.concatenate([of_texts, of_texts])), intervals)


def _counted(
    neighbours: list[QueryNeighbours], interval: Int[np.ndarray, " text"], intervals: int, total: int,
    unit: Int[np.ndarray, " text"] | None,
) -> Slots:  # fmt: skip
    """The slots of all units, some of them at a time, since each has a row of counts."""
    together = max(1, _COUNTS // intervals)
    parts = (range(start, min(start + together, total)) for start in range(0, total, together))
    return reduce(Slots.merged, (slots(neighbours, interval, intervals, part, count=total, unit=unit)[0] for part in parts))


def _change(counts: Slots, intervals: int) -> Change:
    """The change and its error from the counts of two graphs, whose kinds follow each other."""
    texts, filled = [int(n) for n in counts.texts[:intervals]], [int(n) for n in counts.filled]
    n, graphs = sum(texts), (filled[:intervals], filled[intervals:])
    moved, error = np.full((2, intervals), np.nan)
    for b in (b for b in range(intervals) if texts[b]):
        p, slot, difference = Fraction(texts[b], n), list[Fraction](), Fraction(0)
        for sign, graph in zip((-1, 1), graphs, strict=True):
            total = max(1, sum(graph))
            s = Fraction(graph[b], total)
            slot += [sign * ((c == b) - s) / (p * total) for c in range(intervals)]
            difference += sign * s / p
        share = [difference * ((a == b) - p) / (p * n) for a in range(intervals)] + [Fraction(0)] * intervals
        moved[b], error[b] = float(difference), float(_variance(counts, slot, share)) ** 0.5
    return Change(moved, error)


def _variance(counts: Slots, slot: list[Fraction], share: list[Fraction]) -> Fraction:
    """V, or Σ_u T_u² where V is not above 0."""
    nodes, dyads = _square(counts.units, [*slot, *(-d for d in share)]), _square(counts.pairs, slot)
    return nodes - dyads if nodes > dyads else dyads


def _square(matrix: Int[np.ndarray, "row row"], weights: list[Fraction]) -> Fraction:
    """wᵀMw, in whole numbers of the weights' common part, which are faster than fractions."""
    part = lcm(*(w.denominator for w in weights))
    whole = [w.numerator * (part // w.denominator) for w in weights]
    rows = (sum(m * w for m, w in zip(row, whole, strict=True) if m) for row in matrix.tolist())
    return Fraction(sum(w * row for w, row in zip(whole, rows, strict=True)), part**2)


def exposure(
    label: Int[np.ndarray, "query k"],
    interval: Int[np.ndarray, " text"],
    intervals: int,
    from_corpus: bool = True,
    *,
    population: float = np.inf,
    documents: Int[np.ndarray, " text"] | None = None,
    query_documents: Int[np.ndarray, " query"] | None = None,
    sample: Int[np.ndarray, " query"] | None = None,
) -> Exposure:
    """Exposure of each length interval, from the neighbours of some queries; see `exposures`.

    Args:
        label: the neighbours of each query, as indices into `interval`; NOBODY in an empty slot.
        interval: length interval of every text that could be a neighbour.
        intervals: how many length intervals there are.
        from_corpus: the queries are texts: all of them in the same order, or a sample.
        population: number of texts that these were drawn from.
        documents: the document of each text, as whole numbers; by default each text is drawn separately.
        query_documents: the document of each query, unless the queries are texts.
        sample: the numbers of the texts that are queries, a random sample of all.

    Returns:
        As `exposures`. `error` is NaN where the documents of the texts, or of the queries, are too few for an error
        (`stats.errors.enough_documents`).
    """
    texts, queries = len(interval), len(label)
    numbers = sample if sample is not None else np.arange(queries)

    def counted(units: Units) -> Slots:
        neighbours = [QueryNeighbours(units.of_queries(numbers, from_corpus), label)]
        return _counted(neighbours, interval, intervals, units.total, units.texts)

    others = 0 if from_corpus else queries
    by_document = None
    if documents is not None or query_documents is not None:
        by_document = counted(Units.of(texts, others, documents, query_documents))
    result = exposures(counted(Units.of(texts, others)), population, by_document, queries / texts if from_corpus else 1.0)
    if all(enough_documents(labels) for labels in (documents, query_documents) if labels is not None):
        return result
    return result._replace(error=np.full(intervals, np.nan))
