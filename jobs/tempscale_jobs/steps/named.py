"""The texts that are found most, what they are, and what is found instead if some of them go.

They are taken from the counts of `exposure`. A task for each panel counts their near-duplicates exactly. Askers that have a
text that goes among their k nearest are searched for again, for as many more neighbours, and all is counted once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tempscale.collapse.aggregates import Block, merge_tree
from tempscale.collapse.cosine import nearest, rounded
from tempscale.collapse.hubs import hub_counts
from tempscale.collapse.neighbours import NOBODY, Nearest
from tempscale_jobs.runs.folder import numbered
from tempscale_jobs.steps import blocks
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.layout import Layout
from tempscale_jobs.steps.neighbours import QUERIES_OF_A_TASK, Labels, others, places
from tempscale_jobs.steps.pieces import of_askers
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.steps.slots import Counted, Graph, count, exposure_rows, largest
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import NAMED_TEXTS, REMOVAL
from tempscale_jobs.workers.dispatch import Piece, missing, results, run_tasks, share

TINY_TOKENS = 8
"""A hub of fewer tokens, special ones included, is tiny."""
ASKERS = 20_000
"""If more texts of a corpus ask, so many of them ask again without the texts that go."""


class Asked(NamedTuple):
    """Some askers and what they found."""

    scope: Embedded
    """Of the texts that ask, or of the queries."""
    places: np.ndarray | None
    """The place of each asker in its layout, by number; None where these are the numbers."""
    graph: Graph
    counted: Counted
    """With the largest number of neighbours."""

    @property
    def asked_by(self) -> str:
        """`corpus` or `queries`."""
        return "corpus" if self.graph.from_corpus else "queries"


def name_texts(corpus: Labels, grid: Tiling, asked: Sequence[Asked], folder: str) -> None:
    """Write `named_texts` and `removal` of one model and temperature; the last askers decide what may go."""
    scope = corpus.scope
    found = [_most(one.counted, scope.texts) for one in asked]
    copies, alike = _near_duplicates(corpus, grid, np.unique(np.concatenate([most.places for most in found])))
    named = [most.named(scope.texts, one.counted, copies) for most, one in zip(found, asked, strict=True)]
    named[-1] = named[-1].with_those_that_go(alike)
    key = scope.run.key(scope.model, scope.run.temperatures[0])
    rows = [row for texts, one in zip(named, asked, strict=True) for row in _rows(texts, one, scope.texts, key)]
    scope.run.storage.write_table(f"{folder}/{NAMED_TEXTS.name}.parquet", NAMED_TEXTS.build_rows(rows))
    gone = np.sort(named[-1].places[named[-1].goes])
    removal = _removal(asked[-1], *_without(corpus, grid, asked[-1], gone), key)
    scope.run.storage.write_table(f"{folder}/{REMOVAL.name}.parquet", REMOVAL.build_rows([*removal]))


# ---------------------------------------------------------------------------------------------- names


class _Named(NamedTuple):
    """The texts that are found most, the most frequent first."""

    places: np.ndarray
    times: np.ndarray
    """How many askers have each among their nearest."""
    hub: np.ndarray
    copies: np.ndarray
    """The near-duplicates of each in the corpus."""
    goes: np.ndarray

    def named(self, texts: Layout, counted: Counted, copies: dict[int, int]) -> _Named:
        """Those that are hubs or have near-duplicates."""
        least = hub_counts(counted.by_text.filled, counted.by_text.texts)[texts.interval[self.places]]
        every = self._replace(hub=self.times >= least, copies=np.array([copies[p] for p in self.places.tolist()], np.int64))
        return _Named(*(column[every.hub | (every.copies > 0)] for column in every))

    def with_those_that_go(self, alike: set[tuple[int, int]]) -> _Named:
        """Decide who goes: hubs, and near-duplicates of a text that is the first of its kind here."""
        first, goes = list[int](), self.hub.copy()
        for k, place in enumerate(self.places.tolist()):
            if any((place, other) in alike for other in first):
                goes[k] = True
            else:
                first.append(place)
        return self._replace(goes=goes)


def _most(counted: Counted, texts: Layout) -> _Named:
    """The texts that most askers have, with nothing known of them yet."""
    order = largest(counted.times, texts.key[counted.most])
    order = order[counted.times[order] > 0]
    nothing = np.zeros(len(order), bool)
    return _Named(counted.most[order], counted.times[order], nothing, np.zeros(len(order), np.int64), nothing)


def _near_duplicates(corpus: Labels, grid: Tiling, of: np.ndarray) -> tuple[dict[int, int], set[tuple[int, int]]]:
    """How many near-duplicates the texts at some places have in the corpus, and which of them are near-duplicates."""
    if not len(of):
        return {}, set()
    embeddings = rounded(corpus.scope.embeddings(corpus.scope.run.temperatures[0], of), grid.precision)
    these = share(Block(embeddings, np.zeros(len(of), np.int64), corpus.labels_of(of)))
    found = results(corpus.scope.cluster, _count_alike, [(grid, p, these) for p in range(grid.panels)], "near-duplicates")
    rows, columns = np.nonzero(embeddings @ embeddings.T >= grid.duplicate)
    pairs = zip(of[rows].tolist(), of[columns].tolist(), strict=True)
    return dict(zip(of.tolist(), sum(found).tolist(), strict=True)), set(pairs)


def _count_alike(grid: Tiling, panel: int, these: Block) -> np.ndarray:
    """How many texts of a panel are near-duplicates of each of these, without itself."""
    total = np.zeros(len(these), np.int64)
    for number in grid.panel(panel):
        block = blocks.read_block(grid, number, grid.precision)
        alike = these.embeddings @ block.embeddings.T >= np.float32(grid.duplicate)
        total += (alike & (these.labels[:, None] != block.labels)).sum(1)
    return total


def _rows(named: _Named, asked: Asked, texts: Layout, key: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of `named_texts` of some askers."""
    ids, tokens = texts.ids[named.places], texts.tokens[named.places]
    for rank, (text_id, length, times, hub, copies, goes) in enumerate(
        zip(ids, tokens.tolist(), *(column.tolist() for column in named[1:]), strict=True), start=1
    ):
        kinds = {"hub": hub, "copy": copies > 0, "tiny": hub and length < TINY_TOKENS}
        yield (
            key
            | {"asked_by": asked.asked_by, "k": asked.counted.k, "rank": rank, "text_id": text_id}
            | {"kinds": ", ".join(kind for kind, is_it in kinds.items() if is_it), "times": times}
            | {"askers": asked.graph.queries, "tokens": length, "near_duplicates": copies, "goes": goes, "excerpt": None}
        )


