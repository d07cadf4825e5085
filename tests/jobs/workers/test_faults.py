"""Whatever happens to the workers, the order or the process: the same bytes."""

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
from command_line import in_process
from whole_run import as_lines, digests, documented

pytestmark = pytest.mark.soak

SETTINGS = ["--sample", "190", "--socm-groups", "12", "--max-length", "128"]


@pytest.fixture(scope="module")
def base(tmp_path_factory, small_model):
    """The command that every run here is started with, but for its --out."""
    corpus = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    corpus.write_text(as_lines(documented("pyarrow")))
    return [sys.executable, "-m", "tempscale_jobs", "audit", "--model", small_model, "--corpus", str(corpus), *SETTINGS]


def start(arguments):
    pipes, environment = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}, os.environ | {"TEMPSCALE_DEBUG": "1"}
    return subprocess.Popen(arguments, **pipes, text=True, env=environment, start_new_session=True)


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, base, ray_session):
    out = tmp_path_factory.mktemp("one") / "run"
    code, _, stderr = in_process(*base[3:], "--out", str(out), "--workers", "1")
    assert code == 0, stderr
    return out


def wait_for(process, found, seconds=300):
    for _ in range(seconds * 20):
        if found():
            return
        if process.poll() is not None:
            pytest.fail(f"the run ended before it could be disturbed:\n{process.stderr.read()}")
        time.sleep(0.05)
    pytest.fail("nothing to disturb appeared")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_in_another_order_to_the_same_bytes(undisturbed, tmp_path, base, end):
    out, order = tmp_path / "run", tmp_path / "order.toml"
    arguments = [*base, str(order), "--out", str(out), "--workers"]
    order.write_text("[execution]\nshuffle_seed = 5\n")
    process = start([*arguments, "3"])
    wait_for(process, lambda: list(out.glob("texts/*/temperature=0.8/part-*.parquet")))
    process.send_signal(end)
    code, _, stderr = finish(process)
    assert code == 3
    assert "Traceback" not in stderr
    assert not (out / "run.json").exists()
    # A shard is done once every temperature's part is there.
    parts = {f.name: sorted(out.glob(f"texts/*/*/{f.name}")) for f in out.glob("texts/*/temperature=0.8/part-*.parquet")}
    kept = {f: f.stat().st_mtime_ns for files in parts.values() if len(files) == 2 for f in files}
    assert kept
    order.write_text("[execution]\nshuffle_seed = 6\n")
    code, _, stderr = finish(start([*arguments, "2"]))
    assert code == 0, stderr
    assert all(f.stat().st_mtime_ns == when for f, when in kept.items()), "finished parts were done again"
    assert digests(out) == digests(undisturbed)
    assert not list(out.rglob(".writing-*"))


def test_the_end_of_rays_own_process_is_told_and_leaves_an_incomplete_run(tmp_path, base):
    out = tmp_path / "run"
    process = start([*base, "--out", str(out), "--workers", "1"])
    wait_for(process, lambda: list(out.glob("texts/*/*/part-*.parquet")))
    (raylet,) = [child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == "raylet"]
    raylet.kill()
    code, _, stderr = finish(process)
    assert code == 3
    assert "Ray's own process" in stderr
    assert not (out / "run.json").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of its own, and a function that changes its size."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=60k", "tmpfs", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this process may not mount a file system")
    yield disk, lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_ends_the_run_as_incomplete_and_it_goes_on_where_there_is_room(undisturbed, base, small_disk):
    disk, resize = small_disk
    arguments = [*base, "--out", str(disk / "run"), "--workers", "2"]
    for size in ("60k", "400k"):  # Full while shards are written, then while a worker writes.
        resize(size)
        code, _, stderr = finish(start(arguments))
        assert code == 3, stderr
        assert "full" in stderr
    resize("100m")
    code, _, stderr = finish(start(arguments))
    assert code == 0, stderr
    assert digests(disk / "run") == digests(undisturbed)
