"""One run at a time in a folder: a living one keeps others out, a dead one does not."""

import datetime
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from tempscale_jobs import lifecycle
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs import folder, lock
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage


def written(storage, **changes):
    own = {"run": "x", "host": socket.gethostname(), "machine": lock.machine(), "pid": os.getpid()}
    own |= {"since": psutil.Process().create_time(), "renewed": time.time()}
    storage.write(lock.NAME, json.dumps(own | changes).encode())


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(lock, "_SETTLED_SECONDS", {True: 0.0})


def test_a_second_run_is_kept_out_and_the_next_let_in(tmp_path):
    storage = Storage(str(tmp_path))
    with lock.locked(storage):
        assert storage.list("") == [lock.NAME]
        with pytest.raises(UsageError, match=f"process {os.getpid()} on"), lock.locked(storage):
            pass
        assert storage.exists(lock.NAME)
    assert storage.list("") == []
    with lock.locked(storage):
        pass


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    storage = Storage(str(tmp_path))
    code = f"import sys, os; sys.path[:0] = {sys.path!r}\n"
    code += "from tempscale_jobs.runs import lock\nfrom tempscale_jobs.runs.storage import Storage\n"
    code += f"taken = lock.locked(Storage({str(tmp_path)!r})); taken.__enter__(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert storage.exists(lock.NAME)
    with lock.locked(storage):
        assert json.loads(storage.read(lock.NAME))["pid"] == os.getpid()


def test_another_process_with_the_number_of_a_dead_one_does_not_hold_its_lock(tmp_path):
    storage = Storage(str(tmp_path))
    written(storage, since=psutil.Process().create_time() - 5)
    with lock.locked(storage):
        pass


def test_on_another_machine_renewals_tell(tmp_path, monkeypatch):
    storage, waited = Storage(str(tmp_path)), []
    elsewhere = {"host": "elsewhere", "machine": "elsewhere"}
    written(storage, **elsewhere, renewed=time.time() - 1000)
    with lock.locked(storage, lambda: pytest.fail("it is watched")):
        pass
    written(storage, **elsewhere)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: written(storage, **elsewhere))
    with pytest.raises(UsageError, match="on elsewhere"), lock.locked(storage):
        pass
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(lock.time, "sleep", waited.append)
    monkeypatch.setattr(lock.time, "monotonic", lambda: next(clock))
    written(storage, **elsewhere, renewed=time.time() + 300)  # Its clock is not this one's.
    with lock.locked(storage):
        assert json.loads(storage.read(lock.NAME))["pid"] == os.getpid()
    assert sum(seconds > 0 for seconds in waited) >= 10


def test_a_run_that_ends_while_it_is_watched_lets_in(tmp_path, monkeypatch):
    storage = Storage(str(tmp_path))
    written(storage, machine="elsewhere")
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: storage.remove(lock.NAME) if seconds else None)
    with lock.locked(storage):
        assert json.loads(storage.read(lock.NAME))["pid"] == os.getpid()


def test_a_lock_that_cannot_be_read_for_a_moment_is_read_again(tmp_path, monkeypatch):
    """As on a shared disk, where the other machine is just replacing it."""
    storage, read, seen = Storage(str(tmp_path)), Storage.read, []
    written(storage, machine="elsewhere")

    def stale(self, name):
        seen.append(name)
        if len(seen) == 2:
            raise OSError(116, "Stale file handle")
        return read(self, name)

    monkeypatch.setattr(Storage, "read", stale)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: written(storage, machine="elsewhere") if len(seen) > 2 else None)
    with pytest.raises(UsageError, match="is in use"), lock.locked(storage):
        pass
    assert len(seen) >= 3


def test_a_zombie_holds_nothing_and_a_clock_that_was_set_changes_nothing(tmp_path):
    storage = Storage(str(tmp_path))
    zombie = subprocess.Popen([sys.executable, "-c", "pass"])
    while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    written(storage, pid=zombie.pid, since=psutil.Process(zombie.pid).create_time())
    with lock.locked(storage):
        pass
    zombie.wait()
    written(storage, since=psutil.Process().create_time() + 1)
    with pytest.raises(UsageError, match="is in use"), lock.locked(storage):
        pass


