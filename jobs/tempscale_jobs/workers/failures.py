"""Turn errors in workers into errors that a user reads."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tempscale.model.checkpoint import ModelError
from tempscale.optional import missing, needs
from tempscale_jobs.errors import (
    AGAIN,
    Changed,
    Damaged,
    IncompleteRun,
    OtherModel,
    RunError,
    SickWorker,
    Unexpected,
    UsageError,
)
from tempscale_jobs.urls import reason

_ENDS: dict[str, type[RunError]] = {kind.__name__: kind for kind in (UsageError, Changed, OtherModel)}
COLUMNS = ("failure", "traceback", "error", "path")
"""The columns of a failure in a report; null if nothing failed."""


@contextmanager
def readable_failures() -> Iterator[None]:
    """Turn Ray's error for a failed task into a RunError with the sentence of its cause."""
    import ray.exceptions

    try:
        yield
    except (ray.exceptions.RayError, RuntimeError) as error:
        if isinstance(error, RunError) and not isinstance(error, ray.exceptions.RayError):
            raise
        cause = _root_cause(error)
        if isinstance(cause, RunError):
            raise cause.alone() from None
        if (module := missing(cause)) is not None:
            raise UsageError(needs("a worker", module)) from error
        # The cause may be gone the next time if it is a lost process or machine, storage or memory.
        passing = isinstance(cause, ray.exceptions.RayError | OSError | MemoryError)
        raise (IncompleteRun if passing else Unexpected)(failure(cause)) from error


def sick(error: BaseException) -> SickWorker | None:
    """The reason why a worker cannot work on its machine; None if the error is of another kind."""
    import ray.exceptions

    cause = _root_cause(error)
    if isinstance(cause, ray.exceptions.ActorDiedError):
        return SickWorker(failure(cause))
    return cause.alone() if isinstance(cause, SickWorker) else None


def raise_changed(error: BaseException) -> None:
    """Raise a Changed or Damaged under Ray's wrappers, which is no fault of the piece of work."""
    cause = _root_cause(error)
    if isinstance(cause, Changed | Damaged):
        raise cause.alone() from None


def failure(error: BaseException) -> str:
    """A sentence about an error in a worker."""
    if isinstance(error, RunError):
        return str(error)
    return f"a worker failed with {type(error).__name__}: {reason(error)}{AGAIN}"


def _root_cause(error: BaseException) -> BaseException:
    """The user code's own exception under Ray's wrappers."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        inner = getattr(error, "cause", None) or error.__cause__
        if isinstance(inner, BaseException):
            error = inner
    return error


def columns_of(error: Exception) -> dict[str, str | None]:
    """A failure as columns of a report, because Ray Data's own error says only that user code failed."""
    kind = UsageError if isinstance(error, ModelError) else type(error)
    sentence = str(error) if kind is UsageError else failure(error)
    path = error.path if isinstance(error, Damaged) else None
    return {"failure": sentence, "traceback": traceback.format_exc(), "error": kind.__name__, "path": path}


def raise_reported(report: Mapping[str, Any]) -> None:
    """Raise the error of a failure in a report: an IncompleteRun if its type is not known."""
    if report["failure"] is None:
        return
    if report["error"] == Damaged.__name__:
        error: RunError = Damaged(report["failure"], report["path"])
    else:
        error = _ENDS.get(report["error"], IncompleteRun)(report["failure"])
    raise error from RuntimeError(report["traceback"])
