"""The CronJob's watch, night.py, against a small API server: what it creates, how long it waits, and how it exits."""

import copy
import datetime
import functools
import http.server
import importlib.util
import json
import socket
import subprocess
import sys
import threading

import pytest
from kuberay_rules import crd_schemas, refused, wrong
from manifests import KUBERNETES, by_name, render

pytestmark = pytest.mark.proof

SCRIPT = KUBERNETES / "base" / "night.py"
PATH = "/apis/ray.io/v1/namespaces/tempscale/rayjobs"
FAILED = "Job entrypoint command failed with exit code {}, last available logs (truncated to 20,000 chars):\nexit code 2\n"


def failed(code):
    return {
        "jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed", "failed": 3,
        "message": FAILED.format(code),
    }  # fmt: skip


class Server(http.server.ThreadingHTTPServer):
    """RayJobs of one namespace. `script` holds what becomes of a job's status, a step a look; the last stays."""

    daemon_threads = True

    def __init__(self, jobs=(), script=(), port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.jobs, self.script = {job["metadata"]["name"]: job for job in jobs}, list(script)
        self.created, self.asked, self.answers, self.tokens = [], [], [], set()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def _send(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, answer):
        """Send what `answer` gives, unless there is trouble."""
        server = self.server
        server.asked.append(f"{self.command} {self.path}")
        server.tokens.add(self.headers["Authorization"])
        trouble = server.answers.pop(0) if server.answers else None
        if trouble == "cut":
            self.connection.close()
        else:
            self._send(*(answer() if trouble is None else (trouble, {"kind": "Status", "message": f"trouble {trouble}"})))

    def do_GET(self):
        self._answer(lambda: self._job(self.path.removeprefix(f"{PATH}/")))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(lambda: self._created(body["metadata"]["name"], body))

    def _job(self, name):
        job, script = self.server.jobs.get(name), self.server.script
        if job is not None and name != "tempscale" and script:
            job["status"] = script.pop(0) if len(script) > 1 else script[0]
        if job is None or job.get("status") == "deleted":
            return 404, {"kind": "Status", "message": f'rayjobs.ray.io "{name}" not found'}
        return 200, job

    def _created(self, name, body):
        if name in self.server.jobs:
            return 409, {"kind": "Status", "reason": "AlreadyExists", "message": f"{name} already exists"}
        self.server.jobs[name] = body
        self.server.created.append(copy.deepcopy(body))
        return 201, body


@pytest.fixture
def account(tmp_path):
    (tmp_path / "namespace").write_text("tempscale")
    (tmp_path / "token").write_text("the-token-of-the-account\n")
    return tmp_path


def loaded():
    spec = importlib.util.spec_from_file_location("night", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def templates(overlay):
    return by_name(render(KUBERNETES / "base" if overlay == "base" else KUBERNETES / "overlays" / overlay))


@pytest.fixture
def night(account, request, capsys, monkeypatch):
    """Runs night.py beside a server with a template; gives (exit code, output, server)."""
    # An API server is never asked through a proxy.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("JOB_NAME", "tempscale-by-hand-2026-11-22")

    def run(*script, jobs=(), answers=(), overlay="base", **options):
        # The template as an API server gives it back: with what it adds itself.
        template = copy.deepcopy(templates(overlay)["RayJob", "tempscale"]) | {
            "status": {"jobDeploymentStatus": "Suspended"}
        }
        template["metadata"] |= {"uid": "1", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}
        server = Server([template, *jobs], script)
        server.answers = list(answers)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        request.addfinalizer(server.server_close)
        request.addfinalizer(server.shutdown)
        options = {"template": "tempscale", "poll": 0.02, "patience": 10, "deadline": 60} | options
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        code = loaded().main([*words, "--account", str(account), "--server", f"http://127.0.0.1:{server.server_port}"])
        out, err = capsys.readouterr()
        assert err == ""
        assert "the-token" not in out
        return code, out, server

    return run


RUNNING = [{}, {"jobDeploymentStatus": "Initializing"}, {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}]
DONE = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}


@pytest.mark.parametrize("overlay", ["base", "cpu", "eks", "gke"])
def test_a_night_is_created_from_the_template_and_its_success_told(night, overlay):
    code, out, server = night(*RUNNING, DONE, overlay=overlay)
    assert code == 0, out
    assert out.splitlines()[-1].endswith("tempscale-2026-11-22: done, and the gate passed")
    for word in ("created", "new", "Initializing", "Running, RUNNING", "Complete, SUCCEEDED"):
        assert word in out
    (job,) = server.created
    assert job["metadata"]["name"] == "tempscale-2026-11-22"
    assert job["metadata"]["labels"] == {"app.kubernetes.io/part-of": "tempscale", "night": "2026-11-22"}
    assert "status" not in job
    assert "suspend" not in job["spec"]
    assert job["spec"]["entrypoint"].endswith("--address auto --night 2026-11-22")
    assert server.asked[:2] == [f"GET {PATH}/tempscale", f"POST {PATH}?fieldValidation=Strict"]
    assert server.tokens == {"Bearer the-token-of-the-account"}
    assert refused(job) == []
    assert wrong(job, crd_schemas()["RayJob"]) == []


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (failed(1), 1, "exit code 1"),
        (failed(2), 2, "exit code 2"),
        (failed(3), 3, "exit code 3"),
        (failed(137), 3, "exit code 137"),
        ({"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded", "message": "has passed"}, 3, "DeadlineExceeded"),
        ({"jobDeploymentStatus": "Failed", "reason": "SubmissionFailed", "message": FAILED.format(1)}, 3, "incomplete"),
        ({"jobDeploymentStatus": "Failed", "reason": "AppFailed", "message": "Ray head pod not found."}, 3, "incomplete"),
        ({"jobDeploymentStatus": "Failed"}, 3, "incomplete"),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, 3, "stopped"),
        ({"jobDeploymentStatus": "ValidationFailed", "message": "The RayJob spec is invalid"}, 2, "spec is invalid"),
        ("deleted", 3, "deleted"),
    ],
)
def test_a_failure_has_the_exit_code_of_the_audit_and_every_other_end_one_of_ours(night, status, code, told):
    returned, out, _ = night(*RUNNING, {"jobDeploymentStatus": "Retrying", "failed": 1}, status)
    assert returned == code, out
    assert told in out
    assert "Retrying, 1 failed" in out
    assert "\nexit code 2" not in out  # The job's log stays with the job.