def test_a_container_of_the_same_name_is_another_machine(tmp_path, monkeypatch):
    """The number of its process may be that of one which lives here."""
    storage = Storage(str(tmp_path))
    written(storage, machine="a container", since=1.0)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: written(storage, machine="a container", since=1.0))
    with pytest.raises(UsageError, match="is in use"), lock.locked(storage):
        pass


def test_of_several_that_take_over_a_dead_lock_one_holds_it(tmp_path, monkeypatch):
    """Both have seen the death; the second removes what the first has just created."""
    storage = Storage(str(tmp_path))
    written(storage, since=1.0)

    def overtaken(seconds):
        if seconds == 0.0:
            written(storage, run="the second")

    monkeypatch.setattr(lock.time, "sleep", overtaken)
    with pytest.raises(UsageError, match="is in use"), lock.locked(storage):
        pass
    assert json.loads(storage.read(lock.NAME))["run"] == "the second"


def test_a_lock_is_renewed_and_a_damaged_one_no_obstacle(tmp_path, monkeypatch):
    storage = Storage(str(tmp_path))
    storage.write(lock.NAME, b"{")
    monkeypatch.setattr(lock, "_RENEWED_SECONDS", 0.01)
    with lock.locked(storage):
        first = json.loads(storage.read(lock.NAME))["renewed"]
        deadline = time.monotonic() + 5
        while json.loads(storage.read(lock.NAME))["renewed"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_lock_makes_no_folder_one_that_is_in_use_by_others(tmp_path):
    storage = Storage(str(tmp_path))
    with lock.locked(storage):
        assert folder._begun(storage, False) is None
    (tmp_path / "letter.txt").write_text("hello")
    with pytest.raises(UsageError, match="not empty"):
        folder._begun(storage, False)


def test_a_take_over_is_recorded_with_what_was_known_of_the_dead_run(tmp_path, small_model):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "text": "one"}\n')
    settings = resolve(
        {"out": str(tmp_path / "run"), "corpus": {"source": str(corpus)}, "embedding": {"models": [small_model]}}
    )
    storage = Storage(settings.out)
    written(storage, host="node-7", pid=123_456_789, renewed=time.time() - 3600)
    with lock.locked(storage):
        run = folder.begin(settings)
    (record,) = (storage.read_json(name) for name in storage.list(folder.TAKEOVERS))
    assert (record["host"], record["process"]) == ("node-7", 123_456_789)
    seen, taken = (datetime.datetime.fromisoformat(record[key]) for key in ("last_seen", "taken_over"))
    assert 3590 < (taken - seen).total_seconds() < 3700
    assert folder.facts(run, settings)["taken_over"] == [record]
    storage.write_json(folder.SHARDED, {})
    with lock.locked(storage):  # The next attempt takes nothing over.
        folder.begin(settings)
    assert len(storage.list(folder.TAKEOVERS)) == 1


def test_a_storage_that_cannot_lock_is_used_without(tmp_path, monkeypatch):
    def without(self, name, data):
        raise NotImplementedError("no such step")

    monkeypatch.setattr(Storage, "create", without)
    storage, done = Storage(str(tmp_path)), []
    with lock.locked(storage):
        done.append(storage.list(""))
    assert done == [[]]
    assert storage.list("") == []


def test_a_lock_that_goes_while_it_is_looked_at_is_taken(tmp_path, monkeypatch):
    """The other run ends between the attempt to create the file and the look into it."""
    storage, create, tried = Storage(str(tmp_path)), Storage.create, []
    written(storage, run="ending")

    def ending(self, name, data):
        made = create(self, name, data)
        tried.append(made)
        if not made:
            self.remove(name)
        return made

    monkeypatch.setattr(Storage, "create", ending)
    with lock.locked(storage):
        held = json.loads(storage.read(lock.NAME))
    assert tried == [False, True]
    assert held["pid"] == os.getpid()
    assert "took_over" not in held  # Nobody died.


