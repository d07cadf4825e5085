"""What a source may be at its limits: pipes, no rows, dictionaries of any size, rows of other shapes, lost units."""

import io
import os
import pickle
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import as_lines

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.corpus import hub, readers, sources, stream, units
from tempscale_jobs.corpus.readers import Columns, Span
from tempscale_jobs.corpus.rows import own_document
from tempscale_jobs.corpus.shards import TextShards, documents_of
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.corpus.units import SourcePart
from tempscale_jobs.corpus.vectors import Vectors
from tempscale_jobs.errors import Damaged, IncompleteRun, UsageError
from tempscale_jobs.runs.folder import PLANNED
from tempscale_jobs.runs.storage import Storage

COLUMNS = Columns({"text": None}, {"id": None}, {})


def corpus(source, **more):
    return resolve({"corpus": {"source": str(source)} | more}).corpus


def jsonl(path, rows):
    path.write_text(as_lines(rows))
    return path


# --- what is read -----------------------------------------------------------------------------------------------------


def test_rows_of_a_small_dictionary_are_read_in_batches_that_its_longest_value_fits(tmp_path, monkeypatch):
    """As many rows as hold so many of the longest text: the same rows as without a dictionary."""
    rows = {"id": [f"t{k}" for k in range(200)], "text": ["long " * 40 if k % 7 else "short" for k in range(200)]}
    pq.write_table(pa.table(rows), tmp_path / "a.parquet", use_dictionary=["text"])
    sizes = []
    plain = readers.batches_as_records
    monkeypatch.setattr(readers, "batches_as_records",
                        lambda batches, *more: plain((sizes.append(b.num_rows) or b for b in batches), *more))  # fmt: skip

    def read():
        sizes.clear()
        return [dict(record.values) for record in sources.records(corpus(tmp_path / "a.parquet"), COLUMNS)]

    whole, one_batch = read(), [*sizes]
    monkeypatch.setattr(readers, "SMALL_COLUMN", 1)
    monkeypatch.setattr(readers, "_BATCH_BYTES", 1000)
    assert read() == whole
    assert len(whole) == 200
    assert len(one_batch) == 1 < len(sizes)
    assert max(sizes) < 20


@pytest.mark.parametrize("header", [b"", b"\x15\x80", b"\x15\x80\x80", b"\x00\x15\x02"])
def test_a_dictionary_whose_header_cannot_be_read_counts_as_large_as_its_column(header):
    cell = SimpleNamespace(physical_type="BYTE_ARRAY", has_dictionary_page=True, total_uncompressed_size=10**9,
                           dictionary_page_offset=4)  # fmt: skip
    assert readers.dictionary_bytes(io.BytesIO(b"PAR1" + header), cell) in (10**9, 0)
    whole = b"PAR1" + b"\x15\x04" + b"\x15\x80\x01"  # Fields of 2 and 64, zigzag.
    assert readers.dictionary_bytes(io.BytesIO(whole), cell) == 64


def test_rows_between_two_numbers_are_taken_from_consecutive_batches():
    batches = [pa.record_batch({"n": list(range(k, k + 4))}) for k in (0, 4, 8, 12)]
    seen = []

    def taken(first, last):
        seen.clear()
        found = readers.between((seen.append(b) or b for b in batches), first, last)
        return [n for batch in found for n in batch.column("n").to_pylist()]

    assert taken(5, 7) == [5, 6]
    assert len(seen) == 3, "what comes behind the last row is not read"
    assert taken(0, 16) == list(range(16))
    assert taken(3, 9) == list(range(3, 9))


def test_a_span_that_ends_behind_the_file_has_its_lines(tmp_path):
    file = jsonl(tmp_path / "a.jsonl", [{"id": str(k), "text": f"text {k}"} for k in range(3)])
    size = file.stat().st_size
    with file.open("rb") as opened:
        found = [record.values["id"] for record in readers.lines(opened, "a.jsonl", "a", COLUMNS, Span(0, 10 * size, 0))]
    assert found == ["0", "1", "2"]


def test_strings_in_large_lists_are_read_as_bytes():
    nested = pa.large_list(pa.list_(pa.large_string()))
    assert readers._unchecked(nested) == pa.large_list(pa.list_(pa.large_binary()))


def test_a_text_without_a_document_is_its_own_where_others_have_one(tmp_path):
    storage = Storage(str(tmp_path))
    table = pa.table({"text_id": ["a", "b", "c"], "document": pa.array([7, None, 9], pa.int64())})
    storage.write_table("shards/part-0.parquet", table)
    index = SimpleNamespace(shards=[SimpleNamespace(name="shards/part-0.parquet")])
    assert documents_of(storage, index, {"a", "b"}) == {"a": 7, "b": own_document("b")}
    assert documents_of(storage, index, {"b"}) == {}


