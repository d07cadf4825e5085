"""A run on several nodes survives the deaths of an actor, a raylet and its driver with the same bytes."""

import subprocess
import sys

import chaos
import pytest
from whole_run import digests

pytestmark = pytest.mark.proof


@pytest.mark.soak
def test_three_kills_change_no_byte(small_model, tmp_path):
    arguments = [
        "audit",
        "--corpus",
        "docstrings:pyarrow",
        "--sample",
        "240",
        "--socm-sample",
        "120",
        "--model",
        small_model,
    ]
    out, alone = tmp_path / "run", tmp_path / "undisturbed"
    subprocess.run([sys.executable, "-m", "tempscale_jobs", *arguments, "--out", str(alone)], check=True, timeout=600)
    undisturbed = digests(alone)
    storm = chaos.Storm([*arguments, "--out", str(out)], out, seed=1)
    try:
        code = storm.run(["actor", "raylet", "driver"], (0.5, 4.0))
    finally:
        storm.close()
    assert code == 0, (tmp_path / f"run-driver-{storm.starts}.log").read_text()[-2000:]
    assert sum(kill["hit"] for kill in storm.kills) == 3, storm.kills
    assert storm.ends == [-9]  # The driver's own death; the others' ended nothing.
    texts = [name for name in undisturbed if name.startswith("texts")]
    assert any(kill["done"]["texts"] < len(texts) for kill in storm.kills)
    assert len(undisturbed) >= 12
    assert digests(out) == undisturbed
