"""The job for Slurm, with Ray's own symmetric-run on this machine and stand-ins for srun and scontrol."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from manifests import CLUSTER
from whole_run import as_lines, documented

SCRIPT = CLUSTER / "slurm" / "tempscale.sbatch"
ALONE = ["unshare", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]
"""A machine of its own, as far as processes and /tmp/ray go: symmetric-run stops every Ray that it sees when it ends."""

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(
        subprocess.run([*ALONE, "true"], capture_output=True).returncode != 0, reason="may not make namespaces of processes"
    ),
]


@pytest.fixture
def job(tmp_path, small_model):
    """A function that runs the job with some arguments; returns its exit code, what it printed, and what scontrol heard."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, line in {"srun": 'exec "$@"', "scontrol": f'echo "$@" >> "{tmp_path}/scontrol"'}.items():
        (bin_ / name).write_text(f"#!/bin/bash\n{line}\n")
        (bin_ / name).chmod(0o755)
    (tmp_path / "texts.jsonl").write_text(as_lines(documented("pyarrow")[:60]))
    (tmp_path / "run.toml").write_text(
        f'out = "{tmp_path}/run"\n[corpus]\nsource = "{tmp_path}/texts.jsonl"\n'
        f"[embedding]\nmodels = [{json.dumps(small_model)}]\n[analysis]\nsocm_sample = 0\nprobe_sample = 0\n"
    )
    home = tmp_path / "home"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("a-token-of-the-test" * 3)

    def run(*arguments, **environment):
        slurm = {
            "SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_ON_NODE": "2", "SLURM_SUBMIT_DIR": str(tmp_path),
        }  # fmt: skip
        path = f"{bin_}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        inside = 'mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray && exec bash "$@"'
        command = [*ALONE, "bash", "-c", inside, "bash", str(SCRIPT), *arguments]
        everything = os.environ | slurm | {"PATH": path, "HOME": str(home)} | environment
        found = subprocess.run(command, env=everything, cwd=tmp_path, capture_output=True, text=True, timeout=500)
        heard = tmp_path / "scontrol"
        assert list(tmp_path.glob(".tempscale-*")) == []
        return found.returncode, found.stdout + found.stderr, heard.read_text() if heard.exists() else ""

    return run


@pytest.mark.soak
def test_a_run_on_the_machines_of_a_job_ends_with_its_own_code(job, tmp_path):
    """A run that passes, the same with a gate that fails, and one with a mistake."""
    code, told, heard = job("audit", str(tmp_path / "run.toml"))
    assert code == 0, told
    assert "Ray cluster head" in told
    assert json.loads((tmp_path / "run" / "run.json").read_text())["corpus"]["analysed"] > 30
    with (tmp_path / "run.toml").open("a") as file:
        file.write('[gate]\nthresholds = ["cosine_mean <= -1"]\n')
    code, told, _ = job("audit", str(tmp_path / "run.toml"))
    assert code == 1, told
    code, told, heard = job("audit", str(tmp_path / "run.toml"), "--tau", "9")
    assert code == 2, told
    assert "temperature 9.0 is out of range" in told
    assert heard == ""  # None of them is queued again.


@pytest.mark.parametrize(("restarts", "heard"), [("0", "requeue 4711\n"), ("3", "")])
def test_a_ray_that_does_not_start_is_3_and_queues_again_for_a_while(job, tmp_path, restarts, heard):
    (tmp_path / "bin" / "ray").write_text("#!/bin/bash\nexit 0\n")  # As symmetric-run ends where Ray fails to start.
    (tmp_path / "bin" / "ray").chmod(0o755)
    code, _, told = job("audit", str(tmp_path / "run.toml"), SLURM_RESTART_COUNT=restarts)
    assert (code, told) == (3, heard)


def test_the_lines_for_sbatch_ask_for_whole_machines_and_one_ray_on_each():
    lines = [line.split()[1] for line in SCRIPT.read_text("utf-8").splitlines() if line.startswith("#SBATCH ")]
    assert {"--ntasks-per-node=1", "--exclusive", "--requeue"} <= set(lines)
    assert subprocess.run(["bash", "-n", str(SCRIPT)]).returncode == 0
