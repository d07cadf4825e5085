"""Decide which rows of a source are usable, and record every row that is not.

A usable row has an id that no earlier row has, and a content, such as a text, that can be analysed.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from numbers import Integral, Real
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import numpy as np

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.corpus.readers import SixteenBytes, Unreadable, utf8_or_bytes
from tempscale_jobs.corpus.sources import NO_COLUMN, Row, Source
from tempscale_jobs.errors import UsageError
from tempscale_jobs.report.text import share as percent
from tempscale_jobs.runs.folder import numbered_in
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import REJECTED
from tempscale_jobs.urls import masked

REPEATED = "the id appeared before"
"""The reason why a row is rejected whose id an earlier usable row has."""
ID_BYTES = 12
_NO_DIGEST = bytes(ID_BYTES)
"""The digest of no id, with probability 1 − 2⁻⁹⁶."""
NO_GROUP = "(none)"
"""The group of the texts whose value is null or empty."""
REJECTED_ROWS = 10_000
_EXACT_FLOATS = 2**53
_DIGITS = 80
"""More than a number of 256 bits has."""
_REASONS_SHOWN = 3
_UNMENTIONED_SHARE = 0.05


class Limited(Source, Protocol):
    """A source that says how many of its rows may be rejected."""

    @property
    def max_rejected(self) -> float:
        """The largest share of its rows."""


class Usable(NamedTuple):
    """A usable row."""

    text_id: str
    content: Any
    document: int | None
    """A digest of the name of its document, if it has one."""
    groups: tuple[str | None, ...]
    """Its values of the columns whose values are groups; None where its source lacks one."""
    place: str
    digest: bytes
    """The digest of its id or, without an id, of its content: see `is_of_content`."""
    copy: bool
    """Whether it has no id, and an earlier row without one has its content."""


class Drawn(Protocol):
    """A row that a sample may take."""

    text_id: str
    digest: bytes
    copy: bool


Identified = TypeVar("Identified", bound=Drawn)


@dataclass
class Counts:
    """The counts of the rows read so far."""

    read: int = 0
    usable: int = 0
    unnamed: int = 0
    """Usable rows without an id."""
    reasons: Counter[str] = field(default_factory=Counter)
    widths: Counter[int] = field(default_factory=Counter)
    """The number of embeddings by dimensions, in the order of their first appearance."""
    stage: Stage | None = None
    """The stage whose progress is counted in rows."""

    def next_row(self) -> None:
        """Count a row."""
        self.read += 1
        if self.stage is not None:
            self.stage.advance(1)

    @property
    def rejected(self) -> int:
        """The number of unusable rows."""
        return sum(self.reasons.values())


class SeenIds:
    """The digests of ids: a set, or for very many a hash table with twelve bytes a slot, at most two thirds full."""

    def __init__(self, few: int = 1 << 18) -> None:
        self._few, self._set = few, set[bytes]()
        self._slots, self._table, self._count = 0, bytearray(), 0

    def __len__(self) -> int:
        return len(self._set) or self._count

    def add(self, digest: bytes) -> bool:
        """Add a digest; return whether it is new."""
        if not self._slots:
            before = len(self._set)
            self._set.add(digest)
            new = len(self._set) > before
            if len(self._set) > self._few:
                self._grow(self._set)
                self._count, self._set = len(self._set), set()
            return new
        at = self._slot(digest)
        if self._table[at : at + ID_BYTES] == digest:
            return False
        self._table[at : at + ID_BYTES] = digest
        self._count += 1
        if 3 * self._count > 2 * self._slots:
            old = self._table
            self._grow(bytes(old[at : at + ID_BYTES]) for at in range(0, len(old), ID_BYTES))
        return True

    def _grow(self, digests: Iterable[bytes]) -> None:
        """Put the digests into a table of twice as many slots."""
        self._slots = 2 * (self._slots or self._few)
        self._table = bytearray(ID_BYTES * self._slots)
        for digest in digests:
            if digest != _NO_DIGEST:
                at = self._slot(digest)
                self._table[at : at + ID_BYTES] = digest

    def _slot(self, digest: bytes) -> int:
        """The place of a digest, or the free place for it."""
        table, slots = self._table, self._slots
        number = int.from_bytes(digest[:8], "big") % slots
        while (stored := table[number * ID_BYTES : (number + 1) * ID_BYTES]) != _NO_DIGEST and stored != digest:
            number = (number + 1) % slots
        return number * ID_BYTES


class Rejects:
    """Collects the rejected rows of a unit and writes them to rejected/ in parts."""

    def __init__(self, storage: Storage, unit: int = 0, parts: int = 0) -> None:
        self._storage, self._unit, self._rows, self.parts = storage, unit, list[dict[str, Any]](), parts

    def add(self, text_id: str | None, place: str, reason: str) -> None:
        """Add a rejected row."""
        self._rows.append({"text_id": text_id, "place": place, "reason": reason})
        if len(self._rows) == REJECTED_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows since the last part."""
        if self._rows:
            self._storage.write_table(numbered_in("rejected", self._unit, self.parts), REJECTED.build_rows(self._rows))
            self._rows, self.parts = [], self.parts + 1


