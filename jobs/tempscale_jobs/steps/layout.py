"""The embedded texts of a model in canonical order, (length interval, place in the source), and their rows in texts/.

The driver has a few bytes of each text in memory, and reads ids only when they are needed. Samples and ties use keyed hashes
of the ids, so both are the same for any order of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tempscale.collapse.length import interval_of
from tempscale.stats.errors import finite_population
from tempscale.stats.sample import keyed_hash
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.rows import own_document
from tempscale_jobs.corpus.shards import source_row
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.grouping import Grouping, digests
from tempscale_jobs.tables import parts
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import results

PARTS_OF_A_TASK = 32
"""Parts of texts/ that one task reads."""
AT_ONCE = 1 << 20
"""Texts that are searched together."""


class Ids(Protocol):
    """The ids of texts by their places."""

    def __getitem__(self, places: Any) -> np.ndarray:
        """The ids at these places, an array of objects."""


@dataclass(frozen=True)
class Layout:
    """One entry for each text, in canonical order; the same under every temperature."""

    ids: Ids
    key: np.ndarray
    """The keyed hash of each id under `seed`, uint64."""
    tokens: np.ndarray
    """Int32."""
    interval: np.ndarray
    """Int16."""
    stored: np.ndarray
    """The number of each text in texts/, counted over all parts; uint32."""
    starts: np.ndarray
    """The number of the first text of each part of texts/, and last that of all texts."""
    edges: tuple[int, ...]
    corpus_texts: int
    """Usable texts of the corpus; these texts may be a sample."""
    seed: int = 0
    documents: np.ndarray | None = None
    """A digest of the document of each text; None if no text has one."""
    source: np.ndarray | None = None
    """The shard and row of each text; None if part k of texts/ is of shard k."""
    groupings: tuple[Grouping, ...] = ()
    """The groups of the texts by each column of --by."""

    def __len__(self) -> int:
        return len(self.key)

    @property
    def pairs(self) -> int:
        """The number of pairs of texts."""
        return len(self) * (len(self) - 1) // 2

    def are_distinct(self) -> bool:
        """Whether no text occurs twice."""
        keys = np.sort(self.key)
        repeated = keys[1:][keys[1:] == keys[:-1]]
        if not len(repeated):
            return True
        ids = self.ids[np.flatnonzero(np.isin(self.key, repeated))].tolist()  # Two ids may have one hash.
        return len(set(ids)) == len(ids)

    def places(self, ids: Iterable[str]) -> np.ndarray:
        """The place of each of these texts, in this order; a KeyError if one is missing."""
        text_ids = list(ids)
        where = self.where(text_ids)
        return np.array([where[text_id] for text_id in text_ids], dtype=np.int64)

    def where(self, ids: Iterable[str]) -> dict[str, int]:
        """The place of each of these texts that the layout has."""
        of_key: dict[int, list[str]] = {}
        for text_id in dict.fromkeys(ids):
            of_key.setdefault(keyed_hash(text_id, self.seed), []).append(text_id)
        hashes = np.sort(np.array(list(of_key), dtype=np.uint64))
        if not len(hashes):
            return {}
        matches = []
        for start in range(0, len(self), AT_ONCE):
            keys = self.key[start : start + AT_ONCE]
            nearest = np.minimum(np.searchsorted(hashes, keys), len(hashes) - 1)
            matches.append(start + np.flatnonzero(hashes[nearest] == keys))
        places = np.concatenate([*matches, np.zeros(0, np.int64)])
        if len(places) <= len(of_key) and all(len(text_ids) == 1 for text_ids in of_key.values()):
            return {of_key[key][0]: place for key, place in zip(self.key[places].tolist(), places.tolist(), strict=True)}
        asked = {text_id for text_ids in of_key.values() for text_id in text_ids}  # Ids of one hash: compare the ids.
        return {i: place for i, place in zip(self.ids[places].tolist(), places.tolist(), strict=True) if i in asked}

    def places_of_keys(self, keys: np.ndarray) -> np.ndarray:
        """The place of the text with each of these keyed hashes; −1 where there is none."""
        asked, inverse = np.unique(keys, return_inverse=True)
        places = np.full(len(asked), -1, np.int64)
        for start in range(0, len(self) if len(asked) else 0, AT_ONCE):
            here = self.key[start : start + AT_ONCE]
            nearest = np.minimum(np.searchsorted(asked, here), len(asked) - 1)
            known = np.flatnonzero(asked[nearest] == here)
            places[nearest[known]] = start + known
        return places[inverse].reshape(keys.shape)

    def sample(self, size: int, among: np.ndarray | None = None) -> np.ndarray:
        """The places of the texts of smallest keyed hash, ascending by it, of all or `among` some: see `seeded_sample`."""
        keys = self.key if among is None else self.key[among]
        if size < len(keys):
            least = np.flatnonzero(keys <= np.partition(keys, size - 1)[size - 1]) if size else np.zeros(0, np.int64)
        else:
            least = np.arange(len(keys))
        chosen = least[np.argsort(keys[least], kind="stable")][:size]
        return chosen if among is None else among[chosen]

    def by_label(self) -> np.ndarray:
        """The places of all texts, int32, ascending by keyed hash; a text's rank in this order is its label."""
        return np.argsort(self.key, kind="stable").astype(np.int32)

    def texts_by_interval(self) -> np.ndarray:
        """Texts in each interval."""
        return np.bincount(self.interval, minlength=len(self.edges))

    def parts_and_rows(self, places: Any) -> tuple[np.ndarray, np.ndarray]:
        """The parts of texts/ that have the texts at some places, and the rows in them."""
        return _parts_and_rows(self.stored[places], self.starts)

    def shards_of(self, places: np.ndarray) -> np.ndarray:
        """The numbers of the shards that have the texts at some places."""
        if self.source is None:
            return self.parts_and_rows(places)[0]
        return np.asarray(self.source[places] // source_row(1, 0))

    def within(self, index: Index, ids: Iterable[str]) -> Index:
        """The index with only those shards that have some of these texts."""
        places = np.array([*self.where(ids).values()], dtype=np.int64)
        return replace(index, shards=tuple(index.shards[k] for k in np.unique(self.shards_of(places)).tolist()))

    def without(self, places: np.ndarray) -> Layout:
        """The layout of a corpus that has all texts but those at these places."""
        kept = np.delete(np.arange(len(self), dtype=np.int32), places)
        return Layout(
            _Some(self.ids, kept), self.key[kept], self.tokens[kept], self.interval[kept], self.stored[kept], self.starts,
            self.edges, self.corpus_texts - len(places), self.seed,
            None if self.documents is None else self.documents[kept], None if self.source is None else self.source[kept],
        )  # fmt: skip

    def documents_of(self, places: np.ndarray) -> pa.Array:
        """The documents of the texts at these places, as a column; null without documents."""
        return pa.nulls(len(places), pa.int64()) if self.documents is None else pa.array(self.documents[places])

    @property
    def correction(self) -> float:
        """The finite-population factor of errors of these texts' means; 0 if they are the whole corpus."""
        return finite_population(len(self), self.population(len(self)))

    def population(self, texts: float) -> float:
        """The number of texts of the corpus that `texts` of these represent, in proportion."""
        return texts * max(1.0, self.corpus_texts / max(1, len(self)))


@dataclass(frozen=True)
class _Stored:
    """Ids, or the values of another column, that are in texts/."""

    storage: Storage
    names: list[str]
    stored: np.ndarray
    starts: np.ndarray
    column: str = "text_id"

    def __getitem__(self, places: Any) -> np.ndarray:
        part, row = _parts_and_rows(self.stored[places], self.starts)
        cells = np.empty(len(part), dtype=object)
        used = np.unique(part).tolist()
        for number, (column,) in zip(used, self.storage.columns([self.names[k] for k in used], [self.column]), strict=True):
            here = np.flatnonzero(part == number)
            for place, cell in zip(here.tolist(), column.take(pa.array(row[here])).to_pylist(), strict=True):
                cells[place] = cell
        return cells


@dataclass(frozen=True)
class _Some:
    """The ids of some of the texts of another layout."""

    ids: Ids
    kept: np.ndarray

    def __getitem__(self, places: Any) -> np.ndarray:
        return self.ids[self.kept[places]]


def _parts_and_rows(stored: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The parts and the rows in them of texts with these numbers."""
    number = stored.astype(np.int64)
    part = np.searchsorted(starts, number, side="right") - 1
    return part, number - starts[part]


def column(run: Run, model: Model, temperature: Temperature, layout: Layout, name: str) -> np.ndarray:
    """A column of texts/ in canonical order."""
    names = run.storage.list(run.place("texts", model, temperature))
    return np.asarray(run.storage.arrays(names, [name], len(layout))[0][layout.stored])


def rows_of(storage: Storage, names: list[str], part: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The embeddings in these rows of these parts, in this order."""
    embeddings: np.ndarray | None = None
    used = np.unique(part).tolist()
    places = [np.flatnonzero(part == number) for number in used]
    tables = storage.taken([names[k] for k in used], ["embedding"], [row[here] for here in places])
    for here, table in zip(places, tables, strict=True):
        matrix = parts.matrix(table, "embedding")
        embeddings = np.empty((len(part), matrix.shape[1]), dtype=np.float32) if embeddings is None else embeddings
        embeddings[here] = matrix
    assert embeddings is not None, "there is at least one text"
    return embeddings


class Order(NamedTuple):
    """The settings of a layout."""

    edges: tuple[int, ...]
    """Lower edges of the length intervals."""
    seed: int
    corpus_texts: int = 0
    """Usable texts of the corpus."""
    by: tuple[str, ...] = ()
    """The columns of --by."""
    groupings: tuple[Grouping, ...] = ()
    """For queries: the groups of the corpus's texts."""


def of_queries(texts: Layout) -> Order:
    """The settings of the layout of queries of these texts."""
    return Order(texts.edges, texts.seed, 0, tuple(grouping.by for grouping in texts.groupings), texts.groupings)


def layout(run: Run, cluster: Cluster, model: Model, order: Order) -> Layout:
    """Sort the texts in the parts of the first temperature by length; tasks read the parts."""
    edges, seed = order.edges, order.seed
    names = run.storage.list(run.place("texts", model, run.temperatures[0]))
    groups = [names[k : k + PARTS_OF_A_TASK] for k in range(0, len(names), PARTS_OF_A_TASK)]
    looks = of_each(cluster, _look, [(run.storage, group, order._replace(groupings=())) for group in groups])
    starts = np.concatenate([[0], np.cumsum([count for look in looks for count in look.texts])])
    tokens = np.concatenate([look.tokens for look in looks])
    interval = interval_of(tokens, edges).astype(np.int16)
    source, nonempty = None, [look for look in looks if len(look.tokens)]
    if any(look.source is not None for look in nonempty):  # Merge parts from the cache and others in the source's order.
        source = np.concatenate([look.source for look in nonempty])
        stored = np.lexsort((source, interval)).astype(np.uint32)
    else:
        stored = np.concatenate([np.flatnonzero(interval == a).astype(np.uint32) for a in range(len(edges))])
    documents = None
    if any(look.documents is not None for look in looks):
        without = [k for k, look in enumerate(looks) if look.documents is None]
        arguments = [(run.storage, groups[k]) for k in without]
        own = dict(zip(without, of_each(cluster, _own_documents, arguments), strict=True))
        documents = np.concatenate([own.get(k, look.documents) for k, look in enumerate(looks)])[stored]
    key = np.concatenate([look.key for look in looks])[stored]
    groupings = tuple[Grouping, ...]()
    if order.by and len(stored):
        columns = np.concatenate([look.groups for look in looks])[stored].T
        groupings = tuple(known.of_queries(column) for known, column in zip(order.groupings, columns, strict=False))
        if not groupings:
            values = _Stored(run.storage, names, stored, starts, "groups")
            groupings = tuple(Grouping.of(by, columns[k], values, k) for k, by in enumerate(order.by))
    return Layout(
        _Stored(run.storage, names, stored, starts), key, tokens[stored], interval[stored], stored, starts, edges,
        order.corpus_texts, seed, documents, None if source is None else source[stored], groupings,
    )  # fmt: skip


def of_each(cluster: Cluster, function: Callable[..., Any], work: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of a function for each of these arguments: of one in this process, of several by tasks."""
    if len(work) > 1:
        return results(cluster, function, work, "parts of texts")
    return [function(*arguments) for arguments in work]


class _Look(NamedTuple):
    """The columns of some parts of texts/ that a layout needs, one entry for each text."""

    texts: list[int]
    """The number of texts of each part."""
    tokens: np.ndarray
    key: np.ndarray
    documents: np.ndarray | None
    source: np.ndarray | None
    groups: np.ndarray
    """The digests of its values of the columns of --by, (text, column)."""


def _look(storage: Storage, names: list[str], order: Order) -> _Look:
    read = ["text_id", "tokens", "document", "source_row", *(["groups"] if order.by else [])]
    tables = [storage.read_table(name, read) for name in names]
    whole = pa.concat_tables(tables)
    ids = whole.column("text_id").to_pylist()
    key = np.array([keyed_hash(text_id, order.seed) for text_id in ids], dtype=np.uint64)
    counts = [table.num_rows for table in tables]
    rows = whole.column("source_row")
    source = None if rows.null_count else rows.to_numpy()  # Of no rows none is null.
    documents = documents_of([whole.column("document")], ids)
    groups = digests(whole.column("groups"), len(order.by)) if order.by else np.zeros((len(ids), 0), np.int64)
    return _Look(counts, whole.column("tokens").to_numpy(), key, documents, source, groups)


def _own_documents(storage: Storage, names: list[str]) -> np.ndarray:
    """A document for each text of some parts in which no text has one: the text itself."""
    ids = (text_id for name in names for text_id in storage.read_table(name, ["text_id"]).column("text_id").to_pylist())
    return np.array([own_document(text_id) for text_id in ids], dtype=np.int64)


def documents_of(columns: Sequence[pa.ChunkedArray], ids: Sequence[str]) -> np.ndarray | None:
    """`filled_documents` of the columns `document` of texts/; None if no text has a document."""
    digests = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.int64())
    return None if digests.null_count == len(digests) else filled_documents(digests, pa.array(ids, pa.string()))


def filled_documents(digests: pa.ChunkedArray, ids: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The document of each text; a text without one is a document itself."""
    missing = digests.is_null().to_numpy()
    documents = np.zeros(len(digests), dtype=np.int64)
    documents[~missing] = digests.drop_null().to_numpy()
    documents[missing] = [own_document(text_id) for text_id in ids.filter(pa.array(missing)).to_pylist()]
    return documents
