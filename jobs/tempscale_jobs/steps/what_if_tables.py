"""The rows of `what_if`, from what the searches of each variant found: see `steps.what_if`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tempscale.collapse.exposure import Units, change, exposure
from tempscale.collapse.length import gap_intervals
from tempscale.collapse.neighbours import Nearest
from tempscale.stats.enough import VALUES_FOR_AN_ERROR
from tempscale.stats.errors import documents_error
from tempscale_jobs.runs.folder import GIVEN
from tempscale_jobs.steps.by_group import instead_of_lengths
from tempscale_jobs.steps.layout import Layout, column
from tempscale_jobs.steps.neighbours import Labels, places
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables.columns import finite


@dataclass(frozen=True)
class Askers:
    """All askers."""

    scope: Embedded
    """Of the texts that ask, or of the queries."""
    places: np.ndarray
    """Their places in its layout."""
    corpus: Labels
    """The texts that they ask for."""
    from_corpus: bool

    @property
    def layout(self) -> Layout:
        """The texts or queries among which they are."""
        return self.scope.texts

    @property
    def documents(self) -> np.ndarray | None:
        """The document of each asker; None without documents."""
        return None if self.layout.documents is None else self.layout.documents[self.places]


class Fact(NamedTuple):
    """What this process knows of a variant."""

    what: str
    vector_bytes: float
    scale: float
    """What its similarities are multiplied by to be like cosines."""


class Found(NamedTuple):
    """What a variant's search found for each asker."""

    near: Nearest
    """The k nearest texts, without the asker itself."""
    sums: np.ndarray
    """The summed similarities with the other texts of each length interval, float64 (askers, intervals)."""

    def merged(self, other: Found) -> Found:
        """What was found in two sets of texts."""
        return Found(self.near.merged(other.near), self.sums + other.sums)


class Result(NamedTuple):
    """What the searches of one variant found."""

    fact: Fact
    askers: Askers
    found: Found
    before: Found | None = None
    """What the same askers found by the vectors as they are; None where texts are cut."""
    kept: np.ndarray | None = None
    """The share of each asker's nearest texts that are found by both; None where chunks ask."""
    texts_found: float | None = None
    """Different texts among the k nearest chunks, in the mean; None where texts are whole."""


def rows(scope: Embedded, result: Result) -> list[dict[str, Any]]:
    """The rows of one variant: of all askers, then by the length, and each column of --by, of askers and of texts found."""
    fact, askers, found = result.fact, result.askers, result.found
    of_variant = scope.run.key(scope.model, scope.run.temperatures[0]) | {
        "asked_by": "corpus" if askers.from_corpus else "queries", "k": found.near.label.shape[1], "what": fact.what,
        "vectors": len(askers.corpus.scope.texts), "vector_bytes": fact.vector_bytes, "texts_found": result.texts_found,
    }  # fmt: skip
    kept, documents = np.zeros(0) if result.kept is None else result.kept, askers.documents
    alike, written = (found.near.cosine * fact.scale >= scope.analysis.near_duplicate).sum(1), list[dict[str, Any]]()
    gap = _gap(result) | {"truncated_share": _truncated(askers.corpus.scope)}
    for split in _splits(askers):
        exposed = None if split.by is None else _Exposed.of(result, split.texts)
        for b, name in enumerate(split.names):
            here = split.asking == b
            if exposed is not None and not here.any() and np.isnan(exposed.exposure[b]):
                continue
            written.append(
                of_variant
                | {"by": split.by, "group": name}
                | {"askers": int(here.sum()), "near_duplicates": int(alike[here].sum())}
                | mean_kept(kept if result.kept is None else kept[here], None if documents is None else documents[here])
                | (dict.fromkeys(_EXPOSED) if exposed is None else exposed.row(b))
                | (gap if exposed is None else dict.fromkeys(gap))
            )
    return written


class _Split(NamedTuple):
    """How askers and texts are divided."""

    by: str | None
    names: Sequence[str | None]
    asking: np.ndarray
    """The place of each asker's group in `names`."""
    texts: Layout
    """With these groups in place of length intervals."""


def _splits(askers: Askers) -> list[_Split]:
    """Not at all, by length, and by each column of --by."""
    texts, asking = askers.corpus.scope.texts, askers.layout
    lengths = _Split("length", [*map(str, texts.edges)], asking.interval[askers.places], texts)
    return [_Split(None, [None], np.zeros(len(askers.places), np.int64), texts), lengths] + [
        _Split(own.by, own.names, of_askers.code[askers.places], instead_of_lengths(texts, own))
        for own, of_askers in zip(texts.groupings, asking.groupings, strict=True)
    ]


def _truncated(scope: Embedded) -> float | None:
    """The share of texts that the model does not read to their end; None without a model."""
    if scope.model == GIVEN:
        return None
    return float(column(scope.run, scope.model, scope.run.temperatures[0], scope.texts, "truncated").mean())


