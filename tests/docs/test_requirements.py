"""The lists of hashes hold what is installed, in the versions of constraints.txt, and every file has its hash."""

import re
import tomllib
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LISTS = sorted((ROOT / "requirements").glob("*.txt"))
PINNED = {
    canonicalize_name(name): version
    for name, version in (line.split("==") for line in (ROOT / "constraints.txt").read_text("utf-8").split())
}
NEEDS = {"demo": "demo", "dev": "dev,bench", "image": "s3,gcs,lance,delta"}
"""The extras that a list must hold."""


def listed(name):
    """The packages of a list: their version and number of hashes."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    found = {}
    for own in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]:
        package, version = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?==(\S+)", own).groups()
        found[canonicalize_name(package)] = version, len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", own))
    return found


def needed(extras):
    """The packages that tempscale needs with some extras on this machine, by what is installed."""
    seen, ahead = set(), [Requirement(f"tempscale[{extras}]")]
    while ahead:
        one = ahead.pop()
        key = canonicalize_name(one.name), frozenset(one.extras)
        if key in seen:
            continue
        seen.add(key)
        with suppress(metadata.PackageNotFoundError):
            lines = map(Requirement, metadata.requires(one.name) or [])
            wanted = [{"extra": extra} for extra in [*one.extras, ""]]
            ahead += [line for line in lines if line.marker is None or any(map(line.marker.evaluate, wanted))]
    return {name for name, _ in seen} - {"tempscale", "torch"}


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_every_package_of_a_list_has_hashes_and_the_version_of_the_constraints(file):
    found = listed(file.stem)
    assert len(found) >= 7
    assert all(hashes for _, hashes in found.values())
    assert {name: version for name, (version, _) in found.items() if PINNED.get(name, version) != version} == {}
    assert ("torch" in found) == (file.stem == "cuda")


@pytest.mark.parametrize("name", NEEDS)
def test_a_list_holds_all_that_its_extras_need(name):
    wanted = needed(NEEDS[name])
    assert len(wanted) > 60
    of_torch = {own for own in wanted if re.match(r"(nvidia|cuda|triton)", own)}
    assert wanted - of_torch - set(listed(name)) == set()


def test_nothing_that_slows_every_process_of_ray_is_installed():
    """Ray imports jsonschema, and this builds a parser of 0.8 s where rfc3987-syntax is installed."""
    assert not [name for name in ("demo", "dev", "image") if "rfc3987-syntax" in listed(name)]
    assert "rfc3987-syntax" in listed("sbom")


def test_what_builds_the_package_is_what_its_project_names():
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    found = listed("build")
    for line in map(Requirement, backend):
        assert str(line.specifier) == f"=={found[canonicalize_name(line.name)][0]}"
        assert PINNED[canonicalize_name(line.name)] == found[canonicalize_name(line.name)][0]
