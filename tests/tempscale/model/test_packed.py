"""Texts packed without padding against the same texts padded, under eager attention, for every family."""

import pytest
import torch
from attaching import LOG, STEPS, head_taus, layer_taus, random_tokens

from tempscale.model.encoder import Encoder
from tempscale.model.packed import KERNEL, attend
from tempscale.model.pooling import Head
from tempscale.temperature.families import UnsupportedArchitecture
from tempscale.temperature.schedule import Temperature
from tempscale.temperature.verify import verify

LENGTHS = (3, 40, 7, 7, 21, 12, 33, 5, 28)
NEVER = ("t5", "mt5", "umt5", "mpnet")
"""They add a position bias to their attention."""


def tokens():
    return random_tokens(LENGTHS)


def eager(model):
    model.set_attn_implementation("eager")
    return model


@pytest.fixture
def both(tiny_model, family):
    """A padded encoder and a packed one; a family that cannot be packed is refused by name."""
    plain = Encoder(eager(tiny_model(family)), None, Head("mean", []), 90)
    if family in NEVER:
        with pytest.raises(UnsupportedArchitecture, match=family):
            Encoder(tiny_model(family), None, Head("mean", []), 90, packed=True)
        pytest.skip("it has a position bias and is refused")
    return plain, Encoder(tiny_model(family), None, Head("mean", []), 90, packed=True)


@pytest.mark.parametrize("temperature", ["1.0", "0.5", "steps", "log", "by layer", "by head"])
def test_packed_texts_are_padded_ones(both, temperature):
    for encoder in both:
        own = {
            "steps": STEPS, "log": LOG, "by layer": Temperature.by_layer(layer_taus(encoder.model)),
            "by head": Temperature.by_head(head_taus(encoder.model)),
        }  # fmt: skip
        encoder.set_temperature(own.get(temperature) or float(temperature))
    expected, found = (encoder.encode_tokens(tokens(), factors=True) for encoder in both)
    torch.testing.assert_close(found.embeddings, expected.embeddings, rtol=0, atol=2e-5)
    alone = [torch.nn.functional.normalize(both[1].token_embeddings(ids).mean(0), dim=0) for ids in tokens().ids]
    torch.testing.assert_close(found.embeddings, torch.stack(alone), rtol=0, atol=2e-5)
    for own, other in zip(found.moments, expected.moments, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)
    for (_, factor), (_, exact) in zip(found.factors, expected.factors, strict=True):
        torch.testing.assert_close(factor.mT @ factor, exact.mT @ exact, rtol=0, atol=1e-4)


def test_packed_micro_batches_are_filled(tiny_model):
    """Nine texts of 156 tokens: 90 padded tokens each, whatever the padding that packed ones do not have."""
    padded, packed = (Encoder(tiny_model("bert"), None, Head("mean", []), 90, packed=packed) for packed in (False, True))
    sizes = [[len(batch) for batch in encoder.batches(tokens())] for encoder in (padded, packed)]
    assert sizes == [[1, 1, 1, 2, 4], [2, 3, 4]]


def test_no_padding_reaches_the_model(tiny_model):
    encoder = Encoder(tiny_model("bert"), None, Head("mean", []), 90, packed=True)
    seen = []
    encoder.model.register_forward_pre_hook(lambda model, args, given: seen.append(given), with_kwargs=True)
    encoder.encode_tokens(tokens())
    assert sum(given["input_ids"].numel() for given in seen) == sum(LENGTHS)
    for given in seen:
        lengths = given["cu_seq_lens_q"].diff().tolist()
        positions = given["position_ids"][0].tolist()
        assert positions == [k for n in lengths for k in range(n)]
    assert sorted(n for given in seen for n in given["cu_seq_lens_q"].diff().tolist()) == sorted(LENGTHS)


def test_whatever_else_calls_the_model_finds_it_as_it_was(tiny_model):
    model, plain = tiny_model("modernbert"), tiny_model("modernbert")
    encoder = Encoder(model, None, Head("mean", []), 90, packed=True)
    encoder.set_temperature(0.5)
    verify(model)
    encoder.encode_tokens(tokens())
    assert model.config._attn_implementation == plain.config._attn_implementation != KERNEL
    encoder.set_temperature(1.0)
    inputs = {"input_ids": torch.tensor([tokens().ids[1]])}
    with torch.inference_mode():
        assert torch.equal(model(**inputs).last_hidden_state, plain(**inputs).last_hidden_state)


def test_windows_and_the_order_of_tokens_by_hand():
    """One head of width 1 with equal keys: a token's attention is the mean of the values that it sees."""

    class Module(torch.nn.Module):
        is_causal = False

    value = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]).view(1, 1, 6, 1)
    query = torch.zeros(1, 1, 6, 1)
    lengths = torch.tensor([0, 4, 6], dtype=torch.int32)
    module = Module()

    def seen(**how):
        out, _ = attend(module, query, query, value, None, cu_seq_lens_q=lengths, max_length_q=4, **how)
        return [round(x, 4) for x in out.flatten().tolist()]

    assert seen() == [3.75] * 4 + [24.0] * 2
    assert seen(is_causal=True) == [1.0, 1.5, round(7 / 3, 4), 3.75, 16.0, 24.0]
    assert seen(sliding_window=2) == [1.5, round(7 / 3, 4), round(14 / 3, 4), 6.0, 24.0, 24.0]
    assert seen(sliding_window=2, is_causal=True) == [1.0, 1.5, 3.0, 6.0, 16.0, 24.0]
    with pytest.raises(ValueError, match="cumulative lengths"):
        attend(module, query, query, value, None)


def test_packed_and_compiled_is_one_too_many(tiny_model):
    with pytest.raises(ValueError, match="not compiled"):
        Encoder(tiny_model("bert"), None, Head("mean", []), packed=True, compiled=True)
