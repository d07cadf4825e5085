"""Reading: every kind of source gives the same texts, and every unusable row is recorded with its reason."""

import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import sharded

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import reading, rows, shards, sources
from tempscale_jobs.corpus.preview import preview
from tempscale_jobs.corpus.shards import Texts
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.storage import Storage

TEXTS = [
    "a plain text",
    "two\nlines, and a comma",
    "emoji 🙂 and עברית",
    'quotes " and \\ and \x00 NUL',
    "  spaces around  ",
]


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


def write_all_kinds(folder):
    ids = [f"t{k}" for k in range(len(TEXTS))]
    pq.write_table(pa.table({"id": ids, "text": TEXTS}), folder / "a.parquet")
    pq.write_table(pa.table({"id": ids, "text": pa.array(TEXTS).dictionary_encode()}), folder / "dictionary.parquet")
    pq.write_table(pa.table({"id": ids, "text": pa.array(TEXTS, pa.large_string())}), folder / "large.parquet")
    lines = "".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in zip(ids, TEXTS, strict=True))
    (folder / "a.jsonl").write_text(lines, "utf-8")
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([["id", "text"], *zip(ids, TEXTS, strict=True)])
    return ["a.parquet", "dictionary.parquet", "large.parquet", "a.jsonl", "a.jsonl.gz", "a.csv"]


def test_every_kind_of_file_gives_the_same_shards(tmp_path):
    kinds = write_all_kinds(tmp_path)
    found = {kind: read(tmp_path, tmp_path / kind) for kind in kinds}
    for kind, (index, texts, rejected) in found.items():
        assert [row["text"] for row in texts] == TEXTS, kind
        assert [row["text_id"] for row in texts] == ["t0", "t1", "t2", "t3", "t4"], kind
        assert not rejected
        assert [shard.texts for shard in index.shards] == [2, 2, 1]
        assert index.fingerprint == found["a.parquet"][0].fingerprint


