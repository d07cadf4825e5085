"""Lance and Delta tables: every row once, in order, at one version; a sentence where the package or table is missing."""

import json
import re
import shutil
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import sharded

from tempscale.optional import install
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import lakes, sources, stores
from tempscale_jobs.corpus.readers import Columns
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.storage import Storage

ROWS = [{"id": f"t{i:03d}", "text": f"text number {i}", "other": i} for i in range(250)]


def written(kind, folder):
    if kind == "lance":
        lance = pytest.importorskip("lance")
        path = str(folder / "texts.lance")
        lance.write_dataset(pa.Table.from_pylist(ROWS[:100]), path)
        lance.write_dataset(pa.Table.from_pylist(ROWS[100:]), path, mode="append")
    else:
        deltalake = pytest.importorskip("deltalake")
        path = str(folder / "texts")
        deltalake.write_deltalake(path, pa.Table.from_pylist(ROWS))
    return path


@pytest.mark.parametrize("kind", ["lance", "delta"])
@pytest.mark.parametrize("prefix", ["", "{kind}:"])
def test_every_row_is_read_once_in_order(tmp_path, kind, prefix):
    source = prefix.format(kind=kind) + written(kind, tmp_path)
    found = list(sources.rows(Corpus.model_validate({"source": source, "document_column": "other"})))
    assert [(row.id, row.text, row.document) for row in found] == [(row["id"], row["text"], row["other"]) for row in ROWS]
    settings = resolve({"corpus": {"source": source}, "out": str(tmp_path / "run")})
    index = sharded(Storage(str(tmp_path / "run")), settings)
    assert index.analysed == len(ROWS)
    assert set(index.source_state) == {"version", "files"}


@pytest.mark.parametrize("kind", ["lance", "delta"])
def test_another_version_and_another_table_of_the_same_version_are_other_corpora(tmp_path, kind):
    source = written(kind, tmp_path)
    given = Corpus.model_validate({"source": source})
    before = sources.state(given)
    assert sources.state(given) == before
    assert sources.changes(given, before) == []
    shutil.rmtree(source)
    written(kind, tmp_path)
    assert sources.state(given)["version"] == before["version"]
    assert sources.changes(given, before) == ["files"]
    assert sources.changes(given, {"version": before["version"]}) == []
    more = pa.Table.from_pylist([{"id": "new", "text": "new", "other": 1}])
    if kind == "lance":
        pytest.importorskip("lance").write_dataset(more, source, mode="append")
    else:
        pytest.importorskip("deltalake").write_deltalake(source, more, mode="append")
    assert sources.changes(given, {"version": before["version"]}) == ["version"]
    assert sum(1 for _ in sources.rows(given)) == len(ROWS) + 1


@pytest.mark.parametrize("kind", ["lance", "delta"])
def test_a_missing_column_table_or_package_is_named(tmp_path, kind, monkeypatch):
    source = written(kind, tmp_path)
    with pytest.raises(UsageError, match=r"'body'.*--text-column"):
        list(sources.rows(Corpus.model_validate({"source": source, "text_column": "body"})))
    with pytest.raises(UsageError, match=f"'nothing' .*{kind.capitalize()}"):
        list(sources.rows(Corpus.model_validate({"source": f"{kind}:{tmp_path}/nothing"})))
    module = {"lance": "lance", "delta": "deltalake"}[kind]
    monkeypatch.setitem(sys.modules, module, None)  # As where it is not installed.
    with pytest.raises(UsageError, match=re.escape(install(module))):
        list(sources.rows(Corpus.model_validate({"source": source})))


def test_what_cannot_be_looked_into_is_no_table_and_told_where_it_is_opened():
    source = "nosuchscheme://bob:SECRET@host/texts"
    assert lakes.kind(source) is None
    with pytest.raises(UsageError, match=r"'nosuchscheme://\*\*\*@host/texts'"):
        list(sources.rows(Corpus.model_validate({"source": source})))


def test_a_delta_table_of_a_feature_that_the_package_cannot_read_is_a_sentence(tmp_path):
    source = written("delta", tmp_path)
    feature = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": feature, "writerFeatures": feature}
    log = tmp_path / "texts" / "_delta_log" / "00000000000000000001.json"
    log.write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(UsageError, match=r"'texts' .*deletionVectors"):
        list(sources.rows(Corpus.model_validate({"source": source})))


