"""A source becomes deterministic chunks of pairs of usable texts, and a record of every row that gives none.

A column may hold one text or a list of texts, each of which makes a pair with each text of the other column. Texts of
equal content are the same text. Chunks follow from the source and the configuration alone; `shards/index.json` is
written last, and a resumed run does not read the source again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jobs import sources
from jobs.corpus import Rejects, usable_id, usable_text
from jobs.errors import UsageError
from jobs.pairs_config import PairsConfig
from jobs.pairs_schema import CHUNK
from jobs.readers import Columns, Record, utf8_or_bytes
from jobs.runs import SHARDED
from jobs.storage import Storage
from jobs.urls import shown

_ID_CHARACTERS = 24


class Side(NamedTuple):
    """A usable text of a pair. `element` is its place in a list, such as `[2]`, or nothing."""

    text_id: str
    text: str
    content: str
    cut: bool
    element: str


class Pair(NamedTuple):
    """Two usable texts and where they stand."""

    pair_id: str
    place: str
    a: Side
    b: Side


@dataclass
class Counts:
    """What reading found."""

    rows: int = 0
    pairs: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def chunk(storage: Storage, config: PairsConfig, on_rows: Callable[[int], None] = lambda rows: None) -> dict[str, Any]:
    """Read the source once and leave its chunks, unless they are there.

    Returns:
        The index: chunk names with their pairs, counts, the fingerprint of the pairs, and the source's state.

    Raises:
        UsageError: the source cannot be read, gives no pair, or changed since the run began.
    """
    state = sources.state(config.pairs, config.out)
    if storage.exists(SHARDED):
        index: dict[str, Any] = storage.read_json(SHARDED)
        sources.check_unchanged(config.pairs, config.out, index)
        return index
    storage.remove("shards")
    storage.remove("rejected")
    counts, rejects = Counts(), Rejects(storage)
    digest, chunks = hashlib.sha256(), []
    for number, pairs in enumerate(_chunks(_pairs(config, counts, rejects, on_rows), config)):
        name = f"shards/part-{number:05d}.parquet"
        for pair in pairs:
            ids = (pair.pair_id, pair.a.text_id, pair.b.text_id)
            digest.update(f"{'|'.join(f'{len(i)}:{i}' for i in ids)}:{pair.a.content}:{pair.b.content}\n".encode())
        storage.write_table(name, CHUNK.build_rows([_row(counts.pairs + k, pair) for k, pair in enumerate(pairs)]))
        chunks.append({"name": name, "pairs": len(pairs)})
        counts.pairs += len(pairs)
    rejects.flush()
    reasons = dict(sorted(counts.reasons.items()))
    if counts.pairs == 0:
        told = ", ".join(f"{count} × {reason}" for reason, count in reasons.items())
        raise UsageError(
            f"pairs '{shown(config.pairs.source)}' has no usable pair: {counts.rows} rows read"
            + (f", all rejected ({told})" if told else "")
        )
    index = {
        "source": shown(config.pairs.source), "source_state": state, "fingerprint": digest.hexdigest(),
        "read": counts.rows, "rejected": sum(reasons.values()), "rejected_reasons": reasons, "pairs": counts.pairs,
        "shards": chunks,
    }  # fmt: skip
    storage.write_json(SHARDED, index)
    return index


def records(config: PairsConfig) -> Iterator[Record]:
    """The rows of the source, in its order.

    Raises:
        UsageError: as `sources.records`.
    """
    asked = config.pairs
    texts: dict[str, str | None] = {asked.column_a: "--column-a", asked.column_b: "--column-b"}
    yield from sources.records(asked, Columns(texts, {}, dict.fromkeys(("id", "id_a", "id_b"))), config.out)


def _pairs(config: PairsConfig, counts: Counts, rejects: Rejects, on_rows: Callable[[int], None]) -> Iterator[Pair]:
    """The pairs of all rows; what gives none is recorded with a reason and counted."""
    for record in records(config):
        if config.pairs.limit is not None and counts.rows >= config.pairs.limit:
            return
        counts.rows += 1
        on_rows(1)
        own, problem = _own_id(record)

        def reject(element: str, reason: str, own: str | None = own, place: str = record.place) -> None:
            counts.reasons[reason] += 1
            rejects.add(own, f"{place}{element}", reason)

        if record.problem is not None or problem is not None:
            reject("", str(record.problem or problem))
            continue
        first = _sides(record, config.pairs.column_a, "id_a", config.pairs.max_characters, reject)
        if not first:
            continue  # One reason is enough.
        second = _sides(record, config.pairs.column_b, "id_b", config.pairs.max_characters, reject)
        for a in first:
            for b in second:
                element = a.element + b.element
                yield Pair(f"{own or record.place}{element}", f"{record.place}{element}", a, b)


def _own_id(record: Record) -> tuple[str | None, str | None]:
    """(the row's id or None, None), or (None, the reason why it is not usable)."""
    value = utf8_or_bytes(record.values.get("id"))
    return (None, None) if value is None else usable_id(value)


def _sides(
    record: Record, column: str, id_column: str, max_characters: int, reject: Callable[[str, str], None]
) -> list[Side]:
    """The usable texts of one column of a row; the others go to `reject`."""
    content, ids = record.values.get(column), utf8_or_bytes(record.values.get(id_column))
    listed = isinstance(content, list)
    texts: list[Any] = content if isinstance(content, list) else [content]
    if listed and not texts:
        reject("", f"{column}: the list is empty")
    if isinstance(ids, list) and not (listed and len(ids) == len(texts)):
        reject("", f"{id_column}: {len(ids)} ids for {len(texts) if listed else 'one'} of {column}")
        return []
    found = []
    for k, value in enumerate(texts):
        element = f"[{k}]" if listed else ""
        text, reason = usable_text(value)
        own, bad_id = None, None
        given = utf8_or_bytes(ids[k]) if isinstance(ids, list) else ids
        if given is not None:
            own, bad_id = usable_id(given)
        if text is None or bad_id is not None:
            reject(element, f"{column}: {reason}" if text is None else f"{id_column}: {bad_id}")
            continue
        if own is not None and not isinstance(ids, list):
            own += element
        kept = text[:max_characters]
        sha = hashlib.sha256(kept.encode()).hexdigest()
        found.append(Side(own or sha[:_ID_CHARACTERS], kept, sha, len(text) > max_characters, element))
    return found


def _chunks(pairs: Iterator[Pair], config: PairsConfig) -> Iterator[list[Pair]]:
    """Consecutive pairs; a chunk ends with its number of pairs or the characters of its distinct texts."""
    current: list[Pair] = []
    seen: set[str] = set()
    characters = 0
    for pair in pairs:
        current.append(pair)
        for side in (pair.a, pair.b):
            if side.content not in seen:
                seen.add(side.content)
                characters += len(side.text)
        if len(current) == config.pairs.chunk_pairs or characters >= config.pairs.chunk_characters:
            yield current
            current, seen, characters = [], set(), 0
    if current:
        yield current


def _row(number: int, pair: Pair) -> dict[str, Any]:
    row: dict[str, Any] = {"pair": number, "pair_id": pair.pair_id, "place": pair.place}
    for letter, side in (("a", pair.a), ("b", pair.b)):
        row |= {f"text_id_{letter}": side.text_id, f"text_{letter}": side.text}
        row |= {f"content_{letter}": side.content, f"cut_{letter}": side.cut}
    return row
