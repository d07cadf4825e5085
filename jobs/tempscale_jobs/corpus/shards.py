"""Read a source into deterministic shards of usable texts, and record every row that is not usable.

Shards depend only on the corpus and the configuration. `shards/index.json` is written last: if it exists, reading is done
and a resumed run does not read the source again.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.audit import Embedding
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.sources import Row, Source
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import SHARDED, numbered
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import REJECTED, SHARDS
from tempscale_jobs.urls import masked

_REJECTED_ROWS = 10_000
_SHORTEST_SHARD_SHARE = 16
Identified = TypeVar("Identified", bound=tuple[Any, ...])


class Text(NamedTuple):
    """A usable text."""

    text_id: str
    text: str
    cut: bool
    document: int | None
    """A digest of the name of its document, if it has one."""


@dataclass
class Counts:
    """The counts of the rows read so far."""

    read: int = 0
    usable: int = 0
    analysed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def rejected(self) -> int:
        """The number of unusable rows."""
        return sum(self.reasons.values())


@dataclass(frozen=True)
class Shard:
    """A file of texts below shards/: the unit of work and of resuming."""

    name: str
    texts: int
    characters: int = 0
    """All of its texts together: what embedding them costs, about."""


@dataclass(frozen=True)
class Reading:
    """The part of shards/index.json that every kind of source has; a subclass adds its counts and, last, its shards."""

    unit: ClassVar[type]
    """The class of an entry of `shards`."""
    source: str
    source_state: dict[str, Any]
    """Sizes and times, or a version, which change when the source changes."""
    fingerprint: str
    """Digest of the ids and contents of the analysed rows."""
    read: int
    rejected: int

    @classmethod
    def earlier(cls, storage: Storage, given: Source, without: str, folder: str = "shards") -> Self | None:
        """The index of an earlier session that read all of the source; otherwise None, and what it left is removed.

        Raises:
            UsageError: the source changed since then.
        """
        if not storage.exists(SHARDED):
            for left in (folder, "rejected"):
                storage.remove(left)
            return None
        data = storage.read_json(SHARDED)
        index = cls(**data | {"shards": tuple(cls.unit(**shard) for shard in data["shards"])})
        sources.check_unchanged(given, without, index.source_state)
        return index

    def kept(self, storage: Storage) -> Self:
        """This index, written: a resumed run does not read the source again."""
        storage.write_json(SHARDED, asdict(self))
        return self

    def facts(self) -> dict[str, Any]:
        """The part of the index that run.json repeats."""
        return {name: value for name, value in asdict(self).items() if name != "shards"}


@dataclass(frozen=True)
class Index(Reading):
    """The result of reading a corpus: shards/index.json."""

    unit: ClassVar[type] = Shard
    usable: int
    """Rows that can be analysed; perhaps only a sample of them is."""
    analysed: int
    rejected_reasons: dict[str, int]
    shards: tuple[Shard, ...]


def shard(
    storage: Storage, corpus: Corpus, sizes: Embedding, seed: int, without: str,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Index:  # fmt: skip
    """Read the corpus and write its shards, if this was not done before.

    Raises:
        UsageError: the source cannot be read, has no usable text, or changed since the run in `without` began.
    """
    if index := Index.earlier(storage, corpus, without):
        return index
    state, counts = sources.state(corpus, without), Counts()
    usable = _usable(sources.rows(corpus, without), corpus, counts, Rejects(storage), on_rows)
    if corpus.sample is not None:
        usable = sampled(usable, corpus.sample, seed)
    digest, shards = hashlib.sha256(), list[Shard]()
    for number, texts in enumerate(_shards(usable, corpus, sizes)):
        name = numbered("shards", number)
        for text, sha in zip(texts, _write(storage, name, texts), strict=True):
            digest.update(f"{len(text.text_id)}:{text.text_id}:{sha}\n".encode())
        shards.append(Shard(name, len(texts), _characters(texts)))
        counts.analysed += len(texts)
    return write_index(storage, corpus, state, counts, digest.hexdigest(), shards)


def write_index(
    storage: Storage, corpus: Corpus, state: dict[str, Any], counts: Counts, fingerprint: str, shards: Sequence[Shard]
) -> Index:
    """Write the index of a corpus that has been read; a corpus without a usable row is a UsageError."""
    reasons = dict(sorted(counts.reasons.items()))
    if counts.analysed == 0:
        raise nothing_usable(corpus, "text" if corpus.embedding_column is None else "embedding", counts.read, reasons)
    return Index(
        masked(corpus.source), state, fingerprint, counts.read, counts.rejected, counts.usable, counts.analysed, reasons,
        tuple(shards),
    ).kept(storage)  # fmt: skip


def nothing_usable(given: Source, what: str, read: int, reasons: dict[str, int]) -> UsageError:
    """The error of a source whose rows were all rejected, or that has none."""
    rejected = ", ".join(f"{count} × {reason}" for reason, count in reasons.items())
    reasons_text = f", all rejected ({rejected})" if rejected else ""
    return UsageError(f"{given.kind} '{masked(given.source)}' has no usable {what}: {read} rows read{reasons_text}")


def preview(corpus: Corpus, size: int, seed: int, without: str) -> tuple[list[str], int]:
    """A seeded sample of the usable texts, in the corpus's order, and the number of all usable texts; writes nothing."""
    counts = Counts()
    usable = _usable(sources.rows(corpus, without), corpus, counts, None, lambda rows: None)
    return [text.text for text in sampled(usable, size, seed)], counts.usable


