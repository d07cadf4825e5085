"""The head of a Ray cluster: its address, a client of its Jobs API, and what its jobs' ends mean."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jobs.errors import UsageError
from jobs.urls import reason, shown

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
INCOMPLETE = 3
ENDED = {
    0: "done", 1: "done, and the gate failed", 2: "wrong usage, configuration or input",
    INCOMPLETE: "incomplete; submit the same command again to go on where it stopped",
}  # fmt: skip
"""What the exit codes say."""
_CONNECT_SECONDS, _ANSWER_SECONDS, _SEND_SECONDS = 5.0, 10.0, 300.0


def address_of(given: str | None) -> str:
    """The address of the dashboard that takes jobs, as a URL: the one that is given, else as Ray's own client finds it.

    Raises:
        UsageError: it takes no jobs.
    """
    name, address = "--address", given
    if address is None and (found := os.environ.get("RAY_API_SERVER_ADDRESS")):
        name, address = "RAY_API_SERVER_ADDRESS", found
    if address is None and "://" in (found := os.environ.get("RAY_ADDRESS") or ""):  # Else it names a port of the cluster.
        name, address = "RAY_ADDRESS", found
    address = (address or DEFAULT_ADDRESS).rstrip("/")
    if "://" not in address:
        address = f"http://{address}"
    if not re.match(r"https?://[^/]", address):
        raise UsageError(
            f"{name} '{shown(address)}' takes no jobs; give the dashboard's address, such as --address http://HEAD:8265"
        )
    return address


def connect(url: str) -> Any:
    """A client of Ray's Jobs API; it sends the token that RAY_AUTH_MODE=token and RAY_AUTH_TOKEN[_PATH] give.

    Raises:
        UsageError: nothing answers there within seconds, or it refuses the token.
    """
    from ray.job_submission import JobSubmissionClient

    # It would tell of every package that it makes and sends; the client sets a level of its own.
    for name in ("ray", "ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Client(JobSubmissionClient):  # type: ignore[misc, unused-ignore]
        def _do_request(self, method: str, *arguments: Any, **more: Any) -> Any:  # Ray's own would wait for ever.
            seconds = _ANSWER_SECONDS if method == "GET" else _SEND_SECONDS
            return super()._do_request(method, *arguments, timeout=(_CONNECT_SECONDS, seconds), **more)

    with readable(url), _preferred(url):
        return Client(url)


@contextmanager
def _preferred(url: str) -> Iterator[None]:
    """Ray takes an address of the environment before the one that it is given: let them be one."""
    name = "RAY_API_SERVER_ADDRESS"
    before = os.environ.get(name)
    os.environ[name] = url
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def readable(url: str) -> Iterator[None]:
    """Make one sentence of what the client raises.

    Raises:
        UsageError: that sentence.
    """
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        given = "was given another" if "invalid" in str(error).lower() else "was given none"
        raise UsageError(
            f"the cluster at '{shown(url)}' asks for its token and {given}: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH where it is not in ~/.ray/auth_token"
        ) from None
    except ConnectionError:
        raise UsageError(f"no Ray cluster can be reached at '{shown(url)}'; give --address http://HEAD:8265") from None
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise UsageError(f"the Ray cluster at '{shown(url)}' takes no job: {why(error, url)}") from None


def why(error: BaseException, url: str) -> str:
    """An error of the client in a few words."""
    return "it does not answer" if "Timeout" in type(error).__name__ else reason(error, url)


def status(job: Any) -> str:
    """PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    return str(getattr(job.status, "value", job.status))


def is_over(job: Any) -> bool:
    """Whether a job has come to an end, whichever."""
    return status(job) in ("SUCCEEDED", "FAILED", "STOPPED")


def exit_code(job: Any) -> int:
    """The exit code that a job which is over stands for: its command's own, and 3 where that was cut short."""
    if status(job) == "SUCCEEDED":
        return 0
    if status(job) == "FAILED" and job.driver_exit_code in (1, 2, INCOMPLETE):
        return int(job.driver_exit_code)
    return INCOMPLETE


def by_hand(verb: str, identifier: str, url: str) -> str:
    """What one types to see after a job oneself: `logs` or `stop` it."""
    follow = " --follow" if verb == "logs" else ""
    return f"ray job {verb} --address {shown(url)}{follow} {identifier}"