# --- embeddings of the user's own -------------------------------------------------------------------------------------


def test_dimensions_that_no_row_has_are_the_reason_and_rows_without_any_are_none(tmp_path):
    rows = jsonl(tmp_path / "v.jsonl", [{"id": str(k), "v": [1.0, 2.0, 3.0], "n": 4} for k in range(4)])
    found = Vectors("texts", corpus(rows, embedding_column="v", length_column="n", dims=8), str(tmp_path / "run"))
    with pytest.raises(UsageError, match="8"):
        found.begin(None)
    assert found.agrees([])
    fitting = Vectors("texts", corpus(rows, embedding_column="v", length_column="n"), str(tmp_path / "run"))
    assert fitting.begin(None) == 3


def test_a_pipe_whose_rows_must_be_read_again_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError, match=r"pipe\.jsonl"):
        sources.check_not_a_pipe(corpus(tmp_path / "pipe.jsonl"), None)
    sources.check_not_a_pipe(corpus(jsonl(tmp_path / "file.jsonl", [{"text": "a"}])), None)


# --- units ------------------------------------------------------------------------------------------------------------


def planned(section):
    return units.plan(section, COLUMNS, section, None)


def test_what_cannot_be_divided_is_one_unit(tmp_path, monkeypatch):
    whole = (SourcePart("source", bytes=0),)
    assert [unit.pieces for unit in planned(corpus("docstrings:pyarrow"))] == [whole]
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert [unit.pieces for unit in planned(corpus(tmp_path / "pipe.jsonl"))] == [whole]
    monkeypatch.setattr(hub, "is_dataset", lambda source: True)
    monkeypatch.setattr(hub, "shards", lambda source: 1)
    assert [unit.pieces for unit in planned(corpus("hf:somebody/something"))] == [whole]
    monkeypatch.setattr(hub, "shards", lambda source: 3)
    assert len(planned(corpus("hf:somebody/something", unit_bytes=10**6))) == 3
    monkeypatch.setattr(units, "_pieces", lambda *arguments: iter(()))
    assert [unit.pieces for unit in planned(corpus("docstrings:pyarrow"))] == [whole]


@pytest.fixture
def many(tmp_path):
    """A reader of a source of six units."""
    for k in range(6):
        jsonl(tmp_path / f"{k}.jsonl", [{"id": f"{k}-{i}", "text": f"text {i} of {k}"} for i in range(20)])

    def reader(run="run", **more):
        section = corpus(tmp_path / "*.jsonl", unit_rows=20, unit_bytes=1000, **more)
        folder = str(tmp_path / run)
        storage = Storage(folder)
        return SourceReader(storage, TextShards(section, resolve({}).embedding, folder), 0, folder), storage

    return reader


def test_a_unit_that_no_task_has_read_leaves_the_run_incomplete(many, monkeypatch):
    reader, _ = many()
    assert len(reader.units) == 6
    monkeypatch.setattr(stream, "that_sees", lambda files: {})
    monkeypatch.setattr(stream, "results", lambda cluster, count, work, name, where: [20] * len(work))
    monkeypatch.setattr(stream, "run_with_ray_data", lambda *arguments: iter(()))
    with pytest.raises(IncompleteRun, match="6 units"):
        reader.finish(None)


@pytest.mark.parametrize(("limit", "left"), [(10, [10]), (20, [20]), (50, [20, 20, 10]), (1000, [20] * 6)])
def test_a_limit_leaves_as_many_units_as_hold_it(many, monkeypatch, limit, left):
    reader, _ = many(limit=limit)
    monkeypatch.setattr(stream, "results", lambda cluster, count, work, name, where: [20] * len(work))
    assert [unit.limit for unit in reader._limited(None, reader.units, {})] == left


@pytest.mark.parametrize("embedded", [False, True])
def test_a_mistake_blocks_no_folder_unless_texts_are_embedded_there(many, monkeypatch, embedded):
    reader, storage = many()
    storage.write_json(PLANNED, {})
    if embedded:
        storage.write("texts/part-0.parquet", b"")

    def mistaken(cluster, stage):
        raise UsageError("a column is missing")

    monkeypatch.setattr(reader, "_read_units", mistaken)
    with pytest.raises(UsageError, match="column"):
        reader.finish(None)
    assert storage.exists(PLANNED) == embedded


def test_damage_keeps_its_path_on_the_way_from_a_worker():
    error = pickle.loads(pickle.dumps(Damaged("it is cut", "texts/part-0.parquet")))
    assert (str(error), error.path) == ("it is cut", "texts/part-0.parquet")