@pytest.mark.parametrize("kind", ["lance", "delta"])
def test_a_table_need_not_be_read_to_its_end(tmp_path, kind):
    found = stores.records(lakes, written(kind, tmp_path), Columns({"id": None}, {}, {}))
    assert next(found).values == {"id": "t000"}
    found.close()  # Which is no damaged table.
    assert list(found) == []


@pytest.mark.parametrize(("error", "told", "named"), [
    (KeyboardInterrupt(), KeyboardInterrupt, "^$"), (RuntimeError("a page\nof it"), UsageError, r"^'texts\.lance' .*a page"),
])  # fmt: skip
def test_a_user_who_stops_the_reading_is_heard_and_a_damaged_table_named(monkeypatch, tmp_path, error, told, named):
    lance = pytest.importorskip("lance")

    def stopped(table, columns, offset, limit):
        assert columns == ["text"]
        raise error

    source = written("lance", tmp_path)
    monkeypatch.setattr(lance.LanceDataset, "to_batches", stopped)
    with pytest.raises(told, match=named):
        list(stores.records(lakes, source, Columns({"text": None}, {}, {})))


@pytest.fixture
def private(tmp_path):
    """A Parquet file that belongs to no table."""
    file = tmp_path / "private" / "diary.parquet"
    file.parent.mkdir()
    pq.write_table(pa.table({"id": ["x"], "text": ["PRIVATE"], "other": [1]}), file)
    return file


def refused(source):
    """The sentence with which a table is refused, whichever way it is read."""
    for read in (lambda given: list(sources.rows(given)), lambda given: lakes.parts(source, [], (1, 1))):
        with pytest.raises(UsageError) as caught:
            read(Corpus.model_validate({"source": source}))
    return str(caught.value)


@pytest.mark.parametrize(
    "form", ["{}", "file://{}", "../private/diary.parquet", "%2e%2e/private/diary.parquet", "s3://other/x"]
)
def test_a_delta_log_that_names_a_file_elsewhere_is_refused(tmp_path, private, form):
    source = written("delta", tmp_path)
    (log,) = tmp_path.glob("texts/_delta_log/*.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"] |= {"path": form.format(private), "size": private.stat().st_size}
    log.write_text("\n".join(map(json.dumps, lines)))
    sentence = refused(source)
    assert f"'{form.format(private).replace('%2e', '.')}'" in sentence
    assert "PRIVATE" not in sentence


@pytest.mark.parametrize("kind", ["lance", "delta"])
def test_a_file_of_a_table_that_is_a_link_out_of_it_is_refused(tmp_path, kind):
    source = written(kind, tmp_path)
    file = next(tmp_path.glob("texts.lance/data/*.lance" if kind == "lance" else "texts/*.parquet"))
    file.rename(tmp_path / "moved")
    file.symlink_to(tmp_path / "moved")
    assert file.name in refused(source)


def test_a_lance_table_with_files_in_another_folder_is_refused(tmp_path):
    lance = pytest.importorskip("lance")
    (tmp_path / "elsewhere").mkdir()
    source = str(tmp_path / "texts.lance")
    base = lance.DatasetBasePath(str(tmp_path / "elsewhere"), name="other", is_dataset_root=False)
    lance.write_dataset(pa.Table.from_pylist(ROWS), source, mode="create", initial_bases=[base], target_bases=["other"])
    assert "elsewhere" in refused(source)


def test_a_table_in_a_folder_with_brackets_is_found(tmp_path):
    (tmp_path / "run[1]" / "_delta_log").mkdir(parents=True)
    assert lakes.kind(str(tmp_path / "run[1]")) == "delta"
    assert lakes.kind(str(tmp_path / "run*")) is None


@pytest.mark.parametrize("kind", ["lance", "delta"])
def test_errors_about_a_table_show_no_secret(kind, monkeypatch):
    pytest.importorskip("lance" if kind == "lance" else "deltalake")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert "zzz" not in refused(f"{kind}:nosuchscheme://KEY:pa/zzz@bucket/table?sig=zzz")
