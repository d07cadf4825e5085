"""A file exchanged for another of equal size and time has changed, and a copy with its times has not."""

import os
import shutil

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from whole_run import as_lines

from tempscale_jobs.config.evaluate import TaskFile
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import sources, states
from tempscale_jobs.errors import UsageError

OLD, NEW = (as_lines([{"text": f"{word} text {k}"} for k in range(50)]) for word in ("some", "more"))


@pytest.fixture
def file(tmp_path):
    found = tmp_path / "data" / "c.jsonl"
    found.parent.mkdir()
    found.write_text(OLD)
    return found


def given(file):
    return Corpus.model_validate({"source": str(file)})


def same_time(file, before):
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def rewritten(file):
    before = file.stat()
    file.write_text(NEW)
    same_time(file, before)


def replaced(file):
    before = file.stat()
    file.with_suffix(".new").write_text(NEW)
    same_time(file.with_suffix(".new"), before)
    os.replace(file.with_suffix(".new"), file)


@pytest.mark.parametrize("exchange", [rewritten, replaced])
@pytest.mark.parametrize("source", ["file", "folder", "glob", "hub folder"])
def test_a_file_of_equal_size_and_time_has_changed(file, exchange, source):
    names = {"file": file, "folder": file.parent, "glob": f"{file.parent}/*.jsonl", "hub folder": f"hf:{file.parent}"}
    own = given(names[source])
    before, size, time = sources.identity(own), file.stat().st_size, file.stat().st_mtime_ns
    exchange(file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (size, time)
    assert sources.changes(own, before) == [str(file)]
    with pytest.raises(UsageError, match="changed since"):
        sources.check_unchanged(own, "out", before)


def test_so_has_the_file_behind_a_link(file):
    other = file.parent.parent / "elsewhere.jsonl"
    shutil.move(file, other)
    file.symlink_to(other)
    before = sources.identity(given(file.parent))
    rewritten(other)
    assert sources.changes(given(file.parent), before) == [str(file)]


def copied(file):
    shutil.copytree(file.parent, file.parent.with_name("copy"))
    shutil.rmtree(file.parent)
    file.parent.with_name("copy").rename(file.parent)


def permitted(file):
    file.chmod(0o600)


def renamed(file):
    file.rename(file.with_suffix(".away"))
    file.with_suffix(".away").rename(file)


@pytest.mark.parametrize("move", [copied, permitted, renamed])
def test_a_copy_with_its_times_has_not_changed(file, move):
    own = given(file.parent)
    before, known = sources.identity(own), sources.state(own)
    move(file)
    assert sources.state(own) != known
    assert sources.changes(own, before) == []
    sources.check_unchanged(own, "out", before)
    with sources.unchanged(own, before), sources.unchanged(own, before, files=[str(file)]):
        pass


@pytest.mark.parametrize("change", [lambda f: f.write_text(OLD[:-1]), lambda f: os.utime(f), lambda f: f.unlink()])
@pytest.mark.parametrize("facts", [2, None])
def test_another_size_or_time_is_a_change_as_before_and_to_a_state_of_two_facts(file, change, facts):
    own = given(file.parent)
    before = {name: known[:facts] for name, known in sources.identity(own).items()}
    assert sources.changes(own, before) == []
    (file.parent / "other.jsonl").write_text(OLD)
    assert sources.changes(own, before) == [str(file.parent / "other.jsonl")]
    change(file)
    assert str(file) in sources.changes(own, before)


def test_a_state_without_a_digest_is_held_to_all_that_is_known(file):
    own, before = given(file), sources.state(given(file))
    assert sources.changes(own, before) == []
    renamed(file)
    assert sources.changes(own, before) == [str(file)]


@pytest.mark.parametrize("move", [copied, permitted, renamed, os.utime])
def test_the_files_of_a_task_are_known_by_their_content(file, move):
    own = TaskFile(str(file))
    before = sources.content(own)
    move(file)
    assert sources.content(own) == before
    rewritten(file)
    assert sources.content(own) != before


# --- digests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "seen", "unseen"), [
    (1.0, (0, 1, 9 << 20, (20 << 20) - 1), ()), (0.01, (0, (8 << 20) + 5, 16 << 20, (20 << 20) - 1), (7 << 20,)),
])  # fmt: skip
def test_a_digest_sees_every_byte_or_each_window_and_the_end(tmp_path, part, seen, unseen):
    file, content = tmp_path / "large", os.urandom(1 << 16) * (20 << 4)

    def digested(at=None):
        file.write_bytes(content if at is None else content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        return states.digest(str(file), part, *states.of_local(str(file)))

    before = digested()
    assert [digested(at) != before for at in (*seen, *unseen)] == [True] * len(seen) + [False] * len(unseen)


def test_each_of_several_files_has_its_own_digest_and_all_are_digested_alike(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(name * 10)
    found = states.digested({str(tmp_path / name): states.of_local(str(tmp_path / name)) for name in "abc"})
    assert [facts[-2] for facts in found.values()] == [1.0] * 3
    assert len({facts[-1] for facts in found.values()}) == 3


# --- elsewhere ----------------------------------------------------------------------------------------------------------

S3 = {"size": 5, "LastModified": "2026-11-22 10:00:00", "ETag": '"a"', "VersionId": "v1"}


@pytest.mark.parametrize(
    "now", [S3 | {"ETag": '"b"'}, S3 | {"VersionId": "v2"}, S3 | {"LastModified": "later"}, S3 | {"size": 6}]
)
def test_an_object_is_known_by_its_time_its_tags_and_its_size(now):
    before = states.of_remote(S3)
    assert states.is_same("bucket/key", before, states.of_remote(dict(S3)))
    assert not states.is_same("bucket/key", before, states.of_remote(now))


def test_a_remote_file_is_never_taken_for_a_local_one_of_its_name(tmp_path):
    name = str(tmp_path / "c.jsonl")
    (tmp_path / "c.jsonl").write_text(OLD)
    files = MemoryFileSystem()
    files.pipe_file(name, b'{"text": "a"}\n')
    assert len(sources.identity(given(f"memory://{name}"))[name]) == len(sources.state(given(f"memory://{name}"))[name])


def test_packages_are_known_by_their_version():
    own = given("docstrings:numpy")
    assert sources.identity(own) == sources.state(own)
    assert sources.changes(own, {"numpy": "0"}) == ["numpy"]
