"""A cluster of twelve nodes on one machine that grows and shrinks while tiles are computed."""

import sys
import time

import numpy as np
import pytest
import ray
import shared_ray
from ray import cloudpickle
from tile_grid import TEXTS, TRIANGLE, digests, grid, tiled

from tempscale_jobs.config.sections import Execution
from tempscale_jobs.steps import blocks
from tempscale_jobs.workers import cluster as sessions

pytestmark = pytest.mark.soak

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
