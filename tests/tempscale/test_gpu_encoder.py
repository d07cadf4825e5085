"""`Encoder` on a GPU against itself on the CPU, for every family; skipped without one."""

import pytest
import torch
from attaching import STEPS, head_taus, random_tokens
from card import CARD, needs_card

from tempscale.model.encoder import Encoder
from tempscale.model.pooling import POOLINGS, Head
from tempscale.model.sequences import Tokens
from tempscale.temperature.schedule import Temperature

pytestmark = needs_card
LENGTHS = (3, 40, 7, 7, 21, 12, 33, 5, 28)
FLOAT32 = 2e-3
"""Largest distance to the CPU, relative to the longest vector: kernels sum in another order, and T5's logits are large."""


def encoders(tiny_model, family, budget=90, mode="mean"):
    """The same model on the CPU and on the card."""
    return [Encoder(tiny_model(family).to(device), None, Head(mode, []), budget) for device in ("cpu", CARD)]


def tokens():
    return random_tokens(LENGTHS)


def near(found, expected, error=FLOAT32):
    assert found.device.type == "cpu"
    assert found.dtype == torch.float32
    assert float(expected.abs().max()) > 0
    assert float((found - expected).abs().max()) <= error * float(expected.abs().max())


def same_text(found, expected, error=FLOAT32):
    near(found.embeddings, expected.embeddings, error)
    near(found.norms, expected.norms, error)
    for column, other in zip(found.moments, expected.moments, strict=True):
        near(column, other, error)
    assert found.tokens.tolist() == expected.tokens.tolist() == list(LENGTHS)


@pytest.mark.parametrize("temperature", ["1.0", "0.5", "steps", "by head"])
def test_embeddings_moments_and_factors_are_those_of_the_cpu(tiny_model, family, temperature):
    own, other = encoders(tiny_model, family)
    for encoder in (own, other):
        chosen = {"steps": STEPS, "by head": Temperature.by_head(head_taus(encoder.model))}.get(temperature)
        encoder.set_temperature(chosen or float(temperature))
    expected, found = (encoder.encode_tokens(tokens(), factors=True) for encoder in (own, other))
    same_text(found, expected)
    for (mean, factor), (exact_mean, exact) in zip(found.factors, expected.factors, strict=True):
        near(mean, exact_mean)
        near(factor @ factor.mT, exact @ exact.mT)  # A factor is known up to a rotation.
        assert mean.device.type == factor.device.type == "cpu"


@pytest.mark.parametrize("mode", POOLINGS)
def test_poolings(tiny_model, mode):
    expected, found = (encoder.encode_tokens(tokens()) for encoder in encoders(tiny_model, "bert", mode=mode))
    same_text(found, expected)


def test_twice_on_one_card_gives_the_same_bits(tiny_model):
    (_, encoder) = encoders(tiny_model, "bert")
    one, other = (encoder.encode_tokens(tokens(), factors=True) for _ in range(2))
    assert torch.equal(one.embeddings, other.embeddings)
    for pair, again in zip(one.factors, other.factors, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(pair, again, strict=True))


def test_what_was_uploaded_for_one_temperature_serves_the_next(tiny_model):
    (_, encoder) = encoders(tiny_model, "bert")
    own = tokens()
    padded = encoder.padded(own)
    for tau in (1.0, 0.5):
        encoder.set_temperature(tau)
        found, alone = (encoder.encode_tokens(own, padded=how) for how in (padded, None))
        assert torch.equal(found.embeddings, alone.embeddings)
    encoder.set_temperature(1.0)
    assert not torch.equal(found.embeddings, encoder.encode_tokens(own).embeddings)


def test_chunks_of_long_texts(tiny_model):
    cut = Tokens([[7] * 30, list(range(5, 35)), [9, 8, 7], list(range(20, 60))], [False] * 2, text=[0, 0, 1, 1])
    expected, found = (encoder.encode_tokens(cut, factors=True) for encoder in encoders(tiny_model, "bert"))
    near(found.embeddings, expected.embeddings)
    for column, other in zip(found.moments, expected.moments, strict=True):
        near(column, other)


def test_bfloat16_is_near_float32(tiny_model):
    own = tokens()
    expected = encoders(tiny_model, "bert")[0].encode_tokens(own)
    rounded = Encoder(tiny_model("bert").to(CARD), None, Head("mean", []), 90, precision="bfloat16").encode_tokens(own)
    assert rounded.embeddings.dtype == torch.float32
    cosine = (rounded.embeddings * expected.embeddings).sum(1)
    assert 0.98 < float(cosine.min()) < 1 - 1e-7


def test_token_embeddings_of_one_text(tiny_model, family):
    own, other = encoders(tiny_model, family)
    ids = tokens().ids[1]
    near(other.token_embeddings(ids), own.token_embeddings(ids))


@pytest.mark.parametrize("temperature", [1.0, 0.5, STEPS], ids=str)
def test_packed_equals_padded(tiny_model, family, temperature):
    """On a GPU in bfloat16, which its kernel needs."""
    if family in ("t5", "mt5", "umt5", "mpnet"):
        pytest.skip("it has a position bias and is refused")
    precision = "float32" if CARD == "cpu" else "bfloat16"
    plain, packed = (
        Encoder(tiny_model(family).to(CARD), None, Head("mean", []), 90, precision=precision, packed=how)
        for how in (False, True)
    )
    for encoder in (plain, packed):
        encoder.set_temperature(temperature)
    found, expected = packed.encode_tokens(tokens()), plain.encode_tokens(tokens())
    cosine = (found.embeddings * expected.embeddings).sum(1)
    assert float(cosine.min()) > (1 - 1e-6 if precision == "float32" else 0.99)
