"""Read a table of PostgreSQL with pgvector's types, in the order of its key, as one exported snapshot for all readers.

The process that plans holds the snapshot open; readers import it, so what others write meanwhile is not seen. After a crash
the snapshot is gone, and the digest of all keys and row versions says whether the table is still the same.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.optional import missing, needs
from tempscale_jobs.corpus.address import Part, address, even_ranges
from tempscale_jobs.errors import AGAIN, IncompleteRun, UsageError
from tempscale_jobs.urls import masked, reason

FIXED = True
_SCHEMES = ("postgres://", "postgresql://")
_ROWS = 2048
_TABLES = {"r", "p", "m"}
"""Tables, partitioned tables and materialised views have row versions."""
_OTHER_BYTES = 512
"""Bytes of a row besides its vectors; units must not depend on sizes that change when nobody writes."""
_WIDEST = 4096
_GONE = ("22023", "42704", "55000")
"""The states in which a snapshot cannot be imported: it is unknown, or its session has ended."""


class _Kind(NamedTuple):
    """How a type of PostgreSQL is read."""

    arrow: pa.DataType
    expression: str = "{}"
    """The SQL of a cell."""
    read: Any = None
    """A cell's value from what the server sends."""


def _vector(dtype: str, cell: bytes) -> np.ndarray:
    """The numbers of a vector: behind two numbers of 16 bits, in the order of networks."""
    return np.frombuffer(cell, dtype, offset=4).astype(dtype[1:])


def _bits(cell: bytes) -> bytes:
    """The bits of a bit string, behind their number."""
    return cell[4:]


_TEXT = _Kind(pa.string(), "{}::text")
_KINDS = {
    "vector": _Kind(pa.list_(pa.float32()), "{send}({})", partial(_vector, ">f4")),
    "halfvec": _Kind(pa.list_(pa.float16()), "{send}({})", partial(_vector, ">f2")),
    **dict.fromkeys(("bit", "varbit"), _Kind(pa.binary(), "{send}({})", _bits)),
    **dict.fromkeys(("int2", "int4", "int8"), _Kind(pa.int64())),
    "float4": _Kind(pa.float32()),
    "float8": _Kind(pa.float64()),
    "bool": _Kind(pa.bool_()),
    "bytea": _Kind(pa.binary()),
    **dict.fromkeys(("_int2", "_int4", "_int8"), _Kind(pa.list_(pa.int64()))),
    "_float4": _Kind(pa.list_(pa.float32())),
    "_float8": _Kind(pa.list_(pa.float64())),
}
_BYTES = {"vector": 4.0, "halfvec": 2.0, "bit": 0.125}
"""Bytes of a dimension."""


class _Column(NamedTuple):
    name: str
    type: str
    send: str
    """The function that sends its values."""
    size: int
    """The dimensions of a vector; -1 if they are not declared."""
    full_type: str


class _Snapshot(NamedTuple):
    """A table in a transaction that stays open."""

    connection: Any
    identifier: str
    table: str
    """Its name in SQL."""
    columns: dict[str, _Column]
    key: str
    rows: int
    digest: str


_SNAPSHOTS: dict[str, _Snapshot] = {}
"""The open snapshots of this process, by their sources."""


def kind(source: str) -> str | None:
    """`postgres` for the address of a database."""
    return "postgres" if source.startswith(_SCHEMES) else None


def name(source: str) -> str:
    """The table's name."""
    return _where(source)[1]["table"]


def state(source: str) -> dict[str, Any]:
    """The number of rows, and a digest of the keys and versions of all rows."""
    snapshot = _snapshot(source)
    types = ", ".join(f"{column.name} {column.full_type}" for column in snapshot.columns.values())
    return {"table": snapshot.table, "columns": types, "rows": snapshot.rows, "digest": snapshot.digest}


def files(source: str) -> list[str]:
    """None of this machine."""
    return []


def columns(source: str) -> list[str]:
    """The names of the table's columns."""
    return list(_snapshot(source).columns)


