"""What is expected of embedding before anything is embedded: by hand, and against a real model."""

import json
import time

import pytest
import torch
from whole_run import documented

from tempscale.model.checkpoint import default_model
from tempscale_jobs.corpus.shards import Shard
from tempscale_jobs.embedding import expected
from tempscale_jobs.runs.folder import Model


def test_seconds_by_hand(tmp_path, monkeypatch):
    """Two layers of 4·8² + 2·8·16 = 512 products a token; 100 tokens of 400 characters, and 3 texts cut at 10 tokens."""
    monkeypatch.setattr(expected, "_gemm_rate", lambda: 1000.0)
    monkeypatch.setattr("tempscale.model.checkpoint.resolve", str)  # There are no weights.
    sizes = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    model = Model("m", str(tmp_path), "", 10)
    shards = [Shard("a", 50, 400), Shard("b", 3, 9000)]
    operations = 2 * 2 * 512 * (100 + 30)
    assert expected.seconds(model, shards, 3, 4) == pytest.approx(8 + 3 * operations / (0.6 * 1000 * 4))
    (tmp_path / "config.json").write_text("{}")
    assert expected.seconds(model, shards, 3, 4) is None


def test_a_real_model_takes_about_as_long():
    from tempscale import Encoder

    torch.set_num_threads(1)
    texts = [text["text"] for text in documented("scipy")][:60]
    encoder = Encoder.load(default_model(), device="cpu")
    encoder.encode(texts[:4])
    begun = time.thread_time()
    encoder.encode(texts)
    took = time.thread_time() - begun
    shard = Shard("a", len(texts), sum(map(len, texts)))
    found = expected.seconds(Model("m", default_model(), "", 256), [shard], 1, 1) - expected._START_SECONDS
    assert took / 5 < found < 5 * took
