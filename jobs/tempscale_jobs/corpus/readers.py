"""Read the rows of files: Parquet, Arrow, JSON lines, CSV and plain text, compressed or not.

Rows are returned unchanged; `rows.usable` decides which are usable. A file that cannot be read to its end is an error.
"""

from __future__ import annotations

import bisect
import bz2
import codecs
import csv
import gzip
import io
import itertools
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tempscale_jobs.errors import UsageError

KINDS = {".parquet": "parquet", ".pq": "parquet", ".arrow": "arrow", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
         ".csv": "csv", ".tsv": "csv", ".txt": "text"}  # fmt: skip
UNREADABLE = (pa.ArrowException, EOFError, OSError, zlib.error, lzma.LZMAError, UnicodeDecodeError)
"""The errors that a damaged file raises; they depend on its format and compression."""

_LEFT_OUT = b"tempscale: too long"
"""The metadata of a batch that replaces rows whose cells are too long."""
_NO_OBJECT = (OverflowError, ValueError, KeyError)
"""The errors of converting a cell to Python: a date after the year 9999, an unknown time zone, bad UTF-8 in a struct."""
_RECORDS_AHEAD = 1000
_BATCH_ROWS = 4096
_COLUMNS_NAMED = 20
LONGEST_VALUE = 64 * 2**20
"""Bytes of the longest line, field or cell that is read: a compressed megabyte may be gigabytes."""
_TOO_LONG = f"longer than {LONGEST_VALUE >> 20} MiB"
BLOCK_BYTES, _BATCH_BYTES = 2**20, 128 * 2**20
LARGE_DICTIONARY, SMALL_COLUMN = 4 * 2**20, 2**16
"""A column with a larger dictionary is read as indices, because one value for each row may not fit into memory."""
_HEADER_BYTES, _NUMBER_FOLLOWS = 32, 0x15
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of an Arrow stream; Arrow itself accepts a file that ends without them."""
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32LE", codecs.BOM_UTF32_BE: "UTF-32BE", codecs.BOM_UTF16_LE: "UTF-16LE",
    codecs.BOM_UTF16_BE: "UTF-16BE",
}  # fmt: skip
_SAMPLE_BYTES, _ZERO_SHARE, _LATIN_SHARE = 4096, 0.01, 0.5
_BETWEEN = np.frombuffer(b"\n\r ", np.uint8)
"""In UTF-16 one byte of a space, a line end and a Latin letter is zero."""
_UUID_BYTES = 16


class Columns(NamedTuple):
    """The columns to read from a source, each with the option that names it, if there is one."""

    texts: dict[str, str | None]
    """Every record must have these."""
    ids: dict[str, str | None]
    """Some record must have these."""
    optional: dict[str, str | None]
    """Read if the source has them."""


class Record(NamedTuple):
    """One row of a source by column. A value is str, bytes (not UTF-8, or of a binary column), None, or another object."""

    place: str
    values: Mapping[str, Any]
    problem: str | None = None


class SixteenBytes(bytes):
    """A value of a column of sixteen bytes each: an id is read as a UUID, a text as a text."""


class Unreadable:
    """Stands in a row for a value that cannot be converted to Python; it is neither a text nor an id."""

    def __repr__(self) -> str:
        return "a value that cannot be read"


def suffix(file: str) -> str:
    """The ending that names a file's format, such as .csv of a.csv.gz."""
    name = _name(file)
    for ending in _DECOMPRESSED:
        name = name.removesuffix(ending)
    return os.path.splitext(name)[1]


def read(stream: Any, file: str, place: str, columns: Columns) -> Iterator[Record]:
    """The rows of one open file; its ending gives format and compression; rows and errors call it `place`."""
    kind = KINDS[suffix(file)]
    if kind in ("parquet", "arrow"):
        yield from (_parquet if kind == "parquet" else _arrow)(stream, place, columns)
        return
    ending = os.path.splitext(_name(file))[1]
    with _DECOMPRESSED.get(ending, _plain)(stream) as decompressed:
        head, _ = beginning(decompressed, place)
        reader = {"jsonl": read_jsonl, "csv": read_csv, "text": _lines}[kind]
        yield from reader((line for line, _ in bounded(decompressed, head)), place, columns)


