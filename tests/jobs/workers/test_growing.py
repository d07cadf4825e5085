"""A cluster of twelve nodes on one machine that grows and shrinks while tiles are computed; GPUs are declared."""

import sys

import numpy as np
import pytest
import ray
from ray import cloudpickle
from tile_grid import TEXTS, TRIANGLE, digests, grid

from tempscale_jobs.collapse import blocks
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.workers import engine
from tempscale_jobs.workers.crew import Crew

NODES, FIRST = 12, 2


@pytest.fixture
def nodes(no_ray):
    """A head without a GPU and two nodes of one; twelve are said to come."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0, "object_store_memory": 90 << 20})
        try:
            found.own = [found.add_node(**NODE) for _ in range(FIRST)]
            found.wait_for_nodes()
            cloudpickle.register_pickle_by_value(sys.modules[__name__])
            yield found
        finally:
            cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
            found.shutdown()


NODE = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 80 << 20}


@pytest.mark.soak
def test_nodes_that_come_are_used_and_nodes_that_go_lose_nothing(nodes, tmp_path):
    tiling = grid(tmp_path / "run")
    tiles = [(i, j) for _ in range(20) for i, j in TRIANGLE]  # Each many times: what is written is the same each time.

    def work(tiling, i, j, device):
        import time

        time.sleep(0.5)
        return blocks.work(tiling, i, j), ray.get_runtime_context().get_node_id()

    done, used = [], [set(), set()]
    with engine.session(Execution.model_validate({"address": nodes.address})):
        for tile, (_, node) in engine.tile_results(engine.Cluster(NODES, 1), work, (tiling,), tiles):
            done.append(tile)
            used[len(done) > 60].add(node)
            if len(done) == 6:
                assert len(used[0]) <= FIRST
                for _ in range(NODES - FIRST):
                    nodes.add_node(wait=False, **NODE)
            if len(done) == 60:
                for node in nodes.own:
                    nodes.remove_node(node)
    assert sorted(done) == sorted(tiles)
    assert len(used[0] | used[1]) > FIRST + 2
    alone = grid(tmp_path / "alone")
    assert sum(blocks.work(alone, i, j) for i, j in TRIANGLE) == TEXTS * (TEXTS - 1) // 2
    ours, theirs = digests(tiling), digests(alone)
    assert ours == theirs
    assert np.all([blocks.read_cells(tiling, *tile).pairs.sum() > 0 for tile in TRIANGLE])


def test_an_actor_without_work_makes_room_for_one_that_has_lost_its_place(monkeypatch):
    """What is given to an actor whose node has gone waits until there is a place to start it again."""
    crew, ended, waits = Crew(None, engine.Cluster(3, 1), None, None), [], iter([[], [], ["the piece"], ["the piece"]])
    crew._actors, crew._beginning = ["busy", "spare"], {"its start": "late"}
    monkeypatch.setattr(ray, "kill", ended.append)
    monkeypatch.setattr(ray, "wait", lambda references, num_returns, timeout: (next(waits), []))
    monkeypatch.setattr(ray, "get", lambda reference: f"the result of {reference}")
    assert list(crew._each(lambda worker, item: item, ["the piece"])) == ["the result of the piece"]
    assert ended == ["late", "spare"]
    assert (crew._actors, crew._beginning) == (["busy"], {})


def test_a_last_cell_gets_room_too(monkeypatch):
    class Busy:
        @property
        def run(self):
            return self

        def options(self, **how):
            return self

        def remote(self, process, number, piece):
            return f"cell {number}"

    busy, spare, ended = Busy(), Busy(), []
    crew, waits = Crew(None, engine.Cluster(2, 1), None, None), iter([[], ["cell 0"], ["cell 0"]])
    crew._actors = [spare, busy]  # The last of them gets the first piece.
    monkeypatch.setattr(crew, "_hire", lambda wanted: None)
    monkeypatch.setattr(ray, "kill", ended.append)
    monkeypatch.setattr(ray, "wait", lambda references, num_returns, timeout: (next(waits), []))
    monkeypatch.setattr(ray, "get", lambda reference: {"told by": reference})
    assert list(crew.attempt(None, {0: None})) == [(0, {"told by": "cell 0"}, None)]
    assert ended == [spare]
