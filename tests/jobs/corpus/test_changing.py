"""A source that is written or exchanged while it is read: never a mixture of what was there before and after."""

import itertools
import os
from dataclasses import replace
from typing import ClassVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem
from whole_run import as_lines, documented, evaluated, paired

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.evaluate import read_tasks
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import reading, shards, sources, units
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.errors import Changed, UsageError
from tempscale_jobs.evaluate import tasks
from tempscale_jobs.runs.folder import PLANNED, SHARDED
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import cluster as sessions

pytestmark = pytest.mark.proof

FILES, ROWS = 6, 40


@pytest.fixture
def data(tmp_path):
    """A folder of Parquet files, and what exchanges one of them as a deploy does."""
    folder = tmp_path / "data"
    folder.mkdir()

    def write(number, generation="old", rows=ROWS):
        texts = [f"{generation} text {number} {k} of a few words" for k in range(rows)]
        table = pa.table({"id": [f"{number}-{k}" for k in range(rows)], "text": texts})
        pq.write_table(table, folder / f"{number}.new")
        os.replace(folder / f"{number}.new", folder / f"{number}.parquet")

    for number in range(FILES):
        write(number)
    return folder, write


def config(folder, out, **more):
    return resolve({"corpus": {"source": str(folder), "unit_rows": ROWS} | more, "out": str(out)})


def stream_of(folder, out, **more):
    own = config(folder, out, **more)
    return SourceReader(Storage(own.out), TextShards(own.corpus, own.embedding, own.out), 0, own.out)


def ends_changed(monkeypatch, module, exchange, name="state", call=1):
    """Exchange something as soon as the state of the source was asked for so many times."""
    take, calls = getattr(module, name), itertools.count(1)

    def taken(*given, **how):
        found = take(*given, **how)
        if next(calls) >= call:
            exchange()
        return found

    monkeypatch.setattr(module, name, taken)


# --- one unit ---------------------------------------------------------------------------------------------------------


def planned(folder, out, **more):
    """The storage and the contents of a run, the units of its source, and the state of this."""
    own = config(folder, out, **more)
    contents = TextShards(own.corpus, own.embedding, own.out)
    return Storage(own.out), contents, units.plan(own.corpus, contents.columns, own.corpus), sources.state(own.corpus)


@pytest.mark.parametrize("when", ["before", "within", "after"])
def test_a_unit_whose_file_is_exchanged_is_not_read(data, tmp_path, monkeypatch, when):
    folder, write = data
    storage, contents, every, state = planned(folder, tmp_path / "run")
    if when == "before":
        write(3, "new")
    records = shards.records

    def told(*given, **how):
        for k, record in enumerate(records(*given, **how)):
            if when == "within" and k == ROWS // 2:
                write(3, "new")
            yield record
        if when == "after":
            write(3, "new", rows=7)

    monkeypatch.setattr(shards, "records", told)
    with pytest.raises(Changed, match=r"3\.parquet"):
        reading.read_unit(storage, contents, every[3], 0, state)
    assert not storage.exists(reading.unit_name(3))


def test_its_own_file_alone_matters_to_a_unit_also_where_a_sample_is_read_again(data, tmp_path):
    folder, write = data
    storage, contents, every, state = planned(folder, tmp_path / "run", sample=50)
    write(4, "new")
    write(9, "new")
    assert reading.read_unit(storage, contents, every[2], 0, state).read == ROWS
    write(2, "new")
    with pytest.raises(Changed, match=r"2\.parquet"):
        reading.choose(storage, contents, every[2], pa.array([1, 2]).to_numpy(), state)
    assert not storage.exists(reading.chosen_of(2))
    (folder / "1.parquet").unlink()
    (folder / "3.parquet").write_bytes((folder / "3.parquet").read_bytes()[:-20])
    for number in (1, 3):
        with pytest.raises(Changed, match=rf"\(.*{number}.parquet\)"):
            reading.read_unit(storage, contents, every[number], 0, state)


# --- a whole source ---------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(ray_session):
    with sessions.session(resolve({"corpus": {"source": "docstrings:scipy"}}).execution) as found:
        yield replace(found, workers=2)


