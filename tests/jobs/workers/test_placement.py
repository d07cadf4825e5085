"""Where the work goes on a cluster with GPUs: declared ones, since Ray places by what nodes declare. No kernel runs here."""

import collections
import json
import os
import sys
import time
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pytest
import ray
import shared_ray
from ray import cloudpickle
from tile_grid import tiled

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.sections import Encoding, Execution
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs import provenance
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import actor, dispatch
from tempscale_jobs.workers import cluster as sessions
from tempscale_jobs.workers import nodes as shared
from tempscale_jobs.workers.dispatch import Crew, Piece, later, results
from tempscale_jobs.workers.meter import Meter, Turn
from tempscale_jobs.workers.nodes import answer

pytestmark = pytest.mark.proof

NODES, GPUS = 2, 2


def here():
    """The node and the GPUs of this process."""
    return {
        "node": ray.get_runtime_context().get_node_id(), "pid": os.getpid(),
        "gpus": ",".join(map(str, ray.get_gpu_ids())), "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }  # fmt: skip


class PlacedActor(actor.ModelActor):
    """Says where it is instead of loading a model."""

    able, failed = False, None

    def __init__(self, gpus, settings, **arguments):
        self.meter = Meter("", "")
        self.turn = Turn(self.meter)
        self.gpus, self.budget = gpus, settings["token_budget"]

    def computes_socm(self):
        return self.able

    def unload(self):
        pass


def placed_socm(folder, number, device="cpu"):
    (folder / str(number)).write_text(f"{device} {os.getpid()} {','.join(map(str, ray.get_gpu_ids()))}")


def placed(worker, number, work=None):
    time.sleep(0.2)  # So that there is work left for the actors that start last.
    return {"number": number, "budget": worker.budget, "asked": worker.gpus, **here()}


def placed_among(worker, number, folder, actors):
    """Where a piece is that waits until so many actors have one."""
    (folder / str(os.getpid())).touch()
    for _ in range(600):
        if len(list(folder.iterdir())) >= actors:
            break
        time.sleep(0.1)
    return placed(worker, number)


def prepared(number):
    return pa.table({"k": [number]})


def placed_tile(folder, i, j, device="cpu"):
    time.sleep(0.5)  # So that actors which start later get some too.
    (folder / f"{i}-{j}.json").write_text(json.dumps({"device": device, **here()}))


def reports_of(folder):
    """What the tiles wrote."""
    return [json.loads(file.read_text()) for file in folder.glob("*.json")]


@pytest.fixture(scope="module")
def cluster(no_ray):
    """Two nodes of two GPUs beside one without."""
    from ray.cluster_utils import Cluster

    with shared_ray.guarded():
        head = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 100 << 20}
        nodes = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(NODES):
                nodes.add_node(num_cpus=2, num_gpus=GPUS, object_store_memory=100 << 20)
            nodes.wait_for_nodes()
            cloudpickle.register_pickle_by_value(sys.modules[__name__])
            with sessions.session(Execution.model_validate({"address": nodes.address})) as session:
                yield session
        finally:
            cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
            nodes.shutdown()


@pytest.fixture
def crew(cluster, tmp_path, monkeypatch):
    """A function of the actors' class and of the cluster that makes a crew of them."""
    run = Run(Storage(str(tmp_path)), [Model("m", "m", "", 64)], [Temperature(1.0)], "2026-11-22")

    def crew(kind=PlacedActor, cluster=cluster):
        monkeypatch.setattr("tempscale_jobs.workers.dispatch.ModelActor", kind)
        return Crew(run, cluster, run.models[0], Encoding.model_validate({}))

    return crew


def pieces(count):
    return [Piece(k, (k,)) for k in range(count)]


def placed_and_written(folder, worker, number, work=None):
    """One at a time runs the model; what is left to do, the next one runs beside."""
    begun = time.time()
    time.sleep(0.3)
    ran = time.time()

    def write():
        time.sleep(0.5)
        told = {"number": number, "begun": begun, "ran": ran, "written": time.time(), **here()}
        (folder / f"{number}.json").write_text(json.dumps(told))

    return write


def placed_in_turn(folder, worker, number, work):
    """The same, of a function that takes the model's turn itself."""
    with worker.turn:
        write = placed_and_written(folder, worker, number)
    write()


