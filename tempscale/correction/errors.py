"""The error of a correction that cannot be read, fitted or applied."""

from __future__ import annotations


class CorrectionError(ValueError):
    """A correction cannot be read, fitted or applied; the message says why."""
