"""Read numpy's files as tables, mapped into memory: .npy with a table of ids, or .npz whose arrays are the columns."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tempscale_jobs.corpus import states
from tempscale_jobs.corpus.address import Address, Part, address
from tempscale_jobs.corpus.readers import UNREADABLE, parquet_batches
from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import masked, reason

FIXED = False
VECTORS, IDS = "embedding", "id"
"""The columns of a .npy file of vectors, and of one of ids."""
_ROWS = 4096
_LOCAL_HEADER, _NAME_LENGTH = 30, 26
"""Bytes of the header of a zip's member, and where in it the lengths of its name and of its extra field are."""


def kind(source: str) -> str | None:
    """`numpy` for a file of numpy's."""
    return "numpy" if source.partition("?")[0].endswith((".npy", ".npz")) else None


def name(source: str) -> str:
    """The file's name."""
    return os.path.basename(masked(where(source).path))


def state(source: str) -> dict[str, Any]:
    """Size, time and place of each file."""
    for file in files(source):
        check_file(file)
    return {file: states.of_local(file) for file in files(source)}


def files(source: str) -> list[str]:
    """The file, and the one with further columns."""
    path, settings = where(source)
    return [os.path.abspath(file) for file in (path, *beside(settings))]


def columns(source: str) -> list[str]:
    """The names of the arrays and of the further columns."""
    path, settings = where(source)
    return [*_arrays(path), *columns_beside(settings)]


def parts(source: str, names: Sequence[str], most: tuple[int, int]) -> list[Part]:
    """All rows, as one part."""
    path, settings = where(source)
    every = _arrays(path)
    arrays = {key: array for key, array in every.items() if key in names} or every
    rows = {key: len(array) for key, array in arrays.items()}
    if len(set(rows.values())) != 1:
        lengths = ", ".join(f"'{key}' {length:,}" for key, length in rows.items())
        raise UsageError(
            f"'{name(source)}' is no table: its arrays have different numbers of rows ({lengths or 'it has none'})"
        )
    count = next(iter(rows.values()))
    check_rows_beside(settings, count, name(source))
    return [Part("", 0, 0, count, sum(array.nbytes for array in arrays.values()))]


def batches(source: str, at: str, names: Sequence[str], rows: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    """Rows of the arrays, with those of the table of ids."""
    path, settings = where(source)
    arrays = {key: array for key, array in _arrays(path).items() if key in names}
    yield from with_columns(
        settings, names, rows, lambda first, last: {key: column(a[first:last]) for key, a in arrays.items()}
    )


def release(source: str) -> None:
    """Nothing is held."""


# --- a table with further columns of the same rows ----------------------------------------------------------------------


def beside(settings: dict[str, str]) -> list[str]:
    """The file with further columns, if one is named."""
    return [os.path.expanduser(settings["ids"])] if "ids" in settings else []


def columns_beside(settings: dict[str, str]) -> list[str]:
    """The names of the further columns."""
    for file in beside(settings):
        check_file(file)
        if file.endswith(".npy"):
            _mapped(file, 1)
            return [IDS]
        with _readable(file):
            return list(pq.ParquetFile(file).schema_arrow.names)
    return []


def check_rows_beside(settings: dict[str, str], rows: int, vectors: str) -> None:
    """Raise a UsageError unless the further columns have a row for each vector."""
    for file in beside(settings):
        with _readable(file):
            count = len(_mapped(file, 1)) if file.endswith(".npy") else pq.ParquetFile(file).metadata.num_rows
        if count != rows:
            raise UsageError(
                f"ids='{masked(file)}' has {count:,} rows, and '{vectors}' {rows:,}; give one row for each vector"
            )


def with_columns(
    settings: dict[str, str], names: Sequence[str], rows: tuple[int, int], cells: Any
) -> Iterator[pa.RecordBatch]:
    """Batches of the `cells` (first, last) of vectors by column, with the further columns of these rows."""
    for first, further in _further(settings, names, rows):
        present = cells(first, first + further.num_rows) | dict(zip(further.schema.names, further.columns, strict=True))
        fields = [pa.field(key, present[key].type) for key in names if key in present]
        arrays = [present[field.name] for field in fields]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, metadata=further.schema.metadata))


