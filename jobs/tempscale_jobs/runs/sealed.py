"""Write Parquet and JSON so that a flipped bit or a cut end is noticed when they are read.

Pages of Parquet have the checksums of the format. The footer (schema, statistics, places of pages) has none, so 32 bytes
before it have a mark and its digest: other readers of Parquet skip these bytes, since they find the footer from the end of a
file and pages by their offsets. JSON objects end with a key `checksum`. Files of earlier versions, without these, are read
unchecked.
"""

from __future__ import annotations

import hashlib
import io
import json
import operator
import re
import zlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_MARK = b"tempscale footer"
_DIGEST_BYTES = 16
_END = 8
"""Bytes after the footer: its length, and PAR1."""
_TAIL = 1 << 16
"""Bytes that are read first, which contain most footers."""
_STEERS = re.compile("[\x7f-\x9f\u2028\u2029]")
"""Characters that JSON does not escape and that a terminal may obey."""
_KEY, _IS_CHECKSUM = "checksum", re.compile("[0-9a-f]{8}")


class Broken(ValueError):
    """Bytes that are not what was written; the message says why."""


def parquet(table: pa.Table, compression: str = "zstd", rows_of_group: int | None = None) -> bytes:
    """A table as the bytes of a Parquet file; equal tables give equal bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, compression=compression, write_statistics=True, row_group_size=rows_of_group, write_page_checksum=True
    )
    return sealed(sink.getvalue().to_pybytes())


def sealed(data: bytes) -> bytes:
    """The bytes of a Parquet file with the digest of its footer before it."""
    start = len(data) - _END - int.from_bytes(data[-8:-4], "little")
    return b"".join((data[:start], _MARK, _digest(data[start:-_END]), data[start:]))


def opened(stream: Any, pre_buffer: bool = False) -> pq.ParquetFile:
    """A Parquet file that raises on a page with another checksum; Broken if its footer is not what was written."""
    size = stream.seek(0, io.SEEK_END)
    tail = _tail(stream, size, _TAIL)
    length = int.from_bytes(tail[-8:-4], "little")
    if size < _END + 4 or tail[-4:] != b"PAR1" or length > size - _END - 4:
        raise Broken("it is cut or no Parquet file")
    if length + _END + len(_MARK) + _DIGEST_BYTES > len(tail):
        tail = _tail(stream, size, length + _END + len(_MARK) + _DIGEST_BYTES)
    footer = tail[-_END - length : -_END]
    seal = tail[: -_END - length][-len(_MARK) - _DIGEST_BYTES :]
    if seal.startswith(_MARK) and seal[len(_MARK) :] != _digest(footer):
        raise Broken("its footer has another digest than when it was written")
    metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + footer + tail[-_END:]))
    return pq.ParquetFile(stream, metadata=metadata, pre_buffer=pre_buffer, page_checksum_verification=True)


def dumps(value: Any, plain: bool = False) -> bytes:
    """A value as the bytes of a JSON file; an object that is not `plain` gets a checksum as its last key."""
    if isinstance(value, dict) and not plain:
        value = value | {_KEY: _checksum(value)}
    return (shown(json.dumps(value, indent=2, ensure_ascii=False)) + "\n").encode()


def loads(data: bytes) -> Any:
    """The value of a JSON file, without its checksum; Broken if it is no JSON or has another checksum."""
    try:
        value = json.loads(data)
    except ValueError as error:
        raise Broken(f"it is no JSON: {error}") from None
    if isinstance(value, dict) and value:
        last = next(reversed(value))
        if len(last) == len(_KEY) and sum(map(operator.ne, last, _KEY)) == 1 and _IS_CHECKSUM.fullmatch(str(value[last])):
            raise Broken("the name of its checksum is another than when it was written")
        if _KEY in value and value.pop(_KEY) != _checksum(value):
            raise Broken("it has another checksum than when it was written")
    return value


def check(name: str, data: bytes) -> None:
    """Raise a Broken, or an OSError of Arrow, if a Parquet or JSON file is not what was written; others have no checksum."""
    if name.endswith(".parquet"):
        opened(io.BytesIO(data)).read(use_threads=False)
    elif name.endswith(".json"):
        loads(data)


def shown(text: str) -> str:
    """Equal JSON with escapes instead of the characters that a terminal may obey."""
    return _STEERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _checksum(value: dict[str, Any]) -> str:
    """The CRC-32 of an object as it will be read."""
    reread = json.loads(json.dumps(value))
    return f"{zlib.crc32(json.dumps(reread, ensure_ascii=False, sort_keys=True).encode('utf-8', 'surrogatepass')):08x}"


def _digest(footer: bytes) -> bytes:
    return hashlib.blake2b(footer, digest_size=_DIGEST_BYTES).digest()


def _tail(stream: Any, size: int, count: int) -> bytes:
    stream.seek(max(0, size - count))
    return bytes(stream.read(count))
