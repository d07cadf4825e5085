"""What would change: which nearest texts a variant of the vectors keeps, which lengths fill its results, and what it costs.

A sample of the texts, or of the queries, asks for its nearest texts by the vectors as they are and by each variant of them,
always among all texts, and exactly. See `tempscale.correction.variants`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from tempscale.collapse.aggregates import Block, merge_tree
from tempscale.collapse.cosine import nearest
from tempscale.collapse.exposure import Units, change, exposure
from tempscale.collapse.length import gap_intervals
from tempscale.collapse.neighbours import NOBODY, Nearest
from tempscale.correction.variant_names import temperature_of
from tempscale.stats.enough import VALUES_FOR_AN_ERROR
from tempscale.stats.errors import documents_error
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import Run, is_whole
from tempscale_jobs.steps import blocks
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.by_length import FITTED
from tempscale_jobs.steps.layout import Layout, Order, layout
from tempscale_jobs.steps.neighbours import Labels, others, places, shares_kept
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import WHAT_IF
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers.dispatch import Piece, later, missing, results, run_tasks, share

if TYPE_CHECKING:
    from tempscale.correction.variants import Variant

PLACE = "partials/what_if"
"""The folder of this step's files."""
AS_IT_IS = ""
"""The variant that changes nothing, with which all are compared."""
ASKERS_OF_A_TASK = 2048


class Asked(NamedTuple):
    """Some askers."""

    embeddings: np.ndarray
    tokens: np.ndarray
    labels: np.ndarray
    """Their labels among the texts; NOBODY where they are queries."""


@dataclass(frozen=True)
class _Askers:
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
        return self.scope.texts

    @property
    def documents(self) -> np.ndarray | None:
        """The document of each asker; None without documents."""
        return None if self.layout.documents is None else self.layout.documents[self.places]


def is_done(scope: Embedded) -> bool:
    """Whether all files of this step exist."""
    return is_whole(scope.run.storage, f"{_place(scope)}/done.json")


def _place(scope: Embedded) -> str:
    return scope.run.place(PLACE, scope.model, scope.run.temperatures[0])


def measure(scope: Embedded, queries: Run | None) -> None:
    """Write the rows of `what_if` of one model, under its first temperature."""
    analysis, first = scope.analysis, scope.run.temperatures[0]
    if not analysis.what_if or is_done(scope):
        return
    with scope.journal.stage(scope.named("what if")) as stage:
        askers = _askers(scope, queries)
        grid, _ = blocks.tiling(scope, first)
        changed = [AS_IT_IS, *(what for what in analysis.what_if if temperature_of(what) is None)]
        variants = _fitted(scope, askers, changed)
        as_it_is = _Variants(later(_first, variants.fitted), variants.facts[:1])
        found = dict(zip(variants.facts, _search(scope, first, askers, variants), strict=True))
        for what in analysis.what_if:
            if (tau := temperature_of(what)) is not None:
                (found[as_it_is.facts[0]._replace(what=what)],) = _search(scope, Temperature.of(tau), askers, as_it_is)
        facts = sorted(found, key=lambda fact: [AS_IT_IS, *analysis.what_if].index(fact.what))
        rows = _rows(grid, askers, facts, [found[fact] for fact in facts])
        name = f"{_place(scope)}/what_if.parquet"
        scope.run.storage.write_table(name, WHAT_IF.build_rows(rows))
        scope.run.storage.write_json(f"{_place(scope)}/done.json", {"files": [name]})
        for temperature in scope.run.temperatures:
            scope.run.storage.remove(f"{scope.run.place(PLACE, scope.model, temperature)}/found")
        who = "texts" if askers.from_corpus else "queries"
        stage.note = f"{count(len(facts) - 1, 'variant')}, asked by {len(askers.places):,} {who}"


def _askers(scope: Embedded, queries: Run | None) -> _Askers:
    """The queries, or a sample of the texts where there are none."""
    texts, most = scope.texts, scope.analysis.exposure_sample
    corpus = Labels.of(scope, scope.run.temperatures[0], all_names=False)
    if queries is None:
        return _Askers(scope, np.sort(texts.sample(most)), corpus, True)
    asking = layout(queries, scope.cluster, scope.model, Order(texts.edges, texts.seed))
    return _Askers(replace(scope, run=queries, texts=asking), np.sort(asking.sample(most)), corpus, False)


# ---------------------------------------------------------------------------------------------- variants


