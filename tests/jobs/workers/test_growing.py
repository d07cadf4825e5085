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

from tempscale_jobs.config.sections import Execution
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.steps import blocks
from tempscale_jobs.workers import cluster as sessions
from tempscale_jobs.workers.dispatch import Crew, Piece

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
        blocks.compare_panels(tiling, i, j)
        (tmp_path / ray.get_runtime_context().get_node_id()).touch()

    done, used = [], [set(), set()]
    with sessions.session(Execution.model_validate({"address": nodes.address})):
        for tile in tiled(sessions.Cluster(NODES, 1), work, (tiling,), tiles):
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
    assert sum(blocks.compare_panels(alone, i, j) for i, j in TRIANGLE) == TEXTS * (TEXTS - 1) // 2
    ours, theirs = digests(tiling), digests(alone)
    assert ours == theirs
    assert np.all([blocks.read_cells(tiling, *tile).pairs.sum() > 0 for tile in TRIANGLE])


class Method:
    def __init__(self, remote):
        self.remote = remote

    def options(self, **how):
        return self


class Actor:
    """Stands for an actor: what it is given comes back as (its name, the piece)."""

    def __init__(self, name, given):
        self.name, self.started = name, Method(lambda: f"{name} is ready")
        self.run = Method(lambda function, number: given.append((name, number)) or len(given) - 1)


@pytest.fixture
def crew(monkeypatch):
    """A function of actors' names, and of what Ray says whenever the crew waits, that makes a crew of them."""

    def crew(names, waits=()):
        found, said, given = Crew(None, sessions.Cluster(3, 1), None, None), iter(waits), []
        found.actors, found.given, found.ended = [Actor(name, given) for name in names], given, []
        monkeypatch.setattr(found, "hire", lambda wanted: None)
        monkeypatch.setattr(ray, "wait", lambda references, num_returns, timeout: (next(said), []))
        monkeypatch.setattr(ray, "get", lambda reference: {"told by": given[reference]})
        monkeypatch.setattr(ray, "kill", lambda actor: found.ended.append(getattr(actor, "name", actor)))
        return found

    return crew


def pieces(*numbers, cost=None):
    return [Piece(k, (k,), cost=1.0 if cost is None else cost[k]) for k in numbers]


@pytest.mark.parametrize("way", ["run", "attempt"])
def test_an_actor_without_work_makes_room_for_one_that_has_lost_its_place(crew, way):
    """What is given to an actor whose node has gone waits until there is a place to start it again."""
    own = crew(["busy", "spare"], [[], [], [0], [0]])
    own.starting = {"its start": "late"}
    ((piece, result, *_),) = getattr(own, way)(None, pieces(7))
    assert (piece.number, result) == (7, {"told by": ("busy", 7)})
    assert own.ended == ["late", "spare"]
    assert ([actor.name for actor in own.actors], own.starting) == (["busy"], {})


@pytest.mark.parametrize(("cost", "order"), [(None, [2, 0, 1, 3]), ([1, 3, 2, 3], [1, 3, 2, 0])])
def test_the_costliest_piece_is_given_out_first(crew, cost, order):
    own = crew(["one"], [[k] for k in range(4)])
    assert len(list(own.run(None, pieces(2, 0, 1, 3, cost=cost)))) == 4
    assert [number for _, number in own.given] == order


@pytest.mark.parametrize("way", ["run", "attempt"])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_piece_whose_worker_cannot_be_reached_is_given_out_again(crew, monkeypatch, lost, way):
    """Ray may use up its retries before it knows that a node is lost; a worker gets nothing until it has started again."""
    own, waited = crew(["first", "second"]), []

    def wait(references, num_returns, timeout):
        references = list(references)
        waited.append(references)
        return references[:1], references[1:]

    def get(reference):
        if isinstance(reference, str):
            return None
        _, number = own.given[reference]
        if number == 0 and [given for _, given in own.given[: reference + 1]].count(0) <= lost:
            raise ray.exceptions.ActorUnavailableError("no answer", None)
        return number

    def start(wanted):
        own.starting["a new one is ready"] = Actor("new", own.given)

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(own, "start", start)
    done = getattr(own, way)(None, pieces(0, 1, 2, 3, 4))
    if lost == 3 and way == "run":
        with pytest.raises(IncompleteRun):
            list(done)
        assert [number for _, number in own.given].count(0) == 3
        return
    found = {piece.number: result for piece, result, *_ in done}
    assert found == {0: 0 if lost < 3 else None, 1: 1, 2: 2, 3: 3, 4: 4}
    assert len(own.given) == 5 + min(lost, 2)
    assert own.given[0] == ("first", 0)
    assert any("first is ready" in references for references in waited)
    if lost < 3:
        assert {actor.name for actor in [*own.actors, *own.starting.values()]} == {"first", "second"}
    else:  # Given up with its worker, which another one replaces.
        assert len(own.ended) == 1
        assert own.ended[0] in {"first", "second"}
