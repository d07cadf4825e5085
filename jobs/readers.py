"""Files as rows: Parquet, JSON lines, CSV and plain text, compressed or not.

A row is given as it stands; `corpus.py` decides what is usable. What cannot be read to its end is an error, never a
shorter file.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from jobs.config import Corpus
from jobs.errors import UsageError

KINDS = {".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
         ".csv": "csv", ".tsv": "csv", ".txt": "text"}  # fmt: skip
UNREADABLE = (
    pa.ArrowInvalid, pa.ArrowNotImplementedError, EOFError, OSError, gzip.BadGzipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip
"""What a damaged file raises, by its format and compression."""

_RECORDS_AHEAD = 1000
_COLUMNS_NAMED = 20
_LONGEST_FIELD = 64 * 2**20


class Row(NamedTuple):
    """One row of a source. `text` is str, bytes that may not be UTF-8, None, or something that is no text."""

    place: str
    id: Any
    text: Any
    problem: str | None = None


def suffix(file: str) -> str:
    """The ending that tells the kind of a file, without that of its compression."""
    name = _name(file)
    for ending in _DECOMPRESSED:
        name = name.removesuffix(ending)
    return os.path.splitext(name)[1]


def read(stream: Any, file: str, place: str, corpus: Corpus) -> Iterator[Row]:
    """The rows of one open file.

    Args:
        stream: its bytes, still compressed.
        file: its name, whose ending tells kind and compression.
        place: how it is named in rows and sentences.
        corpus: which columns to read.

    Raises:
        UsageError: a missing column, or a file that is not what its name says.
    """
    readers = {"parquet": _parquet, "jsonl": _jsonl, "csv": _csv, "text": _lines}
    reader = readers[KINDS[suffix(file)]]
    if reader is _parquet:
        yield from _parquet(stream, place, corpus)
        return
    ending = os.path.splitext(_name(file))[1]
    with _DECOMPRESSED.get(ending, _plain)(stream) as decompressed:
        yield from reader(decompressed, place, corpus)


def check_columns(present: list[str], where: str, corpus: Corpus) -> str | None:
    """The id column to read, or None where there is none.

    Raises:
        UsageError: a column that was asked for is missing, or one to be read is there twice.
    """
    id_column = corpus.id_column if corpus.id_column is not None else "id" if "id" in present else None
    for option, column in (("--text-column", corpus.text_column), ("--id-column", id_column)):
        if column is None:
            continue
        if column not in present:
            names = ", ".join(map(repr, present[:_COLUMNS_NAMED])) + (", …" if len(present) > _COLUMNS_NAMED else "")
            raise UsageError(f"'{where}' has no column '{column}'; it has {names or 'none'}: name one with {option}")
        if present.count(column) > 1:
            raise UsageError(
                f"'{where}' has the column '{column}' {present.count(column)} times; "
                f"rename all but one, or name another with {option}"
            )
    return id_column


def row(place: str, record: Mapping[str, Any], id_column: str | None, corpus: Corpus) -> Row:
    """The row of one record."""
    return Row(place, record.get(id_column) if id_column is not None else None, record.get(corpus.text_column))


def _name(file: str) -> str:
    """A file's name in lower case; a URL without its query."""
    return (re.sub(r"[?#].*", "", file, flags=re.DOTALL) if "://" in file else file).lower()


def _plain(stream: Any) -> Any:
    return stream


def _zstandard(stream: Any) -> Any:
    # Arrow reads all frames of a file and refuses a cut one.
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))


_DECOMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zstandard
}  # fmt: skip
COMPRESSIONS = tuple(_DECOMPRESSED)
"""Endings of compressed files."""


def _parquet(stream: Any, place: str, corpus: Corpus) -> Iterator[Row]:
    file = pq.ParquetFile(stream)
    id_column = check_columns(file.schema_arrow.names, place, corpus)
    wanted = list(dict.fromkeys([corpus.text_column] + ([id_column] if id_column is not None else [])))
    number = 0
    for batch in file.iter_batches(batch_size=4096, columns=wanted):
        texts = _values(batch.column(corpus.text_column))
        ids = _values(batch.column(id_column)) if id_column is not None else [None] * len(texts)
        for text_id, text in zip(ids, texts, strict=True):
            yield Row(f"{place}:{number}", _utf8_or_bytes(text_id), text)
            number += 1