def test_a_lock_that_another_run_takes_while_this_one_looks_at_the_dead_is_left_to_it(tmp_path, monkeypatch):
    """Two runs find a dead lock; the other is faster, and lives."""
    storage, dead = Storage(str(tmp_path)), lock._dead
    written(storage, run="dead", pid=2**22 - 1)

    def taken_meanwhile(other, *how):
        found = dead(other, *how)
        if other["run"] == "dead":
            assert found
            written(storage, run="faster")
        return found

    monkeypatch.setattr(lock, "_dead", taken_meanwhile)
    with pytest.raises(UsageError, match="is in use by another run"), lock.locked(storage):
        pass
    assert json.loads(storage.read(lock.NAME))["run"] == "faster"


def test_a_lock_that_another_run_took_meanwhile_is_neither_renewed_nor_removed(tmp_path):
    storage = Storage(str(tmp_path))

    class Once:
        """Not ended at the first look, and at the second."""

        def __init__(self):
            self.answers = iter([False, True])

        def wait(self, seconds):
            return next(self.answers)

    with lock.locked(storage):
        own = json.loads(storage.read(lock.NAME))
        lock._renew(storage, own, Once(), threading.Event())
        renewed = json.loads(storage.read(lock.NAME))
        assert renewed["run"] == own["run"]
        assert renewed["renewed"] > own["renewed"]
        written(storage, run="another")
        others = storage.read(lock.NAME)
        lock._renew(storage, own, Once(), threading.Event())
        assert storage.read(lock.NAME) == others
    assert storage.read(lock.NAME) == others


# --- what must not lose it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_by", [-3600.0, -3.0, 3.0, 86400.0])
def test_a_clock_that_is_set_takes_no_lock_from_the_living(tmp_path, set_by):
    storage = Storage(str(tmp_path))
    since = psutil.Process().create_time() + set_by  # What psutil derives from the time of the boot moves with the clock.
    written(storage, since=since, ticks=lock._ticks(os.getpid()))
    with pytest.raises(UsageError, match="is in use"), lock.locked(storage):
        pass


@pytest.mark.proof
@pytest.mark.parametrize("content", [b"[]", b"[1]", b"5", b"null", b'"x"', b"\xff", b"{"])
def test_a_lock_that_holds_no_record_is_that_of_a_dead_run(tmp_path, content):
    storage = Storage(str(tmp_path))
    storage.write(lock.NAME, content)
    with lock.locked(storage) as held:
        held.check()
    assert not storage.exists(lock.NAME)


def test_ticks_tell_processes_of_one_number_apart(tmp_path):
    storage = Storage(str(tmp_path))
    written(storage, ticks=lock._ticks(os.getpid()) - 1)
    with lock.locked(storage):
        held = json.loads(storage.read(lock.NAME))
    assert held["ticks"] == lock._ticks(os.getpid()) == int(Path("/proc/self/stat").read_text().split()[21])
    assert lock._ticks(2**22 + 1) is None


class Transient(Exception):
    """As a storage says 503."""


@pytest.mark.parametrize("error", [Transient("503 slow down"), OSError(5, "Input/output error"), OSError("503 slow down")])
def test_an_error_that_passes_is_tried_again(tmp_path, monkeypatch, error):
    storage, create, tried = Storage(str(tmp_path)), Storage.create, []

    def failing(self, name, data):
        tried.append(name)
        if len(tried) <= 3:
            raise error
        return create(self, name, data)

    monkeypatch.setattr(Storage, "create", failing)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: None)
    with lock.locked(storage):
        assert json.loads(storage.read(lock.NAME))["pid"] == os.getpid()
        with pytest.raises(UsageError, match="is in use"), lock.locked(storage):
            pass
    assert len(tried) == 5


def test_a_creation_that_was_answered_with_an_error_is_a_creation(tmp_path, monkeypatch):
    storage, create, tried = Storage(str(tmp_path)), Storage.create, []

    def answered_late(self, name, data):
        made = create(self, name, data)
        tried.append(made)
        if len(tried) == 1:
            raise Transient("the answer was lost")
        return made

    monkeypatch.setattr(Storage, "create", answered_late)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: None)
    with lock.locked(storage) as held:
        held.check()
    assert tried == [True, False]


def test_a_storage_that_gives_no_answer_begins_no_run(tmp_path, monkeypatch):
    def silent(self, name, data):
        raise Transient("503 slow down")

    monkeypatch.setattr(Storage, "create", silent)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: None)
    with (
        pytest.raises(IncompleteRun, match=r"its storage gives no answer \(503 slow down\); nothing was begun"),
        lock.locked(Storage(str(tmp_path))),
    ):
        pytest.fail("it began")


