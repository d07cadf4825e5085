"""Create the night's RayJob from its suspended template, wait for its end, and exit as the audit itself exits.

Runs in the CronJob's pod with only Python's standard library. Exit codes are those of `tempscale audit`: 0 done and the
gate passed, 1 the gate failed, 2 something to fix (the template, the rights, the configuration), 3 incomplete, or the end
is unknown.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

DONE, MEND, INCOMPLETE = 0, 2, 3
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_FAILED = re.compile(r"Job entrypoint command failed with exit code (\d+)")
"""The start of the message of Ray's job server, which KubeRay passes on as status.message."""


class End(Exception):
    """The end of the watch, with an exit code and a sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class Api:
    """The RayJobs of one namespace."""

    def __init__(self, server: str, account: Path, patience: float, poll: float) -> None:
        self._account, self._patience, self._poll = account, patience, poll
        namespace = (account / "namespace").read_text("utf-8").strip()
        self._jobs = f"{server}/apis/ray.io/v1/namespaces/{namespace}/rayjobs"
        handlers: list[Any] = [urllib.request.ProxyHandler({})]  # The API server is never behind a proxy.
        if server.startswith("https:"):
            trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
            handlers.append(urllib.request.HTTPSHandler(context=trusted))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, name: str) -> tuple[int, dict[str, Any]]:
        """A RayJob with 200, or the reason with 404."""
        return self._answer("GET", f"{self._jobs}/{name}", None, {404})

    def create(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The new RayJob with 201, or a message with 409 if the name exists; an unknown field is an error."""
        return self._answer("POST", f"{self._jobs}?fieldValidation=Strict", body, {409})

    def _answer(self, method: str, url: str, body: dict[str, Any] | None, expected: set[int]) -> tuple[int, dict[str, Any]]:
        """The server's answer; a failed request is repeated until the patience is over."""
        until = time.monotonic() + self._patience
        while True:
            try:
                return self._once(method, url, body)
            except urllib.error.HTTPError as error:
                message = _message(error)
                if error.code in expected:
                    return error.code, {"message": message}
                if error.code not in (429, 500, 502, 503, 504):
                    raise End(MEND, f"the API server refuses {method} of a RayJob ({error.code}): {message}") from None
                problem = f"{error.code}: {message}"
            except (OSError, ValueError, http.client.HTTPException) as error:  # Unreachable, cut off, or half an answer.
                problem = str(getattr(error, "reason", error))
            if time.monotonic() > until:
                raise End(INCOMPLETE, f"the API server has not answered for {self._patience:.0f} s: {problem}")
            say(f"the API server does not answer ({problem}); asking again")
            time.sleep(self._poll)

    def _once(self, method: str, url: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        token = (self._account / "token").read_text("utf-8").strip()  # Read each time: the kubelet renews it.
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - the address is the cluster's own
        with self._opener.open(request, timeout=30) as answer:
            return answer.status, json.load(answer)


def _message(error: urllib.error.HTTPError) -> str:
    """The message of an error of the API server."""
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)


def say(sentence: str) -> None:
    """Print one line of the log."""
    print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {sentence}", flush=True)


def night_of(job: str, now: datetime) -> str:
    """The night of a Job with this name.

    A CronJob's controller ends the name with the minute for which the Job was scheduled, counted from 1970. So the night
    stays the same if the pod starts late, or again after midnight. A name given by hand may end with a date. Otherwise the
    night is today in UTC.
    """
    if found := re.search(r"\d{4}-\d{2}-\d{2}$", job):
        try:
            return date.fromisoformat(found[0]).isoformat()
        except ValueError:
            raise End(MEND, f"the name of the Job, '{job}', ends with a date that does not exist") from None
    if found := re.search(r"-(\d{7,9})$", job):
        scheduled = datetime.fromtimestamp(60 * int(found[1]), UTC)
        if abs(now - scheduled) < timedelta(days=7):
            return scheduled.date().isoformat()
    return now.date().isoformat()


