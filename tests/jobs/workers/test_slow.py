"""Pieces of work that take ten times as long as others are named in status.json while they do."""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import time
from dataclasses import replace

import pyarrow as pa
import pytest
import ray
from ray import cloudpickle
from rich.console import Console

from tempscale_jobs.config.sections import Corpus, Execution
from tempscale_jobs.corpus import units
from tempscale_jobs.corpus.units import Unit, named
from tempscale_jobs.runs.folder import GIVEN
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.observing import JsonLines, Slow, StatusFile
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import cluster as sessions
from tempscale_jobs.workers import dispatch
from tempscale_jobs.workers.dispatch import Crew, Flights, Piece, run_tasks

pytestmark = pytest.mark.proof


class Seen:
    """Pieces in flight by a clock that tests set, and what their journal was told."""

    def __init__(self):
        self.now, self.reports, self.fails = 0.0, [], False

    def slow(self, every, new):
        if self.fails:
            raise OSError("the disk is full")
        self.reports.append((list(every), [piece.piece for piece in new]))

    def step(self, at_once=1, kind=Flights):
        self.flights = kind(self, at_once, lambda: self.now)
        return self.flights

    def after(self, seconds):
        """The names of the slow pieces so many seconds later."""
        self.now += seconds
        return self.names()

    def names(self):
        before = len(self.reports)
        self.flights.look()
        return [piece.piece for piece in self.reports[-1][0]] if len(self.reports) > before else []


@pytest.fixture
def seen():
    return Seen()


def begin(flights, *numbers, worker=None):
    for number in numbers:
        flights.begin(number, Piece(number), worker)


def finish(seen, flights, seconds, first=100):
    """Pieces that take so long, one after the other, of a worker of their own."""
    for number, own in enumerate(seconds, first):
        begin(flights, number, worker="quick")
        seen.now += own
        flights.end(number)


def two_of_one_worker(seen, flights):
    """Pieces that took five seconds each, and two that a worker has."""
    finish(seen, flights, [5] * 5)
    begin(flights, 1, 2, worker="a")


def test_a_piece_of_ten_times_the_median_is_named_until_it_ends(seen):
    shards = seen.step()
    shards.begin(7, Piece(7, name="shard 7"), "a")
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
    pieces = seen.step()
    for number in range(50):
        begin(pieces, number, worker=number % 3)
        assert seen.after(40 + number % 7) == []
        pieces.end(number)
    assert seen.reports == []


def test_nothing_is_slow_within_half_a_minute_and_an_error_in_a_report_ends_no_run(seen):
    pieces = seen.step()
    finish(seen, pieces, [0.1] * 5)
    begin(pieces, 7)
    assert seen.after(30) == []
    assert seen.after(0.1) == ["piece 7"]
    seen.fails = True
    pieces.look()
    pieces.end(7)


def test_only_pieces_of_one_sort_that_did_not_fail_are_compared_by_their_work(seen):
    pieces = seen.step()
    finish(seen, pieces, [5] * 4)
    begin(pieces, 104)
    pieces.end(104, finished=False)
    for number, worker, cost, alike in ((1, "a", 100.0, ""), (2, "b", 1.0, ""), (3, "c", 1.0, "another sort")):
        pieces.begin(number, Piece(number, cost=cost, alike=alike), worker)
    assert seen.after(60) == []  # Four finished: there is no median yet.
    finish(seen, pieces, [0], first=105)
    assert seen.names() == ["piece 2"]
    pieces.end(2)
    assert seen.after(4941) == ["piece 1"]
    assert seen.reports[-1][0] == [Slow("piece 1", 5001.0, 500.0)]


def test_the_end_of_a_step_ends_its_slow_pieces(seen):
    with seen.step() as tiles:
        finish(seen, tiles, [1] * 5)
        tiles.begin("a", Piece((3, 4), name="tile 3, 4"), None)
        assert seen.after(60) == ["tile 3, 4"]
    assert seen.reports[-1] == ([], [])
    with seen.step() as tiles:  # The next step has a median of its own.
        begin(tiles, "b")
        assert seen.after(1000) == []


def test_time_counts_from_the_head_of_the_queue(seen):
    """A worker has a second piece ahead, which waits for the first."""
    pieces = seen.step()
    two_of_one_worker(seen, pieces)
    assert seen.after(60) == ["piece 1"]
    pieces.end(1)
    assert seen.after(50) == []
    assert seen.after(1) == ["piece 2"]
    assert seen.reports[-1][0] == [Slow("piece 2", 51.0, 5.0)]


def test_of_tasks_as_many_run_as_there_are_workers(seen):
    pieces = seen.step(at_once=2)
    begin(pieces, *range(8))
    for number in (0, 2, 3, 4, 5):
        seen.now += 10
        pieces.end(number)
    assert seen.names() == []  # Piece 1 began with the first, 50 s ago; piece 7 has not begun.
    assert seen.after(51) == ["piece 1"]
    pieces.end(1)
    pieces.end(6)
    assert seen.after(99) == []


def test_tasks_that_overtake_others_count_since_they_were_given(seen):
    pieces = seen.step(at_once=2)
    begin(pieces, *range(8))
    seen.now += 40
    for number in (2, 3, 4, 5, 6, 7):
        pieces.end(number)
    assert seen.after(360) == []
    assert seen.after(1) == ["piece 0", "piece 1"]
    assert seen.reports[-1][0][0] == Slow("piece 0", 401.0, 40.0)


