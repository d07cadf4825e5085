"""Submit a command to a Ray cluster as a job, show its log, and return the job's exit code."""

from __future__ import annotations

import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.report.shell import shell_line
from tempscale_jobs.runs.journal import duration
from tempscale_jobs.submit.command import Submission
from tempscale_jobs.submit.head import (
    ENDED,
    INCOMPLETE,
    address_of,
    by_hand,
    check_versions,
    connect,
    exit_code,
    is_over,
    readable,
    status,
    why,
)
from tempscale_jobs.urls import masked

if TYPE_CHECKING:
    from rich.console import Console


PATIENCE_SECONDS = 120.0
"""A head that does not answer for longer counts as lost."""
LOOK_SECONDS = 1.0
QUIET_SECONDS = 60.0
"""After so long without output the job's status is printed."""
LOG_BYTES_A_SECOND = 1_000_000
"""Ray returns whole logs only, so a large log is fetched less often."""
_LAST_LOOKS = 3


class SubmitOptions(NamedTuple):
    """The options of a submission."""

    detach: bool
    """Do not wait for the job."""
    again: bool
    """Submit a finished run again."""
    join: bool
    """Wait for this night's existing job instead of refusing."""


def submit(sent: Submission, address: str | None, console: Console, manner: SubmitOptions) -> int:
    """Submit a command and return its job's exit code, or 0 where nobody waits for it."""
    url = address_of(address)
    client = connect(url)
    with readable(url):
        attempts = _attempts(client, sent)
        if (existing := _current(attempts, manner.again)) is not None:
            if not manner.join:
                raise _refusal(existing, url)
            console.print(f"joined {existing.submission_id}", highlight=False, markup=False, soft_wrap=True)
            return Watch(client, existing.submission_id, url, console).wait()
        identifier, before = _next_attempt(attempts, sent)
        if not sent.image_code:
            check_versions(client.versions(), url)
        _send(client, sent, identifier, url)
    packed = ["the cluster's own tempscale" if sent.image_code else "this tempscale"]
    packed += [] if sent.packed is None else [sent.packed.summary()]
    console.print(
        f"submitted {identifier}{before}\n"
        f"  runs       {shell_line(['tempscale', sent.command, *sent.arguments])}\n"
        f"  packed     {'; '.join(packed)}\n"
        f"  dashboard  {masked(url)}/#/jobs/{identifier}\n"
        f"  night      {sent.night}: after midnight UTC, --night {sent.night} goes on with it\n"
        f"  follow     {by_hand('logs', identifier, url)}\n"
        f"  stop       {by_hand('stop', identifier, url)}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    if manner.detach:
        print(identifier)
        return 0
    return Watch(client, identifier, url, console).wait()


def _attempts(client: Any, sent: Submission) -> dict[int, Any]:
    """The jobs of this night's run, by the number of the attempt."""
    name = re.compile(rf"{re.escape(sent.identifier)}(?:-(\d+))?")
    return {
        int(match[1] or 1): job
        for job in client.list_jobs()
        if job.submission_id and (match := name.fullmatch(job.submission_id))
    }


def _current(attempts: dict[int, Any], again: bool) -> Any | None:
    """The last attempt, if it is running or needs no further attempt."""
    if not attempts:
        return None
    last = attempts[max(attempts)]
    return last if not is_over(last) or (exit_code(last) in (0, 1) and not again) else None


def _refusal(job: Any, url: str) -> UsageError:
    if not is_over(job):
        return UsageError(
            f"this night's run is {status(job).lower()} as {job.submission_id}; --join waits for it here, and "
            f"this shows its log: {by_hand('logs', job.submission_id, url)}; this stops it: "
            f"{by_hand('stop', job.submission_id, url)}"
        )
    code = exit_code(job)
    return UsageError(
        f"this night's run is {ENDED[code]}: {job.submission_id} ended with exit code {code}; --again submits it once more"
    )


def _next_attempt(attempts: dict[int, Any], sent: Submission) -> tuple[str, str]:
    """The submission id of the next attempt at this night's run, and a text about the end of the last one."""
    if not attempts:
        return sent.identifier, ""
    last, attempt = attempts[max(attempts)], max(attempts) + 1
    ended = "was stopped" if status(last) == "STOPPED" else f"ended with exit code {exit_code(last)}"
    return f"{sent.identifier}-{attempt}", f": attempt {attempt}, as {last.submission_id} {ended}"


def _send(client: Any, sent: Submission, identifier: str, url: str) -> None:
    import tempscale
    import tempscale_jobs

    ours = (tempscale, tempscale_jobs)
    modules = [] if sent.image_code else [str(Path(str(package.__file__)).parent) for package in ours]
    with ExitStack() as stack:
        if sent.packed is not None:
            modules.append(stack.enter_context(sent.packed.staged()))
        runtime = {"py_modules": modules, "excludes": ["__pycache__"]} if modules else {}
        begun = time.monotonic()
        while True:
            try:
                client.submit_job(
                    entrypoint=sent.entrypoint, submission_id=identifier, runtime_env=runtime,
                    metadata={"tempscale": tempscale.__version__, "command": sent.command, "night": sent.night},
                )  # fmt: skip
                return
            except RuntimeError as error:
                if "already exists" in str(error):  # Another submit was faster.
                    raise UsageError(f"this night's run was submitted a moment ago as {identifier}") from None
                # A head that has just started answers before it accepts jobs.
                if "No available agent" not in str(error):
                    raise
                if time.monotonic() - begun > PATIENCE_SECONDS:
                    raise UsageError(
                        f"the cluster at '{masked(url)}' takes no job yet: no agent of it answers; where its machine runs "
                        "several Rays, stop the others"
                    ) from None
                time.sleep(LOOK_SECONDS)


class Watch:
    """Waits for a job and shows the new lines of its log."""

    def __init__(self, client: Any, identifier: str, url: str, console: Console) -> None:
        self._client, self._identifier, self._url, self._console = client, identifier, url, console
        self._begun = self._heard = self._printed_at = time.monotonic()
        self._printed, self._next_log = 0, 0.0

    def wait(self) -> int:
        """Wait for the job and return its exit code; 3 where the user interrupts this, which leaves the job running."""
        try:
            job = self._over()
        except KeyboardInterrupt:
            for what, verb in (("left running", "logs"), ("to stop it", "stop")):
                self._say(f"{what}: {by_hand(verb, self._identifier, self._url)}")
            return INCOMPLETE
        return self._ended(job)

    def _over(self) -> Any:
        """Show the log until the job is over; return the job."""
        from ray.exceptions import AuthenticationError

        while True:
            try:
                job = self._client.get_job_info(self._identifier)
            except (AuthenticationError, OSError, RuntimeError, ValueError) as error:
                self._missed(error)
                time.sleep(LOOK_SECONDS)
                continue
            self._heard = time.monotonic()
            if is_over(job):
                return job
            self._show_log()
            if time.monotonic() - self._printed_at > QUIET_SECONDS:
                self._say(f"{status(job).lower()} for {duration(time.monotonic() - self._begun)}")
            time.sleep(LOOK_SECONDS)

    def _missed(self, error: Exception) -> None:
        """Raise an IncompleteRun if the head does not answer for too long, or is new and does not know the job."""
        if "does not exist" in str(error):
            raise IncompleteRun(
                f"the cluster at '{masked(self._url)}' no longer knows {self._identifier}, because its head is new; "
                "submit the same command again to go on where it stopped"
            )
        silent = time.monotonic() - self._heard
        if silent > PATIENCE_SECONDS:
            raise IncompleteRun(
                f"the cluster at '{masked(self._url)}' has not answered for {duration(silent)}: {why(error, self._url)}; "
                "submit the same command again to go on where it stopped"
            )
        if time.monotonic() - self._printed_at > QUIET_SECONDS / 2:
            self._say(f"no answer for {duration(silent)}")

    def _ended(self, job: Any) -> int:
        for _ in range(_LAST_LOOKS):
            if self._show_log(last=True):
                break
            time.sleep(LOOK_SECONDS)
        code = exit_code(job)
        if status(job) == "STOPPED":
            self._say(f"{self._identifier} was stopped; submit the same command again to go on where it stopped")
        elif status(job) == "FAILED" and job.driver_exit_code != code:
            cause = (job.message or "").strip().partition("\n")[0]
            signalled = f"its driver ended with {job.driver_exit_code}"
            self._say(f"{self._identifier} failed: {cause if job.driver_exit_code is None else signalled}; {ENDED[code]}")
        else:
            self._say(f"{self._identifier} ended with exit code {code}: {ENDED[code]}")
        return code

    def _show_log(self, last: bool = False) -> bool:
        """Print the new lines of the log; return whether it could be read."""
        if not last and time.monotonic() < self._next_log:
            return True
        try:
            log = self._client.get_job_logs(self._identifier)
        except (OSError, RuntimeError, ValueError):
            return False  # The status decides; the log may be readable the next time.
        self._next_log = time.monotonic() + len(log) / LOG_BYTES_A_SECOND
        end = len(log) if last else log.rfind("\n") + 1
        if end > self._printed:
            new, self._printed, self._printed_at = log[self._printed : end], end, time.monotonic()
            sys.stdout.write(new if new.endswith("\n") else f"{new}\n")
            sys.stdout.flush()
        return True

    def _say(self, what: str) -> None:
        self._printed_at = time.monotonic()
        self._console.print(what, highlight=False, markup=False, soft_wrap=True)
