"""Data sets of the Hub, and folders in their format: what is read, at which revision, and what never is."""

import contextlib
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.parse
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import sources
from tempscale_jobs.errors import UsageError

datasets = pytest.importorskip("datasets")

pytestmark = pytest.mark.proof

DATASET = "team/letters"
READ = """
import json, os, sys
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import sources
from tempscale_jobs.errors import UsageError
for source in sys.argv[1:]:
    corpus = Corpus.model_validate({"source": source})
    try:
        rows = [[row.place, row.id, row.text] for row in sources.rows(corpus)]
        found = {"state": sources.state(corpus), "rows": rows}
    except UsageError as error:
        found = {"refused": str(error)}
    print(json.dumps(found, default=bytes.decode), flush=True)
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
            if not path.endswith(("README.md", ".yaml")):
                self.server.revisions.add(revision)
            first, last = 0, len(data) - 1
            if wanted := self.headers.get("Range"):
                first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            self.answer(206 if wanted else 200, data[first : last + 1], ETag='"0"', X_Repo_Commit=revision)
        else:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")

    def do_POST(self):
        asked = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["paths"]
        self.say([entry for entry in self.entries() if entry["path"] in asked])


@contextlib.contextmanager
def serving(handler):
    """A server on this machine, and its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def hub(tmp_path):
    """The server, and a function that reads sources from it in a process that may use the network."""
    with serving(Hub) as (server, address):
        server.sha, server.revisions, server.files = "0" * 40, set(), {}
        for number, letters in enumerate(("abc", "de")):
            file = tmp_path / "part.parquet"
            pq.write_table(pa.table({"id": list(letters), "text": [f"the letter {letter}" for letter in letters]}), file)
            server.files[f"data/part-{number}.parquet"] = file.read_bytes()
        more = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": os.getcwd()}

        def read(*named):
            command = [sys.executable, "-c", READ, *named]
            done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            return [json.loads(line) for line in done.stdout.splitlines()]

        yield server, read


def test_files_of_a_dataset_are_read_in_order_and_known_by_content_and_what_is_not_there_is_refused_by_its_name(hub):
    server, read = hub
    own = f"hf://datasets/{DATASET}"
    whole, folder, file, *refused = read(
        f"{own}/data/*.parquet", f"{own}/data", f"{own}/data/part-0.parquet", f"{own}/none.parquet",
        "hf://datasets/team/none/x.parquet", "hf:team/none",
    )  # fmt: skip
    assert [row[1:] for row in whole["rows"]] == [[letter, f"the letter {letter}"] for letter in "abcde"]
    assert folder == whole
    assert file["rows"] == whole["rows"][:3]
    assert file["rows"][0][0] == "part-0.parquet:0"
    names = [f"{DATASET}/none.parquet", "team/none/x.parquet", "hf:team/none"]
    assert [name in found["refused"] for name, found in zip(names, refused, strict=True)] == [True] * 3
    # Other content of the same size is another state.
    name, before = "data/part-1.parquet", folder["state"]
    server.files[name] = server.files[name].replace(b"the letter d", b"the letter D")
    after = read(f"{own}/data")[0]["state"]
    assert sorted(file.rpartition("/")[2] for file in after) == ["part-0.parquet", "part-1.parquet"]
    assert [file.rpartition("/")[2] for file in after if after[file] != before[file]] == ["part-1.parquet"]


def test_a_data_set_is_read_at_the_revision_that_is_recorded_and_its_card_is_obeyed(hub):
    server, read = hub
    (found,) = read(f"hf:{DATASET}")
    assert [row[1:] for row in found["rows"]] == [[letter, f"the letter {letter}"] for letter in "abcde"]
    assert found["state"] == {"revision": "0" * 40}
    assert server.revisions == {"0" * 40}  # Not what main happens to be when each file is asked for.
    server.sha = "1" * 40
    server.files["README.md"] = b"---\nconfigs:\n- config_name: one\n  data_files: data/part-1.parquet\n---\n"
    (found,) = read(f"hf:{DATASET}")
    assert found["state"] == {"revision": "1" * 40}
    assert [row[1] for row in found["rows"]] == ["d", "e"]


# Only files below the data set.

LEAVES = {
    "absolute": "data_files: {private}/diary.txt",
    "above": "data_files: ../private/diary.txt",
    "above a glob": "data_files: '*/../../private/*.txt'",
    "file": "data_files: file://{private}/diary.txt",
    "file without slashes": "data_files: file:{private}/diary.txt",
    "web": "data_files: {web}/diary.txt",
    "web in capitals": "data_files: HTTP{web_rest}/diary.txt",
    "chain": "data_files: 'zip://*.txt::{web}/diary.zip'",
    "archive elsewhere": "data_files: 'zip://*.txt::{private}/diary.zip'",
    "another data set": "data_files: hf://datasets/other/set/a.txt",
    "one of several": "data_files: [a.jsonl, {private}/diary.txt]",
    "a split": "data_files: [{{split: train, path: [a.jsonl, ../private/diary.txt]}}]",
    "folder above": "data_dir: ../private",
    "folder elsewhere": "data_dir: {private}",
}