def is_plain(file: str) -> bool:
    """Whether a file is not compressed."""
    return os.path.splitext(_name(file))[1] not in _DECOMPRESSED


def row_groups(stream: Any, place: str, columns: Columns) -> list[tuple[int, int, int]]:
    """The first row, rows and bytes in memory, of the columns to read, of each row group of a Parquet file."""
    file = pq.ParquetFile(stream, pre_buffer=False)
    return sizes_of(file.metadata, check_columns(file.schema_arrow.names, place, columns))


def sizes_of(metadata: Any, wanted: Sequence[str]) -> list[tuple[int, int, int]]:
    """The row groups of `row_groups`, from a Parquet file's footer."""
    sizes, first = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        sizes.append((first, group.num_rows, sum(cell.total_uncompressed_size for cell in _cells(group, wanted))))
        first += group.num_rows
    return sizes


def _cells(group: Any, wanted: Sequence[str]) -> list[Any]:
    """The metadata of these columns of a row group, whose parts have names with dots."""
    return [cell for cell in map(group.column, range(group.num_columns)) if cell.path_in_schema.split(".")[0] in wanted]


def of_rows(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The rows of some tables in tables of so many rows each; the last has what is left."""
    waiting = list[pa.Table]()
    for table in tables:
        waiting.append(table)
        while sum(map(len, waiting)) >= rows:
            together = pa.concat_tables(waiting)
            yield together.slice(0, rows)
            waiting = [together.slice(rows)]
    if sum(map(len, waiting)):
        yield pa.concat_tables(waiting)


def parquet_rows(stream: Any, place: str, columns: Columns, first: int, last: int) -> Iterator[Record]:
    """The rows of a Parquet file from `first` to before `last`."""
    column_names = check_columns(pq.ParquetFile(stream, pre_buffer=False).schema_arrow.names, place, columns)
    yield from batches_as_records(parquet_batches(stream, column_names, first, last), place, first)


def parquet_batches(stream: Any, column_names: Sequence[str], first: int, last: int) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file from `first` to before `last` as batches."""
    file = pq.ParquetFile(stream, pre_buffer=False)
    ends = np.cumsum([file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]).tolist()
    groups = range(bisect.bisect_right(ends, first), bisect.bisect_left(ends, last) + 1)
    begins = ends[groups[0] - 1] if groups[0] else 0
    yield from between(_batches(stream, file, groups, column_names), first - begins, last - begins)


def _batches(stream: Any, file: pq.ParquetFile, groups: Iterable[int], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Row groups of a Parquet file in batches of about 128 MiB at most, however large its rows are."""
    # Without Arrow's threads: they would call into this Python stream, and a process that ends during such a call aborts.
    options: dict[str, Any] = {"columns": list(names), "use_threads": False}
    for number in groups:
        group = file.metadata.row_group(number)
        cells = _cells(group, names)
        size = sum(cell.total_uncompressed_size for cell in cells)
        if any(cell.total_uncompressed_size > LONGEST_VALUE * group.num_rows for cell in cells):
            yield _left_out(file, names, group.num_rows)  # Some cell must be too long: read none.
            continue
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(1, size)))
        sizes = {cell.path_in_schema: dictionary_bytes(stream, cell) for cell in cells if "." not in cell.path_in_schema}
        large = [name for name, length in sizes.items() if length > LARGE_DICTIONARY]
        if most := max((length for length in sizes.values() if length <= LARGE_DICTIONARY), default=0):
            rows = max(1, min(rows, 2 * _BATCH_BYTES // most))  # Each row may have the longest value.
        source = pq.ParquetFile(stream, read_dictionary=large, pre_buffer=False) if large else file
        yield from source.iter_batches(batch_size=rows, row_groups=[number], **options)


def dictionary_bytes(stream: Any, cell: Any) -> int:
    """The size of the dictionary of a column of texts in a row group, which bounds the size of one value."""
    if cell.physical_type != "BYTE_ARRAY" or not cell.has_dictionary_page or cell.total_uncompressed_size < SMALL_COLUMN:
        return 0
    stream.seek(cell.dictionary_page_offset)
    header = stream.read(_HEADER_BYTES)
    # Thrift's compact form: two consecutive fields, each with a number as a varint in zigzag.
    at, values = 0, list[int]()
    while len(values) < 2 and at < len(header) and header[at] == _NUMBER_FOLLOWS:
        at, shift, value = at + 1, 0, 0
        while at < len(header):
            value |= (header[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if header[at - 1] < 0x80:
                break
        values.append((value >> 1) ^ -(value & 1))
    return values[1] if len(values) == 2 else int(cell.total_uncompressed_size)


def _left_out(file: pq.ParquetFile, column_names: Sequence[str], rows: int) -> pa.RecordBatch:
    """A batch that replaces the rows of a row group, marked as too long."""
    names = [name for name in file.schema_arrow.names if name in column_names]
    return pa.RecordBatch.from_pydict({name: pa.nulls(rows) for name in names}, metadata={_LEFT_OUT: b""})


def between(batches: Iterable[pa.RecordBatch], first: int, last: int) -> Iterator[pa.RecordBatch]:
    """The rows from `first` to before `last` of consecutive batches."""
    at = 0
    for batch in batches:
        if at >= last:
            return
        begin, end = max(first, at), min(last, at + batch.num_rows)
        if begin < end:
            yield batch.slice(begin - at, end - begin)
        at += batch.num_rows


class Span(NamedTuple):
    """Consecutive rows, or the bytes of lines."""

    first: int
    last: int
    """From the first to before the last."""
    number: int
    """The number of the first row in its file."""


def lines(stream: Any, file: str, place: str, columns: Columns, span: Span) -> Iterator[Record]:
    """The records of a plain file's lines that begin in a span of bytes."""
    first, last, number = span
    head, at_first = b"", first - 1
    if first:
        stream.seek(at_first)
    else:
        head, at_first = beginning(stream, place)

    def lines_of_span() -> Iterator[bytes | None]:
        at = at_first
        for line, size in bounded(stream, head):
            if at >= first and at < last:
                yield line
            at += size  # The line of the byte before the span began before the span.
            if at >= last:
                return

    if KINDS[suffix(file)] == "jsonl":
        yield from read_jsonl(lines_of_span(), place, columns, number)
    else:
        yield from _lines(lines_of_span(), place, columns, number)


def beginning(stream: Any, place: str) -> tuple[bytes, int]:
    """The first block of a file without its byte order mark, and the bytes of the mark; UTF-16 or UTF-32 is a UsageError."""
    block = stream.read(BLOCK_BYTES)
    if encoding := _other_encoding(block):
        raise UsageError(f"'{place}' is {encoding}, not UTF-8; convert it with: iconv -f {encoding} -t UTF-8 < in > out")
    text = block.removeprefix(codecs.BOM_UTF8)
    return text, len(block) - len(text)


def _other_encoding(block: bytes) -> str | None:
    """UTF-16 or UTF-32 with its byte order, by the mark at the beginning of a file or by where its zeros are."""
    for mark, name in _MARKS.items():
        if block.startswith(mark):
            return name
    sample = np.frombuffer(block[: min(len(block), _SAMPLE_BYTES) // 4 * 4], np.uint8).reshape(-1, 4)
    zero = sample == 0
    if zero.sum() < max(1, _ZERO_SHARE * zero.size):
        return None
    for name, least, next_least in (("UTF-32LE", 3, 2), ("UTF-32BE", 0, 1)):
        if zero[:, least].all() and (sample[:, next_least] <= 0x10).all():
            return name
    pairs = sample.reshape(-1, 2)
    little, big = (_between_words(pairs[:, 1 - high], pairs[:, high]) for high in (1, 0))
    if not (little or big):
        return None
    return "UTF-16LE" if little >= big else "UTF-16BE"


def _between_words(low: Any, high: Any) -> int:
    """The number of spaces and line ends in a sample if it is UTF-16 with these bytes; 0 if it cannot be."""
    zero, between = high == 0, np.isin(low, _BETWEEN)
    if (zero & (low == 0)).any():
        return 0
    # In UTF-8 these are spaces and line ends next to a letter.
    others = (between & ~zero).sum() + (np.isin(high, _BETWEEN) & (low >= ord("A")) & (low <= ord("z"))).sum()
    if (between & zero).sum() > others or (zero.mean() >= _LATIN_SHARE and not (low == 0).any()):
        return max(1, int((between & zero).sum()))
    return 0


def bounded(stream: Any, head: bytes = b"") -> Iterator[tuple[bytes | None, int]]:
    """Each line of a stream, after `head`, with its bytes; None for one of more than 64 MiB, which is not kept in memory."""
    rest, passed = b"", 0
    for block in itertools.chain([head] if head else [], iter(lambda: stream.read(BLOCK_BYTES), b"")):
        *ended, last = block.split(b"\n")
        for part in ended:
            size = passed + len(rest) + len(part) + 1
            yield (rest + part + b"\n" if size <= LONGEST_VALUE else None), size
            rest, passed = b"", 0
        if passed + len(rest) + len(last) > LONGEST_VALUE:
            rest, passed = b"", passed + len(rest) + len(last)
        else:
            rest += last
    if rest or passed:
        yield (None if passed else rest), passed + len(rest)


def check_columns(present: list[str], where: str, columns: Columns) -> list[str]:
    """The columns to read that the source has; raises a UsageError if a required one is missing or one occurs twice."""
    for column, option in (*columns.texts.items(), *columns.ids.items(), *columns.optional.items()):
        if column not in present:
            if column in columns.texts or column in columns.ids:
                names = ", ".join(map(repr, present[:_COLUMNS_NAMED])) + (", …" if len(present) > _COLUMNS_NAMED else "")
                mend = f"name one with {option}" if option else f"rename one to '{column}'"
                raise UsageError(f"'{where}' has no column '{column}'; it has {names or 'none'}: {mend}")
        elif present.count(column) > 1:
            raise UsageError(
                f"'{where}' has the column '{column}' {present.count(column)} times; rename all but one"
                + (f", or name another with {option}" if option else "")
            )
    return [column for column in {**columns.texts, **columns.ids, **columns.optional} if column in present]


def utf8_or_bytes(value: Any) -> Any:
    """Bytes as text if they are UTF-8; any other value unchanged."""
    if isinstance(value, bytes) and not isinstance(value, SixteenBytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _name(file: str) -> str:
    """A file's name in lower case; a URL without its query."""
    return (re.sub(r"[?#].*", "", file, flags=re.DOTALL) if "://" in file else file).lower()


def _plain(stream: Any) -> Any:
    return stream


def _zstandard(stream: Any) -> Any:
    # Arrow reads all frames of a file and raises if the last one is cut.
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), "zstd"))


_DECOMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zstandard
}  # fmt: skip
COMPRESSIONS = tuple(_DECOMPRESSED)
"""Endings of compressed files."""


def _parquet(stream: Any, place: str, columns: Columns) -> Iterator[Record]:
    file = pq.ParquetFile(stream, pre_buffer=False)
    column_names = check_columns(file.schema_arrow.names, place, columns)
    yield from batches_as_records(_batches(stream, file, range(file.metadata.num_row_groups), column_names), place)


def _arrow(stream: Any, place: str, columns: Columns) -> Iterator[Record]:
    is_file = stream.read(6) == b"ARROW1"
    if not is_file:
        stream.seek(-len(_STREAM_END), os.SEEK_END)
        if stream.read() != _STREAM_END:
            raise EOFError("the end of its stream is missing")
    stream.seek(0)
    open_reader = pa.ipc.open_file if is_file else pa.ipc.open_stream
    reader = open_reader(stream, options=pa.ipc.IpcReadOptions(use_threads=False))
    column_names = check_columns(reader.schema.names, place, columns)
    stream.seek(0)
    fields = [reader.schema.names.index(name) for name in column_names]
    reader = open_reader(stream, options=pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields))
    batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
    yield from batches_as_records((part for batch in batches for part in small_parts(batch.select(column_names))), place)