# ---------------------------------------------------------------------------------------------- without them


class _Counts(NamedTuple):
    """What some askers find among some texts."""

    texts: Layout
    graph: Graph
    counted: Counted

    def rows(self, key: dict[str, Any]) -> dict[int | None, dict[str, Any]]:
        """The rows of `exposure`, by interval."""
        rows = exposure_rows([self.counted], self.graph, self.texts, key)
        return {row["interval"]: row for row in rows}


class _Moved(NamedTuple):
    """What changes when texts go."""

    gone: np.ndarray
    """Their places."""
    met: np.ndarray
    """How many askers have each."""
    left: np.ndarray
    """How many staying askers have each."""
    askers: int
    """Staying askers that have some of them."""


def _without(corpus: Labels, grid: Tiling, asked: Asked, gone: np.ndarray) -> tuple[_Counts, _Counts, _Moved]:
    """What some askers find before and after the texts at these places go."""
    texts, cluster, graph, counted = corpus.scope.texts, corpus.scope.cluster, asked.graph, asked.counted
    if not len(gone):
        same = _Counts(texts, graph, counted)
        return same, same, _Moved(gone, gone, gone, 0)
    sampled = graph.from_corpus and graph.every and graph.queries > ASKERS
    askers = np.sort(texts.sample(ASKERS)) if sampled else None
    parting = share(_Parting(gone, askers, graph.from_corpus))
    looks = results(cluster, _look, [(grid, name, parting) for name in graph.files], "texts that go")
    again = [look.again for look in looks]
    ends = np.cumsum([len(numbers) for numbers in again])
    found = np.split(_search(corpus, grid, asked, np.concatenate(again), gone), ends[:-1])
    if askers is not None:
        graph, nobody = graph._replace(every=False), share(_Parting(gone[:0], askers, True))
        as_they_are = [_NewLists.none(grid.neighbours)] * len(again)
        before = _rewritten(corpus, grid, graph, _Rewriting("before", nobody, as_they_are))
        counted = count(cluster, grid, texts, before)[-1]
    else:
        before = graph
    lists = [*map(_NewLists, again, found)]
    after = _rewritten(corpus, grid, graph, _Rewriting("after", parting, lists))
    left = texts.without(gone)
    moved = _Moved(gone, sum(look.met for look in looks), sum(look.left for look in looks), int(ends[-1]))
    return _Counts(texts, before, counted), _Counts(left, after, count(cluster, grid, left, after)[-1]), moved


