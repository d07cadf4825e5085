"""Nothing is imported from the current folder, nor from that of a corpus, a model or a configuration."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import planted
import pytest
from whole_run import as_lines, documented

pytestmark = pytest.mark.proof

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = "import sys; from tempscale_jobs.__main__ import main; main()"
"""What the console script does, with the current folder first where Python is not told otherwise."""


def run(command, folder, **environment):
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    how = {"capture_output": True, "text": True, "errors": "replace", "timeout": 500}
    return subprocess.run([sys.executable, *command], cwd=folder, env=known | environment, **how)


@pytest.mark.parametrize("entry", [None, "", ":", ".", "./", "lib:", "../here"])
@pytest.mark.parametrize("start", [["-m", "tempscale"], ["-P", "-c", SCRIPT]], ids=["module", "script"])
def test_an_entry_of_the_path_that_is_relative_does_not_count(tmp_path, entry, start):
    here, marks = tmp_path / "here", tmp_path / "marks"
    (here / "lib").mkdir(parents=True)
    # Python itself imports these before ours, where its path says so.
    names = {*planted.NAMES} - {"sitecustomize", "usercustomize"}
    names |= {"tempscale_jobs"} if entry is None else set()
    for folder in (here, here / "lib"):
        planted.plant(folder, marks, sorted(names))
    path = {} if entry is None else {"PYTHONPATH": entry}
    found = run([*start, "history", str(tmp_path)], here, **path)
    assert found.returncode == 2, found.stderr
    assert "Traceback" not in found.stderr
    assert sorted(marks.iterdir()) == []


def test_a_full_path_in_the_path_counts(tmp_path):
    planted.plant(tmp_path, tmp_path / "marks", ["typer"])
    assert run(["-m", "tempscale", "--version"], tmp_path, PYTHONPATH=str(tmp_path)).returncode != 0
    assert list((tmp_path / "marks").iterdir())


@pytest.mark.parametrize(("folder", "path"), [(ROOT, "."), (ROOT, "./jobs:."), (ROOT / "jobs", "..:."), (ROOT, ".:{empty}")])
@pytest.mark.parametrize("start", [["-P", "-c", SCRIPT], ["-m", "tempscale_jobs"]], ids=["script", "module"])
def test_the_folders_of_the_packages_themselves_stay(tmp_path, folder, path, start):
    found = run([*start, "history", "nowhere"], folder, PYTHONPATH=path.format(empty=tmp_path))
    assert found.returncode == 2, found.stderr
    assert "Traceback" not in found.stderr


def test_settings_of_numba_in_the_current_folder_are_refused(tmp_path):
    (tmp_path / ".numba_config.yaml").write_text(f"cache_dir: {tmp_path}\n")
    found = run(["-m", "tempscale", "audit"], tmp_path)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert ".numba_config.yaml" in found.stderr


@pytest.fixture(scope="module")
def here(tmp_path_factory, small_model):
    """One folder of a model, a corpus and a configuration, with modules beside them."""
    folder = tmp_path_factory.mktemp("planted") / "here"
    shutil.copytree(small_model, folder)
    planted.plant(folder, folder.parent / "marks")
    (folder / "texts.jsonl").write_text(as_lines(documented("pyarrow")[:30]))
    (folder / "night.toml").write_text(
        'corpus = {source = "texts.jsonl"}\nout = "run"\nembedding = {models = ["."], temperatures = [1.0]}\n'
        "analysis = {socm_sample = 0, probe_sample = 0}\nexecution = {workers = 1}\n"
    )
    return folder


@pytest.mark.parametrize("joins", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_run_in_the_folder_of_its_inputs_imports_nothing_from_there(here, ray_address, joins):
    out = f"run-{joins}"
    command = ["-m", "tempscale", "audit", "night.toml", "--out", out, *(["--address", ray_address] if joins else [])]
    found = run(command, here)
    assert found.returncode == 0, found.stderr[-3000:]
    assert (here / out / "run.json").exists()
    assert sorted((here.parent / "marks").iterdir()) == []


@pytest.mark.parametrize("command", [["--help"], ["audit", "--help"], ["submit", "--help"]])
def test_help_teaches_without_docstrings_and_assertions_too(tmp_path, command):
    plain, optimised = (run(["-m", "tempscale", *command], tmp_path, PYTHONOPTIMIZE=value) for value in ("", "2"))
    assert (optimised.returncode, optimised.stdout) == (0, plain.stdout)


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ({"PYTHONIOENCODING": "ascii"}, ["history", "τ"]),
        ({"PYTHONIOENCODING": "cp1252:strict"}, ["tune", "--help"]),
        ({"PYTHONIOENCODING": "latin-1:surrogatepass"}, ["audit", "--help"]),
        ({"PYTHONIOENCODING": "idna"}, ["history", "τ"]),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ["tune", "--help"]),
    ],
)
def test_a_stream_that_cannot_write_a_letter_changes_no_exit_code(tmp_path, environment, command):
    found = run(["-m", "tempscale", *command], tmp_path, **environment)
    assert found.returncode == (2 if "history" in command else 0), found.stderr
    assert "Traceback" not in found.stderr
    assert len(found.stdout + found.stderr) > 50
