"""`make gpu`: what it runs, without Ray, tried on the CPU; when it fails and what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import card, render

pytestmark = pytest.mark.proof

ROOT = Path(__file__).resolve().parents[2]
ROW = {"what": "SOCM of all pairs", "rate": 1e6, "unit": "pairs/s", "ratio": 1.0, "max_error": 1e-7}


@pytest.mark.soak
def test_the_whole_command_without_ray(tmp_path, minilm):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('this machine has no Ray')")
    paths = os.pathsep.join([str(tmp_path), str(ROOT), str(ROOT / "jobs")])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.card", "--device", "cpu", "--small"], cwd=ROOT, text=True, capture_output=True,
        env=os.environ | {"PYTHONPATH": paths}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout.splitlines()[1]
    for what in ("SOCM of all pairs of 30 texts", "cosines of 512 × 512 texts, bfloat16, 10 nearest", "tempscale, bfloat16"):
        assert what in done.stdout
    assert "results" not in done.stdout  # What was tried on a processor is no result of a card.


@pytest.fixture
def fakes(monkeypatch, tmp_path):
    """A command that runs no test and measures one row, into results of its own."""
    (tmp_path / "docs" / "dev").mkdir(parents=True)
    monkeypatch.setattr(card, "HERE", tmp_path)
    monkeypatch.setattr(card, "ROOT", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA X")

    def fake(passed=True, rows=lambda: [ROW]):
        monkeypatch.setattr(card, "tested", lambda device, small: (passed, "7 passed, 2 skipped in 3.0s"))
        monkeypatch.setattr(card, "measures", lambda device, small: {"pairs of texts": rows})

    return fake


def test_a_failed_test_or_an_error_too_large_fails(fakes, capsys):
    fakes()
    assert card.main(["--device", "cpu"]) == 0
    fakes(passed=False)
    assert card.main(["--device", "cpu"]) == 1
    fakes(rows=lambda: [ROW | {"max_error": 2e-5}])
    assert card.main(["--device", "cpu"]) == 1
    assert "2.0e-05" in capsys.readouterr().err


def test_without_a_gpu_or_a_package_it_says_so(fakes, monkeypatch, capsys):
    fakes()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert card.main([]) == 2
    assert "CUDA" in capsys.readouterr().err
    monkeypatch.setattr(card, "NEEDED", ("torch", "no_such_package"))
    assert card.main([]) == 2
    assert "no_such_package" in capsys.readouterr().err


def test_what_a_card_gave_until_it_was_stopped_is_written_and_on_the_page(fakes, tmp_path):
    def stopped():
        yield ROW
        raise KeyboardInterrupt

    fakes(rows=stopped)
    with pytest.raises(KeyboardInterrupt):
        card.main([])
    (file,) = (tmp_path / "results").glob("*.json")
    found = json.loads(file.read_text("utf-8"))
    assert found["machine"]["gpu"] == "NVIDIA X"
    assert found["results"] == [{"benchmark": "gpu"} | ROW]
    fakes()
    assert card.main([]) == 0
    page = (tmp_path / "docs" / "dev" / "performance.md").read_text("utf-8")
    assert "### On a GPU" in page
    assert "7 passed, 2 skipped in 3.0s" in " ".join(page.split())
    # A page says what was never measured, until it was.
    assert "never measured" in page
    assert "ever run on a GPU" in render.page({})
    rows = [*found["results"], *({"benchmark": "gpu"} | ROW | {"unit": unit} for unit in ("tokens/s", "texts/s"))]
    assert "never measured" not in render.page({"x": found | {"results": rows}})