def usable(
    rows: Iterable[Row],
    limit: int | None,
    counts: Counts,
    rejects: Rejects | None,
    content: Callable[[Any], tuple[Any, str | None]],
) -> Iterator[Usable]:
    """The usable rows; others are counted and recorded; `content` returns (content, None) or (None, reason) for a cell."""
    seen = SeenIds()
    for row in rows:
        if limit is not None and counts.read >= limit:
            break
        counts.next_row()
        text_id, reason = identifier(row)
        value, problem = content(row.text)
        document, unnamed = named_document(row.document)
        nested = next(filter(None, (not_a_group(*item) for item in row.groups.items())), None)
        reason = row.problem or reason or problem or unnamed or nested
        digest, new = b"", True
        if reason is None:
            digest = digest_of_content(value) if row.id is None else digest_of_id(text_id or "")
            new = seen.add(digest)
        if not new and row.id is not None:
            reason = REPEATED
        if reason is not None:
            counts.reasons[reason] += 1
            if rejects is not None:
                rejects.add(text_id, row.place, reason)
            continue
        assert text_id is not None
        counts.usable += 1
        counts.unnamed += row.id is None
        groups = tuple(None if group is NO_COLUMN else named_group(group) for group in row.groups.values())
        of_document = None if document is None else digest_of(document)
        yield Usable(text_id, value, of_document, groups, row.place, digest, not new)
    if rejects is not None:
        rejects.flush()


def digest_of_id(text_id: str) -> bytes:
    """Twelve bytes by which ids are compared."""
    return _digest(text_id.encode("utf-8", "surrogatepass"), 0)


def digest_of_content(content: Any) -> bytes:
    """Twelve bytes by which rows without an id are compared: of the text, or of the embedding and length."""
    if isinstance(content, str):
        return _digest(content.encode(), 1)
    embedding, length, *_ = content
    return _digest(embedding.tobytes() + length.to_bytes(8, "big"), 1)


def _digest(content: bytes, last_bit: int) -> bytes:
    digest = hashlib.blake2b(content, digest_size=ID_BYTES).digest()
    return digest[:-1] + bytes([digest[-1] & ~1 | last_bit])


def is_of_content(digest: bytes) -> bool:
    """Whether a digest is of a content and not of an id, by its last bit."""
    return bool(digest[-1] & 1)


def sample_key(digest: bytes, text_id: str, copies: int) -> str:
    """The key by which a sample draws a row: its id, or without one its content and the number of equal rows before it."""
    if not is_of_content(digest):
        return text_id
    return f"{digest.hex()} {copies}"


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
    """(id, None) or (None, reason); a text without an id gets a digest of text and place, an embedding its place."""
    text_id, reason = usable_id(row.id)
    if text_id is not None or reason is not None:
        return text_id, reason
    if isinstance(row.text, tuple):  # An embedding.
        return usable_id(row.place)
    if isinstance(row.text, (str, bytes)):
        content = row.text if isinstance(row.text, bytes) else row.text.encode("utf-8", "surrogatepass")
        text_id = hashlib.blake2b(content + b"\0" + row.place.encode(), digest_size=12).hexdigest()
    return text_id, reason


def usable_id(value: Any, what: str = "the id") -> tuple[str | None, str | None]:
    """(id as a string, None), (None, None) without an id, or (None, reason): the one rule for ids in all formats."""
    if isinstance(value, dict) and list(value) == ["$oid"]:  # As mongoexport writes the ids of MongoDB.
        value = value["$oid"]
    value = UUID(bytes=value) if isinstance(value, SixteenBytes) else utf8_or_bytes(value)
    number = whole_number(value)
    if number is not None and not isinstance(value, (Integral, Decimal)) and abs(number) > _EXACT_FLOATS:
        return None, f"{what} is a float beyond 2^53, whose last digits are lost"
    if number is not None:  # pandas writes whole numbers as floats in a column with gaps.
        return str(number), None
    if value is None or (isinstance(value, str) and not value) or (isinstance(value, (Real, Decimal)) and value != value):
        return None, None
    if isinstance(value, UUID):
        return str(value), None
    if isinstance(value, bytes):
        return None, f"{what} is not valid UTF-8"
    if not isinstance(value, str):
        return None, f"{what} is neither a string nor a whole number but {type(value).__name__}"
    try:
        return value.encode().decode(), None
    except UnicodeError:
        return None, f"{what} is not valid UTF-8"


