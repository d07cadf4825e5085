"""Files of a Hub dataset, hf://datasets/…, read from a server on this machine that answers as the Hub does."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.parse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

DATASET = "team/letters"
READ = """
import json, os, sys
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import sources
corpus = Corpus.model_validate({"source": sys.argv[1]})
rows = [[row.place, row.id, row.text] for row in sources.rows(corpus)]
print(json.dumps({"state": sources.state(corpus), "rows": rows}, default=bytes.decode), flush=True)
os._exit(0)  # As the command ends: once in hundreds, a thread of pyarrow that reads ahead aborts the interpreter's end.
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """One dataset; each answer has the form that huggingface_hub expects."""

    def log_message(self, *arguments):
        pass

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def say(self, value):
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def entries(self, below=""):
        folders = {name.rpartition("/")[0] for name in self.server.files} - {""}
        found = [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in sorted(folders)]
        found += [
            {"type": "file", "path": name, "oid": hashlib.sha1(data, usedforsecurity=False).hexdigest(), "size": len(data)}
            for name, data in self.server.files.items()
        ]
        return [entry for entry in found if entry["path"].startswith(below)]

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = urllib.parse.unquote(urllib.parse.urlparse(self.path).path)
        own = f"/api/datasets/{DATASET}"
        revision = self.server.sha if self.server.sha in path else "main"
        if path in (own, f"{own}/revision/{revision}"):
            self.say(
                {"id": DATASET, "_id": "1", "sha": self.server.sha, "siblings": [{"rfilename": name} for name in
                 self.server.files], "private": False, "tags": [], "downloads": 0}
            )  # fmt: skip
        elif path.startswith(f"{own}/tree/{revision}"):
            self.say(self.entries(path.removeprefix(f"{own}/tree/{revision}").strip("/")))
        elif path.startswith(f"/datasets/{DATASET}/resolve/{revision}/"):
            data = self.server.files.get(path.removeprefix(f"/datasets/{DATASET}/resolve/{revision}/"))
            if data is None:
                self.answer(404, b"{}", X_Error_Code="EntryNotFound")
                return
            self.server.revisions.add(revision)
            first, last = 0, len(data) - 1
            if wanted := self.headers.get("Range"):
                first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            self.answer(206 if wanted else 200, data[first : last + 1], ETag='"0"')
        else:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")

    def do_POST(self):
        asked = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
        self.say([entry for entry in self.entries() if entry["path"] in asked])


@pytest.fixture
def hub(tmp_path):
    """The server, and a function that reads a source from it in a process that may use the network."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.sha, server.revisions = "0" * 40, set()
    for number, letters in enumerate(("abc", "de")):
        file = tmp_path / "part.parquet"
        pq.write_table(pa.table({"id": list(letters), "text": [f"the letter {letter}" for letter in letters]}), file)
        server.files = getattr(server, "files", {}) | {f"data/part-{number}.parquet": file.read_bytes()}
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.getcwd(),
    }  # fmt: skip

    def read(source):
        return subprocess.run(
            [sys.executable, "-c", READ, source], env=environment, capture_output=True, text=True, timeout=120
        )

    yield server, read
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("place", ["data/*.parquet", "data", "data/part-0.parquet"])
def test_parquet_files_of_a_dataset_are_read_in_order(hub, place):
    _, read = hub
    done = read(f"hf://datasets/{DATASET}/{place}")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    wanted = "abc" if place.endswith("0.parquet") else "abcde"
    assert [row[1:] for row in rows] == [[letter, f"the letter {letter}"] for letter in wanted]
    assert rows[0][0] == "part-0.parquet:0"


def test_another_content_of_the_same_size_is_another_state(hub, tmp_path):
    server, read = hub
    source = f"hf://datasets/{DATASET}/data"
    before = json.loads(read(source).stdout)["state"]
    assert json.loads(read(source).stdout)["state"] == before
    name = "data/part-1.parquet"
    server.files[name] = server.files[name].replace(b"the letter d", b"the letter D")
    after = json.loads(read(source).stdout)["state"]
    assert len(after) == 2
    assert sum(after[file] != before[file] for file in after) == 1


def test_what_is_not_on_the_hub_is_a_sentence(hub):
    _, read = hub
    for name, words in ((f"{DATASET}/none.parquet", "is not there"), ("team/none/x.parquet", "is not there")):
        done = read(f"hf://datasets/{name}")
        assert done.returncode != 0
        assert "UsageError" in done.stderr.splitlines()[-1]
        assert words in done.stderr.splitlines()[-1]


def test_a_data_set_is_read_at_the_revision_that_is_recorded(hub):
    server, read = hub
    done = read(f"hf:{DATASET}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row[1:] for row in found["rows"]] == [[letter, f"the letter {letter}"] for letter in "abcde"]
    assert found["state"] == {"revision": "0" * 40}
    assert server.revisions == {"0" * 40}  # Not what main happens to be when each file is asked for.
    server.sha = "1" * 40
    assert json.loads(read(f"hf:{DATASET}").stdout)["state"] == {"revision": "1" * 40}


def test_a_data_set_that_is_not_on_the_hub_is_a_sentence(hub):
    _, read = hub
    done = read("hf:team/none")
    assert done.returncode != 0
    assert "UsageError: dataset 'hf:team/none' cannot be loaded" in done.stderr.splitlines()[-1]
