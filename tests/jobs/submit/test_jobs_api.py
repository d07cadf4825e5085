"""`tempscale submit` on a real cluster of three nodes with token authentication, through Ray's own Jobs API.

The cluster lives in a process of its own (this file, run as a script) and knows nothing of this checkout: what runs there is
what was sent.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import planted
import psutil
import pytest
from whole_run import as_lines, digests, documented

ROOT = Path(__file__).resolve().parents[3]
NIGHT, PATIENCE = "2026-11-22", 600
pytestmark = [
    pytest.mark.proof,
    pytest.mark.timeout(1500),
]  # Whole runs on a cluster of three nodes, beside other tests on two cores.
SECRETS = {
    "RAY_AUTH_TOKEN": "unmistakable-ray-token-5b1f", "AWS_SECRET_ACCESS_KEY": "unmistakable-aws-key-77c0",
    "TEMPSCALE_WEBHOOK": "http://127.0.0.1:9/unmistakable-webhook-e2a4", "HF_TOKEN": "unmistakable-hub-token-90dd",
}  # fmt: skip


def serve(port, agent_port, temporary):
    """A cluster that does what it is told, line by line.

    Its files lie in a folder of its own: to Ray a job's cluster is the newest of the folder, and other tests start others.
    """
    from ray._private.utils import write_ray_address
    from ray.cluster_utils import Cluster

    def start():
        head = {
            "num_cpus": 1, "object_store_memory": 150 << 20, "include_dashboard": True, "dashboard_host": "127.0.0.1",
            "dashboard_port": int(port), "dashboard_agent_listen_port": int(agent_port), "temp_dir": temporary,
        }  # fmt: skip
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=150 << 20)
        # As `ray start` does; `Cluster` does it for /tmp/ray only.
        write_ray_address(cluster.head_node.gcs_address, temporary)
        return cluster

    def works(node):
        (raylet,) = node.all_processes["raylet"]
        return sum("ModelActor" in " ".join(child.cmdline()) for child in psutil.Process(raylet.process.pid).children())

    os.makedirs("/tmp/ray", exist_ok=True)  # `Cluster` leaves its address there too, and fails where nothing has been.
    try:
        cluster = start()
    except Exception:  # Ray gives its processes half a minute to start, which a busy machine may need for something else.
        cluster = start()
    print(cluster.head_node.get_session_dir_path(), flush=True)
    for line in sys.stdin:
        if line.strip() == "restart":
            cluster.shutdown()
            cluster = start()
            print(cluster.head_node.get_session_dir_path(), flush=True)
        else:
            node = max(cluster.worker_nodes, key=works)
            hit = works(node)
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(num_cpus=1, object_store_memory=150 << 20)
            print(hit, flush=True)
    cluster.shutdown()


class Head:
    """The cluster from outside."""

    def __init__(self, folder, model):
        self.folder, self.model = folder, model
        ports = []
        for _ in range(2):
            with socket.socket() as found:
                found.bind(("127.0.0.1", 0))
                ports.append(str(found.getsockname()[1]))
        self.url = f"http://127.0.0.1:{ports[0]}"
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHONPATH"))}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = ours | SECRETS | {"RAY_AUTH_MODE": "token", "PATH": path, "HOME": str(folder), "COLUMNS": "200"}
        self.temporary = tempfile.mkdtemp(prefix="ray-")  # Short: sockets lie in it, and their paths have 107 letters.
        self.log = open(folder / "cluster.log", "wb")  # noqa: SIM115 - the child's
        self.process = subprocess.Popen(
            [sys.executable, __file__, *ports, self.temporary], env=self.environment | {"PYTHONPATH": str(ROOT / "tests")},
            cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, start_new_session=True,
        )  # fmt: skip
        self.sessions = [self._line()]
        (folder / "conf").mkdir()
        (folder / "conf" / ".env").write_text("unmistakable-file-3c3c")
        self.marks = folder / "planted"
        planted.plant(folder / "conf", self.marks)  # They travel with the configurations.
        texts = [text | {"text": text["text"][:300]} for text in documented("pyarrow")[:72]]
        (folder / "texts.jsonl").write_text(as_lines(texts))

    def _line(self):
        line = self.process.stdout.readline().strip()
        assert line, (self.folder / "cluster.log").read_text()[-3000:]
        return line

    def tell(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        answer = self._line()
        if what == "restart":
            self.sessions.append(answer)
        return answer

    def config(self, name, corpus="texts.jsonl", workers=1, more=""):
        """The configuration of a night whose run folder is called so."""
        (self.folder / "conf" / f"{name}.toml").write_text(
            f'out = "{self.folder}/nights/{name}"\ncorpus = {{source = "{self.folder}/{corpus}"}}\n'
            f'embedding = {{models = ["{self.model}"], shard_texts = 4, max_length = 64}}\n'
            f"analysis = {{socm_sample = 0, probe_sample = 0, neighbours = 3}}\nexecution = {{workers = {workers}}}\n{more}"
        )
        return f"conf/{name}.toml"

    def start(self, *arguments, **environment):
        """`tempscale submit` under way, its output in one file."""
        environment = {name: value for name, value in (self.environment | environment).items() if value is not None}
        command = [sys.executable, "-m", "tempscale_jobs", "submit", "--address", self.url, "--night", NIGHT, *arguments]
        with open(self.folder / f"submit-{time.monotonic_ns()}.log", "w+b") as log:
            process = subprocess.Popen(
                command, env=environment | {"PYTHONPATH": str(ROOT)}, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )
        return process, Path(log.name)

    def submit(self, expected, *arguments, **environment):
        """What it printed until it ended with the expected exit code."""
        return self.end(expected, *self.start(*arguments, **environment))

    def end(self, expected, process, log):
        try:
            code = process.wait(PATIENCE)
        finally:
            process.kill()
        printed = log.read_text("utf-8")
        assert code == expected, printed[-3000:]
        return printed

    def jobs(self):
        """What Ray tells of its jobs, by submission id."""
        asked = urllib.request.Request(
            f"{self.url}/api/jobs/", headers={"Authorization": f"Bearer {SECRETS['RAY_AUTH_TOKEN']}"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return {job["submission_id"]: job for job in json.load(answer) if job["submission_id"]}

    def out(self, name):
        return self.folder / "nights" / name

    def until_begun(self, name, process, log):
        """Wait until a run has left its first embeddings: it is in its middle."""
        deadline = time.monotonic() + PATIENCE
        while not list(self.out(name).glob("texts/**/part-*.parquet")):
            assert process.poll() is None, log.read_text("utf-8")[-3000:]
            assert time.monotonic() < deadline, log.read_text("utf-8")[-3000:]
            time.sleep(0.05)
        assert not (self.out(name) / "run.json").exists()

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.log.close()
            shutil.rmtree(self.temporary, ignore_errors=True)


@pytest.fixture(scope="module")
def head(tmp_path_factory, small_model):
    found = Head(tmp_path_factory.mktemp("cluster"), small_model)
    yield found
    found.close()


@pytest.fixture(scope="module")
def undisturbed(head):
    """A night that nothing happens to but a second submit: what both printed, and the bytes of its tables."""
    config = head.config("undisturbed")
    process, log = head.start("--", "audit", config)
    deadline = time.monotonic() + PATIENCE
    while "submitted" not in log.read_text("utf-8") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    second = head.submit(2, "--", "audit", config)
    printed = head.end(0, process, log)
    return printed, second, digests(head.out("undisturbed"))


def identifier(printed):
    return re.search(r"^submitted (\S+)", printed, re.M)[1].rstrip(":")


def test_a_night_runs_on_the_cluster_and_ends_with_0(head, undisturbed):
    printed, _, found = undisturbed
    job = head.jobs()[identifier(printed)]
    assert (job["status"], job["driver_exit_code"]) == ("SUCCEEDED", 0)
    assert job["metadata"] == {"tempscale": job["metadata"]["tempscale"], "command": "audit", "night": NIGHT}
    assert not job["runtime_env"].get("env_vars")
    assert len(found) >= 10
    assert (head.out("undisturbed") / "report.html").exists()
    assert printed.count("read the corpus") == printed.count("/report.html") == 1  # The log, once, to its end.
    # What ran is what was sent.
    sent = {Path(session) / "runtime_resources" / "py_modules_files" for session in head.sessions}
    assert any(list(folder.glob("*/tempscale_jobs/submit/watch.py")) for folder in sent)
    # What lies beside a configuration was sent too, and nobody imported it.
    assert any(list(folder.glob("*/tempscale_job_files/polars/__init__.py")) for folder in sent)
    assert sorted(head.marks.iterdir()) == []


def test_a_second_submit_of_a_night_is_refused(head, undisturbed):
    printed, second, _ = undisturbed
    assert all(named in second for named in (identifier(printed), "--join", "ray job logs"))
    third = head.submit(2, "--", "audit", "conf/undisturbed.toml")
    assert "--again" in third
    assert len([name for name in head.jobs() if name.startswith(identifier(printed))]) == 1


def test_a_failed_gate_ends_with_1(head, undisturbed):
    """Thresholds are no part of what is run: the finished night is judged anew."""
    config = head.config("undisturbed", more='gate = {thresholds = ["cosine_mean <= -1"]}\n')
    printed = head.submit(1, "--again", "--", "audit", config)
    assert head.jobs()[identifier(printed)]["driver_exit_code"] == 1
    assert identifier(printed) == f"{identifier(undisturbed[0])}-2"


def test_a_corpus_that_is_not_there_ends_with_2(head):
    printed = head.submit(2, "--", "audit", head.config("absent", corpus="none.jsonl"))
    assert "none.jsonl'" in printed


@pytest.mark.soak
def test_a_killed_driver_ends_with_3_and_the_next_attempt_finishes_the_same_run(head, undisturbed):
    config = head.config("killed")
    process, log = head.start("--", "audit", config)
    head.until_begun("killed", process, log)
    first = identifier(log.read_text("utf-8"))
    os.kill(int(head.jobs()[first]["driver_info"]["pid"]), signal.SIGKILL)
    printed = head.end(3, process, log)
    assert "-9" in printed
    begun = (head.out("killed") / "begun.json").read_bytes()
    printed = head.submit(0, "--", "audit", config)
    assert identifier(printed) == f"{first}-2"
    assert (head.out("killed") / "begun.json").read_bytes() == begun
    assert digests(head.out("killed")) == undisturbed[2]


@pytest.mark.soak
def test_a_node_that_is_taken_away_in_the_middle_of_a_night_changes_no_byte(head, undisturbed):
    process, log = head.start("--", "audit", head.config("spot", workers=2))
    head.until_begun("spot", process, log)
    assert int(head.tell("kill a node")) >= 1  # One that embedded.
    head.end(0, process, log)
    assert digests(head.out("spot")) == undisturbed[2]


def test_a_missing_and_a_wrong_token_are_one_sentence_and_exit_code_2(head):
    cases = {"none": {"RAY_AUTH_TOKEN": None}, "another": {"RAY_AUTH_TOKEN": "another"}}
    for given, environment in cases.items():
        printed = head.submit(2, "--", "audit", head.config("refused"), **environment)
        assert f"was given {given}" in printed
        assert len(printed.strip().splitlines()) == 1
    head.submit(2, "--", "audit", head.config("refused"), RAY_AUTH_MODE="disabled")
    token = head.folder / "token"
    token.write_text(SECRETS["RAY_AUTH_TOKEN"])
    by_file = {"RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": str(token)}
    printed = head.submit(2, "--", "audit", head.config("undisturbed"), **by_file)
    assert "--again" in printed  # Let in: it knows of the night.


@pytest.mark.soak
def test_a_new_head_in_the_middle_of_a_night_and_the_next_submit_finishes_the_same_run(head, undisturbed):
    config = head.config("lost")
    process, log = head.start("--", "audit", config)
    head.until_begun("lost", process, log)
    head.tell("restart")
    head.end(3, process, log)
    head.submit(0, "--", "audit", config)
    assert digests(head.out("lost")) == undisturbed[2]


def test_no_secret_of_the_environment_is_written_anywhere(head, undisturbed):
    """After all that: the jobs as Ray tells of them, everything printed, every file of the runs, Ray's own logs."""
    secrets = [*SECRETS.values(), "unmistakable-file-3c3c"]
    found = [("jobs", secret) for secret in secrets if secret in json.dumps(head.jobs())]
    searched = 0
    for place in (head.out(""), *head.folder.glob("submit-*.log"), *map(Path, head.sessions)):
        for file in [place] if place.is_file() else place.rglob("*"):
            if file.is_file() and not file.is_symlink():
                searched += 1
                data = file.read_bytes()
                found += [(str(file), secret) for secret in secrets if secret.encode() in data]
    assert searched > 200
    assert not found


if __name__ == "__main__":
    serve(*sys.argv[1:])
