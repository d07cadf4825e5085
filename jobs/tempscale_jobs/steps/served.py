"""Served results: how many of the exact nearest texts an index returns for the queries, of which lengths, and which never.

The exact nearest texts are those that `exposure` found under the first temperature. Only numbers of each result are in the
driver's memory: places of texts, ranks and cosines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.collapse.aggregates import Precision
from tempscale.collapse.cosine import rounded
from tempscale.stats.enough import VALUES_FOR_AN_ERROR
from tempscale.stats.errors import documents_error
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.corpus.results import Rows, row_at
from tempscale_jobs.report.text import count, share_with_error
from tempscale_jobs.runs.folder import Run, dimensions, is_whole, numbered
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.grouping import NOWHERE
from tempscale_jobs.steps.layout import Layout, Order, layout, rows_of
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables.audit import OF_QUERIES, OF_TEXTS, SERVED_MISSED, SERVED_RECALL
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers.dispatch import Piece, missing, results, run_tasks

PLACE = "partials/served"
"""The folder of this step's files."""
PAIRS_OF_A_TASK = 16_384
"""Pairs of a query and a served text whose cosines one task computes."""
MISSED_TEXTS = 100
"""The most rows of `served_missed`."""
_COUNTS_OF_QUERIES, _COUNTS_OF_TEXTS = ("without_results", "fewer_results"), ("exact_texts", "never_served")
"""Columns of `served_recall` that are null where a group is of texts, and where it is of queries."""
_NO_TEXT = -1
"""The place of a text that the corpus does not have, and that of an empty rank."""


def done_name(scope: Embedded) -> str:
    """The last file of this step, with its counts."""
    return f"{_place(scope)}/done.json"


def _place(scope: Embedded) -> str:
    return scope.run.place(PLACE, scope.model, scope.run.temperatures[0])


def compare(scope: Embedded, queries: Run | None) -> None:
    """Write the rows of `served_recall` and `served_missed` of one model, under its first temperature."""
    storage = scope.run.storage
    if scope.config.results is None or queries is None or is_whole(storage, done_name(scope)):
        return
    with scope.journal.stage(scope.named("served results")) as stage:
        order = Order(scope.texts.edges, scope.texts.seed)
        asking = replace(scope, run=queries, texts=layout(queries, scope.cluster, scope.model, order))
        exact, table = _exact(asking, scope.texts), scope.run.below("results").storage
        rows = Rows.read(table)
        served = _Served.of(rows, scope.texts, exact)
        found = _Comparison(scope, asking, exact, served, _cosines(scope, asking, exact, served))
        names = [f"{_place(scope)}/{name}.parquet" for name in ("served_recall", "served_missed")]
        recall = found.recall()
        storage.write_table(names[0], SERVED_RECALL.build_rows(recall))
        storage.write_table(names[1], SERVED_MISSED.build_rows(found.missed()))
        unknown = {
            "queries": _unknown(table, rows.query, asking.texts.places_of_keys(rows.query), "query_id"),
            "texts": _unknown(table, rows.text, served.text, "text_id"),
        }
        whole = {name: value for name, value in recall[-1].items() if name not in {"by", "group", *found.key}}
        storage.write_json(done_name(scope), {"files": names, "facts": whole | {"unknown": unknown}})
        storage.remove(f"{_place(scope)}/cosines")
        recall_in_words = share_with_error(whole["recall"], whole["recall_se"])
        stage.note = f"recall {recall_in_words} of {count(whole['exact'], 'exact nearest text')}"
        for kind, ids in unknown.items():
            stage.note += f"; {ids['ids']:,} of {ids['of']:,} ids of {kind} unknown" if ids["ids"] else ""


def _unknown(table: Storage, keys: np.ndarray, places: np.ndarray, column: str) -> dict[str, Any]:
    """How many distinct ids of a column are not known, of how many, and the first."""
    unknown = np.flatnonzero(places == _NO_TEXT)
    first = row_at(table, int(unknown[0]))[column] if len(unknown) else None
    return {"ids": len(np.unique(keys[unknown])), "of": len(np.unique(keys)), "first": first}


# ---------------------------------------------------------------------------------------------- both lists


class _Exact(NamedTuple):
    """The exact nearest texts of the queries that were compared with the corpus."""

    asker: np.ndarray
    """The place of each query in its layout."""
    key: np.ndarray
    """The keyed hash of its id."""
    place: np.ndarray
    """The places of its k nearest texts (queries, k)."""
    cosine: np.ndarray
    """Float64."""