class _Fact(NamedTuple):
    """What this process knows of a variant."""

    what: str
    vector_bytes: float
    scale: float
    """What its similarities are multiplied by to be like cosines."""


class _Variants(NamedTuple):
    """The vectors as they are, then each variant."""

    fitted: Any
    """A reference to the fitted ones: with them this process would import torch, which takes 150 MB."""
    facts: list[_Fact]


def _fitted(scope: Embedded, askers: _Askers, what: Sequence[str]) -> _Variants:
    """Some variants, fitted to a sample of the texts and of the queries at the first temperature."""
    temperature, sample = scope.run.temperatures[0], scope.texts.sample(FITTED)
    asking = None
    if not askers.from_corpus:
        asked = askers.layout.sample(FITTED)
        asking = askers.scope.embeddings(temperature, asked), np.maximum(askers.layout.tokens[asked], 1)
    texts = scope.embeddings(temperature, sample), np.maximum(scope.texts.tokens[sample], 1)
    fitted = later(_fit, what, texts, asking)
    (facts,) = results(scope.cluster, _facts, [(fitted,)], "variants")
    return _Variants(fitted, facts)


def _fit(
    what: Sequence[str], texts: tuple[np.ndarray, np.ndarray], queries: tuple[np.ndarray, np.ndarray] | None
) -> list[Variant]:
    """Some variants of vectors with these lengths."""
    import torch

    from tempscale.correction.variants import Variant

    asking = (None, None) if queries is None else tuple(map(torch.tensor, queries))
    with threadpool_limits(1):  # So that all workers give the same bytes.
        return [Variant.fitted(name, *map(torch.tensor, texts), *asking) for name in what]


def _first(variants: Sequence[Variant]) -> list[Variant]:
    return [*variants[:1]]


def _facts(variants: Sequence[Variant]) -> list[_Fact]:
    return [_Fact(variant.what, variant.vector_bytes, variant.scale) for variant in variants]


# ---------------------------------------------------------------------------------------------- searches


class _Found(NamedTuple):
    """What a variant's search found for each asker."""

    near: Nearest
    """The k nearest texts, without the asker itself."""
    sums: np.ndarray
    """The summed similarities with the other texts of each length interval, float64 (askers, intervals)."""

    def merged(self, other: _Found) -> _Found:
        """What was found in two sets of texts."""
        return _Found(self.near.merged(other.near), self.sums + other.sums)


def _search(scope: Embedded, temperature: Temperature, askers: _Askers, variants: _Variants) -> list[_Found]:
    """Search the embeddings of one temperature by some variants; finished pieces are in files."""
    grid, bounds = blocks.tiling(scope, temperature)
    place = f"{scope.run.place(PLACE, scope.model, temperature)}/found"
    groups = [slice(k, k + ASKERS_OF_A_TASK) for k in range(0, len(askers.places), ASKERS_OF_A_TASK)]
    labels = np.full(len(askers.places), NOBODY, np.int32)
    if askers.from_corpus:
        labels = askers.corpus.labels_of(askers.places)
    every = [
        Piece((g, panel), name=f"askers {g}, panel {panel}", files=(_part(place, g, panel),))
        for g in range(len(groups))
        for panel in range(grid.panels)
    ]
    left = missing(grid.storage, every)
    asked = dict[int, Any]()
    tokens = np.maximum(scope.texts.tokens, 1)

    def pieces() -> Iterator[Piece]:
        for piece in scope.cluster.ordered(left):
            group, panel = piece.number
            if group not in asked:
                here = askers.places[groups[group]]
                embeddings = askers.scope.embeddings(temperature, here)
                asked[group] = share(Asked(embeddings, np.maximum(askers.layout.tokens[here], 1), labels[groups[group]]))
            span = grid.panel(panel)
            of_panel = _Panel(panel, tokens[bounds[span[0]][0] : bounds[span[-1]][1]], piece.files[0])
            yield piece._replace(arguments=(grid, of_panel, asked[group], variants.fitted))

    for _ in run_tasks(scope.cluster, _search_panel, pieces()):
        pass
    of_groups = [_merged(grid, place, g, len(variants.facts)) for g in range(len(groups))]
    return [
        _Found(
            Nearest(*(np.concatenate([getattr(part.near, name) for part in of]) for name in ("cosine", "label"))),
            np.concatenate([part.sums for part in of]),
        )
        for of in zip(*of_groups, strict=True)
    ]