def _removal(asked: Asked, before: _Counts, after: _Counts, moved: _Moved, key: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of `removal`: of all texts, then by length."""
    texts, from_queries = before.texts, not before.graph.from_corpus
    first, second, slots = before.rows(key), after.rows(key), before.counted.by_text
    for edge in (None, *first):
        here = slice(None) if edge is None else texts.edges.index(edge)
        gone = np.ones(len(moved.gone), bool) if edge is None else texts.interval[moved.gone] == here
        many, never, removed = int(slots.texts[here].sum()), int(before.counted.never[here].sum()), int(gone.sum())
        times = slots.filled[here].sum() - moved.met[gone].sum(), after.counted.by_text.filled[here].sum()
        means = [float(n / (many - removed)) if many > removed else None for n in times]
        yield (
            key
            | {"asked_by": asked.asked_by, "k": before.counted.k, "interval": edge, "askers": before.graph.queries}
            | {"texts": many, "never": never if from_queries else None}
            | {"never_share": never / many if from_queries else None}
            | {"removed": removed, "slots_moved": int(moved.left[gone].sum())}
            | {"askers_changed": moved.askers if edge is None else None}
            | {"times_before": means[0], "times_after": means[1]}
            | _exposure("before", first.get(edge))
            | _exposure("after", second.get(edge))
        )


def _exposure(when: str, row: dict[str, Any] | None) -> dict[str, Any]:
    """The columns of an exposure, from a row of `exposure`; null of all lengths, and of a length without texts."""
    suffixes = ("", "_se", "_se_superpopulation")
    return {f"exposure_{when}{suffix}": None if row is None else row[f"exposure{suffix}"] for suffix in suffixes}


class _Parting(NamedTuple):
    """The texts that go, and whose lists count."""

    gone: np.ndarray
    """Their places, ascending."""
    askers: np.ndarray | None
    """The numbers of the askers that count, ascending; None: all."""
    from_corpus: bool
    """Whether askers are texts, of which some go."""

    def staying(self, asker: np.ndarray) -> np.ndarray:
        """Whether each of these askers counts and does not go itself."""
        return self.counting(asker) & ~(np.isin(asker, self.gone) & self.from_corpus)

    def counting(self, asker: np.ndarray) -> np.ndarray:
        """Whether each of these askers counts."""
        return np.ones(len(asker), bool) if self.askers is None else np.isin(asker, self.askers)

    def renumbered(self, numbers: np.ndarray) -> np.ndarray:
        """The places of these staying texts among those that stay."""
        return np.where(numbers == NOBODY, NOBODY, numbers - np.searchsorted(self.gone, numbers))


class _Look(NamedTuple):
    """What the texts that go are to the askers of a part."""

    again: np.ndarray
    """The numbers of the staying askers that have some of them among their nearest."""
    met: np.ndarray
    """How many askers have each."""
    left: np.ndarray
    """How many staying askers have each."""


def _look(grid: Tiling, name: str, parting: _Parting) -> _Look:
    """Look through the lists of a part for texts that go."""
    table = grid.storage.read_table(name)
    asker, place = table.column("asker").to_numpy(), parts.matrix(table, "place")
    hit = np.isin(place, parting.gone)
    met, left = (
        np.bincount(np.searchsorted(parting.gone, place[hit & who[:, None]]), minlength=len(parting.gone))
        for who in (parting.counting(asker), parting.staying(asker))
    )
    return _Look(asker[hit.any(1) & parting.staying(asker)], met, left)


class _NewLists(NamedTuple):
    """The new nearest texts of some askers of a part."""

    asker: np.ndarray
    place: np.ndarray

    @classmethod
    def none(cls, k: int) -> _NewLists:
        """Of no asker."""
        return cls(np.zeros(0, np.int32), np.zeros((0, k), np.int32))


class _Rewriting(NamedTuple):
    """How the lists of a graph are written once more."""

    folder: str
    parting: Any
    """A reference to the `_Parting`."""
    new: Sequence[_NewLists]
    """The new lists of each part."""


def _rewritten(corpus: Labels, grid: Tiling, graph: Graph, how: _Rewriting) -> Graph:
    """Write a graph of the askers that count once more: with new lists, without the texts and askers that go."""
    names = [numbered(f"{grid.place}/near/{how.folder}", k) for k in range(len(graph.files))]
    work = [(grid, *each, how.parting) for each in zip(graph.files, names, how.new, strict=True)]
    return graph._replace(files=names, queries=sum(results(corpus.scope.cluster, _rewrite, work, f"lists {how.folder}")))


def _rewrite(grid: Tiling, source: str, target: str, new: _NewLists, parting: _Parting) -> int:
    """Write one part of a graph once more; return the number of its askers."""
    table = grid.storage.read_table(source)
    asker, place = table.column("asker").to_numpy(), parts.matrix(table, "place").copy()
    order = np.argsort(asker)
    place[order[np.searchsorted(asker, new.asker, sorter=order)]] = new.place
    staying = parting.staying(asker)
    asker, place = asker[staying], parting.renumbered(place[staying])
    if parting.from_corpus:
        asker = parting.renumbered(asker)
    columns = {"asker": asker.astype(np.int32), "place": parts.fixed_lists(place.astype(np.int32))}
    grid.storage.write_table(target, parts.found(place.shape[1]).build(columns))
    return len(asker)


# ---------------------------------------------------------------------------------------------- searches


def _search(corpus: Labels, grid: Tiling, asked: Asked, numbers: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """The places of the k nearest texts of these askers without those that go; finished pieces are in files."""
    cluster, asking = corpus.scope.cluster, asked.scope
    groups = of_askers(f"{grid.place}/near/without", len(numbers), QUERIES_OF_A_TASK, grid.panels)
    every = [piece for group in groups for piece in group]
    left, sent = missing(grid.storage, every), dict[int, Any]()
    labels_gone = np.sort(corpus.labels_of(gone))

    def pieces() -> Iterator[Piece]:
        for piece in cluster.ordered(left):
            group, panel = piece.number
            if group not in sent:
                here = numbers[group * QUERIES_OF_A_TASK : (group + 1) * QUERIES_OF_A_TASK]
                at = here if asked.places is None else asked.places[here]
                embeddings = rounded(asking.embeddings(asking.run.temperatures[0], at), grid.precision)
                own = corpus.labels_of(here) if asked.graph.from_corpus else np.full(len(here), NOBODY, np.int32)
                sent[group] = share(Block(embeddings, np.zeros(len(here), np.int64), own))
            yield piece._replace(arguments=(grid, panel, sent[group], labels_gone, piece.files[0]))

    for _ in run_tasks(cluster, _search_panel, pieces()):
        pass
    near = [_merged(grid, group) for group in groups]
    label = np.concatenate([np.zeros((0, grid.neighbours), np.int32), *(one.label for one in near)])
    return places(Nearest(np.zeros(label.shape, np.float32), label), corpus.order)


def _search_panel(grid: Tiling, panel: int, asking: Block, gone: np.ndarray, target: str) -> None:
    """Search the texts of one panel for as many more as go, and write the nearest of those that stay."""
    panel_blocks = (blocks.read_block(grid, number, grid.precision) for number in grid.panel(panel))
    found = others(nearest(asking, panel_blocks, grid.neighbours + len(gone) + 1), asking.labels)
    first = np.argsort(np.isin(found.label, gone), axis=1, kind="stable")[:, : grid.neighbours]
    near = Nearest(np.take_along_axis(found.cosine, first, 1), np.take_along_axis(found.label, first, 1))
    grid.storage.write_table(target, blocks.near_table([near]))


def _merged(grid: Tiling, group: Sequence[Piece]) -> Nearest:
    """The nearest texts of a group of askers in all panels."""
    tables = (grid.storage.read_table(piece.files[0]) for piece in group)
    lists = (Nearest(parts.matrix(table, "cosine"), parts.matrix(table, "label")) for table in tables)
    return merge_tree(lists, Nearest.merged)