def _further(settings: dict[str, str], names: Sequence[str], rows: tuple[int, int]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of the further columns, each with the number of its first row."""
    first, last = rows
    for file in beside(settings):
        if not file.endswith(".npy"):
            wanted = [key for key in columns_beside(settings) if key in names]
            if wanted:
                with _readable(file), open(file, "rb") as stream:
                    for batch in parquet_batches(stream, wanted, first, last):
                        yield first, batch
                        first += batch.num_rows
                return
        elif IDS in names:
            ids = _mapped(file, 1)
            for start in range(first, last, _ROWS):
                yield start, pa.record_batch({IDS: column(ids[start : min(last, start + _ROWS)])})
            return
    for start in range(first, last, _ROWS):
        count = min(last, start + _ROWS) - start
        yield start, pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


# --- files of numpy -----------------------------------------------------------------------------------------------------


def where(source: str) -> Address:
    """The file of vectors, and the settings."""
    path, settings = address(source, ["ids"])
    check_beside(path, settings)
    return Address(os.path.expanduser(path), settings)


def check_beside(path: str, settings: dict[str, str]) -> None:
    """Raise a UsageError unless both files are on a disk, and the further columns of a known kind."""
    for file in (path, *beside(settings)):
        if "://" in file:
            raise UsageError(f"'{masked(file)}' is mapped into memory and must be on a disk of each machine; copy it there")
    if not all(file.endswith((".npy", ".parquet", ".pq")) for file in beside(settings)):
        raise UsageError(f"ids='{settings['ids']}' of '{path}' must be a Parquet file, or ids alone in a .npy file")


def check_file(file: str) -> None:
    """Raise a UsageError if a file is not there."""
    if not os.path.isfile(file):
        raise UsageError(
            f"'{masked(file)}' is not there; give the file of the vectors, and with ids=FILE a table of their ids"
        )


def _arrays(path: str) -> dict[str, np.ndarray]:
    """The arrays of a file by name, mapped into memory."""
    check_file(path)
    if path.endswith(".npy"):
        return {VECTORS: _mapped(path, 2)}
    with _readable(path), zipfile.ZipFile(path) as archive:
        return {info.filename.removesuffix(".npy"): _member(path, archive, info) for info in archive.infolist()}


def _mapped(file: str, dimensions: int) -> np.ndarray:
    with _readable(file):
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.ndim != dimensions:
            shape = getattr(array, "shape", ())
            raise ValueError(
                f"its shape is {shape}, and {'rows of vectors are' if dimensions == 2 else 'one column is'} needed"
            )
    return _known(file, array)


def _member(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """An array of an .npz file, mapped where it is in the file."""
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed, and cannot be mapped; write it by numpy.savez")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read_header(stream)
        header = stream.tell()
    with open(path, "rb") as file:
        file.seek(info.header_offset + _NAME_LENGTH)
        lengths = struct.unpack("<HH", file.read(4))
    if not shape or len(shape) > 2:
        raise ValueError(f"the shape of '{info.filename}' is {shape}, and columns or rows of vectors are needed")
    if dtype.hasobject or not np.prod(shape):
        raise ValueError(f"'{info.filename}' is {'an array of Python objects' if dtype.hasobject else 'empty'}")
    offset = info.header_offset + _LOCAL_HEADER + sum(lengths) + header
    return _known(path, np.memmap(path, dtype, "r", offset, shape, order="F" if is_fortran else "C"))


def _known(file: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "biufUS":
        raise UsageError(f"'{masked(file)}' holds {array.dtype}; give numbers, or ids as texts")
    return array


def column(array: np.ndarray) -> pa.Array:
    """Rows of an array as a column: lists of numbers where they are vectors."""
    if array.ndim == 1:
        return pa.array(array.tolist())
    plain = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="), copy=False)
    return pa.FixedSizeListArray.from_arrays(pa.array(plain.reshape(-1)), array.shape[1])


@contextmanager
def _readable(file: str) -> Iterator[None]:
    try:
        yield
    except (*UNREADABLE, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UsageError(f"'{masked(file)}' cannot be read: {reason(error, file)}") from None