def _write(storage: Storage, name: str, texts: list[Text]) -> list[str]:
    """Write a shard and return the digests of its texts."""
    shas = [hashlib.sha256(text.text.encode()).hexdigest() for text in texts]
    columns: dict[str, Any] = {"text_id": [t.text_id for t in texts], "text": [t.text for t in texts], "content_sha": shas}
    columns |= {"cut": [t.cut for t in texts], "document": pa.array([t.document for t in texts], pa.int64())}
    storage.write_table(name, SHARDS.build(columns))
    return shas


def regroup(
    storage: Storage, corpus: Corpus, sizes: Embedding, shards: Sequence[Shard], places: np.ndarray, folder: str
) -> tuple[Shard, ...]:
    """Write the texts at some places, each (shard, row), as new shards in `folder`."""

    def chosen() -> Iterator[Text]:
        for shard in np.unique(places[:, 0]).tolist():
            rows = np.sort(places[places[:, 0] == shard, 1])
            table = storage.read_table(shards[shard].name, ["text_id", "text", "cut", "document"]).take(rows)
            yield from (Text(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True))

    found = list[Shard]()
    for number, texts in enumerate(_shards(chosen(), corpus, sizes)):
        found.append(Shard(numbered(folder, number), len(texts), _characters(texts)))
        _write(storage, found[-1].name, texts)
    return tuple(found)


def places_of(storage: Storage, index: Index, ids: set[str]) -> dict[int, list[str]]:
    """The given ids by the number of their shard."""
    found: dict[int, list[str]] = {}
    wanted = pa.array(list(ids), pa.string())
    for number, shard in enumerate(index.shards):
        column = storage.read_table(shard.name, ["text_id"]).column("text_id")
        here = column.filter(pc.is_in(column, wanted)).to_pylist()
        if here:
            found[number] = here
    return found


def texts_of(storage: Storage, index: Index, ids: set[str]) -> dict[str, str]:
    """The texts of the given ids, read from the shards."""
    found: dict[str, str] = {}
    for shard in index.shards:
        table = storage.read_table(shard.name, ["text_id", "text"])
        wanted = pc.is_in(table.column("text_id"), pa.array(list(ids), pa.string()))
        found.update(zip(*(column.to_pylist() for column in table.filter(wanted).columns), strict=True))
    return found


def documents_of(storage: Storage, index: Index, ids: set[str]) -> dict[str, int]:
    """The document of each of these texts, a text without one being its own; empty where none has one."""
    found: dict[str, int | None] = {}
    for shard in index.shards:
        table = storage.read_table(shard.name, ["text_id", "document"])
        wanted = pc.is_in(table.column("text_id"), pa.array(list(ids), pa.string()))
        found.update(zip(*(column.to_pylist() for column in table.filter(wanted).columns), strict=True))
    if all(document is None for document in found.values()):
        return {}
    return {text_id: own_document(text_id) if document is None else document for text_id, document in found.items()}


class Rejects:
    """Collects the rejected rows and writes them to rejected/ in parts."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._rows, self._part = storage, list[dict[str, Any]](), 0

    def add(self, text_id: str | None, place: str, reason: str) -> None:
        """Add a rejected row."""
        self._rows.append({"text_id": text_id, "place": place, "reason": reason})
        if len(self._rows) == _REJECTED_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows since the last part."""
        if self._rows:
            self._storage.write_table(numbered("rejected", self._part), REJECTED.build_rows(self._rows))
            self._rows, self._part = [], self._part + 1


def _usable(
    rows: Iterable[Row], corpus: Corpus, counts: Counts, rejects: Rejects | None, on_rows: Callable[[int], None]
) -> Iterator[Text]:
    """The usable texts among `rows`, cut to the configured length; the other rows are counted and recorded."""
    longest = corpus.max_characters
    for text_id, text, document in usable(rows, corpus.limit, counts, rejects, on_rows, usable_text):
        yield Text(text_id, text[:longest], len(text) > longest, document)


