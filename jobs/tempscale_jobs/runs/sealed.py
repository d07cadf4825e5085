"""Parquet and JSON whose readers notice a flipped bit or a cut end.

Pages of Parquet have the checksums that the format defines. What they do not cover is the footer, which holds the schema,
the statistics and where each page is: 32 bytes before it hold a mark and its digest. Readers of Parquet find the footer from
the end of a file and pages by their offsets, so they pass over these bytes. JSON objects end with a key `checksum`.

Files of earlier versions, without either, are read as they are.
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
"""Bytes behind the footer: its length, and PAR1."""
_TAIL = 1 << 16
"""Bytes that are read at first, in which most footers lie."""
_STEERS = re.compile("[\x7f-\x9f\u2028\u2029]")
"""What JSON leaves as it is, and a terminal that shows the file may obey."""
_KEY, _IS_CHECKSUM = "checksum", re.compile("[0-9a-f]{8}")


class Broken(ValueError):
    """Bytes that are not what was written; the message says how one knows."""


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
    """A Parquet file that raises where a page is not what its checksum says.

    Raises:
        Broken: its footer is not what its digest says, or not whole.
    """
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
    """The value of a JSON file, without its checksum.

    Raises:
        Broken: it is no JSON, or its checksum is another's.
    """
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
    """Raise where the bytes of a Parquet or JSON file are not what was written; others have no checksum.

    Raises:
        Broken: the footer, or a JSON file, has another checksum.
        OSError: a page has another checksum, as Arrow says it.
    """
    if name.endswith(".parquet"):
        opened(io.BytesIO(data)).read(use_threads=False)
    elif name.endswith(".json"):
        loads(data)


def shown(text: str) -> str:
    """JSON with escapes in place of the characters that a terminal may obey; it is the same JSON."""
    return _STEERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _checksum(value: dict[str, Any]) -> str:
    """The CRC-32 of an object, as it is read again."""
    reread = json.loads(json.dumps(value))
    return f"{zlib.crc32(json.dumps(reread, ensure_ascii=False, sort_keys=True).encode('utf-8', 'surrogatepass')):08x}"


def _digest(footer: bytes) -> bytes:
    return hashlib.blake2b(footer, digest_size=_DIGEST_BYTES).digest()


def _tail(stream: Any, size: int, count: int) -> bytes:
    stream.seek(max(0, size - count))
    return bytes(stream.read(count))
