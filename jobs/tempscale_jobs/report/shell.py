"""Commands as a shell reads them, so that a printed line can be copied and run."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Sequence

from tempscale_jobs.errors import visible


def shell_line(words: Iterable[str]) -> str:
    """The words as one line of a shell."""
    return " ".join(map(_quoted, words))


def folder_for(words: Sequence[str], root: str, what: str) -> str:
    """A new folder next to `root` for what a command writes; no other command gets its name.

    A bucket, or the root of a disk, has nothing next to it: there the folder is in it.
    """
    name = f"{what}-{hashlib.sha256(json.dumps(words).encode()).hexdigest()[:4]}"
    start, remote, path = root.rstrip("/").partition("://")
    if not start or (remote and "/" not in path):
        return f"{root.rstrip('/')}/{name}"
    return f"{'./' if root.startswith('-') else ''}{root.rstrip('/')}-{name}"


def _quoted(word: str) -> str:
    r"""A word in quotes where it needs them; one with control characters as bash, ksh and zsh write it: $'a\nb'."""
    if visible(word) == word:
        return shlex.quote(word)
    return f"$'{''.join(map(_escaped, word))}'"


def _escaped(character: str) -> str:
    if 0xDC80 <= ord(character) <= 0xDCFF:  # A byte of a file's name that is no UTF-8, as Python keeps it.
        return f"\\x{ord(character) - 0xDC00:02x}"
    return f"\\{character}" if character in "\\'" else visible(character)
