"""The Ray that a run starts on its machine: what its workers inherit, and what this process keeps."""

import os

import pytest
import ray

from tempscale_jobs.config.sections import Execution
from tempscale_jobs.workers import cluster as sessions

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("no_ray")]
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
    "RAYON_NUM_THREADS",
    "POLARS_MAX_THREADS",
)


def of_this_process():
    return {name: os.environ.get(name) for name in VARIABLES}


def threads():
    """This process's variables, and the threads of each library that reads them."""
    import numpy as np
    import polars as pl
    import torch
    from threadpoolctl import threadpool_info

    np.eye(2) @ np.eye(2)
    most = max(pool["num_threads"] for pool in threadpool_info())
    return os.getpid(), of_this_process(), (torch.get_num_threads(), pl.thread_pool_size(), most)


class Counting:
    def threads(self):
        return threads()


def test_workers_have_one_thread_each_and_this_process_keeps_its_own(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for name in VARIABLES[1:]:
        monkeypatch.delenv(name, raising=False)
    own, execution = of_this_process(), Execution.model_validate({"workers": 1})
    with sessions.session(execution):
        assert of_this_process() == own
        actor = ray.remote(num_cpus=1)(Counting).remote()
        found = [ray.get(ray.remote(num_cpus=1)(threads).remote()), ray.get(actor.threads.remote())]
    assert of_this_process() == own
    for pid, variables, most in found:
        assert pid != os.getpid()
        assert most == (1, 1, 1)
        assert variables == {name: "false" if name.startswith("TOKENIZERS") else "1" for name in VARIABLES}


@pytest.mark.parametrize(
    ("gpus", "workers", "cpus"), [(False, 8, 9), (True, 8, 16), (True, 40, 41), (False, None, 17), (True, None, 17)]
)
def test_a_machine_with_gpus_starts_with_all_of_its_processors(gpus, workers, cpus):
    """Its workers wait for GPUs, and what tokenises for them for processors. Sixteen are here, and one for the driver."""
    assert sessions.cpus_of_ray(workers, 16, gpus) == cpus
