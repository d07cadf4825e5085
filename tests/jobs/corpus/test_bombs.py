"""Small files of gigabytes, and rows without an end: each is a rejected row or one sentence, and memory stays flat."""

import gzip
import io
import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale_jobs.corpus import readers
from tempscale_jobs.corpus.readers import Columns, Span, bounded, lines, parquet_rows, read
from tempscale_jobs.errors import UsageError

pytestmark = pytest.mark.proof

COLUMNS = Columns({"text": "--text-column"}, {}, {"id": None})
_READ = """
import json, resource, sys
from tempscale_jobs.corpus import readers
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
columns = readers.Columns({"text": "--text-column"}, {}, {"id": None})
found = []
with open(sys.argv[1], "rb") as stream:
    for record in readers.read(stream, sys.argv[1], "x", columns):
        found.append([record.place, record.problem, len(record.values.get("text") or "")])
print(json.dumps([found[:9], len(found), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024]))
"""


def read_apart(file):
    """The places, problems and lengths of the first rows, how many rows, and how far the memory of a process grew."""
    found = subprocess.run([sys.executable, "-c", _READ, str(file)], check=True, capture_output=True, text=True)
    return json.loads(found.stdout)


@pytest.mark.parametrize("ending", [".jsonl.gz", ".txt.gz"])
def test_a_line_of_half_a_gigabyte_is_a_rejected_row(tmp_path, ending):
    file = tmp_path / f"bomb{ending}"
    before, after = (b'{"text": "one"}\n', b'{"text": "two"}\n') if "json" in ending else (b"one\n", b"two\n")
    with gzip.open(file, "wb", compresslevel=1) as stream:
        stream.write(before + (b'{"text": "' if "json" in ending else b""))
        for _ in range(512):
            stream.write(b"a" * 2**20)
        stream.write((b'"}' if "json" in ending else b"") + b"\n" + after)
    assert file.stat().st_size < 4 * 2**20
    found, rows, grown = read_apart(file)
    assert [[place, problem is None, size] for place, problem, size in found] == [
        ["x:0", True, 3],
        ["x:1", False, 0],
        ["x:2", True, 3],
    ]
    assert "64 MiB" in found[1][1]
    assert rows == 3
    assert grown < 300 * 2**20


def test_a_line_of_csv_that_long_is_one_sentence(monkeypatch):
    monkeypatch.setattr(readers, "LONGEST_VALUE", 1000)
    stream = io.BytesIO(b"text\none\n" + b"a" * 5000 + b"\n")
    with pytest.raises(UsageError, match=r"'x\.csv'.* line 3"):
        list(read(stream, "x.csv", "x.csv", COLUMNS))


def test_many_rows_of_one_large_cell_are_read_as_one(tmp_path):
    table = pa.table({"text": pa.array(["a" * (8 * 2**20)] * 500), "id": [str(k) for k in range(500)]})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd", dictionary_pagesize_limit=2**30)
    assert (tmp_path / "bomb.parquet").stat().st_size < 2**20
    found, rows, grown = read_apart(tmp_path / "bomb.parquet")
    assert found[0] == ["x:0", None, 8 * 2**20]
    assert rows == 500
    assert grown < 300 * 2**20  # 4 GB as a value for each row.


def test_large_cells_are_read_a_few_at_a_time(tmp_path):
    table = pa.table({"text": pa.array([chr(97 + k) * (16 * 2**20) for k in range(24)])})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd", use_dictionary=False, data_page_size=2**20)
    del table
    found, rows, grown = read_apart(tmp_path / "bomb.parquet")
    assert (rows, found[8]) == (24, ["x:8", None, 16 * 2**20])
    assert grown < 400 * 2**20  # All are 384 MiB, held twice where they are read at once.


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_cell_that_is_too_long_is_a_rejected_row(tmp_path, monkeypatch, dictionary):
    texts = ["short", "a" * 3000, None, "b" * 999, "c" * 1001, *map(str, range(20))]
    pq.write_table(pa.table({"text": texts}), tmp_path / "x.parquet", use_dictionary=dictionary)
    monkeypatch.setattr(readers, "LONGEST_VALUE", 1000)
    monkeypatch.setattr(readers, "LARGE_DICTIONARY", 100)
    monkeypatch.setattr(readers, "SMALL_COLUMN", 1)
    with open(tmp_path / "x.parquet", "rb") as stream:
        found = list(read(stream, "x.parquet", "x.parquet", COLUMNS))
    assert [row.problem is None for row in found[:5]] == [True, False, True, True, False]
    assert "'text'" in found[1].problem
    assert "64 MiB" in found[1].problem
    assert [row.values.get("text") for row in found[:5] if row.problem is None] == ["short", None, "b" * 999]


