"""Jobs run from any folder, also from one whose own packages are called like the folders of this repository."""

import subprocess
import sys

import pytest
from whole_run import as_lines, documented

pytestmark = pytest.mark.proof


@pytest.mark.soak
def test_a_job_runs_from_a_folder_with_a_package_jobs_of_its_own(tmp_path, small_model):
    for package in ("jobs", "tests", "docs"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('the wrong package')")
    (tmp_path / "texts.jsonl").write_text(as_lines(documented("pyarrow")[:40]))
    command = [
        sys.executable, "-m", "tempscale_jobs", "audit", "--corpus", "texts.jsonl", "--model", small_model, "--tau", "0.9",
        "--workers", "1", "--socm-sample", "10", "--out", "run",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "tables" / "socm.parquet").is_file()
