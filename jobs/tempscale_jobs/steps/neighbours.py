"""Nearest texts: merge those of every text from the tiles, or search the whole corpus for queries.

Both are written twice: as `neighbours`, with ids, and as numbers, which are counted and then removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.collapse.aggregates import Block, Precision, merge_tree
from tempscale.collapse.cosine import nearest, nearest_corrected, rounded
from tempscale.collapse.neighbours import NOBODY, Nearest
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import Run, numbered
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import blocks
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.layout import Layout, rows_of
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import NEIGHBOURS
from tempscale_jobs.workers.dispatch import Piece, later, run_tasks, share

QUERIES_OF_A_TASK = 4096
"""Queries of a task, whose embeddings are in memory next to a block."""


class Names(NamedTuple):
    """The ids of texts by their labels. Only tasks have those of all texts in memory."""

    ids: pa.Array
    """With offsets of 64 bits: the ids of a hundred million texts have more than 2³¹ bytes."""
    labels: np.ndarray | None
    """The labels of these texts, ascending; None for all texts."""

    def of(self, label: np.ndarray) -> pa.Array:
        """The ids of the texts with these labels."""
        places = label if self.labels is None else np.searchsorted(self.labels, label)
        return self.ids.take(pa.array(places)).cast(pa.string())


@dataclass(frozen=True)
class Labels:
    """The texts of a corpus by the labels that tiles use."""

    scope: Embedded
    order: np.ndarray
    """The place in canonical order of each label."""
    every: Any = None
    """A reference to the names of all texts; None if each task receives the names that it needs."""

    @classmethod
    def of(cls, scope: Embedded, temperature: Temperature, all_names: bool) -> Labels:
        """The labels of a scope's texts; with `all_names` a task reads the names of all."""
        order = scope.texts.by_label()
        if not all_names:
            return cls(scope, order)
        files = scope.run.storage.list(scope.run.place("texts", scope.model, temperature))
        return cls(scope, order, later(scope.cluster, names_of_all, scope.run.storage, files, scope.texts.stored[order]))

    def names(self, labels: np.ndarray) -> Any:
        """The names of the texts with these labels, or a reference to those of all texts."""
        if self.every is not None:
            return self.every
        known = labels[labels != NOBODY]
        return Names(pa.array(self.scope.texts.ids[self.order[known]], pa.large_string()), known)

    def labels_of(self, places: np.ndarray) -> np.ndarray:
        """The labels of the texts at these places."""
        rank = np.empty(len(self.order), np.int32)
        rank[self.order] = np.arange(len(self.order), dtype=np.int32)
        return np.asarray(rank[places])


def names_of_all(storage: Storage, files: list[str], stored: np.ndarray) -> Names:
    """The ids of all texts; `stored` is the row of each label in these files."""
    columns = [column.cast(pa.large_string()) for (column,) in storage.columns(files, ["text_id"])]
    ids = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.large_string())
    return Names(ids.take(pa.array(stored)).combine_chunks(), None)


def merge(grid: Tiling, neighbours: str, bounds: list[tuple[int, int]], labels: Labels) -> list[str]:
    """Merge and write the neighbours of every panel's texts; return the parts with numbers. `bounds` are those of blocks."""
    starts, order = [bounds[grid.panel(k)[0]][0] for k in range(grid.panels)], share(labels.order)
    pieces = [
        Piece(k, (grid, _Panel(k, start, neighbours), labels.every, order), f"panel {k}") for k, start in enumerate(starts)
    ]
    for _ in run_tasks(labels.scope.cluster, _merge_panel, pieces):
        pass
    return [grid.found("corpus", k) for k in range(grid.panels)]


class _Panel(NamedTuple):
    """A panel whose neighbours are merged."""

    number: int
    start: int
    """The place of the first of its texts."""
    neighbours: str
    """The folder of the merged neighbours."""


