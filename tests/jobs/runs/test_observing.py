"""What machines see of a run: JSON lines with its id, a status file for whoever polls, metrics of the cluster."""

import json
import os
import subprocess
import sys

import pytest
from whole_run import as_lines, as_toml, documented, read_record

from tempscale_jobs.runs import observing
from tempscale_jobs.runs.observing import JsonLines, RayMetrics, Slow, StatusFile
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.proof

RUN = ("abc123", "2026-11-22")


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tempscale_jobs", *arguments], capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )  # fmt: skip


@pytest.fixture(scope="module")
def night(tmp_path_factory, small_model, ray_address):
    """The id of a night that fails its gate, its JSON lines and its status file; and the same again without its corpus."""
    folder = tmp_path_factory.mktemp("json")
    (folder / "corpus.jsonl").write_text(as_lines(documented("pyarrow")[:40]))
    asked = {
        "out": f"{folder}/{{night}}", "corpus": {"source": f"{folder}/corpus.jsonl"},
        "embedding": {"models": [small_model], "temperatures": [1.0]}, "analysis": {"socm_sample": 0, "probe_sample": 0},
        "gate": {"thresholds": ["texts >= 1000"]},
    }  # fmt: skip
    (folder / "night.toml").write_text(as_toml(asked))
    arguments = ["audit", str(folder / "night.toml"), "--night", "2026-11-22", "--log-format", "json"]
    arguments += ["--workers", "1", "--address", ray_address]
    first, out = command(*arguments), folder / "2026-11-22"
    status = json.loads((out / "status.json").read_text())
    (folder / "corpus.jsonl").unlink()
    return read_record(out)["run"], first, status, command(*arguments)


def test_every_line_is_json_and_from_its_beginning_on_names_the_run(night):
    run, ended, status, again = night
    assert (ended.returncode, ended.stdout) == (1, "")
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    first = next(place for place, line in enumerate(lines) if line["run"] is not None)
    assert first <= 2  # Nothing but the command itself comes before it is known which run this is.
    assert {(line["run"], line["night"]) for line in lines[first:]} == {(run, "2026-11-22")}
    stages = [line["stage"] for line in lines if line["event"] == "done"]
    assert stages[0] == "read the corpus"
    assert {"cosine, τ 1.0", "gate", "report"} <= set(stages)
    assert lines[-1]["event"] == "complete"
    assert all(named in lines[-1]["message"] for named in ("texts", "tiny-bert", "40"))
    assert (status["state"], status["run"], status["slow"]) == ("complete", run, [])
    assert status["message"] == lines[-1]["message"]
    assert again.returncode == 2
    last = json.loads(again.stderr.splitlines()[-1])
    assert last["event"] == "failed"
    assert "corpus.jsonl" in last["message"]


def test_the_status_file_is_written_now_and_then_and_never_in_the_way(tmp_path, monkeypatch):
    status = StatusFile()
    status.stage("before it is known which run this is", 3)
    status.follow(*RUN, Storage(str(tmp_path)))
    read = lambda: json.loads((tmp_path / "status.json").read_text())  # noqa: E731
    assert (read()["state"], read()["run"]) == ("running", "abc123")
    status.stage("embed", 100)
    status.progress(40)
    assert (read()["stage"], read()["done"]) == ("embed", 0)  # Written a moment ago.
    monkeypatch.setattr(observing, "STATUS_SECONDS", {True: 0.0})
    status.progress(50)
    assert (read()["stage"], read()["done"], read()["total"]) == ("embed", 50, 100)
    monkeypatch.setattr(observing, "STATUS_SECONDS", {True: 1000.0})
    status.slow([Slow("shard 7", 812.3, 9.21)], [])  # Which pieces there are is written at once.
    assert read()["slow"] == [{"piece": "shard 7", "seconds": 812, "median_seconds": 9.2}]
    status.slow([Slow("shard 7", 822.3, 9.21)], [])
    assert read()["slow"][0]["seconds"] == 812
    status.slow([], [])
    assert read()["slow"] == []
    status.slow([Slow("shard 7", 812.3, 9.21)], [])
    status.stage("cosine", 10)  # It has none of the last stage's.
    assert (read()["stage"], read()["slow"]) == ("cosine", [])
    status.follow("another", "2026-11-23", Storage(str(tmp_path / "inner")))  # A run inside the run.
    assert not (tmp_path / "inner").exists()
    status.end("incomplete", "the disk is full")
    assert (read()["run"], read()["state"], read()["message"]) == ("abc123", "incomplete", "the disk is full")
    monkeypatch.setattr(Storage, "write_json", lambda *_, **__: (_ for _ in ()).throw(OSError("gone")))
    status.progress(60)


def test_progress_of_a_long_stage_is_told_now_and_then(capsys, monkeypatch):
    lines = JsonLines()
    lines.follow(*RUN, Storage("unused"))
    lines.stage("embed", 10)
    lines.progress(3)
    monkeypatch.setattr(observing, "LINE_SECONDS", 0.0)
    lines.progress(5)
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["done"], line["total"]) for line in told] == [("begin", 0, 10), ("progress", 5, 10)]


def test_metrics_are_silent_where_ray_does_not_run(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    metrics = RayMetrics()
    metrics.stage("cosine, τ 1.0", 10)
    metrics.count("pairs", 3)
    assert metrics.metrics == {}


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="Ray's metrics agent is asked on Linux")
def test_prometheus_reads_them_from_ray():
    """A Ray of its own with its dashboard agent, asked as Prometheus would."""
    code = f"""
import os, sys, time, urllib.request
sys.path[:0] = {sys.path!r}
os.environ |= {{"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}}
import ray
ray.init(address="local", num_cpus=1, include_dashboard=True, dashboard_port=0, log_to_driver=False)
from tempscale_jobs.runs.observing import RayMetrics, Slow
from tempscale_jobs.runs.storage import Storage
metrics = RayMetrics()
metrics.follow("abc123", "2026-11-22", Storage("unused"))
metrics.stage("cosine, τ 1.0", 10)
metrics.slow([Slow("tile 3, 4", 812.0, 9.0)], [])
for unit, number in (("texts", 7), ("pairs", 21), ("rejected", 2), ("cache_hits", 5)):
    metrics.count(unit, number)
node = ray.nodes()[0]
address = f"http://{{node['NodeManagerAddress']}}:{{node['MetricsExportPort']}}/metrics"
for _ in range(60):
    text = urllib.request.urlopen(address, timeout=10).read().decode()
    if "slow_pieces" in text and "cache_hits" in text: break
    time.sleep(1)
print("\\n".join(line for line in text.splitlines() if "tempscale_" in line and not line.startswith("#")))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180)
    found = {line.split("{")[0].removeprefix("ray_"): line for line in ended.stdout.splitlines()}
    for name, value in (("texts", 7), ("pairs", 21), ("rejected", 2), ("cache_hits", 5)):
        line = found[f"tempscale_{name}_total"]
        assert 'run="abc123"' in line
        assert float(line.rsplit(" ", 1)[1]) == value
    assert 'stage="cosine, tau 1.0"' in found["tempscale_stage"]
    assert float(found["tempscale_slow_pieces"].rsplit(" ", 1)[1]) == 1
