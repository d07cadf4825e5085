"""The errors that end a run early, each with its exit code. The message is one sentence that says what to do."""

from __future__ import annotations

import unicodedata

_ENDS_OR_STEERS = ("Cc", "Cs", "Zl", "Zp")
"""Categories of characters that end a line, control a terminal or cannot be printed."""


class RunError(Exception):
    """A run that ends early. Its message stays on one line, because control characters in quoted input are escaped."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        plain = (c.encode("unicode_escape").decode() if unicodedata.category(c) in _ENDS_OR_STEERS else c for c in message)
        super().__init__("".join(plain))


class UsageError(RunError):
    """Wrong usage, configuration or input: the same command would fail again."""

    exit_code = 2


class Changed(UsageError):
    """What the run reads was written or exchanged while it was read."""


class OtherModel(Changed):
    """A worker's machine has other files of a model than those that the run began with."""


class IncompleteRun(RunError):
    """The run stopped before its end; the same command resumes it."""

    exit_code = 3
