"""Lance and Delta tables: every row once, in order, at one version; a sentence where the package or table is missing."""

import pyarrow as pa
import pytest

from jobs import config, corpus, lakes, sources
from jobs.errors import UsageError
from jobs.storage import Storage

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
    found = list(sources.rows(config.Corpus.model_validate({"source": source})))
    assert [(row.id, row.text) for row in found] == [(row["id"], row["text"].encode()) for row in ROWS]
    settings = config.resolve({"corpus": {"source": source}, "out": str(tmp_path / "run")})
    index = corpus.shard(Storage(str(tmp_path / "run")), settings)
    assert index["analysed"] == len(ROWS)
    assert set(index["source_state"]) == {"version"}


@pytest.mark.parametrize("kind", ["lance", "delta"])
def test_another_version_is_another_corpus(tmp_path, kind):
    source = written(kind, tmp_path)
    given = config.Corpus.model_validate({"source": source})
    before = sources.state(given)
    more = pa.Table.from_pylist([{"id": "new", "text": "new", "other": 1}])
    if kind == "lance":
        pytest.importorskip("lance").write_dataset(more, source, mode="append")
    else:
        pytest.importorskip("deltalake").write_deltalake(source, more, mode="append")
    assert sources.state(given) != before
    assert sum(1 for _ in sources.rows(given)) == len(ROWS) + 1


@pytest.mark.parametrize("kind", ["lance", "delta"])
def test_a_missing_column_table_or_package_is_named(tmp_path, kind, monkeypatch):
    source = written(kind, tmp_path)
    with pytest.raises(UsageError, match=r"no column 'body'.*--text-column"):
        list(sources.rows(config.Corpus.model_validate({"source": source, "text_column": "body"})))
    with pytest.raises(UsageError, match=f"cannot be opened as a {kind.capitalize()} table"):
        list(sources.rows(config.Corpus.model_validate({"source": f"{kind}:{tmp_path}/nothing"})))
    load = lakes.importlib.import_module

    def absent(name):
        if name in ("lance", "deltalake"):
            raise ImportError(name)
        return load(name)

    monkeypatch.setattr(lakes.importlib, "import_module", absent)
    with pytest.raises(UsageError, match=rf"pip install 'tempscale\[{kind}\]'"):
        list(sources.rows(config.Corpus.model_validate({"source": source})))
