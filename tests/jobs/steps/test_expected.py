"""What is expected of embedding before anything is embedded: by hand, and against a real model."""

import json

import pytest

from tempscale.model.checkpoint import default_model
from tempscale_jobs.corpus.index import Shard
from tempscale_jobs.runs.folder import Model
from tempscale_jobs.steps import expected


def test_seconds_by_hand(tmp_path, monkeypatch):
    """Two layers of 4·8² + 2·8·16 = 512 products a token; 100 tokens of 400 characters, and 3 texts cut at 10 tokens."""
    monkeypatch.setattr(expected, "gemm_rate", lambda: 1000.0)
    monkeypatch.setattr("tempscale.model.checkpoint.resolve", str)  # There are no weights.
    sizes = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 16}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    model = Model("m", str(tmp_path), "", 10)
    shards = [Shard("a", 50, 400), Shard("b", 3, 9000)]
    operations = 2 * 2 * 512 * (100 + 30)
    assert expected.seconds(model, shards, 3, 4) == pytest.approx(8 + 3 * operations / (0.6 * 1000 * 4))
    (tmp_path / "config.json").write_text("{}")
    assert expected.seconds(model, shards, 3, 4) is None


def test_the_operations_are_those_of_a_real_model(monkeypatch):
    """As torch counts them, attention between tokens and padding left out: a few per cent of texts of this length."""
    from torch.utils.flop_counter import FlopCounterMode

    from tempscale import Encoder

    monkeypatch.setattr(expected, "gemm_rate", lambda: 1 / expected.OF_GEMM)
    encoder = Encoder.load(default_model(), device="cpu")
    text = "token " * 126  # 128 tokens with both special ones, so that no micro-batch has padding.
    with FlopCounterMode(display=False) as counted:
        encoder.encode([text] * 4, moments=False)
    shard = Shard("a", 4, 4 * 128 * 4)
    found = expected.seconds(Model("m", default_model(), "", 256), [shard], 1, 1) - expected.START_SECONDS
    assert 1 < counted.get_total_flops() / found < 1.15
