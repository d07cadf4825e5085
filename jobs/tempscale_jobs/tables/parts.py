"""The Arrow schemas of the parts that one step writes for another below partials/, and matrices as columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tempscale_jobs.tables.columns import Column, Table


def fixed_lists(matrix: np.ndarray) -> pa.FixedSizeListArray:
    """A matrix as a column of lists, one row of the matrix in each cell."""
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])


def matrix(table: pa.Table, name: str) -> np.ndarray:
    """A column of lists of equal length as a read-only matrix."""
    column = table.column(name).combine_chunks()
    width = column.type.list_size if pa.types.is_fixed_size_list(column.type) else -1
    return np.asarray(column.flatten().to_numpy().reshape(len(column), width))


def row_bytes(matrix: np.ndarray) -> pa.FixedSizeBinaryArray:
    """A float32 matrix as a column of its rows' bytes, which Parquet reads five times as fast as lists."""
    rows = np.ascontiguousarray(matrix, dtype="<f4")
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(4 * rows.shape[1]), len(rows), [None, pa.py_buffer(rows)])


def matrix_of_bytes(table: pa.Table, name: str) -> np.ndarray:
    """The matrix that `row_bytes` stored, copied because the last bits of a product may depend on its alignment."""
    column = table.column(name).combine_chunks()
    width = column.type.byte_width
    flat = np.frombuffer(column.buffers()[1], "<f4", len(column) * width // 4, column.offset * width)
    return np.array(flat.reshape(len(column), -1), dtype=np.float32)


DOCUMENT = {"document": pa.int64()}
"""The column of texts' documents, which runs of earlier versions lack."""

TEXT_MEANS = Table(
    "text_means",
    "each text's mean over its pairs, from which standard errors and paired differences follow; below partials/",
    (
        Column("text_id", pa.string(), "", "the corpus's id"),
        Column("group", pa.int32(), "tokens", "lower edge of its length interval, or its prefix"),
        Column("inside", pa.float64(), "", "mean over its pairs with the others of its group; null where there is none"),
        Column("overall", pa.float64(), "", "mean over its pairs with all other texts; null where there is none"),
        Column("document", pa.int64(), "", "digest of its document's name; null where texts come without documents"),
    ),
)


def blocks(dim: int) -> Table:
    """The texts of one block of the pair grid, for embeddings of `dim` dimensions."""
    return Table(
        "blocks",
        "texts in canonical order, (length interval, place in the source); below partials/ until the run completes",
        (
            Column("embedding", pa.binary(4 * dim), "", "unit-norm text embedding, float32 in little-endian order"),
            Column("interval", pa.int64(), "", "index of its length interval"),
            Column("label", pa.int32(), "", "the text's rank by the keyed hash of its id; 0 where no pair is compared"),
            Column("text_id", pa.string(), "", "the corpus's id"),
            Column("document", pa.int64(), "", "digest of its document's name; null where texts come without documents"),
        ),
    )


def near_tile(k: int) -> Table:
    """The nearest texts that one super-tile found for its rows or columns."""
    return Table(
        "near_tile",
        "nearest neighbours inside two panels; below partials/ until they are merged",
        (
            Column("cosine", pa.list_(pa.float32(), k), "", "largest cosines, descending; −inf where there are fewer"),
            Column("label", pa.list_(pa.int32(), k), "", "the neighbours' ranks by the keyed hash of their ids"),
        ),
    )


def found(k: int) -> Table:
    """The nearest texts of some that asked, of all of the corpus."""
    return Table(
        "found",
        "nearest neighbours by place; below partials/ until they are counted",
        (
            Column("asker", pa.int32(), "", "the asking text's place in canonical order, or the query's number"),
            Column("place", pa.list_(pa.int32(), k), "", "places of its nearest texts; 2³¹ − 1 where there are fewer"),
        ),
    )


SERVED = Table(
    "served",
    "what an index returns for queries, as read; removed when the run completes",
    (
        Column("query_id", pa.string(), "", "the query's id, as a string"),
        Column("text_id", pa.string(), "", "the text's id, as a string"),
        Column("rank", pa.int64(), "", "the text's rank; the nearest has the least"),
        Column("query_key", pa.uint64(), "", "keyed hash of the query's id"),
        Column("text_key", pa.uint64(), "", "keyed hash of the text's id"),
    ),
)

DUPLICATE_TILE = Table(
    "duplicate_tile",
    "the near-duplicates of largest cosine of one super-tile; below partials/",
    (
        Column("cosine", pa.float32(), "", "cosine"),
        Column("first", pa.int32(), "", "one text's label"),
        Column("second", pa.int32(), "", "the other's; first < second"),
    ),
)

COSINE_TILE = Table(
    "cosine_tile",
    "the pairs of one super-tile, by cell; below partials/",
    (
        Column("a", pa.int32(), "", "index of the smaller length interval"),
        Column("b", pa.int32(), "", "index of the larger"),
        Column("pairs", pa.int64(), "pairs", "unordered pairs"),
        Column("first", pa.float64(), "", "Σ cos"),
        Column("second", pa.float64(), "", "Σ cos²"),
        Column("duplicates", pa.int64(), "pairs", "pairs whose cosine reaches the threshold of a near-duplicate"),
        Column("histogram", pa.list_(pa.int64()), "pairs", "pairs in each bin of [−1, 1]"),
    ),
)

BOUND_TILE = Table(
    "bound_tile",
    "pairs of two panels that the traces cannot rule out; below partials/",
    (
        Column("row", pa.int32(), "", "place of one text in canonical order"),
        Column("column", pa.int32(), "", "place of the other; row < column"),
        Column("cosine", pa.float32(), "", "cosine of their embeddings"),
        Column("ranking", pa.uint8(), "", "1 `socm`, 2 `same_mean`, 3 both"),
    ),
)

SOCM_GROUP = Table(
    "socm_group",
    "one group of texts and its pairs; below partials/",
    (
        Column("text_id", pa.list_(pa.string()), "", "the corpus's ids"),
        Column("tokens", pa.list_(pa.int32()), "tokens", "their lengths"),
        Column("trace", pa.list_(pa.float64()), "", "their tr Σ"),
        Column("d_mu", pa.list_(pa.float64()), "", "d_μ of their pairs in row-major order of the upper triangle"),
        Column("d_sigma", pa.list_(pa.float64()), "", "d_Σ of the same"),
    ),
)

SOCM_TILE = Table(
    "socm_tile",
    "the pairs of one super-tile of the SOCM sample; below partials/",
    (
        Column("row", pa.int32(), "", "place of one text in the sample's order, (tokens, id)"),
        Column("column", pa.int32(), "", "place of the other; row < column"),
        Column("d_mu", pa.float64(), "", "d_μ"),
        Column("d_sigma", pa.float64(), "", "d_Σ"),
    ),
)
