"""A source becomes deterministic shards of usable texts, and a record of every row that is not one.

Shards follow from the corpus and the configuration alone. `shards/index.json` is written last: its presence means that
reading is done, and a resumed run does not read the source again.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs import sources
from jobs.config import AuditConfig
from jobs.errors import UsageError
from jobs.runs import SHARDED
from jobs.schema import REJECTED, SHARDS
from jobs.sources import Row
from jobs.storage import Storage
from jobs.urls import shown
from tempscale.tiles import keyed_hash

_REJECTED_ROWS = 10_000
_SHORTEST_SHARD_SHARE = 16
Identified = TypeVar("Identified", bound=tuple[Any, ...])


class Text(NamedTuple):
    """A usable text."""

    text_id: str
    text: str
    cut: bool


@dataclass
class Counts:
    """What reading found."""

    read: int = 0
    usable: int = 0
    analysed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def rejected(self) -> int:
        """Rows that are not analysed because they are unusable."""
        return sum(self.reasons.values())


def shard(storage: Storage, config: AuditConfig, on_rows: Callable[[int], None] = lambda rows: None) -> dict[str, Any]:
    """Read the corpus once and leave its shards, unless they are there.

    Returns:
        The index: shard names with their rows, counts, the corpus fingerprint, and the source's state.

    Raises:
        UsageError: the source cannot be read, has no usable text, or changed since the run began.
    """
    state = sources.state(config.corpus, config.out)
    if storage.exists(SHARDED):
        index: dict[str, Any] = storage.read_json(SHARDED)
        check_unchanged(config, index)
        return index
    storage.remove("shards")
    storage.remove("rejected")
    counts = Counts()
    usable = _usable(sources.rows(config.corpus, config.out), config, counts, Rejects(storage), on_rows)
    if config.corpus.sample is not None:
        usable = sampled(usable, config.corpus.sample, config.seed)
    digest, shards = hashlib.sha256(), []
    for number, texts in enumerate(_shards(usable, config)):
        name = f"shards/part-{number:05d}.parquet"
        for text, sha in zip(texts, _write(storage, name, texts), strict=True):
            digest.update(f"{len(text.text_id)}:{text.text_id}:{sha}\n".encode())
        shards.append({"name": name, "texts": len(texts)})
        counts.analysed += len(texts)
    index = index_of(config, state, counts, digest.hexdigest(), shards)
    storage.write_json(SHARDED, index)
    return index


def index_of(
    config: AuditConfig, state: dict[str, Any], counts: Counts, fingerprint: str, shards: list[dict[str, Any]]
) -> dict[str, Any]:
    """What is known of a corpus once it has been read.

    Raises:
        UsageError: it has no usable row.
    """
    if counts.analysed == 0:
        reasons = ", ".join(f"{count} × {reason}" for reason, count in sorted(counts.reasons.items()))
        what = "text" if config.corpus.embedding_column is None else "embedding"
        raise UsageError(
            f"{config.corpus.kind} '{shown(config.corpus.source)}' has no usable {what}: {counts.read} rows read"
            + (f", all rejected ({reasons})" if reasons else "")
        )
    return {
        "source": shown(config.corpus.source), "source_state": state, "fingerprint": fingerprint,
        "read": counts.read, "rejected": counts.rejected, "usable": counts.usable, "analysed": counts.analysed,
        "rejected_reasons": dict(sorted(counts.reasons.items())), "shards": shards,
    }  # fmt: skip


def preview(config: AuditConfig, size: int) -> tuple[list[str], int]:
    """A seeded sample of the usable texts, in the corpus's order, and how many there are; leaves nothing behind."""
    counts = Counts()
    usable = _usable(sources.rows(config.corpus, config.out), config, counts, None, lambda rows: None)
    return [text.text for text in sampled(usable, size, config.seed)], counts.usable


def check_unchanged(config: AuditConfig, index: dict[str, Any]) -> None:
    """Raise if the source looks different from when a run read it.

    Raises:
        UsageError: it does.
    """
    sources.check_unchanged(config.corpus, config.out, index)


def _write(storage: Storage, name: str, texts: list[Text]) -> list[str]:
    """Write a shard; the digests of its texts."""
    shas = [hashlib.sha256(text.text.encode()).hexdigest() for text in texts]
    columns = {"text_id": [t.text_id for t in texts], "text": [t.text for t in texts], "content_sha": shas}
    storage.write_table(name, SHARDS.build(columns | {"cut": [t.cut for t in texts]}))
    return shas


