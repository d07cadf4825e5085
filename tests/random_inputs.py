"""What the tests of random inputs share: how many are drawn, of what, and what every answer to one must be.

The same examples are drawn in each run of the suite. `TEMPSCALE_FUZZ=20 python -m pytest -k test_random` draws twenty times
as many, others each time. Each test also asks that both answers came up: none passes on nothing.

As a script it reads damaged tables of a lake: Lance's compiled part sometimes ends the process that opens one.
"""

import bz2
import gzip
import importlib
import lzma
import os
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from whole_run import as_lines

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.corpus import rows as rows_of_a_source
from tempscale_jobs.corpus import sources, vectors
from tempscale_jobs.errors import UsageError

MORE = int(os.environ.get("TEMPSCALE_FUZZ", "1"))
SECONDS = 120 + 120 * MORE
"""The time that a test may take."""


def drawn(examples):
    return settings(max_examples=examples * MORE, deadline=None, derandomize=MORE == 1, database=None)


def sentence(error):
    """The text of an error, if it is one line that says something."""
    text = str(error)
    assert len(text) > 10
    assert not set(text) & set("\n\r")
    assert "Traceback" not in text
    return text


class Rejects:
    """What is recorded of rows that are left out."""

    def __init__(self):
        self.rows = []

    def add(self, text_id, place, reason):
        assert text_id is None or text_id.encode().decode() == text_id
        self.rows.append((place, sentence(reason)))

    def flush(self):
        pass


def read(source, **options):
    """The usable texts of a source and its rejected rows; or None and the sentence that refuses it."""
    settled = resolve({"corpus": {"source": str(source), **options}})
    own = "embedding_column" in options
    rows, content = (vectors.rows, vectors.Reader(settled.corpus)) if own else (sources.rows, rows_of_a_source.usable_text)
    counts, rejects = rows_of_a_source.Counts(), Rejects()
    try:
        usable = rows_of_a_source.usable(rows(settled.corpus), None, counts, rejects, content)
        found = [(text_id, text) for text_id, text, *_ in usable]
    except UsageError as error:
        return None, sentence(error)
    assert counts.read == len(found) + len(rejects.rows)
    assert (counts.usable, counts.rejected) == (len(found), len(rejects.rows))
    assert len({text_id for text_id, _ in found}) == len(found)
    for text_id, text in found:
        assert text_id.encode().decode() == text_id
        if not own:
            assert text.strip()
            assert text.encode().decode() == text
    return found, rejects.rows


# --- what is drawn -----------------------------------------------------------------------------------------------------

HALVES = st.sampled_from(["\ud800", "half \udc00 a character", "\udfff\ud800"])
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(2**63), 2**64, 1e308])
BLANKS = st.sampled_from(["", " \n", "\u3000"])
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=12) | BLANKS | HALVES
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6
)
WORDS = st.text(min_size=1, max_size=12)


def taus(temperature, tokens):
    """The smallest τ of a text of so many tokens, which must be a number in (0, 2] like all others."""
    for role in ("query", "document"):
        one = temperature.for_role(role)
        found = [one.of_length(tokens)] if one.by_text or one.tau is not None else np.ravel(one.layers).tolist()
        assert all(0 < tau <= 2 for tau in found)
    return min(found)


# --- damage ------------------------------------------------------------------------------------------------------------

TABLE = pa.table({"id": [f"t{k}" for k in range(300)], "text": [f"text {k * k} " * (k % 7) for k in range(300)]})
LINES = as_lines(TABLE.to_pylist()).encode()
CSV = b"id,text\n" + b"".join(b't%d,"text, %d"\n' % (k, k * k) for k in range(300))
LAKES = {"delta": "deltalake", "lance": "lance"}


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


def damaged(data, seed):
    """The bytes with one to four damages: some replaced, cut off, left out, put in or doubled."""
    draw = random.Random(seed)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        place, size = draw.randrange(len(data) + 1), draw.choice([1, 1, 2, 4, 16, 64])
        if draw.random() < 0.3:
            place = max(0, len(data) - draw.randrange(200))  # Footers, where most of a format's sense is.
        kind = draw.choice(["replace", "replace", "cut", "leave", "put", "double"])
        some = draw.choice([draw.randbytes(size), b"\xff" * size, b"\x00" * size])
        data = {
            "replace": data[:place] + some + data[place + size :],
            "cut": data[:place],
            "leave": data[:place] + data[place + size :],
            "put": data[:place] + some + data[place:],
            "double": data[: place + size] + data[place:],
        }[kind]
    return data


def read_damaged_tables(kind, folder, first, end):
    """What the child does: print how each table is answered; an error that is no sentence ends it."""
    library, whole, broken = importlib.import_module(LAKES[kind]), Path(folder, f"whole.{kind}"), Path(folder, f"t.{kind}")
    if not whole.exists() and kind == "delta":
        library.write_deltalake(str(whole), TABLE)
    elif not whole.exists():
        library.write_dataset(TABLE, str(whole))
    assert len(read(whole)[0]) > 200
    files = sorted(file.relative_to(whole) for file in whole.rglob("*") if file.is_file())
    for seed in range(int(first), int(end)):
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(whole, broken)
        victim = broken / random.Random(seed).choice(files)
        victim.write_bytes(damaged(victim.read_bytes(), seed))
        print("refused" if read(broken)[0] is None else "read", flush=True)


if __name__ == "__main__":
    read_damaged_tables(*sys.argv[1:])
    os._exit(0)  # As the command ends: a thread that still reads ahead may abort the interpreter's end.
