"""What an installation gives: the wheel, built as for an index, in an environment that has nothing else."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def ran(*command, cwd, **environment):
    """What a command printed that must end well, without this checkout on its path."""
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=1200, env=known | environment)
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, made from its source distribution as `python -m build` does."""
    folder = tmp_path_factory.mktemp("dist")
    ran(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT), cwd=folder)
    assert [path.suffix for path in folder.glob("*.gz")] == [".gz"]
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The programs of a new environment with the wheel and the demo model."""
    folder = tmp_path_factory.mktemp("clean") / "env"
    ran(sys.executable, "-m", "venv", str(folder), cwd=folder.parent)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
    ran(*map(str, pip), f"tempscale[demo] @ {wheel.as_uri()}", cwd=folder.parent)
    return folder / "bin"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_wheel_holds_what_is_no_python_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    # One file of each kind that is no Python: forgetting them makes reports and kernels fail in other people's environments.
    templates = {f"tempscale_jobs/report/templates/{name}" for name in ("report.html.j2", "captions.toml")}
    assert {"tempscale/py.typed", *templates} <= packed
    assert not any(name.startswith(("tests/", "docs/", "benchmarks/")) for name in packed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_readme_holds_for_what_is_installed(installed, tmp_path):
    (block,) = re.findall(r"```python\n(import tempscale.*?)```", README, re.DOTALL)
    assert "torch.Size([2, 384])" in ran(str(installed / "python"), "-c", block, cwd=tmp_path)
    out = ran(str(installed / "tempscale"), "audit", "--out", "audit", cwd=tmp_path)
    assert f"report  {tmp_path}/audit/report.html" in out
    (page,) = (tmp_path / "audit").rglob("report.html")
    assert page.stat().st_size > 100_000
    # Charts are in the page; files of them are an extra, which nothing that was installed needs.
    assert not list((tmp_path / "audit").rglob("*.png"))
