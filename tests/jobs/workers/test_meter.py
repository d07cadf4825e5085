"""What workers count for Ray's metrics: by run, model and step, and never at the cost of the work."""

import logging

import pytest
import ray
from ray.util import metrics as ray_metrics

from tempscale_jobs.runs import observing
from tempscale_jobs.runs.observing import RayMetrics, StatusFile, Work
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import cluster, meter
from tempscale_jobs.workers.meter import COUNTERS, Meter, Turn


class Told:
    """Stands for a metric of Ray, and keeps what it is told."""

    def __init__(self):
        self.told = []

    def inc(self, amount, labels):
        self.told.append((amount, labels))

    set = inc


@pytest.fixture
def counters(monkeypatch):
    """The counters by name, in a process in which Ray runs."""
    kept = {f"tempscale_worker_{name}_total": Told() for name in COUNTERS}
    monkeypatch.setattr(ray_metrics, "Counter", lambda name, *described: kept[name])
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    meter._counter.cache_clear()
    yield dict(zip(COUNTERS, kept.values(), strict=True))
    meter._counter.cache_clear()


def test_what_is_counted_has_its_run_model_and_step(counters):
    own = Meter("abc123", "modèle τ")
    own.step = "embed_shard"
    own.add("texts", 256)
    own.add("tokens", 0)
    labels = {"run": "abc123", "model": "mod?le tau", "step": "embed_shard"}
    assert counters["texts"].told == [(256, labels)]
    assert counters["tokens"].told == []


def test_a_metric_that_fails_or_has_no_ray_costs_nothing(counters, monkeypatch):
    monkeypatch.setattr(counters["texts"], "inc", lambda amount, labels: 1 / 0)
    Meter("abc123", "m").add("texts", 1)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    Meter("abc123", "m").add("texts", 1)


def test_the_time_of_a_model_is_that_in_its_turn_and_what_is_between_it_waited(counters, monkeypatch):
    times = iter([10.0, 13.0, 15.0, 15.5, 16.0])
    monkeypatch.setattr(meter.time, "monotonic", lambda: next(times))
    turn = Turn(Meter("abc123", "m"))
    for _ in range(2):
        with turn:
            assert turn.locked()
        assert not turn.locked()
    assert [amount for amount, _ in counters["waiting_seconds"].told] == [3.0, 0.5]
    assert [amount for amount, _ in counters["model_seconds"].told] == [2.0, 0.5]


def test_the_turn_is_left_where_the_work_fails(counters):
    turn = Turn(Meter("abc123", "m"))
    with pytest.raises(ZeroDivisionError), turn:
        1 / 0  # noqa: B018
    assert not turn.locked()


def test_how_a_step_goes_on_is_told_by_run_and_step(monkeypatch):
    metrics, told = RayMetrics(), {name: Told() for name in observing.METRICS}
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    metrics.metrics, metrics.run = told, "abc123"
    metrics.stage("cosine, τ 1.0", 10)
    metrics.work(Work(7, 2, 4, 1))
    metrics.work(Work(None, 2, 2))
    metrics.say("done", "", 12.5)
    labels = {"run": "abc123", "step": "cosine, tau 1.0"}
    assert told["pieces_left"].told == [(7, labels)]
    assert told["retries"].told == [(1, labels)]
    assert told["step_seconds"].told == [(12.5, labels)]
    alive, wanted = (
        [number for number, own in told["workers"].told if own == labels | {"state": s}] for s in ("alive", "wanted")
    )
    assert (alive, wanted) == ([2, 2], [4, 2])
    metrics.stage("tables", None)
    metrics.stage("report", None)
    assert told["pieces_left"].told[1:] == [(0, labels)]
    assert [number for number, own in told["workers"].told if own["step"] == labels["step"]][4:] == [0, 0]


def test_the_status_file_names_lost_workers_at_once(tmp_path):
    status = StatusFile()
    status.follow("abc123", "2026-11-28", Storage(str(tmp_path)))
    status.stage("embed", 100)
    status.lost("a worker on gpu-7 cannot load the model: CUDA error")
    assert Storage(str(tmp_path)).read_json("status.json")["lost"] == ["a worker on gpu-7 cannot load the model: CUDA error"]


def test_ray_data_prints_nothing_and_keeps_its_warnings_in_its_log():
    cluster.configure_data()
    logger = logging.getLogger("ray.data")
    assert logger.isEnabledFor(logging.WARNING)
    assert not logger.propagate
    assert logger.handlers
    assert not [handler for handler in logger.handlers if type(handler).__name__ == "PlainRayHandler"]