def small_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts, because Python objects need more memory than Arrow's values."""
    dictionaries = (len(column.dictionary) for column in batch.columns if pa.types.is_dictionary(column.type))
    rows = max(_BATCH_ROWS, *dictionaries, 0)  # Each part reads the whole of a dictionary.
    yield from (batch.slice(first, rows) for first in range(0, batch.num_rows, rows))


def batches_as_records(batches: Iterable[pa.RecordBatch], place: str, number: int = 0) -> Iterator[Record]:
    """The rows of Arrow batches; `number` is the first one's."""
    for batch in batches:
        names = batch.schema.names
        if _LEFT_OUT in (batch.schema.metadata or {}):
            for _ in range(batch.num_rows):
                yield Record(f"{place}:{number}", {}, f"the row group has cells {_TOO_LONG}")
                number += 1
            continue
        long = [name for name in names if _has_long(batch.column(name))]
        for cells in zip(*(values(batch.column(name)) for name in names), strict=True):
            row = dict(zip(names, cells, strict=True))
            too_long = next((name for name in long if row[name] is not None and len(row[name]) > LONGEST_VALUE), None)
            if too_long is not None:
                yield Record(f"{place}:{number}", {}, f"the cell of column '{too_long}' is {_TOO_LONG}")
            else:
                yield Record(f"{place}:{number}", row)
            number += 1


