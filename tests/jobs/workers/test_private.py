"""A Ray that a run starts is its own: what listens, who gets in, who can read its files, and what is left of them."""

import http.client
import json
import os
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tempscale_jobs.errors import UsageError
from tempscale_jobs.workers import private

pytestmark = pytest.mark.proof

VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR")
DRIVER = """
import json, os, sys
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.workers import cluster as sessions
with sessions.session(Execution.model_validate({"workers": 1})):
    import ray
    path, inherited = ray.get(ray.remote(lambda: (sys.path, "RAY_AUTH_TOKEN" in os.environ)).remote())
    context = ray.get_runtime_context()
    known = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    session = ray.nodes()[0]["ObjectStoreSocketName"].split("/sockets/")[0]
    print(json.dumps({"address": context.gcs_address, "session": session, "ray": known, "path": path}), flush=True)
    sys.stdin.read()
"""
JOIN = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"
SECOND = {
    "join": JOIN,
    "list": "import sys, ray._raylet as r; print(len(r.GcsClient(address=sys.argv[1]).get_all_node_info(timeout=20)))",
    "run": f"{JOIN}; print(ray.get(ray.remote(lambda: 6 * 7).remote()))",
}
"""What a second process tries."""
ADDRESS = """
import sys
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.errors import UsageError
from tempscale_jobs.workers import cluster as sessions
try:
    with sessions.session(Execution.model_validate({"address": sys.argv[1]})) as cluster:
        print(cluster.workers)
except UsageError as error:
    print(error)
    sys.exit(error.exit_code)
"""
"""What `--address` does."""


@contextmanager
def driver(folder, **environment):
    """A process that has a Ray, with an empty home; what it knows of it, and the process."""
    known = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER], env=known | {"HOME": str(folder)} | environment, cwd=folder, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        yield json.loads(line), process
        process.stdin.close()
        assert process.wait(60) == 0
    finally:
        process.kill()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def started(home):
    with driver(home) as (known, process):
        yield known, process


def second(known, what, **token):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | known["ray"]
    environment = {name: value for name, value in (environment | token).items() if value is not None}
    command = [sys.executable, "-c", SECOND.get(what, ADDRESS), known["address"]]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    ("what", "token", "printed"),
    [
        ("join", {}, ""), ("list", {}, "1"), ("run", {}, "42"), ("join", {"RAY_AUTH_TOKEN": None}, None),
        ("list", {"RAY_AUTH_TOKEN": None}, None), ("list", {"RAY_AUTH_TOKEN": "0" * 64}, None),
        ("run", {"RAY_AUTH_TOKEN": None, "RAY_AUTH_MODE": None}, None),
    ],
)  # fmt: skip
def test_only_a_process_with_the_token_enters(started, home, what, token, printed):
    found = second(started[0], what, HOME=str(home), **token)
    assert (found.returncode == 0) == (printed is not None), found.stderr[-2000:]
    if printed is None:
        assert "42" not in found.stdout
    else:
        assert found.stdout.strip() == printed


def test_a_command_joins_with_the_token_and_with_its_file_and_is_refused_without(started, home):
    token = started[0]["ray"]["RAY_AUTH_TOKEN"]
    (home / "token").write_text(token)
    for given in ({}, {"RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": str(home / "token")}):
        found = second(started[0], "address", HOME=str(home), RAY_AUTH_MODE=None, **given)
        assert (found.returncode, found.stdout.strip()) == (0, "1"), found.stderr[-2000:]
    for wrong in (None, "0" * 64):
        found = second(started[0], "address", HOME=str(home), RAY_AUTH_TOKEN=wrong)
        assert (found.returncode, len(found.stdout.splitlines())) == (2, 1), found.stderr[-2000:]
        assert "RAY_AUTH_TOKEN" in found.stdout
        assert "0" * 64 not in found.stdout


def listening(process):
    everyone = [process, *process.children(recursive=True)]
    return {place.laddr for one in everyone for place in one.net_connections("inet") if place.status == psutil.CONN_LISTEN}


def test_all_that_listens_is_on_this_machine_alone(started):
    places = listening(psutil.Process(started[1].pid))
    assert len(places) > 4
    assert {place.ip.removeprefix("::ffff:") for place in places} == {"127.0.0.1"}


def test_http_of_ray_asks_for_the_token(started):
    asked = 0
    for place in listening(psutil.Process(started[1].pid)):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{place.port}/api/job_agent/jobs/x", timeout=5).close()
        except urllib.error.HTTPError as error:
            asked += error.code == 401
        except (OSError, http.client.HTTPException):  # It speaks another protocol.
            continue
    assert asked


