"""Workers that cannot work where they are, nodes that leave, and nodes that come because work waits for them.

Nodes with declared resources: Ray places by what they declare. No model is loaded here.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import ray
import ray.exceptions
import shared_ray
from ray import cloudpickle

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.sections import Encoding, Execution
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.runs.folder import LOST, Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import actor, bfloat16, dispatch
from tempscale_jobs.workers import cluster as sessions
from tempscale_jobs.workers.dispatch import Crew, Piece, ask_for_workers, ask_nodes, results, run_tasks, run_with_ray_data

pytestmark = pytest.mark.proof


def node():
    return ray.get_runtime_context().get_node_id()


class OnSickNodes(actor.ModelActor):
    """Finds its card sick on the nodes that a file names; there is no model to load anywhere else."""

    def _load(self, storage, settings):
        self.storage = storage
        if node() in (storage.read("sick").decode() if storage.exists("sick") else ""):
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered")

    def computes_socm(self):
        return False


def where(worker, number):
    """The node that a piece ran on, where every node is slow enough to leave work for the others."""
    time.sleep(0.3)
    worker.storage.write(f"pieces/{number}-{time.time()}", node().encode())
    return node()


def lost_while_it_works(worker, number):
    """One process is lost in the first piece, and its card is sick from then on."""
    if number == 0 and worker.storage.create("first", b"1"):
        worker.storage.write("sick", node().encode())
        os._exit(70)
    return where(worker, number)


def not_reached(worker, number, times, name):
    """What Ray says of a worker on a node that it does not yet know to be lost, so many times of the first piece."""
    if number == 0 and any(worker.storage.create(f"{name}/{k}", b"1") for k in range(times)):
        raise ray.exceptions.ActorUnavailableError("no answer", None)
    return number


def until_its_node_goes(worker, number):
    """The first piece is at work until its node is taken away; the next worker that gets it finishes it."""
    if number == 0 and worker.storage.create("first", node().encode()):
        time.sleep(600)
    return where(worker, number)


@contextmanager
def cluster_of(*nodes, **execution):
    """A session on a cluster whose head has these resources first, then nodes."""
    from ray.cluster_utils import Cluster

    with shared_ray.guarded():
        head, *others = ({"object_store_memory": 100 << 20} | one for one in nodes)
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for other in others:
                cluster.add_node(**other)
            cluster.wait_for_nodes()
            cloudpickle.register_pickle_by_value(sys.modules[__name__])
            with sessions.session(Execution.model_validate({"address": cluster.address} | execution)) as session:
                yield session, cluster
        finally:
            cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
            cluster.shutdown()


@pytest.fixture
def crew(tmp_path, monkeypatch):
    """A function of a session that makes a crew whose actors find their cards sick on some nodes."""
    run = Run(Storage(str(tmp_path)), [Model("m", "m", "", 64)], [Temperature(1.0)], "2026-11-28")

    def crew(session):
        monkeypatch.setattr("tempscale_jobs.workers.dispatch.ModelActor", OnSickNodes)
        return Crew(run, session, run.models[0], Encoding.model_validate({}))

    return crew


def pieces(count):
    return [Piece(k, (k,), f"piece {k}") for k in range(count)]


def lost(folder):
    return [json.loads(file.read_text()) for file in (folder / LOST).glob("*.json")]


def until(happened, work=None):
    """Wait for what must happen within four minutes, since workers may start late, and before some work ends."""
    deadline = time.monotonic() + 240
    while not happened():
        assert work is None or not work.done(), work.result()
        assert time.monotonic() < deadline
        time.sleep(0.1)


HEAD, WITH_GPUS = {"num_cpus": 0, "num_gpus": 0}, {"num_cpus": 2, "num_gpus": 2}


def test_a_node_with_sick_cards_costs_only_its_own_work(no_ray, crew, tmp_path):
    with cluster_of(HEAD, WITH_GPUS, WITH_GPUS) as (session, nodes):
        sick, well = (one.node_id for one in nodes.worker_nodes)
        (tmp_path / "sick").write_text(sick)
        with crew(session) as own:
            found = dict(own.run(where, pieces(20)))
        assert {piece.number for piece in found} == set(range(20))
        assert set(found.values()) == {well}
    notes = lost(tmp_path)
    assert len(notes) >= 2, "both of its workers"
    assert all("ECC error" in note["reason"] and note["machine"] for note in notes)


def test_a_worker_that_is_lost_in_the_middle_leaves_its_pieces_to_others(no_ray, crew, tmp_path):
    with cluster_of(HEAD, WITH_GPUS, WITH_GPUS) as (session, _):
        with crew(session) as own:
            found = dict(own.run(lost_while_it_works, pieces(20)))
        assert {piece.number for piece in found} == set(range(20))
        sick = (tmp_path / "sick").read_text()
        assert set(found.values()) - {sick}
    assert lost(tmp_path)


def test_where_no_worker_can_start_the_run_ends_with_the_reason(no_ray, crew, tmp_path):
    with cluster_of(HEAD, WITH_GPUS) as (session, nodes):
        (tmp_path / "sick").write_text(nodes.worker_nodes.copy().pop().node_id)
        with crew(session) as own, pytest.raises(IncompleteRun, match="ECC error"):
            list(own.run(where, pieces(4)))
    assert len(lost(tmp_path)) <= 4


def test_a_node_that_drains_is_given_no_new_piece(no_ray, crew, tmp_path):
    with cluster_of(HEAD, {"num_cpus": 2, "num_gpus": 1}, {"num_cpus": 2, "num_gpus": 1}) as (session, nodes):
        from ray._raylet import GcsClient

        with crew(session) as own:
            found, drained, begun = {}, None, None
            for piece, on in own.run(where, pieces(60)):
                found[piece.number] = on
                if drained is None and len(set(found.values())) == 2:
                    drained, begun = on, time.time()
                    deadline = int((begun + 600) * 1000)
                    assert GcsClient(nodes.address).drain_node(drained, 2, "it is taken away", deadline)[0]
            others = [file for file in (tmp_path / "pieces").iterdir() if file.read_text() == drained]
        assert set(found) == set(range(60))
        late = [file for file in others if float(file.name.split("-")[1]) > begun + dispatch._DRAINING_SECONDS + 2]
        assert not late


def tile_on(folder, number, device):
    """A super-tile, which no card of a sick node computes."""
    storage, deadline = Storage(folder), time.monotonic() + 60
    if node() in storage.read("sick").decode():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    while len(storage.list(LOST)) < 2 and time.monotonic() < deadline:  # The sick machine's workers may start late.
        time.sleep(0.3)
    storage.write(f"tiles/{number}", node().encode())


def test_a_card_that_is_sick_in_the_middle_of_tiles_costs_only_its_own_work(no_ray, crew, tmp_path):
    with cluster_of(HEAD, WITH_GPUS, WITH_GPUS) as (session, nodes):
        sick, well = (one.node_id for one in nodes.worker_nodes)
        (tmp_path / "sick").write_text(sick)
        with crew(session) as own:
            done = list(own.tiles(tile_on, [Piece(k, (str(tmp_path), k), f"tile {k}") for k in range(20)]))
        assert sorted(piece.number for piece in done) == list(range(20))
        assert {file.read_text() for file in (tmp_path / "tiles").iterdir()} == {well}
    assert 2 <= len(lost(tmp_path)) <= 4


def test_no_work_is_given_up_because_of_a_card(no_ray, crew, tmp_path):
    """The process is lost in a piece, and says of the next try that its card is."""
    with cluster_of(HEAD, WITH_GPUS, WITH_GPUS) as (session, _), crew(session) as own:
        found = list(own.attempt(lost_while_it_works, pieces(12)))
    assert {piece.number for piece, *_ in found} == set(range(12))
    assert [given_up for *_, given_up in found] == [None] * 12


def test_a_piece_whose_worker_cannot_be_reached_is_given_out_again(no_ray, crew, tmp_path):
    """Ray may use up its retries before it knows that a node is lost: the piece is given out twice more, whoever asks."""
    with cluster_of(HEAD, WITH_GPUS) as (session, _), crew(session) as own:
        for way in ("attempt", "run"):
            for times in (1, 2, 3):
                work = [Piece(k, (k, times, f"{way}-{times}"), f"piece {k}") for k in range(5)]
                asked = tmp_path / f"{way}-{times}"
                if (way, times) == ("run", 3):
                    with pytest.raises(IncompleteRun):
                        list(own.run(not_reached, work))
                else:
                    found = list(getattr(own, way)(not_reached, work))
                    assert sorted(piece.number for piece, *_ in found) == list(range(5))
                    assert {piece.number for piece, result, *_ in found if result is None} == ({0} if times == 3 else set())
                assert len(list(asked.iterdir())) == times


def test_a_worker_without_work_makes_room_for_one_that_has_lost_its_place(no_ray, crew, tmp_path, monkeypatch):
    """Two machines of one GPU: the one whose worker is at work goes, and the other's worker has nothing to do."""
    monkeypatch.setattr(dispatch, "PATIENCE_SECONDS", 5)
    one_gpu = {"num_cpus": 2, "num_gpus": 1}
    with cluster_of(HEAD, one_gpu, one_gpu, workers=3) as (session, nodes), crew(session) as own:
        found, left = {}, None
        for piece, on in own.run(until_its_node_goes, pieces(4)):
            found[piece.number] = on
            if left is None:
                until((tmp_path / "first").exists)
                left = (tmp_path / "first").read_text()
                nodes.remove_node(next(one for one in nodes.worker_nodes if one.node_id == left))
        assert set(found) == set(range(4))
        assert found[0] != left


