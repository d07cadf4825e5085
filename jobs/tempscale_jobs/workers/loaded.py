"""Prove that a worker has the model that the run began with: its files may be exchanged during the run.

The driver fingerprints a model once. An actor compares the files that it has loaded with the fingerprint first, and checks
their state before each file that it writes: weights are mapped from the disk, so overwriting the files changes a loaded
model.
"""

from __future__ import annotations

import socket

from tempscale.model import checkpoint
from tempscale_jobs.errors import OtherModel
from tempscale_jobs.runs.folder import Model
from tempscale_jobs.runs.provenance import on_this_machine


class Loaded:
    """The files of a model, whose state is read before they are loaded."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.folder = checkpoint.resolve(model.name)
        self._state = checkpoint.state(self.folder)

    def prove(self) -> None:
        """Raise an OtherModel unless the files that were loaded are those of the run's model."""
        # Files that are on the driver's machine, in the state in which it read them, are not read again.
        if not self._model.fingerprint:
            return
        before, self._state = self._state, checkpoint.state(self.folder)
        if before != self._state:
            raise _other(f"{self.folder}", self._model.label)
        if on_this_machine(self._state) != self._model.seen:
            self._compare()

    def check(self) -> None:
        """Raise an OtherModel if the files' content has changed since they were loaded."""
        if self._model.fingerprint and (now := checkpoint.state(self.folder)) != self._state:
            self._compare()
            self._state = now  # Only their times or permissions have changed.

    def _compare(self) -> None:
        if checkpoint.fingerprint(self.folder) != self._model.fingerprint:
            raise _other(f"{self.folder}", self._model.label)


def check_tokens(folder: str, digest: str) -> None:
    """Raise an OtherModel unless the files that decide how texts are tokenised have the driver's digest."""
    if digest and checkpoint.settings_digest(checkpoint.resolve(folder)) != digest:
        raise _other(folder)


def _other(folder: str, label: str = "") -> OtherModel:
    """The error of a model whose files are not those of the run."""
    return OtherModel(
        f"the files of the model {label and label + ' '}in '{folder}' on {socket.gethostname()} are not those that the run "
        "began with; give every machine the same files, and start the same command again"
    )
