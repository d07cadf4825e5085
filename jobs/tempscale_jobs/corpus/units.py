"""Divide a source into units, which tasks read independently, and read the rows of a unit.

A unit is a run of consecutive pieces: ranges of rows of a Parquet file or of a part of a store; ranges of a plain file's
bytes; whole CSV files and compressed files; shards of a hub data set. Units depend on the source
and the settings `unit_rows` and `unit_bytes` alone, so they are the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from tempscale_jobs.corpus import hub, readers, sources, stores
from tempscale_jobs.corpus.readers import KINDS, Columns, Record, Span, batches_as_records, suffix
from tempscale_jobs.corpus.sources import Source
from tempscale_jobs.urls import masked

_READERS = 16
_COUNTED_BYTES = 4 << 20


class Sizes(Protocol):
    """The settings of a source that decide its units."""

    @property
    def unit_rows(self) -> int:
        """Most rows of a unit."""

    @property
    def unit_bytes(self) -> int:
        """Most bytes of a unit, unless it is one piece that cannot be divided."""


class SourcePart(NamedTuple):
    """A part of one file, table or data set."""

    kind: str
    """parquet, lines, file, store, hub; or source: all of it, as `sources.records` reads it."""
    file: str = ""
    """The file; of a store the part; the number of a hub data set's shard."""
    place: str = ""
    """The beginning of the rows' places."""
    first: int = 0
    last: int = 0
    """The rows, or bytes of lines, from `first` to before `last`."""
    row: int | None = 0
    """The number of the first row in its file; None until the lines before it are counted."""
    rows: int | None = None
    """The number of rows; None if it is known only after reading."""
    bytes: int = 0
    names: tuple[str, ...] = ()
    """The columns to read of a store."""


@dataclass(frozen=True)
class Unit:
    """Consecutive pieces of a source: what one task reads."""

    number: int
    pieces: tuple[SourcePart, ...]
    limit: int | None = None
    """Only so many of its rows are read."""

    @property
    def rows(self) -> int | None:
        """The number of rows; None if it is known only after reading."""
        known = [piece.rows for piece in self.pieces]
        return None if None in known else sum(filter(None, known))

    @property
    def bytes(self) -> int:
        """About how many bytes are read."""
        return sum(piece.bytes for piece in self.pieces)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of its source."""
        return self.pieces[0].kind == "source"


def plan(section: Source, columns: Columns, sizes: Sizes, run_folder: str | None = None) -> tuple[Unit, ...]:
    """The units of a source in its order; one that is small, or can be read only once or only here, is a single unit."""
    units, pieces, rows, size = list[Unit](), list[SourcePart](), 0, 0
    for piece in _pieces(section, columns, sizes, run_folder):
        if pieces and (rows + (piece.rows or 0) > sizes.unit_rows or size + piece.bytes > sizes.unit_bytes):
            units.append(Unit(len(units), tuple(pieces)))
            pieces, rows, size = [], 0, 0
        pieces.append(piece)
        rows, size = rows + (piece.rows or 0), size + piece.bytes
    if pieces:
        units.append(Unit(len(units), tuple(pieces)))
    if len(units) < 2:
        return (Unit(0, (SourcePart("source", bytes=sum(unit.bytes for unit in units)),)),)
    return tuple(units)


def records(section: Source, unit: Unit, columns: Columns, run_folder: str | None = None) -> Iterator[Record]:
    """The rows of a unit, in the source's order and with their places in the source."""
    if unit.is_whole:
        yield from sources.records(section, columns, run_folder)
        return
    for piece in unit.pieces:
        yield from _records(section, piece, columns)


@contextmanager
def unchanged(section: Source, unit: Unit, state: dict[str, Any]) -> Iterator[None]:
    """Raise a Changed if the files of a unit differ from the planned state before or after the block."""
    # A data set of the hub is read as of its revision; stores are checked when all units have been read.
    files = sorted({piece.file for piece in unit.pieces if piece.kind in ("parquet", "lines", "file")})
    of_folder = any(piece.kind == "hub" for piece in unit.pieces)
    with sources.unchanged(section, state, files=None if of_folder else files) if files or of_folder else nullcontext():
        yield


def rows_in(section: Source, piece: SourcePart, columns: Columns) -> int:
    """The number of rows of a piece; a blank line is none."""
    return sum(1 for _ in _records(section, piece, columns)) if piece.rows is None else piece.rows


def lines_in(section: Source, piece: SourcePart, columns: Columns) -> int:
    """The number of lines that begin in a piece of a plain file, also blank ones."""
    with sources.readable(piece.file), sources.file_system(section).open(piece.file, "rb") as stream:
        # A line begins at the first byte of a file and behind each line feed.
        count, at = int(piece.first == 0), max(0, piece.first - 1)
        stream.seek(at)
        while at < piece.last - 1 and (block := stream.read(min(_COUNTED_BYTES, piece.last - 1 - at))):
            count, at = count + block.count(b"\n"), at + len(block)
    return count


def numbered(units: Sequence[Unit], lines: Sequence[int]) -> tuple[Unit, ...]:
    """The units with the number of each piece's first line; `lines` counts those of each piece of lines, in order."""
    counts, numbered_units = iter(lines), list[Unit]()
    file, row = "", 0
    for unit in units:
        pieces = []
        for piece in unit.pieces:
            if piece.kind == "lines":
                row = 0 if piece.file != file else row
                file, begins, row = piece.file, row, row + next(counts)
                piece = piece._replace(row=begins)
            pieces.append(piece)
        numbered_units.append(replace(unit, pieces=tuple(pieces)))
    return tuple(numbered_units)


