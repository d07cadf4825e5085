"""The package says that it is typed, and a strict type checker believes a user's program as it stands."""

import importlib.resources
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RIGHT = """
import torch
import tempscale as ts

schedule = ts.Temperature.by_length({0: 1.0, 256: 0.8})
encoder = ts.Encoder.load("folder", temperature=schedule)
shape: tuple[int, ...] = tuple(encoder.encode(["a short text", "a longer text"]).embeddings.shape)
same: ts.Encoder = ts.attach(ts.detach(encoder), 0.8)
ts.verify(same)
value: float = float(ts.socm(torch.ones(3, 4), torch.ones(5, 4)).socm)
matrix: torch.Tensor = ts.pairwise_socm([torch.ones(3, 4)]).d_sigma
fitted: str = ts.fit_by_length(encoder, ["text"], n0=128).temperature.canonical
"""
WRONG = """
import tempscale as ts

encoder = ts.Encoder.load(3)
number: int = encoder.encode(["a text"]).embeddings
ts.attach(encoder)
ts.atach(encoder, 0.8)
"""


def test_the_package_is_marked_as_typed_and_the_mark_is_packaged():
    assert (importlib.resources.files("tempscale") / "py.typed").is_file()
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    # Hatch packs a package whole, but for what the repository ignores.
    assert wheel == {"packages": ["tempscale", "jobs/tempscale_jobs"]}
    ignored = (ROOT / ".gitignore").read_text("utf-8").split()
    assert not any(line in ("py.typed", "*.typed") for line in ignored)


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy comes with the dev extra: make check runs this")
def test_a_users_program_passes_mypy_strict_and_a_wrong_one_does_not(tmp_path, pytestconfig):
    (tmp_path / "right.py").write_text(RIGHT, "utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, "utf-8")
    cache = pytestconfig.cache.mkdir("mypy")  # The first time it reads all of torch.
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(cache), "right.py", "wrong.py"]
    # Found as an installed package is: by the interpreter's path, so that the mark counts.
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert re.findall(r"^(\w+\.py):(\d+): error:.*\[([\w-]+)\]$", done.stdout, re.M) == [
        ("wrong.py", "4", "arg-type"),
        ("wrong.py", "5", "assignment"),
        ("wrong.py", "6", "call-arg"),
        ("wrong.py", "7", "attr-defined"),
    ], done.stdout + done.stderr
