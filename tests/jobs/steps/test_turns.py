"""What an embed actor with a GPU does between two micro-batches and between two shards: counted on the CPU with fakes."""

import threading

import pytest
from prepared import prepared

from tempscale_jobs.runs.folder import Model
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.embed import Into, embed_shard
from tempscale_jobs.workers.actor import ModelActor

TAUS = [1.0, 0.8, 0.5]


@pytest.fixture
def shards(tmp_path, tiny_folder):
    """Two prepared shards, and an actor that works on them as on a GPU."""
    folder, storage = str(tiny_folder()), Storage(str(tmp_path / "run"))
    texts = ["a b c " * (1 + k % 9) for k in range(40)]
    work = [prepared(storage, folder, texts, number) for number in range(2)]
    worker = ModelActor(storage, Model("tiny", folder, "", 64), TAUS, {"max_length": 64, "token_budget": 64}, 0)
    worker.overlaps = True
    return worker, work


@pytest.fixture
def operations(shards, monkeypatch):
    """Each operation on the storage, with whether the worker's turn was taken."""
    worker, told = shards[0], []

    def counting(name):
        own = getattr(Storage, name)

        def counted(self, *arguments, **how):
            told.append((name, worker.turn.locked()))
            return own(self, *arguments, **how)

        return counted

    for name in ("exists", "read", "write", "remove", "list", "rows"):
        monkeypatch.setattr(Storage, name, counting(name))
    return told


def process(worker, number, work):
    embed_shard(worker, number, work, Into(worker.storage))


def test_what_a_shard_asks_of_storage_in_its_turn_and_beside_the_next(shards, operations, monkeypatch):
    """One keeps the model waiting, the mark, and none comes between two micro-batches."""
    worker, pieces = shards
    run, told = worker.encoder.hidden_states, []

    def hidden(*given):
        operations.append(("model", True))
        return run(*given)

    monkeypatch.setattr(worker.encoder, "hidden_states", hidden)
    for number, work in enumerate(pieces):
        operations.clear()
        process(worker, number, work)
        names = [name for name, _ in operations]
        assert names.count("model") > 3 * len(TAUS)
        first, last = names.index("model"), len(names) - names[::-1].index("model")
        assert set(names[first:last]) == {"model"}
        told += [one for one in operations if one[0] != "model"]
    in_turn = [name for name, turn in told if turn]
    beside = [name for name, turn in told if not turn]
    assert in_turn == 2 * ["write"]
    # Once: is the processor noted, note it, and the budget. Then: are there marks; mark that the model is done; no note of
    # halves; no rejected texts of an attempt that died; a part for each temperature; the marks go.
    each = ["exists", "write", *2 * ["remove", "exists"], *["write"] * len(TAUS), "remove", "exists"]
    assert beside == [*2 * ["exists", "write"], *2 * each]


def test_the_next_shard_runs_while_one_is_written(shards, monkeypatch):
    worker, pieces = shards
    writing, go = threading.Event(), threading.Event()
    write, done = type(worker.storage).write_table, []

    def slow(self, name, *given, **how):
        if "texts/" in name and name.endswith("part-00000000.parquet"):
            writing.set()
            assert go.wait(60)
        return write(self, name, *given, **how)

    monkeypatch.setattr(type(worker.storage), "write_table", slow)
    first = threading.Thread(target=lambda: done.append((process(worker, 0, pieces[0]), 0)))
    first.start()
    assert writing.wait(60)
    done.append((process(worker, 1, pieces[1]), 1))  # It would wait for ever if the first had not left its turn.
    go.set()
    first.join(60)
    assert [number for _, number in done] == [1, 0]
    assert len(worker.storage.list("texts")) == 2 * len(TAUS)
    assert not worker.storage.list("partials/marks")