def without_links(monkeypatch, number=errno.EPERM):
    def refused(source, target):
        raise OSError(number, os.strerror(number), source)

    monkeypatch.setattr(os, "link", refused)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_links_locks_too(tmp_path, monkeypatch, number):
    without_links(monkeypatch, number)
    storage = Storage(str(tmp_path))
    with lock.locked(storage):
        with pytest.raises(UsageError, match="is in use"), lock.locked(storage):
            pass
        assert json.loads(storage.read(lock.NAME))["pid"] == os.getpid()
    assert storage.list("") == []


def test_a_link_that_fails_otherwise_makes_no_lock(tmp_path, monkeypatch):
    """A file without a link is there before its content is, so that way is only for file systems that have no links."""

    def refused(*names):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.link", refused)
    with pytest.raises(OSError, match="Input/output error"):
        Storage(str(tmp_path)).create("x", b"1")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_whose_content_is_not_there_yet_is_looked_at_again(tmp_path, monkeypatch):
    storage, looks = Storage(str(tmp_path)), []
    (tmp_path / lock.NAME).write_bytes(b"")

    def later(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            written(storage)

    monkeypatch.setattr(lock.time, "sleep", later)
    with pytest.raises(UsageError, match="is in use"), lock.locked(storage):
        pass


def test_a_folder_that_can_be_written_but_not_locked_begins_no_run(tmp_path, monkeypatch):
    def refused(self, name, data):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Storage, "create", refused)
    with pytest.raises(UsageError, match="cannot be locked, so two runs could write"), lock.locked(Storage(str(tmp_path))):
        pytest.fail("it began")
    assert Storage(str(tmp_path)).list("") == []


def test_a_storage_that_looks_first_and_writes_then_has_no_locks(tmp_path):
    """fsspec's own way of creating a file, which every file system has that does not bring another."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Plain(MemoryFileSystem):
        protocol = "plain"
        pipe_file = fsspec.AbstractFileSystem.pipe_file

    fsspec.register_implementation("plain", Plain, clobber=True)
    storage, said = Storage("plain://somewhere"), []
    with pytest.raises(NotImplementedError, match="without such a step"):
        storage.create("x", b"1")
    with lock.locked(storage, unlocked=lambda: said.append("no lock")) as held:
        held.check()
    assert said == ["no lock"]


@pytest.mark.parametrize(
    "gone", [lambda storage: storage.remove(lock.NAME), lambda storage: written(storage, run="another")]
)
def test_a_lost_lock_is_noticed(tmp_path, monkeypatch, gone):
    storage = Storage(str(tmp_path))
    with lock.locked(storage) as held:
        held.check()
        gone(storage)
        with pytest.raises(IncompleteRun, match=r"the lock of '.*' was lost while this run went on"):
            held.check()


def test_a_lock_that_was_lost_for_a_while_stays_lost(tmp_path, monkeypatch):
    """Another run may have begun and ended meanwhile."""
    storage = Storage(str(tmp_path))
    monkeypatch.setattr(lock, "_RENEWED_SECONDS", 0.01)
    with lock.locked(storage) as held:
        own = storage.read(lock.NAME)
        storage.remove(lock.NAME)
        assert held.lost.wait(5)
        assert not storage.exists(lock.NAME)
        storage.write(lock.NAME, own)
        with pytest.raises(IncompleteRun, match="was lost"):
            held.check()


def without_its_lock(config, journal):
    with lifecycle.running(config, journal) as life:
        life.keep({"all": "that it found"})
        life.run.storage.remove(lock.NAME)


def test_a_run_whose_lock_is_lost_does_not_complete(tmp_path, small_model, monkeypatch):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "a", "text": "one"}\n')
    config = resolve(
        {"out": str(tmp_path / "run"), "corpus": {"source": str(corpus)}, "embedding": {"models": [small_model]}}
    )
    with closing(Journal(Console(quiet=True))) as journal, pytest.raises(IncompleteRun, match="was lost"):
        without_its_lock(config, journal)
    assert not (tmp_path / "run" / "run.json").exists()
