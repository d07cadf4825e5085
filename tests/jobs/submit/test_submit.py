"""What `tempscale submit` sends, refuses and answers, against a head that is told what to say."""

import datetime
import platform
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from typer.testing import CliRunner

from tempscale_jobs.cli.app import app
from tempscale_jobs.submit import packing, watch

pytestmark = pytest.mark.proof

NIGHT = "2026-11-22"
RUN = ["audit", "--corpus", "s3://corpora/docs.parquet", "--out", "s3://nights/{night}"]


class Head:
    """A head that knows some jobs; of one that is followed it tells one state after another."""

    def __init__(self, *states, jobs=(), logs=("",), versions=None):
        self.states, self.jobs, self.logs, self.told = list(states), list(jobs), list(logs), versions or {}
        self.sent, self.travelled, self.asked = [], {}, 0

    def list_jobs(self):
        return self.jobs

    def versions(self):
        return self.told

    def submit_job(self, **how):
        self.sent.append(how)
        for module in map(Path, how["runtime_env"].get("py_modules", [])):
            if module.name == packing.FOLDER:
                files = (file for file in module.rglob("*") if file.is_file())
                self.travelled = {str(file.relative_to(module)): file.read_text() for file in files}
        return how["submission_id"]

    def get_job_info(self, identifier):
        self.asked += 1
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, BaseException):
            raise state
        return state() if callable(state) else state

    def get_job_logs(self, identifier):
        log = self.logs.pop(0) if len(self.logs) > 1 else self.logs[0]
        if isinstance(log, BaseException):
            raise log
        return log


def job(status, code=None, identifier=None, message="first line\nsecond"):
    return SimpleNamespace(status=status, driver_exit_code=code, submission_id=identifier, message=message)


DONE, RUNNING = job("SUCCEEDED", 0), job("RUNNING")


@pytest.fixture
def told(monkeypatch):
    """Runs `tempscale submit` in this process against a head; its exit code and what it printed."""
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    for variable in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)

    def run(client, *arguments):
        monkeypatch.setattr(watch, "connect", lambda url: client)
        result = CliRunner().invoke(app, ["submit", *map(str, arguments)])
        return SimpleNamespace(code=result.exit_code, out=result.stdout, err=" ".join(result.stderr.split()))

    return run


@pytest.fixture
def night(tmp_path, monkeypatch):
    """A folder with a configuration, a secret and a corpus, beside which the command is given."""
    folder = tmp_path / "conf"
    (folder / "texts" / "old").mkdir(parents=True)
    (folder / "nightly.toml").write_text('[corpus]\nsource = "texts/a.jsonl"\n')
    (folder / "texts" / "a.jsonl").write_text('{"text": "one"}\n')
    (folder / ".env").write_text("TOKEN=never\n")
    monkeypatch.chdir(tmp_path)
    return folder


def words(client):
    """What the job's shell runs after the check, word by word."""
    return shlex.split(client.sent[0]["entrypoint"].rpartition("; exec ")[2])


def accepted(told, *arguments, jobs=()):
    """The head to which `tempscale submit` with these arguments has sent its job."""
    client = Head(DONE, jobs=jobs)
    run = told(client, *arguments)
    assert run.code == 0, run.err
    return client


@pytest.mark.parametrize(
    ("versions", "sent"),
    [
        ({"Ray": ray.__version__, "Python": platform.python_version()}, True), ({}, True), ({"Ray": "", "Python": ""}, True),
        ({"Ray": "2.9.0", "Python": platform.python_version()}, False), ({"Ray": ray.__version__, "Python": "3.9.1"}, False),
    ],
)  # fmt: skip
def test_nothing_is_sent_to_a_cluster_of_another_ray_or_python(told, versions, sent):
    client = Head(DONE, versions=versions)
    run = told(client, "--night", NIGHT, "--", *RUN)
    assert (run.code, bool(client.sent)) == ((0, True) if sent else (2, False)), run.err
    assert sent or "2.9.0" in run.err or "3.9.1" in run.err
    client = Head(DONE, versions=versions)
    assert told(client, "--image-code", "--night", NIGHT, "--", *RUN).code == 0


