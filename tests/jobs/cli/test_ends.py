"""Exit codes that are true, whatever ends a command and wherever it prints."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from whole_run import as_lines, documented

from tempscale_jobs import outlets

pytestmark = pytest.mark.proof

COMMAND = [sys.executable, "-m", "tempscale_jobs"]


@pytest.fixture(scope="module")
def audit(tmp_path_factory, small_model, ray_address):
    """The command of a small audit that joins the Ray of these tests."""
    corpus = tmp_path_factory.mktemp("ends") / "texts.jsonl"
    corpus.write_text(as_lines(documented("pyarrow")[:30]))
    own = ["audit", "--corpus", str(corpus), "--model", small_model, "--tau", "1.0", "--socm-sample", "0", "--workers", "1"]
    return [*COMMAND, *own, "--address", ray_address]


@pytest.fixture(scope="module")
def finished(audit, tmp_path_factory):
    """A finished run, whose command has nothing to do but to say so."""
    out = tmp_path_factory.mktemp("finished") / "run"
    subprocess.run([*audit, "--out", str(out)], check=True, capture_output=True)
    return [*audit, "--out", str(out)]


# --- where it prints --------------------------------------------------------------------------------------------------


def test_a_reader_that_has_read_enough_is_no_failure(finished):
    found = subprocess.run(["bash", "-c", f"{' '.join(finished)} | head -c 1; exit ${{PIPESTATUS[0]}}"], check=False)
    assert found.returncode == 0


@pytest.mark.soak
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk_behind_a_stream_is_no_failure_of_the_run(finished, stream):
    with open("/dev/full", "w") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: full}
        found = subprocess.run(finished, check=False, text=True, **streams)
    assert found.returncode == 0
    if stream == "stdout":
        assert "No space left on device" in found.stderr


@pytest.mark.soak
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_failure_of_the_run(finished, closed):
    found = subprocess.run(["bash", "-c", f"{' '.join(finished)} {closed}"], check=False, capture_output=True)
    assert found.returncode == 0


def test_a_failed_gate_stays_one_with_a_full_stream(finished, tmp_path):
    (tmp_path / "gate.toml").write_text('[gate]\nthresholds = ["cosine_mean <= -1"]\n')
    with open("/dev/full", "w") as full:
        found = subprocess.run([*finished, str(tmp_path / "gate.toml")], check=False, stdout=full, stderr=subprocess.PIPE)
    assert found.returncode == 1, found.stderr


def test_what_only_prints_is_not_done_where_nothing_was_printed(finished):
    out = finished[-1]
    compare = [*COMMAND, "compare", out, out]
    assert subprocess.run(compare, check=False, capture_output=True).returncode == 0
    with open("/dev/full", "w") as full:
        found = subprocess.run(compare, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert found.returncode == 3
    assert "No space left on device" in found.stderr


def test_what_only_prints_is_done_where_its_reader_has_read_enough(finished):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as gone:
        compare = [*COMMAND, "compare", finished[-1], finished[-1]]
        found = subprocess.run(compare, check=False, stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_folder_that_takes_no_more_is_incomplete(audit, tmp_path):
    limited = f"ulimit -f 40; exec {' '.join(audit)} --out {tmp_path / 'run'}"
    found = subprocess.run(["bash", "-c", limited], check=False, capture_output=True, text=True)
    assert found.returncode == 3, found.stderr
    assert re.search(r"error: .*'\S*': File too large", found.stderr)
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(("encoding", "errors"), [("latin-1", "surrogatepass"), ("ascii", "strict")])
def test_an_outlet_writes_in_ascii_what_its_encoding_cannot(tmp_path, encoding, errors):
    with open(tmp_path / "text", "w", encoding=encoding, errors=errors) as stream:
        outlet = outlets.Outlet(stream)
        outlet.write("τ" * 80 + "\udcff")
        outlet.flush()
    assert b"u03c4" in (tmp_path / "text").read_bytes()
    assert outlet.failure is None


# --- a polite kill ----------------------------------------------------------------------------------------------------


_EARLY = """
import os, signal, sys, time
from tempscale_jobs.cli import app, start

def struck(*given, **how):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)

