"""Super-tiles on Ray: a worker that dies in the middle, another order, a GPU worker: the same bytes or the same figures."""

import collections
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import ray
from tile_grid import BOUNDS, TEXTS, TRIANGLE, digests, grid, tiled

from tempscale.collapse import tiles
from tempscale.collapse.aggregates import CosineCells, merge_tree
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.runs.folder import numbered
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import blocks, layout
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.neighbours import Labels, Names, merge
from tempscale_jobs.tables import parts
from tempscale_jobs.workers import cluster as sessions
from tempscale_jobs.workers.actor import PlainActor
from tempscale_jobs.workers.dispatch import Piece, run_tasks

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def cluster(ray_session):
    with sessions.session(Execution.model_validate({"workers": 2, "shuffle_seed": 3})) as found:
        yield found


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    tiling = grid(tmp_path_factory.mktemp("grid"))
    assert sorted(tiled(cluster, blocks.compare_panels, (tiling,), TRIANGLE)) == TRIANGLE
    assert {tile: pairs_of(tiling, *tile) for tile in TRIANGLE} == {
        (i, j): (n := BOUNDS[i][1] - BOUNDS[i][0]) * (n - 1) // 2 if i == j else n * (BOUNDS[j][1] - BOUNDS[j][0])
        for i, j in TRIANGLE
    }
    return tiling


def pairs_of(tiling, i, j):
    return int(blocks.read_cells(tiling, i, j).pairs.sum())


def test_a_worker_that_dies_in_the_middle_of_a_tile_changes_no_byte(cluster, undisturbed, tmp_path):
    tiling, marks = grid(tmp_path / "run"), str(tmp_path)

    def deadly(tiling, i, j):
        mark = os.path.join(marks, f"died-{i}-{j}")
        if i != j and not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(1)
        return blocks.compare_panels(tiling, i, j)

    assert sorted(tiled(cluster, deadly, (tiling,), TRIANGLE)) == TRIANGLE
    assert sum(pairs_of(tiling, *tile) for tile in TRIANGLE) == TEXTS * (TEXTS - 1) // 2
    assert len(list(tmp_path.glob("died-*"))) == 3, "every tile beside the diagonal lost its worker once"
    assert len(digests(tiling)) > 3 * len(TRIANGLE)
    assert digests(tiling) == digests(undisturbed)


def test_panels_of_several_blocks_find_what_single_blocks_do(cluster, undisturbed, tmp_path):
    """Neighbours, near-duplicates and counts to the bit; sums, which are added in another order, to rounding."""
    tiling = replace(grid(tmp_path / "run"), together=2)
    assert [list(tiling.panel(k)) for k in range(tiling.panels)] == [[0, 1], [2]]
    found = list(tiled(cluster, blocks.compare_panels, (tiling,), tiles.upper_triangle(tiling.panels)))
    assert sum(pairs_of(tiling, *tile) for tile in found) == TEXTS * (TEXTS - 1) // 2
    place, names, order = "neighbours", Names(pa.array([str(k) for k in range(TEXTS)]), None), np.arange(TEXTS)[::-1]
    near = {}
    for own in (tiling, undisturbed):
        merge(own, place, BOUNDS, Labels(SimpleNamespace(cluster=cluster), order, ray.put(names)))
        found = [own.storage.read_table(own.found("corpus", k)) for k in range(own.panels)]
        near[own] = pa.concat_tables(found).to_pydict()
    assert near[tiling] == near[undisturbed]
    assert near[tiling]["asker"] == list(range(TEXTS))
    ids = [i for k in range(len(BOUNDS)) for i in tiling.storage.read_table(numbered(place, k))["neighbours"].to_pylist()]
    assert [[str(TEXTS - 1 - p) for p in own] for own in near[tiling]["place"]] == ids
    for k in range(len(BOUNDS)):
        one, other = (own.storage.read(f"{place}/part-{k:08d}.parquet") for own in (tiling, undisturbed))
        assert one == other
    one, other = (of_all(own, blocks.read_cells, CosineCells.merged) for own in (tiling, undisturbed))
    for name in ("pairs", "histogram", "duplicates"):
        assert (getattr(one, name) == getattr(other, name)).all()
    for name in ("first", "second"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-13)

    def first_listed(one, other):
        return one.merged(other).first(tiling.listed)

    one, other = (of_all(own, blocks.read_duplicates, first_listed) for own in (tiling, undisturbed))
    assert len(one.cosine) > 2
    assert (one.labels == other.labels).all()


def of_all(tiling, read, merged):
    """What all tiles hold together."""
    return merge_tree((read(tiling, i, j) for i, j in tiles.upper_triangle(tiling.panels)), merged)


