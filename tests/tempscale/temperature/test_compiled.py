"""A compiled encoder: τ is a number in a tensor, so that no τ and no shape compiles the model anew. dynamo counts.

The backend runs what dynamo has traced as it is, so that no compiler is needed. What is expected comes first: to attach a
temperature to any model discards all compiled code.
"""

import pytest
import torch
from attaching import STEPS, head_taus, layer_taus, random_tokens
from torch._dynamo.testing import CompileCounter

from tempscale.model.encoder import Encoder
from tempscale.model.pooling import Head
from tempscale.temperature import attach
from tempscale.temperature.families import UnsupportedArchitecture
from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature
from tempscale.temperature.verify import verify

pytestmark = pytest.mark.proof

TAUS = [1.0, 0.9, 0.8, 0.7, 0.5, 1.3]
COMPILED = ["bert", "modernbert", "t5"]
MORE = ["distilbert", "qwen3", "llama", "mpnet", "nomic_bert"]


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(model, budget=64):
    counter = CompileCounter()
    return Encoder(model, None, Head("mean", []), budget, compiled=counter), counter


def near(found, expected):
    assert float((found.embeddings - expected.embeddings).abs().max()) < 1e-5
    for own, other in zip(found.moments, expected.moments, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


SHAPES = [(9, 30, 12, 5), (50, 4, 4), (11, 26, 33, 8, 19), (2, 63)]


def expected(model, temperatures, shapes):
    plain, found = Encoder(model, None, Head("mean", []), 64), []
    for temperature in temperatures:
        plain.set_temperature(temperature)
        found.append([plain.encode_tokens(random_tokens(lengths, seed)) for seed, lengths in enumerate(shapes)])
    return found


@pytest.mark.parametrize("family", [*COMPILED, *(pytest.param(own, marks=pytest.mark.soak) for own in MORE)])
def test_no_temperature_and_no_shape_compiles_anew(tiny_model, family):
    exact = expected(tiny_model(family), TAUS, SHAPES)
    encoder, counter = compiled(tiny_model(family))
    for own in (
        random_tokens((9, 30, 12, 5, 9, 40)),
        random_tokens((17, 3, 3, 22), 1),
    ):  # Texts alone, and several together.
        encoder.encode_tokens(own)
    frames = counter.frame_count
    assert 0 < frames <= 4
    for tau, of_tau in zip(TAUS, exact, strict=True):
        encoder.set_temperature(tau)
        assert encoder.temperature == Temperature(tau)
        for seed, (lengths, other) in enumerate(zip(SHAPES, of_tau, strict=True)):
            near(encoder.encode_tokens(random_tokens(lengths, seed)), other)
    assert counter.frame_count == frames
    assert float((exact[0][0].embeddings - exact[4][0].embeddings).abs().max()) > 1e-4


def test_other_kinds_compile_once_each_and_then_never(tiny_model):
    model, shapes = tiny_model("bert"), [(9, 30, 12, 5, 9, 40)]
    layers, heads = layer_taus(model), head_taus(model)
    kinds = [
        [Temperature(0.8), Temperature.by_layer(layers), Temperature.by_layer(layers[::-1]), Temperature(1.0)],
        [Temperature.by_head(heads), Temperature.by_head(heads[::-1])],
        [STEPS],
    ]
    exact = [expected(tiny_model("bert"), kind, shapes) for kind in kinds]
    encoder, counter = compiled(model)
    for kind, of_kind in zip(kinds, exact, strict=True):
        for number, (temperature, (other,)) in enumerate(zip(kind, of_kind, strict=True)):
            encoder.set_temperature(temperature)
            near(encoder.encode_tokens(random_tokens(shapes[0], 0)), other)
            if number == 0:
                frames = counter.frame_count
        assert counter.frame_count == frames
        assert attach.attached(encoder.model) == kind[-1]


def test_a_held_temperature_passes_the_proof_and_can_be_detached(tiny_model):
    model = tiny_model("bert")
    before = {name: own.clone() for name, own in model.state_dict().items()}
    plain = Encoder(tiny_model("bert"), None, Head("mean", []), 64).encode_tokens(random_tokens((9, 20)))
    encoder, _ = compiled(model)
    for tau in (0.5, 0.9):
        encoder.set_temperature(tau)
        verify(model)
    attach.detach(model)
    torch._dynamo.reset()
    assert all(torch.equal(own, before[name]) for name, own in model.state_dict().items())
    assert torch.equal(
        Encoder(model, None, Head("mean", []), 64).encode_tokens(random_tokens((9, 20))).embeddings, plain.embeddings
    )


def test_what_is_not_compiled_says_so(tiny_model):
    with pytest.raises(UnsupportedArchitecture, match="albert"):
        compiled(tiny_model("albert"))
    encoder, _ = compiled(tiny_model("bert"))
    with pytest.raises(TemperatureError, match="role"):
        encoder.set_temperature(Temperature.by_role(query=0.9, document=0.8))
    with pytest.raises(TemperatureError):
        encoder.set_temperature(Temperature.by_layer([0.5]))
    assert encoder.temperature == Temperature(1.0)
