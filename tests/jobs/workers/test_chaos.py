"""A run on several nodes survives the deaths of an actor, a raylet and its driver with the same bytes."""

import chaos
import pytest
from whole_run import digests

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def arguments(tmp_path_factory, small_model):
    return ["audit", "--corpus", "docstrings:pyarrow", "--sample", "240", "--socm-sample", "120", "--model", small_model]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, arguments):
    import subprocess
    import sys

    out = tmp_path_factory.mktemp("undisturbed") / "run"
    subprocess.run([sys.executable, "-m", "tempscale_jobs", *arguments, "--out", str(out)], check=True, timeout=600)
    return digests(out)


@pytest.mark.soak
def test_three_kills_change_no_byte(undisturbed, arguments, tmp_path):
    out = tmp_path / "run"
    storm = chaos.Storm([*arguments, "--out", str(out)], out, seed=1)
    try:
        code = storm.run(["actor", "raylet", "driver"], (0.5, 4.0))
    finally:
        storm.close()
    assert code == 0, (tmp_path / f"run-driver-{storm.starts}.log").read_text()[-2000:]
    assert sum(kill["hit"] for kill in storm.kills) == 3, storm.kills
    assert storm.ends == [-9]  # The driver's own death; the others' ended nothing.
    assert any(
        kill["done"]["texts"] < len([name for name in undisturbed if name.startswith("texts")]) for kill in storm.kills
    )
    assert len(undisturbed) >= 12
    assert digests(out) == undisturbed
