"""Write the lists of what is installed, with the hashes of every file of every version: `make requirements`.

    demo.txt, dev.txt    what `make audit` installs, and what all else that make does
    image.txt            what the image of a cluster holds; cuda.txt: torch of PyPI and what it needs of CUDA
    build.txt            what builds the package; sbom.txt: what writes down the packages of an image

The versions are those of constraints.txt. torch is only in cuda.txt, since other devices have other files of it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from uv import find_uv_bin

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
EXTRAS = {"demo": ["demo"], "dev": ["dev", "bench"], "image": ["s3", "gcs", "lance", "delta", "fast"]}
"""The extras of each list."""
BESIDES = {"image": ["boto3"]}
"""What a list has besides: Ray's cluster launcher starts machines of AWS with boto3."""
_OF_TORCH = re.compile(r"torch|triton|(cuda|nvidia)-.*")
_HEAD = (
    "# Written by `make requirements` from pyproject.toml and constraints.txt: versions, and the SHA-256 of their files.\n"
)


def packages(source: list[str], given: list[str]) -> dict[str, str]:
    """The lines of each package that a source needs on any platform and Python, with those `given` as «-»; by its name."""
    command = [
        find_uv_bin(), "pip", "compile", *source, "--constraint", "constraints.txt", "--universal",
        "--python-version", "3.11", "--generate-hashes", "--no-annotate", "--no-header", "--quiet",
    ]  # fmt: skip
    told = subprocess.run(command, cwd=ROOT, input="\n".join(given), text=True, check=True, stdout=subprocess.PIPE).stdout
    found = re.split(r"^(?=\w)", told, flags=re.MULTILINE)
    return {re.split(r"[=\[ ]", own)[0].lower(): own for own in found if own}


def write(name: str, chosen: list[str]) -> None:
    """Write one list."""
    (HERE / f"{name}.txt").write_text(_HEAD + "".join(chosen), "utf-8")


def main() -> int:
    """Write all lists."""
    for name, extras in EXTRAS.items():
        options = [word for extra in extras for word in ("--extra", extra)]
        found = packages(["pyproject.toml", "-", *options], BESIDES.get(name, []))
        write(name, [own for package, own in found.items() if not _OF_TORCH.fullmatch(package)])
        if name == "image":
            write("cuda", [own for package, own in found.items() if _OF_TORCH.fullmatch(package)])
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    # hatchling asks for editables where it installs a checkout that may be edited.
    write("build", [*packages(["-"], [*backend, "editables"]).values()])
    write("sbom", [*packages(["-"], ["cyclonedx-bom"]).values()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
