"""What each step of an audit reads and writes, from the constants that decide its files: a part of `--plan`.

A row's bytes are those of a few random rows, and of the corpus's own ids and texts, in the step's own table, as Parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tempscale.collapse.aggregates import BINS
from tempscale.collapse.grid import block_size, panel_size
from tempscale_jobs.collapse import blocks as blocks_of
from tempscale_jobs.collapse import by_length, exposure, neighbours
from tempscale_jobs.collapse import cosine as gathering
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.corpus import distinct, reading, shards, vectors
from tempscale_jobs.runs import sealed
from tempscale_jobs.tables import audit, parts
from tempscale_jobs.tables.columns import Table

_FOOTER_READ = 64 << 10
"""Bytes at the end of a Parquet file that Arrow reads first."""
_SAMPLE = 1024
"""Rows that a table's bytes are measured on."""
_ID_ROW = 16
"""Bytes of an id's digest and row."""
_SOURCE_IDS = 12


class Traffic(NamedTuple):
    """What one step reads and writes."""

    step: str
    read: float
    written: float
    files: int
    """Files that it writes."""


@dataclass(frozen=True)
class Given:
    """What is known of the corpus as files."""

    ids: tuple[str, ...]
    """The ids of a few texts,"""
    contents: tuple[str, ...] = ()
    """their texts; empty for embeddings of your own,"""
    lengths: tuple[int, ...] = (1,)
    """and their lengths in tokens."""
    units: int = 1
    bytes: int = 0
    """What is read of the source."""


@dataclass(frozen=True)
class _Sizes:
    """The bytes of the files of one table."""

    columns: dict[str, float] = field(default_factory=dict)
    """Of one row, by column."""
    fixed: float = 0.0
    """Of the file itself."""

    def size(self, rows: float) -> float:
        """Of a file of so many rows."""
        return self.fixed + rows * sum(self.columns.values())

    def read(self, rows: float, names: Sequence[str]) -> float:
        """What is read of a file for some columns: first its end, then these."""
        own = sum(self.columns[name] for name in names)
        return min(_FOOTER_READ, self.size(rows)) + rows * own


def steps(config: AuditConfig, texts: int, width: int, given: Given, workers: int) -> list[Traffic]:
    """Reading, embedding, cosines and exposure, over all temperatures of one model."""
    own, several = config.corpus.embedding_column is not None, len(config.temperatures())
    stored = _sizes(audit.texts(width), given.ids)
    count = _parts(config, texts, given)
    rows = texts / count
    found = [_reading(config, texts, count, stored, given)]
    if not own:
        shards = _sizes(audit.SHARDS, given.ids, given.contents)
        read, written = (count * sizes.size(rows) for sizes in (shards, stored))
        read += count * min(_FOOTER_READ, shards.size(rows))
        # A shard's marks are a file, too, until it is embedded.
        found.append(Traffic("embed", read, several * written, (several + 1) * count))
    layout = count * stored.read(rows, ["text_id", "tokens", "document", "source_row"])
    cosine = _cosine(config, texts, width, count, stored, given, workers)
    found.append(Traffic("cosine", layout + several * cosine.read, several * cosine.written, several * cosine.files))
    if config.analysis.compares:
        each = (_exposure if config.analysis.cosine == "full" else _sample)(config, texts, width, count, stored, given)
        read, written, files = several * each.read, several * each.written, several * each.files
        if config.analysis.length_correction and config.analysis.neighbours:  # Of the first temperature.
            more = _by_length(config, texts, width, count, stored, given)
            read, written, files = read + more.read, written + more.written, files + more.files
        found.append(Traffic("exposure", read, written, files))
    return found


