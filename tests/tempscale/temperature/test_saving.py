"""A temperature beside a checkpoint: what was saved is attached again, and whoever does not know it has the base model."""

import json

import numpy as np
import pytest
import torch

import tempscale as ts
from tempscale.model.checkpoint import ModelError
from tempscale.temperature import saving

pytestmark = pytest.mark.proof

TEXTS = ["a short text", "attention is a low-pass filter that gets stronger with length " * 12, "zeros and ones " * 40]
SCHEDULES = [
    {"by_length": {"0": 1.0, "32": 0.7}}, {"log_length": 64}, {"by_role": {"query": 1.0, "document": 0.6}},
    {"by_layer": [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]}, 0.8,
]  # fmt: skip


@pytest.fixture
def model(minilm):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm), device="cpu")


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_what_was_saved_is_attached_again(model, tmp_path, schedule):
    plain = model.encode(TEXTS)
    ts.attach(model, ts.Temperature.of(schedule))
    expected = [getattr(model, name)(TEXTS) for name in ("encode_query", "encode_document")]
    ts.save(model, tmp_path / "saved")
    again = ts.load(tmp_path / "saved", device="cpu")
    assert ts.attached(again) == ts.Temperature.of(schedule)
    for name, vectors in zip(("encode_query", "encode_document"), expected, strict=True):
        np.testing.assert_allclose(getattr(again, name)(TEXTS), vectors, atol=1e-6)
    assert np.abs(again.encode_document(TEXTS) - plain).max() > 1e-4


def test_a_program_that_does_not_know_the_file_has_the_base_model(model, tmp_path):
    from sentence_transformers import SentenceTransformer

    plain = model.encode(TEXTS)
    ts.save(ts.attach(model, 0.7), tmp_path / "saved")
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(TEXTS), plain, atol=1e-6)
    weights = [dict(one.state_dict()) for one in (ts.load(tmp_path / "saved", device="cpu"), model)]
    assert all(torch.equal(weights[0][name].cpu(), weights[1][name].cpu()) for name in weights[1])


def test_a_folder_without_a_temperature_is_the_model_as_it_is(model, minilm, tmp_path):
    loaded = ts.load(minilm, device="cpu")
    assert ts.attached(loaded) is None
    np.testing.assert_array_equal(loaded.encode(TEXTS), model.encode(TEXTS))
    ts.save(ts.attach(model, 0.7), tmp_path / "saved")
    ts.save(ts.detach(model), tmp_path / "saved")
    assert not (tmp_path / "saved" / saving.FILE).exists()


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"temperature": 7}', '{"tau": 0.8}', '{"temperature": {"by_moon": 1}}', '"x"']
)
def test_a_file_that_holds_no_temperature_is_one_sentence(model, tmp_path, content):
    ts.save(model, tmp_path / "saved")
    (tmp_path / "saved" / saving.FILE).write_text(content)
    with pytest.raises(ModelError, match=r"tempscale\.json"):
        ts.load(tmp_path / "saved")


def test_a_schedule_of_another_model_is_refused(model, tmp_path):
    ts.save(model, tmp_path / "saved")
    (tmp_path / "saved" / saving.FILE).write_text(json.dumps({"temperature": {"by_layer": [0.9, 0.8]}}))
    with pytest.raises(ts.TemperatureError, match="2"):
        ts.load(tmp_path / "saved")


def test_pickled_or_damaged_weights_are_not_loaded(model, tmp_path):
    ts.save(model, tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(ModelError, match="damaged"):
        ts.load(tmp_path / "saved")
    file.rename(tmp_path / "saved" / "pytorch_model.bin")
    with pytest.raises(ModelError, match="pickled"):
        ts.load(tmp_path / "saved")
