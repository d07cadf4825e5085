"""Shards that fill a GPU: settled when a run begins, by where its workers are, and kept wherever it goes on."""

import pytest
import torch
from whole_run import as_lines

from tempscale_jobs.audit import run as audits
from tempscale_jobs.config.audit import SHARDS_OF_GPUS, resolve
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import engine


@pytest.fixture
def begin(tmp_path):
    def begin(**embedding):
        config = resolve(
            {"out": str(tmp_path), "corpus": {"source": "texts.jsonl"}, "embedding": {"temperatures": [1.0]} | embedding}
        )
        return config, Run(Storage(str(tmp_path)), [Model("m", "m", "", 64)], config.temperatures(), "2026-11-22")

    return begin


def sizes(config):
    return config.embedding.shard_texts, config.embedding.shard_characters


def test_a_run_keeps_the_shards_that_it_began_with(begin, monkeypatch):
    config, run = begin()
    monkeypatch.setattr(audits, "holds_gpus", lambda execution: True)
    assert sizes(audits.sized(config, run)) == (16_384, 1 << 22) == tuple(SHARDS_OF_GPUS.values())
    monkeypatch.setattr(audits, "holds_gpus", lambda execution: False)  # It goes on where there are none.
    assert sizes(audits.sized(config, run)) == (16_384, 1 << 22)
    assert config.identity() == audits.sized(config, run).identity() | {"embedding": config.identity()["embedding"]}


@pytest.mark.parametrize("name", [folder.SHARDED, folder.PLANNED])
def test_a_run_that_began_without_gpus_goes_on_so(begin, monkeypatch, name):
    config, run = begin()
    monkeypatch.setattr(audits, "holds_gpus", lambda execution: False)
    assert audits.sized(config, run) is config
    run.storage.write_json(name, {})
    monkeypatch.setattr(audits, "holds_gpus", lambda execution: True)
    assert audits.sized(config, run) is config
    assert not run.storage.exists(folder.SIZES)


def test_sizes_that_are_given_are_kept(begin, monkeypatch):
    monkeypatch.setattr(audits, "holds_gpus", lambda execution: True)
    for given in ({"shard_texts": 100}, {"shard_characters": 131_072}):
        config, run = begin(**given)
        assert audits.sized(config, run) is config


def test_whether_workers_hold_gpus_is_asked_of_this_machine_or_of_the_cluster(monkeypatch):
    monkeypatch.setattr(engine, "_initialized", lambda: False)
    for count in (0, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert engine.holds_gpus(Execution()) == bool(count)
    asked = []

    class Session:
        def __init__(self, execution):
            asked.append(execution.address)

        def __enter__(self):
            return engine.Cluster(3, 1)

        def __exit__(self, *error):
            asked.append("left")

    monkeypatch.setattr(engine, "session", Session)
    assert engine.holds_gpus(Execution(address="head:6379"))
    assert asked == ["head:6379", "left"]


def test_texts_are_in_larger_shards_where_the_run_began_with_gpus(begin, tmp_path, monkeypatch):
    (tmp_path / "texts.jsonl").write_text(
        as_lines({"id": str(k), "text": f"text {k} of many words " * 20} for k in range(1500))
    )
    config, run = begin()
    config = config.model_copy(update={"corpus": config.corpus.model_copy(update={"source": str(tmp_path / "texts.jsonl")})})
    found = []
    for gpus in (False, True):
        monkeypatch.setattr(audits, "holds_gpus", lambda execution, gpus=gpus: gpus)
        own = Run(Storage(str(tmp_path / str(gpus))), run.models, run.temperatures, run.night)
        stream = audits._open(audits.sized(config, own), own, config.corpus)
        found.append([shard.texts for shard in stream.index.shards])
    assert sum(found[0]) == sum(found[1]) == 1500
    assert len(found[0]) > 3
    assert found[1] == [1139, 361]  # It begins with an eighth of four million characters.
