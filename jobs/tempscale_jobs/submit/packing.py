"""Choose the files of a working directory that are sent to a cluster."""

from __future__ import annotations

import fnmatch
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathspec import PathSpec

from tempscale_jobs.errors import UsageError

FOLDER = "tempscale_job_files"
"""The name of the working directory on the cluster."""
MOST_BYTES = 500 << 20
"""Ray accepts no larger package, because it keeps packages in the memory of its head."""
_LEFT_OUT = (
    ".*", "venv", "__pycache__", "node_modules", "runs", "*.pem", "*.key", "*.p12", "*.pfx", "id_rsa*", "id_ed25519*",
    "*credentials*.json", "credentials", "*.env", "environment", "*secret*", "token", "token.txt", "*.token", "*_token",
    "*_token.txt", "*-token.txt", "kubeconfig*", "*.kubeconfig", "service-account*.json", "service_account*.json",
    "serviceaccount*.json", "*password*", "*.ppk", "*.jks", "*.keystore", "*.kdbx", "*.ovpn",
)  # fmt: skip
"""Names of files that are not sent: they often contain secrets, or are no input."""
_SECRETS = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|\"private_key\"\s*:|^kind:\s*Config\b|\bhf_[A-Za-z0-9]{30,}|\bAKIA[0-9A-Z]{16}\b"
    rb"|\bgh[pousr]_[A-Za-z0-9]{36,}|\bsk-[A-Za-z0-9_-]{32,}",
    re.MULTILINE,
)
"""Keys of servers, accounts, clusters and services: a small file that contains one is not sent, whatever its name."""
_SMALL_BYTES = 1 << 16
_SECRET_FILES = ("GOOGLE_APPLICATION_CREDENTIALS", "RAY_AUTH_TOKEN_PATH", "AWS_SHARED_CREDENTIALS_FILE", "HF_TOKEN_PATH")
"""Environment variables that name a file with a secret, which is not sent whatever its name."""
_IGNORING = (".gitignore", ".rayignore")


@dataclass(frozen=True)
class Packed:
    """The files of a working directory that are sent."""

    folder: Path
    files: dict[str, int]
    """The size in bytes of each file, by its name in the folder."""
    left_out: tuple[str, ...]

    def holds(self, name: str) -> bool:
        """Whether a file, or a file in a folder of that name, is sent."""
        below = "" if name == "." else f"{name.rstrip('/')}/"
        return name in self.files or any(file.startswith(below) for file in self.files)

    def summary(self) -> str:
        """A line for the screen on the files that are sent and left out."""
        omitted = f"; left out: {', '.join(self.left_out[:5])}" if self.left_out else ""
        more = f" and {len(self.left_out) - 5} more" if len(self.left_out) > 5 else ""
        files = "1 file" if len(self.files) == 1 else f"{len(self.files):,} files"
        return f"{files}, {_size(sum(self.files.values()))}, of {self.folder}{omitted}{more}"

    def unsent(self, name: str) -> UsageError:
        """The error about a file that the job needs and that is not sent."""
        return UsageError(
            f"'{name}' is left out of the packed files of '{self.folder}': hidden files, keys, secrets, runs and files that "
            ".gitignore or .rayignore names are not sent; give it another name"
        )

    @contextmanager
    def staged(self) -> Iterator[str]:
        """A temporary folder named `FOLDER` with links to the files."""
        with tempfile.TemporaryDirectory(prefix="tempscale-") as temporary:
            root = Path(temporary) / FOLDER
            root.mkdir()
            for name in self.files:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).symlink_to(self.folder / name)
            yield str(root)


def pack(folder: Path) -> Packed:
    """The files of a folder that are sent; a UsageError if it is unreadable or too large for Ray."""
    if folder in (Path.home(), Path(folder.anchor)):
        raise UsageError(f"'{folder}' is too much to pack; give --working-dir with a folder of what the run needs")
    files, left_out = dict[str, int](), list[str]()
    secret = {os.path.realpath(os.environ[name]) for name in _SECRET_FILES if os.environ.get(name)}

    def walk(inside: str, rules: list[tuple[str, PathSpec[Any]]]) -> None:
        rules = [*rules, *((inside, rule) for rule in _ignored(folder / inside))]
        for entry in sorted(os.scandir(folder / inside), key=lambda entry: entry.name):
            is_folder = entry.is_dir()
            name = f"{inside}{entry.name}/" if is_folder else f"{inside}{entry.name}"
            if (
                any(fnmatch.fnmatch(entry.name.lower(), pattern) for pattern in _LEFT_OUT)
                or any(rule.match_file(name.removeprefix(base)) for base, rule in rules)
                or os.path.realpath(entry.path) in secret
                or (is_folder and entry.is_symlink())  # It may link to a folder above it.
                or not (is_folder or entry.is_file())
                or (not is_folder and _holds_a_secret(entry.path))
            ):
                left_out.append(name)
            elif is_folder:
                walk(name, rules)
            else:
                files[name] = entry.stat().st_size

    try:
        walk("", [])
    except OSError as error:
        raise UsageError(f"'{error.filename}' cannot be packed: {error.strerror}") from None
    packed = Packed(folder, files, tuple(left_out))
    _check_size(packed)
    return packed


def _holds_a_secret(path: str) -> bool:
    """Whether a file seems to contain a key; a large file is data."""
    if os.path.getsize(path) > _SMALL_BYTES:
        return False
    with open(path, "rb") as stream:
        return _SECRETS.search(stream.read()) is not None


def _check_size(packed: Packed) -> None:
    total = sum(packed.files.values())
    if total <= MOST_BYTES:
        return
    sizes = Counter[str]()
    for name, size in packed.files.items():
        sizes[name.split("/")[0]] += size
    largest = ", ".join(f"{name} {_size(size)}" for name, size in sizes.most_common(3))
    raise UsageError(
        f"the working directory '{packed.folder}' holds {_size(total)} and Ray takes {_size(MOST_BYTES)}; the largest are "
        f"{largest}. Put large files on a shared folder or object storage, name them in a .rayignore there, or give another "
        "--working-dir"
    )


def _ignored(folder: Path) -> Iterator[PathSpec[Any]]:
    """The rules in a folder's .gitignore and .rayignore."""
    for file in (folder / name for name in _IGNORING):
        if file.is_file():
            try:
                yield PathSpec.from_lines("gitignore", file.read_text("utf-8", "replace").splitlines())
            except ValueError as error:
                raise UsageError(f"'{file}' cannot be read: {error}") from None


def _size(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)