def test_the_job_is_the_command_with_its_night_and_its_cluster(told):
    client = Head(DONE)
    run = told(client, "--night", NIGHT, "--", *RUN)
    assert run.code == 0, run.err
    assert words(client) == ["python", "-P", "-m", "tempscale_jobs", *RUN, "--night", NIGHT, "--address", "auto"]
    (sent,) = client.sent
    assert sent["metadata"] == {"tempscale": sent["metadata"]["tempscale"], "command": "audit", "night": NIGHT}
    assert "env_vars" not in sent["runtime_env"]
    assert not {"entrypoint_num_cpus", "entrypoint_num_gpus"} & set(sent)
    assert [Path(module).name for module in sent["runtime_env"]["py_modules"]] == ["tempscale", "tempscale_jobs"]
    told_of = (sent["submission_id"], f"--night {NIGHT}", "http://127.0.0.1:8265/#/jobs/", "ray job logs", "ray job stop")
    assert all(named in run.err for named in told_of)
    assert words(accepted(told, "--night", NIGHT, *RUN)) == words(client)  # The dashes may be left out.


@pytest.mark.parametrize(
    "given",
    [
        ["audit", "--corpus", "s3://a b/it's $HOME.parquet", "--model", "one", "--model", "two", "--tau", "1.0",
         "--tau", "0.8", "--max-length", "128", "--alpha", "2.0", "--cosine", "moments", "--out", "s3://n/x", "--fresh",
         "--no-text", "--tune-batches"],
        [*RUN, "--baseline", "latest", "--history", "/shared/record"],
        [*RUN, "--baseline", "s3://nights/2026-11-21"],
        [*RUN, "--baseline", "/shared/nights/good"],
    ],
)  # fmt: skip
def test_arguments_arrive_as_they_were_given(told, given):
    client = accepted(told, "--night", NIGHT, "--", *given)
    sent = words(client)[4:-4]
    assert sorted(sent) == sorted(given)
    assert sent[sent.index("--corpus") + 1] == given[2]
    assert words(accepted(told, "--night", NIGHT, "--", *sent)) == words(client)


def test_two_values_of_one_option_arrive_both_and_in_order(told):
    given = ["--pair", "first id", "second"]
    sent = words(accepted(told, "--", "diagnose", "--corpus", "s3://a/b.parquet", *given, "--out", "/shared/x"))
    assert sent[sent.index("--pair") :][:3] == given


def test_the_configuration_s_folder_travels_without_its_secrets(told, night):
    client = Head(DONE)
    run = told(client, "--", "audit", "conf/nightly.toml", "--out", "/shared/nights/{night}")
    assert run.code == 0, run.err
    assert set(client.travelled) == {"nightly.toml", "texts/a.jsonl"}
    assert words(client)[4:6] == ["audit", "nightly.toml"]
    assert ".env" in run.err
    # A further file has its name below the working directory.
    (night / "taus").mkdir()
    (night / "taus" / "log.toml").write_text("log_length = 64\n")
    given = ("audit", night / "nightly.toml", "--temperature", "conf/taus/log.toml", "--out", "/shared/x")
    assert {"nightly.toml", "taus/log.toml"} <= set(words(accepted(told, "--", *given)))


def test_a_working_directory_that_is_named_travels_whole(told, night):
    (night.parent / "beside.txt").write_text("beside")
    given = ("audit", "conf/nightly.toml", "--corpus", "s3://a/b.parquet", "--out", "/s/x")
    client = accepted(told, "--working-dir", night.parent, "--", *given)
    assert set(client.travelled) == {"beside.txt", "conf/nightly.toml", "conf/texts/a.jsonl"}
    assert "conf/nightly.toml" in words(client)