def test_where_the_first_machine_that_comes_is_sick_the_others_are_waited_for(no_ray, crew, tmp_path):
    one_gpu = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 100 << 20}
    with cluster_of(HEAD | {"resources": {"autoscaled_gpus": 3}}) as (session, nodes), ThreadPoolExecutor(1) as pool:
        (tmp_path / "sick").write_text("none yet")
        with crew(session) as own:
            work = pool.submit(lambda: dict(own.run(where, pieces(12))))
            until(lambda: waiting(nodes), work)
            sick = nodes.add_node(wait=False, **one_gpu)
            (tmp_path / "sick").write_text(sick.node_id)
            until(lambda: len(lost(tmp_path)) >= 2, work)
            time.sleep(5)
            assert not work.done(), work.result()
            well = nodes.add_node(**one_gpu)
            assert set(work.result(timeout=200).values()) == {well.node_id}
    assert 2 <= len(lost(tmp_path)) <= 3


def told(folder, number):
    """A tile's task, which tells where it runs; the first one runs until its node is taken away."""
    storage = Storage(folder)
    storage.write(f"running/{number}-{time.time()}", node().encode())
    if number == 0 and storage.create("first", node().encode()):
        time.sleep(600)
    return number


def test_a_task_that_is_lost_with_its_node_more_often_than_ray_tries_is_given_out_again(no_ray, tmp_path):
    with cluster_of(HEAD, {"num_cpus": 2}, {"num_cpus": 2}, workers=4) as (session, nodes):
        found, work, taken = [], [Piece(k, (str(tmp_path), k)) for k in range(16)], None
        for piece, number in run_tasks(session, told, work, how={"max_retries": 0}):
            assert piece.number == number
            found.append(number)
            if taken is None:
                until((tmp_path / "first").exists)
                taken = (tmp_path / "first").read_text()
                nodes.remove_node(next(one for one in nodes.worker_nodes if one.node_id == taken), allow_graceful=False)
    assert sorted(found) == list(range(16))
    begun = [(int(file.name.split("-")[0]), file.read_text()) for file in (tmp_path / "running").iterdir()]
    again = {number for number, _ in begun if [other for other, _ in begun].count(number) > 1}
    assert 0 in again
    assert all((number, taken) in begun for number in again), "only what the node had was begun twice"


