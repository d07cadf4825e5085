"""One run at a time in a folder: a living one keeps others out, a dead one does not."""

import datetime
import errno
import json
import os
import socket
import subprocess
import sys
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


def is_in_use(storage, by=""):
    """A second run is kept out, and told by whom."""
    with pytest.raises(UsageError, match=f"is in use.*{by}"), lock.locked(storage):
        pytest.fail("it began")


def owner(storage):
    """What the lock says of who holds it."""
    return json.loads(storage.read(lock.NAME))


@pytest.fixture
def storage(tmp_path):
    return Storage(str(tmp_path / "run"))


@pytest.fixture
def config(tmp_path, small_model):
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "text": "one"}\n')
    corpus, embedding = {"source": str(tmp_path / "corpus.jsonl")}, {"models": [small_model]}
    return resolve({"out": str(tmp_path / "run"), "corpus": corpus, "embedding": embedding})


@pytest.fixture
def creating(monkeypatch):
    """A function that sets what happens instead of the creation of a lock; it is given the real one and the tries so far."""
    create, tried = Storage.create, []

    def creating(instead):
        monkeypatch.setattr(Storage, "create", lambda self, *given: instead(lambda: create(self, *given), tried, self))
        return tried

    return creating


@pytest.fixture
def sleeping(monkeypatch):
    """A function that sets what happens while a run waits."""
    return lambda instead: monkeypatch.setattr(lock.time, "sleep", instead)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(lock, "SETTLED_SECONDS", {True: 0.0})


def test_a_second_run_is_kept_out_and_the_next_let_in(storage):
    with lock.locked(storage):
        assert storage.list("") == [lock.NAME]
        is_in_use(storage, by=f"process {os.getpid()} on")
        assert storage.exists(lock.NAME)
    assert storage.list("") == []
    with lock.locked(storage):
        pass


def test_the_lock_of_a_dead_process_is_taken_over(storage):
    code = f"import sys, os; sys.path[:0] = {sys.path!r}\n"
    code += "from tempscale_jobs.runs import lock\nfrom tempscale_jobs.runs.storage import Storage\n"
    code += f"taken = lock.locked(Storage({storage.root!r})); taken.__enter__(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert storage.exists(lock.NAME)
    with lock.locked(storage):
        assert owner(storage)["pid"] == os.getpid()
    written(storage, since=psutil.Process().create_time() - 5)  # Another process has its number now.
    with lock.locked(storage):
        pass


def test_on_another_machine_renewals_tell(storage, monkeypatch, sleeping):
    """A container may have this machine's name, and the number of its process one which lives or has died here."""
    elsewhere, waited = {"machine": "a container", "since": 1.0}, []
    written(storage, machine="a container", renewed=time.time() - 1000)
    with lock.locked(storage, lambda: pytest.fail("it is watched")):
        pass
    written(storage, **elsewhere)
    sleeping(lambda seconds: written(storage, **elsewhere))
    is_in_use(storage, by=socket.gethostname())
    clock = iter(range(0, 10_000, 10))
    sleeping(waited.append)
    monkeypatch.setattr(lock.time, "monotonic", lambda: next(clock))
    written(storage, **elsewhere, renewed=time.time() + 300)  # Its clock is not this one's.
    with lock.locked(storage):
        assert owner(storage)["pid"] == os.getpid()
    assert sum(seconds > 0 for seconds in waited) >= 10


def test_a_run_that_ends_while_it_is_watched_lets_in(storage, sleeping):
    written(storage, machine="elsewhere")
    sleeping(lambda seconds: storage.remove(lock.NAME) if seconds else None)
    with lock.locked(storage):
        assert owner(storage)["pid"] == os.getpid()


def test_a_lock_that_cannot_be_read_for_a_moment_is_read_again(storage, monkeypatch, sleeping):
    """As on a shared disk, where the other machine is just replacing it."""
    read, seen = Storage.read, []
    written(storage, machine="elsewhere")

    def stale(self, name):
        seen.append(name)
        if len(seen) == 2:
            raise OSError(116, "Stale file handle")
        return read(self, name)

    monkeypatch.setattr(Storage, "read", stale)
    sleeping(lambda seconds: written(storage, machine="elsewhere") if len(seen) > 2 else None)
    is_in_use(storage)
    assert len(seen) >= 3