def test_one_tile_is_computed_at_a_time_and_written_while_the_next_one_is(undisturbed, tmp_path, monkeypatch):
    """An actor with a GPU has two pieces at once, and memory for the blocks of one."""
    tiling, computing, most, writing = grid(tmp_path / "run"), [], [], threading.Event()
    compute, near_table = blocks.cosine_tiles, blocks.near_table

    def computed(*given, **how):
        computing.append(None)
        most.append(len(computing))
        if len(most) == 2:
            assert writing.wait(60)  # The first one is written meanwhile.
        found = compute(*given, **how)
        computing.pop()
        return found

    def table(near):
        if len(most) < 3:
            writing.set()
        return near_table(near)

    monkeypatch.setattr(blocks, "cosine_tiles", computed)
    monkeypatch.setattr(blocks, "near_table", table)
    worker = PlainActor(0)
    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(worker.call, blocks.compare_panels, tiling, *tile) for tile in TRIANGLE]:
            one.result(60)
    assert most == [1] * len(TRIANGLE)
    ours, theirs = digests(tiling), digests(undisturbed)  # Where neighbours may have been merged, too.
    assert len(ours) > 3 * len(TRIANGLE)
    assert ours == {name: theirs[name] for name in ours}


def many_blocks(folder):
    """Four panels of three small blocks."""
    storage = Storage(str(folder))
    tiling = Tiling(storage, "partials/cosine", 1, 0, 0.9, 0, 12, together=3)
    for k in range(tiling.count):
        columns = {"embedding": parts.row_bytes(np.eye(4, dtype=np.float32)), "interval": np.zeros(4, np.int16)}
        columns |= {"label": np.arange(4, dtype=np.int32), "text_id": list("abcd"), "document": [None] * 4}
        storage.write_table(tiling.block(k), parts.blocks(4).build(columns), "none")
    return tiling


@pytest.mark.parametrize(("room", "reads"), [(1 << 30, 12), (0, 14 + 10 + 6 + 0)])
def test_a_gpu_worker_reads_each_block_once_a_panel(tmp_path, monkeypatch, room, reads):
    """With room for all each is read once at all; without any, what the pair of panels before did not leave."""
    tiling, read = many_blocks(tmp_path / "run"), []
    monkeypatch.setattr(blocks, "HELD_BYTES", room)
    blocks._held.clear()
    whole = type(tiling.storage).read_table

    def counted(self, name, *given, **how):
        read.append(name)
        return whole(self, name, *given, **how)

    monkeypatch.setattr(type(tiling.storage), "read_table", counted)
    for i, j in tiles.upper_triangle(tiling.panels):
        seen = [(tile.row, tile.column) for tile in blocks.tiles_read_once(tiling, i, j)]
        assert seen == [(a, b) for a in tiling.panel(i) for b in tiling.panel(j) if a <= b]
    names = collections.Counter(read)
    assert set(names) == {tiling.block(k) for k in range(12)}
    assert sum(names.values()) == reads


def test_more_blocks_than_are_read_ahead_come_in_their_order(tmp_path):
    tiling = replace(many_blocks(tmp_path / "run"), together=12)
    blocks._held.clear()
    seen = [(tile.row, tile.column) for tile in blocks.tiles_read_once(tiling, 0, 0)]
    assert seen == [(a, b) for a in range(12) for b in range(a, 12)]


def test_the_block_that_was_used_first_leaves_the_cache(tmp_path, monkeypatch):
    tiling, read = many_blocks(tmp_path / "run"), []
    whole = type(tiling.storage).read_table
    monkeypatch.setattr(
        type(tiling.storage), "read_table", lambda self, name, *given: read.append(name) or whole(self, name, *given)
    )
    monkeypatch.setattr(blocks, "kept", lambda size: 2)
    blocks._read.clear()
    for number in (0, 1, 0, 2, 0, 1):
        assert blocks.read_block(tiling, number).labels.tolist() == [0, 1, 2, 3]
    assert read == [tiling.block(number) for number in (0, 1, 2, 1)]
    blocks._read.clear()


def test_what_is_done_for_each_of_several_is_done_by_tasks_in_their_order(cluster):
    def less(one, other):
        return one - other

    assert layout.of_each(cluster, less, [(5, 1), (5, 2), (5, 3)]) == [4, 3, 2]
    assert layout.of_each(None, less, [(5, 1)]) == [4]


def test_in_flight_work_is_bounded(cluster):
    given, most = [], 0

    def pieces():
        for k in range(20):
            given.append(k)
            yield Piece(k, (k,))

    for done, (piece, value) in enumerate(run_tasks(cluster, lambda k: k, pieces())):
        assert piece.number == value
        most = max(most, len(given) - done)
    assert len(given) == 20
    assert most == cluster.workers + 1  # One waits for the first place.
