"""Thresholds carried over: the cosine that as many random pairs reach under another model, and the pairs that stay.

Of all pairs a share p has a cosine under A of at least the threshold c. As many reach the threshold c' under B. Of the pairs
that reach c under A, the share that reach c' under B stays. These are means over pairs that share texts, or ratios of such
means, so an error is that of the texts' own means (Hájek's projection): 2·sd/√n, of

    m_i(old)                         for p
    m_i(old) − m_i(new)              for what reaches c' beyond p: the ends of c' have the shares p·exp(±1.96·error/p)
    (m_i(both) − stay·m_i(old))/p    for the share that stays, at this very c'

where m_i is the share of text i's pairs that reach c under A, c' under B, or both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from tempscale.collapse.aggregates import BINS, cosine_reached, pairs_above
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale.stats.errors import Z_95, documents_error, equal_documents, within_error
from tempscale_jobs.steps.calibration import LEAST_PAIRS_ABOVE, percentiles
from tempscale_jobs.tables.columns import finite

TEXTS_OF_PAIRS = 2_000
"""The texts whose pairs are compared, a sample of all."""
_USUAL = ("99", "99.9")
"""The percentiles of random pairs that are carried over where no threshold is named."""
_ITSELF = -2.0
"""In place of the cosine of a text with itself, which is no pair: it reaches no threshold."""
_UNKNOWN = (
    "passes_se", "new_threshold", "new_threshold_low", "new_threshold_high", "accepted", "stay", "stay_se",
)  # fmt: skip


@dataclass(frozen=True)
class Histograms:
    """Pairs by cosine under A and under B."""

    counts: tuple[np.ndarray, np.ndarray]
    of_all_pairs: bool
    """Whether they are of all pairs of the corpus, not of a sample of its texts."""
    texts: float
    """Their texts or, where texts come in documents, documents as if of equal size."""


@dataclass(frozen=True)
class Pairs:
    """All pairs of some texts under A and under B."""

    cosines: tuple[np.ndarray, np.ndarray]
    """Float64 (texts, texts)."""
    interval: np.ndarray
    """The length interval of each text in A."""
    documents: np.ndarray | None
    """The document of each text; None without documents."""

    @classmethod
    def of(
        cls, vectors: tuple[np.ndarray, np.ndarray], interval: np.ndarray, documents: np.ndarray | None
    ) -> Pairs:  # fmt: skip
        """The pairs of texts with these unit vectors under A and under B."""
        cosines = []
        with threadpool_limits(1):  # So that all machines give the same bytes.
            for rows in vectors:
                cosine = rows.astype(np.float64) @ rows.astype(np.float64).T
                np.fill_diagonal(cosine, _ITSELF)
                cosines.append(cosine)
        return cls((cosines[0], cosines[1]), interval, documents)

    def __len__(self) -> int:
        return len(self.interval)

    def by_length(self) -> Iterator[tuple[int, Pairs]]:
        """The pairs of two texts of one length interval, for each that has enough texts."""
        for interval in np.unique(self.interval).tolist():
            here = np.flatnonzero(self.interval == interval)
            if len(here) >= TEXTS_FOR_AN_INTERVAL:
                old, new = (cosine[np.ix_(here, here)] for cosine in self.cosines)
                documents = None if self.documents is None else self.documents[here]
                yield interval, Pairs((old, new), self.interval[here], documents)

    @property
    def texts(self) -> float:
        """The number of texts or, where texts come in documents, of documents as if of equal size."""
        return len(self) if self.documents is None else equal_documents(self.documents)

    def histograms(self) -> Histograms:
        """These pairs by cosine."""
        old, new = (_histogram(cosine[np.triu_indices(len(self), 1)]) for cosine in self.cosines)
        return Histograms((old, new), False, self.texts)

    def error(self, passing: np.ndarray) -> float | None:
        """The error of a share of all pairs, from the number of each text's pairs; None for too few documents."""
        shares = passing / (len(self) - 1)
        if self.documents is None:
            return within_error(float(shares.var(ddof=1)), len(self))
        return finite(documents_error([shares], [2.0], [self.documents]))


def _histogram(cosines: np.ndarray) -> np.ndarray:
    return np.asarray(np.histogram(cosines.clip(-1.0, 1.0), BINS, (-1.0, 1.0))[0])


class Compared(NamedTuple):
    """Pairs under A and under B, of all texts or of two texts of one length."""

    length: int | None
    """The first number of tokens of that length; None of all texts."""
    histograms: Histograms
    pairs: Pairs | None
    """Those of a sample; None where the vectors are not known."""


def rows(compared: Sequence[Compared], thresholds: Sequence[float] = ()) -> list[dict[str, Any]]:
    """The rows for these thresholds, or for those that 1 % and 0.1 % of the first pairs reach; the first are all pairs."""
    levels = [percentiles(compared[0].histograms.counts[0])[name] for name in _USUAL]
    asked = [*dict.fromkeys(thresholds)] or [round(cosine, 3) for cosine in levels if cosine is not None]
    found = list[dict[str, Any]]()
    for one in compared:
        of = {"by": None, "group": None} if one.length is None else {"by": "length", "group": str(one.length)}
        found += [of | carried(threshold, one.histograms, one.pairs) for threshold in asked]
    return found


def carried(threshold: float, histograms: Histograms, pairs: Pairs | None) -> dict[str, Any]:
    """A row without its group: shares from histograms, errors and what stays from pairs of a sample."""
    old_counts, new_counts = histograms.counts
    totals, passing = [int(counts.sum()) for counts in histograms.counts], pairs_above(old_counts, threshold)
    passes = passing / totals[0]
    over = "corpus" if histograms.of_all_pairs else "sample"
    row = {"threshold": threshold, "over": over, "pairs": totals[0], "passes": passes} | dict.fromkeys(_UNKNOWN)
    if passing < LEAST_PAIRS_ABOVE:
        return row
    row["new_threshold"] = new_threshold = cosine_reached(new_counts, passing * (totals[1] / totals[0]))
    if pairs is None:
        return row
    old, new = (cosine >= reached for cosine, reached in zip(pairs.cosines, (threshold, new_threshold), strict=True))
    row["accepted"] = accepted = int(old.sum()) // 2
    if accepted < LEAST_PAIRS_ABOVE:
        return row
    both, by_text = (old & new).sum(1), (old.sum(1), new.sum(1))
    row["stay"] = stay = float(both.sum() / old.sum())
    row["stay_se"] = pairs.error((both - stay * by_text[0]) / by_text[0].mean() * (len(pairs) - 1))
    errors = pairs.error(by_text[0]), pairs.error(by_text[0] - by_text[1])
    if errors[0] is None or errors[1] is None:
        return row
    # The shares of all pairs have a smaller error than those of a sample.
    smaller = math.sqrt(min(1.0, pairs.texts / histograms.texts))
    row["passes_se"], relative = smaller * errors[0], smaller * errors[1] / passes
    for name, sign in (("new_threshold_low", 1), ("new_threshold_high", -1)):
        row[name] = cosine_reached(new_counts, totals[1] * min(1.0, passes * math.exp(sign * Z_95 * relative)))
    return row