def check(reports, actors):
    """Each process has one GPU for itself, on a node that has GPUs, and they are spread over all of them."""
    places = {report["pid"]: (report["node"], report["gpus"]) for report in reports}
    assert len(places) == len(set(places.values())) == actors
    for report in reports:
        assert report["gpus"] in {"0", "1"}
        assert report["visible"] == report["gpus"]
    per_node = collections.Counter(node for node, _ in places.values())
    assert max(per_node.values()) <= GPUS
    return per_node


def beside(folder, number, wanted):
    """How many tasks run beside this one, itself included, once so many have begun."""
    (folder / f"begun-{number}").touch()
    deadline = time.time() + 60
    while len(list(folder.glob("begun-*"))) < wanted and time.time() < deadline:
        time.sleep(0.05)
    found = len(list(folder.glob("begun-*"))) - len(list(folder.glob("ended-*")))
    (folder / f"ended-{number}").touch()
    return found


def test_tasks_have_the_cpus_beside_the_gpus(cluster, tmp_path):
    """Five CPUs, one of them left to the driver; where workers have no GPUs their number counts, as the user gave it."""
    one_gpu, one_cpu = sessions.Cluster(1, 1), sessions.Cluster(1, 0)
    assert (one_gpu.tasks, one_cpu.tasks, sessions.Cluster(9, 1).tasks) == (4, 1, 9)
    assert actor.ahead(one_gpu) == 32  # As many run as there are CPUs, those of nodes to come among them.
    for own, together in ((one_gpu, 4), (one_cpu, 1)):
        folder = tmp_path / str(together)
        folder.mkdir()
        found = results(own, beside, [(folder, number, together) for number in range(8)], "task")
        assert max(found) == together


def ends(file):
    """End after half a second."""
    time.sleep(0.5)
    file.touch()


@pytest.mark.parametrize("alone", [True, False])
def test_one_task_at_a_time_if_the_cluster_says_so(cluster, tmp_path, alone):
    own = sessions.Cluster(3, 0, one_at_a_time=alone)
    assert own.tasks == (1 if alone else 3)
    reference = later(own, ends, tmp_path / "later")
    assert (tmp_path / "later").exists() == alone
    ray.get(reference)
    found = results(own, beside, [(tmp_path, number, own.tasks) for number in range(4)], "task")
    assert max(found) == own.tasks


def failing(number):
    raise OSError("the disk is gone")


def failing_work(worker, number, work):
    raise ValueError("the model is gone")


@pytest.mark.soak
def test_what_fails_ahead_of_the_actors_or_in_them_is_told_by_its_own_words(crew):
    with crew() as own:
        with pytest.raises(IncompleteRun, match="OSError: the disk is gone"):
            list(own.stream(placed, pieces(3), failing, {}))
        with pytest.raises(IncompleteRun, match="ValueError: the model is gone"):
            list(own.stream(failing_work, pieces(3), prepared, {}))
        assert len(list(own.stream(placed, pieces(3), prepared, {}))) == 3  # The crew outlives a failure.


def test_a_crew_has_all_gpus_and_its_actors_compute_the_tiles_too(crew, tmp_path):
    tiles = [(i, j) for i in range(6) for j in range(i, 6)]
    with crew() as own:
        (tmp_path / "processes").mkdir()
        given = [piece._replace(arguments=(*piece.arguments, tmp_path / "processes", NODES * GPUS)) for piece in pieces(16)]
        reports = [report for _, report in own.run(placed_among, given)]
        for number in range(2):  # One temperature after another.
            (tmp_path / str(number)).mkdir()
            given = [Piece(tile, (tmp_path / str(number), *tile)) for tile in tiles]
            assert sorted(piece.number for piece in own.tiles(placed_tile, given)) == tiles
    assert len(check(reports, NODES * GPUS)) == NODES
    assert {(report["asked"], report["budget"]) for report in reports} == {(1, None)}  # The encoder knows its device.
    for number in range(2):
        found = reports_of(tmp_path / str(number))
        assert {report["device"] for report in found} == {"cuda"}
        assert {report["pid"] for report in found} == {report["pid"] for report in reports}  # No other one was started.


def test_an_actor_that_starts_for_tiles_loads_no_model(crew, tmp_path):
    """Such as that of a run that is resumed after all texts were embedded."""

    class Loading(PlacedActor):
        def __init__(self, **arguments):
            raise RuntimeError("a model was loaded")

    with crew(Loading) as own:
        assert len(list(own.tiles(placed_tile, [Piece((0, 0), (tmp_path, 0, 0))]))) == 1
    assert len(reports_of(tmp_path)) == 1


