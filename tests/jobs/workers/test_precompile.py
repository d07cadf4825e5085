"""`python -m tempscale.precompile` leaves nothing for an audit to compile."""

import os
import subprocess
import sys

import pytest
from whole_run import as_lines, documented


@pytest.mark.proof
def test_an_audit_compiles_no_loop_that_was_compiled_before(small_model, tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "numba")}

    def compiled():
        return {path.name for path in (tmp_path / "numba").rglob("*.nb?")}

    subprocess.run([sys.executable, "-m", "tempscale.precompile"], check=True, env=environment)
    before = compiled()
    assert any("scan" in name for name in before)
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text(as_lines(documented("pyarrow")))
    audit = ["audit", "--corpus", str(corpus), "--limit", "60", "--model", small_model, "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "tempscale_jobs", *audit, "--tau", "1.0", "--socm-top-over", "corpus"]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    assert compiled() == before
