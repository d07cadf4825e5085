"""Standard output and error: lines that fit a terminal; a stream that is closed or full does not fail a run."""

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
    """A stream that drops all output after its first failure, which it keeps."""

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
        except UnicodeError:  # The encoding lacks some letters, and the stream's error handler does not help.
            self._stream.flush()
            self._stream.buffer.write(text.encode("ascii", "backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Flush the stream, or drop its buffer."""
        if self.failure is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._close(error)

    @property
    def problem(self) -> str | None:
        """Why it failed; None if it did not, or if its reader closed the pipe."""
        if self.failure is None or self.failure.errno == errno.EPIPE:
            return None
        return self.failure.strerror or str(self.failure)

    def _close(self, error: OSError) -> None:
        self.failure = error
        # The stream's buffer would fail again, at the latest when the interpreter ends.
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
    """Whether an encoding writes each line at once; idna, which encodes names of machines, waits for a dot."""
    return not encoding or codecs.getincrementalencoder(encoding)().encode("a\n") != b""


def install() -> None:
    """Replace standard output and error by outlets; a closed one writes to /dev/null."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:  # Otherwise the next opened file would get this number.
                os.dup2(nowhere, number)
                os.close(nowhere)
            stream = os.fdopen(number, "w", closefd=False)
        if not _writes_at_once(getattr(stream, "encoding", None)):
            stream.reconfigure(encoding="ascii", errors="backslashreplace")
        elif getattr(stream, "errors", None) in ("strict", "surrogateescape", "surrogatepass"):
            stream.reconfigure(errors="replace")  # Do not fail on a Greek letter that a terminal cannot show.
        setattr(sys, name, Outlet(stream))