def test_tiles_of_given_embeddings_have_all_gpus(cluster, tmp_path):
    tiles = [(i, j) for i in range(9) for j in range(i, 9)]  # So many that an actor which starts late gets some.
    assert sorted(tiled(cluster, placed_tile, (tmp_path,), tiles)) == tiles
    found = reports_of(tmp_path)
    assert {report["device"] for report in found} == {"cuda"}
    assert len(check(found, NODES * GPUS)) == NODES


@pytest.mark.parametrize("through", ["stream", "run"])
def test_a_piece_is_written_while_the_next_one_runs_the_model(crew, tmp_path, through):
    folder = tmp_path / "told"
    folder.mkdir()
    with crew(cluster=sessions.Cluster(1, 1)) as own:
        if through == "stream":
            done = list(own.stream(partial(placed_in_turn, folder), pieces(6), prepared, {}))
        else:
            done = list(own.run(partial(placed_and_written, folder), pieces(6)))
        assert len(done) == 6
    reports = sorted(reports_of(folder), key=lambda report: report["begun"])
    assert sorted(report["number"] for report in reports) == list(range(6))
    assert len({report["pid"] for report in reports}) == 1
    for before, after in pairwise(reports):
        assert before["ran"] <= after["begun"]  # The model serves one at a time,
    assert any(after["begun"] < before["written"] for before, after in pairwise(reports))


@pytest.mark.parametrize("able", [True, False])
def test_socm_is_computed_on_gpus_that_are_made_for_it_and_beside_others(crew, tmp_path, able):
    """A GPU may be worth its float64."""

    class Able(PlacedActor):
        pass

    Able.able = able
    folder = tmp_path / "said"
    folder.mkdir()
    with crew(Able) as own:
        done = list(own.call(placed_socm, [Piece(k, (folder, k)) for k in range(9)], socm=True))
        other = list(own.call(placed_socm, [Piece(100, (folder, 100))]))
    assert sorted(piece.number for piece in [*done, *other]) == [*range(9), 100]
    said = {int(file.name): file.read_text().split(" ") for file in folder.iterdir()}
    assert said.pop(100)[::2] == ["cpu", ""]
    assert {(device, bool(gpu)) for device, _, gpu in said.values()} == {("cuda", True) if able else ("cpu", False)}


def test_several_actors_share_a_gpu(cluster, crew):
    together = sessions.Cluster(2 * NODES * GPUS, 1, actors_per_gpu=2)
    assert (cluster.workers, cluster.gpus) == (NODES * GPUS, 1)
    claims = [own.claim for own in (together, cluster, sessions.Cluster(3, 0))]
    assert claims == [
        {"num_gpus": 0.5, "num_cpus": 0}, {"num_gpus": 1, "num_cpus": 0}, {"num_cpus": 1 - sessions.HELPER_CPUS},
    ]  # fmt: skip
    with crew(cluster=together) as own:
        own.hire(together.workers)
        reports = [report for _, report in own.run(placed, pieces(60))]
    on_gpu = collections.defaultdict(set)
    for report in reports:
        on_gpu[report["node"], report["gpus"]].add(report["pid"])
    assert max(map(len, on_gpu.values())) == 2
    assert len(on_gpu) >= GPUS


def test_the_allocator_grows_its_segments_unless_the_node_says_otherwise(monkeypatch):
    for name in sessions.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    actor.PlainActor(1)
    assert {os.environ[name] for name in sessions.ALLOCATOR} == {"expandable_segments:True"}
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    sessions.grow_segments()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert "PYTORCH_ALLOC_CONF" not in os.environ


def elsewhere(roots, models, token, node):
    """As a node answers whose folders are its own."""
    return answer([f"{root}-elsewhere" for root in roots], models, token, node)


def test_every_node_proves_that_it_shares_the_folders(cluster, tmp_path, monkeypatch):
    out = Storage(str(tmp_path / "run"))
    run = Run(out, [Model("m", str(tmp_path), "", 64)], [], "")
    shared.check_run(run, [("--out", out)])
    (sentence,) = provenance.processors(out, {"another"})
    assert shared.processor() in sentence
    assert not list((tmp_path / "run").glob(f"{shared.PROOF}*"))
    with pytest.raises(UsageError, match="'/nowhere/model'"):
        shared.check_shared([("--out", out)], ["/nowhere/model"])
    monkeypatch.setattr(shared, "answer", elsewhere)
    with pytest.raises(UsageError, match=f"--out '{out.root}'.* node"):
        shared.check_shared([("--out", out)], [])
    assert not list((tmp_path / "run").glob(f"{shared.PROOF}*"))


