"""Notify of a verdict by a webhook in Slack's format and by annotations of GitHub Actions."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.nights import Gate
from tempscale_jobs.nights.gate import notes
from tempscale_jobs.report.shell import shell_line
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import masked

_SECONDS, PAUSES = 10.0, (1.0, 5.0)
ALL_SECONDS = 40.0
"""The limit of the whole exchange: a server that sends a byte now and then never exceeds the limit of one read."""
_SHOWN_REASONS = 10
_HIDDEN = "***"
"""What stands for a secret: no command with it would run."""


def is_wanted(gate: Gate, verdict: str) -> bool:
    """Whether to post a verdict: the configuration requires it, and the environment names a webhook."""
    if verdict == "none" or gate.notify == "never" or (gate.notify == "failures" and verdict == "passed"):
        return False
    return bool(_address(gate))


def _address(gate: Gate) -> str:
    return os.environ.get(gate.webhook_env, "").strip()


def post_verdict(gate: Gate, record: dict[str, Any], folder: str) -> str:
    """Post the verdict of a run with this run.json; return the result in words."""
    verdict = record["gate"]["verdict"]
    mark = ":white_check_mark:" if verdict == "passed" else ":x:"
    lines = [f"{mark} tempscale, night of {record['night']}: the gate {'held' if verdict == 'passed' else 'failed'}"]
    others = [f"for information: {note}" for note in notes(record["gate"])]
    tonight, before = (_full(path) for path in (folder, record["gate"].get("compared_with", "")))
    ends = [f"report: {tonight}/report.html"]
    if before and _HIDDEN not in before + tonight:
        ends.append(f"what changed: {shell_line(['tempscale', 'compare', before, tonight])}")
    return _post(gate, lines, [*record["gate"]["failed"], *others], ends)


def _full(folder: str) -> str:
    """A folder as a reader on another machine needs it, without secrets: a relative path becomes absolute."""
    return masked(Storage(folder).root) if folder else ""


def post_unfinished(config: AuditConfig, why: str, code: int) -> None:
    """Post that a run ended without a verdict, if verdicts are posted; exit code 3 means incomplete."""
    gate = config.gate
    if gate.notify != "never" and config.asks and _address(gate):
        of = "" if config.night is None else f", night of {config.night}"
        headline = f":warning: tempscale{of}: {'incomplete' if code == 3 else 'not run'}"
        _post(gate, [headline], [why], [f"run folder: {_full(config.out)}"])


def github_lines(record: dict[str, Any]) -> list[str]:
    """The verdict as annotations of GitHub Actions: an error for each failed check, or a notice; notes are warnings."""
    if record["gate"]["verdict"] == "none":
        return []
    warnings = [f"::warning title=tempscale gate::{_escaped(note)}" for note in notes(record["gate"])]
    if record["gate"]["verdict"] == "passed":
        message = f"the gate held: {count(record['gate']['checks'], 'check')}"
        return [f"::notice title=tempscale::{_escaped(message)}", *warnings]
    return [*(f"::error title=tempscale gate::{_escaped(reason)}" for reason in record["gate"]["failed"]), *warnings]


def _post(gate: Gate, lines: list[str], reasons: Sequence[str], ends: Sequence[str]) -> str:
    url = _address(gate)
    more = [f"and {len(reasons) - _SHOWN_REASONS} more"] if len(reasons) > _SHOWN_REASONS else []
    listed = (f"• {reason}" for reason in [*reasons[:_SHOWN_REASONS], *more])
    text = "\n".join([*lines, *map(_plain, [*listed, *ends])])
    if not url.startswith(("https://", "http://")):
        return f"not sent: {gate.webhook_env} holds no http address"
    try:
        return f"webhook: {_exchanged(url, json.dumps({'text': text}).encode())}"
    except urllib.error.HTTPError as error:
        return f"not sent: the webhook of {gate.webhook_env} answered {error.code}"
    except Exception as error:  # Do not show its message, which may contain the secret address.
        return f"not sent: the webhook of {gate.webhook_env} cannot be reached ({type(error).__name__})"


class _NotRedirected(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: urllib would read the whole answer and then send a GET without the message."""

    def redirect_request(self, *_: Any) -> None:
        """Return nothing, so that the redirection is the answer."""


def _exchanged(url: str, message: bytes) -> int:
    """Post a message within `ALL_SECONDS`; return the status of the answer, whose content is not read."""
    ends: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()

    def exchange() -> None:
        try:
            ends.put(_posted(url, message))
        except Exception as error:
            ends.put(error)

    threading.Thread(target=exchange, name="webhook", daemon=True).start()
    try:
        end = ends.get(timeout=ALL_SECONDS)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(end, Exception):
        raise end
    return end


def _posted(url: str, message: bytes) -> int:
    """Post a message, again where the server may answer later; return the status of the answer."""
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url, message, {"Content-Type": "application/json"}, method="POST"
    )
    opener = urllib.request.build_opener(_NotRedirected)
    for pause in (*PAUSES, None):
        try:
            with opener.open(request, timeout=_SECONDS) as answer:
                return int(answer.status)
        except (urllib.error.URLError, TimeoutError) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
            if refused or pause is None:
                raise
            time.sleep(pause)
    raise AssertionError("every way out is above")


def _plain(text: str) -> str:
    """The text with Slack's control characters escaped."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escaped(text: str) -> str:
    """The text escaped for the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
