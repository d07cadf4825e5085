"""Object storage: an S3 server on loopback, a whole run on it, and locks of which one wins."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from whole_run import as_lines, audited, documented

from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs.storage import Storage

s3fs = pytest.importorskip("s3fs")

pytestmark = pytest.mark.proof


@pytest.fixture(params=["local", "s3"])
def storage(request, tmp_path):
    if request.param == "local":
        return Storage(str(tmp_path))
    return Storage(f"{request.getfixturevalue('bucket')}/{tmp_path.name}")


def test_what_another_process_wrote_is_seen_at_once(storage):
    storage.write("a/one", b"1")
    assert storage.list("a") == ["a/one"]
    other = Storage(storage.root)
    other.filesystem[0].clear_instance_cache()
    Storage(storage.root).write("a/two", b"2")
    assert storage.exists("a/two")
    assert storage.list("a") == ["a/one", "a/two"]
    assert other.list("a") == ["a/one", "a/two"]


def test_of_many_that_create_a_file_one_does(storage):
    won, barrier = [], threading.Barrier(8)

    def create(number):
        barrier.wait()
        if Storage(storage.root).create("lock", str(number).encode()):
            won.append(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(create, range(8)))
    assert len(won) == 1
    assert storage.read("lock") == str(won[0]).encode()
    assert storage.list("") == ["lock"]
    storage.remove("lock")
    assert storage.create("lock", b"next")


def test_a_slash_at_the_end_names_the_same_folder(storage):
    slash = Storage(f"{storage.root}//")
    assert slash.root == storage.root
    slash.write("queries/a", b"1")
    Storage(f"{slash.root}/queries").write("b", b"2")
    assert storage.list("queries") == ["queries/a", "queries/b"]


def test_a_file_that_arrives_short_is_an_incomplete_run(bucket, monkeypatch):
    storage = Storage(f"{bucket}/short")
    monkeypatch.setattr(storage.filesystem[0], "info", lambda path: {"size": 3})
    with pytest.raises(IncompleteRun, match="not written whole"):
        storage.write("a", b"hello")


def run(out, corpus, small_model, store=None):
    embedding, execution = {"models": [small_model], "shard_texts": 40}, {"workers": 2, "cache": store}
    analysis = {"socm_sample": 30, "probe_sample": 0}
    audited({"out": out, "corpus": {"source": corpus}, "embedding": embedding, "analysis": analysis, "execution": execution})


@pytest.mark.soak
def test_a_whole_run_on_object_storage_leaves_the_tables_of_a_local_one(no_ray, bucket, ray_session, tmp_path, small_model):
    """In a Ray of its own, whose workers know where the bucket is."""
    lines = as_lines(documented("pyarrow")[:100])
    Storage(bucket).write("corpus/texts.jsonl", lines.encode())
    (tmp_path / "texts.jsonl").write_text(lines)
    run(f"{bucket}/run", f"{bucket}/corpus/texts.jsonl", small_model, f"{bucket}/cache")
    run(str(tmp_path / "run"), str(tmp_path / "texts.jsonl"), small_model)
    remote, local = Storage(f"{bucket}/run"), Storage(str(tmp_path / "run"))
    names = local.list("tables")
    assert remote.list("tables") == names
    assert len(names) >= 8
    assert [remote.read(name) for name in names] == [local.read(name) for name in names]
    written = b"".join(remote.read(name) for name in ("run.json", "begun.json", "report.html"))
    assert os.environ["AWS_SECRET_ACCESS_KEY"].encode() not in written
    run(f"{bucket}/again", f"{bucket}/corpus/texts.jsonl", small_model, f"{bucket}/cache")
    again = Storage(f"{bucket}/again")
    assert "100 of 100 texts" in again.read_json("run.json")["byte_identity_exceptions"][0]
    for name in names:  # The texts lie in other parts, whose sums are added in another order.
        own, fresh = (pl.from_arrow(storage.read_table(name)) for storage in (again, local))
        assert_frame_equal(own, fresh, check_exact=False, rel_tol=1e-12, abs_tol=1e-15)
    assert pl.from_arrow(again.read_table("tables/collapse_summary.parquet"))["texts"].to_list() == [100, 100]


@pytest.mark.parametrize("place", ["out", "cache", "corpus"])
def test_a_storage_without_credentials_is_a_sentence(bucket, tmp_path, monkeypatch, small_model, place):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    s3fs.S3FileSystem.clear_instance_cache()
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    remote = f"{bucket}/{place}.txt"
    data = {
        "out": remote if place == "out" else str(tmp_path / "run"), "embedding": {"models": [small_model]},
        "corpus": {"source": remote if place == "corpus" else str(tmp_path / "texts.txt")},
        "execution": {"cache": remote if place == "cache" else None},
    }  # fmt: skip
    with pytest.raises(UsageError, match=f"'{remote}'.*credentials"):
        audited(data)
    s3fs.S3FileSystem.clear_instance_cache()