def _has_long(column: pa.Array) -> bool:
    """Whether a column has a text of more than 64 MiB."""
    values = column.dictionary if pa.types.is_dictionary(column.type) else column
    if not (_is_text(values.type) and len(values)):
        return False
    return bool((pc.max(pc.binary_length(values.cast(_unchecked(values.type)))).as_py() or 0) > LONGEST_VALUE)


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def values(column: pa.Array) -> list[Any]:
    """The values of a column as Python objects; a string that is not UTF-8, which Arrow does not check, stays bytes."""
    # Lists of numbers become arrays, because a million embeddings would be a billion Python numbers.
    if pa.types.is_dictionary(column.type):
        dictionary = values(column.dictionary)  # Convert each value once, however many rows have it.
        return [None if index is None else dictionary[index] for index in column.indices.to_pylist()]
    kind = column.type
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)) and (
        pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)
    ):
        return [None if not cell.is_valid else cell.values.to_numpy(zero_copy_only=False) for cell in column]
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == _UUID_BYTES:
        cells: list[Any] = column.to_pylist()
        if all(cell is None or (cell.isascii() and cell.decode().isprintable()) for cell in cells):
            return cells
        return [None if cell is None else SixteenBytes(cell) for cell in cells]
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return [_text(_value(cell)) for cell in column.cast(_unchecked(kind))]
    except _NO_OBJECT:
        return [_value(cell) for cell in column]


