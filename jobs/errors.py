"""What can end a run early, each with its exit code. The message is one sentence that names the mend."""

from __future__ import annotations

import unicodedata

_ENDS_OR_STEERS = ("Cc", "Cs", "Zl", "Zp")
"""Kinds of characters that end a line, steer a terminal or cannot be printed."""


class RunError(Exception):
    """A run that ends early. What the message quotes of a user's keys, paths and values stays on its one line."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        plain = (c.encode("unicode_escape").decode() if unicodedata.category(c) in _ENDS_OR_STEERS else c for c in message)
        super().__init__("".join(plain))


class UsageError(RunError):
    """Wrong usage, configuration or input: the same command would end the same way."""

    exit_code = 2


class IncompleteRun(RunError):
    """The run stopped before its end; the same command goes on where it stopped."""

    exit_code = 3
