"""What would change: which nearest texts a variant of the vectors keeps, which lengths fill its results, and what it costs.

A sample of the texts, or of the queries, asks for its nearest texts by the vectors as they are and by each variant of them,
always among all texts, and exactly. See `tempscale.correction.variants`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from threadpoolctl import threadpool_limits

from tempscale.collapse.aggregates import Block, merge_tree
from tempscale.collapse.cosine import nearest
from tempscale.collapse.neighbours import NOBODY, Nearest
from tempscale.correction.variant_names import by_model, chunks_of, embeds_again, group_columns, temperature_of
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import Model, Run, dimensions, is_whole
from tempscale_jobs.steps import blocks, cut_texts, other_models
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.by_length import FITTED
from tempscale_jobs.steps.cosine import gather
from tempscale_jobs.steps.layout import Layout, layout, of_queries
from tempscale_jobs.steps.neighbours import Labels, others, shares_kept
from tempscale_jobs.steps.pieces import of_askers
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.steps.what_if_tables import Askers, Fact, Found, Result, rows
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import WHAT_IF, WHAT_IF_THRESHOLDS
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


def is_done(run: Run, model: Model) -> bool:
    """Whether all files of this step exist."""
    return is_whole(run.storage, f"{run.place(PLACE, model, run.temperatures[0])}/done.json")


def measure(scope: Embedded, queries: Run | None) -> None:
    """Write the rows of `what_if` and `what_if_thresholds` of one model, under its first temperature."""
    analysis, first = scope.analysis, scope.run.temperatures[0]
    if not analysis.what_if or is_done(scope.run, scope.model):
        return
    with scope.journal.stage(scope.named("what if")) as stage:
        askers = _askers(scope, queries)
        variants = _fitted(scope, askers, [AS_IT_IS, *(what for what in analysis.what_if if not embeds_again(what))])
        as_it_is = _Variants(later(scope.cluster, _first, variants.fitted), variants.facts[:1])
        found = dict(zip(variants.facts, _search(scope, first, askers, variants), strict=True))
        for what in analysis.what_if:
            if (tau := temperature_of(what)) is not None:
                (found[as_it_is.facts[0]._replace(what=what)],) = _search(scope, Temperature.of(tau), askers, as_it_is)
        before = found[as_it_is.facts[0]]
        measured = {
            fact.what: Result(fact, askers, of_variant, before, shares_kept(before.near, of_variant.near))
            for fact, of_variant in found.items()
        }
        whole = _Whole(askers, before, as_it_is)
        for what in analysis.what_if:
            if chunks_of(what) is not None:
                measured[what] = _by_chunks(whole, what, queries)
        carried = list[dict[str, Any]]()
        for what, model in other_models.asked(scope).items():
            other = other_models.embedded(scope, model)
            measured[what] = _by_model(whole, other, queries)
            carried += other_models.thresholds(scope, other)
            scope.run.storage.remove(scope.run.place(PLACE, model))  # The next of the run's models may have other askers.
        results_of = [measured[what] for what in (AS_IT_IS, *analysis.what_if)]
        place = scope.run.place(PLACE, scope.model, first)
        tables = {
            f"{place}/what_if.parquet": WHAT_IF.build_rows([row for result in results_of for row in rows(scope, result)]),
            f"{place}/what_if_thresholds.parquet": WHAT_IF_THRESHOLDS.build_rows(carried),
        }
        for name, table in tables.items():
            scope.run.storage.write_table(name, table)
        scope.run.storage.write_json(f"{place}/done.json", {"files": [*tables]})
        for temperature in scope.run.temperatures:
            scope.run.storage.remove(f"{scope.run.place(PLACE, scope.model, temperature)}/found")
        for what in analysis.what_if:
            if chunks_of(what) is not None:
                cut_texts.forget(scope, what)
        who = "texts" if askers.from_corpus else "queries"
        stage.note = f"{count(len(measured) - 1, 'variant')}, asked by {len(askers.places):,} {who}"


def _askers(scope: Embedded, queries: Run | None) -> Askers:
    """The queries, or a sample of the texts where there are none."""
    texts, most = scope.texts, scope.analysis.exposure_sample
    corpus = Labels.of(scope, scope.run.temperatures[0], all_names=False)
    if queries is None:
        return Askers(scope, np.sort(texts.sample(most)), corpus, True)
    asking = layout(queries, scope.cluster, scope.model, of_queries(texts))
    return Askers(replace(scope, run=queries, texts=asking), np.sort(asking.sample(most)), corpus, False)


# ---------------------------------------------------------------------------------------------- variants


class _Groups(NamedTuple):
    """The groups of some texts by one column."""

    by: str
    names: tuple[str, ...]
    code: np.ndarray

    @classmethod
    def of(cls, texts: Layout, what: Sequence[str], places: Any) -> list[_Groups]:
        """Those of the texts at some places, by each column that some variants depend on."""
        columns = {column for name in what if name for column in group_columns(name)}
        return [cls(own.by, own.names, own.code[places]) for own in texts.groupings if own.by in columns]


def _named(groups: Sequence[_Groups], places: slice = slice(None)) -> dict[str, list[str]]:
    """The name of each text's group, by column."""
    return {own.by: [own.names[code] for code in own.code[places].tolist()] for own in groups}