def _text(value: Any) -> Any:
    """Bytes as text if they are UTF-8, also inside a list."""
    return [_text(element) for element in value] if isinstance(value, list) else utf8_or_bytes(value)


def _value(cell: pa.Scalar) -> Any:
    """One cell as a Python value, or `Unreadable`."""
    try:
        return cell.as_py()
    except _NO_OBJECT:
        return Unreadable()


def _unchecked(kind: pa.DataType) -> pa.DataType:
    """The type with bytes in place of strings, also inside lists."""
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.list_(_unchecked(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_unchecked(kind.value_type))
    return kind


def read_jsonl(stream: Iterable[bytes | None], place: str, columns: Columns, number: int = 0) -> Iterator[Record]:
    """The records of JSON lines, which may differ in columns; a UsageError if the first 1,000 lack a required column."""
    lines = _json_records(stream, place, number)
    required = {*columns.texts, *columns.ids}
    ahead: list[tuple[str, dict[str, Any] | str]] = []
    present: dict[str, None] = {}
    for place_of_line, record in itertools.islice(lines, 0 if number else _RECORDS_AHEAD):
        ahead.append((place_of_line, record))
        present |= dict.fromkeys(record if isinstance(record, dict) else ())
        if required <= present.keys():
            break
    if any(isinstance(record, dict) for _, record in ahead):
        check_columns(list(present), place, columns)
    for place_of_line, record in itertools.chain(ahead, lines):
        if isinstance(record, str):
            yield Record(place_of_line, {}, record)
            continue
        missing = next((column for column in columns.texts if column not in record), None)
        problem = None if missing is None else f"the record has no column '{missing}'"
        yield Record(place_of_line, record, problem)


def _json_records(stream: Iterable[bytes | None], place: str, number: int = 0) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """The place of every line that is not blank, with its record or the reason why it is none."""
    first = number == 0
    for line_number, line in enumerate(stream, number):
        if line is None:
            yield f"{place}:{line_number}", f"the line is {_TOO_LONG}"
            continue
        if not line.strip():
            continue
        if first and line.lstrip().startswith(b"["):
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
        yield f"{place}:{line_number}", record


def read_csv(stream: Iterable[bytes | None], place: str, columns: Columns) -> Iterator[Record]:
    """Records of a table whose first line names its columns; blank lines are skipped."""
    records = filter(None, _csv_records(stream, place))  # Skip blank lines.
    header = next(records, [])
    if not header:
        raise UsageError(f"'{place}' is empty; its first line must name the columns, such as id,text")
    column_names = check_columns(header, place, columns)
    for number, fields in enumerate(records):
        if not any(fields):  # Spreadsheets write such rows below a table.
            continue
        row, problem = dict(zip(header, fields, strict=False)), None
        # With more fields a text was cut at a comma. A row may end early, but not before a column that is read.
        if len(fields) > len(header) or not row.keys() >= set(column_names):
            problem = f"the row has {len(fields)} field{'s' * (len(fields) != 1)}, the header {len(header)}"
        yield Record(f"{place}:{number}", row, problem)


def _csv_records(stream: Iterable[bytes | None], place: str) -> Iterator[list[str]]:
    """The fields of each record; a record that is not valid CSV is a UsageError."""
    # A quote that is never closed must not read a large file into memory.
    csv.field_size_limit(LONGEST_VALUE)

    def decoded() -> Iterator[str]:
        for line in stream:
            if line is None:
                raise csv.Error(f"a line is {_TOO_LONG}")
            # Bytes that are not UTF-8 become lone surrogates, so that `rows.usable` can reject single rows.
            yield line.decode("utf-8", "surrogateescape")

    text = decoded()
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


def _lines(stream: Iterable[bytes | None], place: str, columns: Columns, number: int = 0) -> Iterator[Record]:
    check_columns(["text"], place, columns)
    for line_number, line in enumerate(stream, number):
        if line is None:
            yield Record(f"{place}:{line_number}", {}, f"the line is {_TOO_LONG}")
        elif line.strip():  # Paragraphs have blank lines between them.
            yield Record(f"{place}:{line_number}", {"text": line.rstrip(b"\r\n")})
