"""What is finished is not done again: each step looks at the files that it left, without a worker."""

from types import SimpleNamespace

import pytest
from prepared import laid_out, scoped

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.runs.folder import PLANNED, SHARDED, Model, Run, is_whole
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import cache, lookup, socm
from tempscale_jobs.steps.cache import Cache
from tempscale_jobs.workers.dispatch import Piece, advance_by_finished, missing

MODEL, TAUS = Model("tiny", "tiny", "", 64), [Temperature(1.0), Temperature(0.5)]


@pytest.fixture
def storage(tmp_path):
    return Storage(str(tmp_path / "run"))


@pytest.fixture
def run(storage):
    return Run(storage, [MODEL], TAUS, "2026-11-27")


def test_a_piece_is_finished_where_all_of_its_files_are_there(storage):
    pieces = [Piece(k, files=(f"a/{k}.parquet", f"b/{k}.parquet"), size=10**k, cost=2.0**k) for k in range(4)]
    for name in ("a/0.parquet", "b/0.parquet", "a/1.parquet", "b/2.parquet", "b/9.parquet"):
        storage.write(name, b"x")
    left = missing(storage, pieces)
    assert [piece.number for piece in left] == [1, 2, 3]
    assert missing(storage, []) == []
    told = []
    advance_by_finished(SimpleNamespace(advance=lambda *given: told.append(given)), pieces, left)
    assert told == [(1, 1.0)]


def test_a_step_is_whole_where_all_files_that_its_end_names_are_there(storage):
    assert not is_whole(storage, "done.json")
    storage.write_json("done.json", {"files": ["one", "two"]})
    assert not is_whole(storage, "done.json")
    storage.write("one", b"x")
    assert not is_whole(storage, "done.json")
    storage.write("two", b"x")
    assert is_whole(storage, "done.json")
    storage.write_json("plain.json", {"pairs": 3})
    assert is_whole(storage, "plain.json")


def test_what_a_session_left_stays_where_a_source_was_planned_or_read(storage, tmp_path):
    source = SimpleNamespace(kind="corpus", source=str(tmp_path))
    for name in ("texts/model=given/part", "shards/0.json", "rejected/0"):
        storage.write(name, b"x")
    storage.write_json(PLANNED, {"source_state": {}, "units": 2})
    assert Index.earlier(storage, source, "", "texts") is None
    assert storage.exists("shards/0.json")
    assert storage.exists("rejected/0")
    assert storage.exists("texts/model=given/part")
    storage.remove(PLANNED)
    assert Index.earlier(storage, source, "", "texts") is None  # Nobody knows of which source these are.
    assert storage.list("") == []


def test_an_index_that_is_there_is_taken_as_it_is(storage, monkeypatch):
    index = Index("docs", {}, "sum:1", 3, 0, 3, 3, {}, ())
    index.kept(storage)
    monkeypatch.setattr("tempscale_jobs.corpus.sources.check_unchanged", lambda *_: None)
    assert Index.earlier(storage, None, "") == index
    assert storage.exists(SHARDED)


def test_a_group_of_texts_is_sorted_once_for_all_models(storage):
    how = SimpleNamespace(storage=storage)
    storage.write(lookup.sorted_name(7), b"as it was")
    lookup.sort_group(how, 7, ["no such shard"])
    assert storage.read(lookup.sorted_name(7)) == b"as it was"


def test_a_run_is_added_to_a_cache_once(run, tmp_path):
    done = f"{run.place('partials/cache', MODEL)}/remembered.json"
    run.storage.write_json(done, {"shards": 1})
    scope = scoped(run, MODEL)  # Without a cluster, which adding asks first.
    assert cache.remember(scope, Cache(str(tmp_path / "cache"), scope.encoding, 100, "document"), 1) is None
    assert not (tmp_path / "cache").exists()


def test_a_finished_step_of_all_pairs_asks_no_worker(run):
    scope = scoped(run, MODEL, laid_out(["a", "b"], [3, 4], [0, 0], [0]))
    place = run.place("partials/socm", MODEL, TAUS[0])
    run.storage.write_json(f"{place}/done.json", {"pairs": 1, "files": []})
    socm.socm(scope, TAUS[0], 2)
    assert run.storage.list("partials") == [f"{place}/done.json"]
    run.storage.remove(f"{place}/done.json")
    with pytest.raises(ValueError, match="concatenate"):  # There are no factors to begin with.
        socm.socm(scope, TAUS[0], 2)
