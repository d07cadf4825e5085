"""What `pip install tempscale` gives: the wheel, built as for PyPI, in an environment that has nothing else."""

import email
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
def test_the_page_on_pypi_has_links_and_a_picture_that_work_there(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_string(archive.read(name).decode())
        packed = set(archive.namelist())
    # One file of each kind that is no Python: forgetting them makes reports and kernels fail in other people's environments.
    assert {"tempscale/py.typed", "tempscale_jobs/report/templates/report.html.j2"} <= packed
    assert not any(name.startswith(("tests/", "docs/", "benchmarks/")) for name in packed)
    page = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    ours = [link for link in re.findall(r"\]\(([^)\s]+)\)", README) if not link.startswith("http")]
    assert len(ours) > 10
    assert all(link.startswith("https://") for link in links)
    version = metadata["Version"]
    home = dict(url.split(", ") for url in metadata.get_all("Project-URL"))["Homepage"]
    assert (
        f"https://raw.githubusercontent.com/{home.removeprefix('https://github.com/')}/v{version}/docs/report.png" in links
    )
    for link in ours:
        if not link.endswith(".png"):
            assert f"{home}/blob/v{version}/{link}" in links


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_readme_holds_for_what_is_installed(installed, tmp_path):
    blocks = re.findall(
        r"```python\n(import tempscale.*?|from inspect.*?)```\n(?:\n((?:    [^\n]*\n)+))?", README, re.DOTALL
    )
    assert [bool(printed) for _, printed in blocks] == [False, True]
    for block, printed in blocks:
        out = ran(str(installed / "python"), "-c", block, cwd=tmp_path)
        if printed:
            assert [line.split() for line in out.splitlines()] == [line.split() for line in printed.splitlines()]
    out = ran(str(installed / "tempscale"), "audit", "--out", "audit", cwd=tmp_path)
    assert "These were 300 texts. All " in out
    (page,) = (tmp_path / "audit").rglob("report.html")
    assert page.stat().st_size > 100_000
    # Charts are in the page; files of them are an extra, which nothing that was installed needs.
    assert not list((tmp_path / "audit").rglob("*.png"))