class _Variants(NamedTuple):
    """The vectors as they are, then each variant."""

    fitted: Any
    """A reference to the fitted ones: with them this process would import torch, which takes 150 MB."""
    facts: list[Fact]


def _fitted(scope: Embedded, askers: Askers, what: Sequence[str]) -> _Variants:
    """Some variants, fitted to a sample of the texts and of the queries at the first temperature."""
    temperature, sample = scope.run.temperatures[0], scope.texts.sample(FITTED)
    asking = None
    if not askers.from_corpus:
        asked = askers.layout.sample(FITTED)
        asking = askers.scope.embeddings(temperature, asked), np.maximum(askers.layout.tokens[asked], 1)
    texts = scope.embeddings(temperature, sample), np.maximum(scope.texts.tokens[sample], 1)
    fitted = later(scope.cluster, _fit, what, texts, _Groups.of(scope.texts, what, sample), asking)
    (facts,) = results(scope.cluster, _facts, [(fitted,)], "variants")
    return _Variants(fitted, facts)


def _fit(
    what: Sequence[str],
    texts: tuple[np.ndarray, np.ndarray],
    groups: Sequence[_Groups],
    queries: tuple[np.ndarray, np.ndarray] | None,
) -> list[Variant]:
    """Some variants of vectors with these lengths and groups."""
    import torch

    from tempscale.correction.variants import Variant

    asking = (None, None) if queries is None else tuple(map(torch.tensor, queries))
    with threadpool_limits(1):  # So that all workers give the same bytes.
        named = _named(groups)
        return [Variant.fitted(name, *map(torch.tensor, texts), *asking, groups=named) for name in what]


def _first(variants: Sequence[Variant]) -> list[Variant]:
    return [*variants[:1]]


def _facts(variants: Sequence[Variant]) -> list[Fact]:
    return [Fact(variant.what, variant.vector_bytes, variant.scale) for variant in variants]


# ---------------------------------------------------------------------------------------------- searches


def _search(scope: Embedded, temperature: Temperature, askers: Askers, variants: _Variants) -> list[Found]:
    """Search the embeddings of one temperature by some variants; finished pieces are in files."""
    grid, bounds = blocks.tiling(scope, temperature)
    place = f"{scope.run.place(PLACE, scope.model, temperature)}/found"
    groups = of_askers(place, len(askers.places), ASKERS_OF_A_TASK, grid.panels)
    labels = np.full(len(askers.places), NOBODY, np.int32)
    if askers.from_corpus:
        labels = askers.corpus.labels_of(askers.places)
    left = missing(grid.storage, [piece for group in groups for piece in group])
    asked = dict[int, Any]()
    tokens, what = np.maximum(scope.texts.tokens, 1), [fact.what for fact in variants.facts]

    def pieces() -> Iterator[Piece]:
        for piece in scope.cluster.ordered(left):
            group, panel = piece.number
            if group not in asked:
                numbers = slice(group * ASKERS_OF_A_TASK, (group + 1) * ASKERS_OF_A_TASK)
                here = askers.places[numbers]
                embeddings = askers.scope.embeddings(temperature, here)
                asked[group] = share(Asked(embeddings, np.maximum(askers.layout.tokens[here], 1), labels[numbers]))
            span = grid.panel(panel)
            texts = slice(bounds[span[0]][0], bounds[span[-1]][1])
            of_panel = _Panel(panel, tokens[texts], _Groups.of(scope.texts, what, texts), piece.files[0])
            yield piece._replace(arguments=(grid, of_panel, asked[group], variants.fitted))

    for _ in run_tasks(scope.cluster, _search_panel, pieces()):
        pass
    of_groups = [_merged(grid, group, len(variants.facts)) for group in groups]
    return [
        Found(
            Nearest(*(np.concatenate([getattr(part.near, name) for part in of]) for name in ("cosine", "label"))),
            np.concatenate([part.sums for part in of]),
        )
        for of in zip(*of_groups, strict=True)
    ]


