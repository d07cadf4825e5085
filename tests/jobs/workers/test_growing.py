"""A cluster of twelve nodes on one machine that grows and shrinks while tiles are computed."""

import sys
import time

import numpy as np
import pytest
import ray
import ray.exceptions
import shared_ray
from ray import cloudpickle
from tile_grid import TEXTS, TRIANGLE, digests, grid, tiled

from tempscale_jobs.collapse import blocks
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.workers import engine
from tempscale_jobs.workers.crew import Crew
from tempscale_jobs.workers.slow import Kind

pytestmark = pytest.mark.proof

NODES, FIRST = 12, 2


@pytest.fixture
def nodes(no_ray):
    """A head without a GPU and two nodes of one, which is declared; twelve are said to come."""
    from ray.cluster_utils import Cluster

    with shared_ray.guarded():
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
        time.sleep(0.5)
        blocks.work(tiling, i, j)
        (tmp_path / ray.get_runtime_context().get_node_id()).touch()

    done, used = [], [set(), set()]
    with engine.session(Execution.model_validate({"address": nodes.address})):
        for tile in tiled(engine.Cluster(NODES, 1), work, (tiling,), tiles):
            done.append(tile)
            used[len(done) > 60] |= {file.name for file in tmp_path.iterdir()} - {"run"} - used[0]
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


@pytest.fixture
def crew(monkeypatch):
    """A function of actors, and of what Ray says whenever the crew waits, that makes a crew of them."""

    def crew(actors, waits):
        found, said = Crew(None, engine.Cluster(3, 1), None, None), iter(waits)
        found.actors = actors
        monkeypatch.setattr(found, "hire", lambda wanted: None)
        monkeypatch.setattr(ray, "wait", lambda references, num_returns, timeout: (next(said), []))
        monkeypatch.setattr(ray, "get", lambda reference: {"told by": reference})
        found.ended = []
        monkeypatch.setattr(ray, "kill", found.ended.append)
        return found

    return crew


def test_an_actor_without_work_makes_room_for_one_that_has_lost_its_place(crew):
    """What is given to an actor whose node has gone waits until there is a place to start it again."""
    own = crew(["busy", "spare"], [[], [], ["the piece"], ["the piece"]])
    own.beginning = {"its start": "late"}
    assert list(own.each(lambda worker, item: item, ["the piece"])) == [{"told by": "the piece"}]
    assert own.ended == ["late", "spare"]
    assert (own.actors, own.beginning) == (["busy"], {})


@pytest.mark.parametrize(("cost", "order"), [(None, [0, 1, 2, 3]), ([1, 3, 2, 3].__getitem__, [1, 3, 2, 0])])
def test_the_costliest_piece_is_given_out_first(crew, monkeypatch, cost, order):
    own = crew([], [])
    monkeypatch.setattr(own, "each", lambda submit, numbers, kind: numbers)
    assert list(own.work(None, dict.fromkeys([2, 0, 1, 3]), kind=Kind("piece", cost))) == order


class Named:
    """An actor that says that it has started again under its own name."""

    def __init__(self, name):
        self.name = name

    @property
    def started(self):  # As the crew asks for it.
        return self

    def remote(self):
        return f"{self.name} is ready"


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_piece_whose_worker_cannot_be_reached_is_given_out_again(monkeypatch, lost):
    """Ray may use up its retries before it knows that a node is lost; a worker gets nothing until it has started again."""
    first, second = Named("first"), Named("second")
    crew, given, waited = Crew(None, engine.Cluster(2, 1), None, None), [], []
    crew.actors = [first, second]

    def submit(worker, item):
        given.append((worker.name, item))
        return len(given) - 1

    def wait(references, num_returns, timeout):
        references = list(references)
        waited.append(references)
        return references[:1], references[1:]

    def get(reference):
        if isinstance(reference, str):
            return None
        item = given[reference][1]
        if item == "lost" and [own for _, own in given[: reference + 1]].count(item) <= lost:
            raise ray.exceptions.ActorUnavailableError("no answer", None)
        return item

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)
    pieces = crew.each(submit, ["lost", "one", "two", "three", "four"])
    if lost == 3:
        with pytest.raises(ray.exceptions.ActorUnavailableError):
            list(pieces)
        assert given.count(("first", "lost")) + given.count(("second", "lost")) == 3
        return
    assert sorted(pieces) == ["four", "lost", "one", "three", "two"]
    assert len(given) == 5 + lost
    assert next(name for name, item in given if item == "lost") == "first"
    assert any("first is ready" in references for references in waited)
    assert {*crew.actors, *crew.beginning.values()} == {first, second}


def test_a_last_cell_gets_room_too(crew):
    class Busy:
        @property
        def run(self):
            return self

        def options(self, **how):
            return self

        def remote(self, process, number, piece):
            return f"cell {number}"

    busy, spare = Busy(), Busy()
    own = crew([spare, busy], [[], ["cell 0"], ["cell 0"]])  # The last of them gets the first piece.
    assert list(own.attempt(None, {0: None})) == [(0, {"told by": "cell 0"}, None)]
    assert own.ended == [spare]