def usable(
    rows: Iterable[Row],
    limit: int | None,
    counts: Counts,
    rejects: Rejects | None,
    on_rows: Callable[[int], None],
    content: Callable[[Any], tuple[Any, str | None]],
) -> Iterator[tuple[str, Any, int | None]]:
    """Ids, contents and documents of the usable rows; the other rows are counted and recorded with a reason.

    `content` turns the value of the text's column into (content, None), or (None, the reason why it is not usable).
    """
    seen: set[bytes] = set()
    for row in rows:
        if limit is not None and counts.read >= limit:
            break
        counts.read += 1
        on_rows(1)
        text_id, reason = identifier(row)
        value, problem = content(row.text)
        document, unnamed = named_document(row.document)
        reason = row.problem or reason or problem or unnamed
        key = hashlib.blake2b((text_id or "").encode("utf-8", "surrogatepass"), digest_size=12).digest()
        if reason is None and key in seen:
            reason = "the id appeared before"
        if reason is not None:
            counts.reasons[reason] += 1
            if rejects is not None:
                rejects.add(text_id, row.place, reason)
            continue
        assert text_id is not None
        seen.add(key)
        counts.usable += 1
        yield text_id, value, None if document is None else digest_of(document)
    if rejects is not None:
        rejects.flush()


def usable_text(text: Any) -> tuple[str | None, str | None]:
    """(text, None), or (None, the reason why it is not usable)."""
    if text is None:
        return None, "the text is null"
    try:
        if isinstance(text, bytes):
            text = text.decode()
        elif isinstance(text, str):
            text.encode()
    except UnicodeError:
        return None, "the text is not valid UTF-8"
    if not isinstance(text, str):
        return None, f"not a text but {type(text).__name__}"
    return (text, None) if text.strip() else (None, "the text is empty")


def identifier(row: Row) -> tuple[str | None, str | None]:
    """(id as a string, None), or (None, the reason); a row without an id gets a digest of its text and place."""
    if row.id is None:
        if isinstance(row.text, (str, bytes)):
            content = row.text if isinstance(row.text, bytes) else row.text.encode("utf-8", "surrogatepass")
            return hashlib.blake2b(content + b"\0" + row.place.encode(), digest_size=12).hexdigest(), None
        return None, None
    return usable_id(row.id)


def usable_id(value: Any) -> tuple[str | None, str | None]:
    """(id as a string, None), or (None, the reason why it is not usable)."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None, f"the id is neither a string nor a whole number but {type(value).__name__}"
    try:
        return str(value).encode().decode(), None
    except UnicodeError:
        return None, "the id is not valid UTF-8"


def named_document(value: Any) -> tuple[str | None, str | None]:
    """(the document's name, or None without one; None), or (None, the reason why the value names no document)."""
    if value is None or (isinstance(value, str) and not value):
        return None, None
    if isinstance(value, float):  # pandas writes whole numbers as floats in a column with gaps.
        if math.isnan(value):
            return None, None
        value = int(value) if value.is_integer() else value
    document, problem = usable_id(value)
    return document, None if problem is None else problem.replace("the id", "the document", 1)


def digest_of(document: str) -> int:
    """The first eight bytes of a digest of a document's name."""
    return int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "big", signed=True)


def own_document(text_id: str) -> int:
    """The document of a text that has no other."""
    return digest_of(f"the text {text_id}")


def sampled(texts: Iterable[Identified], size: int, seed: int) -> Iterator[Identified]:
    """The tuples whose ids (their first entries) have the smallest keyed hashes, in the corpus's order.

    This is a simple random sample, and the same every night.
    """
    keyed = ((keyed_hash(text[0], seed), text[0], order, text) for order, text in enumerate(texts))
    for _, _, _, text in sorted(heapq.nsmallest(size, keyed), key=lambda item: item[2]):
        yield text


def _characters(texts: Sequence[Text]) -> int:
    return sum(len(text.text) for text in texts)


def _shards(texts: Iterable[Text], corpus: Corpus, sizes: Embedding) -> Iterator[list[Text]]:
    """Group consecutive texts into shards, limited in texts and characters; shards are smaller if few texts are wanted."""
    wanted = corpus.sample or corpus.limit
    most = sizes.shard_texts
    if wanted is not None:
        most = min(most, max(1, -(-wanted // _SHORTEST_SHARD_SHARE)))
    current: list[Text] = []
    characters = 0
    for text in texts:
        current.append(text)
        characters += len(text.text)
        if len(current) == most or characters >= sizes.shard_characters:
            yield current
            current, characters = [], 0
    if current:
        yield current