class _Panel(NamedTuple):
    """A panel that is searched."""

    number: int
    tokens: np.ndarray
    """The lengths of its texts."""
    groups: list[_Groups]
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
        texts = slice(start, start + len(block))
        here, groups = panel.tokens[texts], _named(panel.groups, texts)
        start += len(block)
        rows, columns = _itself(asked.labels, block.labels)
        for v, variant in enumerate(variants):
            held = replace(block, embeddings=variant.documents(block.embeddings, here, groups))
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


def _merged(grid: Tiling, group: Sequence[Piece], variants: int) -> list[Found]:
    """What each variant found for a group of askers in all panels, which are merged in their order."""

    def panels() -> Iterator[list[Found]]:
        for piece in group:
            table = grid.storage.read_table(piece.files[0])
            columns = [parts.matrix(table, name) for name in ("cosine", "label", "sums")]
            of_variants = zip(*(np.split(column, variants) for column in columns), strict=True)
            yield [Found(Nearest(cosine, label), sums) for cosine, label, sums in of_variants]

    return merge_tree(panels(), lambda left, right: [a.merged(b) for a, b in zip(left, right, strict=True)])


# ---------------------------------------------------------------------------------------------- other vectors of the texts


class _Whole(NamedTuple):
    """The vectors as they are."""

    askers: Askers
    found: Found
    variant: _Variants
    """The one that changes nothing."""


def _by_chunks(whole: _Whole, what: str, queries: Run | None) -> Result:
    """Search the chunks of the texts."""
    scope = whole.askers.corpus.scope
    chunks = cut_texts.embedded(scope, what)
    askers = _askers(chunks, queries)
    fact = whole.variant.facts[0]._replace(what=what)
    result = Result(fact, askers, _search_again(whole, askers))
    if askers.from_corpus:
        return result  # Other askers: chunks, not texts.
    near = _in_whole_texts(whole, result, cut_texts.owner)
    kept = shares_kept(whole.found.near, near)
    texts_found = np.mean([len(np.unique(row[row != NOBODY])) for row in near.label])
    return result._replace(kept=kept, texts_found=float(texts_found))


def _by_model(whole: _Whole, other: Embedded, queries: Run | None) -> Result:
    """Search the texts by another model's vectors: the same askers, except those that it rejects."""
    askers, same = _same_askers(whole.askers, _askers(other, queries))
    width = dimensions(other.run, other.model, other.run.temperatures[0])
    fact = whole.variant.facts[0]._replace(what=by_model(other.model.label), vector_bytes=4.0 * width)
    result = Result(fact, askers, _search_again(whole, askers))
    before = Nearest(whole.found.near.cosine[same], whole.found.near.label[same])
    return result._replace(kept=shares_kept(before, _in_whole_texts(whole, result, str)))


def _same_askers(ours: Askers, theirs: Askers) -> tuple[Askers, list[int]]:
    """Our askers as another model embedded them, except those that it rejects, and which of ours they are."""
    ids = ours.layout.ids[ours.places].tolist()
    where = theirs.layout.where(ids)
    known = sorted((where[text_id], k) for k, text_id in enumerate(ids) if text_id in where)
    return replace(theirs, places=np.array([place for place, _ in known], np.int64)), [k for _, k in known]


def _search_again(whole: _Whole, askers: Askers) -> Found:
    """What these askers find among other vectors of the texts."""
    scope = askers.corpus.scope
    temperature = scope.run.temperatures[0]
    grid, bounds = blocks.tiling(scope, temperature)
    names = scope.run.storage.list(scope.run.place("texts", scope.model, temperature))
    gather(scope.cluster, grid, names, bounds, scope.texts)
    (found,) = _search(scope, temperature, askers, whole.variant)
    return found


def _in_whole_texts(whole: _Whole, result: Result, owner: Callable[[str], str]) -> Nearest:
    """What was found, with the labels that its texts have among the vectors as they are; NOBODY for another."""
    ours, theirs, near = whole.askers.corpus, result.askers.corpus, result.found.near
    present = near.label != NOBODY
    needed, back = np.unique(theirs.order[near.label[present]], return_inverse=True)
    names = [owner(text_id) for text_id in theirs.scope.texts.ids[needed]]
    where = ours.scope.texts.where(names)
    known = [name in where for name in names]
    labels = np.full(len(names), NOBODY, np.int32)
    labels[known] = ours.labels_of(np.array([where[name] for name in names if name in where], np.int64))
    label = np.full_like(near.label, NOBODY)
    label[present] = labels[back]
    return replace(near, label=label)