def _part(place: str, group: int, panel: int) -> str:
    return f"{place}/askers-{group:06d}-panel-{panel:06d}.parquet"


class _Panel(NamedTuple):
    """A panel that is searched."""

    number: int
    tokens: np.ndarray
    """The lengths of its texts."""
    target: str
    """The file of what is found."""


def _search_panel(grid: Tiling, panel: _Panel, asked: Asked, variants: Sequence[Variant]) -> None:
    """Search the texts of one panel by each variant, and write what was found."""
    asking = [variant.queries(asked.embeddings, asked.tokens) for variant in variants]
    exact = [rows.astype(np.float64) for rows in asking]
    near = [Nearest.empty(len(rows), grid.neighbours) for rows in asking]
    sums = [np.zeros((len(rows), grid.intervals)) for rows in asking]
    start = 0
    for number in grid.panel(panel.number):
        block = blocks.read_block(grid, number)
        here = panel.tokens[start : start + len(block)]
        start += len(block)
        rows, columns = _itself(asked.labels, block.labels)
        for v, variant in enumerate(variants):
            held = replace(block, embeddings=variant.documents(block.embeddings, here))
            found = nearest(Block(asking[v], block.interval[:0], asked.labels), [held], grid.neighbours + 1)
            near[v] = near[v].merged(others(found, asked.labels))
            for b in np.unique(held.interval).tolist():
                sums[v][:, b] += exact[v] @ held.embeddings[held.interval == b].sum(0, dtype=np.float64)
            itself = np.einsum("nd,nd->n", exact[v][rows], held.embeddings[columns].astype(np.float64))
            sums[v][rows, held.interval[columns]] -= itself
    table = {
        "cosine": parts.fixed_lists(np.concatenate([one.cosine for one in near])),
        "label": parts.fixed_lists(np.concatenate([one.label for one in near])),
        "sums": parts.fixed_lists(np.concatenate(sums)),
    }
    grid.storage.write_table(panel.target, pa.table(table))


