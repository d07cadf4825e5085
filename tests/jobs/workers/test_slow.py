"""Pieces of work that take ten times as long as others are named in status.json while they do."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import time

import pyarrow as pa
import pytest
import ray
from ray import cloudpickle
from rich.console import Console

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Corpus, Execution
from tempscale_jobs.corpus.shards import Texts
from tempscale_jobs.corpus.stream import Stream
from tempscale_jobs.corpus.units import Piece, Unit, named
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.observing import JsonLines, Slow, StatusFile
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import engine, slow
from tempscale_jobs.workers.crew import Crew
from tempscale_jobs.workers.slow import Kind, Watch

pytestmark = pytest.mark.proof


class Seen:
    """A watch with a clock that tests set, and the reports that it gave."""

    def __init__(self):
        self.now, self.reports = 0.0, []
        self.watch = Watch(lambda: self.now)
        self.watch.tell = lambda every, new: self.reports.append((list(every), [piece.piece for piece in new]))

    def step(self, kind=slow.PIECE, at_once=1, finished=lambda keys: []):
        return self.watch.step(kind, at_once, finished)

    def after(self, seconds):
        """The names of the slow pieces so many seconds later."""
        self.now += seconds
        return self.names()

    def names(self):
        before = len(self.reports)
        self.watch.report()
        return [piece.piece for piece in self.reports[-1][0]] if len(self.reports) > before else []


@pytest.fixture
def seen():
    return Seen()


def finish(seen, pieces, seconds, first=100):
    """Pieces that take so long, one after the other, of a worker of their own."""
    for number, own in enumerate(seconds, first):
        pieces.begin(number, number, "quick")
        seen.now += own
        pieces.end(number)


def two_of_one_worker(seen, pieces):
    """Pieces that took five seconds each, and two that a worker has."""
    finish(seen, pieces, [5] * 5)
    pieces.begin(1, 1, "a")
    pieces.begin(2, 2, "a")


def test_a_piece_of_ten_times_the_median_is_named_until_it_ends(seen):
    with seen.step(Kind("shard")) as shards:
        shards.begin(7, 7, "a")
        finish(seen, shards, [9, 9, 9, 9])
        assert seen.names() == []
        assert seen.after(100) == []  # Four finished: there is no median yet.
        finish(seen, shards, [9])
        assert seen.names() == ["shard 7"]
        assert seen.reports[-1] == ([Slow("shard 7", 145.0, 9.0)], ["shard 7"])
        assert seen.after(10) == ["shard 7"]
        assert seen.reports[-1] == ([Slow("shard 7", 155.0, 9.0)], [])  # It is new once.
        shards.end(7)
        assert seen.reports[-1] == ([], [])
        told = len(seen.reports)
        assert seen.names() == []
        assert len(seen.reports) == told  # Nothing to say.


def test_pieces_that_are_alike_are_never_named(seen):
    with seen.step() as pieces:
        for number in range(50):
            pieces.begin(number, number, number % 3)
            assert seen.after(40 + number % 7) == []
            pieces.end(number)
    assert seen.reports == []


def test_nothing_is_slow_within_half_a_minute_and_an_error_in_a_report_ends_no_run(seen):
    with seen.step() as pieces:
        finish(seen, pieces, [0.1] * 5)
        pieces.begin(7, 7)
        assert seen.after(30) == []
        assert seen.after(0.1) == ["piece 7"]

        def fail(every, new):
            raise OSError("the disk is full")

        seen.watch.tell = fail
        seen.watch.report()
        pieces.end(7)


def test_only_pieces_of_one_sort_that_did_not_fail_are_compared_by_their_work(seen):
    work = {1: 100.0, 2: 1.0, 3: 1.0} | dict.fromkeys(range(100, 106), 1.0)
    with seen.step(Kind("piece", work.__getitem__, alike=lambda number: number == 3)) as pieces:
        finish(seen, pieces, [5] * 4)
        pieces.begin(4, 104)
        pieces.end(4, done=False)
        for number, worker in ((1, "a"), (2, "b"), (3, "c")):
            pieces.begin(number, number, worker)
        assert seen.after(60) == []  # Four finished: there is no median yet.
        finish(seen, pieces, [0], first=105)
        assert seen.names() == ["piece 2"]
        pieces.end(2)
        assert seen.after(4941) == ["piece 1"]
        assert seen.reports[-1][0] == [Slow("piece 1", 5001.0, 500.0)]


def test_the_end_of_a_step_ends_its_slow_pieces(seen):
    with seen.step(Kind("tile")) as tiles:
        finish(seen, tiles, [1] * 5)
        tiles.begin("a", (3, 4))
        assert seen.after(60) == ["tile 3, 4"]
    assert seen.reports[-1] == ([], [])
    with seen.step(Kind("tile")) as tiles:  # The next step has a median of its own.
        tiles.begin("b", (0, 0))
        assert seen.after(1000) == []


def test_time_counts_from_the_head_of_the_queue(seen):
    """A worker has a second piece ahead, which waits for the first."""
    with seen.step() as pieces:
        two_of_one_worker(seen, pieces)
        assert seen.after(60) == ["piece 1"]
        pieces.end(1)
        assert seen.after(50) == []
        assert seen.after(1) == ["piece 2"]
        assert seen.reports[-1][0] == [Slow("piece 2", 51.0, 5.0)]


def test_of_tasks_as_many_run_as_there_are_workers(seen):
    with seen.step(at_once=2) as pieces:
        for number in range(8):
            pieces.begin(number, number)
        for number in (0, 2, 3, 4, 5):
            seen.now += 10
            pieces.end(number)
        assert seen.names() == []  # Piece 1 began with the first, 50 s ago; piece 7 has not begun.
        assert seen.after(51) == ["piece 1"]
        pieces.end(1)
        pieces.end(6)
        assert seen.after(99) == []


def test_tasks_that_overtake_others_count_since_they_were_given(seen):
    with seen.step(at_once=2) as pieces:
        for number in range(8):
            pieces.begin(number, number)
        seen.now += 40
        for number in (2, 3, 4, 5, 6, 7):
            pieces.end(number)
        assert seen.after(360) == []
        assert seen.after(1) == ["piece 0", "piece 1"]
        assert seen.reports[-1][0][0] == Slow("piece 0", 401.0, 40.0)


def test_pieces_that_come_back_unseen_are_not_slow_and_those_behind_them_begin(seen):
    """The driver was busy with something else for long."""
    back = set()
    with seen.step(finished=lambda keys: [key for key in keys if key in back]) as pieces:
        two_of_one_worker(seen, pieces)
        back.add(1)
        assert seen.after(100) == []
        assert seen.after(51) == ["piece 2"]
        pieces.end(1)  # The driver comes to it.
        pieces.end(2)
        assert seen.names() == []


def test_a_watch_stays_where_it_is():
    with pytest.raises(TypeError):
        pickle.dumps(engine.Cluster(2, 0))
    assert engine.Cluster(2, 0) == engine.Cluster(2, 0)


def test_units_are_named_by_file_and_rows():
    given = Corpus(source="s3://key:secret@bucket/rows")
    for pieces, name in (
        ((Piece("parquet", "/d/a.parquet", "a.parquet", 90, 180, 90, 90),), "a.parquet, rows 90 to 179"),
        ((Piece("lines", "/d/a.jsonl", "a.jsonl", 1500, 3000, 17),), "a.jsonl, bytes 1,500 to 2,999"),
        ((Piece("file", "/d/a.csv", "a.csv"), Piece("file", "/d/b.csv", "b.csv")), "a.csv and 1 more"),
    ):
        assert named(given, Unit(3, pieces)) == f"unit 3: {name}"
    lance = named(given, Unit(3, (Piece("lance", "7", "", 90, 180, 1090, 90),)))
    assert lance.endswith(", rows 1,090 to 1,179")
    assert "secret" not in lance
    assert named(Corpus(source="hf:some/set"), Unit(3, (Piece("hub", "5"),))) == "unit 3: shard 5 of hf:some/set"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """What a run says: its journal, status file and console."""
    monkeypatch.setattr(slow, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(slow, "LEAST_SECONDS", 1.0)
    out = io.StringIO()
    status = StatusFile()
    found = Journal(Console(file=out, width=20), [status, JsonLines()])
    status.follow("abc123", "2026-11-22", Storage(str(tmp_path)))
    found.console_text = out.getvalue
    found.status = lambda: json.loads((tmp_path / "status.json").read_text())
    yield found
    found.close()


def wait_for(run, wanted):
    """The slow pieces in status.json, once it names these."""
    until = time.monotonic() + 60
    while [piece["piece"] for piece in run.status()["slow"]] != wanted:
        assert time.monotonic() < until, run.status()
        time.sleep(0.05)
    return run.status()["slow"]


@pytest.fixture(scope="module")
def cluster(ray_session):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with engine.session(Execution.model_validate({"workers": 2})) as found:
        yield found
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_a_task_that_sleeps_is_in_the_status_file_until_it_ends(cluster, run, tmp_path, capsys):
    @ray.remote(num_cpus=0)
    def task(number, go):
        while number == 3 and not os.path.exists(go):
            time.sleep(0.02)
        return number

    with cluster.watch.reported(run.slow), run.stage("cosine", 12) as stage:
        found, go = [], str(tmp_path / "go")
        for number, _ in engine.results(cluster, lambda k: task.remote(k, go), range(12), kind=Kind("block")):
            found.append(number)
            stage.advance(1)
            if len(found) == 11:  # All but one.
                (named_,) = wait_for(run, ["block 3"])
                assert named_["seconds"] >= 1
                assert named_["median_seconds"] < 1
                updated = run.status()["updated"]
                time.sleep(1.2)
                assert run.status()["updated"] == updated  # Nothing has moved.
                (tmp_path / "go").touch()
        wait_for(run, [])
    assert sorted(found) == list(range(12))
    assert run.console_text().count("slow: block 3") == 1
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    # The first ones may be slow here, too, while their processes start.
    (line,) = [line for line in lines if line["event"] == "slow" and line["piece"] == "block 3"]
    assert line["stage"] == "cosine"
    assert {"seconds", "median_seconds"} <= set(line)


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Worker:
    """Takes pieces of which the sixth waits for a file."""

    def work(self, number, go):
        while number == 6 and not os.path.exists(go):
            time.sleep(0.02)
        return number

    def take(self, process, block):
        return [{"number": self.work(number, process)} for number in block.column("number").to_pylist()]


@pytest.mark.parametrize("how", ["pieces", "stream"])
def test_the_piece_that_a_worker_has_ahead_is_not_named(cluster, run, tmp_path, how):
    """Two actors get two pieces each; the second of the slow actor's waits with the first.

    Ray Data prepares the shards of a stream, in any order; only their blocks know which they are.
    """
    crew, go, found = Crew(None, cluster, None, None), str(tmp_path / "go"), []
    crew.actors = [Worker.remote() for _ in range(2)]
    ray.get([worker.__ray_ready__.remote() for worker in crew.actors])
    with crew, cluster.watch.reported(run.slow), run.stage("embed", 20):
        if how == "pieces":
            done = crew.each(lambda worker, k: worker.work.remote(k, go), range(20), Kind("shard"))
        else:
            shards = {k: pa.table({"k": [k]}) for k in range(20)}
            done = (report["number"] for report in crew.stream(go, shards, lambda batch: batch, {}))
        for number in done:
            found.append(number)
            if len(found) == 18:  # All but the slow one and the one behind it.
                wait_for(run, ["shard 6"])
                time.sleep(1.5)
                wait_for(run, ["shard 6"])
                (tmp_path / "go").touch()
        wait_for(run, [])
    assert sorted(found) == list(range(20))
    assert run.console_text().count("slow: shard 6") == 1


def test_a_unit_that_is_read_slowly_is_named_by_its_file(cluster, tmp_path, monkeypatch):
    """The last of nine units, whichever that is, has taken a thousand seconds by the watch's clock."""
    data, out = tmp_path / "data", str(tmp_path / "one")
    data.mkdir()
    for k in range(9):
        (data / f"{k}.csv").write_text("\n".join(["id,text", *(f"t{k}-{i},words" for i in range(20))]))
    config = resolve({"corpus": {"source": str(data), "unit_rows": 20, "unit_bytes": 150}})
    corpus = Stream(Storage(out), Texts(config.corpus, config.embedding, out), 0, out)
    assert len(corpus.units) == 9
    now, found, told = [0.0], [], []
    monkeypatch.setattr(cluster.watch, "clock", lambda: now[0])

    def on_unit(unit):
        found.append(unit.number)
        now[0] += 1000 if len(found) == 8 else 1
        if len(found) == 8:
            cluster.watch.report()

    with cluster.watch.reported(lambda every, new: told.append([piece.piece for piece in every])):
        corpus.finish(cluster, on_unit)
    assert told[0] == [f"unit {found[8]}: {found[8]}.csv"]
    assert told[-1] == []
    assert corpus.index.analysed == 180