def _pieces(section: Source, columns: Columns, sizes: Sizes, run_folder: str | None) -> Iterator[SourcePart]:
    source = section.source
    if source.startswith("docstrings:"):  # The packages are on this machine, and texts are compared among all of them.
        yield SourcePart("source")
    elif hub.is_dataset(source):
        shards = hub.shards(source)
        # A data set's shards are files of unknown length: each is a unit.
        if shards < 2:
            yield SourcePart("source")
        else:
            yield from (SourcePart("hub", str(k), bytes=sizes.unit_bytes) for k in range(shards))
    elif (store := stores.of(source)) is not None:
        names, place = tuple(stores.names_of(store, source, columns)), store.name(source)
        for part in store.parts(source, names, (sizes.unit_rows, sizes.unit_bytes)):
            for bounds in _ranges(part.first, part.number, part.rows, part.bytes, sizes):
                yield SourcePart("store", part.at, place, *bounds, names=names)
    else:
        yield from _files(section, columns, sizes, run_folder)


def _files(section: Source, columns: Columns, sizes: Sizes, run_folder: str | None) -> Iterator[SourcePart]:
    fs, files = sources.expand(section, run_folder)
    places = sources.places(files)
    for file in files:
        sources.check_kind(section, file)
    if not all(map(sources.is_read_twice, files)):
        yield SourcePart("source")
        return

    def pieces(file: str, place: str) -> list[SourcePart]:
        with sources.readable(file):
            size = int(fs.size(file) or 0)
            kind = KINDS[suffix(file)]
            if kind == "parquet":
                with fs.open(file, "rb") as stream:
                    groups = readers.row_groups(stream, place, columns)
                return [
                    SourcePart("parquet", file, place, *bounds)
                    for first, rows, group_size in groups
                    for bounds in _ranges(first, first, rows, group_size, sizes)
                ]
            if kind in ("jsonl", "text") and readers.is_plain(file) and size > sizes.unit_bytes:
                with fs.open(file, "rb") as stream:
                    readers.beginning(stream, place)  # Raises if the file is not UTF-8.
                cuts = [*range(0, size, sizes.unit_bytes), size]
                return [
                    SourcePart("lines", file, place, first, last, None if first else 0, bytes=last - first)
                    for first, last in pairwise(cuts)
                ]
            return [SourcePart("file", file, place, bytes=size)]

    with ThreadPoolExecutor(_READERS) as pool:
        for pieces_of_file in pool.map(pieces, files, places):
            yield from pieces_of_file


def _ranges(first: int, number: int, rows: int, size: int, sizes: Sizes) -> Iterator[tuple[int, int, int, int, int]]:
    """Equal ranges of rows, each at most a unit: (first, last, number of the first, rows, bytes)."""
    parts = max(1, -(-rows // sizes.unit_rows), -(-size // sizes.unit_bytes))
    cuts = [rows * k // parts for k in range(parts + 1)]
    for begin, end in pairwise(cuts):
        if end > begin:
            yield first + begin, first + end, number + begin, end - begin, size * (end - begin) // rows


def _records(section: Source, piece: SourcePart, columns: Columns) -> Iterator[Record]:
    if piece.kind == "hub":
        yield from hub.records(section.source, columns, int(piece.file))
    elif piece.kind == "store":
        store = stores.of(section.source)
        assert store is not None
        batches = store.batches(section.source, piece.file, piece.names, (piece.first, piece.last))
        yield from batches_as_records(batches, piece.place, piece.row or 0)
    else:
        with sources.readable(piece.file), sources.file_system(section).open(piece.file, "rb") as stream:
            if piece.kind == "parquet":
                yield from readers.parquet_rows(stream, piece.place, columns, piece.first, piece.last)
            elif piece.kind == "lines":
                assert piece.row is not None, "lines have been counted"
                yield from readers.lines(stream, piece.file, piece.place, columns, Span(piece.first, piece.last, piece.row))
            else:
                yield from readers.read(stream, piece.file, piece.place, columns)


def named(section: Source, unit: Unit) -> str:
    """A unit in words: its first piece, by file and rows, and the number of further pieces."""
    first, more = unit.pieces[0], len(unit.pieces) - 1
    name = f"unit {unit.number}: {_named(section, first)}"
    return name + (f" and {more:,} more" if more else "")


def _named(section: Source, piece: SourcePart) -> str:
    if piece.kind == "hub":
        return f"shard {piece.file} of {masked(section.source)}"
    file = piece.place or masked(section.source)
    if piece.row is None or piece.rows is None:  # The rows are known only after reading.
        return file if piece.kind != "lines" else f"{file}, bytes {piece.first:,} to {piece.last - 1:,}"
    return f"{file}, rows {piece.row:,} to {piece.row + piece.rows - 1:,}"


def local_files(section: Source, units: Sequence[Unit]) -> list[str]:
    """The files of this machine that units are read from; empty for other sources."""
    if (store := stores.of(section.source)) is not None:
        return store.files(section.source)
    files = {piece.file for unit in units for piece in unit.pieces if piece.kind in ("parquet", "lines", "file")}
    return sorted(files) if files and sources.is_local(section) else []