def test_with_the_image_s_code_nothing_travels(told, night):
    assert accepted(told, "--image-code", "--", *RUN).sent[0]["runtime_env"] == {}
    given = ("audit", night / "nightly.toml", "--out", "/s")
    with_files = accepted(told, "--image-code", "--working-dir", night, "--", *given)
    assert [Path(module).name for module in with_files.sent[0]["runtime_env"]["py_modules"]] == [packing.FOLDER]
    baked = accepted(told, "--image-code", "--", *given, "--corpus", "s3://a/b.parquet")
    assert str(night / "nightly.toml") in words(baked)
    assert baked.sent[0]["runtime_env"] == {}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("", "audit"),
        ("-- report /some/run", "tempscale report"),
        ("-- audti", "audti"),
        ("-- audit --smaple 3", "--smaple"),
        ("-- audit --tau 0", "0.0"),
        ("-- audit", "--out 'runs/audit'"),
        ("-- tune --corpus s3://a/b --out tuned", "--out 'tuned'"),
        ("-- RUN --cache cache", "--cache 'cache'"),
        ("-- RUN --history record", "--history 'record'"),
        ("-- RUN --baseline conf", "'conf'"),
        ("-- RUN --plan", "--plan"),
        ("-- RUN --night 20261122", "--night '20261122'"),
        ("--night 22.11.2026 -- RUN", "--night '22.11.2026'"),
        ("--night 2026-11-23 -- RUN --night 2026-11-22", "2026-11-23"),
        ("--working-dir none -- RUN", "--working-dir 'none'"),
        ("--address ray://head:10001 -- RUN", "--address 'ray://head:10001'"),
        ("-- audit --corpus s3://a/b.parquet --out /x --temperature t.toml", "--working-dir"),
        ("--image-code -- audit conf/nightly.toml --out /x", "--image-code"),
        ("-- audit conf/nightly.toml --corpus here.jsonl --out /x", "'here.jsonl'"),
        ("-- audit --corpus *.jsonl --out /x", "'*.jsonl'"),
        ("-- audit --corpus conf/texts --out /x", "'conf/texts'"),
        ("-- audit conf/.hidden.toml --out /x", "'conf/.hidden.toml'"),
        ("--working-dir conf/texts -- audit conf/nightly.toml --corpus s3://x --out /x", "nightly.toml"),
        ("-- audit conf/ignored.toml --out /x", "'secrets/a.jsonl'"),
        ("-- audit conf/verified.toml --out /x", "'secrets/model'"),
        ("-- audit --corpus s3://a/b.parquet --what-if model:conf --out /x", "'conf'"),
        *[
            (f"-- verify --embeddings s3://a/b.parquet {option} conf --out /x", "'conf'")
            for option in ("--model", "--texts", "--candidate", "--earlier")
        ],
    ],
)
def test_what_cannot_run_as_a_job_is_told_here_with_exit_code_2(told, night, given, named):
    (night.parent / "here.jsonl").write_text('{"text": "one"}\n')
    (night.parent / "t.toml").write_text("log_length = 64\n")
    (night / ".hidden.toml").write_text("")
    (night / "secrets").mkdir()
    (night / "secrets" / "a.jsonl").write_text("{}")
    (night / "ignored.toml").write_text('[corpus]\nsource = "secrets/a.jsonl"\n')
    (night / "secrets" / "model").mkdir()
    (night / "secrets" / "model" / "config.json").write_text("{}")
    (night / "verified.toml").write_text(
        '[corpus]\nsource = "s3://a/b"\nembedding_column = "v"\n[verify]\nmodel = "secrets/model"\n'
    )
    (night / ".gitignore").write_text("secrets/\n")
    client = Head(DONE)
    run = told(client, *given.replace("RUN", " ".join(RUN)).split())
    assert run.code == 2, run.err
    assert not client.sent
    assert "unexpected" not in run.err
    assert named in run.err


def test_an_address_with_a_password_is_not_written_into_a_job(told):
    for secret in ("https://name:hunter2@host/x.jsonl", "https://host/x.jsonl?X-Amz-Signature=hunter2"):
        client = Head(DONE)
        run = told(client, "--", "audit", "--corpus", secret, "--out", "/shared/x")
        assert run.code == 2
        assert "hunter2" not in run.err + run.out
        assert not client.sent


def sent_by(told, *arguments, night=NIGHT):
    return accepted(told, "--night", night, "--", *arguments).sent[0]["submission_id"]


def test_the_name_tells_corpus_and_night_and_changes_with_what_is_run(told):
    first = sent_by(told, *RUN)
    assert first.startswith(f"tempscale-docs-{NIGHT}-")
    assert len(first.rpartition("-")[2]) == 8
    assert sent_by(told, *RUN) == first
    assert sent_by(told, *RUN, "--workers", "3") == first  # How wide it runs is not what is run.
    others = [
        sent_by(told, *RUN, night="2026-11-23"), sent_by(told, *RUN, "--tau", "0.7"), sent_by(told, *RUN[:4], "s3://other/x"),
        sent_by(told, "audit", "--corpus", "s3://corpora/other.parquet", *RUN[3:]),
        sent_by(told, "diagnose", *RUN[1:]),
    ]  # fmt: skip
    assert len({first, *others}) == 6


@pytest.mark.parametrize(
    ("arguments", "slug"),
    [
        (["audit", "--corpus", "docstrings:scipy,torch"], "scipy-torch"),
        (["audit", "--corpus", "s3://bucket/My Texts/{night}/*.parquet"], "my-texts"),
        (["audit", "--corpus", "hf:org/Some_Set:en:test"], "some-set"),
        (["evaluate", "--task", "MTEB(eng, v2)"], "mteb-eng-v2"),
        (["pairs", "--pairs", "/data/pairs.csv.gz"], "pairs"),
    ],
)
def test_the_name_is_readable(told, arguments, slug):
    name = sent_by(told, *arguments, "--out", "/shared/x")
    assert name.rpartition("-")[0] == f"tempscale-{slug}-{NIGHT}"