def test_plain_text_is_one_text_a_line_with_digests_for_ids(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\n\ntwo\n\xff\xfe\nthree")
    _, texts, rejected = read(tmp_path, tmp_path / "a.txt")
    assert [row["text"] for row in texts] == ["one", "two", "three"]
    assert len({row["text_id"] for row in texts}) == 3
    assert all(len(row["text_id"]) == 24 for row in texts)
    assert [(row["place"], row["reason"]) for row in rejected] == [
        ("a.txt:3", "the text is not valid UTF-8"),
    ]


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


def test_sample_is_seeded_and_stays_put_when_texts_are_added(tmp_path):
    def sample(count, seed=0):
        pq.write_table(
            pa.table({"id": list(range(count)), "text": [f"text {k}" for k in range(count)]}), tmp_path / "a.parquet"
        )
        settings = resolve({"corpus": {"source": str(tmp_path / "a.parquet"), "sample": 40}, "seed": seed})
        storage = Storage(str(tmp_path / f"run{count}-{seed}"))
        index = sharded(storage, settings)
        assert (index.analysed, index.usable) == (40, count)
        return {row["text_id"] for shard in index.shards for row in storage.read_table(shard.name).to_pylist()}

    before = sample(400)
    assert len(before - sample(404)) <= 4
    assert before != sample(400, seed=1)


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
    contents, storage = Texts(Corpus(source="x"), sizes, ""), Storage(str(tmp_path))
    parts, _ = reading._keep(storage, contents, unit, 0, texts)
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


@pytest.mark.parametrize(
    ("most", "before", "enough"), [(80, 0, 10), (80, 160, 10), (80, 800, 50), (80, 10_000, 80), (3, 0, 1)]
)
def test_shards_grow_up_to_the_usual_size(most, before, enough):
    assert shards.enough(most, before) == enough


@pytest.mark.parametrize("characters", [1, 99, 100, 101, 1600, 1601, 5000, 20_000])
def test_shards_are_counted_ahead_as_they_are_made(characters):
    sizes = resolve({"embedding": {"shard_texts": 10**6, "shard_characters": 800}}).embedding
    texts = [shards.Text(str(k), "x", False, None) for k in range(characters)]
    made = list(Texts(Corpus(source="x"), sizes, "").grouped(texts, begins=True))
    assert shards.shards_of(characters, 800) == len(made)
    assert len(made) >= -(-characters // 800)


@pytest.mark.parametrize(("wanted", "most"), [({}, 512), ({"limit": 160}, 10), ({"sample": 161}, 11), ({"limit": 3}, 1)])
def test_shards_of_few_texts_are_smaller(wanted, most):
    sizes = resolve({}).embedding
    assert shards.most_texts(Corpus(source="x", **wanted), sizes) == most
    assert shards.most_texts(Corpus(source="x", limit=10**6), sizes) == 512


def test_other_columns_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("key,body\nk,hello\n", "utf-8")
    _, texts, _ = read(tmp_path, tmp_path / "a.csv", id_column="key", text_column="body")
    assert [(row["text_id"], row["text"]) for row in texts] == [("k", "hello")]


def test_docstrings_are_parsed_and_distinct():
    rows = list(sources.rows(Corpus.model_validate({"source": "docstrings:pyarrow"})))
    ids = [row.id for row in rows]
    assert len(set(ids)) == len(ids) > 100
    assert len({row.text for row in rows}) == len(rows)
    assert all(i.startswith("pyarrow") for i in ids)
    whole = next(row for row in rows if row.id == "pyarrow.parquet.core.ParquetFile")
    assert whole.text.startswith("Reader interface for a single Parquet file.\n\nParameters\n----------\n")


def test_hub_datasets_read_a_local_folder_through_the_datasets_library(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    pq.write_table(pa.table({"id": ["x", "y"], "text": ["one", None]}), folder / "train.parquet")
    _, texts, rejected = read(tmp_path, f"hf:{folder}")
    assert [row["text"] for row in texts] == ["one"]
    assert [row["reason"] for row in rejected] == ["the text is null"]


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (lambda f: f / "none.parquet", {}, "is not there"),
        (lambda f: f / "*.none", {}, "is not there"),
        (lambda f: write(f / "a.docx", b"x"), {}, "of no known kind"),
        (lambda f: write(f / "a.jsonl", b'{"id": 1, "body": "x"}\n'), {}, "has no column 'text'; it has 'id', 'body'"),
        (lambda f: write(f / "a.csv", b"id,text\n1,x\n"), {"id_column": "key"}, "has no column 'key'"),
        (lambda f: write(f / "a.parquet", b"PAR1 cut short"), {}, "cannot be read to its end as parquet"),
        (lambda f: write(f / "a.jsonl.gz", gzip.compress(b'{"id":1,"text":"x"}\n' * 999)[:40]), {}, "cannot be read to"),
        (lambda f: write(f / "a.jsonl.gz", b"no gzip at all"), {}, "cannot be read to its end"),
        (lambda f: write(f / "a.txt", b"\n\n"), {}, "no usable text: 0 rows read"),
        (lambda f: write(f / "a.jsonl", b'{"text": ""}\n' * 2), {}, r"2 rows read, all rejected \(2 × the text is empty\)"),
        (lambda f: write(f / "a.jsonl", b""), {}, "no usable text: 0 rows read"),
        (lambda f: "docstrings:", {}, "an empty package name; give installed packages"),
        (lambda f: "docstrings:scipy,", {}, "an empty package name"),
        (lambda f: "docstrings:no_such_package", {}, "no package 'no_such_package' is installed"),
        (lambda f: "docstrings:os.path;x", {}, "is installed here"),
        (lambda f: "hf:/no/such/dataset", {}, "cannot be loaded"),
        (lambda f: "hf:a:b:c:d", {}, "not of the form"),
        (lambda f: "nosuchscheme://x/a.parquet", {}, "cannot be opened"),
    ],
)  # fmt: skip
def test_bad_sources_are_sentences(tmp_path, make, options, sentence):
    with pytest.raises(UsageError, match=sentence) as caught:
        read(tmp_path, make(tmp_path), **options)
    assert "\n" not in str(caught.value)


def write(path, data):
    path.write_bytes(data)
    return path


def test_a_changed_source_is_refused_on_resume(tmp_path):
    file = write(tmp_path / "a.txt", b"one\ntwo\n")
    storage, settings = Storage(str(tmp_path / "run")), configured(file)
    first = sharded(storage, settings)
    assert sharded(storage, settings) == first
    file.write_bytes(b"one\ntwo\nthree\n")
    with pytest.raises(UsageError, match="changed since the run"):
        sharded(storage, settings)


def test_rejected_rows_are_written_in_parts_before_there_are_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "_REJECTED_ROWS", 2)
    file = write(tmp_path / "a.txt", b"good\n" + b"\xff\n" * 5)
    index, texts, rejected = read(tmp_path, file)
    assert [row["text"] for row in texts] == ["good"]
    assert index.rejected == 5
    names = Storage(str(tmp_path / "run")).list("rejected")
    assert names == [f"rejected/part-00000000-{k:08d}.parquet" for k in range(3)]
    assert [pq.read_table(tmp_path / "run" / name).num_rows for name in names] == [2, 2, 1]
    assert [row["place"] for row in rejected] == [f"a.txt:{k}" for k in range(1, 6)]


def test_texts_are_found_in_their_shards_and_nowhere_else(tmp_path):
    storage, settings = (
        Storage(str(tmp_path / "run")),
        configured(write(tmp_path / "a.csv", b"id,text\n1,a\n2,b\n3,c\n4,d\n5,e\n")),
    )
    index = sharded(storage, settings)  # Two texts a shard.
    assert shards.places_of(storage, index, {"5", "1", "2", "9"}) == {0: ["1", "2"], 2: ["5"]}
    assert shards.texts_of(storage, index, {"5", "1", "9"}) == {"1": "a", "5": "e"}


def test_a_preview_counts_the_usable_texts_and_leaves_nothing_behind(tmp_path):
    file = write(tmp_path / "a.csv", b"id,text\n1,a\n2,\n3,c\n1,again\n")
    settings = resolve({"out": str(tmp_path / "run"), "corpus": {"source": str(file)}})
    found, usable, *_ = preview(Texts(settings.corpus, settings.embedding, settings.out), 10, settings.seed, settings.out)
    assert ([text.text for text in found], usable) == (["a", "c"], 2)
    assert not (tmp_path / "run").exists()