def _parts(config: AuditConfig, texts: int, given: Given) -> int:
    """Parts of texts/, which are also the shards of a model."""
    unit = texts / given.units
    if config.corpus.embedding_column is not None:
        return int(given.units * -(-unit // vectors.PART))
    characters = unit * float(np.mean([len(text) for text in given.contents] or [0]))
    least = max(1, -(-unit // shards.most_texts(config.corpus, config.embedding)))
    largest = config.embedding.shard_characters
    first = shards.shards_of(characters, largest)
    return int(max(least, first) + (given.units - 1) * max(least, -(-characters // largest)))


def _reading(config: AuditConfig, texts: int, count: int, stored: _Sizes, given: Given) -> Traffic:
    """The source is read once; with several units the ids of each are kept and compared."""
    sizes = _sizes(audit.SHARDS, given.ids, given.contents) if config.corpus.embedding_column is None else stored
    read, written, files = float(given.bytes), count * sizes.size(texts / count), count + 1
    if given.units > 1:
        ids = texts * (_ID_ROW + _SOURCE_IDS + 2 * stored.columns["text_id"])
        parts = max(1, -(-texts // distinct.PARTITION_IDS))
        # A partition takes at least a row group of each unit.
        read += max(texts, parts * given.units * min(reading.IDS_OF_A_GROUP, texts / given.units)) * _ID_ROW
        written, files = written + ids, files + 2 * given.units + 1
    return Traffic("read", read, written, files)


def _cosine(
    config: AuditConfig, texts: int, width: int, count: int, stored: _Sizes, given: Given, workers: int
) -> Traffic:  # fmt: skip
    """Parts are gathered into blocks, blocks summed twice, and all pairs of panels compared."""
    full, intervals = config.analysis.cosine == "full", _intervals(config, given)
    block = block_size(texts, width)
    blocks = -(-texts // block)
    together = max(1, min(gathering.GATHERED_BYTES // (4 * width) // min(block, texts), -(-blocks // workers)))
    tasks, rows, own = -(-blocks // together), texts / count, texts / blocks
    asked = min(tasks * count, intervals * count + 2 * tasks)
    sizes = _sizes(parts.blocks(width), given.ids, compression="none")
    means = _sizes(parts.TEXT_MEANS, given.ids)
    products = ["embedding", "interval", "label"]
    each = sizes.read(own, products)
    read = asked * stored.read(rows, ["embedding", "text_id", "document"])
    read += blocks * sizes.read(own, ["text_id", "document"])
    written, files = blocks * (sizes.size(own) + means.size(own)), 2 * blocks + 2
    looked, at_hand = 2.0 * blocks, blocks_of.kept(own * width * 4)
    if full:
        panel = panel_size(blocks)
        panels = -(-blocks // panel)
        pairs = panels * (panels + 1) // 2
        # Of two panels the rows' are at hand: one block, all blocks if they are small, or the block of the current row.
        looked += pairs if panel == 1 else pairs * panel + blocks if at_hand >= 2 * panel else pairs * panel * (1 + panel)
        cells = _sizes_of_cells(intervals)
        found = _sizes(parts.DUPLICATE_TILE, ()).fixed + cells
        read += pairs * 2 * cells
        written, files = written + pairs * found, files + 2 * pairs
        if config.analysis.neighbours:
            near = _near_sizes(config.analysis.neighbours, texts)
            lists = panels * panels
            written, files = written + lists * near.size(texts / panels), files + lists
    # Blocks that are all kept are read once by each process, of which there is one more than there are workers.
    read += each * (min(looked, (workers + 1) * blocks) if at_hand >= blocks else looked)
    return Traffic("cosine", read, written, files)


def _exposure(config: AuditConfig, texts: int, width: int, count: int, stored: _Sizes, given: Given) -> Traffic:
    """The lists of each panel are merged, and the neighbours of each block written with their ids."""
    k = config.analysis.neighbours
    blocks = -(-texts // block_size(texts, width))
    panels = -(-blocks // panel_size(blocks))
    duplicates = _sizes(parts.DUPLICATE_TILE, ())
    read, written, files = panels * (panels + 1) // 2 * 2 * duplicates.fixed, 0.0, 4
    # The ids of what is listed are read from the parts that hold them.
    read += min(count, 2 * config.analysis.worst_duplicates) * stored.read(texts / count, ["text_id"])
    if k:
        read += min(count, exposure.LISTED) * stored.read(texts / count, ["text_id"])
        near, ids = _near_sizes(k, texts), _sizes(parts.blocks(width), given.ids, compression="none")
        read += panels * panels * near.read(texts / panels, [*near.columns])
        read += blocks * ids.read(texts / blocks, ["text_id"]) + count * stored.read(texts / count, ["text_id"])
        graph, found = _graph_sizes(k, given.ids, texts), _found_sizes(k, texts)
        written = blocks * graph.size(texts / blocks) + panels * found.size(texts / panels)
        read += _counting(k, texts) * panels * found.read(texts / panels, [*found.columns])
        files += blocks + panels
    return Traffic("exposure", read, written, files)


def _sample(config: AuditConfig, texts: int, width: int, count: int, stored: _Sizes, given: Given) -> Traffic:
    """A sample is read from the parts that hold it, all blocks once for every 4,096 of its texts, and the ids found."""
    return _asked(min(texts, config.analysis.exposure_sample), config, texts, width, count, stored, given)


def _by_length(config: AuditConfig, texts: int, width: int, count: int, stored: _Sizes, given: Given) -> Traffic:
    """A curve is fitted on some texts; where the tiles have found the neighbours, texts ask again for what it corrects."""
    asking, full = min(texts, config.analysis.exposure_sample), config.analysis.cosine == "full"
    if full and texts <= by_length.ALL_ASK:
        asking = texts
    if not asking:
        return Traffic("exposure", 0.0, 0.0, 0)
    fitted = _holding(min(texts, by_length.FITTED), count) * stored.read(texts / count, ["embedding"])
    if full:
        found = _asked(asking, config, texts, width, count, stored, given)
        return found._replace(read=found.read + fitted)
    k, groups = config.analysis.neighbours, -(-asking // neighbours.ASKING)
    graph, found_sizes = _graph_sizes(k, given.ids, texts), _found_sizes(k, texts)
    read = fitted + _counting(k, texts) * groups * found_sizes.read(asking / groups, [*found_sizes.columns])
    written = groups * (graph.size(asking / groups) + found_sizes.size(asking / groups))
    return Traffic("exposure", read, written, 2 * groups + 1)


def _asked(
    asking: int, config: AuditConfig, texts: int, width: int, count: int, stored: _Sizes, given: Given
) -> Traffic:  # fmt: skip
    """So many texts ask the whole corpus for their nearest."""
    k, blocks, groups = config.analysis.neighbours, -(-texts // block_size(texts, width)), -(-asking // neighbours.ASKING)
    sizes = _sizes(parts.blocks(width), given.ids, compression="none")
    read = groups * blocks * sizes.read(texts / blocks, ["embedding", "interval", "label"])
    read += _holding(asking, count) * (
        stored.read(texts / count, ["embedding"]) + stored.read(texts / count, ["text_id"])
    )  # fmt: skip
    read += _holding(asking * k, count) * stored.read(texts / count, ["text_id"])
    graph, found = _graph_sizes(k, given.ids, texts), _found_sizes(k, texts)
    read += _counting(k, texts) * groups * found.read(asking / groups, [*found.columns])
    written = groups * (graph.size(asking / groups) + found.size(asking / groups))
    return Traffic("exposure", read, written, 2 * groups + 3)


def _holding(texts: int, count: int) -> float:
    """Of so many parts, about how many hold some of these random texts."""
    return count * -float(np.expm1(-texts / count))


def _counting(k: int, texts: int) -> int:
    """How often the neighbours are read to be counted: by each range of texts, for the nearest alone and for all."""
    return len({1, k}) * -(-texts // exposure.UNITS_OF_A_TASK)


def _intervals(config: AuditConfig, given: Given) -> int:
    """Intervals that have texts."""
    return len(np.unique(np.searchsorted(config.analysis.intervals, given.lengths, side="right")))


# --- bytes of rows ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _sizes(table: Table, ids: tuple[str, ...], contents: tuple[str, ...] = (), compression: str = "zstd") -> _Sizes:
    """The bytes of a table's rows and files."""
    random = np.random.default_rng(0)
    rows = {column.name: _values(column.name, column.type, ids, contents, random) for column in table.columns}
    return _encoded(table.build(rows), compression)


def _encoded(rows: pa.Table, compression: str) -> _Sizes:
    data = sealed.parquet(rows, compression)
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    columns = dict.fromkeys(rows.column_names, 0.0)
    for k in range(group.num_columns):
        cell = group.column(k)
        columns[cell.path_in_schema.split(".")[0]] += cell.total_compressed_size / rows.num_rows
    return _Sizes(columns, len(data) - rows.num_rows * sum(columns.values()))


def _values(
    name: str, kind: pa.DataType, ids: tuple[str, ...], contents: tuple[str, ...], random: np.random.Generator
) -> Any:
    """Random values of a column, and the given ids and texts."""
    if name == "text_id":
        return [*ids[:_SAMPLE], *(str(k) for k in range(len(ids), _SAMPLE))]
    if name == "text":
        return [(contents or ("",))[k % max(1, len(contents))] for k in range(_SAMPLE)]
    if pa.types.is_string(kind):
        return [random.bytes(32).hex() for _ in range(_SAMPLE)]
    if name in ("document", "source_row"):
        return pa.nulls(_SAMPLE, kind)
    if pa.types.is_boolean(kind):
        return np.zeros(_SAMPLE, bool)
    if pa.types.is_fixed_size_list(kind):
        values = random.normal(size=_SAMPLE * kind.list_size)
        flat = (
            values.astype(np.float32) if pa.types.is_floating(kind.value_type) else (np.abs(values) * 1e8).astype(np.int32)
        )
        return pa.FixedSizeListArray.from_arrays(pa.array(flat), kind.list_size)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([random.bytes(kind.byte_width) for _ in range(_SAMPLE)], kind)
    if pa.types.is_floating(kind):
        return random.normal(size=_SAMPLE).astype(kind.to_pandas_dtype())
    return random.integers(1, 400, _SAMPLE).astype(kind.to_pandas_dtype())


@lru_cache(maxsize=8)
def _sizes_of_cells(intervals: int) -> float:
    """The bytes of the aggregates of two panels: a histogram for each pair of intervals."""
    random, cells = np.random.default_rng(0), intervals * (intervals + 1) // 2
    histogram, _ = np.histogram(random.normal(0.3, 0.15, 1 << 18), BINS, (-1, 1))
    rows = [
        {"a": 0, "b": k, "pairs": 1, "first": 0.5, "second": 0.5, "duplicates": 0, "histogram": histogram}
        for k in range(cells)
    ]  # fmt: skip
    return _encoded(parts.COSINE_TILE.build_rows(rows), "zstd").size(cells)


@lru_cache(maxsize=8)
def _near_sizes(k: int, texts: int) -> _Sizes:
    """The bytes of the lists that two panels leave."""
    random = np.random.default_rng(0)
    cosine = np.sort(random.normal(0.4, 0.1, (_SAMPLE, k)).astype(np.float32))[:, ::-1]
    label = random.integers(0, texts, (_SAMPLE, k)).astype(np.int32)
    columns = {"cosine": parts.fixed_lists(cosine), "label": parts.fixed_lists(label)}
    return _encoded(parts.near_tile(k).build(columns), "zstd")


@lru_cache(maxsize=8)
def _found_sizes(k: int, texts: int) -> _Sizes:
    """The bytes of the neighbours by place."""
    random = np.random.default_rng(0)
    place = random.integers(0, texts, (_SAMPLE, k)).astype(np.int32)
    columns = {"asker": np.arange(_SAMPLE, dtype=np.int32), "place": parts.fixed_lists(place)}
    return _encoded(parts.found(k).build(columns), "zstd")


@lru_cache(maxsize=8)
def _graph_sizes(k: int, ids: tuple[str, ...], texts: int) -> _Sizes:
    """The bytes of the neighbour graph, whose ids are dictionaries where a block repeats them."""
    random, names = np.random.default_rng(0), list(ids)
    for i in range(len(ids), max(_SAMPLE, min(texts, 16 * _SAMPLE))):
        like = ids[i % len(ids)] if ids else ""
        names.append(f"{like}{i}"[-max(len(like), len(str(i))) :])
    rows = {
        "text_id": names[:_SAMPLE],
        "neighbours": [[names[i] for i in random.integers(0, min(texts, len(names)), k)] for _ in range(_SAMPLE)],
        "cosines": np.sort(random.normal(0.4, 0.1, (_SAMPLE, k)).astype(np.float32))[:, ::-1].tolist(),
    }
    return _encoded(audit.NEIGHBOURS.build(rows), "zstd")