def test_the_night_is_today_in_utc_unless_it_is_given(told):
    today = datetime.datetime.now(datetime.UTC).date()
    found = accepted(told, "--", *RUN).sent[0]["metadata"]["night"]
    assert found in {str(today), str(datetime.datetime.now(datetime.UTC).date())}
    inner = accepted(told, "--", *RUN, "--night", NIGHT)
    assert inner.sent[0]["metadata"]["night"] == NIGHT
    assert words(inner).count("--night") == 1


def test_a_command_without_nights_is_given_the_date_in_its_folder(told):
    given = ["pairs", "--pairs", "s3://a/b.csv", "--out", "s3://nights/{night}/pairs"]
    sent = words(accepted(told, "--night", NIGHT, "--", *given))
    assert f"s3://nights/{NIGHT}/pairs" in sent
    assert "--night" not in sent


@pytest.mark.parametrize(
    ("status", "code", "refused"),
    [
        ("PENDING", None, "pending"),
        ("RUNNING", None, "running"),
        ("SUCCEEDED", 0, "--again"),
        ("FAILED", 1, "--again"),
        ("FAILED", 2, None),
        ("FAILED", 3, None),
        ("FAILED", -9, None),
        ("FAILED", None, None),
        ("STOPPED", None, None),
    ],
)
def test_a_night_is_submitted_once_and_again_only_where_it_did_not_end(told, status, code, refused):
    """What is done is submitted again with --again, what goes on never; with --join, too, if there is nothing to join."""
    name = sent_by(told, *RUN)
    jobs = [job(status, code, name), job("RUNNING", None, f"{name}0"), job("RUNNING", None, None)]
    is_refused = {(): refused is not None, ("--again",): refused in ("pending", "running")}
    if refused is None:
        is_refused["--join",] = False
    for options, expected in is_refused.items():
        client = Head(DONE, jobs=jobs)
        run = told(client, *options, "--night", NIGHT, "--", *RUN)
        assert run.code == (2 if expected else 0), run.err
        assert name in run.err
        assert not expected or refused in run.err
        assert [sent["submission_id"] for sent in client.sent] == ([] if expected else [f"{name}-2"])


def test_the_attempts_of_a_night_are_counted_on(told):
    name = sent_by(told, *RUN)
    earlier = [job("FAILED", 3, f"{name}-9"), job("SUCCEEDED", 0, f"{name}-10"), job("FAILED", 3, name)]
    for jobs, option, expected in ((earlier, "--again", f"{name}-11"), ([], "--join", name)):
        client = accepted(told, "--night", NIGHT, option, "--", *RUN, jobs=jobs)
        assert [sent["submission_id"] for sent in client.sent] == [expected]


@pytest.mark.parametrize(("status", "code"), [("RUNNING", None), ("PENDING", None), ("SUCCEEDED", 0), ("FAILED", 1)])
def test_a_job_that_is_there_is_joined_on_request(told, status, code):
    name = sent_by(told, *RUN)
    client = Head(job("FAILED", 1), jobs=[job("FAILED", 3, name), job(status, code, f"{name}-2")])
    run = told(client, "--night", NIGHT, "--join", "--", *RUN)
    assert run.code == 1
    assert f"{name}-2" in run.err
    assert not client.sent


def test_of_two_submits_at_once_one_is_refused(told):
    client = Head(DONE)

    def too_late(**_):
        raise RuntimeError("Request failed with status code 400: Job with submission_id x already exists.")

    client.submit_job = too_late
    run = told(client, "--", *RUN)
    assert run.code == 2
    assert "Traceback" not in run.err


def test_a_head_that_has_just_started_is_tried_again_for_a_while(told, monkeypatch):
    client = Head(DONE)
    submit_job, tries = client.submit_job, []

    def not_yet(**how):
        tries.append(how)
        if len(tries) < 3:
            raise RuntimeError("status code 500: No available agent to submit job, please try again later.")
        return submit_job(**how)

    client.submit_job = not_yet
    assert told(client, "--", *RUN).code == 0
    assert len(tries) == 3
    tries.clear()
    monkeypatch.setattr(watch, "PATIENCE_SECONDS", 0.0)
    assert told(client, "--", *RUN).code == 2
    assert len(tries) == 1


