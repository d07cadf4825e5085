"""One run at a time in a folder: a living one keeps others out, a dead one does not."""

import json
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

from jobs import lock, runs
from jobs.errors import UsageError
from jobs.storage import Storage


def written(storage, **changes):
    own = {"run": "x", "host": socket.gethostname(), "pid": os.getpid(), "since": psutil.Process().create_time()}
    storage.write(lock.NAME, json.dumps(own | {"renewed": time.time()} | changes).encode())


def test_a_second_run_is_kept_out_and_the_next_let_in(tmp_path):
    storage = Storage(str(tmp_path))
    with lock.held(storage):
        assert storage.list("") == [lock.NAME]
        with pytest.raises(UsageError, match=f"process {os.getpid()} on"), lock.held(storage):
            pass
        assert storage.exists(lock.NAME)
    assert storage.list("") == []
    with lock.held(storage):
        pass


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    storage = Storage(str(tmp_path))
    code = f"import sys, os; sys.path[:0] = {sys.path!r}\nfrom jobs import lock\nfrom jobs.storage import Storage\n"
    code += f"held = lock.held(Storage({str(tmp_path)!r})); held.__enter__(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert storage.exists(lock.NAME)
    with lock.held(storage):
        assert json.loads(storage.read(lock.NAME))["pid"] == os.getpid()


def test_another_process_with_the_number_of_a_dead_one_does_not_hold_its_lock(tmp_path):
    storage = Storage(str(tmp_path))
    written(storage, since=psutil.Process().create_time() - 5)
    with lock.held(storage):
        pass


def test_on_another_machine_renewals_tell(tmp_path, monkeypatch):
    storage = Storage(str(tmp_path))
    written(storage, host="elsewhere", renewed=time.time() - 1000)
    with lock.held(storage):
        pass
    written(storage, host="elsewhere")
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: written(storage, host="elsewhere"))
    with pytest.raises(UsageError, match="on elsewhere"), lock.held(storage):
        pass
    now = time.time()
    clock = iter(range(0, 10_000, 60))
    written(storage, host="elsewhere", renewed=now)
    monkeypatch.setattr(lock.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(lock.time, "time", lambda: now + next(clock))
    with lock.held(storage):
        pass


def test_a_lock_is_renewed_and_a_damaged_one_no_obstacle(tmp_path, monkeypatch):
    storage = Storage(str(tmp_path))
    storage.write(lock.NAME, b"{")
    monkeypatch.setattr(lock, "_RENEWED_SECONDS", 0.01)
    with lock.held(storage):
        first = json.loads(storage.read(lock.NAME))["renewed"]
        deadline = time.monotonic() + 5
        while json.loads(storage.read(lock.NAME))["renewed"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_lock_makes_no_folder_one_that_is_in_use_by_others(tmp_path):
    storage = Storage(str(tmp_path))
    with lock.held(storage):
        assert runs._begun(storage) is None
    (tmp_path / "letter.txt").write_text("hello")
    with pytest.raises(UsageError, match="not empty"):
        runs._begun(storage)
