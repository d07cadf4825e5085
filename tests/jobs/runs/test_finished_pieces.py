"""What is finished is not done again: each step looks at the files that it left, without a worker."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from prepared import laid_out, scoped

from tempscale.collapse import tiles
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.audit.run import needed_of_tiles
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.diagnose import looks, repeated, two_texts
from tempscale_jobs.errors import Damaged, IncompleteRun
from tempscale_jobs.evaluate import cells
from tempscale_jobs.evaluate.tasks import RunTask, folder
from tempscale_jobs.pairs import socm as pair_steps
from tempscale_jobs.runs.folder import PLANNED, SHARDED, Model, Run, is_whole, tile
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import blocks, cache, cosine, factors, lookup, socm, source_order, worst
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.cache import Cache
from tempscale_jobs.steps.cosine import Needed
from tempscale_jobs.tables.audit import SHARDS
from tempscale_jobs.tables.parts import SOCM_TILE, fixed_lists
from tempscale_jobs.tune import layers
from tempscale_jobs.workers import dispatch
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


def test_texts_of_an_unfinished_look_up_are_looked_up_again_and_others_stay(run, storage):
    cached, embedded = (
        f"{run.place('texts', MODEL, t)}/part-{kind}00000000.parquet" for t, kind in zip(TAUS, ("cached-", ""), strict=True)
    )
    for name in (cached, embedded):
        storage.write(name, b"x")
    index = sharded(storage, 3)
    assert lookup.look_up(scoped(run, MODEL, index=index), None) == lookup.LookedUp(index.shards)
    assert not storage.exists(cached)
    assert storage.exists(embedded)
    storage.write(cached, b"x")  # Since the look-up has ended, they are the run's.
    lookup.look_up(scoped(run, MODEL, index=index), None)
    assert storage.exists(cached)


def test_a_run_is_added_to_a_cache_once(run, tmp_path):
    done = f"{run.place('partials/cache', MODEL)}/remembered.json"
    run.storage.write_json(done, {"shards": 1})
    scope = scoped(run, MODEL)  # Without a cluster, which adding asks first.
    assert cache.add_texts(scope, Cache(str(tmp_path / "cache"), scope.encoding, 100, "document"), 1) is None
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

    finish = dispatch.Crew.finish

    def __init__(self, run=None):
        self._run, self.numbers = run, []

    def run(self, function, pieces, retries=None):
        for piece in pieces:
            self.numbers.append(piece.number)
            yield piece, {}

    def call(self, function, pieces, **options):
        return (piece for piece, _ in self.run(function, pieces))

    tiles = call


def listing(given):
    """A cluster that begins no task and lists the pieces that it is given."""
    return SimpleNamespace(
        tasks=1, journal=None, keeps_crew=False, gpus=0, ordered=lambda pieces: given.extend(pieces) or []
    )


STAGE = SimpleNamespace(advance=lambda *done: None, resize=lambda *whole: None)
IDS = [f"t{k}" for k in range(20)]


def sharded(storage, count):
    """The index of a corpus of one shard, which is written."""
    columns = {"text_id": IDS[:count], "text": IDS[:count], "content_sha": ["0" * 64] * count, "cut": [False] * count}
    columns |= dict.fromkeys(("document", "source_row"), [None] * count)
    storage.write_table("shards/0.parquet", SHARDS.build(columns))
    return Index("docs", {}, "sum:1", count, 0, count, count, {}, (Shard("shards/0.parquet", count, 3 * count),))


def test_only_missing_parts_of_factors_are_given_to_workers(run, storage):
    texts = laid_out(IDS, range(3, 23), [0] * 20, [0])
    for number, temperatures in ((0, TAUS[:1]), (1, TAUS)):
        for temperature in temperatures:
            storage.write(run.part("factors", MODEL, temperature, number), b"x")
    crew = Crew()
    scope = scoped(run, MODEL, texts, crew=crew, index=sharded(storage, 20))
    assert factors.collect(scope, IDS, "factors", STAGE) == 20
    assert crew.numbers == [0, 2]  # Eight texts each; of the first there is one temperature only.


def test_only_missing_tiles_are_given_to_workers(run, storage, monkeypatch):
    for number in range(3):
        ids = IDS[2 * number : 2 * number + 2]
        factor = (torch.ones(2) / 2**0.5, torch.ones(1, 2))
        table = factors.factor_table(ids, [5, 5], [factor, factor])
        storage.write_table(run.part("factors", MODEL, TAUS[0], number), table)
    scope = scoped(run, MODEL, laid_out(IDS[:6], [5] * 6, [0] * 6, [0]), crew=Crew())
    monkeypatch.setattr(socm, "_GROUP_TEXTS", 2)
    tiling = socm.PairTiles(storage, run.place("partials/socm", MODEL, TAUS[0]), 0.0)
    for sides in ((0, 1), (2, 2)):
        storage.write_table(tiling.tile(*sides), SOCM_TILE.build({"row": [], "column": [], "d_mu": [], "d_sigma": []}))
    with pytest.raises(IncompleteRun):  # These workers write nothing.
        socm.all_pairs(scope, TAUS[0], STAGE)
    assert scope.crew.numbers == [(0, 0), (0, 2), (1, 1), (1, 2)]


def test_only_missing_blocks_are_gathered(storage):
    grid, bounds = Tiling(storage, "partials/cosine", 2, 3, 0.9, 5, count=5, gathered=20), tiles.blocks(50, 10)
    given = []
    cluster = listing(given)
    texts = laid_out([f"t{k}" for k in range(50)], [5] * 50, [0] * 50, [0])
    for block in (0, 1, 2):
        storage.write(grid.block(block), b"x")
    cosine.gather(cluster, grid, [], bounds, texts)
    assert [list(piece.number) for piece in given] == [[2, 3], [4]]
    for block in (3, 4):
        storage.write(grid.block(block), b"x")
    given.clear()
    cosine.gather(cluster, grid, [], bounds, texts)
    assert given == []


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


def test_finished_cosines_are_computed_again_only_where_their_neighbours_are_needed(run, storage):
    scope = scoped(run, MODEL, laid_out(IDS[:3], [5] * 3, [0] * 3, [0]), cluster=listing([]), crew=Crew())
    storage.write_json("begun.json", {"run": "a", "identity": {}})
    part = pa.table({"embedding": fixed_lists(np.eye(3, dtype=np.float32))})
    storage.write_table(f"{run.place('texts', MODEL, TAUS[0])}/part-00000000.parquet", part)
    grid, _ = blocks.tiling(scope, TAUS[0])
    storage.write_json(f"{grid.place}/closed.json", {"files": [], "rounding": None})
    storage.write(grid.block(0), b"x")
    for needed, compared in ((Needed(), []), (Needed(blocks=True), []), (Needed(near=True), [(0, 0)])):
        cosine.cosine(scope, TAUS[0], needed)
        assert scope.crew.numbers == compared


def test_a_grid_keeps_its_panels_on_another_machine(storage):
    """200 blocks are 50 panels of four on CPUs, a piece of sixteen tiles at most, and 23 of nine on GPUs."""
    for begun_on_gpus, size in ((False, 4), (True, 9)):
        found = [
            blocks.kept_panel_size(storage, f"grid-{begun_on_gpus}", 200, gpus)
            for gpus in (begun_on_gpus, not begun_on_gpus)
        ]
        assert found == [size, size]
    assert [blocks.kept_panel_size(storage, "small", 96, gpus) for gpus in (False, True)] == [4, 4]
    assert not storage.exists("small/panels.json")


def test_only_missing_chunks_of_pairs_are_given_to_workers(run, storage):
    every = [Piece(k, files=tuple(run.part("pairs", MODEL, t, k) for t in TAUS), size=5) for k in range(3)]
    for name in (every[0].files[0], *every[1].files):
        storage.write(name, b"x")
    crew, advanced = Crew(run), []
    stage = SimpleNamespace(advance=lambda size, *cost: advanced.append(size))
    assert pair_steps.measure_pairs(run, crew, MODEL, every, stage) == 0
    assert crew.numbers == [0, 2]
    assert advanced == [5, 5, 5]


@pytest.fixture
def read(run):
    """A diagnosis whose corpus is one shard of three texts."""
    diagnosis = SimpleNamespace(pair=("t0", "t1"), repeated_pairs=4)
    return SimpleNamespace(
        run=run, index=sharded(run.storage, 3), config=SimpleNamespace(diagnosis=diagnosis, seed=0, keep_text=False)
    )


def test_only_missing_texts_are_looked_into(read, storage):
    every = [Piece(k, ([IDS[k]],), files=(f"looks/{k}",), size=1) for k in range(3)]
    storage.write("looks/1", b"x")
    crew = Crew()
    looks.look(read, crew, every, STAGE)
    assert crew.numbers == [0, 2]


def test_two_texts_that_are_drawn_are_not_given_to_a_worker(read, run, storage):
    parts = [run.part(two_texts.PAIR_PARTS, MODEL, t, 0) for t in TAUS]
    table = pa.table({"text_id": ["t0", "t1"], "side": ["a", "b"]})
    storage.write_table(parts[0], table)
    for expected in ([0], []):
        crew = Crew()
        assert two_texts.look(read, crew, MODEL) == ("t0", "t1")
        assert crew.numbers == expected
        storage.write_table(parts[1], table)


def test_only_missing_lengths_of_repeated_tokens_are_given_to_workers(read, run, storage):
    for number, temperatures in ((0, TAUS), (1, TAUS[1:]), (3, TAUS)):
        for temperature in temperatures:
            storage.write(run.part(repeated.REPEATED_PARTS, MODEL, temperature, number), b"x")
    crew = Crew()
    assert repeated.embed_repeated(read, crew, MODEL) == 4  # 8, 16, 32 and 64 tokens
    assert crew.numbers == [1, 2]


def test_a_search_by_layer_of_the_same_texts_is_done_once(run, storage):
    found, crew = {"temperatures": [0.5], "states": ["a"]}, Crew()
    storage.write_json(layers.FOUND, found)
    assert layers.search(run, crew, MODEL, SimpleNamespace(states=["a"])) == found
    assert crew.numbers == []
    with pytest.raises(AttributeError, match="config"):  # Of other texts it is searched again.
        layers.search(run, crew, MODEL, SimpleNamespace(states=["b"]))
    assert not storage.exists(layers.FOUND)


def test_a_cell_is_scored_again_where_its_data_have_changed(run, storage):
    unit = RunTask("x", None, None, False)
    assert not cells.done(run, MODEL, TAUS[0], unit, "state")
    storage.write_json(f"{folder(MODEL, TAUS[0], unit)}/result.json", {"state": "state"})
    assert cells.done(run, MODEL, TAUS[0], unit, "state")
    assert not cells.done(run, MODEL, TAUS[0], unit, "another")
    assert not cells.done(run, MODEL, TAUS[1], unit, "state")


def test_the_order_of_a_source_is_looked_at_once(run, storage):
    scope = scoped(run, MODEL, laid_out(IDS, range(20), [0] * 20, [0]), index=sharded(storage, 20))
    storage.write_json(source_order.result_name(MODEL), {"alike": False})
    source_order.look(scope)
    assert storage.read_json(source_order.result_name(MODEL)) == {"alike": False}
    storage.remove(source_order.result_name(MODEL))
    with pytest.raises(IncompleteRun):  # There are no means of the texts to begin with.
        source_order.look(scope)


def test_a_search_for_the_worst_pairs_begins_under_the_temperatures_that_have_none(run, storage):
    scope = scoped(run, MODEL, laid_out(IDS[:3], [5] * 3, [0] * 3, [0]))
    for temperature, spread in zip(TAUS, ([3.0, 1.0, 2.0], [1.0, 2.0, 3.0]), strict=True):
        name = f"{run.place('texts', MODEL, temperature)}/part-00000000.parquet"
        storage.write_table(name, pa.table({"spread": pa.array(spread, pa.float32())}))
    assert {slug: places.tolist() for slug, places in worst.seeds_of(scope).items()} == {"1.0": [0, 1, 2], "0.5": [0, 1, 2]}
    storage.write_json(f"{run.place('partials/top', MODEL, TAUS[0])}/done.json", {"files": []})
    assert list(worst.seeds_of(scope)) == ["0.5"]


def test_only_missing_tiles_are_bounded(run, storage, monkeypatch):
    grid, given = Tiling(storage, "partials/cosine", 1, 0, 1.0, 0, count=3), []
    monkeypatch.setattr(worst.blocks, "tiling", lambda *_: (grid, []))
    monkeypatch.setattr(worst, "share", lambda value: value)
    cluster = listing(given)
    scope, search = scoped(run, MODEL, cluster=cluster), SimpleNamespace(place="partials/top")
    table = pa.table({"row": [0], "column": [1], "cosine": [0.5], "ranking": [1]})
    for panels in ((0, 0), (0, 1), (1, 2), (2, 2)):
        storage.write_table(tile(search.place, *panels), table)
    with pytest.raises(Damaged):  # These workers write nothing.
        worst.left_by_bounds(scope, TAUS[0], search)
    assert [piece.number for piece in given] == [(0, 2), (1, 1)]
    given.clear()
    for panels in ((0, 2), (1, 1)):
        storage.write_table(tile(search.place, *panels), table)
    assert len(worst.left_by_bounds(scope, TAUS[0], search).cosine) == 6
    assert given == []


def test_what_is_needed_of_tiles_is_what_later_steps_have_not_done(run, storage):
    scope = scoped(run, MODEL, analysis={"socm_top_over": "corpus"})
    done = (f"{run.place(kind, MODEL, TAUS[0])}/done.json" for kind in ("partials/exposure", "partials/top"))
    assert needed_of_tiles(scope, TAUS[0]) == Needed(blocks=True, near=True)
    storage.write_json(next(done), {"files": []})
    assert needed_of_tiles(scope, TAUS[0]) == Needed(blocks=True, near=False)
    storage.write_json(next(done), {"files": []})
    assert needed_of_tiles(scope, TAUS[0]) == Needed(blocks=False, near=False)
    assert needed_of_tiles(scope, TAUS[1]) == Needed(blocks=True, near=True)