_EXPOSED = (
    "exposure", "exposure_se", "exposure_se_superpopulation", "exposure_change", "exposure_change_se_superpopulation",
)  # fmt: skip
"""The columns of `_Exposed`."""


class _Exposed(NamedTuple):
    """Exposure of each length interval, or group, by a variant, and how far it is from that by the vectors as they are."""

    exposure: np.ndarray
    within: np.ndarray
    """Its error for these texts."""
    elsewhere: np.ndarray
    """Its error for other texts, or other documents."""
    change: np.ndarray
    """NaN where other texts are searched."""
    change_error: np.ndarray
    """Of the change, for other texts."""

    @classmethod
    def of(cls, result: Result, texts: Layout) -> _Exposed:
        """From the nearest texts by a variant and by the vectors as they are."""
        askers, before = result.askers, result.before
        after = places(result.found.near, askers.corpus.order)
        intervals = len(texts.edges)
        numbers = askers.places if askers.from_corpus else None
        population = texts.population(len(texts)) if askers.from_corpus else float("inf")
        others, asked = (0, None) if askers.from_corpus else (len(after), askers.documents)
        figures = exposure(
            after, texts.interval, intervals, askers.from_corpus, population=population, documents=texts.documents,
            query_documents=asked, sample=numbers,
        )  # fmt: skip
        if before is None:
            unknown = np.full(intervals, np.nan)
            return cls(figures.exposure, figures.corrected, figures.error, unknown, unknown)
        units = Units.of(len(texts), others, texts.documents, asked)
        both = places(before.near, askers.corpus.order), after
        moved = change(both, texts.interval, intervals, units, numbers)
        error = np.where(np.isnan(figures.error), np.nan, moved.error)  # Too few documents for one are too few for both.
        return cls(figures.exposure, figures.corrected, figures.error, moved.change, error)

    def row(self, interval: int) -> dict[str, Any]:
        """The columns of one interval."""
        return {name: finite(float(values[interval])) for name, values in zip(_EXPOSED, self, strict=True)}


def mean_kept(values: np.ndarray, documents: np.ndarray | None) -> dict[str, Any]:
    """The mean share of neighbours that stay, and its error for other askers, or askers of other documents."""
    if len(values) < VALUES_FOR_AN_ERROR:
        return {"neighbours_kept": float(values.mean()) if len(values) else None, "neighbours_kept_se": None}
    error = float(values.std(ddof=1)) / len(values) ** 0.5
    if documents is not None:
        error = documents_error([values], [1.0], [documents])
    return {"neighbours_kept": float(values.mean()), "neighbours_kept_se": finite(error)}


def _gap(result: Result) -> dict[str, Any]:
    """The collapse gap from the askers' mean similarities with the other texts of their length, and its change.

    Their errors are for other texts. An asker's mean counts its own part and that of all N texts: Var = s²·(1/n + 3/N).
    """
    names = (
        "collapse_gap", "collapse_gap_se_superpopulation", "collapse_gap_change", "collapse_gap_change_se_superpopulation",
    )  # fmt: skip
    askers, texts = result.askers, result.askers.corpus.scope.texts.texts_by_interval()
    ends, interval = gap_intervals(texts.tolist()), askers.layout.interval[askers.places]
    if ends is None or not askers.from_corpus or min((interval == b).sum() for b in ends) < VALUES_FOR_AN_ERROR:
        return dict.fromkeys(names)
    here = [np.flatnonzero(interval == b) for b in ends]
    documents = here if askers.documents is None else [askers.documents[rows] for rows in here]

    def difference(sets: list[np.ndarray]) -> tuple[float, float | None]:
        """The mean of the second set less that of the first, and its error."""
        weights = [
            sign * (1 + 3 * len(values) / texts[b]) ** 0.5 for sign, b, values in zip((-1, 1), ends, sets, strict=True)
        ]
        value = float(sets[1].mean() - sets[0].mean())
        if askers.documents is not None:
            return value, finite(documents_error(sets, weights, documents))
        squares = (w**2 * values.var(ddof=1) / len(values) for w, values in zip(weights, sets, strict=True))
        return value, float(sum(squares)) ** 0.5

    def means(found: Found, scale: float) -> list[np.ndarray]:
        """Each asker's mean similarity with the others of its length, for the shortest and the longest."""
        return [found.sums[rows, b] * scale / (texts[b] - 1) for rows, b in zip(here, ends, strict=True)]

    after = means(result.found, result.fact.scale)
    before = None if result.before is None else means(result.before, 1.0)
    moved = None if before is None else difference([new - old for new, old in zip(after, before, strict=True)])
    return dict(zip(names, (*difference(after), *(moved or (None, None))), strict=True))