class Unseen(Flights):
    """Pieces that come back while the driver is busy."""

    back = frozenset()

    def come_back(self):
        return [key for key, flight in self.flying.items() if key in self.back and not flight.back]


def test_pieces_that_come_back_unseen_are_not_slow_and_those_behind_them_begin(seen):
    """The driver was busy with something else for long."""
    pieces = seen.step(kind=Unseen)
    two_of_one_worker(seen, pieces)
    pieces.back = {1}
    assert seen.after(100) == []
    assert seen.after(51) == ["piece 2"]
    pieces.end(1)  # The driver comes to it.
    pieces.end(2)
    assert seen.names() == []


def test_a_journal_stays_where_it_is(seen):
    quiet = Journal(Console(quiet=True))
    try:
        with pytest.raises(TypeError):
            pickle.dumps(sessions.Cluster(2, 0, journal=quiet))
        assert sessions.Cluster(2, 0) == sessions.Cluster(2, 0, journal=quiet)
    finally:
        quiet.close()


def test_units_are_named_by_file_and_rows():
    given = Corpus(source="s3://key:secret@bucket/rows")
    for pieces, name in (
        ((units.SourcePart("parquet", "/d/a.parquet", "a.parquet", 90, 180, 90, 90),), "a.parquet, rows 90 to 179"),
        ((units.SourcePart("lines", "/d/a.jsonl", "a.jsonl", 1500, 3000, 17),), "a.jsonl, bytes 1,500 to 2,999"),
        ((units.SourcePart("file", "/d/a.csv", "a.csv"), units.SourcePart("file", "/d/b.csv", "b.csv")), "a.csv and 1 more"),
    ):
        assert named(given, Unit(3, pieces)) == f"unit 3: {name}"
    lance = named(given, Unit(3, (units.SourcePart("lance", "7", "", 90, 180, 1090, 90),)))
    assert lance.endswith(", rows 1,090 to 1,179")
    assert "secret" not in lance
    assert named(Corpus(source="hf:some/set"), Unit(3, (units.SourcePart("hub", "5"),))) == "unit 3: shard 5 of hf:some/set"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """What a run says: its journal, status file and console."""
    monkeypatch.setattr(dispatch, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(dispatch, "LEAST_SECONDS", 1.0)
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
    with sessions.session(Execution.model_validate({"workers": 2})) as found:
        yield found
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def waits(number, go):
    """A task of which one waits for a file."""
    while number == 3 and not os.path.exists(go):
        time.sleep(0.02)
    return number


def test_a_task_that_sleeps_is_in_the_status_file_until_it_ends(cluster, run, tmp_path, capsys):
    cluster, go = replace(cluster, journal=run), str(tmp_path / "go")
    with run.stage("cosine", 12) as stage:
        found = []
        for _, number in run_tasks(cluster, waits, [Piece(k, (k, go), f"block {k}") for k in range(12)], ahead=2):
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

    def run(self, go, number):
        while number == 6 and not os.path.exists(go):
            time.sleep(0.02)
        return number

    def take(self, go, block):
        return [{"number": self.run(go, number), "failure": None} for number in block.column("number").to_pylist()]


def of_shard(number):
    return pa.table({"k": [number]})


@pytest.mark.parametrize("how", ["pieces", "stream"])
def test_the_piece_that_a_worker_has_ahead_is_not_named(cluster, run, tmp_path, how):
    """Two actors get two pieces each; the second of the slow actor's waits with the first.

    Ray Data prepares the shards of a stream, in any order; only their blocks know which they are.
    """
    crew, go, found = Crew(None, replace(cluster, journal=run), None, None), str(tmp_path / "go"), []
    crew.actors = [Worker.remote() for _ in range(2)]
    ray.get([worker.__ray_ready__.remote() for worker in crew.actors])
    pieces = [Piece(k, (k,), f"shard {k}") for k in range(20)]
    with crew, run.stage("embed", 20):
        for done in crew.stream(go, pieces, of_shard, {}) if how == "stream" else crew.run(go, pieces):
            found.append((done if how == "stream" else done[0]).number)
            if len(found) == 18:  # All but the slow one and the one behind it.
                wait_for(run, ["shard 6"])
                time.sleep(1.5)
                wait_for(run, ["shard 6"])
                (tmp_path / "go").touch()
        wait_for(run, [])
    assert sorted(found) == list(range(20))
    assert run.console_text().count("slow: shard 6") == 1


def noted(folder, number):
    with open(os.path.join(folder, "order"), "a") as file:
        file.write(f"{number} ")


@pytest.mark.parametrize(("cost", "order"), [([1, 1, 1, 1], "2 0 1 3 "), ([1, 3, 2, 3], "1 3 2 0 ")])
def test_the_costliest_piece_is_given_out_first(cluster, tmp_path, cost, order):
    with Crew(None, replace(cluster, workers=1), GIVEN, None) as crew:
        done = list(crew.call(noted, [Piece(k, (str(tmp_path), k), cost=cost[k]) for k in (2, 0, 1, 3)]))
    assert len(done) == 4
    assert (tmp_path / "order").read_text() == order
