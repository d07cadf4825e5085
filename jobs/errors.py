"""What can end a run early, each with its exit code. The message is one sentence that names the mend."""

from __future__ import annotations


class RunError(Exception):
    """A run that ends early."""

    exit_code = 1


class UsageError(RunError):
    """Wrong usage, configuration or input: nothing was changed."""

    exit_code = 2


class IncompleteRun(RunError):
    """The run stopped before its end; the same command goes on where it stopped."""

    exit_code = 3