def regroup(
    storage: Storage, config: AuditConfig, shards: list[str], places: np.ndarray, folder: str
) -> list[dict[str, Any]]:
    """New shards, below `folder`, of some texts of others.

    Args:
        storage: of the run.
        config: what closes a shard.
        shards: names of the shards.
        places: (shard, row) of each text.

    Returns:
        Names and numbers of texts, as in an index.
    """

    def chosen() -> Iterator[Text]:
        for shard in np.unique(places[:, 0]).tolist():
            rows = np.sort(places[places[:, 0] == shard, 1])
            table = storage.read_table(shards[shard], ["text_id", "text", "cut"]).take(rows)
            yield from (Text(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True))

    found = []
    for number, texts in enumerate(_shards(chosen(), config)):
        name = f"{folder}/part-{number:05d}.parquet"
        _write(storage, name, texts)
        found.append({"name": name, "texts": len(texts)})
    return found


def places_of(storage: Storage, index: dict[str, Any], ids: set[str]) -> dict[int, list[str]]:
    """Which of some ids stand in each shard."""
    found: dict[int, list[str]] = {}
    wanted = pa.array(list(ids), pa.string())
    for number, entry in enumerate(index["shards"]):
        column = storage.read_table(entry["name"], ["text_id"]).column("text_id")
        here = column.filter(pc.is_in(column, wanted)).to_pylist()
        if here:
            found[number] = here
    return found


def texts_of(storage: Storage, index: dict[str, Any], ids: set[str]) -> dict[str, str]:
    """The texts of some ids, from the shards."""
    found: dict[str, str] = {}
    for entry in index["shards"]:
        table = storage.read_table(entry["name"], ["text_id", "text"])
        wanted = pc.is_in(table.column("text_id"), pa.array(list(ids), pa.string()))
        found.update(zip(*(column.to_pylist() for column in table.filter(wanted).columns), strict=True))
    return found


class Rejects:
    """Rows not analysed, on their way to rejected/."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._rows, self._part = storage, list[dict[str, Any]](), 0

    def add(self, text_id: str | None, place: str, reason: str) -> None:
        """Record a row."""
        self._rows.append({"text_id": text_id, "place": place, "reason": reason})
        if len(self._rows) == _REJECTED_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what was recorded since the last part."""
        if self._rows:
            self._storage.write_table(f"rejected/part-{self._part:05d}.parquet", REJECTED.build_rows(self._rows))
            self._rows, self._part = [], self._part + 1


def _usable(
    rows: Iterable[Row], config: AuditConfig, counts: Counts, rejects: Rejects | None, on_rows: Callable[[int], None]
) -> Iterator[Text]:
    """The usable texts among rows; the others are recorded with a reason and counted."""
    longest = config.corpus.max_characters
    for text_id, text in usable(rows, config, counts, rejects, on_rows, usable_text):
        yield Text(text_id, text[:longest], len(text) > longest)


def usable(
    rows: Iterable[Row],
    config: AuditConfig,
    counts: Counts,
    rejects: Rejects | None,
    on_rows: Callable[[int], None],
    content: Callable[[Any], tuple[Any, str | None]],
) -> Iterator[tuple[str, Any]]:
    """Ids and contents of the usable rows; the others are recorded with a reason and counted.

    Args:
        rows: as read.
        config: how many to read.
        counts: counts them.
        rejects: records those that are not usable.
        on_rows: told each row.
        content: (content of what stands in the text's column, None), or (None, the reason why it is not usable).
    """
    seen: set[bytes] = set()
    for row in rows:
        if config.corpus.limit is not None and counts.read >= config.corpus.limit:
            break
        counts.read += 1
        on_rows(1)
        text_id, reason = identifier(row)
        value, problem = content(row.text)
        reason = row.problem or reason or problem
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
        yield text_id, value
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
    """(id as a string, None), or (None, the reason); without an id, a digest of the text and its place."""
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


def sampled(texts: Iterable[Identified], size: int, seed: int) -> Iterator[Identified]:
    """Those whose ids have the smallest keyed hashes, in the corpus's order: a simple random sample, the same every night.

    Args:
        texts: tuples that begin with an id.
        size: how many to draw.
        seed: of the hash.
    """
    keyed = ((keyed_hash(text[0], seed), text[0], order, text) for order, text in enumerate(texts))
    for _, _, _, text in sorted(heapq.nsmallest(size, keyed), key=lambda item: item[2]):
        yield text


def _shards(texts: Iterable[Text], config: AuditConfig) -> Iterator[list[Text]]:
    """Consecutive texts, a shard closed by its number of texts or characters, smaller where few texts are wanted."""
    wanted = config.corpus.sample or config.corpus.limit
    most = config.embedding.shard_texts
    if wanted is not None:
        most = min(most, max(1, -(-wanted // _SHORTEST_SHARD_SHARE)))
    current: list[Text] = []
    characters = 0
    for text in texts:
        current.append(text)
        characters += len(text.text)
        if len(current) == most or characters >= config.embedding.shard_characters:
            yield current
            current, characters = [], 0
    if current:
        yield current