def parts(source: str, names: Sequence[str], most: tuple[int, int]) -> list[Part]:
    """Ranges of the key of equal numbers of rows, in the snapshot."""
    snapshot = _snapshot(source)
    chosen = [snapshot.columns[key] for key in names]
    for column in chosen:
        if column.type == "bit" and column.size % 8:
            raise UsageError(
                f"column '{column.name}' of '{name(source)}' has {column.size} bits, which do not fill bytes; give a column "
                "whose dimensions are a multiple of 8"
            )
    size = _OTHER_BYTES + sum(_dimensions(column) * _BYTES.get(column.type, 0) for column in chosen)
    count = snapshot.rows
    ranges = even_ranges(count, size, most)
    with _readable(source):
        found = snapshot.connection.execute(
            f"select k::text from (select {snapshot.key} k, row_number() over (order by {snapshot.key}) - 1 n "  # noqa: S608
            f"from {snapshot.table}) as keys where n = any(%s) order by n",
            [[first for first, _ in ranges[1:]]],
        ).fetchall()
    bounds = [None, *(key for (key,) in found), None]
    # Who reads a part knows nothing of the table but this.
    table = [snapshot.identifier, snapshot.table, snapshot.key, list(snapshot.columns.values())]
    return [
        Part(json.dumps([*table, lower, upper]), 0, first, last - first, int(size * (last - first)))
        for (first, last), lower, upper in zip(ranges, bounds[:-1], bounds[1:], strict=True)
    ]


def batches(source: str, at: str, names: Sequence[str], rows: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    """Rows of a range of the key, in the snapshot of the process that planned it."""
    identifier, table, key, every, lower, upper = json.loads(at)
    known = {column[0]: _Column(*column) for column in every}
    chosen = [known[own] for own in names]
    kinds = [_KINDS.get(column.type, _TEXT) for column in chosen]
    cells = [kind.expression.format(_quoted(c.name), send=c.send) for kind, c in zip(kinds, chosen, strict=True)]
    key_type = next(column.full_type for column in known.values() if _quoted(column.name) == key)
    limits = [f"{key} {sign} %s::{key_type}" for sign, bound in ((">=", lower), ("<", upper)) if bound is not None]
    query = (
        f"select {', '.join(cells) or 'null'} from {table} {'where' if limits else ''} {' and '.join(limits)} "  # noqa: S608
        f"order by {key} offset {rows[0]} limit {rows[1] - rows[0]}"
    )
    with _reading(source), _connected(source) as connection:
        from psycopg import sql

        connection.execute(sql.SQL("set transaction snapshot {}").format(identifier))
        with connection.cursor("tempscale_rows", binary=True) as cursor:
            cursor.execute(query, [bound for bound in (lower, upper) if bound is not None])
            while fetched := cursor.fetchmany(_ROWS):
                yield _batch(fetched, chosen, kinds)


def release(source: str) -> None:
    """End the transaction that holds the snapshot."""
    if (snapshot := _SNAPSHOTS.pop(source, None)) is not None:
        snapshot.connection.close()


def _batch(fetched: list[tuple[Any, ...]], chosen: list[_Column], kinds: list[_Kind]) -> pa.RecordBatch:
    if not chosen:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(fetched), pa.struct([])))
    arrays = []
    for cells, how in zip(zip(*fetched, strict=True), kinds, strict=True):
        values = cells if how.read is None else [None if cell is None else how.read(cell) for cell in cells]
        arrays.append(pa.array(values, how.arrow))
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in chosen])


def _dimensions(column: _Column) -> int:
    return column.size if column.size > 0 else _WIDEST


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


# --- the table ----------------------------------------------------------------------------------------------------------


def _where(source: str) -> tuple[str, dict[str, str]]:
    """The address of the database, and the settings."""
    user, at, _ = source.partition("://")[2].rpartition("@")
    if at and ":" in user:
        raise UsageError(
            "the address of a database must have no password, which would be seen by others; write it into the file that "
            "PGPASSFILE names, or into PGPASSWORD, and leave it out of the address"
        )
    path, settings = address(source, ["table", "key"])
    if "table" not in settings:
        raise UsageError(f"'{masked(path)}' names no table; give one: {masked(path)}?table=NAME")
    return path, settings


def _snapshot(source: str) -> _Snapshot:
    """The open snapshot of a source; one is opened where there is none."""
    before = _SNAPSHOTS.get(source)
    if before is None or before.connection.closed:
        _SNAPSHOTS[source] = _opened(source)
    return _SNAPSHOTS[source]


