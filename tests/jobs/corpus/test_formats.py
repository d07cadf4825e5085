"""One table of values in every format is read equal; ids, lengths and encodings as people's programs write them."""

import csv
import datetime
import gzip
import io
import json
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from random_inputs import SECONDS, drawn, read, zstd
from whole_run import as_lines

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.corpus import readers, sources
from tempscale_jobs.corpus import rows as rows_of_a_source
from tempscale_jobs.corpus.rows import usable_id, whole_length
from tempscale_jobs.errors import UsageError
from tempscale_jobs.pairs import chunks
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.timeout(SECONDS)


def as_csv(rows, separator=",", ends="\n", mark=""):
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]), delimiter=separator, lineterminator=ends, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    return (mark + sink.getvalue()).encode()


def as_arrow(rows, opened):
    sink, table = pa.BufferOutputStream(), typed(rows, pa.string())
    with opened(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return sink.getvalue().to_pybytes()


def typed(rows, kind):
    """A table whose strings, also those in lists, have one of Arrow's types of strings."""
    columns = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if isinstance(values[0], str):
            encoded = kind == "dictionary"
            column = pa.array(values, pa.string() if encoded else kind)
            columns[name] = column.dictionary_encode() if encoded else column
        elif isinstance(values[0], list) and isinstance(values[0][0], str):
            columns[name] = pa.array(values, pa.list_(pa.string() if kind == "dictionary" else kind))
        else:
            columns[name] = pa.array(values)
    return pa.table(columns)


def as_parquet(kind):
    def made(rows):
        sink = pa.BufferOutputStream()
        pq.write_table(typed(rows, kind), sink)
        return sink.getvalue().to_pybytes()

    return made


FORMATS = {
    "a.jsonl": lambda rows: as_lines(rows).encode(), "a.ndjson": lambda rows: b"\xef\xbb\xbf" + as_lines(rows).encode(),
    "a.jsonl.gz": lambda rows: gzip.compress(as_lines(rows).encode()), "a.csv": as_csv,
    "crlf.csv": lambda rows: as_csv(rows, ends="\r\n"), "mark.csv": lambda rows: as_csv(rows, mark="\ufeff"),
    "a.csv.zst": lambda rows: zstd(as_csv(rows)), "a.tsv": lambda rows: as_csv(rows, "\t"),
    "string.parquet": as_parquet(pa.string()), "large.parquet": as_parquet(pa.large_string()),
    "view.parquet": as_parquet(pa.string_view()), "binary.parquet": as_parquet(pa.binary()),
    "dictionary.parquet": as_parquet("dictionary"), "stream.arrow": lambda rows: as_arrow(rows, pa.ipc.new_stream),
    "file.arrow": lambda rows: as_arrow(rows, pa.ipc.new_file),
}  # fmt: skip
LISTS = [name for name in FORMATS if "csv" not in name and "tsv" not in name]


def written(folder, name, rows, part=None):
    """The rows in the format of this name, in a file of it or of the part's name."""
    file = folder / (f"{part}.{name.partition('.')[2]}" if part else name)
    file.write_bytes(FORMATS[name](rows))
    return str(file)


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9) | st.sampled_from(
    ['a "quoted" word', "with, a comma", "two\nlines", "a\ttab", "it's", "\u00e9\u4e2d\U0001f600", "\\ and \x00 NUL"]
)
IDS = st.sampled_from(["d", "7", "007", "1.0", "-3", "a,b", "\u00e9"])


