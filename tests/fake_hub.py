"""A stand-in for the Hugging Face hub on loopback, which speaks as much of its protocol as an upload needs."""

from __future__ import annotations

import base64
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_test"


class FakeHub:
    """Repositories by name, each with its files; `private` ones by name, and what to answer instead to some paths."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.messages: list[str] = []
        self.refused = ""
        """A pattern of paths that are answered with 503."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: bytes, token: str | None) -> tuple[int, Any]:
        """The status and JSON, or bytes, of one request."""
        if self.refused and re.search(self.refused, path):
            return 503, {"error": "out of order"}
        if token != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid username or password."}
        if path == "/api/whoami-v2":
            return 200, {"type": "user", "name": "somebody", "auth": {"accessToken": {"role": "write"}}}
        if path == "/api/repos/create":
            told = json.loads(body)
            name = f"{told['organization']}/{told['name']}" if told.get("organization") else told["name"]
            if name in self.files:
                return 409, {"error": "there", "url": f"{self.address}/{name}"}
            self.files[name], self.private[name] = {".gitattributes": b""}, told["visibility"] == "private"
            return 200, {"url": f"{self.address}/{name}", "name": name, "id": name}
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/.*)?", path):
            return self._of(found[1], found[2] or "", body)
        if (found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)) and found[1] in self.files:
            held = self.files[found[1]]
            return (200, held[found[2]]) if found[2] in held else (404, {"error": "Entry not found"})
        return 404, {"error": f"unknown {method} {path}"}

    def _of(self, name: str, rest: str, body: bytes) -> tuple[int, Any]:
        if name not in self.files:
            return 404, {"error": "Repository not found"}
        held = self.files[name]
        if rest.startswith("/preupload/"):
            asked = json.loads(body)["files"]
            return 200, {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in asked]}
        if rest.startswith("/commit/"):
            for line in map(json.loads, body.splitlines()):
                own = line["value"]
                if line["key"] == "header":
                    self.messages.append(own["summary"])
                elif line["key"] == "deletedFile":
                    held.pop(own["path"])
                elif line["key"] == "file":
                    held[own["path"]] = base64.b64decode(own["content"])
            return 200, {"commitUrl": f"{self.address}/{name}/commit/abc", "commitOid": "abc", "pullRequestUrl": None}
        if rest.startswith("/tree/"):
            return 200, [
                {"type": "file", "path": path, "size": len(data), "oid": "0"} for path, data in sorted(held.items())
            ]
        return 200, {
            "id": name,
            "sha": "abc",
            "private": self.private[name],
            "siblings": [{"rfilename": own} for own in held],
        }


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, told = hub.answer(self.command, self.path.partition("?")[0], body, self.headers.get("Authorization"))
            data = told if isinstance(told, bytes) else json.dumps(told).encode()
            self.send_response(status)
            missing = {"Repository not found": "RepoNotFound", "Entry not found": "EntryNotFound"}
            if isinstance(told, dict) and told.get("error") in missing:
                self.send_header("X-Error-Code", missing[told["error"]])
            self.send_header("ETag", '"abc"')
            self.send_header("X-Repo-Commit", "a" * 40)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_POST = do_HEAD = _any

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
