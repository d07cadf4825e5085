"""Files as people have them: cut, misnamed, of odd columns, behind passwords; read rightly, or refused in a sentence."""

import functools
import gzip
import http.server
import itertools
import json
import os
import sys
import threading
import types

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from random_inputs import COMPRESS
from whole_run import sharded

from tempscale_jobs import urls
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.corpus import hub, readers, sources, units
from tempscale_jobs.corpus.preview import preview
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.storage import Storage

TEXT = readers.Columns({"text": "--text-column"}, {}, {})


def configured(source, out="runs/audit", **options):
    return resolve({"out": str(out), "corpus": {"source": str(source), "max_rejected": 1, **options}})


def rows(source, without=None, **options):
    return list(sources.rows(configured(source, **options).corpus, without))


def write(path, data):
    path.write_bytes(data)
    return path


# Whole files: kinds and compressions.

LINES = b"".join(b'{"id": %d, "text": "text %d"}\n' % (k, k * k) for k in range(2000))


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_files_are_read_to_their_end_through_every_frame(tmp_path, ending):
    compress = COMPRESS[ending]
    file = write(tmp_path / f"a.jsonl.{ending}", compress(LINES) + compress(b'{"id": "last", "text": "x"}\n'))
    found = rows(file)
    assert [row.id for row in found] == [*range(2000), "last"]
    assert found[7].text == "text 49"