@pytest.mark.parametrize(
    ("status", "code", "expected", "told_word"),
    [
        ("SUCCEEDED", 0, 0, "exit code 0"),
        ("SUCCEEDED", None, 0, "exit code 0"),
        ("FAILED", 1, 1, "exit code 1"),
        ("FAILED", 2, 2, "exit code 2"),
        ("FAILED", 3, 3, "exit code 3"),
        ("FAILED", 0, 3, "incomplete"),
        ("FAILED", 137, 3, "137"),
        ("FAILED", -9, 3, "-9"),
        ("FAILED", None, 3, "first line"),
        ("STOPPED", None, 3, "stopped"),
        ("STOPPED", 0, 3, "stopped"),
    ],
)
def test_the_exit_code_is_the_job_s_own(told, status, code, expected, told_word):
    run = told(Head(job("PENDING"), RUNNING, job(status, code)), "--", *RUN)
    assert run.code == expected
    assert told_word in run.err
    assert "second" not in run.err


def test_detached_it_prints_the_name_and_waits_for_nothing(told):
    client = Head(DONE)
    run = told(client, "--detach", "--", *RUN)
    assert run.code == 0
    assert run.out.strip() == client.sent[0]["submission_id"]
    assert client.asked == 0


def test_the_log_is_shown_once_and_whole_and_its_end_is_waited_for(told):
    whole = "".join(f"line {number}\n" for number in range(9)) + "without an end"
    logs = ["", whole[:10], RuntimeError("500"), whole[:10], whole[:33], ConnectionError("gone"), whole[:50], whole]
    for client in (Head(*[RUNNING] * 7, DONE, logs=logs), Head(DONE, logs=[RuntimeError("500")] * 2 + [whole])):
        run = told(client, "--", *RUN)
        assert (run.code, run.out) == (0, whole + "\n")
    assert told(Head(DONE, logs=[RuntimeError("500")]), "--", *RUN).code == 0  # The status decides, not the log.


def test_a_head_may_be_away_for_a_while(told):
    away = [ConnectionError("refused"), RuntimeError("status code 503"), TimeoutError("late"), ValueError("no JSON")]
    assert told(Head(RUNNING, *away, RUNNING, DONE), "--", *RUN).code == 0


@pytest.mark.parametrize("lost", [ConnectionError("refused"), RuntimeError("status code 404: Job x does not exist.")])
def test_a_head_that_stays_away_is_lost(told, monkeypatch, lost):
    """A new head that knows nothing of the job is an end, too."""
    monkeypatch.setattr(watch, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.01)
    client = Head(RUNNING, lost)
    assert told(client, "--", *RUN).code == 3
    assert (client.asked == 2) == ("404" in str(lost))


def test_a_quiet_job_is_told_of_and_a_large_log_is_fetched_less_often(told, monkeypatch):
    monkeypatch.setattr(watch, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(watch, "LOG_BYTES_A_SECOND", 1)
    client = Head(*[RUNNING] * 20, DONE, logs=["a log\n"])
    fetched, fetch = [], client.get_job_logs
    client.get_job_logs = lambda identifier: fetched.append(identifier) or fetch(identifier)
    run = told(client, "--", *RUN)
    assert run.out == "a log\n"
    assert len(fetched) == 2  # The first, and the last.
    assert "running for 0 s" in run.err


def test_an_interrupt_leaves_the_job_running_and_says_how_to_follow_and_stop_it(told):
    client = Head(RUNNING, KeyboardInterrupt(), DONE)
    run = told(client, "--", *RUN)
    assert run.code == 3
    assert "ray job logs" in run.err
    assert "ray job stop" in run.err


def test_too_large_a_folder_is_refused_and_its_largest_entries_are_named(told, night, monkeypatch):
    (night / "texts" / "b.jsonl").write_text("x" * 900)
    (night / "model.bin").write_text("x" * 300)
    (night / ".cache").write_text("x" * 9000)
    monkeypatch.setattr(packing, "MOST_BYTES", 1000)
    client = Head(DONE)
    run = told(client, "--", "audit", "conf/nightly.toml", "--out", "/shared/x")
    assert run.code == 2
    assert re.search(r"texts 916 .*model\.bin 300 .*nightly\.toml", run.err)
    assert not client.sent


def test_a_home_is_not_packed(told, night, monkeypatch):
    given = ("--", "audit", "conf/nightly.toml", "--out", "/shared/x")
    codes = []
    for home in (night.parent / "home", night):
        monkeypatch.setenv("HOME", str(home))
        codes.append(told(Head(DONE), *given).code)
    assert codes == [0, 2]