def _exact(asking: Embedded, texts: Layout) -> _Exact:
    """The stored nearest texts of all queries."""
    run = asking.run
    files = run.storage.list(run.place("neighbours", asking.model, run.temperatures[0]))
    work = [(run.storage, name, texts.seed) for name in files]
    columns = zip(*results(asking.cluster, _lists, work, "nearest texts of queries"), strict=True)
    key, near, cosine = (np.concatenate(column) for column in columns)
    return _Exact(asking.texts.places_of_keys(key), key, texts.places_of_keys(near), cosine)


def _lists(storage: Storage, name: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The keyed hashes of some queries and of their nearest texts, and the cosines of these."""
    table = storage.read_table(name)
    key, near = (
        np.array([keyed_hash(text_id, seed) for text_id in ids.to_pylist()], np.uint64)
        for ids in (table.column("text_id"), table.column("neighbours").combine_chunks().flatten())
    )
    cosine = table.column("cosines").combine_chunks().flatten().to_numpy().astype(np.float64)
    return key, near.reshape(len(key), -1), cosine.reshape(len(key), -1)


class _Served(NamedTuple):
    """The served texts."""

    text: np.ndarray
    """The place of the text of each row."""
    rank: np.ndarray
    """The rank of each row among those of its query, from 0."""
    first: np.ndarray
    """The places of the first k texts of each compared query, by rank (queries, k)."""
    texts: np.ndarray
    """How many of them each compared query has."""

    @classmethod
    def of(cls, rows: Rows, texts: Layout, exact: _Exact) -> _Served:
        """The served texts of the queries with exact lists, of which as many count as these lists have."""
        queries, k = exact.place.shape
        text = texts.places_of_keys(rows.text)
        order, number = np.lexsort((rows.rank, rows.query)), np.arange(len(text))
        query = rows.query[order]
        begins = np.concatenate([[True], query[1:] != query[:-1]])
        rank = np.empty(len(text), np.int64)
        rank[order] = number - np.maximum.accumulate(np.where(begins, number, 0))
        by_key = np.argsort(exact.key)
        place = by_key[np.minimum(np.searchsorted(exact.key, rows.query, sorter=by_key), queries - 1)]
        counted = (exact.key[place] == rows.query) & (rank < k)
        first = np.full((queries, k), _NO_TEXT, np.int64)
        first[place[counted], rank[counted]] = text[counted]
        return cls(text, rank, first, np.bincount(place[counted], minlength=queries))


def _pairs(place: np.ndarray, texts: int) -> np.ndarray:
    """A number for each query and text; −1 without a text."""
    return np.where(place == _NO_TEXT, -1, np.arange(len(place))[:, None] * texts + place)


# ---------------------------------------------------------------------------------------------- cosines of served texts


def _cosines(scope: Embedded, asking: Embedded, exact: _Exact, served: _Served) -> np.ndarray:
    """The exact cosine of each of the first served texts (queries, k), float64; −∞ where there is no text."""
    listed, asked = (_pairs(place, len(scope.texts)) for place in (exact.place, served.first))
    order = np.argsort(listed, axis=None)
    place = np.minimum(np.searchsorted(listed.ravel(), asked, sorter=order), len(order) - 1)
    is_listed = listed.ravel()[order[place]] == asked
    cosine = np.where(is_listed, exact.cosine.ravel()[order[place]], -np.inf)
    query, rank = np.nonzero(~is_listed & (served.first != _NO_TEXT))
    if len(query):
        by_part = np.argsort(scope.texts.stored[served.first[query, rank]], kind="stable")  # So each part is read once.
        query, rank = query[by_part], rank[by_part]
        cosine[query, rank] = _computed(scope, asking, served.first[query, rank], exact.asker[query])
    return cosine


def _computed(scope: Embedded, asking: Embedded, texts: np.ndarray, askers: np.ndarray) -> np.ndarray:
    """The cosine of each of these texts with a query, both named by their places; finished pieces are in files."""
    storage = scope.run.storage
    every = [
        Piece(k, name=f"cosines {k}", files=(numbered(f"{_place(scope)}/cosines", k),))
        for k in range(-(-len(texts) // PAIRS_OF_A_TASK))
    ]
    sides = [(side, side.run.storage.list(side.run.place("texts", side.model, side.run.temperatures[0]))) for side in
             (scope, asking)]  # fmt: skip

    def pieces() -> Iterator[Piece]:
        for piece in missing(storage, every):
            here = slice(piece.number * PAIRS_OF_A_TASK, (piece.number + 1) * PAIRS_OF_A_TASK)
            rows = [
                _Rows.of(side, names, places[here]) for (side, names), places in zip(sides, (texts, askers), strict=True)
            ]
            yield piece._replace(arguments=(*rows, scope.analysis.cosine_precision, storage, piece.files[0]))

    for _ in run_tasks(scope.cluster, _write_cosines, pieces()):
        pass
    return storage.arrays([piece.files[0] for piece in every], ["cosine"], len(texts))[0]


class _Rows(NamedTuple):
    """Where the embeddings of some texts are."""

    storage: Storage
    names: list[str]
    part: np.ndarray
    row: np.ndarray

    @classmethod
    def of(cls, scope: Embedded, names: list[str], places: np.ndarray) -> _Rows:
        """Those of texts at some places; `names` are the parts of texts/."""
        part, row = scope.texts.parts_and_rows(places)
        used, part = np.unique(part, return_inverse=True)
        return cls(scope.run.storage, [names[k] for k in used.tolist()], part, row)


def _write_cosines(texts: _Rows, queries: _Rows, precision: Precision, storage: Storage, name: str) -> None:
    """Write the cosine of each text with its query."""
    sides = [rounded(rows_of(*side), precision) for side in (texts, queries)]
    cosine = np.einsum("nd,nd->n", *sides, dtype=np.float64)
    storage.write_table(name, pa.table({"cosine": cosine}))


# ---------------------------------------------------------------------------------------------- figures


def returned(exact: np.ndarray, is_served: np.ndarray, others: np.ndarray, rounding: float) -> np.ndarray:
    """How much of each exact nearest text a query gets, from 0 to 1 (queries, k); its mean is the recall.

    A text counts as 1 where it is served. Where several texts are as near as the k-th, it is arbitrary which of them are in
    the exact list: each other served text that is so near fills the place of one of them that is not served.

    Args:
        exact: the cosines of the k nearest texts, the largest first.
        is_served: whether each of them is among the first k served.
        others: how many other texts among these are as near as the k-th.
        rounding: by how much equal cosines may differ.
    """
    is_open = (exact <= exact[:, -1:] + rounding) & ~is_served
    places = is_open.sum(1)
    filled = np.minimum(others, places) / np.maximum(places, 1)
    return np.asarray(is_served + is_open * filled[:, None])


@dataclass(frozen=True)
class _Comparison:
    """Exact and served lists."""

    scope: Embedded
    asking: Embedded
    exact: _Exact
    served: _Served
    cosine: np.ndarray
    """Of the first served texts (queries, k)."""

    @property
    def k(self) -> int:
        """The length of both lists."""
        return int(self.exact.place.shape[1])

    @property
    def has_results(self) -> np.ndarray:
        """Whether each query has results."""
        return np.asarray(self.served.texts > 0)

    @property
    def key(self) -> dict[str, Any]:
        """The columns of model and temperature."""
        return self.scope.run.key(self.scope.model, self.scope.run.temperatures[0])

    @cached_property
    def rounding(self) -> float:
        """Twice the usual error of a cosine in float32, u·√d: equal cosines may differ by so much."""
        dim = dimensions(self.scope.run, self.scope.model, self.scope.run.temperatures[0])
        return 2 * float(dim**0.5) * 2.0**-24

    def returned(self, k: int) -> np.ndarray:
        """`returned` of the first k texts of both lists."""
        exact, served = (_pairs(place[:, :k], len(self.scope.texts)) for place in (self.exact.place, self.served.first))
        near = self.exact.cosine[:, :k]
        others = (self.cosine[:, :k] >= near[:, -1:] - self.rounding) & ~np.isin(served, exact, kind="sort")
        return returned(near, np.isin(exact, served, kind="sort"), others.sum(1), self.rounding)

    def never_served(self, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The places of texts that queries miss and no query is served, and how many queries miss each."""
        k = part.shape[1]
        is_missed = self.has_results[:, None] & (part < 1)
        places, times = np.unique(self.exact.place[:, :k][is_missed], return_counts=True)
        never = ~np.isin(places, self.served.text[self.served.rank < k], kind="sort")
        return places[never], times[never]

    def recall(self) -> list[dict[str, Any]]:
        """The rows of `served_recall`: for the nearest text alone and for all k, by length and group, and, last, of all."""
        rows = list[dict[str, Any]]()
        for k in sorted({1, self.k}):
            part = self.returned(k)
            never, _ = self.never_served(part)
            for by, name, among in self._groups(k):
                of_group = {"by": by, "group": name, "k": k}
                counts = self._counts_of_queries(among) if by in (None, OF_QUERIES) else dict.fromkeys(_COUNTS_OF_QUERIES)
                counts |= self._counts_of_texts(never, among) if by != OF_QUERIES else dict.fromkeys(_COUNTS_OF_TEXTS)
                rows.append(self.key | of_group | counts | self._recall(part, among))
        return rows

    def _groups(self, k: int) -> Iterator[tuple[str | None, str | None, np.ndarray]]:
        """What recall is by, the name of each group, and which of the k nearest texts of each query are of it; all, last."""
        edges, nearest, asker = self.scope.texts.edges, self.exact.place[:, :k], self.asking.texts.interval[self.exact.asker]
        if self.asking.texts.tokens.max() > 1:  # Embeddings of queries may come without: see `corpus.vectors`.
            for b in np.unique(asker).tolist():
                yield OF_QUERIES, str(edges[b]), np.repeat((asker == b)[:, None], k, axis=1)
        found = self.scope.texts.interval[nearest]
        for b in np.unique(found).tolist():
            yield OF_TEXTS, str(edges[b]), found == b
        for own in self.scope.texts.groupings:
            code = own.code[nearest]
            for b in np.unique(code[code != NOWHERE]).tolist():
                yield own.by, own.names[b], code == b
        yield None, None, np.ones_like(nearest, bool)

    def _counts_of_queries(self, among: np.ndarray) -> dict[str, Any]:
        """How many of the queries of a group have no results, or few."""
        asks = among.any(1)
        few = self.has_results & (self.served.texts < among.shape[1])
        return dict(zip(_COUNTS_OF_QUERIES, (int((asks & ~self.has_results).sum()), int((asks & few).sum())), strict=True))

    def _counts_of_texts(self, never: np.ndarray, among: np.ndarray) -> dict[str, Any]:
        """How many different texts a group of exact nearest texts has, and how many of them are `never` served."""
        texts = np.unique(self.exact.place[:, : among.shape[1]][among & self.has_results[:, None]])
        lost = np.isin(never, texts, kind="sort")
        return dict(zip(_COUNTS_OF_TEXTS, (len(texts), int(lost.sum())), strict=True))

    def _recall(self, part: np.ndarray, among: np.ndarray) -> dict[str, Any]:
        """How many of a group of exact nearest texts are returned to the queries that have results."""
        values, whole = ((column * among)[self.has_results].sum(1) for column in (part, np.ones_like(part)))
        asks, documents = whole > 0, self.asking.texts.documents
        if not asks.any():
            return {"queries": 0, "exact": 0, "recall": None, "recall_se": None, "difference_se": None}
        of_queries = None if documents is None else documents[self.exact.asker[self.has_results]]
        error = _error(_linear(values[asks], whole[asks]), None if of_queries is None else of_queries[asks])
        every = part[self.has_results].sum(1), np.full(len(whole), float(part.shape[1]))
        difference = None if error is None or among.all() else _error(_linear(values, whole) - _linear(*every), of_queries)
        counts = {"queries": int(asks.sum()), "exact": int(whole.sum()), "recall": float(values.sum() / whole.sum())}
        return counts | {"recall_se": error, "difference_se": difference}

    def missed(self) -> list[dict[str, Any]]:
        """The rows of `served_missed`."""
        texts, (places, times) = self.scope.texts, self.never_served(self.returned(self.k))
        most = np.lexsort((texts.key[places], -times))[:MISSED_TEXTS]
        most = most[times[most] > 1]
        served = self.served.text[np.isin(self.served.text, places[most], kind="sort")]
        named = zip(texts.ids[places[most]], places[most].tolist(), times[most].tolist(), strict=True)
        return [
            self.key
            | {"text_id": text_id, "tokens": int(texts.tokens[place])}
            | {"exact_times": number, "served_times": int((served == place).sum())}
            for text_id, place, number in named
        ]


def _linear(values: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """By how much each query moves Σ values / Σ whole, to first order, times the number of queries; the mean is 0."""
    return np.asarray((values - values.sum() / whole.sum() * whole) / whole.mean())


def _error(values: np.ndarray, documents: np.ndarray | None) -> float | None:
    """The standard error of a mean over queries, or over their documents."""
    if len(values) < VALUES_FOR_AN_ERROR:
        return None
    if documents is not None:
        return finite(documents_error([values], [1.0], [documents]))
    return float(values.std(ddof=1) / len(values) ** 0.5)