@drawn(25)
@given(st.lists(st.tuples(IDS, WORDS), min_size=1, max_size=8))
@example([("1", "Hello, world"), ("2", '"Hello", world\nagain')])
def test_any_table_of_texts_is_read_equal_in_every_format(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("any")
    rows = [{"id": f"{name}{k}", "text": f"{text} {k}", "of": name} for k, (name, text) in enumerate(values)]
    expected = [(row["id"], row["text"]) for row in rows]
    for name in FORMATS:
        found, rejected = read(written(folder, name, rows), document_column="of")
        assert (found, rejected) == (expected, []), name


OWN = {
    "retrieval": {
        "corpus": [{"id": f"d{k}", "title": f"Title {k}" if k % 2 else "", "text": f"document {k}"} for k in range(6)],
        "queries": [{"id": f"q{k}", "text": f"query {k}", "kind": "ab"[k % 2]} for k in range(6)],
        "qrels": [{"query_id": f"q{k}", "doc_id": f"d{k}", "score": 1 + k % 2} for k in range(6)],
    },
    "classification": {
        "source": [{"id": f"t{k}", "text": f"text {k}", "label": "xy"[k % 2], "kind": "a"} for k in range(24)]
    },
    "clustering": {"source": [{"id": f"t{k}", "text": f"text {k}", "label": k % 3, "kind": "a"} for k in range(9)]},
    "sts": {"source": [{"sentence1": f"a {k}", "sentence2": f"b {k}", "score": k / 2, "kind": "a"} for k in range(5)]},
    "reranking": {
        "source": [{"query": f"q {k}", "positives": ["a", f"p {k}"], "negatives": [f"n {k}"], "kind": "a"} for k in range(3)]
    },
}  # fmt: skip
"""The files of a task of each type."""


def contents(own):
    """What an mteb task holds, as plain data."""
    from tempscale_jobs.config.evaluate import OwnTask
    from tempscale_jobs.evaluate.own_tasks import build

    data = build(checked(OwnTask, own), 0).dataset
    plain = lambda part: part.to_list() if hasattr(part, "to_list") else part  # noqa: E731
    found = {name: plain(part) if not isinstance(part, dict) else {key: {k: plain(v) for k, v in inner.items()}
             for key, inner in part.items()} for name, part in data.items()}  # fmt: skip
    return json.dumps(found, sort_keys=True)


@pytest.mark.parametrize("kind", OWN)
def test_every_column_of_every_task_of_ones_own_is_equal_in_every_format(tmp_path, kind):
    pytest.importorskip("mteb")
    found = {}
    for name in LISTS if kind == "reranking" else FORMATS:
        folder = tmp_path / name
        folder.mkdir()
        own = {part: written(folder, name, rows, part) for part, rows in OWN[kind].items()}
        found[name] = contents({"name": "own", "type": kind, "where": {"kind": "a"}} | own)
    assert len(set(found.values())) == 1, {name for name in found if found[name] != found["a.jsonl"]}
    assert "b'" not in found["binary.parquet"]


@pytest.mark.parametrize("names", [
    {"query_id": ["1", "2"], "doc_id": ["1", "2"]}, {"query-id": [1.0, 2.0], "corpus-id": [1, 2]},
    {"qid": [Decimal(1), Decimal(2)], "docid": [Decimal("1.00"), Decimal("2.00")]},
])  # fmt: skip
def test_ids_that_are_numbers_in_one_file_and_texts_in_another_are_the_same(tmp_path, names):
    pytest.importorskip("mteb")
    files = {
        "corpus": {"_id": [1.0, 2.0], "text": ["a b", "c d"]}, "queries": {"_id": ["1", "2"], "text": ["a", "c"]},
        "qrels": names | {"score": [1.0, 2.0]},
    }  # fmt: skip
    for name, columns in files.items():
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    own = {name: str(tmp_path / f"{name}.parquet") for name in files}
    assert '"relevant_docs": {"1": {"1": 1}, "2": {"2": 2}}' in contents({"name": "own", "type": "retrieval"} | own)


# BEIR's files, and qrels that do not fit.


def beir(folder, qrels="qrels/test.tsv", relevance="query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td1\t2\n"):
    (folder / qrels).parent.mkdir(parents=True)
    for name in ("corpus", "queries"):
        rows = [{"_id": f"{'d' if name == 'corpus' else 'q'}{k}", "text": f"{name} {k}", "metadata": {}} for k in range(3)]
        (folder / f"{name}.jsonl").write_text(as_lines(rows))
    (folder / qrels).write_text(relevance)
    return folder


@pytest.mark.parametrize("name", ["plain", "with[1]brackets", ".hidden"])
def test_a_folder_of_beir_is_a_task(tmp_path, name):
    pytest.importorskip("mteb")
    from tempscale_jobs.config.evaluate import read_tasks

    (own,) = read_tasks([f"x=retrieval:{beir(tmp_path / name)}"], None, None)
    assert '"relevant_docs": {"q0": {"d0": 1}, "q1": {"d1": 2}}' in contents(own)
    corpus = resolve({"corpus": {"source": own["corpus"]}}).corpus
    assert [row.id for row in sources.rows(corpus)] == ["d0", "d1", "d2"]


@pytest.mark.parametrize(("qrels", "relevance", "named"), [
    ("qrels.tsv", "query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\tgone\t1\nq2\tlost\t1\n", "'gone'"),
    ("qrels.tsv", "query-id\tcorpus-id\tscore\nnobody\td0\t1\n", "'nobody'"),
    ("qrels.tsv", "q0\t0\td0\t1\nq1\t0\td1\t1\n", "TREC"), ("qrels.txt", "q0 0 d0 1\nq1 Q0 d1 -1\n", "TREC"),
    ("qrels.tsv", "q0 0 d0 1\nq1 0 d1 1\n", "TREC"), ("qrels.csv", "query_id,doc_id,score\n,d0,1\n", "query_id"),
])  # fmt: skip
def test_qrels_that_do_not_fit_end_the_command_with_2(tmp_path, qrels, relevance, named):
    pytest.importorskip("mteb")
    from tempscale_jobs.config.evaluate import OwnTask, read_tasks
    from tempscale_jobs.evaluate import tasks

    (own,) = read_tasks([f"x=retrieval:{beir(tmp_path / 'beir', qrels, relevance)}"], None, None)
    planned = tasks.expand([checked(OwnTask, own)])
    with pytest.raises(UsageError, match=named) as caught:
        tasks.check(planned, 0)
    assert caught.value.exit_code == 2
    assert "None" not in str(caught.value)


# Ids and lengths.


@pytest.mark.parametrize(("value", "expected"), [
    ("x", "x"), (b"x", "x"), ("1.0", "1.0"), ("007", "007"), (7, "7"), (-7, "-7"), (2**70, str(2**70)), (1.0, "1"),
    (-2.0, "-2"), (np.float32(3), "3"), (np.int64(4), "4"), (Decimal("5"), "5"), (Decimal("6.000"), "6"),
    (Decimal("1E+3"), "1000"),
    (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"), ({"$oid": "65f0"}, "65f0"), (None, None), ("", None),
    (b"", None), (float("nan"), None), (Decimal("NaN"), None),
])  # fmt: skip
def test_an_id_is_the_same_text_whatever_its_type(value, expected):
    assert usable_id(value) == (expected, None)
    assert rows_of_a_source.named_document(value) == (expected, None)


@pytest.mark.parametrize("value", [
    True, 1.5, float("inf"), 2.0**60, Decimal("0.5"), Decimal("Infinity"), Decimal("1E+999999"), datetime.date(2026, 1, 2),
    datetime.datetime(2026, 1, 2), b"\xff", "\ud800", [1], {"a": 1}, np.array([1, 2]),
], ids=str)  # fmt: skip
def test_what_is_no_id_has_a_reason_that_names_its_kind(value):
    found, reason = usable_id(value)
    assert found is None
    assert reason.startswith("the id ")


@pytest.mark.parametrize("column", [
    pa.array([1.0, None, 3.0]), pa.array([1, None, 3], pa.decimal128(38, 0)), pa.array([1, None, 3], pa.uint64()),
    pa.array(["1", "", "3"]), pa.array([b"1", None, b"3"]), pa.array([1.0, float("nan"), 3.0]),
    pa.array([1, None, 3]).dictionary_encode(),
], ids=lambda column: str(column.type))  # fmt: skip
def test_a_gap_is_no_id_and_whole_numbers_are_what_they_look_like(tmp_path, column):
    pq.write_table(pa.table({"id": column, "text": ["a", "b", "c"]}), tmp_path / "t.parquet")
    found, rejected = read(tmp_path / "t.parquet")
    assert rejected == []
    assert [text_id for text_id, _ in found][::2] == ["1", "3"]
    assert len(found[1][0]) == 24


@pytest.mark.parametrize("kind", ["bytes", "extension", "letters"])
def test_an_id_of_sixteen_bytes_is_a_uuid_unless_they_are_letters_and_a_text_is_a_text(tmp_path, kind):
    own = [b"an-id-0000000001", b"an-id-0000000002"] if kind == "letters" else [uuid.UUID(int=k << 90).bytes for k in (1, 2)]
    texts = ["sixteen letters!", "möglich, mögli"]
    column = pa.array(own, pa.binary(16))
    column = pa.ExtensionArray.from_storage(pa.uuid(), column) if kind == "extension" else column
    columns = {"id": column, "text": pa.array([text.encode() for text in texts], pa.binary(16))}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    ids = [one.decode() if kind == "letters" else str(uuid.UUID(bytes=one)) for one in own]
    assert read(tmp_path / "t.parquet") == ([*zip(ids, texts, strict=True)], [])


@pytest.mark.parametrize(("value", "expected"), [
    (7, 7), (7.0, 7), ("7", 7), (" 7 ", 7), ("7.0", 7), (b"7", 7), (Decimal("7.00"), 7), (2**31 - 1, 2**31 - 1), (0, None),
    (-1, None), ("0", None), (2.5, None), ("2.5", None), ("many", None), ("", None), (None, None), (True, None),
    ("1e999999999", None), (Decimal("1E+999999999"), None), (2**31, None), (float("nan"), None), ([7], None),
])  # fmt: skip
def test_a_length_is_a_whole_number_as_a_number_or_in_digits(value, expected):
    assert whole_length(value) == expected


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "string.parquet"])
@pytest.mark.parametrize("listed", [True, False])
def test_embeddings_and_lengths_in_texts_are_those_in_numbers(tmp_path, name, listed):
    if listed and name in ("a.csv", "a.tsv"):
        pytest.skip("CSV has no lists")
    vectors = [[3.0, 4.0], [0.0, 1.0], [1e-3, 0.0]]
    rows = [{"id": f"t{k}", "n": str(k + 3), "v": own if listed else str(own)} for k, own in enumerate(vectors)]
    found, rejected = read(written(tmp_path, name, rows), embedding_column="v", length_column="n")
    assert rejected == []
    assert [length for _, (_, length) in found] == [3, 4, 5]
    np.testing.assert_allclose([row for _, (row, _) in found], [[0.6, 0.8], [0, 1], [1, 0]], atol=1e-7)


