"""Read the exact vectors of a FAISS file, flat, HNSW over flat, or IVF, in the order of their ids."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tempscale.optional import missing, needs
from tempscale_jobs.corpus import arrays
from tempscale_jobs.corpus.address import Address, Part
from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import masked, reason

FIXED = False
_PREFIX = "faiss:"
_ID_BYTES = 8


def kind(source: str) -> str | None:
    """`faiss`, by the prefix or the file's ending."""
    return "faiss" if source.startswith(_PREFIX) or source.partition("?")[0].endswith(".faiss") else None


def name(source: str) -> str:
    """The file's name."""
    return os.path.basename(_where(source).path)


def state(source: str) -> dict[str, Any]:
    """Size, time and place of each file."""
    return arrays.state(source.removeprefix(_PREFIX))


def files(source: str) -> list[str]:
    """The file, and the one with further columns."""
    return arrays.files(source.removeprefix(_PREFIX))


def columns(source: str) -> list[str]:
    """The ids, unless a file has them, the vectors, and the further columns."""
    settings = _where(source).settings
    _vectors(source)
    further = arrays.columns_beside(settings)
    return [*(() if arrays.IDS in further else (arrays.IDS,)), arrays.VECTORS, *further]


def parts(source: str, names: Sequence[str], most: tuple[int, int]) -> list[Part]:
    """All vectors, as one part."""
    ids, width, _ = _vectors(source)
    settings = _where(source).settings
    if settings and not np.array_equal(ids, np.arange(len(ids))):
        raise UsageError(f"'{name(source)}' has ids of its own, so ids= cannot name its rows by number; leave ids= out")
    arrays.check_rows_beside(settings, len(ids), name(source))
    return [Part("", 0, 0, len(ids), len(ids) * (4 * width + _ID_BYTES))]


def batches(source: str, at: str, names: Sequence[str], rows: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    """Vectors with their ids, and the further columns of these rows."""
    ids, _, rows_of = _vectors(source)

    def cells(first: int, last: int) -> dict[str, pa.Array]:
        found = {arrays.IDS: pa.array(ids[first:last])}
        return found | ({arrays.VECTORS: arrays.column(rows_of(first, last))} if arrays.VECTORS in names else {})

    yield from arrays.with_columns(_where(source).settings, names, rows, cells)


def release(source: str) -> None:
    """Nothing is held."""


def _where(source: str) -> Address:
    return arrays.where(source.removeprefix(_PREFIX))


def _vectors(source: str) -> tuple[np.ndarray, int, Callable[[int, int], np.ndarray]]:
    """The ids in order, the dimensions, and the function of the vectors from the first to before the last."""
    path = _where(source).path
    arrays.check_file(path)
    try:
        faiss = importlib.import_module("faiss")
    except ImportError as error:
        raise UsageError(needs(f"'{name(source)}', a file of FAISS,", missing(error) or "faiss")) from None
    try:
        index = faiss.read_index(path, faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
    except RuntimeError as error:
        raise UsageError(
            f"'{masked(path)}' cannot be read as a file of FAISS: {reason(error).split('Error: ')[-1]}"
        ) from None
    whole, names, width = index, None, int(index.d)
    if isinstance(index, faiss.IndexIDMap):
        names, index = faiss.vector_to_array(index.id_map), faiss.downcast_index(index.index)
    if isinstance(index, faiss.IndexHNSWFlat):
        index = faiss.downcast_index(index.storage)
    if isinstance(index, faiss.IndexIVFFlat):
        lists, offsets, ids = _inverted(faiss, index)
    elif isinstance(index, faiss.IndexFlat):
        lists, offsets, ids = None, np.arange(index.ntotal), np.arange(index.ntotal)
    else:
        raise UsageError(
            f"'{masked(path)}' is an {type(index).__name__}, whose vectors are not exact; give a flat or IVF-flat index, or "
            "the vectors that it was made of"
        )
    ids = ids if names is None else names[ids]
    order = np.argsort(ids, kind="stable")

    def rows_of(first: int, last: int) -> np.ndarray:
        assert last <= whole.ntotal, "the whole index owns the memory of the one inside"
        chosen = order[first:last]
        if lists is None:
            stored = faiss.rev_swig_ptr(index.get_xb(), int(index.ntotal) * width).reshape(-1, width)
            return np.asarray(stored[offsets[chosen]])
        found = np.empty((len(chosen), width), np.float32)
        for number in np.unique(lists[chosen]).tolist():
            here = lists[chosen] == number
            stored = _codes(faiss, index, number, width)
            found[here] = stored[offsets[chosen[here]]]
        return found

    return ids[order], width, rows_of


def _inverted(faiss: Any, index: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The list, the place there and the id of each vector of an IVF index."""
    sizes = [index.invlists.list_size(k) for k in range(index.nlist)]
    ids = [faiss.rev_swig_ptr(index.invlists.get_ids(k), size).copy() for k, size in enumerate(sizes) if size]
    offsets = [np.arange(size) for size in sizes if size]
    none = np.zeros(0, np.int64)
    return np.repeat(np.arange(len(sizes)), sizes), np.concatenate([none, *offsets]), np.concatenate([none, *ids])


def _codes(faiss: Any, index: Any, number: int, width: int) -> np.ndarray:
    """The vectors of a list of an IVF index."""
    size = index.invlists.list_size(number)
    stored = faiss.rev_swig_ptr(index.invlists.get_codes(number), size * index.code_size)
    return np.asarray(stored).view(np.float32).reshape(size, width)