def test_one_that_is_there_already_is_waited_for(night):
    there = {"metadata": {"name": "tempscale-2026-11-22"}, "status": {"jobDeploymentStatus": "Running"}}
    code, out, server = night(*RUNNING, failed(1), jobs=[there])
    assert code == 1, out
    assert server.created == []


@pytest.mark.parametrize(
    "answers", [[503, None, 500, "cut"], [None, "cut", None, 429, 502], [None, None, None, 504, "cut", 503]]
)
def test_trouble_with_the_api_server_is_waited_out(night, answers):
    code, out, server = night(*RUNNING, DONE, answers=answers)
    assert code == 0, out
    assert out.count("asking again") == len([answer for answer in answers if answer])
    assert len(server.created) == 1


def test_an_answer_that_was_lost_makes_no_second_job(night):
    # The job was created, and the connection broke before that was told.
    there = {"metadata": {"name": "tempscale-2026-11-22"}}
    code, out, server = night(DONE, jobs=[there], answers=[None, "cut"])
    assert code == 0, out
    assert server.created == []


def test_the_deadline_ends_the_watch(night):
    assert night(*RUNNING, deadline=0.5)[0] == 3


def test_an_api_server_that_is_not_there(account):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--template", "tempscale", "--account", account, "--poll", "0.1", "--patience", "0.4"]
    # As the pod runs it: a Python of its own, with nothing but the standard library.
    run = [sys.executable, "-I", "-S", SCRIPT, *words, "--server", f"http://127.0.0.1:{port}"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert done.stderr == ""
    assert "asking again" in done.stdout
    assert "Connection refused" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(("answers", "told"), [([403], "403"), ([None, 403], "POST"), ([None, 422], "422")])
def test_what_no_patience_mends_ends_at_once(night, answers, told):
    code, out, _ = night(DONE, answers=answers)
    assert code == 2
    assert told in out


def test_a_template_that_is_not_there_or_names_a_night_itself(night, account):
    code, out, _ = night(DONE, template="tempscalee")
    assert code == 2
    assert "'tempscalee'" in out
    module = loaded()
    with pytest.raises(module.End, match="--night") as told:
        module.job_of(
            {"spec": {"entrypoint": "tempscale audit --night 2026-11-22"}, "metadata": {"name": "x"}}, "2026-11-23"
        )
    assert told.value.code == 2


def test_the_night_is_the_one_that_was_scheduled():
    module = loaded()
    now = datetime.datetime(2026, 11, 23, 0, 40, tzinfo=datetime.UTC)
    scheduled = int(datetime.datetime(2026, 11, 22, 23, 50, tzinfo=datetime.UTC).timestamp()) // 60
    # A controller of CronJobs names a Job after the minute it was scheduled for.
    assert module.night_of(f"tempscale-{scheduled}", now) == "2026-11-22"
    assert module.night_of("again-2026-11-20", now) == "2026-11-20"
    assert module.night_of("", now) == module.night_of("tempscale-by-hand", now) == "2026-11-23"
    assert module.night_of("tempscale-12345678", now) == "2026-11-23"  # No minute of these days.
    with pytest.raises(module.End, match="2026-02-30"):
        module.night_of("again-2026-02-30", now)


def test_https_trusts_the_clusters_authority_alone(account):
    module = loaded()
    (account / "ca.crt").write_text("not a certificate")
    with pytest.raises(module.ssl.SSLError):
        module.Api("https://127.0.0.1:1", account, 1, 1)