def test_a_row_group_whose_cells_must_be_too_long_is_not_read(tmp_path, monkeypatch):
    table = pa.table({"text": ["a" * 5000, "b" * 5000, "c", "d"]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2, use_dictionary=False, compression="none")
    monkeypatch.setattr(readers, "LONGEST_VALUE", 1000)
    with open(tmp_path / "x.parquet", "rb") as stream:
        found = list(parquet_rows(stream, "x.parquet", COLUMNS, 1, 4))
    assert [row.place for row in found] == ["x.parquet:1", "x.parquet:2", "x.parquet:3"]
    assert [row.problem is None for row in found] == [False, True, True]
    assert "64 MiB" in found[0].problem


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
@pytest.mark.parametrize(
    "texts", [["a"], ["a" * 70_000], ["ab" * 40_000, "c" * 300_000], [f"text {k}" for k in range(9000)]]
)
def test_the_size_of_a_dictionary_is_in_its_header(compression, texts):
    sink = io.BytesIO()
    table = pa.table({"id": list(range(30 * len(texts))), "text": texts * 30})
    pq.write_table(table, sink, compression=compression, dictionary_pagesize_limit=2**30)
    cell = pq.read_metadata(sink).row_group(0).column(1)
    expected = sum(4 + len(text) for text in set(texts))  # Each value after its length.
    found = readers.dictionary_bytes(sink, cell)
    assert found == (expected if cell.total_uncompressed_size >= readers.SMALL_COLUMN else 0)


@pytest.mark.parametrize("header", [b"", b"\x15\x80", b"\x15\x80\x80", b"\x00\x15\x02"])
def test_a_dictionary_whose_header_cannot_be_read_counts_as_large_as_its_column(header):
    cell = SimpleNamespace(
        physical_type="BYTE_ARRAY", has_dictionary_page=True, total_uncompressed_size=10**9, dictionary_page_offset=4
    )
    assert readers.dictionary_bytes(io.BytesIO(b"PAR1" + header), cell) in (10**9, 0)
    whole = b"PAR1" + b"\x15\x04" + b"\x15\x80\x01"  # Fields of 2 and 64, zigzag.
    assert readers.dictionary_bytes(io.BytesIO(whole), cell) == 64


# --- the same lines as before -----------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"x")), max_size=12), st.booleans(),
       st.integers(1, 50), st.integers(1, 60))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_bounded_lines_are_the_lines(own, ended, block, longest):
    data = b"\n".join(own) + (b"\n" if ended else b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_BYTES", block)
        patch.setattr(readers, "LONGEST_VALUE", longest)
        found = list(bounded(io.BytesIO(data)))
    expected = io.BytesIO(data).readlines()
    assert [size for _, size in found] == [len(line) for line in expected]
    assert [line for line, _ in found] == [line if len(line) <= longest else None for line in expected]


@given(
    st.lists(st.text("ab", max_size=9), min_size=1, max_size=20),
    st.lists(st.integers(0, 120), max_size=6),
    st.integers(1, 30),
)
@settings(max_examples=200, deadline=None)
def test_every_line_is_in_the_range_where_it_begins(texts, cuts, block):
    data = "".join(f"{text}\n" for text in texts).encode()
    ends = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_BYTES", block)
        found = [
            record.values["text"].decode()
            for first, last in itertools.pairwise(ends)
            for record in lines(io.BytesIO(data), "x.txt", "x", COLUMNS, Span(first, last, 0))
        ]
    assert found == [text for text in texts if text]
