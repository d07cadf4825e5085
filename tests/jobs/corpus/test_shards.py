"""Reading: every kind of source gives the same texts, and every unusable row is recorded with its reason."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import sharded

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import reading, rows, shards, sources
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.storage import Storage


def configured(source, **options):
    return resolve({"corpus": {"source": str(source), "max_rejected": 1, **options}, "embedding": {"shard_texts": 2}})


def read(tmp_path, source, **options):
    storage = Storage(str(tmp_path / "run"))
    storage.remove("")
    index = sharded(storage, configured(source, **options))
    tables = [storage.read_table(shard.name) for shard in index.shards]
    rejected = [storage.read_table(name) for name in storage.list("rejected")]
    texts = pa.concat_tables(tables).to_pylist()
    return index, texts, pa.concat_tables(rejected).to_pylist() if rejected else []


def test_every_unusable_row_is_recorded_and_counted(tmp_path):
    rows = [
        b'{"id": "a", "text": "fine"}', b'{"id": "b", "text": null}',
        b'{"id": "c", "text": "  "}', b'{"id": "d", "text": 3}',
        b'{"id": "a", "text": "again"}', b'{"id": "e"}', b'{"id": "f", "text": "\\ud800"}', b"{not json", b"[1]",
        b'{"id": "g", "text": "\xff"}', b'{"id": 1.5, "text": "float id"}', b'{"id": 7, "text": "whole id"}', b"",
        b'{"id": "7", "text": "the same id as a string"}',
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(rows))
    index, texts, rejected = read(tmp_path, tmp_path / "a.jsonl")
    assert [(row["text_id"], row["text"]) for row in texts] == [("a", "fine"), ("7", "whole id")]
    assert index.read == 13
    assert index.rejected == len(rejected) == 11
    assert index.rejected_reasons == {
        "not a text but int": 1, "the id appeared before": 2, "the id is neither a string nor a whole number but float": 1,
        "the line is not a JSON object": 1, "the line is not valid JSON": 1, "the line is not valid UTF-8": 1,
        "the text is empty": 1, "the text is not valid UTF-8": 1, "the text is null": 1,
        "the record has no column 'text'": 1,
    }  # fmt: skip


def test_invalid_utf8_in_parquet_costs_one_row(tmp_path):
    column = pa.array([b"good", b"\xff\xfe", b"also good"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": [1, 2, 3], "text": column}), tmp_path / "a.parquet")
    _, texts, rejected = read(tmp_path, tmp_path / "a.parquet")
    assert [row["text_id"] for row in texts] == ["1", "3"]
    assert [(row["text_id"], row["reason"]) for row in rejected] == [("2", "the text is not valid UTF-8")]


def test_duplicate_ids_across_files_of_a_folder_and_a_glob(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["1", "2"]}), folder / "1.parquet")
    pq.write_table(pa.table({"id": ["b", "c"], "text": ["3", "4"]}), folder / "2.parquet")
    (folder / "notes.md").write_text("not a corpus file")
    for source in (folder, folder / "*.parquet"):
        _, texts, rejected = read(tmp_path, source)
        assert [row["text"] for row in texts] == ["1", "2", "4"]
        assert [row["place"] for row in rejected] == ["2.parquet:0"]


def test_long_rows_are_cut_by_characters_and_marked(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 100 + "\nshort\n")
    _, texts, _ = read(tmp_path, tmp_path / "a.txt", max_characters=10)
    assert [(row["text"], row["cut"]) for row in texts] == [("x" * 10, True), ("short", False)]


def test_limit_takes_the_first_rows(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": ""}\n\n{"text": "b"}\n{"text": "c"}\n')
    index, texts, _ = read(tmp_path, tmp_path / "a.jsonl", limit=3)
    assert [row["text"] for row in texts] == ["a", "b"]
    assert (index.read, index.usable) == (3, 2)


@pytest.mark.parametrize("unit", [0, 1])
def test_a_corpus_begins_with_smaller_shards(tmp_path, unit):
    """Each of 24 workers has something of 3,000 texts; other units than the first are in shards of the usual size."""
    sizes = resolve({"embedding": {"shard_texts": 1000, "shard_characters": 8000}}).embedding
    texts = [shards.Text(f"{k:05}", "x" * 99 + str(k % 10), False, None) for k in range(3000)]
    contents, storage = TextShards(Corpus(source="x"), sizes, ""), Storage(str(tmp_path))
    parts, _ = reading.keep_rows(storage, contents, unit, 0, texts)
    kept = pa.concat_tables([storage.read_table(name) for name in storage.list("shards")]).column("text_id").to_pylist()
    assert kept == [text.text_id for text in texts]
    found = [texts for texts, _ in parts]
    if unit:
        assert found == [80] * 37 + [40]
        return
    assert found[:16] == [10] * 16  # An eighth of 80, and a sixteenth of 160.
    assert found[16:18] == [10, 11]
    assert found[-2] == 80
    assert all(own <= max(10, sum(found[:k]) / 16 + 1) for k, own in enumerate(found))
    assert sorted(found[:-1]) == found[:-1]
    assert [characters for _, characters in parts] == [100 * texts for texts in found]


@pytest.mark.parametrize(("wanted", "most"), [({}, 512), ({"limit": 160}, 10), ({"sample": 161}, 11), ({"limit": 3}, 1)])
def test_shards_of_few_texts_are_smaller(wanted, most):
    sizes = resolve({}).embedding
    assert shards.most_texts(Corpus(source="x", **wanted), sizes) == most
    assert shards.most_texts(Corpus(source="x", limit=10**6), sizes) == 512


def test_docstrings_are_parsed_and_distinct():
    rows = list(sources.rows(Corpus.model_validate({"source": "docstrings:pyarrow"})))
    ids = [row.id for row in rows]
    assert len(set(ids)) == len(ids) > 100
    assert len({row.text for row in rows}) == len(rows)
    assert all(i.startswith("pyarrow") for i in ids)
    whole = next(row for row in rows if row.id == "pyarrow.parquet.core.ParquetFile")
    assert whole.text.startswith("Reader interface for a single Parquet file.\n\nParameters\n----------\n")


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("none.parquet", "none.parquet"), ("*.none", "none"), (("a.docx", b"x"), "a.docx"), (("a.txt", b"\n\n"), "0 rows"),
        (("a.jsonl", b'{"text": ""}\n' * 2), "2 rows .*2 × the text is empty"), (("a.jsonl", b""), "0 rows"),
        ("docstrings:", "docstrings:"), ("docstrings:scipy,", "scipy"), ("docstrings:no_such_package", "'no_such_package'"),
        ("docstrings:os.path;x", "os.path;x"), ("hf:/no/such/dataset", "/no/such"), ("hf:a:b:c:d", "hf:a:b:c:d"),
        ("nosuchscheme://x/a.parquet", "nosuchscheme"),
    ],
)  # fmt: skip
def test_a_source_without_a_text_is_refused_by_its_name(tmp_path, source, named):
    if isinstance(source, tuple):
        source = write(tmp_path / source[0], source[1])
    elif ":" not in source:
        source = tmp_path / source
    with pytest.raises(UsageError, match=named) as caught:
        read(tmp_path, source)
    assert "\n" not in str(caught.value)


def write(path, data):
    path.write_bytes(data)
    return path


def test_rejected_rows_are_written_in_parts_before_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "REJECTED_ROWS", 2)
    file = write(tmp_path / "a.txt", b"good\n" + b"\xff\n" * 5)
    index, texts, rejected = read(tmp_path, file)
    assert [row["text"] for row in texts] == ["good"]
    assert index.rejected == 5
    names = Storage(str(tmp_path / "run")).list("rejected")
    assert names == [f"rejected/part-00000000-{k:08d}.parquet" for k in range(3)]
    assert [pq.read_table(tmp_path / "run" / name).num_rows for name in names] == [2, 2, 1]
    assert [row["place"] for row in rejected] == [f"a.txt:{k}" for k in range(1, 6)]


def test_texts_are_found_in_their_shards_and_nowhere_else(tmp_path):
    index, *_ = read(tmp_path, write(tmp_path / "a.csv", b"id,text\n1,a\n2,b\n3,c\n4,d\n5,e\n"))  # Two texts a shard.
    storage = Storage(str(tmp_path / "run"))
    assert shards.places_of(storage, index, {"5", "1", "2", "9"}) == {0: ["1", "2"], 2: ["5"]}
    assert shards.texts_of(storage, index, {"5", "1", "9"}) == {"1": "a", "5": "e"}


def test_a_text_without_a_document_is_its_own_where_others_have_one(tmp_path):
    index, *_ = read(tmp_path, write(tmp_path / "a.csv", b"id,text,of\n1,a,7\n2,b,\n3,c,9\n"), document_column="of")
    found = shards.documents_of(Storage(str(tmp_path / "run")), index, {"1", "2"})
    assert found["2"] == rows.own_document("2")
    assert found["1"] != rows.own_document("1")
