"""Read a fitted correction from a file: one of `tempscale tune` in corrections/, or `Correction.as_data()` as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import fsspec

from tempscale.correction.errors import CorrectionError
from tempscale.correction.values import Correction
from tempscale.optional import missing, needs
from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import masked, reason

_MOST_BYTES = 1 << 30


class Saved(NamedTuple):
    """A correction and the model whose embeddings it was fitted to."""

    correction: Correction
    model: Mapping[str, Any]
    """Label, fingerprint and window; empty if the file names no model."""


def load(path: str, of: str | None = None) -> Saved:
    """Read a correction from a file, local or remote; of several, the one that was fitted on the task `of`."""
    data = _read(path)
    model = data.get("model", {})
    entries = data.get("corrections", [data])
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise UsageError(f"--correction '{masked(path)}' holds no correction")
    named = {_name(entry): entry for entry in entries}
    if of is None and len(entries) > 1:
        raise UsageError(
            f"--correction '{masked(path)}' holds {len(entries)} corrections; name one by --fitted-on: {', '.join(named)}"
        )
    if of is not None and of not in named:
        raise UsageError(f"--fitted-on '{of}': --correction '{masked(path)}' has none of it; it has {', '.join(named)}")
    try:
        return Saved(Correction.of(entries[0] if of is None else named[of]), model if isinstance(model, Mapping) else {})
    except CorrectionError as error:
        raise UsageError(f"--correction '{masked(path)}': {error}") from None


def _read(path: str) -> Mapping[str, Any]:
    try:
        fs, place = fsspec.core.url_to_fs(os.path.expanduser(path))
        if not fs.isfile(place):
            raise UsageError(f"--correction '{masked(path)}' is not there")
        if fs.size(place) > _MOST_BYTES:
            raise UsageError(f"--correction '{masked(path)}' is larger than any correction")
        data = json.loads(fs.cat_file(place))
    except UsageError:
        raise
    except (ValueError, RecursionError):
        raise UsageError(f"--correction '{masked(path)}' is no JSON file") from None
    except Exception as error:  # Every file system has its own exceptions.
        if (module := missing(error)) is not None:
            raise UsageError(needs(f"--correction '{masked(path)}'", module)) from None
        raise UsageError(f"--correction '{masked(path)}' cannot be read: {reason(error, path)}") from None
    if not isinstance(data, Mapping):
        raise UsageError(f"--correction '{masked(path)}' holds no correction")
    return data


def _name(data: Mapping[str, Any]) -> str:
    """The name of a correction in a file of several: its task, with split and subset if they are not the default."""
    return "/".join(str(data[key]) for key in ("task", "split", "subset") if data.get(key) not in (None, "default"))