def test_a_node_that_gives_no_answer_ends_the_run_and_tasks_run_where_their_files_are(cluster, tmp_path, monkeypatch):
    out, file = Storage(str(tmp_path / "run")), tmp_path / "corpus.jsonl"
    file.write_text("{}")
    assert shared.that_sees([]) == shared.that_sees([str(file)]) == {}
    assert [shared.sees([sized]) for sized in ((str(file), 2), (str(file), 3), ("/nowhere", 2))] == [True, False, False]
    here = {"label_selector": {shared.NODE_LABEL: ray.get_runtime_context().get_node_id()}}
    answers = {}
    monkeypatch.setattr(shared, "ask_nodes", lambda ask, nodes, **how: ((node, answers.get(node)) for node in nodes))
    with pytest.raises(IncompleteRun):
        shared.check_shared([("--out", out)], [])
    for last in (False, None):  # It does not see the file; it gives no answer.
        answers |= dict.fromkeys((node["NodeID"] for node in ray.nodes()), True) | {ray.nodes()[-1]["NodeID"]: last}
        assert shared.that_sees([str(file)]) == here


def test_a_node_answers_for_each_folder_and_model(tmp_path):
    """Folders that it sees and can write, that it does not see, and whose files it cannot write."""
    folders = [tmp_path / name for name in ("shared", "its own", "read-only")]
    for folder in (folders[0], folders[2]):
        Storage(str(folder)).write(f"{shared.PROOF}-token/driver", b"token")
    Storage(str(folders[1])).write(f"{shared.PROOF}-token/driver", b"another")
    (folders[2] / f"{shared.PROOF}-token" / "node").mkdir()  # In the way of the file that would be its answer.
    read, models, kind = answer([str(folder) for folder in folders], [str(tmp_path), "/nowhere"], "token", "node")
    assert read == [True, False, False]
    assert models == [True, False]
    assert kind == shared.processor()
    assert (folders[0] / f"{shared.PROOF}-token" / "node").read_bytes() == b"token"
    assert not (folders[1] / f"{shared.PROOF}-token" / "node").exists()


def test_a_node_that_dies_while_it_is_asked_costs_nothing(tmp_path, monkeypatch):
    """Ray as far as the question needs it: two nodes, of which the first has gone."""
    nodes, asked = ["ab" * 28, "cd" * 28], {}

    class Asked:
        def options(self, scheduling_strategy):
            self.node = scheduling_strategy.node_id
            return self

        def remote(self, *given):
            asked[self.node] = given
            return self.node

    def answered(node):
        if node == nodes[0]:
            raise ray.exceptions.NodeDiedError("it was taken away")
        return answer(*asked[node])

    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": n, "NodeManagerAddress": n[:2], "Alive": True} for n in nodes])
    monkeypatch.setattr(ray, "remote", lambda **how: lambda task: Asked())
    monkeypatch.setattr(ray, "get", answered)
    monkeypatch.setattr(ray, "wait", lambda references, **how: (references, []))
    out = Storage(str(tmp_path / "run"))
    assert shared.check_shared([("--out", out)], [str(tmp_path)]) == {shared.processor()}
    assert [*asked] == nodes
    assert out.list("") == []
    with pytest.raises(UsageError, match=r"'/nowhere/model'.* node cd"):
        shared.check_shared([("--out", out)], ["/nowhere/model"])


@pytest.mark.soak
def test_an_actor_that_finds_no_place_gets_no_work(cluster, tmp_path):
    """A cluster that is smaller than it said: what an actor without a place was given would wait for ever."""
    said = sessions.Cluster(NODES * GPUS + 2, 1)
    assert len(list(tiled(said, placed_tile, (tmp_path,), [(i, i) for i in range(12)]))) == 12
    found = reports_of(tmp_path)
    assert len(found) == 12
    check(found, len({report["pid"] for report in found}))


class Greedy(sessions.Cluster):
    """Its workers want more GPUs than a node has."""

    @property
    def claim(self):
        return {"num_gpus": GPUS + 1}


def test_workers_that_never_find_a_place_end_the_run(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(dispatch, "NO_PROGRESS_SECONDS", 2)
    with pytest.raises(IncompleteRun, match="no worker"):
        list(tiled(Greedy(1, 1), placed_tile, (tmp_path,), [(0, 0)]))
