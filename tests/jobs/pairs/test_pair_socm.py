"""The worker of `tempscale pairs` in this process: texts that break the model or kill it cost their pairs only."""

import json
import math

import numpy as np
import pytest
import torch

from tempscale.second_order.socm import socm_pairs
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.pairs import chunks, socm
from tempscale_jobs.pairs.socm import measure_chunk
from tempscale_jobs.runs.folder import Model
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers.actor import ModelActor
from tempscale_jobs.workers.marks import DEADLY


def chunked(out, csv):
    """A run's storage with the one chunk of a file of pairs, and the work on it."""
    file = out.with_suffix(".csv")
    file.write_text(csv)
    storage, config = Storage(str(out)), checked(PairsConfig, {"out": str(out), "pairs": {"source": str(file)}})
    (chunk,) = chunks.chunk(storage, config.pairs, config.out).shards
    return storage, (chunk.name, config.socm.model_dump())


def of_pairs(storage, temperature):
    """What a worker left of the chunk's pairs."""
    return storage.read_table(f"partials/pairs/model=tiny/temperature={temperature}/part-00000000.parquet")


def left_out(storage):
    return storage.read_table("rejected/model=tiny/part-00000000.parquet").to_pylist()


def test_a_text_that_breaks_the_model_costs_its_pairs_only(tiny_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = tiny_folder()
    tensors = load_file(folder / "model.safetensors")
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    tensors["embeddings.word_embeddings.weight"][words["z"]] = math.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    storage, work = chunked(tmp_path / "run", "id,text_a,text_b\n1,a b,c d e\n2,z,c d e\n3,f g h,a b\n4,f,z z\n")
    actor = ModelActor(storage, Model("tiny", str(folder), "", 64), [1.0, 0.8], {"max_length": 64}, 0)
    measure_chunk(actor, 0, *work)
    rejected = left_out(storage)
    assert [(row["text_id"], row["place"]) for row in rejected] == [("2", "run.csv:1"), ("4", "run.csv:3")]
    assert all(row["reason"] for row in rejected)
    for temperature in ("1.0", "0.8"):
        part = of_pairs(storage, temperature).to_pylist()
        assert [row["pair"] for row in part] == [0, 2]
        actor.encoder.set_temperature(float(temperature))
        out = actor.encoder.encode(["a b", "c d e", "f g h"], factors=True)
        means, factors = zip(*out.factors, strict=True)
        expected = socm_pairs(torch.stack(means), factors, [0, 2], [1, 0])
        assert [row["d_sigma"] for row in part] == pytest.approx(expected.d_sigma.tolist(), abs=1e-6)
        assert [row["tokens_b"] for row in part] == [5, 4]


class Death(BaseException):
    """The process is gone: nothing is tidied up."""


@pytest.mark.proof
@pytest.mark.parametrize("temperatures", [[1.0, 0.8], [1.0, {"by_role": {"query": 0.9, "document": 0.8}}]])
def test_a_text_that_kills_its_process_costs_its_pairs_only(tiny_folder, tmp_path, temperatures):
    folder = tiny_folder()
    rows = "1,a b,c d e\n{}3,f g h,a b\n{}5,k k,m\n"
    storage, work = chunked(tmp_path / "run", "id,text_a,text_b\n" + rows.format("2,z,c d e\n", "4,f,k z z\n"))
    model = Model("tiny", str(folder), "", 64)
    (deadly,) = ModelActor(storage, model, temperatures, {"max_length": 64}, 0).encoder.tokenizer(["z"]).ids

    def attempt():
        actor = ModelActor(storage, model, temperatures, {"max_length": 64}, 0)
        hidden = actor.encoder.hidden_states

        def guarded(ids, mask, tokens):
            if (ids == deadly[1]).any():
                raise Death
            return hidden(ids, mask, tokens)

        actor.encoder.hidden_states = guarded
        measure_chunk(actor, 0, *work)

    deaths = 0
    while deaths < 30:
        try:
            attempt()
            break
        except Death:
            deaths += 1
    assert 0 < deaths < 30
    assert {row["text_id"]: row["reason"] for row in left_out(storage)} == {"2": f"tiny: {DEADLY}", "4": f"tiny: {DEADLY}"}
    assert not storage.list("partials/marks")
    other, work = chunked(tmp_path / "other", "id,text_a,text_b\n" + rows.format("", ""))
    measure_chunk(ModelActor(other, model, temperatures, {"max_length": 64}, 0), 0, *work)
    for temperature in map(Temperature.of, temperatures):
        found, expected = (of_pairs(own, temperature.slug) for own in (storage, other))
        assert found.column("pair").to_pylist() == [0, 2, 4]
        for column in ("d_mu", "d_sigma", "socm"):
            assert found.column(column).to_pylist() == pytest.approx(expected.column(column).to_pylist(), abs=1e-6)


def test_a_chunk_whose_every_text_fails_is_rejected_whole(tmp_path, tiny_folder, monkeypatch):
    storage, work = chunked(tmp_path / "run", "text_a,text_b\nabc,xyz\nabc,pqr\n")
    worker = ModelActor(storage, Model("tiny", str(tiny_folder("bert")), "", 64), [1.0, 0.8], {"token_budget": 90}, 0)

    def fail(ids, mask, tokens):
        raise IndexError("index out of range in self")

    monkeypatch.setattr(worker.encoder, "hidden_states", fail)
    measure_chunk(worker, 0, *work)
    assert [storage.rows(name) for name in storage.list("partials/pairs")] == [0, 0]
    assert ["IndexError: index out of range" in row["reason"] for row in left_out(storage)] == [True] * 2


def test_a_chunk_without_pairs_has_no_figures():
    nothing = np.zeros(0, dtype=np.int64)
    assert socm._figures(None, None, socm._Chunk([], nothing, nothing, None, {}), {}).shape == (3, 0)
