"""Read, write and list files, local or remote (fsspec).

A file appears whole or not at all: locally a temporary file is renamed; remotely one PUT is made and its size checked.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.core import has_magic
from fsspec.implementations.local import LocalFileSystem

from tempscale.optional import missing, needs
from tempscale_jobs.errors import Damaged, IncompleteRun, UsageError
from tempscale_jobs.runs import sealed
from tempscale_jobs.urls import masked, reason

if TYPE_CHECKING:
    import polars as pl


_READERS = 16
"""Files that are read at the same time, and at most so many before they are used."""
_TEMPORARY = ".writing-"
_CREATES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"}
"""The storages whose fsspec creates a file with one conditional request."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""The errors of file systems without hard links, such as FUSE and SMB."""


class Known(dict[str, Any]):
    """The contents of a file or a folder of a run, by name; a missing name raises Damaged."""

    def __init__(self, values: Mapping[str, Any], damage: Callable[[str], Damaged]) -> None:
        super().__init__(values)
        self._damage = damage

    def __missing__(self, name: str) -> Any:
        raise self._damage(name)


class Storage:
    """The files in one folder, named by paths relative to it; small, because it is sent to workers."""

    def __init__(self, root: str) -> None:
        scheme, remote, rest = root.partition("://")
        self.root = f"{scheme}://{rest.rstrip('/')}" if remote else os.path.abspath(os.path.expanduser(root))
        self._check: Callable[[], None] = _nothing

    def __reduce__(self) -> tuple[type[Storage], tuple[str]]:
        return Storage, (self.root,)

    def guarded(self, check: Callable[[], None]) -> Storage:
        """The same files in this process; before each is written `check` is called, which may raise."""
        other = object.__new__(type(self))
        other.__dict__ |= self.__dict__ | {"_check": check}
        return other

    @cached_property
    def filesystem(self) -> tuple[Any, str]:
        """The file system of fsspec, and the folder's path in it."""
        if self.is_local:  # fsspec would take :: in a name for a chain of addresses.
            return LocalFileSystem(), self.root.removeprefix("file://")
        try:
            # Never cache listings, because other processes write too.
            fs, path = fsspec.core.url_to_fs(self.root, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            if (module := missing(error)) is not None:
                raise UsageError(needs(f"'{masked(self.root)}'", module)) from None
            raise UsageError(f"'{masked(self.root)}' cannot be opened: {reason(error, self.root)}") from None
        return fs, path.rstrip("/")

    def check_reachable(self) -> None:
        """Raise a UsageError if a remote storage does not exist, cannot be reached or gets no credentials."""
        try:
            if not self.is_local:
                self.exists("")
        except UsageError:
            raise
        except Exception as error:  # Every storage has its own exceptions.
            raise UsageError(f"'{masked(self.root)}' cannot be opened: {reason(error, self.root)}") from None

    @property
    def is_local(self) -> bool:
        """Whether the folder is on this machine's file system."""
        return "://" not in self.root or self.root.startswith("file://")

    def path(self, name: str) -> str:
        """The full path of a name."""
        return f"{self.filesystem[1]}/{name}" if name else self.filesystem[1]

    def exists(self, name: str) -> bool:
        """Whether the file or folder exists."""
        return bool(self.filesystem[0].exists(self.path(name)))

    def names(self) -> list[str]:
        """The names of the files and folders directly in the folder; empty if it does not exist."""
        fs, root = self.filesystem
        if not fs.exists(root):
            return []
        names = (file.rstrip("/").rsplit("/", 1)[-1] for file in fs.ls(root, detail=False) if file.rstrip("/") != root)
        return sorted(name for name in names if not name.startswith(_TEMPORARY))

    def list(self, folder: str, suffix: str = "") -> list[str]:
        """The sorted names of all finished files below a folder."""
        fs, root = self.filesystem
        if not fs.exists(self.path(folder)):
            return []
        names = [
            os.path.relpath(file, root) if self.is_local else file[len(root) + 1 :] for file in fs.find(self.path(folder))
        ]
        return sorted(n for n in names if n.endswith(suffix) and not n.rsplit("/", 1)[-1].startswith(_TEMPORARY))

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        return bytes(self.filesystem[0].cat_file(self.path(name)))

    def opened(self, name: str) -> Any:
        """A file, open for reading as bytes."""
        return self.filesystem[0].open(self.path(name), "rb")

    def write(self, name: str, data: bytes, durable: bool = True) -> None:
        """Write a file whole or not at all; a `durable` file survives a crash of the machine, not only of this process."""
        self._check()
        fs, _ = self.filesystem
        target = self.path(name)
        try:
            if not self.is_local:
                fs.pipe_file(target, data)
                if fs.info(target)["size"] != len(data):
                    raise IncompleteRun(f"'{masked(self.root)}/{name}' was not written whole; start the same command again")
                return
            with _temporary(target, data, durable) as temporary:
                os.replace(temporary, target)
        except OSError as error:
            why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or reason(error, self.root)
            path = masked(f"{self.root}/{name}")
            raise IncompleteRun(f"cannot write '{path}': {why}; mend that and start the same command again") from None

    def create(self, name: str, data: bytes) -> bool:
        """Create a file unless it exists, in one atomic step (else NotImplementedError); return whether it was created."""
        fs, _ = self.filesystem
        target = self.path(name)
        if self.is_local:
            with _temporary(target, data, durable=False) as temporary:
                try:
                    os.link(temporary, target)
                except FileExistsError:
                    return False
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    return _created_alone(target, data)
            return True
        if not _CREATES.intersection([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol):
            # fsspec checks and then writes, so two processes could both create the file.
            raise NotImplementedError(f"'{masked(self.root)}' is on a storage without such a step")
        try:
            fs.pipe_file(target, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if "PreconditionFailed" in str(error) or "At least one of the pre-conditions" in str(error):
                return False  # Some stores answer this if the file exists.
            raise
        except (TypeError, ValueError):
            raise NotImplementedError(f"'{masked(self.root)}' is on a storage without such a step") from None
        return True

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it exists."""
        if not self.exists(name):
            return
        (fs, _), path = self.filesystem, self.path(name)
        if self.is_local or not has_magic(path):
            fs.rm(path, recursive=True)
            return
        # fsspec's `rm` takes a name with brackets, ? or * for a pattern, and removes all files that match.
        files, folders = fs.find(path), fs.find(path, withdirs=True)
        for file in files:
            fs.rm_file(file)
        for folder in sorted({*folders, path} - {*files}, reverse=True):
            with suppress(Exception):  # Object storages have no folders, and every storage has its own exceptions.
                fs.rmdir(folder)

    def remove_empty(self, folder: str) -> None:
        """Remove a folder and its subfolders, except those with files, also unfinished ones."""
        if self.is_local:
            for inside, _, _ in os.walk(self.path(folder), topdown=False):
                with suppress(OSError):  # It is not empty.
                    os.rmdir(inside)
        elif not self.list(folder):
            self.remove(folder)

    def sweep(self, seconds: float = 0.0) -> None:
        """Remove the unfinished files of killed writers that have not changed for `seconds`."""
        fs, _ = self.filesystem
        if self.is_local and fs.exists(self.path("")):
            for file in fs.find(self.path("")):
                if os.path.basename(file).startswith(_TEMPORARY):
                    with suppress(FileNotFoundError):  # A live writer has renamed it.
                        if time.time() - os.path.getmtime(file) >= seconds:
                            os.unlink(file)

    def sizes(self, folder: str) -> dict[str, int]:
        """The size in bytes of each finished file below a folder, by name."""
        fs, root = self.filesystem
        if not fs.exists(self.path(folder)):
            return {}
        sizes = dict[str, int]()
        for file, info in fs.find(self.path(folder), detail=True).items():
            name = os.path.relpath(file, root) if self.is_local else file[len(root) + 1 :]
            if not name.rsplit("/", 1)[-1].startswith(_TEMPORARY):
                sizes[name] = int(info["size"] if "size" in info else fs.size(file))
        return sizes

    def digests(self, names: Sequence[str], check: bool = False) -> Sequence[str]:
        """The digest of each file, several read at once; with `check`, Damaged if one is not what was written."""
        with ThreadPoolExecutor(_READERS) as pool:
            return [*pool.map(lambda name: self._digest(name, check), names)]

    def _digest(self, name: str, check: bool) -> str:
        with self._readable(name):
            data = self.read(name)
        try:
            if check:
                sealed.check(name, data)
        except (sealed.Broken, pa.ArrowException, OSError) as error:
            raise self._damaged(name, error) from None
        return hashlib.blake2b(data, digest_size=16).hexdigest()

    def read_table(
        self, name: str, columns: Sequence[str] | None = None, later: Mapping[str, pa.DataType] | None = None
    ) -> pa.Table:
        """Read a Parquet file or some columns; those in `later`, which earlier versions did not write, may be null."""
        with self._parquet(name, pre_buffer=True) as file:
            table = file.read(columns=None if columns is None and not later else [*(columns or ()), *(later or ())])
        if not later:
            return table if columns is None else table.select([*columns])
        for column, kind in later.items():
            if column not in table.column_names:
                table = table.append_column(column, pa.nulls(table.num_rows, kind))
        return table

    def read_range(
        self, name: str, by: str, low: Any, high: Any = None, columns: Sequence[str] | None = None
    ) -> pa.Table:  # fmt: skip
        """The rows of a Parquet file whose value of the column `by` is from `low` to before `high`, or without end."""
        # Row groups without such rows are not read, so of a file that is sorted by this column only a part is read.
        selected = None if columns is None else list(dict.fromkeys([by, *columns]))
        with self._parquet(name) as file:
            groups = []
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                chunks = map(group.column, range(group.num_columns))
                (stats,) = (column.statistics for column in chunks if column.path_in_schema == by)
                if stats is not None and stats.max >= low and (high is None or stats.min < high):  # None: there is no row.
                    groups.append(number)
            # Without Arrow's threads: a process that ends while they call into this Python stream aborts.
            table = file.read_row_groups(groups, columns=selected, use_threads=False)
        kind, values = table.schema.field(by).type, table.column(by)
        mask = pc.greater_equal(values, pa.scalar(low, kind))
        if high is not None:
            mask = pc.and_(mask, pc.less(values, pa.scalar(high, kind)))
        table = table.filter(mask)
        return table if columns is None else table.select([*columns])

    def read_frames(
        self, names: Sequence[str], columns: Sequence[str] | None = None, later: Mapping[str, pa.DataType] | None = None
    ) -> Sequence[pl.DataFrame]:
        """Read many small parts at the same time; return them in the given order. See `read_table`."""
        import polars as pl

        with ThreadPoolExecutor(_READERS) as pool:
            tables = pool.map(lambda name: self.read_table(name, columns, later), names)
            return [pl.DataFrame(pl.from_arrow(table)) for table in tables]

    def columns(self, names: Sequence[str], columns: Sequence[str]) -> Iterator[Sequence[pa.ChunkedArray]]:
        """Columns of Parquet files in their order; several files are read at once, shortly before they are used."""
        with ThreadPoolExecutor(_READERS) as pool:
            ahead: deque[Any] = deque()
            for name in names:
                ahead.append(pool.submit(self.read_table, name, columns))
                if len(ahead) > _READERS:
                    yield ahead.popleft().result().select([*columns]).columns
            while ahead:
                yield ahead.popleft().result().select([*columns]).columns

    def taken(self, names: Sequence[str], columns: Sequence[str], rows: Sequence[np.ndarray]) -> Iterator[pa.Table]:
        """Columns of some rows of each Parquet file, several files at once; see `take`."""
        with ThreadPoolExecutor(_READERS) as pool:
            yield from pool.map(lambda name, selected: self.take(name, columns, selected), names, rows)

    def take(self, name: str, columns: Sequence[str], rows: np.ndarray) -> pa.Table:
        """Columns of some rows of a Parquet file, in the given order; row groups without them are not read."""
        with self._parquet(name) as file:
            sizes = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
            starts = np.cumsum([0, *sizes])
            group = np.searchsorted(starts, rows, side="right") - 1
            parts, order = [], []
            for number in np.unique(group).tolist():
                positions = np.flatnonzero(group == number)
                # Without Arrow's threads: see `read_range`.
                values = file.read_row_group(number, columns=[*columns], use_threads=False).select([*columns])
                parts.append(values.take(pa.array(rows[positions] - starts[number])))
                order.append(positions)
        places = np.concatenate(order)
        table = pa.concat_tables(parts)
        return table if (np.diff(places) == 1).all() else table.take(pa.array(np.argsort(places)))

    def arrays(self, names: Sequence[str], columns: Sequence[str], rows: int) -> Sequence[np.ndarray]:
        """Columns of numbers of Parquet files one after the other; an IncompleteRun unless they have `rows` rows in all."""
        arrays: Sequence[np.ndarray] = [np.zeros(0)] * len(columns)
        filled = 0
        for chunks in self.columns(names, columns):
            values = [column.to_numpy() for column in chunks]
            if not filled:
                arrays = [np.empty(rows, column.dtype) for column in values]
            if filled + len(values[0]) > rows:
                break
            for array, column in zip(arrays, values, strict=True):
                array[filled : filled + len(column)] = column
            filled += len(values[0])
        else:
            if filled == rows:
                return arrays
        raise IncompleteRun(f"files of '{masked(self.root)}' do not hold {rows:,} rows; start over with --fresh")

    def rows(self, name: str) -> int:
        """The number of rows of a Parquet file, from its footer."""
        with self._parquet(name) as file:
            return int(file.metadata.num_rows)

    def size(self, name: str) -> int:
        """The size of a file in bytes."""
        return int(self.filesystem[0].size(self.path(name)))

    def write_table(
        self, name: str, table: pa.Table, compression: str = "zstd", rows_of_group: int | None = None
    ) -> None:  # fmt: skip
        """Write a Parquet file; equal tables give equal bytes."""
        self.write(name, sealed.parquet(table, compression, rows_of_group))

    def read_json(self, name: str) -> Any:
        """Read a JSON file; Damaged if it is not what was written."""
        with self._readable(name):
            data = self.read(name)
        try:
            return sealed.loads(data)
        except sealed.Broken as error:
            raise self._damaged(name, error) from None

    def read_object(self, name: str) -> Known:
        """Read a JSON file that holds an object; a key that it lacks is damage too."""
        value = self.read_json(name)
        if not isinstance(value, dict):
            raise self._damaged(name, ValueError("it holds no object"))
        return Known(value, lambda key: self._damaged(name, ValueError(f"it says nothing of '{key}'")))

    def write_json(self, name: str, value: Any, durable: bool = True, plain: bool = False) -> None:
        """Write a JSON file with keys in the given order; an object ends with its checksum, unless it is `plain`."""
        self.write(name, sealed.dumps(value, plain), durable)

    @contextmanager
    def _parquet(self, name: str, pre_buffer: bool = False) -> Iterator[pq.ParquetFile]:
        """A Parquet file; damage that the block comes upon is raised as a Damaged."""
        with self._readable(name):
            opened = self.opened(name)
        with opened as stream:
            try:
                yield sealed.opened(stream, pre_buffer)
            except (sealed.Broken, pa.ArrowException) as error:
                raise self._damaged(name, error) from None
            except OSError as error:
                # Arrow's errors have no number; those of a disk or a network have one, or a class of their own.
                if type(error) is not OSError or error.errno is not None:
                    raise
                raise self._damaged(name, error) from None

    @contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        """Turn the error of a missing or unreadable file into a sentence."""
        path = f"{self.root}/{name}"
        try:
            yield
        except FileNotFoundError:
            raise Damaged(f"'{masked(path)}' is missing", path) from None
        except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
            raise IncompleteRun(
                f"cannot read '{masked(path)}': {error.strerror}; mend that and start the same command again"
            ) from None

    def _damaged(self, name: str, error: Exception) -> Damaged:
        path = f"{self.root}/{name}"
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return Damaged(f"'{masked(path)}' is damaged: {why}", path)


def _created_alone(target: str, data: bytes) -> bool:
    """Create a file without a link: its content appears a moment after its name."""
    try:
        number = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(number, "wb") as stream:
        stream.write(data)
    return True


def _nothing() -> None:
    """There is nothing to check."""


@contextmanager
def _temporary(target: str, data: bytes, durable: bool) -> Iterator[str]:
    """Write a temporary file next to the target and yield its name; remove it at the end, unless it was renamed."""
    folder = os.path.dirname(target)
    os.makedirs(folder, exist_ok=True)
    temporary = os.path.join(folder, f"{_TEMPORARY}{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as stream:  # x: never follow a link that somebody made there.
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        yield temporary
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
