"""Shards that fill a GPU: settled when a run begins, by where its workers are, and kept wherever it goes on."""

from contextlib import contextmanager

import pytest
import torch

from tempscale_jobs.audit import run as audits
from tempscale_jobs.config.audit import SHARDS_OF_GPUS, resolve
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import cluster as sessions


@pytest.fixture
def begin(tmp_path):
    def begin(out="run", **embedding):
        place, source = str(tmp_path / out), str(tmp_path / "texts.jsonl")
        config = resolve({"out": place, "corpus": {"source": source}, "embedding": {"temperatures": [1.0]} | embedding})
        return config, Run(Storage(place), [Model("m", "m", "", 64)], config.temperatures(), "2026-11-22")

    return begin


@pytest.fixture
def workers_hold_gpus(monkeypatch):
    return lambda whether: monkeypatch.setattr(audits, "holds_gpus", lambda execution: whether)


def test_a_run_keeps_the_shards_that_it_began_with(begin, workers_hold_gpus):
    config, run = begin()
    for gpus in (True, False):  # It goes on where there are none.
        workers_hold_gpus(gpus)
        own = audits.sized(config, run)
        sizes = own.embedding.shard_texts, own.embedding.shard_characters
        assert sizes == (16_384, 1 << 22) == tuple(SHARDS_OF_GPUS.values())
    assert config.identity() == own.identity() | {"embedding": config.identity()["embedding"]}
    for given in ({"shard_texts": 100}, {"shard_characters": 131_072}):
        workers_hold_gpus(True)
        config, run = begin("given", **given)
        assert audits.sized(config, run) is config


@pytest.mark.parametrize("name", [folder.SHARDED, folder.PLANNED])
def test_a_run_that_began_without_gpus_goes_on_so(begin, workers_hold_gpus, name):
    config, run = begin()
    workers_hold_gpus(False)
    assert audits.sized(config, run) is config
    run.storage.write_json(name, {})
    workers_hold_gpus(True)
    assert audits.sized(config, run) is config
    assert not run.storage.exists(folder.SIZES)


def test_whether_workers_hold_gpus_is_asked_of_this_machine_or_of_the_cluster(monkeypatch):
    monkeypatch.setattr(sessions, "initialized", lambda: False)
    for count in (0, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert sessions.holds_gpus(Execution()) == bool(count)
    asked = []

    @contextmanager
    def session(execution):
        asked.append(execution.address)
        yield sessions.Cluster(3, 1)
        asked.append("left")

    monkeypatch.setattr(sessions, "session", session)
    assert sessions.holds_gpus(Execution(address="head:6379"))
    assert asked == ["head:6379", "left"]