def waiting(nodes):
    """Whether Ray holds work for which it has no place, which is what makes an autoscaler start nodes."""
    from ray._raylet import GcsClient
    from ray.autoscaler.v2.sdk import get_cluster_resource_state

    return bool(get_cluster_resource_state(GcsClient(nodes.address)).pending_resource_requests)


def placed(number, folder):
    """Leave the node that a unit was read on."""
    Storage(folder).write(f"read/{number}", node().encode())


def read(session, folder):
    list(run_with_ray_data(session, placed, pieces(6), {"folder": str(folder)}, {}))
    return {file.read_text() for file in (folder / "read").iterdir()}


def helped(session, folder):
    return set(results(session, node, [()] * 6, "look-up"))


def asked(session, folder):
    return {one for _, one in ask_nodes(node, {None: ()}, {"num_gpus": bfloat16.LITTLE})}


@pytest.mark.parametrize("work", [read, helped, asked])
def test_a_cluster_that_begins_with_a_head_alone_gets_nodes_because_work_waits(no_ray, tmp_path, work):
    with cluster_of(HEAD | {"resources": {"autoscaled_gpus": 2}}) as (session, nodes), ThreadPoolExecutor(1) as pool:
        assert (session.workers, session.gpus) == (2, 1)
        used, head = pool.submit(work, session, tmp_path), nodes.head_node.node_id
        until(lambda: waiting(nodes), used)  # What an autoscaler does: add a node once something waits for one.
        nodes.add_node(object_store_memory=100 << 20, **WITH_GPUS)
        assert used.result(timeout=120)
        assert head not in used.result()