# Pairs.


@pytest.mark.parametrize("ids", [["x", "y"], [7, 8], [7.0, 8.0]])
@pytest.mark.parametrize("listed", [True, False])
def test_pairs_are_the_same_in_every_format(tmp_path, ids, listed):
    texts, others = (["a", "b"], ids) if listed else ("a", ids[0])
    rows = [{"id": "p", "text_a": texts, "id_a": others, "text_b": "other", "id_b": "z"}]
    found = {}
    for name in LISTS if listed else FORMATS:
        storage = Storage(str(tmp_path / f"run-{name}"))
        source = written(tmp_path, name, rows)
        settings = checked(PairsConfig, {"out": storage.root, "pairs": {"source": source}})
        index = chunks.chunk(storage, settings.pairs, settings.out)
        table = pa.concat_tables([storage.read_table(one.name) for one in index.shards]).drop_columns("place")
        found[name] = (table.column("text_id_a").to_pylist(), table.column("text_a").to_pylist(), index.rejected)
    names = [str(one).removesuffix(".0") for one in ids]
    if isinstance(ids[0], float):  # The text 7.0 of a CSV is a text.
        found = {name: one for name, one in found.items() if name in LISTS}
    expected = (names, ["a", "b"], 0) if listed else (names[:1], ["a"], 0)
    assert set(map(str, found.values())) == {str(expected)}


