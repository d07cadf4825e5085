"""Telling of a verdict: a webhook that gets what it should, that may fail, and whose address is told nowhere."""

import contextlib
import http.server
import json
import shlex
import socket
import threading
import time

import pytest

from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.nights import Gate
from tempscale_jobs.config.strict import checked
from tempscale_jobs.nights import notify

SECRET = "T0P-S3CR3T"


def record(*failed):
    verdict = "failed" if failed else "passed"
    return {"night": "2026-11-22", "gate": {"verdict": verdict, "failed": [*failed], "checks": 3, "not_compared": []}}


@pytest.fixture
def webhook(monkeypatch):
    """A server that keeps what is posted to it; its answer may be set."""

    class Handler(http.server.BaseHTTPRequestHandler):
        answer, got, body = 200, [], b""

        def do_POST(self):
            self.got.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(self.answer)
            self.end_headers()
            with contextlib.suppress(OSError):  # Nobody reads it to its end.
                self.wfile.write(self.body)

        def log_message(self, *_):
            pass

    Handler.got = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("TEMPSCALE_WEBHOOK", f"http://127.0.0.1:{server.server_port}/{SECRET}")
    yield Handler
    server.shutdown()
    server.server_close()


def test_a_failure_is_posted_as_slack_reads_it(webhook):
    assert "200" in notify.post_verdict(Gate(), record("cosine_mean rose <by> 0.1 & more"), "nights/2026-11-22")
    ((path, body),) = webhook.got
    assert path == f"/{SECRET}"
    assert set(body) == {"text"}
    first, *reasons, report = body["text"].split("\n")
    assert (":x:" in first, "2026-11-22" in first) == (True, True)
    assert reasons == ["• cosine_mean rose &lt;by&gt; 0.1 &amp; more"]
    assert report.endswith("nights/2026-11-22/report.html")


@pytest.mark.parametrize(
    ("before", "command"),
    [
        ("the nights/1", ["{here}/the nights/1", "{here}/nights/2"]), ("s3://b/1", ["s3://b/1", "{here}/nights/2"]),
        ("s3://***@b/1", None), (None, None),
    ],
)  # fmt: skip
def test_a_post_says_where_the_report_is_and_how_to_see_what_changed(webhook, tmp_path, monkeypatch, before, command):
    monkeypatch.chdir(tmp_path)
    failed = record("x")
    failed["gate"] |= {} if before is None else {"compared_with": before}
    notify.post_verdict(Gate(), failed, "nights/2")
    _, _, report, *compare = webhook.got[0][1]["text"].split("\n")
    assert report == f"report: {tmp_path}/nights/2/report.html"
    printed = [shlex.split(line.partition(": ")[2]) for line in compare]
    expected = command and ["tempscale", "compare", *(folder.format(here=tmp_path) for folder in command)]
    assert printed == ([expected] if expected else [])


@pytest.mark.proof
@pytest.mark.parametrize(
    ("asked", "failed", "posts"),
    [("failures", (), 0), ("failures", ("x",), 1), ("always", (), 1), ("always", ("x",), 1), ("never", ("x",), 0)],
)
def test_only_what_is_asked_for_is_posted(webhook, monkeypatch, asked, failed, posts):
    gate, judged = checked(Gate, {"notify": asked}), record(*failed)["gate"]["verdict"]
    assert notify.is_wanted(gate, judged) == bool(posts)
    assert not notify.is_wanted(gate, "none")
    monkeypatch.setenv("TEMPSCALE_WEBHOOK", " ")
    assert not notify.is_wanted(gate, judged)


def test_a_night_without_a_verdict_is_posted_where_it_is_held_to_something(webhook):
    night = {"night": "2026-11-22", "out": "s3://user:password@b/out"}
    held = checked(AuditConfig, night | {"gate": {"thresholds": ["texts >= 1"]}})
    for code, said in ((3, "incomplete"), (2, "not run")):
        notify.post_unfinished(held, "the disk is full", code)
        notify.post_unfinished(checked(AuditConfig, night), "the disk is full", code)
        ((_, body),) = webhook.got
        webhook.got.clear()
        assert all(named in body["text"] for named in (":warning:", "2026-11-22", said, "• the disk is full"))
        assert "password" not in body["text"]


def test_many_reasons_are_cut_and_counted(webhook):
    notify.post_verdict(Gate(), record(*(f"reason {k}" for k in range(25))), "out")
    ((_, body),) = webhook.got
    assert body["text"].count("• reason") == 10
    assert "15 more" in body["text"]


def test_a_webhook_that_fails_costs_nothing_and_its_address_is_not_told(webhook, monkeypatch):
    monkeypatch.setattr(notify, "PAUSES", (0.0, 0.0))
    webhook.answer = 404
    told = [notify.post_verdict(Gate(), record("x"), "out")]
    for address in (f"http://127.0.0.1:9/{SECRET}", f"ftp://{SECRET}", f"http://[{SECRET}", f"https://{SECRET}.invalid/"):
        monkeypatch.setenv("TEMPSCALE_WEBHOOK", address)
        told.append(notify.post_verdict(Gate(), record("x"), "out"))
    assert "404" in told[0]
    assert all(line.startswith("not sent: ") for line in told)
    assert SECRET not in " ".join(told)


@pytest.mark.proof
@pytest.mark.parametrize(
    "drip",
    [
        b"HTTP/1.1 2" + b"0" * 1000,  # A status line, headers, and a message that never end.
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000,
        b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 100000\r\n\r\n" + b"z" * 1000,
    ],
    ids=["status", "header", "redirection"],
)
def test_a_webhook_that_drips_ends_in_time(monkeypatch, drip):
    server, posts = socket.create_server(("127.0.0.1", 0)), []
    monkeypatch.setenv("TEMPSCALE_WEBHOOK", f"http://127.0.0.1:{server.getsockname()[1]}/{SECRET}")
    monkeypatch.setattr(notify, "ALL_SECONDS", 1.0)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                posts.append(client.recv(1 << 16))
                for k in range(len(drip)):
                    client.sendall(drip[k : k + 1])
                    time.sleep(0.02)

    threading.Thread(target=serve, daemon=True).start()
    begun = time.monotonic()
    told = notify.post_verdict(Gate(), record("x"), "out")
    assert time.monotonic() - begun < 5
    assert told.startswith("not sent: ")
    assert SECRET not in told
    assert len(posts) == 1  # A redirection is not followed.
    server.close()


def test_an_answer_of_any_size_is_not_read(webhook):
    webhook.body = b"x" * (64 << 20)
    begun = time.monotonic()
    assert "200" in notify.post_verdict(Gate(), record("x"), "out")
    assert time.monotonic() - begun < 5


def test_github_shows_an_error_a_failed_check():
    lines = notify.github_lines(record("100 % of\nit", "two"))
    assert [line.rpartition("::")[2] for line in lines] == ["100 %25 of%0Ait", "two"]
    assert all(line.startswith("::error ") for line in lines)
    (held,) = notify.github_lines(record())
    assert held.startswith("::notice ")


def test_a_webhook_that_is_busy_is_asked_again_and_one_that_refuses_is_not(webhook, monkeypatch):
    monkeypatch.setattr(notify, "PAUSES", (0.0, 0.0))
    for answer, times in ((503, 3), (429, 3), (403, 1)):
        webhook.got.clear()
        webhook.answer = answer
        assert notify.post_verdict(Gate(), record("x"), "out").endswith(f"answered {answer}")
        assert len(webhook.got) == times
