"""The usable texts of a corpus, in shards that one task can embed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale_jobs.config.audit import Embedding
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.readers import Columns
from tempscale_jobs.corpus.rows import Counts, Rejects, own_document, usable, usable_text
from tempscale_jobs.corpus.units import Unit, records
from tempscale_jobs.runs.folder import numbered_in
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import SHARDS, with_groups

_SHORTEST_SHARD_SHARE = 16
_FIRST_SHARD_FRACTION, _GROWTH_FRACTION = 8, 16
"""A corpus begins with shards of 1/8 of the full size at most, and of 1/16 of all texts before."""


class Text(NamedTuple):
    """A usable text."""

    text_id: str
    text: str
    cut: bool
    document: int | None
    """A digest of the name of its document, if it has one."""
    groups: Sequence[str | None] = ()
    """Its values of the columns whose values are groups."""
    source_row: int | None = None
    """Its place in the source, if its shard has only some of the source's texts."""
    place: str = ""
    digest: bytes = b""
    copy: bool = False
    """See `rows.Usable`."""


def enough(most: int, before: int) -> int:
    """The characters that end a shard after `before` characters: fewer at first, so that all workers get work early."""
    # In still smaller shards the texts of a micro-batch would differ more in length, and be padded more.
    return min(most, max(1, most // _FIRST_SHARD_FRACTION, before // _GROWTH_FRACTION))


def most_texts(corpus: Corpus, sizes: Embedding) -> int:
    """The most texts of a shard: fewer than configured if otherwise some workers would have none."""
    requested = corpus.sample or corpus.limit
    return sizes.shard_texts if requested is None else min(sizes.shard_texts, max(1, -(-requested // _SHORTEST_SHARD_SHARE)))


class TextShards:
    """The texts of a corpus, grouped into shards by `sizes`."""

    folder, what = "shards", "text"

    def __init__(self, corpus: Corpus, sizes: Embedding, run_folder: str, by: Sequence[str] = ()) -> None:
        self.corpus, self._sizes, self._run_folder, self._by = corpus, sizes, run_folder, by
        self.read = ["text_id", "text", "cut", "document", *(["groups"] if by else [])]
        """The columns of a shard that `items_of` reads."""

    @property
    def columns(self) -> Columns:
        """The columns that are read."""
        return sources.columns_of(self.corpus, by=self._by)

    width: int | None = None
    """Texts have no dimensions."""

    def begin(self, width: int | None) -> int | None:
        """Nothing: texts are read the same in all units."""
        return None

    def agrees(self, widths: Iterable[tuple[int, int]]) -> bool:
        """Yes: texts have no dimensions to agree on."""
        return True

    def items(self, unit: Unit, counts: Counts, rejects: Rejects | None) -> Iterator[Text]:
        """The usable texts of a unit, cut to the configured length."""
        longest = self.corpus.max_characters
        rows = sources.rows_of(self.corpus, records(self.corpus, unit, self.columns, self._run_folder), self._by)
        for row in usable(rows, unit.limit, counts, rejects, usable_text):
            text, cut = row.content[:longest], len(row.content) > longest
            yield Text(row.text_id, text, cut, row.document, row.groups, None, row.place, row.digest, row.copy)

    def grouped(self, items: Iterable[Text], begins: bool = False) -> Iterator[list[Text]]:
        """Consecutive texts in shards, limited in texts and characters; a corpus `begins` with smaller ones."""
        most, largest = most_texts(self.corpus, self._sizes), self._sizes.shard_characters
        current: list[Text] = []
        characters = before = 0
        for text in items:
            current.append(text)
            characters += len(text.text)
            if len(current) == most or characters >= (enough(largest, before) if begins else largest):
                yield current
                current, characters, before = [], 0, before + characters
        if current:
            yield current

    def table(self, items: Sequence[Text]) -> pa.Table:
        """The table of a shard."""
        shas = [hashlib.sha256(text.text.encode()).hexdigest() for text in items]
        columns: dict[str, Any] = {
            "text_id": [t.text_id for t in items],
            "text": [t.text for t in items],
            "content_sha": shas,
        }
        columns |= {"cut": [t.cut for t in items], "document": pa.array([t.document for t in items], pa.int64())}
        columns |= {"source_row": pa.array([t.source_row for t in items], pa.int64())}
        if not self._by:
            return SHARDS.build(columns)
        return with_groups(SHARDS).build(columns | {"groups": [t.groups for t in items]})

    def items_of(self, table: pa.Table) -> Iterator[Text]:
        """The texts of a shard."""
        return (Text(*row) for row in zip(*(column.to_pylist() for column in table.select(self.read).columns), strict=True))

    def characters(self, items: Sequence[Text]) -> int:
        """The characters of all these texts."""
        return sum(len(text.text) for text in items)


def source_row(shard: int, row: int | np.ndarray) -> Any:
    """The place of a text in the source, from the number of its shard and its row there."""
    return (shard << 32) + row


def rewritten(
    storage: Storage, contents: TextShards, rows: dict[str, np.ndarray], folder: str, first: int
) -> list[tuple[str, int, int]]:
    """Write the rows numbered in `rows`, by shard, as new shards in `folder`; return each name, texts and characters."""
    chosen = (
        text._replace(source_row=source_row(number, row))
        for number, (name, indices) in enumerate(rows.items(), first)
        for row, text in zip(
            indices.tolist(), contents.items_of(storage.read_table(name, contents.read).take(indices)), strict=True
        )
    )
    written = []
    for number, texts in enumerate(contents.grouped(chosen)):
        written.append((numbered_in(folder, first, number), len(texts), contents.characters(texts)))
        storage.write_table(written[-1][0], contents.table(texts))
    return written


def places_of(storage: Storage, index: Index, ids: set[str]) -> dict[int, list[str]]:
    """These ids, by the number of their shard."""
    ids_by_shard: dict[int, list[str]] = {}
    id_array = pa.array(list(ids), pa.string())
    for number, shard in enumerate(index.shards):
        column = storage.read_table(shard.name, ["text_id"]).column("text_id")
        present = column.filter(pc.is_in(column, id_array)).to_pylist()
        if present:
            ids_by_shard[number] = present
    return ids_by_shard


def texts_of(storage: Storage, index: Index, ids: set[str]) -> dict[str, str]:
    """The texts of the given ids, read from the shards."""
    text_by_id: dict[str, str] = {}
    id_array = pa.array(list(ids), pa.string())
    for names, texts in storage.columns([shard.name for shard in index.shards], ["text_id", "text"]):
        mask = pc.is_in(names, id_array)
        text_by_id.update(zip(names.filter(mask).to_pylist(), texts.filter(mask).to_pylist(), strict=True))
    return text_by_id


def documents_of(storage: Storage, index: Index, ids: set[str]) -> dict[str, int]:
    """The document of each of these texts, or the text itself without one; empty if none has a document."""
    document_by_id: dict[str, int | None] = {}
    for shard in index.shards:
        table = storage.read_table(shard.name, ["text_id", "document"])
        mask = pc.is_in(table.column("text_id"), pa.array(list(ids), pa.string()))
        document_by_id.update(zip(*(column.to_pylist() for column in table.filter(mask).columns), strict=True))
    if all(document is None for document in document_by_id.values()):
        return {}
    return {text_id: own_document(text_id) if document is None else document for text_id, document in document_by_id.items()}