# CSV whose rows do not fit, and other encodings.


@pytest.mark.parametrize(("data", "usable", "reasons"), [
    (b"id,text\n1,Hello, world\n2,fine\n", ["fine"], ["the row has 3 fields, the header 2"]),
    (b"id,text\n1,Dear you, thanks, bye\n", [], ["the row has 4 fields, the header 2"]),
    (b"id,text\n1\n2,fine\n", ["fine"], ["the row has 1 field, the header 2"]),
    (b"text,id\nHello\nworld,1\n", ["world"], ["the row has 1 field, the header 2"]),
    (b"id,text,note\n1,fine\n2,also,x\n", ["fine", "also"], []),
    (b"id,text,\n1,fine,\n", ["fine"], []), (b",id,text\n0,1,fine\n", ["fine"], []),
    (b"id,text,x,x\n1,fine,2,3\n", ["fine"], []), (b'id,text\r\n1,"two\r\nlines"\r\n', ["two\r\nlines"], []),
    (b'\xef\xbb\xbf"id","text"\n1,fine\n', ["fine"], []), (b"id,text\n", [], []), (b"id,text\n,fine\n", ["fine"], []),
    (b"\nid,text\n1,fine\n", ["fine"], []), (b"id,text\n1,\n", [], ["the text is empty"]),
    (b'\xef\xbb\xbftext,id\n\n"a ""quoted"" \x00 text",1\nshort\n\nx,2,more\n', ['a "quoted" \x00 text'],
     ["the row has 1 field, the header 2", "the row has 3 fields, the header 2"]),
    (b"id,text\n1,\xe9t\xe9\n2,fine\n", ["fine"], ["the text is not valid UTF-8"]),
])  # fmt: skip
@pytest.mark.parametrize("separator", [b",", b"\t"])
def test_a_row_that_does_not_fit_the_header_is_rejected_and_never_cut(tmp_path, data, usable, reasons, separator):
    file = tmp_path / ("t.csv" if separator == b"," else "t.tsv")
    file.write_bytes(data.replace(b",", separator))
    found, rejected = read(file)
    assert [text for _, text in found] == usable
    assert [reason for _, reason in rejected] == reasons


