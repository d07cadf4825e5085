"""Where the head of a cluster is, and what is said of one that does not answer or refuses."""

import http.server
import os
import socket
import threading

import pytest

from tempscale_jobs.errors import UsageError
from tempscale_jobs.submit import head


@pytest.mark.parametrize(
    ("given", "environment", "address"),
    [
        (None, {}, "http://127.0.0.1:8265"),
        ("head:8265", {}, "http://head:8265"),
        ("https://head/ray/", {"RAY_API_SERVER_ADDRESS": "http://other:1"}, "https://head/ray"),
        (None, {"RAY_API_SERVER_ADDRESS": "http://other:1", "RAY_ADDRESS": "http://third:1"}, "http://other:1"),
        (None, {"RAY_ADDRESS": "http://third:1"}, "http://third:1"),
        (None, {"RAY_ADDRESS": "10.0.0.1:6379"}, "http://127.0.0.1:8265"),
        (None, {"RAY_ADDRESS": "auto"}, "http://127.0.0.1:8265"),
    ],
)
def test_the_address_is_the_one_given_else_the_environment_s(monkeypatch, given, environment, address):
    for variable in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)
        if variable in environment:
            monkeypatch.setenv(variable, environment[variable])
    assert head.address_of(given) == address


def test_a_client_s_address_in_the_environment_is_named(monkeypatch):
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(UsageError, match="RAY_ADDRESS 'ray://head:10001'"):
        head.address_of(None)


class Server(http.server.BaseHTTPRequestHandler):
    """Answers everything with one status."""

    status = 200

    def do_GET(self):
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(b"Unauthorized")

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("status", "named"), [(401, "token .* none"), (403, "token .* another"), (404, "127.0.0.1"), (200, "127.0.0.1")]
)
def test_what_is_no_head_or_refuses_the_token_is_one_sentence(status, named):
    with http.server.HTTPServer(("127.0.0.1", 0), type("Answers", (Server,), {"status": status})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(UsageError, match=named) as error:
            head.connect(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "\n" not in str(error.value)


def test_what_cannot_be_reached_or_does_not_answer_is_told_within_seconds(monkeypatch):
    monkeypatch.setattr(head, "ANSWER_SECONDS", 0.5)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")  # What is given wins over it.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(UsageError, match="does not answer"):
            head.connect(f"http://127.0.0.1:{port}")
    with pytest.raises(UsageError, match=f"http://127.0.0.1:{port}"):
        head.connect(f"http://127.0.0.1:{port}")
    assert os.environ["RAY_API_SERVER_ADDRESS"] == "http://127.0.0.1:1"