def _merge_panel(grid: Tiling, panel: _Panel, names: Names, order: np.ndarray) -> None:
    """Merge the neighbours of one panel's texts in the order of the grid."""
    number, start, neighbours = panel
    lists = (
        blocks.read_near(grid, number, other, "rows")
        if number <= other
        else blocks.read_near(grid, other, number, "columns")
        for other in range(grid.panels)
    )
    near, written = merge_tree(lists, Nearest.merged), 0
    for block in grid.panel(number):
        ids = grid.storage.read_table(grid.block(block), ["text_id"]).column("text_id").combine_chunks()
        here = slice(written, written + len(ids))
        block_near = Nearest(near.cosine[here], near.label[here])
        grid.storage.write_table(numbered(neighbours, block), _graph(block_near, ids, names))
        written += len(ids)
    _write_found(grid.storage, grid.found("corpus", number), np.arange(start, start + written), near, order)


def _graph(near: Nearest, ids: pa.Array, names: Names) -> pa.Table:
    """The table `neighbours` of some texts."""
    present = near.label != NOBODY
    offsets = pa.array(np.concatenate([[0], np.cumsum(present.sum(1))]), pa.int32())
    columns = {
        "text_id": ids,
        "neighbours": pa.ListArray.from_arrays(offsets, names.of(near.label[present])),
        "cosines": pa.ListArray.from_arrays(offsets, pa.array(near.cosine[present])),
    }
    return NEIGHBOURS.build(columns)


def _write_found(storage: Storage, name: str, asker: np.ndarray, near: Nearest, order: np.ndarray) -> None:
    """Write the places in canonical order of each query's nearest texts."""
    place = places(near, order)
    columns = {"asker": asker.astype(np.int32), "place": parts.fixed_lists(place.astype(np.int32))}
    storage.write_table(name, parts.found(place.shape[1]).build(columns))


def places(near: Nearest, order: np.ndarray) -> np.ndarray:
    """The place in canonical order of each nearest text; `order` has the place of each label."""
    return np.where(near.label == NOBODY, NOBODY, order[np.where(near.label == NOBODY, 0, near.label)])


@dataclass(frozen=True)
class Queries:
    """Queries for their nearest texts of a corpus: texts of the run queries/, or of the corpus itself."""

    run: Run
    layout: Layout
    places: np.ndarray
    """The places of the queries in the layout."""
    numbers: np.ndarray
    """The number of each query: a text's place, or a query's number."""
    from_corpus: bool
    """Whether they are texts of the corpus, which are not their own neighbours."""
    offsets: Sequence[np.ndarray] | None = None
    """The offsets of each block's texts, for a search by corrected similarity; None for one by cosine."""


CORRECTED = "partials/neighbours_corrected"
"""The folder of the nearest texts by corrected similarity."""


class FoundNeighbours(NamedTuple):
    """The nearest texts of some queries."""

    files: list[str]
    """The parts with the numbers of their nearest texts."""
    kept: np.ndarray
    """By corrected similarity: the share of each query's nearest texts that are the same by cosine."""
    interval: np.ndarray
    """The interval of each query."""