def _values(column: pa.Array) -> list[Any]:
    """Python values; strings as bytes, because Arrow does not check that they are UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return list(column.to_pylist())


def _utf8_or_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _jsonl(stream: Any, place: str, corpus: Corpus) -> Iterator[Row]:
    """Records may differ in their columns: one without an id gets a digest, one without a text is rejected.

    A column that none of the first 1,000 lines has counts as missing; without `--id-column`, `id` may be.
    """
    lines = _json_records(stream, place)
    wanted = {corpus.text_column, corpus.id_column} - {None}
    ahead: list[tuple[str, dict[str, Any] | str]] = []
    present: dict[str, None] = {}
    for place_of_line, record in itertools.islice(lines, _RECORDS_AHEAD):
        ahead.append((place_of_line, record))
        present |= dict.fromkeys(record if isinstance(record, dict) else ())
        if wanted <= present.keys():
            break
    if any(isinstance(record, dict) for _, record in ahead):
        check_columns(list(present), place, corpus)
    id_column = corpus.id_column if corpus.id_column is not None else "id"
    for place_of_line, record in itertools.chain(ahead, lines):
        if isinstance(record, str):
            yield Row(place_of_line, None, None, record)
        elif corpus.text_column not in record:
            yield Row(place_of_line, record.get(id_column), None, f"the record has no column '{corpus.text_column}'")
        else:
            yield row(place_of_line, record, id_column, corpus)


def _json_records(stream: Any, place: str) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """The place of every line that is not blank, with its record, or with the reason why it has none."""
    first = True
    for number, line in enumerate(stream):
        if not line.strip():
            continue
        if first and line.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            raise UsageError(
                f"'{place}' is a JSON array, and one JSON object a line is needed; "
                "convert it with: jq -c '.[]' in.json > out.jsonl"
            )
        first = False
        record: dict[str, Any] | str
        try:
            record = json.loads(line)
        except UnicodeDecodeError:
            record = "the line is not valid UTF-8"
        except (ValueError, RecursionError):
            record = "the line is not valid JSON"
        else:
            record = record if isinstance(record, dict) else "the line is not a JSON object"
        yield f"{place}:{number}", record


def _csv(stream: Any, place: str, corpus: Corpus) -> Iterator[Row]:
    records = filter(None, _csv_records(stream, place))  # A blank line is no record.
    names = [name.removeprefix("\ufeff") for name in next(records, [])]
    if not names:
        raise UsageError(f"'{place}' is empty; its first line must name the columns, such as id,text")
    id_column = check_columns(names, place, corpus)
    for number, fields in enumerate(records):
        yield row(f"{place}:{number}", dict(zip(names, fields, strict=False)), id_column, corpus)


def _csv_records(stream: Iterable[bytes], place: str) -> Iterator[list[str]]:
    """The fields of each record.

    Raises:
        UsageError: a record is not CSV, such as one whose quote is never closed.
    """
    # A quote that is never closed must not draw a large file into memory.
    csv.field_size_limit(_LONGEST_FIELD)
    # Bytes that are no UTF-8 survive as lone surrogates, which `corpus.py` refuses row by row.
    text = (line.decode("utf-8", "surrogateescape") for line in stream)
    reader = csv.reader(text, delimiter="\t" if suffix(place) == ".tsv" else ",", strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UsageError(
                f"'{place}' is not valid CSV in the record that begins in line {line}: {error}; "
                "close its quotes, and double each quote inside a field"
            ) from None
        yield fields


def _lines(stream: Any, place: str, corpus: Corpus) -> Iterator[Row]:
    id_column = check_columns(["text"], place, corpus)
    for number, line in enumerate(stream):
        text = line.rstrip(b"\r\n")
        yield Row(f"{place}:{number}", _utf8_or_bytes(text) if id_column is not None else None, text)