def test_a_zombie_holds_nothing_and_a_clock_that_was_set_changes_nothing(storage):
    zombie = subprocess.Popen([sys.executable, "-c", "pass"])
    while psutil.Process(zombie.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    written(storage, pid=zombie.pid, since=psutil.Process(zombie.pid).create_time())
    with lock.locked(storage):
        pass
    zombie.wait()
    written(storage, since=psutil.Process().create_time() + 1)
    is_in_use(storage)


def test_of_several_that_take_over_a_dead_lock_one_holds_it(storage, sleeping):
    """Both have seen the death; the second removes what the first has just created."""
    written(storage, since=1.0)
    sleeping(lambda seconds: written(storage, run="the second") if seconds == 0.0 else None)
    is_in_use(storage)
    assert owner(storage)["run"] == "the second"


def test_a_lock_is_renewed_and_a_damaged_one_no_obstacle(storage, monkeypatch):
    storage.write(lock.NAME, b"{")
    monkeypatch.setattr(lock, "RENEWED_SECONDS", 0.01)
    with lock.locked(storage):
        first = owner(storage)["renewed"]
        deadline = time.monotonic() + 5
        while owner(storage)["renewed"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_lock_makes_no_folder_one_that_is_in_use_by_others(storage):
    with lock.locked(storage):
        assert folder.begun_record(storage, False) is None
    storage.write("letter.txt", b"hello")
    with pytest.raises(UsageError, match=storage.root):
        folder.begun_record(storage, False)


def test_a_take_over_is_recorded_with_what_was_known_of_the_dead_run(storage, config):
    written(storage, host="node-7", pid=123_456_789, renewed=time.time() - 3600)
    with lock.locked(storage):
        run = folder.begin(config)
    (record,) = (storage.read_json(name) for name in storage.list(folder.TAKEOVERS))
    assert (record["host"], record["process"]) == ("node-7", 123_456_789)
    seen, taken = (datetime.datetime.fromisoformat(record[key]) for key in ("last_seen", "taken_over"))
    assert 3590 < (taken - seen).total_seconds() < 3700
    assert folder.facts(run, config)["taken_over"] == [record]
    storage.write_json(folder.SHARDED, {})
    with lock.locked(storage):  # The next attempt takes nothing over.
        folder.begin(config)
    assert len(storage.list(folder.TAKEOVERS)) == 1


def test_a_lock_that_goes_while_it_is_looked_at_is_taken(storage, creating):
    """The other run ends between the attempt to create the file and the look into it."""
    written(storage, run="ending")

    def ending(create, tried, own):
        tried.append(create())
        if not tried[-1]:
            own.remove(lock.NAME)
        return tried[-1]

    tried = creating(ending)
    with lock.locked(storage):
        held = owner(storage)
    assert tried == [False, True]
    assert held["pid"] == os.getpid()
    assert "took_over" not in held  # Nobody died.


def test_a_lock_that_another_run_takes_while_this_one_looks_at_the_dead_is_left_to_it(storage, monkeypatch):
    """Two runs find a dead lock; the other is faster, and lives."""
    dead = lock.owner_is_gone
    written(storage, run="dead", pid=2**22 - 1)

    def taken_meanwhile(other, *how):
        found = dead(other, *how)
        if other["run"] == "dead":
            assert found
            written(storage, run="faster")
        return found

    monkeypatch.setattr(lock, "owner_is_gone", taken_meanwhile)
    is_in_use(storage)
    assert owner(storage)["run"] == "faster"


# --- what must not lose it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("set_by", [-3600.0, -3.0, 3.0, 86400.0])
def test_a_clock_that_is_set_takes_no_lock_from_the_living(storage, set_by):
    since = psutil.Process().create_time() + set_by  # What psutil derives from the time of the boot moves with the clock.
    written(storage, since=since, ticks=lock.started_ticks(os.getpid()))
    is_in_use(storage)


@pytest.mark.proof
@pytest.mark.parametrize("content", [b"[]", b"[1]", b"5", b"null", b'"x"', b"\xff", b"{"])
def test_a_lock_that_holds_no_record_is_that_of_a_dead_run(storage, content):
    storage.write(lock.NAME, content)
    with lock.locked(storage) as held:
        held.check()
    assert not storage.exists(lock.NAME)


def test_ticks_tell_processes_of_one_number_apart(storage):
    written(storage, ticks=lock.started_ticks(os.getpid()) - 1)
    with lock.locked(storage):
        held = owner(storage)
    assert held["ticks"] == lock.started_ticks(os.getpid()) == int(Path("/proc/self/stat").read_text().split()[21])
    assert lock.started_ticks(2**22 + 1) is None


class Transient(Exception):
    """As a storage says 503."""


@pytest.mark.parametrize("error", [Transient("503 slow down"), OSError(5, "Input/output error"), OSError("503 slow down")])
def test_an_error_that_passes_is_tried_again(storage, creating, sleeping, error):
    def failing(create, tried, own):
        tried.append(None)
        if len(tried) <= 3:
            raise error
        return create()

    tried = creating(failing)
    sleeping(lambda seconds: None)
    with lock.locked(storage):
        assert owner(storage)["pid"] == os.getpid()
        is_in_use(storage)
    assert len(tried) == 5


def test_a_creation_that_was_answered_with_an_error_is_a_creation(storage, creating, sleeping):
    def answered_late(create, tried, own):
        tried.append(create())
        if len(tried) == 1:
            raise Transient("the answer was lost")
        return tried[-1]

    tried = creating(answered_late)
    sleeping(lambda seconds: None)
    with lock.locked(storage) as held:
        held.check()
    assert tried == [True, False]


@pytest.mark.parametrize(
    ("error", "told"), [(Transient("503"), IncompleteRun), (PermissionError(errno.EACCES, "no permission"), UsageError)]
)
def test_a_storage_that_gives_no_answer_begins_no_run(storage, creating, sleeping, error, told):
    """Nor one whose folder can be written but not locked."""

    def silent(create, tried, own):
        raise error

    creating(silent)
    sleeping(lambda seconds: None)
    with pytest.raises(told, match=r"503|no permission"), lock.locked(storage):
        pytest.fail("it began")
    assert storage.list("") == []


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_links_locks_too(storage, monkeypatch, number):
    """A file without a link is there before its content is, so that way is not for links that fail otherwise."""

    def refused(source, target):
        raise OSError(number, os.strerror(number), source)

    monkeypatch.setattr(os, "link", refused)
    if number == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(number)):
            storage.create("x", b"1")
    else:
        with lock.locked(storage):
            is_in_use(storage)
            assert owner(storage)["pid"] == os.getpid()
    assert storage.list("") == []


def test_a_lock_whose_content_is_not_there_yet_is_looked_at_again(storage, sleeping):
    looks = []
    storage.write(lock.NAME, b"")

    def later(seconds):
        looks.append(seconds)
        if len(looks) == 2:
            written(storage)

    sleeping(later)
    is_in_use(storage)


def test_a_storage_that_looks_first_and_writes_then_has_no_locks():
    """fsspec's own way of creating a file, which every file system has that does not bring another."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Plain(MemoryFileSystem):
        protocol = "plain"
        pipe_file = fsspec.AbstractFileSystem.pipe_file

    fsspec.register_implementation("plain", Plain, clobber=True)
    plain, said = Storage("plain://somewhere"), []
    with pytest.raises(NotImplementedError, match="plain://somewhere"):
        plain.create("x", b"1")
    with lock.locked(plain, unlocked=lambda: said.append("no lock")) as held:
        held.check()
    assert said == ["no lock"]
    assert plain.list("") == []


@pytest.mark.parametrize("by", ["nobody", "another"])
def test_a_lost_lock_is_noticed_and_that_of_another_run_is_not_removed(storage, by):
    with lock.locked(storage) as held:
        held.check()
        storage.remove(lock.NAME)
        if by == "another":
            written(storage, run="another")
        with pytest.raises(IncompleteRun, match=storage.root):
            held.check()
    assert storage.exists(lock.NAME) == (by == "another")


def test_a_lock_that_was_lost_for_a_while_stays_lost(storage, monkeypatch):
    """Another run may have begun and ended meanwhile."""
    monkeypatch.setattr(lock, "RENEWED_SECONDS", 0.01)
    with lock.locked(storage) as held:
        own = storage.read(lock.NAME)
        storage.remove(lock.NAME)
        assert held.lost.wait(5)
        assert not storage.exists(lock.NAME)
        storage.write(lock.NAME, own)
        with pytest.raises(IncompleteRun, match=storage.root):
            held.check()


def without_its_lock(config, journal):
    with lifecycle.locked(config, journal) as opening, opening.run() as life:
        life.keep({"all": "that it found"})
        life.run.storage.remove(lock.NAME)


def test_a_run_whose_lock_is_lost_does_not_complete(storage, config):
    with closing(Journal(Console(quiet=True))) as journal, pytest.raises(IncompleteRun, match=storage.root):
        without_its_lock(config, journal)
    assert not storage.exists("run.json")
