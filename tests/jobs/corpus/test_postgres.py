"""A table of a real PostgreSQL with pgvector: one snapshot while others write, and a sentence for each mistake."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import stored_tables
from command_line import in_process
from postgres_server import SECRET, execute, fill
from whole_run import digests

from tempscale.optional import install
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import postgres, sources, stores, units
from tempscale_jobs.corpus.vectors import Vectors, numbers
from tempscale_jobs.errors import IncompleteRun, UsageError


def section(source, **more):
    return Corpus.model_validate({"source": source, "embedding_column": "embedding", "length_column": "tokens"} | more)


def rows_of(given):
    """The values of all rows, read in units."""
    columns = Vectors("texts", given, "").columns
    planned = units.plan(given, columns, given)
    return [record.values for unit in planned for record in units.records(given, unit, columns)]


@pytest.fixture
def table(database, request):
    """The address of a new table of the rows."""
    name = re.sub(r"\W", "_", request.node.name.lower())[:50]
    fill(database, name, stored_tables.table())
    source = f"{database}?table={name}"
    yield source
    postgres.release(source)
    execute(database, f"drop table {name}")


@pytest.mark.parametrize("kind", ["halfvec", "bit", "real[]", "double precision[]"])
def test_vectors_of_every_type_are_the_numbers_that_were_written(database, kind):
    rows, name = stored_tables.table(), f"of_{kind[:4]}"
    written = stored_tables.matrix(rows)
    if kind.endswith("]"):
        cells = ["{" + ",".join(map(repr, row)) + "}" for row in written.tolist()]
        rows = rows.set_column(4, "embedding", pa.array(cells))
    if kind.endswith("]"):
        table_of_texts(database, name, rows, kind)
    else:
        fill(database, name, rows, kind)
    given = section(f"{database}?table={name}", unit_rows=70, **({"bits": True} if kind == "bit" else {}))
    found = np.stack([numbers(given, values["embedding"])[0] for values in rows_of(given)])
    sources.release(given)
    expected = {"halfvec": written.astype(np.float16), "bit": np.where(written > 0, 1, -1)}.get(kind, written)
    np.testing.assert_array_equal(found, expected.astype(np.float64))


def table_of_texts(database, name, rows, kind):
    import psycopg

    execute(database, f"create table {name} (id text primary key, tokens int, embedding {kind})")
    with psycopg.connect(database) as connection:
        for row in rows.to_pylist():
            values = [row["id"], row["tokens"], row["embedding"]]
            connection.execute(f"insert into {name} values (%s, %s, %s::{kind})", values)


@pytest.mark.parametrize("key", ["id", "number", "code"])
def test_rows_come_in_the_order_of_a_unique_column(database, key):
    name = f"by_{key}"
    execute(
        database,
        f"create table {name} (id int primary key, number bigint unique not null, code uuid unique not null, "
        "tokens int, embedding vector(2))",
        f"insert into {name} select k, -k, md5(k::text)::uuid, 1, '[1,2]' from generate_series(1, 200) k",
    )
    given = section(f"{database}?table={name}&key={key}", unit_rows=30)
    found = [row["id"] for row in rows_of(given)]
    sources.release(given)
    expected = {"id": range(1, 201), "number": range(200, 0, -1)}.get(key, found)
    assert found == list(expected)
    assert sorted(found) == list(range(1, 201))


# --- others write -------------------------------------------------------------------------------------------------------


def test_rows_are_those_of_the_snapshot_and_afterwards_the_table_has_changed(database, table):
    given = section(table, unit_rows=70)
    columns, state = Vectors("texts", given, "").columns, sources.identity(given)
    planned = units.plan(given, columns, given)
    name = postgres.name(table)
    execute(
        database, f"update {name} set tokens = 1 where id < '1000100'", f"delete from {name} where id > '1000200'",
        f"insert into {name} select 'u' || id, text, tokens, source, embedding from {name}", f"vacuum {name}",
    )  # fmt: skip
    found = [record.values for unit in planned for record in units.records(given, unit, columns)]
    expected = stored_tables.table().to_pylist()
    assert [(row["id"], row["tokens"]) for row in found] == [(row["id"], row["tokens"]) for row in expected]
    assert sources.changes(given, state) == []
    sources.release(given)
    assert "digest" in sources.changes(given, state)
    with pytest.raises(UsageError, match="changed"):
        sources.check_unchanged(given, "out", state)


def test_a_table_that_is_only_rewritten_is_the_same(database, table):
    given = section(table)
    state = sources.identity(given)
    sources.release(given)
    execute(database, f"vacuum full {postgres.name(table)}")
    assert sources.changes(given, state) == []


def test_a_snapshot_that_is_gone_is_an_incomplete_run(table):
    given = section(table, unit_rows=70)
    columns = Vectors("texts", given, "").columns
    planned = units.plan(given, columns, given)
    sources.release(given)
    with pytest.raises(IncompleteRun):
        read_until_gone(given, planned[0], columns)


def read_until_gone(given, unit, columns):
    """Read a unit again and again: the server ends a session a moment after its client has left."""
    for _ in range(100):
        list(units.records(given, unit, columns))
        time.sleep(0.1)


# --- mistakes -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_mistakes(database):
    fill(database, "docs_m", stored_tables.table())
    execute(
        database, "create view seen as select * from docs_m", "create table loose (id int, embedding vector(3))",
        "create table odd (id int primary key, tokens int, embedding bit(12))",
        "create table private (id int primary key, tokens int, embedding vector(3))",
    )  # fmt: skip
    return database


MISTAKES = {
    "no such table": ("{owner}?table=nothing", "docs_m"),
    "no table": ("{owner}", "table="),
    "a view": ("{owner}?table=seen", "view"),
    "no key": ("{owner}?table=loose", "primary key"),
    "a key that is not unique": ("{owner}?table=docs_m&key=tokens", "'tokens'.*id"),
    "another setting": ("{owner}?table=docs_m&sslmode=disable", "'sslmode'"),
    "no such column": ("{owner}?table=loose&key=id", ""),
    "bits that do not fill bytes": ("{owner}?table=odd", "12 bits"),
    "not allowed": ("{reader}?table=private", "private"),
    "wrong password": ("{reader}?table=docs_m", "PGPASSFILE"),
    "a password in the address": ("{secret}?table=docs_m", "PGPASSFILE"),
    "no server": ("postgres://owner@127.0.0.1:1/x?table=docs_m", "cannot be opened"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_without_the_password(of_mistakes, tmp_path, monkeypatch, mistake):
    template, told = MISTAKES[mistake]
    monkeypatch.setenv("PGPASSWORD", "wrong-" + SECRET if mistake == "wrong password" else SECRET)
    reader = of_mistakes.replace("owner@", "reader@")
    source = template.format(owner=of_mistakes, reader=reader, secret=reader.replace("reader@", f"reader:{SECRET}@"))
    out = tmp_path / "out"
    code, _, err = in_process(
        "audit", "--corpus", source, "--embedding-column", "embedding", "--length-column", "tokens", "--out", str(out)
    )
    assert code == 2, err
    assert re.search(told, err)
    assert SECRET not in err
    assert len(err.strip().splitlines()) <= 3
    assert all(SECRET not in file.read_text("utf-8", "replace") for file in out.rglob("*") if file.is_file())


def test_null_vectors_and_vectors_of_another_dimension_are_rejected_with_their_reason(database, tmp_path, ray_session):
    execute(
        database, "create table mixed (id int primary key, tokens int, embedding vector)",
        "insert into mixed select k, 5, case when k % 10 = 0 then null when k % 10 = 1 then '[1,2]'::vector "
        "else '[1,2,3]'::vector end from generate_series(1, 100) k",
    )  # fmt: skip
    given = section(f"{database}?table=mixed")
    from tempscale_jobs.corpus.stream import SourceReader
    from tempscale_jobs.runs.storage import Storage

    index = SourceReader(Storage(str(tmp_path)), Vectors("texts", given, str(tmp_path)), 0, str(tmp_path)).index
    assert (index.read, index.analysed) == (100, 80)
    assert sorted(index.rejected_reasons.values()) == [10, 10]
    assert "the embedding is null" in index.rejected_reasons


def test_a_missing_driver_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    source, at = (
        "postgres://owner@127.0.0.1:1/x?table=other",
        json.dumps(["1", "t", '"id"', [["id", "int4", "", -1, "int"]], 0, 1]),
    )
    for read in (stores.of(source).columns, lambda given: list(postgres.batches(given, at, ["id"], (0, 1)))):
        with pytest.raises(UsageError, match=re.escape(install("psycopg"))):
            read(source)


def test_a_part_is_counted_without_columns_and_a_column_that_is_gone_is_a_sentence(table):
    (part,) = postgres.parts(table, ["id"], (1000, 1 << 40))
    counted = list(postgres.batches(table, part.at, [], (0, 300)))
    assert (sum(batch.num_rows for batch in counted), counted[0].num_columns) == (300, 0)
    gone = json.loads(part.at)
    next(column for column in gone[3] if column[0] == "tokens")[0] = "gone"
    with pytest.raises(UsageError, match="cannot be read"):
        list(postgres.batches(table, json.dumps(gone), ["gone"], (0, 1)))


def test_a_key_that_may_be_null_is_refused_where_it_is(database):
    execute(
        database, "create materialized view holes as select nullif(k, 3) k from generate_series(1, 5) k",
        "create unique index on holes (k)",
    )  # fmt: skip
    source = f"{database}?table=holes&key=k"
    with pytest.raises(UsageError, match="null in 1 rows"):
        postgres.parts(source, [], (10, 1 << 30))
    execute(database, "drop materialized view holes")


# --- a hundred thousand rows, while another session writes --------------------------------------------------------------

MANY, UNITS = 100_000, 10


@pytest.fixture(scope="module")
def many(database, tmp_path_factory):
    """The table in the database, and its audit from Parquet."""
    folder = tmp_path_factory.mktemp("many")
    rows = stored_tables.table(MANY)
    fill(database, "many", rows)
    run(folder, stored_tables.parquet(folder, rows), folder / "expected").wait()
    return folder, rows


def run(folder, source, out, user=None):
    """Start an audit of a sample, in units, in a process of its own that knows the password by a file."""
    passwords = folder / "pgpass"
    passwords.write_text(f"127.0.0.1:*:*:reader:{SECRET}\n")
    passwords.chmod(0o600)
    (folder / "audit.toml").write_text(
        f"""
        [corpus]
        source = "{source}"
        embedding_column = "embedding"
        length_column = "tokens"
        sample = 1000
        unit_rows = {MANY // UNITS}
        [execution]
        workers = 1
        """
    )
    command = [sys.executable, "-m", "tempscale_jobs", "audit", str(folder / "audit.toml"), "--out", str(out)]
    environment = os.environ | {"PGPASSFILE": str(passwords)}
    with open(f"{out}.txt", "a") as printed:
        return subprocess.Popen(command, stdout=printed, stderr=printed, env=environment, start_new_session=True)


def printed_by(out):
    return Path(f"{out}.txt").read_text()


def await_files(out, pattern, count, process):
    for _ in range(6000):
        if len(list(out.glob(pattern))) >= count:
            return
        assert process.poll() is None, printed_by(out)
        time.sleep(0.05)
    raise TimeoutError(pattern)


def tables(out):
    return {name: value for name, value in digests(out).items() if name.startswith("tables/")}


@pytest.mark.proof
def test_a_hundred_thousand_rows_are_read_as_they_were_while_another_session_writes(many, database):
    folder, rows = many
    fill(database, "written", rows)
    source, out = f"{database.replace('owner', 'reader')}?table=written", folder / "written"
    process, stop = run(folder, source, out), threading.Event()
    await_files(out, "shards/plan*.json", 1, process)

    def write():
        import psycopg

        with psycopg.connect(database, autocommit=True) as connection, contextlib.suppress(psycopg.Error):
            for k in range(10**9):
                if stop.is_set():
                    return
                connection.execute("update written set tokens = tokens + 1 where id = %s", [f"1{k * 7919 % MANY:06d}"])
                connection.execute("delete from written where id = %s", [f"1{k * 104729 % MANY:06d}"])

    writer = threading.Thread(target=write)
    writer.start()
    code = process.wait(600)
    stop.set()
    writer.join()
    assert code in (0, 1), printed_by(out)
    assert tables(out) == tables(folder / "expected")
    left = [file for file in (*out.rglob("*"), folder / "written.txt") if file.is_file()]
    assert all(SECRET.encode() not in file.read_bytes() for file in left)


@pytest.mark.proof
@pytest.mark.parametrize("changed", [pytest.param(False, marks=pytest.mark.soak), True])
def test_a_killed_run_goes_on_to_the_same_bytes_unless_the_table_changed(many, database, changed):
    folder, _ = many
    source, out = f"{database.replace('owner', 'reader')}?table=many", folder / f"killed-{changed}"
    process = run(folder, source, out)
    await_files(out, "shards/unit-*.json", 3, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "run.json").exists()
    if changed:
        execute(database, "update many set tokens = tokens where id = '1000007'")
    code = run(folder, source, out).wait(600)
    assert code in ([2] if changed else [0, 1]), printed_by(out)
    if not changed:
        assert tables(out) == tables(folder / "expected")