def _opened(source: str) -> _Snapshot:
    asked = _where(source)[1]
    connection = _connect(source)
    with _readable(source):
        identifier = connection.execute("select pg_export_snapshot()").fetchone()[0]
        # The session waits while others read, for as long as that takes.
        connection.execute("set idle_in_transaction_session_timeout = 0")
        oid, table = _table(connection, asked["table"])
        columns = {
            row[0]: _Column(*row)
            for row in connection.execute(
                "select a.attname, t.typname, t.typsend::regproc::text, a.atttypmod, format_type(a.atttypid, a.atttypmod) "
                "from pg_attribute a join pg_type t on t.oid = a.atttypid "
                "where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum",
                [oid],
            )
        }
        key = _quoted(_key(connection, oid, asked))
        count, keys, digest = connection.execute(
            f"select count(*), count({key}), "  # noqa: S608
            f"coalesce(sum(hashtextextended({key}::text || ' ' || xmin::text, 0)::numeric), 0)::text from {table}"
        ).fetchone()
    if keys != count:
        raise UsageError(f"the key {key} of '{asked['table']}' is null in {count - keys:,} rows; name another with key=")
    return _Snapshot(connection, identifier, table, columns, key, count, digest)


def _table(connection: Any, asked: str) -> tuple[int, str]:
    """The number of a table and its name in SQL."""
    exact = ".".join(_quoted(part) for part in asked.split("."))
    for written in (exact, asked):
        row = connection.execute(
            "select c.oid, c.relkind::text, format('%%I.%%I', n.nspname, c.relname) from pg_class c "
            "join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)",
            [written],
        ).fetchone()
        if row is not None:
            break
    else:
        others = connection.execute(
            "select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid "
            "join pg_type t on t.oid = a.atttypid where t.typname = any(%s) and c.relkind::text = any(%s) "
            "group by 1 order by 1 limit 5",
            [["vector", "halfvec"], list(_TABLES)],
        ).fetchall()
        tables = ", ".join(table for (table,) in others) or "none"
        raise UsageError(f"the database has no table '{asked}'; its tables with vectors: {tables}")
    if row[1] not in _TABLES:
        raise UsageError(
            f"'{asked}' is no table but a view, whose rows have no versions; give a table or a materialised view"
        )
    return row[0], row[2]


def _key(connection: Any, oid: int, asked: dict[str, str]) -> str:
    """The column by which rows are ordered: unique and never null."""
    unique = [
        column
        for (column,) in connection.execute(
            "select a.attname from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0] "
            "join pg_class c on c.oid = i.indrelid where i.indrelid = %s and i.indisunique and i.indisvalid "
            "and i.indpred is null and i.indnkeyatts = 1 and (a.attnotnull or c.relkind = 'm') "
            "order by i.indisprimary desc, 1",
            [oid],
        )
    ]
    wanted: str = asked.get("key", unique[0] if unique else "")
    if wanted not in unique:
        why = f"column '{wanted}' is not unique and not null" if wanted else "it has no unique column that is never null"
        raise UsageError(
            f"table '{asked['table']}' cannot be read in ranges of a key: {why}; name such a column with key=, "
            f"of which it has {', '.join(unique) or 'none: add a primary key'}"
        )
    return wanted


# --- connections --------------------------------------------------------------------------------------------------------


def _connect(source: str) -> Any:
    path = _where(source)[0]
    try:
        psycopg = importlib.import_module("psycopg")
    except ImportError as error:
        # Without its binary, on a machine without libpq, psycopg itself cannot be imported either.
        raise UsageError(needs("a table of PostgreSQL", missing(error) or "psycopg")) from None
    try:
        connection = psycopg.connect(path, connect_timeout=30, prepare_threshold=None, application_name="tempscale")
    except psycopg.Error as error:
        raise UsageError(
            f"the database '{masked(path)}' cannot be opened: {reason(error, path)}; a password is read from the file that "
            "PGPASSFILE names, or from PGPASSWORD"
        ) from None
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.read_only = True
    return connection


@contextmanager
def _connected(source: str) -> Iterator[Any]:
    connection = _connect(source)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _readable(source: str) -> Iterator[None]:
    """Turn an error of the database into a UsageError."""
    from psycopg import Error

    try:
        yield
    except Error as error:
        raise UsageError(f"table '{name(source)}' cannot be read: {reason(error, source)}") from None


@contextmanager
def _reading(source: str) -> Iterator[None]:
    """Turn the end of a session or of the snapshot into an IncompleteRun, and other errors into UsageErrors."""
    try:
        from psycopg import Error, OperationalError
    except ImportError:
        Error = OperationalError = ()  # type: ignore[assignment, misc]
    try:
        yield
    except Error as error:
        if isinstance(error, OperationalError) or error.sqlstate in _GONE:
            raise IncompleteRun(f"the connection to table '{name(source)}' ended: {reason(error, source)}{AGAIN}") from None
        raise UsageError(f"table '{name(source)}' cannot be read: {reason(error, source)}") from None
    except pa.ArrowException as error:
        raise UsageError(f"table '{name(source)}' cannot be read: {reason(error)}") from None