def test_a_source_of_many_units_of_which_one_changes_keeps_nothing(data, tmp_path, monkeypatch, cluster):
    folder, write = data
    with monkeypatch.context() as patch:
        ends_changed(patch, sources, lambda: write(FILES - 1, "new"))
        changing = stream_of(folder, tmp_path / "run")
    with pytest.raises(Changed, match=rf"{FILES - 1}\.parquet") as told:
        changing.finish(cluster)
    assert told.value.exit_code == 2
    storage = Storage(str(tmp_path / "run"))
    assert not storage.exists(PLANNED)  # So the next reading takes no unit of this one.
    assert not storage.exists(SHARDED)
    again = stream_of(folder, tmp_path / "run")
    index = again.finish(cluster)
    assert index.analysed == FILES * ROWS
    texts = [text for shard in index.shards for text in storage.read_table(shard.name)["text"].to_pylist()]
    assert sum(text.startswith("new") for text in texts) == ROWS


def test_a_source_of_one_unit_that_changes_is_not_indexed(data, tmp_path, monkeypatch):
    folder, write = data
    ends_changed(monkeypatch, sources, lambda: write(0, "new"))
    with pytest.raises(Changed, match=r"0\.parquet"):
        stream_of(folder, tmp_path / "run", unit_rows=10**6)
    assert not (tmp_path / "run" / "shards" / "index.json").exists()


def test_pairs_that_change_are_refused(small_model, tmp_path, monkeypatch):
    texts = documented("pyarrow")[:20]
    file = tmp_path / "pairs.jsonl"
    rows = [{"text_a": a["text"], "text_b": b["text"]} for a, b in zip(texts[:10], texts[10:], strict=True)]
    file.write_text(as_lines(rows))
    ends_changed(monkeypatch, sources, lambda: file.write_text(as_lines(rows[:7])))
    with pytest.raises(Changed, match=r"pairs\.jsonl"):
        paired({"out": str(tmp_path / "run"), "pairs": {"source": str(file)}, "embedding": {"models": [small_model]}})
    assert not (tmp_path / "run" / "shards" / "index.json").exists()


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_a_task_whose_files_change_is_refused(small_model, tmp_path, monkeypatch):
    file = tmp_path / "pairs.jsonl"
    rows = [{"sentence1": f"a text {k}", "sentence2": f"a text {k + 1}", "score": k % 5} for k in range(30)]
    file.write_text(as_lines(rows))
    # The first state is asked for where the rows are checked before the run.
    ends_changed(monkeypatch, tasks, lambda: file.write_text(as_lines(rows[:20])), call=2)
    settings = {"embedding": {"models": [small_model], "temperatures": [1.0]}, "execution": {"workers": 1}}
    with pytest.raises(UsageError, match="changed"):
        evaluated(settings | {"out": str(tmp_path / "run"), "tasks": read_tasks([f"sts:{file}"], None, None)})
    assert not (tmp_path / "run" / "run.json").exists()


class Remembering(MemoryFileSystem):
    """A file system that remembers what it has listed, as those of object storage do."""

    protocol = "remembering"
    remembered: ClassVar[dict] = {}
    find = AbstractFileSystem.find  # By `ls`.

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.rpartition("://")[2].strip("/")

    def ls(self, path, detail=True, **how):
        if path not in self.remembered:
            self.remembered[path] = super().ls(path, detail=True)
        return self.remembered[path] if detail else [own["name"] for own in self.remembered[path]]

    def invalidate_cache(self, path=None):
        self.remembered.clear()


def test_a_file_that_comes_while_a_source_is_read_is_seen_through_a_remembered_listing(tmp_path):
    fsspec.register_implementation("remembering", Remembering, clobber=True)
    files = MemoryFileSystem()
    files.pipe_file("/changing/0.jsonl", b'{"text": "a"}\n')
    given = Corpus.model_validate({"source": "remembering:///changing/*.jsonl"})
    before = sources.state(given, None)
    with pytest.raises(Changed), sources.unchanged(given, before):
        files.pipe_file("/changing/1.jsonl", b'{"text": "b"}\n')
    with sources.unchanged(given, sources.state(given, None)):
        pass
