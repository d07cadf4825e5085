"""A run that is killed goes on with another number of workers, in another order, to the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time

from whole_run import audited, digests


def test_an_audit_that_is_killed_while_it_embeds_goes_on_to_the_same_bytes(small_audit, ray_address, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "tempscale_jobs", "audit", str(small_audit / "audit.toml"), "--workers", "1"]
    command += ["--address", ray_address, "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            while len(list(out.glob("texts/*/*/part-*.parquet"))) < 3:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert not (out / "run.json").exists()
    texts = out / "texts" / "model=tiny-bert"
    # A shard is finished where it has a part of each temperature.
    whole = {file.name for file in texts.glob("temperature=1.0/*")} & {file.name for file in texts.glob("temperature=0.8/*")}
    kept = {file: file.stat().st_mtime_ns for name in whole for file in texts.glob(f"*/{name}")}
    assert len(kept) >= 2
    asked = json.loads((small_audit / "asked.json").read_text())
    audited(asked | {"out": str(out), "execution": {"workers": 2, "shuffle_seed": 5}})
    assert digests(out) == digests(small_audit / "run")
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
