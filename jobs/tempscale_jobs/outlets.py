"""Standard output and error: lines that fit a terminal, and what a run prints does not decide how it ends, also where
nobody reads it or the disk is full.
"""

from __future__ import annotations

import codecs
import errno
import os
import sys
import textwrap
from typing import Any

WIDTH = 80
"""Columns of a line on the terminal; only a command to copy, or a path, may be longer."""


class Outlet:
    """A stream that takes no more after its first failure, which it keeps."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        if self.failure is None:
            try:
                return self._written(text)
            except OSError as error:
                self._close(error)
        return len(text)

    def _written(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except UnicodeError:  # Its encoding has no such letters, and what it is to do with them does not help.
            self._stream.flush()
            self._stream.buffer.write(text.encode("ascii", "backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Hand on what was written, or drop it."""
        if self.failure is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._close(error)

    @property
    def problem(self) -> str | None:
        """Why it failed; None where it did not, or because its reader had read enough."""
        if self.failure is None or self.failure.errno == errno.EPIPE:
            return None
        return self.failure.strerror or str(self.failure)

    def _close(self, error: OSError) -> None:
        self.failure = error
        # What the stream holds would fail again, at the latest when the interpreter ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


def wrapped(text: str, indent: str = "", first: str | None = None) -> list[str]:
    """A text in lines of at most `WIDTH` columns, broken between words and never inside a figure such as «0.1 ± 0.2 %»."""
    kept = text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")
    lines = textwrap.wrap(
        kept, WIDTH, initial_indent=indent if first is None else first, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\u00a0", " ") for line in lines]


def _writes_at_once(encoding: str | None) -> bool:
    """Whether an encoding writes lines as they come; idna, that of machines' names, waits for a dot."""
    return not encoding or codecs.getincrementalencoder(encoding)().encode("a\n") != b""


def install() -> None:
    """Make outlets of standard output and error; those that are closed lead nowhere."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:  # Otherwise the next file to be opened would be taken for it.
                os.dup2(nowhere, number)
                os.close(nowhere)
            stream = os.fdopen(number, "w", closefd=False)
        if not _writes_at_once(getattr(stream, "encoding", None)):
            stream.reconfigure(encoding="ascii", errors="backslashreplace")
        elif getattr(stream, "errors", None) in ("strict", "surrogateescape", "surrogatepass"):
            stream.reconfigure(errors="replace")  # A Greek letter that a terminal cannot show is no reason to stop.
        setattr(sys, name, Outlet(stream))