@pytest.mark.parametrize(("name", "data", "options", "named"), [
    *((f"a.jsonl.{ending}", data, {}, rf"a\.jsonl\.{ending}'") for ending, compress in COMPRESS.items()
      for data in (b'{"text": "not compressed"}\n', compress(LINES)[:-20])),
    ("a.parquet", b"PAR1 cut short", {}, r"a\.parquet' .*parquet"),
    *((name, data, {}, rf"'{name}' .*jq -c '\.\[\]'") for name in ("a.json", "a.jsonl") for data in (
        b'[{"text": "x"}, {"text": "y"}]', b'\n  [\n{"text": "x"},\n{"text": "y"}\n]\n', b'\xef\xbb\xbf[\n{"text": "x"}\n]',
    )),
    ("a.csv", b'id,text\n1,fine\n2,"never closed\n3,lost\n4,lost\n', {}, r"'a\.csv' .* line 3: .*quotes"),
    ("a.csv", b'id,text\n1,"two\nlines"\n\n2,"closed" too early\n', {}, r"'a\.csv' .* line 5: .*quotes"),
    ("a.csv", b'id,"text\n1,fine\n', {}, r"'a\.csv' .* line 1: .*quotes"),
    ("a.csv", b"id,text\r1,old\r2,ends of lines\r", {}, r"'a\.csv' .* line 1: .*quotes"),
    ("a.csv", b"", {}, r"'a\.csv' is empty"), ("a.csv", b"\n\n", {}, r"'a\.csv' is empty"),
    ("a.csv", b"id,text,id\n1,x,2\n", {}, r"'a\.csv' .*'id' 2 times.*--id-column"),
    ("a.csv", b"id,text\n1,x\n", {"id_column": "key"}, "'key'.*'id', 'text'.*--id-column"),
    ("a.txt", b"one\n", {"id_column": "key"}, "'key'.*'text'.*--id-column"),
    ("a.txt", b"one\n", {"text_column": "body"}, "'body'.*'text'.*--text-column"),
    ("a.jsonl", b'{"body": "x"}\n', {}, "'text'.*'body'.*--text-column"),
    ("a.jsonl", b'{"text": "x"}\n' * 5, {"id_column": "key"}, "'key'.*'text'.*--id-column"),
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_refused_by_what_is_wrong_in_it(tmp_path, name, data, options, named):
    with pytest.raises(UsageError, match=named) as caught:
        rows(write(tmp_path / name, data), **options)
    assert "\n" not in str(caught.value)


# Columns.


def test_columns_of_json_lines_are_those_of_any_record_not_of_the_first(tmp_path):
    records = [{"note": "a header"}, {"text": "no id"}, {"id": "a", "text": "x"}, {"id": "b"}, {"id": "c", "text": None}]
    file = write(tmp_path / "a.jsonl", b"\n".join(json.dumps(record).encode() for record in records))
    missing = "the record has no column 'text'"
    assert [(row.id, row.text, row.problem) for row in rows(file)] == [
        (None, None, missing), (None, "no id", None), ("a", "x", None), ("b", None, missing), ("c", None, None)
    ]  # fmt: skip
    renamed = write(tmp_path / "b.jsonl", file.read_bytes().replace(b'"id"', b'"key"'))
    assert [row.id for row in rows(renamed, id_column="key")] == [None, None, "a", "b", "c"]
    storage = Storage(str(tmp_path / "run"))
    index = sharded(storage, configured(file))
    assert index.rejected_reasons == {missing: 2, "the text is null": 1}
    ids = storage.read_table(index.shards[0].name).column("text_id").to_pylist()
    assert len(ids[0]) == 24
    assert ids[1] == "a"


def test_a_column_that_none_of_the_first_thousand_records_has_is_missing(tmp_path):
    lines = b'{"body": "x"}\n' * 999 + b'{"text": "y"}\n'
    assert [row.text for row in rows(write(tmp_path / "a.jsonl", lines))] == [None] * 999 + ["y"]
    with pytest.raises(UsageError, match=r"'text'.*'body'.*--text-column"):
        rows(write(tmp_path / "a.jsonl", lines[:14] + lines))


def test_a_column_of_parquet_that_is_there_twice_is_refused(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array(["x"])] * 2, ["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=r"'a\.parquet' .*'text' 2 times.*--text-column"):
        rows(tmp_path / "a.parquet")


def test_columns_that_text_files_and_docstrings_have_are_read_and_others_refused(tmp_path):
    with pytest.raises(UsageError, match=r"'body'.*'text'.*--text-column"):
        rows("docstrings:fsspec", text_column="body")
    assert [row.id for row in rows(write(tmp_path / "a.txt", b"one\ntwo\n"), id_column="text")] == ["one", "two"]
    found = rows("docstrings:fsspec", id_column="id", text_column="id")
    assert {row.id for row in found} == {row.text for row in found} > {"fsspec.core.url_to_fs"}


# CSV.


def test_a_quote_that_is_never_closed_draws_no_large_file_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST_VALUE", 1000)
    taken = itertools.count()
    first = list(itertools.islice(readers.read_jsonl((b'{"text": "x"}\n' for _ in taken), "a.jsonl", TEXT), 3))
    assert len(first) == 3
    assert next(taken) <= 4  # Lines are streamed.
    taken = itertools.count()
    lines = itertools.chain([b"id,text\n", b'1,"open\n'], (b"%d,x\n" % k for k in taken))
    with pytest.raises(UsageError, match=r"line 2: .*1000"):
        list(readers.read_csv(lines, "a.csv", TEXT))
    assert next(taken) < 1000


# Folders and globs.


def test_folders_and_globs_without_a_file_to_read_are_told_apart_from_what_is_not_there(tmp_path):
    folder = tmp_path / "dir.jsonl"
    folder.mkdir()
    for source in (folder, f"{folder}/"):
        with pytest.raises(UsageError, match=r"dir\.jsonl/?'"):
            rows(source)
    write(folder / "notes.md", b"notes")
    with pytest.raises(UsageError, match=r"dir\.jsonl'"):
        rows(folder)
    with pytest.raises(UsageError, match=r"\*\.jsonl' matches folders"):
        rows(tmp_path / "*.jsonl")
    with pytest.raises(UsageError, match="is not there"):
        rows(tmp_path / "*.parquet")
    write(tmp_path / "b.jsonl", b'{"text": "x"}\n')
    assert [row.text for row in rows(tmp_path / "*.jsonl")] == ["x"]


@pytest.mark.parametrize("pattern", ["", "**/*.parquet", "**"])
def test_a_run_folder_inside_the_corpus_folder_is_no_part_of_the_corpus(tmp_path, pattern):
    folder = tmp_path / "corpus"
    folder.mkdir()
    pq.write_table(pa.table({"text": ["one", "two"]}), folder / "a.parquet")
    pq.write_table(pa.table({"text": ["three"]}), folder / "runs.parquet")
    settings = configured(f"{folder}/{pattern}", folder / "run")
    storage = Storage(settings.out)
    index = sharded(storage, settings)
    assert index.analysed == 3
    assert storage.list("shards", ".parquet")
    assert sharded(storage, settings) == index
    found, usable, *_ = preview(
        TextShards(settings.corpus, settings.embedding, settings.out), 9, settings.seed, settings.out
    )
    assert ([text.text for text in found], usable) == (["one", "two", "three"], 3)
    sources.check_unchanged(settings.corpus, settings.out, index.source_state)
    pq.write_table(pa.table({"text": ["four"]}), folder / "b.parquet")
    with pytest.raises(UsageError, match="changed"):
        sharded(storage, settings)


def test_a_run_folder_is_known_through_links_and_relative_paths(tmp_path, monkeypatch):
    folder = tmp_path / "corpus"
    (folder / "run").mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    for file in (folder / "a.txt", folder / "run" / "b.txt"):
        write(file, file.stem.encode())
    for source, without in itertools.product(
        (folder, tmp_path / "link", "."), (folder / "run", tmp_path / "link/run", "run/")
    ):
        assert [row.text for row in rows(source, str(without))] == [b"a"], (source, without)


def test_only_a_folder_inside_the_corpus_is_left_out(tmp_path):
    (tmp_path / "in").mkdir()
    file = write(tmp_path / "in" / "a.txt", b"one")
    others = (tmp_path, tmp_path / "in", tmp_path / "i", tmp_path / "in" / "a", "memory://in", "nosuchscheme://x", None)
    for without in others:
        assert [row.text for row in rows(tmp_path / "in", without and str(without))] == [b"one"], without
    assert len(rows(file, str(tmp_path / "in"))) == 1


# Secrets.


@pytest.fixture
def web(tmp_path):
    """A folder and the address, with a password, at which it is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield tmp_path, f"http://bob:SECRET@127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_web_source_is_read_and_nothing_recorded_holds_its_secrets(web):
    folder, address = web
    lines = [b'{"text": "see https://example.com/page and <a href=\\"b.jsonl\\">b</a>"}', b"{broken"]
    write(folder / "a.jsonl.gz", gzip.compress(b"\n".join(lines)))
    settings = configured(f"{address}/a.jsonl.gz?token=SECRET", folder / "run")
    storage = Storage(settings.out)
    index = sharded(storage, settings)
    assert (index.analysed, index.rejected) == (1, 1)
    assert index.source == f"{address}/a.jsonl.gz?***".replace("bob:SECRET", "***")
    assert "SECRET" not in json.dumps(index.facts())
    rejected = storage.read_table(storage.list("rejected")[0]).to_pylist()
    assert [row["place"] for row in rejected] == ["a.jsonl.gz?***:1"]
    sources.check_unchanged(settings.corpus, settings.out, index.source_state)


@pytest.mark.parametrize(("name", "data"), [
    ("none.jsonl", None), ("a.docx", b"x"), ("a.jsonl", b'{"body": "x"}\n'), ("a.jsonl.gz", b"no gzip"),
    ("a.parquet", b"PAR1"), ("a.txt", b"\n"),
])  # fmt: skip
def test_sentences_about_web_sources_hold_no_secret(web, name, data):
    folder, address = web
    if data is not None:
        write(folder / name, data)
    with pytest.raises(UsageError, match=name) as caught:
        sharded(Storage(str(folder / "run")), configured(f"{address}/{name}?token=SECRET", folder / "run"))
    assert "SECRET" not in str(caught.value)


def test_errors_of_others_are_told_without_secrets():
    source = "http://bob:SE'CRET@127.0.0.1:9/x.jsonl?token=SEC RET"
    error = OSError(f"cannot reach '{source}' nor https://bob:SECRET@host/?SECRET\nmore")
    reason = urls.reason(error, source)
    assert reason == "cannot reach 'http://***@127.0.0.1:9/x.jsonl?***' nor https://***@host/?***"
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:9") as caught:
        rows(source)
    assert "SEC" not in str(caught.value)


def test_a_module_that_is_no_python_costs_only_its_own_docstrings(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "made_by_hand", types.ModuleType("made_by_hand"))  # It has no __spec__.
    with pytest.raises(UsageError, match="'made_by_hand'"):
        rows("docstrings:made_by_hand")
    folder = tmp_path / "package_with_a_broken_file"
    folder.mkdir()
    write(folder / "__init__.py", b'"""The package."""')
    write(folder / "a.py", b"print 'of another century'")
    write(folder / "b.py", b'"""With a NUL.\0"""')
    write(folder / "c.py", b'def f():\n    """A function."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    found = rows(f"docstrings:{folder.name}")
    assert [(row.id, row.text) for row in found] == [
        (folder.name, "The package."), (f"{folder.name}.c.f", "A function."),
    ]  # fmt: skip


# Pipes, and what cannot be divided.


def test_a_pipe_whose_rows_must_be_read_again_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UsageError, match=r"pipe\.jsonl"):
        sources.check_not_a_pipe(configured(tmp_path / "pipe.jsonl").corpus, None)
    sources.check_not_a_pipe(configured(write(tmp_path / "file.jsonl", b'{"text": "a"}\n')).corpus, None)


def test_what_cannot_be_divided_is_one_unit_and_a_data_set_has_one_for_each_of_its_shards(tmp_path, monkeypatch):
    def pieces(source):
        section = configured(source, unit_bytes=10**6).corpus
        return [unit.pieces for unit in units.plan(section, TEXT, section, None)]

    os.mkfifo(tmp_path / "pipe.jsonl")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    for source in ("docstrings:pyarrow", tmp_path / "pipe.jsonl", tmp_path / "empty.parquet"):
        assert pieces(source) == [(units.SourcePart("source", bytes=0),)]
    monkeypatch.setattr(hub, "is_dataset", lambda source: True)
    monkeypatch.setattr(hub, "shards", lambda source: 1)
    assert pieces("hf:somebody/something") == [(units.SourcePart("source", bytes=0),)]
    monkeypatch.setattr(hub, "shards", lambda source: 3)
    assert len(pieces("hf:somebody/something")) == 3