TEXT = {
    "t.txt": "a first line\nand a second\n", "t.csv": "id,text\n1,a text\n2,more\n", "t.tsv": "id\ttext\n1\ta text\n",
    "t.jsonl": '{"id": 1, "text": "a text"}\n',
    "cyrillic.txt": "один текст\nещё один\n", "chinese.txt": "我有一个朋友，他喜欢——“读书”和写字……\n" * 99,
    "latvian.txt": "Āda un ēna iet uz tirgu\nĀbele zied\n" * 99, "mixed.txt": "שלום עולם\nمرحبا بالعالم\nok 一\n" * 99,
    "japanese.txt": "日本語\u3000テキスト\nこんにちは世界です\n" * 99, "emoji.txt": "nice 😀 day “quoted” – Ā\nmore\n" * 99,
}  # fmt: skip


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("compress", [False, True])
def test_utf_16_and_utf_32_are_refused_by_name(tmp_path, name, encoding, compress):
    data, file = TEXT[name].encode(encoding), tmp_path / (f"{name}.gz" if compress else name)
    file.write_bytes(gzip.compress(data) if compress else data)
    found, sentence = read(file)
    assert found is None
    assert encoding[:6].upper() in sentence
    file.write_bytes(gzip.compress(TEXT[name].encode()) if compress else TEXT[name].encode())
    assert read(file)[0]


@pytest.mark.parametrize(
    "text", ["a\0b", "\0" * 3, "many letters and \0 one zero", "a \0b \0c", "\0 x" * 9, "\u4e2d\u6587", "\ufeffa"]
)
def test_text_of_utf_8_is_read_whatever_characters_it_has(tmp_path, text):
    (tmp_path / "t.txt").write_bytes(text.encode() + b"\nlast\n")
    assert [found for _, found in read(tmp_path / "t.txt")[0]] == [text.removeprefix("\ufeff"), "last"]


