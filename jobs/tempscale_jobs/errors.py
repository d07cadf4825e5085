"""The errors that end a run early, with their exit codes; the message is one sentence and says what to do."""

from __future__ import annotations

import re
from typing import Self

from tempscale_jobs.urls import hidden, shortened

_ENDS_OR_STEERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that end a line, control a terminal or cannot be printed: Unicode's categories Cc, Zl, Zp and Cs."""


AGAIN = "; start the same command again to go on"


def visible(text: str, kept: str = "") -> str:
    r"""A text with visible escapes, such as \x1b, in place of the characters that end a line or steer a terminal."""

    def shown(match: re.Match[str]) -> str:
        return match[0] if match[0] in kept else match[0].encode("unicode_escape").decode()

    return _ENDS_OR_STEERS.sub(shown, text)


class RunError(Exception):
    """A run that ends early, with a message on one line, without secrets and short enough to be read."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(shortened(visible(hidden(message))))

    def alone(self) -> Self:
        """The same error, without its cause."""
        return type(self)(*self.__reduce__()[1])


class UsageError(RunError):
    """Wrong usage, configuration or input: the same command would fail again."""

    exit_code = 2


class IncompleteRun(RunError):
    """The run stopped before its end; the same command resumes it."""

    exit_code = 3


class Unexpected(IncompleteRun):
    """An error in a worker that neither the inputs nor the machine explain."""


class SickWorker(IncompleteRun):
    """A worker cannot work: its GPU, or another part of its machine, may be at fault."""

    def __init__(self, message: str, node: str = "", machine: str = "") -> None:
        super().__init__(message)
        self.node = node
        """Ray's id of the machine; empty if not known."""
        self.machine = machine
        """The machine's name."""

    def __reduce__(self) -> tuple[type[SickWorker], tuple[str, str, str]]:
        return SickWorker, (str(self), self.node, self.machine)


class Damaged(IncompleteRun):
    """A file of a run is not what was written: bits have flipped, or its end is cut."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.mended = ""
        """A sentence on what is made again, set when the file has been removed."""

    def __reduce__(self) -> tuple[type[Damaged], tuple[str, str]]:
        return Damaged, (str(self), self.path)


class Changed(UsageError):
    """A source was written or exchanged while the run read it."""


class OtherModel(Changed):
    """A worker's machine has other files of a model than those that the run began with."""