@pytest.fixture
def asked():
    """The address of a server on this machine, and the requests that it got."""
    requests = []

    class Noted(http.server.BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            requests.append(arguments)

    with serving(Noted) as (_, address):
        yield address, requests


@pytest.mark.parametrize("name", ["above", "web", "another data set"])
def test_a_card_on_the_hub_that_names_other_files_is_refused_before_they_are_asked_for(name, hub, asked, tmp_path):
    server, read = hub
    web, requests = asked
    line = LEAVES[name].format(private=tmp_path, web=web, web_rest="")
    server.files["README.md"] = f"---\nconfigs:\n- config_name: one\n  {line}\n---\n".encode()
    assert "README.md" in read(f"hf:{DATASET}")[0]["refused"]
    assert (requests, server.revisions) == ([], set())


@pytest.fixture
def places(tmp_path):
    """A folder of private files, and one of a data set."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "diary.txt").write_text("PRIVATE\n")
    with zipfile.ZipFile(tmp_path / "private" / "diary.zip", "w") as archive:
        archive.writestr("diary.txt", "PRIVATE\n")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.jsonl").write_text('{"text": "a"}\n')
    return tmp_path / "private", tmp_path / "set"


def texts(source):
    return [row.text for row in sources.rows(Corpus.model_validate({"source": source}))]


@pytest.mark.parametrize("card", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize("name", LEAVES)
def test_a_card_that_names_files_outside_its_folder_is_refused_before_anything_is_read(name, card, places, asked):
    private, folder = places
    web, requests = asked
    line = LEAVES[name].format(private=private, web=web, web_rest=web.removeprefix("http"))
    text = f"configs:\n- config_name: first\n  data_files: a.jsonl\n- config_name: second\n  {line}\n"
    (folder / card).write_text(f"---\n{text}---\n" if card == "README.md" else text)
    for config in ("first", "second"):
        with pytest.raises(UsageError) as caught:
            texts(f"hf:{folder}:{config}:train")
        assert card in str(caught.value)
        assert "PRIVATE" not in str(caught.value)
    assert requests == []


@pytest.mark.parametrize("kind", ["file", "folder", "archive", "card", "second link"])
def test_a_link_that_leads_out_of_a_folder_is_refused(kind, places):
    private, folder = places
    target, name = {
        "file": (private / "diary.txt", "b.txt"), "folder": (private, "more"), "archive": (private / "diary.zip", "b.zip"),
        "card": (private / "diary.txt", "README.md"), "second link": (folder.parent / "further", "b.txt"),
    }[kind]  # fmt: skip
    (folder.parent / "further").symlink_to(private / "diary.txt")
    (folder / name).symlink_to(target)
    with pytest.raises(UsageError) as caught:
        texts(f"hf:{folder}")
    assert name in str(caught.value)


def test_files_below_a_folder_are_read_also_through_links_and_the_cache_of_the_hub(places):
    _, folder = places
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: one\n  data_files: '*.jsonl'\n- config_name: two\n  data_dir: deep\n---\n"
    )
    (folder / "deep").mkdir()
    (folder / "deep" / "b.jsonl").write_text('{"text": "b"}\n')
    (folder / "c.jsonl").symlink_to("deep/b.jsonl")
    assert texts(f"hf:{folder}:one:train") == ["a", "b"]
    assert texts(f"hf:{folder}:two:train") == ["b"]
    cached = folder.parent / "datasets--a--b"
    (cached / "blobs").mkdir(parents=True)
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "blobs" / "0").write_text('{"text": "of the cache"}\n')
    (cached / "snapshots" / "abc" / "a.jsonl").symlink_to("../../blobs/0")
    assert texts(f"hf:{cached}/snapshots/abc") == ["of the cache"]


@pytest.mark.parametrize("text", ["---\nconfigs: [1]\n---\n", "---\nconfigs: {a: b}\n---\n", "---\na: b: c\n---\n",
                                  "---\nconfigs:\n- config_name: a\n  data_files: 3\n---\n"])  # fmt: skip
def test_a_card_that_makes_no_sense_is_a_sentence(text, places):
    _, folder = places
    (folder / "README.md").write_text(text)
    with pytest.raises(UsageError):
        texts(f"hf:{folder}")


def test_the_cell_of_an_image_opens_no_file_and_no_address(places, asked):
    private, folder = places
    web, requests = asked
    features = datasets.Features({"text": datasets.Value("string"), "image": datasets.Image()})
    cells = [{"path": f"{web}/a.png", "bytes": None}, {"path": str(private / "diary.txt"), "bytes": None}]
    table = pa.table(
        {"text": ["x", "y"], "image": pa.array(cells, features.arrow_schema.field("image").type)}, features.arrow_schema
    )
    (folder / "a.jsonl").unlink()
    pq.write_table(table, folder / "a.parquet")
    assert texts(f"hf:{folder}") == ["x", "y"]
    assert requests == []


def test_a_script_that_comes_with_a_data_set_is_not_run_and_formats_that_lead_to_others_are_refused(places):
    private, folder = places
    script = folder / f"{folder.name}.py"
    script.write_text(f"open('{private}/ran', 'w')")
    with pytest.raises(UsageError, match="script"):
        texts(f"hf:{folder}")
    assert not (private / "ran").exists()
    script.unlink()
    (folder / "a.jsonl").unlink()
    (folder / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(UsageError, match="hdf5"):
        texts(f"hf:{folder}")
