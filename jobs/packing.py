"""Which files of a working directory travel to a cluster, and which never do."""

from __future__ import annotations

import fnmatch
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.errors import UsageError

FOLDER = "tempscale_job_files"
"""What the working directory is called on the cluster."""
MOST_BYTES = 500 << 20
"""Ray keeps packages in the memory of its head and takes no larger one."""
_LEFT_OUT = (
    ".*", "venv", "__pycache__", "node_modules", "runs", "*.pem", "*.key", "*.p12", "*.pfx", "id_rsa*", "id_ed25519*",
    "*credentials*.json", "*.env", "environment", "*secret*",
)  # fmt: skip
"""Names of what stays: what as a rule holds secrets, and what is no input."""
_SECRET_FILES = ("GOOGLE_APPLICATION_CREDENTIALS", "RAY_AUTH_TOKEN_PATH", "AWS_SHARED_CREDENTIALS_FILE", "HF_TOKEN_PATH")
"""Variables that name a file with a secret: it stays whatever its name."""
_IGNORING = (".gitignore", ".rayignore")


@dataclass(frozen=True)
class Packed:
    """The files of a working directory that travel."""

    folder: Path
    files: dict[str, int]
    """Name below the folder and bytes."""
    left_out: tuple[str, ...]

    def holds(self, name: str) -> bool:
        """Whether a file, or something below a folder, is among them."""
        below = "" if name == "." else f"{name.rstrip('/')}/"
        return name in self.files or any(file.startswith(below) for file in self.files)

    def told(self) -> str:
        """What travels and what stays, for the screen."""
        kept = f"; left out: {', '.join(self.left_out[:5])}" if self.left_out else ""
        more = f" and {len(self.left_out) - 5} more" if len(self.left_out) > 5 else ""
        files = "1 file" if len(self.files) == 1 else f"{len(self.files):,} files"
        return f"{files}, {_size(sum(self.files.values()))}, of {self.folder}{kept}{more}"

    def unsent(self, name: str) -> UsageError:
        """The error about a file that the job needs and that stays."""
        return UsageError(
            f"'{name}' is left out of what is packed of '{self.folder}': hidden files, keys, secrets, runs and what "
            ".gitignore or .rayignore names stay here; call it otherwise"
        )

    @contextmanager
    def staged(self) -> Iterator[str]:
        """A folder of links to them alone, whose name is `FOLDER`."""
        with tempfile.TemporaryDirectory(prefix="tempscale-") as temporary:
            root = Path(temporary) / FOLDER
            root.mkdir()
            for name in self.files:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).symlink_to(self.folder / name)
            yield str(root)


def pack(folder: Path) -> Packed:
    """What of a folder travels.

    Raises:
        UsageError: it is more than Ray takes, or cannot be read.
    """
    if folder in (Path.home(), Path(folder.anchor)):
        raise UsageError(f"'{folder}' is too much to pack; give --working-dir with a folder of what the run needs")
    files, left_out = dict[str, int](), list[str]()
    secret = {os.path.realpath(os.environ[name]) for name in _SECRET_FILES if os.environ.get(name)}

    def walk(inside: str, rules: list[tuple[str, Any]]) -> None:
        rules = [*rules, *((inside, rule) for rule in _ignored(folder / inside))]
        for entry in sorted(os.scandir(folder / inside), key=lambda entry: entry.name):
            is_folder = entry.is_dir()
            name = f"{inside}{entry.name}/" if is_folder else f"{inside}{entry.name}"
            if (
                any(fnmatch.fnmatch(entry.name.lower(), pattern) for pattern in _LEFT_OUT)
                or any(rule.match_file(name.removeprefix(base)) for base, rule in rules)
                or os.path.realpath(entry.path) in secret
                or (is_folder and entry.is_symlink())  # It may lead back to where it stands.
                or not (is_folder or entry.is_file())
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


def _ignored(folder: Path) -> Iterator[Any]:
    """The rules of a folder's own .gitignore and .rayignore, as Ray reads them."""
    for name in _IGNORING:
        if (folder / name).is_file():
            from ray._private.thirdparty.pathspec import PathSpec

            yield PathSpec.from_lines("gitwildmatch", (folder / name).read_text("utf-8", "replace").splitlines())


def _size(count: int) -> str:
    from rich.filesize import decimal

    return decimal(count)
