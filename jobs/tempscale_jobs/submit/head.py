"""The head of a Ray cluster: its address, a client of its Jobs API, and the exit codes of its jobs."""

from __future__ import annotations

import logging
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import masked, reason
from tempscale_jobs.workers.private import variables_set

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
INCOMPLETE = 3
ENDED = {
    0: "done", 1: "done, and the gate failed", 2: "wrong usage, configuration or input",
    INCOMPLETE: "incomplete; submit the same command again to go on where it stopped",
}  # fmt: skip
"""The meaning of each exit code."""
_CONNECT_SECONDS, ANSWER_SECONDS, _SEND_SECONDS = 5.0, 10.0, 300.0


def address_of(given: str | None) -> str:
    """The URL of the dashboard that accepts jobs: the given one, or else the one that Ray's own client would use."""
    name, address = "--address", given
    if address is None and (variable := os.environ.get("RAY_API_SERVER_ADDRESS")):
        name, address = "RAY_API_SERVER_ADDRESS", variable
    if address is None and "://" in (variable := os.environ.get("RAY_ADDRESS") or ""):  # Else it is a cluster's port.
        name, address = "RAY_ADDRESS", variable
    address = (address or DEFAULT_ADDRESS).rstrip("/")
    if "://" not in address:
        address = f"http://{address}"
    if not re.match(r"https?://[^/]", address):
        raise UsageError(
            f"{name} '{masked(address)}' takes no jobs; give the dashboard's address, such as --address http://HEAD:8265"
        )
    return address


def connect(url: str) -> Any:
    """A client of Ray's Jobs API, with the token of RAY_AUTH_MODE=token and RAY_AUTH_TOKEN[_PATH]."""
    from ray.job_submission import JobSubmissionClient

    # The client sets its own log level, and would log every package that it makes and sends.
    for name in ("ray", "ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Client(JobSubmissionClient):  # type: ignore[misc, unused-ignore]
        def _do_request(self, method: str, *arguments: Any, **more: Any) -> Any:  # Ray's would wait without end.
            seconds = ANSWER_SECONDS if method == "GET" else _SEND_SECONDS
            return super()._do_request(method, *arguments, timeout=(_CONNECT_SECONDS, seconds), **more)

        def versions(self) -> dict[str, str]:
            """The versions of the cluster's Ray and Python, if it reports them."""
            answer = self._do_request("GET", "/api/v0/cluster_metadata")
            data = answer.json().get("data", {}) if answer.status_code == 200 else {}
            return {"Ray": data.get("rayVersion", ""), "Python": data.get("pythonVersion", "")}

    with readable(url), variables_set({"RAY_API_SERVER_ADDRESS": url}):  # Ray prefers the variable to its argument.
        return Client(url)


def check_versions(theirs: dict[str, str], url: str) -> None:
    """Raise a UsageError if the cluster has another Ray or Python than this machine, for which the code is sent."""
    import ray

    ours = {"Ray": ray.__version__, "Python": platform.python_version()}
    compared = {"Ray": 3, "Python": 2}
    """The leading numbers of each version that must be equal."""
    for name, version in theirs.items():
        if version and version.split(".")[: compared[name]] != ours[name].split(".")[: compared[name]]:
            raise UsageError(
                f"the cluster at '{masked(url)}' has {name} {version} and this machine {ours[name]}, for which its code is "
                f"sent; submit from an environment with {name} {version}, or give --image-code if the cluster has tempscale"
            )


@contextmanager
def readable(url: str) -> Iterator[None]:
    """Turn the client's errors into a UsageError of one sentence."""
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        problem = "was given another" if "invalid" in str(error).lower() else "was given none"
        raise UsageError(
            f"the cluster at '{masked(url)}' asks for its token and {problem}: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN "
            "or RAY_AUTH_TOKEN_PATH where it is not in ~/.ray/auth_token"
        ) from None
    except ConnectionError:
        raise UsageError(f"no Ray cluster can be reached at '{masked(url)}'; give --address http://HEAD:8265") from None
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise UsageError(f"the Ray cluster at '{masked(url)}' takes no job: {why(error, url)}") from None


def why(error: BaseException, url: str) -> str:
    """The reason of a client's error in a few words."""
    return "it does not answer" if "Timeout" in type(error).__name__ else reason(error, url)


def status(job: Any) -> str:
    """The status of a job: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""
    return str(getattr(job.status, "value", job.status))


def is_over(job: Any) -> bool:
    """Whether a job has ended in any way."""
    return status(job) in ("SUCCEEDED", "FAILED", "STOPPED")


def exit_code(job: Any) -> int:
    """The exit code of a job that is over: its command's exit code, or 3 if the command did not end by itself."""
    if status(job) == "SUCCEEDED":
        return 0
    if status(job) == "FAILED" and job.driver_exit_code in (1, 2, INCOMPLETE):
        return int(job.driver_exit_code)
    return INCOMPLETE


def by_hand(verb: str, identifier: str, url: str) -> str:
    """The `ray job` command with which the user shows a job's log or stops it (`verb` is `logs` or `stop`)."""
    follow = " --follow" if verb == "logs" else ""
    return f"ray job {verb} --address {masked(url)}{follow} {identifier}"
