"""What is finished is not done again: each step looks at the files that it left, without a worker."""

from types import SimpleNamespace

import pytest
import torch
from prepared import laid_out, scoped

from tempscale.collapse import tiles
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.runs.folder import PLANNED, SHARDED, Model, Run, is_whole
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import cache, cosine, factors, lookup, socm
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.cache import Cache
from tempscale_jobs.tables.audit import SHARDS
from tempscale_jobs.tables.parts import SOCM_TILE
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


class Crew:
    """Workers that do nothing and remember what they were given."""

    def __init__(self):
        self.numbers = []

    def run(self, function, pieces):
        for piece in pieces:
            self.numbers.append(piece.number)
            yield piece, None

    def call(self, function, pieces, **options):
        return (piece for piece, _ in self.run(function, pieces))

    tiles = call


STAGE = SimpleNamespace(advance=lambda *done: None)
IDS = [f"t{k}" for k in range(20)]


def test_only_missing_parts_of_factors_are_given_to_workers(run, storage):
    columns = {name: [None] * 20 for name in ("document", "source_row")}
    columns |= {"text_id": IDS, "text": IDS, "content_sha": ["0" * 64] * 20, "cut": [False] * 20}
    storage.write_table("shards/0.parquet", SHARDS.build(columns))
    index = Index("docs", {}, "sum:1", 20, 0, 20, 20, {}, (Shard("shards/0.parquet", 20, 60),))
    texts = laid_out(IDS, range(3, 23), [0] * 20, [0])
    for number, temperatures in ((0, TAUS[:1]), (1, TAUS)):
        for temperature in temperatures:
            storage.write(run.part("factors", MODEL, temperature, number), b"x")
    crew = Crew()
    assert factors.collect(scoped(run, MODEL, texts, crew=crew, index=index), IDS, "factors", STAGE) == 20
    assert crew.numbers == [0, 2]  # Eight texts each; of the first there is one temperature only.


def test_only_missing_tiles_are_given_to_workers(run, storage):
    for number in range(3):
        ids = IDS[2 * number : 2 * number + 2]
        factor = (torch.ones(2) / 2**0.5, torch.ones(1, 2))
        table = factors.factor_table(ids, [5, 5], [factor, factor])
        storage.write_table(run.part("factors", MODEL, TAUS[0], number), table)
    scope = scoped(run, MODEL, laid_out(IDS[:6], [5] * 6, [0] * 6, [0]), crew=Crew())
    folders = socm.Folders(most=2)
    tiling = socm.PairTiles(storage, run.place(folders.tiles, MODEL, TAUS[0]), 0.0)
    for tile in ((0, 1), (2, 2)):
        storage.write_table(tiling.tile(*tile), SOCM_TILE.build({"row": [], "column": [], "d_mu": [], "d_sigma": []}))
    with pytest.raises(IncompleteRun):  # These workers write nothing.
        socm.all_pairs(scope, TAUS[0], folders, STAGE)
    assert scope.crew.numbers == [(0, 0), (0, 2), (1, 1), (1, 2)]


def test_only_missing_panels_are_compared(storage):
    grid, bounds = Tiling(storage, "partials/cosine", 2, 3, 0.9, 5, count=5, together=2), tiles.blocks(50, 10)
    for i, j, near in ((0, 0, True), (0, 1, False), (1, 2, True)):
        for name in grid.written(i, j, near):
            storage.write(name, b"x")
    for near, left in ((True, [(0, 1), (0, 2), (1, 1), (2, 2)]), (False, [(0, 2), (1, 1), (2, 2)])):
        crew, advanced = Crew(), []
        every = cosine.compare_grid(crew, grid, bounds, near, SimpleNamespace(advance=advanced.append))
        assert every == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]
        assert crew.numbers == left
        assert sum(advanced) == 50 * 49 // 2
        assert advanced[0] == {True: 190 + 200, False: 190 + 200 + 400}[near]