def test_its_files_are_closed_and_hold_no_token(started, home):
    known, _ = started
    session = Path(known["session"])
    for folder in (session, session / "logs", session / "sockets", session.parent, session.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    token = known["ray"]["RAY_AUTH_TOKEN"].encode()
    assert len(token) == 64
    files = [file for file in session.rglob("*") if file.is_file()]
    assert len(files) > 10
    assert not [file for file in files if token in file.read_bytes()]
    assert not (home / ".ray").exists()
    assert known["path"][0] != str(home)
    assert str(home) not in known["path"]


@pytest.mark.soak
def test_its_files_are_where_a_long_tmpdir_says_and_gone_at_the_end(tmp_path):
    place = tmp_path / ("x" * 110)
    place.mkdir()
    with driver(tmp_path, TMPDIR=str(place)) as (known, _):
        session = Path(known["session"])
        assert session.resolve().is_relative_to(place)
        link = session.parents[1]
        assert stat.S_IMODE(session.resolve().parents[1].stat().st_mode) == stat.S_IMODE(link.stat().st_mode) == 0o700
    assert list(place.iterdir()) == []
    assert not link.exists()


@pytest.fixture
def nothing_set(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("letters", [10, 24, 60, 110, 200])
def test_a_socket_of_ray_fits_whatever_the_length_of_tmpdir(nothing_set, tmp_path_factory, monkeypatch, letters):
    base = Path(tmp_path_factory.mktemp("t"))
    place = base / ("x" * (letters - len(str(base)) - 1)) if letters > len(str(base)) + 1 else Path("/tmp")
    place.mkdir(exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(place))
    with private.folder() as folder:
        sockets = Path(folder) / "session_2026-11-27_01-13-22_698712_4194304" / "sockets"
        sockets.mkdir(parents=True)
        assert sockets.resolve().is_relative_to(place.resolve())
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(sockets / "plasma_store"))
    assert not Path(folder).exists()


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
@pytest.mark.parametrize("kind", ["absent", "file", "below a file"])
def test_a_folder_that_cannot_be_used_is_refused_by_name(tmp_path, monkeypatch, variable, kind):
    (tmp_path / "file").write_text("")
    place = tmp_path / {"absent": "none", "file": "file", "below a file": "file/below"}[kind]
    monkeypatch.setenv(variable, str(place))
    with pytest.raises(UsageError) as refused, private.folder():
        pass
    assert refused.value.exit_code == 2
    assert variable in str(refused.value)
    assert str(place) in str(refused.value)


@pytest.mark.parametrize(
    ("given", "joined", "mode", "token"),
    [
        ({}, False, "token", True), ({"RAY_AUTH_MODE": "token"}, False, None, True),
        ({"RAY_AUTH_TOKEN": ""}, False, "token", True), ({"RAY_AUTH_TOKEN": "\n"}, False, "token", True),
        ({"RAY_AUTH_TOKEN": "mine"}, False, "token", False), ({"RAY_AUTH_MODE": "disabled"}, False, None, False),
        ({}, True, None, False), ({"RAY_AUTH_TOKEN": "mine"}, True, "token", False),
        ({"RAY_AUTH_MODE": "token"}, True, None, False),
    ],
)  # fmt: skip
def test_what_the_user_has_set_is_kept_and_put_back(nothing_set, monkeypatch, given, joined, mode, token):
    """Each Ray has another token."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    set_too, other, before = private.variables(joined), private.variables(joined), dict(os.environ)
    assert set_too.get("RAY_AUTH_MODE") == mode
    assert ("RAY_AUTH_TOKEN" in set_too) == token
    if token:
        assert len({set_too["RAY_AUTH_TOKEN"], other["RAY_AUTH_TOKEN"]}) == 2
        assert len(set_too["RAY_AUTH_TOKEN"]) == 64
    with private.environment(set_too | {"HOME": "elsewhere"}):
        assert os.environ["HOME"] == "elsewhere"
        assert set_too.items() <= os.environ.items()
    assert dict(os.environ) == before


@pytest.mark.parametrize("joined", [False, True])
def test_a_token_s_file_is_used_and_one_that_is_absent_or_another_mode_is_refused(
    nothing_set, monkeypatch, tmp_path, joined
):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(UsageError, match="RAY_AUTH_TOKEN_PATH"):
        private.variables(joined)
    (tmp_path / "token").write_text("mine")
    assert private.variables(joined)["RAY_AUTH_MODE"] == "token"
    assert "RAY_AUTH_TOKEN" not in private.variables(joined)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    for mode in ("bogus", "tokens", " token"):
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
        with pytest.raises(UsageError, match="RAY_AUTH_MODE"):
            private.variables(joined)