@pytest.mark.parametrize(("name", "content", "expected"), [
    ("t.txt", "\n\na b\n\n \t\r\nc d\n\n", {2: "a b", 5: "c d"}), ("t.txt", "a\r\n\r\nb", {0: "a", 2: "b"}),
    ("t.csv", "id,text\n1,a b\n,\n2,c d\n,,,\n,\n", {0: "a b", 2: "c d"}),
    ("t.tsv", "id\ttext\n\t\n1\ta\n\t\t\n", {1: "a"}), ("t.jsonl", '\n{"text": "a"}\n\n{"text": "b"}\n', {1: "a", 3: "b"}),
])  # fmt: skip
def test_a_row_of_nothing_is_no_row_and_the_others_keep_their_place(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content, newline="")
    found, rejected = read(tmp_path / name)
    assert rejected == []
    assert [text for _, text in found] == list(expected.values())
    corpus = resolve({"corpus": {"source": str(tmp_path / name)}}).corpus
    assert [row.place for row in sources.rows(corpus)] == [f"{name}:{k}" for k in expected]


@pytest.mark.parametrize("opened", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("dictionary", [False, True])
def test_a_large_batch_of_arrow_is_read_in_parts_and_in_its_wanted_columns(tmp_path, opened, dictionary):
    texts = pa.array([f"text {k}" for k in range(10_000)])
    texts = texts.dictionary_encode() if dictionary else texts
    table = pa.table({"other": pa.array([b"x"] * 10_000), "text": texts, "id": range(10_000)})
    with opened(str(tmp_path / "t.arrow"), table.schema) as writer:
        writer.write_table(table)
    found = list(sources.rows(resolve({"corpus": {"source": str(tmp_path / "t.arrow")}}).corpus))
    assert [(row.id, row.text) for row in found] == [(k, f"text {k}") for k in range(10_000)]
    parts = [10_000] if dictionary else [4096, 4096, 1808]
    data = (tmp_path / "t.arrow").read_bytes()
    (tmp_path / "cut.arrow").write_bytes(data[:-8])
    assert read(tmp_path / "cut.arrow")[0] is None
    with (tmp_path / "t.arrow").open("rb") as stream:
        record = next(readers.read(stream, "t.arrow", "t.arrow", readers.Columns({"text": None}, {}, {})))
    assert record == ("t.arrow:0", {"text": "text 0"}, None)
    assert [part.num_rows for part in readers.small_parts(table.to_batches()[0])] == parts


@pytest.mark.parametrize(
    ("sizes", "cut"), [((3, 0, 7, 2), [4, 4, 4]), ((3, 2), [4, 1]), ((9,), [4, 4, 1]), ((0,), []), ((), [])]
)
def test_tables_are_cut_into_equal_numbers_of_rows_in_their_order(sizes, cut):
    numbers = iter(range(sum(sizes)))
    tables = [pa.table({"n": pa.array([next(numbers) for _ in range(size)], pa.int64())}) for size in sizes]
    found = list(readers.of_rows(iter(tables), 4))
    assert [table.num_rows for table in found] == cut
    assert [n for table in found for n in table.column("n").to_pylist()] == list(range(sum(sizes)))


def test_a_span_past_the_end_of_a_file_has_its_last_line():
    columns = sources.columns_of(resolve({"corpus": {"source": "a.txt"}}).corpus)
    found = readers.lines(io.BytesIO(b"one\ntwo\nthree"), "a.txt", "a.txt", columns, readers.Span(4, 1000, 1))
    assert [record.values["text"] for record in found] == [b"two", b"three"]


@pytest.mark.parametrize(("lists", "texts"), [(pa.ListArray, pa.string()), (pa.LargeListArray, pa.large_string())])
def test_texts_in_lists_that_are_not_utf_8_stay_bytes(lists, texts):
    inside = pa.array([b"a", b"\xff"], pa.large_binary() if texts == pa.large_string() else pa.binary()).view(texts)
    assert readers.values(lists.from_arrays([0, 1, 2], inside)) == [["a"], [b"\xff"]]