def job_of(template: dict[str, Any], night: str) -> dict[str, Any]:
    """The RayJob of a night."""
    spec = {key: value for key, value in template["spec"].items() if key != "suspend"}
    words = str(spec.get("entrypoint", "")).split()
    if not words or "--night" in words:
        raise End(MEND, "spec.entrypoint of the template must be the command without --night, which is added each night")
    spec["entrypoint"] = f"{spec['entrypoint'].strip()} --night {night}"
    metadata = template["metadata"]
    return {
        "apiVersion": template["apiVersion"],
        "kind": template["kind"],
        "metadata": {"name": f"{metadata['name']}-{night}", "labels": {**metadata.get("labels", {}), "night": night}},
        "spec": spec,
    }


def state(job: dict[str, Any]) -> str:
    """The state of a RayJob, in a few words."""
    status = job.get("status", {})
    words = [status.get("jobDeploymentStatus") or "new", status.get("jobStatus"), status.get("reason")]
    failed = status.get("failed")
    return ", ".join(word for word in words if word) + (f", {failed} failed" if failed else "")


def end_of(job: dict[str, Any]) -> End | None:
    """The end of a RayJob, or None while it runs."""
    status = job.get("status", {})
    deployment, message = status.get("jobDeploymentStatus"), str(status.get("message") or "")
    first = message.partition("\n")[0]  # The following lines are the job's log, which is kept with the job.
    if deployment == "Complete":
        if status.get("jobStatus") == "SUCCEEDED":
            return End(DONE, "done, and the gate passed")
        return End(INCOMPLETE, f"it was stopped ({status.get('jobStatus')})")
    if deployment == "ValidationFailed":
        return End(MEND, f"KubeRay refuses it: {first}")
    if deployment == "Failed":
        found = _FAILED.match(message) if status.get("reason") == "AppFailed" else None
        code = int(found[1]) if found else INCOMPLETE
        meaning = {1: "done, and the gate failed", 2: "its usage, configuration or input is wrong"}.get(code, "incomplete")
        return End(code if code in (1, 2) else INCOMPLETE, f"{meaning} ({status.get('reason')}: {first})")
    return None


def watch(api: Api, template: str, night: str, deadline: float, poll: float) -> End:
    """Create or find the night's RayJob, and wait for its end."""
    until = time.monotonic() + deadline
    status, found = api.get(template)
    if status == 404:
        raise End(MEND, f"there is no RayJob '{template}' to copy: {found['message']}")
    body = job_of(found, night)
    name = body["metadata"]["name"]
    status, job = api.create(body)
    say(f"{name} created" if status == 201 else f"{name} exists already; waiting for it")
    last = ""
    while True:
        status, job = api.get(name)
        if status == 404:
            return End(INCOMPLETE, f"{name} was deleted")
        if state(job) != last:
            last = state(job)
            say(f"{name}: {last}")
        if (end := end_of(job)) is not None:
            return End(end.code, f"{name}: {end}")
        if time.monotonic() > until:
            return End(INCOMPLETE, f"{name} has not ended within {deadline:.0f} s; it continues without the watch")
        time.sleep(poll)


def _server() -> str:
    """The address of the API server, from the variables that the kubelet gives every pod."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--template", required=True, help="name of the suspended RayJob to copy")
    parser.add_argument("--night", help="its date; read from the Job's name, $JOB_NAME, by default")
    parser.add_argument("--deadline", type=float, default=75600, help="seconds to wait for the end")
    parser.add_argument("--patience", type=float, default=900, help="seconds that the API server may be silent")
    parser.add_argument("--poll", type=float, default=15, help="seconds between two requests")
    parser.add_argument("--server", default=_server(), help="the API server")
    parser.add_argument("--account", type=Path, default=Path(ACCOUNT), help="folder of the service account's token")
    options = parser.parse_args(arguments)
    try:
        night = options.night or night_of(os.environ.get("JOB_NAME", ""), datetime.now(UTC))
        api = Api(options.server, options.account, options.patience, options.poll)
        end = watch(api, options.template, night, options.deadline, options.poll)
    except End as error:
        end = error
    say(str(end))
    return end.code


if __name__ == "__main__":
    sys.exit(main())