setattr({"app": app, "start": start}[sys.argv.pop(1)], sys.argv.pop(1), struck)
app.main()
"""


@pytest.mark.parametrize("place", [("app", "app"), ("start", "answer")], ids=["before typer", "in typer"])
def test_a_kill_before_a_command_begins_is_incomplete(place, tmp_path):
    found = subprocess.run([sys.executable, "-c", _EARLY, *place, "cache", str(tmp_path)], check=False, timeout=50)
    assert found.returncode == 3


@pytest.fixture
def short_folder():
    """A folder for temporary files whose name is short enough for Ray's sockets, so that it makes no other."""
    with tempfile.TemporaryDirectory(prefix="ends-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("seconds", [0.0, 0.5])
@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_kill_while_ray_starts_is_incomplete_and_leaves_nothing(audit, short_folder, tmp_path, name, seconds):
    """Ray, which would end the process with a code of its own, has begun so much of itself."""
    alone, out = audit[: audit.index("--address")], tmp_path / "run"
    process = psutil.Popen([*alone, "--out", str(out)], env=os.environ | {"TMPDIR": str(short_folder)})
    while process.poll() is None and name not in (names := {child.name() for child in process.children(recursive=True)}):
        time.sleep(0.01)
    assert name in names
    time.sleep(seconds)
    begun = process.children(recursive=True)
    process.terminate()
    assert process.wait(60) == 3
    assert json.loads((out / "status.json").read_text())["state"] == "incomplete"
    assert list(short_folder.iterdir()) == []
    assert psutil.wait_procs(begun, 20)[1] == []


_WHILE_RAY_ENDS = """
import os, signal, time
from ray._private.node import Node
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.workers.cluster import initialized, session

end = Node.kill_all_processes

def struck(*given, **options):
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGTERM)
    end(*given, **options)

Node.kill_all_processes = struck
signal.signal(signal.SIGTERM, signal.default_int_handler)
try:
    with session(Execution.model_validate({"workers": 1})):
        pass
except KeyboardInterrupt:
    print("interrupted", initialized())
"""


def test_a_kill_while_ray_ends_waits_for_its_end():
    """Ray, whose core has taken the handler of SIGTERM away, is killed while it ends its processes."""
    found = subprocess.run([sys.executable, "-c", _WHILE_RAY_ENDS], check=False, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout) == (0, "interrupted False\n"), found.stderr


_WHILE_IT_LOGS = """
import logging, sys, time
from contextlib import nullcontext
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.runs import lock
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers.cluster import initialized, session

def logs(owner, written=lock._written):
    logging.getLogger("another").warning("renewed")
    return written(owner)

lock.RENEWED_SECONDS, lock._written = 0.01, logs
logging.basicConfig()
with_ray = sys.argv[2] == "while Ray runs"
try:
    with lock.locked(Storage(sys.argv[1])), session(Execution.model_validate({"workers": 1})) if with_ray else nullcontext():
        (logging._lock if with_ray else logging.getLogger().handlers[0]).acquire()
        time.sleep(0.5)  # The thread that renews the lock waits for it.
        raise KeyboardInterrupt
except KeyboardInterrupt:
    print("interrupted", initialized())
"""


@pytest.mark.parametrize("when", ["while Ray runs", "without Ray"])
def test_an_interrupt_between_a_lock_of_logging_and_its_release_is_no_deadlock(when, tmp_path):
    """Found once in thirty kills while Ray starts: its thousand imports make loggers, each with that lock."""
    command = [sys.executable, "-c", _WHILE_IT_LOGS, str(tmp_path / "run"), when]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout) == (0, "interrupted False\n"), found.stderr


# --- a damaged model --------------------------------------------------------------------------------------------------


def cut(path):
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def other_weights(path):
    from safetensors.torch import load_file, save_file

    found = load_file(path / "model.safetensors")
    save_file({name: value for name, value in found.items() if "layer.1" not in name}, path / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip


@pytest.mark.parametrize("damage", [cut, other_weights])
def test_a_damaged_model_is_one_sentence_and_exit_2(audit, small_model, tmp_path, damage):
    model = Path(shutil.copytree(small_model, tmp_path / "model"))
    damage(model)
    command = [*audit, "--out", str(tmp_path / "run")]
    command[command.index(small_model)] = str(model)
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert found.returncode == 2, found.stderr
    (line,) = re.findall(r"^error: .*", found.stderr, re.MULTILINE)
    assert str(model) in line
    assert "Traceback" not in found.stderr
    assert "start the same command again" not in found.stderr