def test_the_places_of_all_workers_are_asked_for_before_the_source_is_read(no_ray):
    with cluster_of(HEAD | {"resources": {"autoscaled_gpus": 2}}) as (session, nodes):
        assert not waiting(nodes)
        ask_for_workers(session)
        until(lambda: waiting(nodes))


def test_actors_that_hold_all_processors_leave_room_for_helpers(no_ray, tmp_path):
    """As in a cluster that has become smaller."""
    with cluster_of({"num_cpus": 2}, workers=2) as (session, _):
        holders = [ray.remote(**session.claim)(actor.PlainActor).remote(0) for _ in range(2)]
        ray.get([holder.started.remote() for holder in holders])
        assert len(results(session, node, [()] * 4, "look-up")) == 4
        prepared = run_with_ray_data(session, placed, pieces(4), {"folder": str(tmp_path)}, {})
        assert len(list(prepared)) == 4


def test_workers_with_gpus_leave_the_processors_to_what_prepares_their_work(no_ray, crew, tmp_path):
    with cluster_of(HEAD, {"num_cpus": 2, "num_gpus": 2}) as (session, _), crew(session) as own:
        assert len(dict(own.run(where, pieces(6)))) == 6
        assert len(own.actors) == 2
        assert len(results(session, node, [()] * 4, "look-up")) == 4
        assert len(list(run_with_ray_data(session, placed, pieces(4), {"folder": str(tmp_path)}, {}))) == 4


def held_back(seconds):
    time.sleep(seconds)
    return node()


def test_a_node_that_does_not_answer_is_not_waited_for(no_ray):
    with cluster_of({"num_cpus": 1}, {"num_cpus": 1}) as (_, nodes):
        quick, late = nodes.head_node.node_id, nodes.worker_nodes.copy().pop().node_id
        begun = time.monotonic()
        answers = dict(ask_nodes(held_back, {quick: (0,), late: (600,)}, patience=2))
        assert answers == {quick: quick, late: None}
        assert time.monotonic() - begun < 60


def variables():
    return {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OF_THE_JOB")}


@pytest.mark.parametrize("threads", ["1", "8"])
def test_a_job_with_variables_of_its_own_for_its_workers_is_joined(no_ray, monkeypatch, threads):
    """Ray refuses equal names in a job and in what it runs; one thread decides bytes, and the job's other variables stay."""
    own = {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": threads, "OF_THE_JOB": "yes"}}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(own))
    with cluster_of({"num_cpus": 1}) as (session, _):
        (seen,) = results(session, variables, [()], "look")
    assert seen == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OF_THE_JOB": "yes"}