def _itself(asking: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The askers that are among these texts, and where they are."""
    order = np.argsort(labels)
    place = np.minimum(np.searchsorted(labels[order], asking), len(labels) - 1)
    rows = np.flatnonzero(labels[order[place]] == asking)
    return rows, order[place[rows]]


def _merged(grid: Tiling, place: str, group: int, variants: int) -> list[_Found]:
    """What each variant found for a group of askers in all panels, which are merged in their order."""

    def panels() -> Iterator[list[_Found]]:
        for panel in range(grid.panels):
            table = grid.storage.read_table(_part(place, group, panel))
            columns = [parts.matrix(table, name) for name in ("cosine", "label", "sums")]
            of_variants = zip(*(np.split(column, variants) for column in columns), strict=True)
            yield [_Found(Nearest(cosine, label), sums) for cosine, label, sums in of_variants]

    return merge_tree(panels(), lambda left, right: [a.merged(b) for a, b in zip(left, right, strict=True)])


# ---------------------------------------------------------------------------------------------- figures


def _rows(grid: Tiling, askers: _Askers, variants: Sequence[_Fact], found: Sequence[_Found]) -> list[dict[str, Any]]:
    """The rows of `what_if`: of all askers, then by the length of the askers and of the texts that are found."""
    scope = askers.corpus.scope
    edges, found_at = scope.texts.edges, [places(one.near, askers.corpus.order) for one in found]
    key = scope.run.key(scope.model, scope.run.temperatures[0]) | {
        "asked_by": "corpus" if askers.from_corpus else "queries", "k": grid.neighbours
    }  # fmt: skip
    interval, rows = askers.layout.interval[askers.places], list[dict[str, Any]]()
    for v, variant in enumerate(variants):
        kept = shares_kept(found[0].near, found[v].near)
        alike = (found[v].near.cosine * variant.scale >= grid.duplicate).sum(1)
        exposed = _Exposed.of(askers, found_at[0], found_at[v])
        of_variant = key | {"what": variant.what, "vector_bytes": variant.vector_bytes}
        gap = _gap(askers, (found[0], found[v]), (variants[0].scale, variant.scale))
        for b in (None, *range(len(edges))):
            here = np.ones(len(kept), bool) if b is None else interval == b
            if b is not None and not here.any() and np.isnan(exposed.exposure[b]):
                continue
            rows.append(
                of_variant
                | {"by": None if b is None else "length", "group": None if b is None else str(edges[b])}
                | {"askers": int(here.sum()), "near_duplicates": int(alike[here].sum())}
                | mean_kept(kept[here], None if askers.documents is None else askers.documents[here])
                | (exposed.row(b) if b is not None else dict.fromkeys(_EXPOSED))
                | (gap if b is None else dict.fromkeys(gap))
            )
    return rows


_EXPOSED = (
    "exposure", "exposure_se", "exposure_se_superpopulation", "exposure_change", "exposure_change_se_superpopulation",
)  # fmt: skip
"""The columns of `_Exposed`."""


class _Exposed(NamedTuple):
    """Exposure of each length interval by a variant, and how far it is from that by the vectors as they are."""

    exposure: np.ndarray
    within: np.ndarray
    """Its error for these texts."""
    elsewhere: np.ndarray
    """Its error for other texts, or other documents."""
    change: np.ndarray
    change_error: np.ndarray
    """Of the change, for other texts."""

    @classmethod
    def of(cls, askers: _Askers, before: np.ndarray, after: np.ndarray) -> _Exposed:
        """From the places of the nearest texts by the vectors as they are and by a variant."""
        texts = askers.corpus.scope.texts
        intervals = len(texts.edges)
        numbers = askers.places if askers.from_corpus else None
        population = texts.population(len(texts)) if askers.from_corpus else float("inf")
        others, asked = (0, None) if askers.from_corpus else (len(after), askers.documents)
        figures = exposure(
            after, texts.interval, intervals, askers.from_corpus, population=population, documents=texts.documents,
            query_documents=asked, sample=numbers,
        )  # fmt: skip
        units = Units.of(len(texts), others, texts.documents, asked)
        moved = change((before, after), texts.interval, intervals, units, numbers)
        error = np.where(np.isnan(figures.error), np.nan, moved.error)  # Too few documents for one are too few for both.
        return cls(figures.exposure, figures.corrected, figures.error, moved.change, error)

    def row(self, interval: int) -> dict[str, Any]:
        """The columns of one interval."""
        return {name: finite(float(column[interval])) for name, column in zip(_EXPOSED, self, strict=True)}


def mean_kept(values: np.ndarray, documents: np.ndarray | None) -> dict[str, Any]:
    """The mean share of neighbours that stay, and its error for other askers, or askers of other documents."""
    if len(values) < VALUES_FOR_AN_ERROR:
        return {"neighbours_kept": float(values.mean()) if len(values) else None, "neighbours_kept_se": None}
    error = float(values.std(ddof=1)) / len(values) ** 0.5
    if documents is not None:
        error = documents_error([values], [1.0], [documents])
    return {"neighbours_kept": float(values.mean()), "neighbours_kept_se": finite(error)}


def _gap(askers: _Askers, found: tuple[_Found, _Found], scales: tuple[float, float]) -> dict[str, Any]:
    """The collapse gap from the askers' mean similarities with the other texts of their length, and its change.

    Its error is for other texts. An asker's mean counts its own part and that of all N texts: Var = s²·(1/n + 3/N).
    """
    names = ("collapse_gap", "collapse_gap_change", "collapse_gap_change_se_superpopulation")
    texts = askers.corpus.scope.texts.texts_by_interval()
    ends = gap_intervals(texts.tolist())
    interval = askers.layout.interval[askers.places]
    if ends is None or not askers.from_corpus or min((interval == b).sum() for b in ends) < VALUES_FOR_AN_ERROR:
        return dict.fromkeys(names)
    gap, moved, weights, sets, documents = 0.0, 0.0, list[float](), list[np.ndarray](), list[np.ndarray]()
    for sign, b in zip((-1.0, 1.0), ends, strict=True):
        here = interval == b
        old, new = (one.sums[here, b] * scale / (texts[b] - 1) for one, scale in zip(found, scales, strict=True))
        gap, moved = gap + sign * float(new.mean()), moved + sign * float((new - old).mean())
        sets.append(new - old)
        weights.append(sign * (1 + 3 * len(old) / texts[b]) ** 0.5)
        documents.append(np.flatnonzero(here) if askers.documents is None else askers.documents[here])
    if askers.documents is None:
        squares = (w**2 * values.var(ddof=1) / len(values) for w, values in zip(weights, sets, strict=True))
        error = float(sum(squares)) ** 0.5
    else:
        error = documents_error(sets, weights, documents)
    return dict(zip(names, (gap, moved, finite(error)), strict=True))