def search(temperature: Temperature, grid: Tiling, queries: Queries, corpus: Labels) -> FoundNeighbours:
    """Find and write the nearest texts of some queries in all blocks of the corpus."""
    cluster, model, offsets = corpus.scope.cluster, corpus.scope.model, queries.offsets
    files = queries.run.storage.list(queries.run.place("texts", model, temperature))
    groups = [slice(k, k + QUERIES_OF_A_TASK) for k in range(0, len(queries.places), QUERIES_OF_A_TASK)]
    labels = np.full(len(queries.places), NOBODY, np.int32)
    if queries.from_corpus:
        labels = corpus.labels_of(queries.places)
    embeddings: dict[int, Any] = {}
    """The embeddings of a group of queries, until they were compared with all panels."""
    seen, near = dict.fromkeys(range(len(groups)), 0), dict[int, tuple[Nearest, ...]]()

    def searches() -> Iterator[Piece]:
        """Every group and panel; the embeddings of a group are read for its first panel."""
        for group, panel in cluster.ordered([(g, p) for g in range(len(groups)) for p in range(grid.panels)]):
            if group not in embeddings:
                rows = queries.layout.parts_and_rows(queries.places[groups[group]])
                embeddings[group] = later(
                    cluster, _read, queries.run.storage, files, rows, labels[groups[group]], grid.precision
                )
            subtracted = None if offsets is None else [offsets[number] for number in grid.panel(panel)]
            arguments = (grid, panel, embeddings[group], grid.neighbours + queries.from_corpus, subtracted)
            yield Piece((group, panel), arguments, f"queries {group}, panel {panel}")

    for piece, rankings in run_tasks(cluster, _nearest, searches()):
        group, _ = piece.number
        near[group] = tuple(a.merged(b) for a, b in zip(near[group], rankings, strict=True)) if group in near else rankings
        seen[group] += 1
        if seen[group] == grid.panels:
            del embeddings[group]
    if queries.from_corpus:
        near = {k: tuple(others(ranking, labels[groups[k]]) for ranking in rankings) for k, rankings in near.items()}
    known = np.unique(
        np.concatenate([labels, *(ranking.label.ravel() for rankings in near.values() for ranking in rankings)])
    )
    names, order, name = corpus.names(known), share(corpus.order), "corpus" if queries.from_corpus else "queries"
    folder = queries.run.place("neighbours" if offsets is None else CORRECTED, model, temperature)
    name += "" if offsets is None else "-corrected"

    def answers() -> Iterator[Piece]:
        """Every group."""
        for k in cluster.ordered([*range(len(groups))]):
            here = groups[k]
            ids: Any = labels[here]
            if not queries.from_corpus:
                ids = pa.array(queries.layout.ids[queries.places[here]], pa.string())
            answer = _Answer(ids, queries.numbers[here], near[k][-1])
            places = (queries.run.storage, numbered(folder, k)), (grid.storage, grid.found(name, k))
            yield Piece(k, (answer, *places, names, order), f"answers {k}")

    for _ in run_tasks(cluster, _write_answer, answers()):
        pass
    shares = [np.zeros(0), *(shares_kept(*near[k]) for k in range(len(groups)) if offsets is not None)]
    files = [grid.found(name, k) for k in range(len(groups))]
    return FoundNeighbours(files, np.concatenate(shares), queries.layout.interval[queries.places])


def shares_kept(plain: Nearest, corrected: Nearest) -> np.ndarray:
    """The share of each text's nearest texts that are the same in both lists."""
    present = plain.label != NOBODY
    same = (plain.label[:, :, None] == corrected.label[:, None, :]).any(2) & present
    return np.asarray(same.sum(1) / np.maximum(present.sum(1), 1))


def _read(
    storage: Storage, files: list[str], rows: tuple[np.ndarray, np.ndarray], labels: np.ndarray, precision: Precision
) -> Block:
    """The texts in these rows of these parts, as one side of a tile."""
    embeddings = rounded(rows_of(storage, files, *rows), precision)
    return Block(embeddings, np.zeros(len(labels), np.int64), labels)


def _nearest(grid: Tiling, panel: int, queries: Block, k: int, offsets: list[np.ndarray] | None) -> tuple[Nearest, ...]:
    """The nearest texts of one panel, by cosine and, with offsets, by corrected similarity."""
    panel_blocks = (blocks.read_block(grid, number, grid.precision) for number in grid.panel(panel))
    if offsets is None:
        return (nearest(queries, panel_blocks, k),)
    return nearest_corrected(queries, zip(panel_blocks, offsets, strict=True), k)


def others(near: Nearest, labels: np.ndarray) -> Nearest:
    """The nearest texts without the query itself, or without the farthest if the query is not among them.

    A query that is no text has the label NOBODY.
    """
    itself = (near.label == labels[:, None]) & (labels[:, None] != NOBODY)
    itself[~itself.any(1), -1] = True
    shape = len(near.label), near.label.shape[1] - 1
    return Nearest(near.cosine[~itself].reshape(shape), near.label[~itself].reshape(shape))


class _Answer(NamedTuple):
    """The nearest texts of a group of queries."""

    asked: pa.Array | np.ndarray
    """The ids of the queries, or their labels if they are texts of the corpus."""
    numbers: np.ndarray
    near: Nearest


def _write_answer(
    answer: _Answer, graph: tuple[Storage, str], by_place: tuple[Storage, str], names: Names, order: np.ndarray
) -> None:
    """Write the nearest texts of a group of queries: as a graph with ids, and by place for the counts."""
    ids = names.of(answer.asked) if isinstance(answer.asked, np.ndarray) else answer.asked
    storage, name = graph
    storage.write_table(name, _graph(answer.near, ids, names))
    _write_found(*by_place, answer.numbers, answer.near, order)