def whole_number(value: Any) -> int | None:
    """A number as a whole number, such as a float that pandas wrote; None if it is not whole."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Decimal):  # A few characters, such as 1e999999999, may be a billion digits.
        is_whole = value.is_finite() and value.adjusted() < _DIGITS and value == value.to_integral_value()
    else:
        is_whole = isinstance(value, Integral) or (isinstance(value, Real) and float(value).is_integer())
    return int(value) if is_whole else None


def whole_number_in(value: Any) -> int | None:
    """The whole number in a cell, or its digits; None if it is none."""
    value = utf8_or_bytes(value)
    if isinstance(value, str):
        try:
            value = Decimal(value.strip())
        except InvalidOperation:
            return None
    return whole_number(value)


def whole_length(value: Any) -> int | None:
    """The length in a cell, a whole number from 1 on or its digits; None if it is none."""
    number = whole_number_in(value)
    return number if number is not None and 1 <= number < 2**31 else None


def named_document(value: Any) -> tuple[str | None, str | None]:
    """(the document's name, or None without one; None), or (None, the reason why the value names no document)."""
    return usable_id(value, "the document")


def digest_of(document: str) -> int:
    """The first eight bytes of a digest of a document's name."""
    return int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "big", signed=True)


def group_of(value: Any) -> str | None:
    """The value of a column of groups as text; None without one."""
    value = utf8_or_bytes(value)
    if value is None or value != value:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)


def named_group(value: Any) -> str:
    """The name of a text's group, from its value of a column."""
    return group_of(value) or NO_GROUP


def not_a_group(column: str, value: Any, by: str = "--by") -> str | None:
    """The reason why a value of a column names no group: it is nested, or no text that can be written."""
    named = f"the value of '{column}', named by {by},"
    if isinstance(value, Unreadable):
        return f"{named} cannot be read"
    if isinstance(value, (Mapping, list, tuple, np.ndarray)):
        return f"{named} is no text or number but {type(value).__name__}"
    return f"{named} is not valid UTF-8" if isinstance(value, str) and not _is_utf8(value) else None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:
        return False
    return True


def own_document(text_id: str) -> int:
    """The document of a text that is part of no other."""
    return digest_of(f"the text {text_id}")


def sampled(texts: Iterable[Identified], size: int, seed: int) -> Iterator[Identified]:
    """A simple random sample in the corpus's order, the same every night: the rows of smallest keyed hash."""
    smallest = heapq.nsmallest(size, _keyed(texts, seed), key=lambda item: item[:3])
    for _, _, _, text in sorted(smallest, key=lambda item: item[2]):
        yield text


def _keyed(texts: Iterable[Identified], seed: int) -> Iterator[tuple[int, bytes, int, Identified]]:
    """Each row with its keyed hash, its digest and its place."""
    copies = Counter[bytes]()
    for order, text in enumerate(texts):
        copies.update([text.digest] if text.copy else [])
        yield keyed_hash(sample_key(text.digest, text.text_id, copies[text.digest]), seed), text.digest, order, text


def nothing_usable(section: Source, what: str, read: int, reasons: Mapping[str, int]) -> UsageError:
    """The error of a source whose rows were all rejected, or that has none."""
    reasons_text = f", all rejected ({most_frequent(reasons)})" if reasons else ""
    return UsageError(f"{section.kind} '{masked(section.source)}' has no usable {what}: {read} rows read{reasons_text}")


def check_rejected(
    section: Limited, rejected: tuple[int, int], reasons: Mapping[str, int], root: str, what: str = "row"
) -> None:
    """Raise a UsageError if more of a source was rejected than its setting allows; `rejected` is (k, n): k of n rows."""
    count, total = rejected
    if count > section.max_rejected * total:
        option = "--max-rejected" if section.kind != "queries" else "max_rejected of [queries]"
        raise UsageError(
            f"{section.kind} '{masked(section.source)}': {count:,} of {total:,} {what}s are rejected "
            f"({most_frequent(reasons)}), more than the share of {section.max_rejected:g} that {option} allows; "
            f"'{masked(root)}/rejected' lists them: mend them, or raise {option}"
        )


def mention_rejected(what: str, share: float, reasons: Mapping[str, int]) -> str:
    """A sentence on the rejected rows of a source, for a first screen; empty where they are one in twenty or fewer."""
    if share <= _UNMENTIONED_SHARE:
        return ""
    reasons_text = f" ({most_frequent(reasons)})" if reasons else ""
    return f"Rejected: {percent(share)} of the {what}{reasons_text}. No figure includes them; rejected/ lists them."


def most_frequent(reasons: Mapping[str, int]) -> str:
    """The most frequent reasons with their counts; equally frequent ones by name."""
    frequent = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:_REASONS_SHOWN]
    return ", ".join(f"{count:,} × {reason}" for reason, count in frequent)
