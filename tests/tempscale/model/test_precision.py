"""Precisions of a GPU, emulated on the CPU: products of factors rounded to TF32, and weights held in bfloat16."""

import numpy as np
import pytest
import torch
from attaching import STEPS, head_taus, random_tokens
from torch.overrides import TorchFunctionMode

from tempscale.collapse.cosine import rounded
from tempscale.model.encoder import Encoder
from tempscale.model.loading import round_weights
from tempscale.model.pooling import Head
from tempscale.temperature.schedule import Temperature

SENTENCES = [
    "The river was in flood.", "Embeddings of long texts drift together.", "a",
    "It rained for forty days, and the bridge held.",
    "Self-attention is a low-pass filter that gets stronger with length, and " * 12,
]  # fmt: skip


class Tf32(TorchFunctionMode):
    """Round the factors of every product of two float32 matrices as a tensor core reads them; count the products."""

    def __init__(self):
        super().__init__()
        self.products = 0

    def _seen(self, x):
        return torch.from_numpy(rounded(x.detach().contiguous().numpy(), "tf32"))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.nn.functional.linear:
            self.products += 1
            x, weight, *bias = args
            return func(self._seen(x), self._seen(weight), *bias, **kwargs)
        if func in (torch.matmul, torch.Tensor.matmul, torch.bmm):
            self.products += 1
            return func(self._seen(args[0]), self._seen(args[1]), **kwargs)
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.products += 2
            return func(*map(self._seen, args[:3]), *args[3:], **kwargs)
        return func(*args, **kwargs)


def errors(found, exact):
    """(least cosine, largest relative error of ‖μ‖, spread and within-text cosine)"""
    cosine = float((found.embeddings.double() * exact.embeddings.double()).sum(1).min())
    moved = [
        float(((a - b).abs() / b.abs().clamp_min(1e-3)).max()) for a, b in zip(found.moments, exact.moments, strict=True)
    ]
    return cosine, max(moved)


@pytest.mark.proof
@pytest.mark.parametrize("tau", [1.0, 0.5])
def test_the_real_model_in_tf32_and_with_weights_in_bfloat16(minilm, tau):
    """What the two cost: stated in docs/operations.md."""
    exact = Encoder.load(minilm, tau, device="cpu").encode(SENTENCES, factors=True)
    with Tf32() as mode:
        tf32 = Encoder.load(minilm, tau, device="cpu").encode(SENTENCES, factors=True)
    assert mode.products > 6 * 6
    own = Encoder.load(minilm, tau, device="cpu")
    round_weights(own.model)
    half = own.encode(SENTENCES, factors=True)
    for found, least, most in ((tf32, 1 - 2e-6, 3e-3), (half, 1 - 1e-3, 0.06)):
        cosine, moved = errors(found, exact)
        assert least < cosine < 1 - 1e-9
        assert 1e-6 < moved < most
        for (_, factor), (_, other) in zip(found.factors, exact.factors, strict=True):
            own_trace, trace = factor.square().sum(), other.square().sum()
            assert abs(float(own_trace - trace)) <= most * float(trace)
    assert errors(tf32, exact)[0] > errors(half, exact)[0]


@pytest.mark.parametrize("temperature", ["1.0", "0.5", "steps", "by head"])
def test_weights_in_bfloat16_serve_every_family_and_schedule(tiny_model, family, temperature):
    tokens, found = random_tokens((4, 30, 17, 9)), []
    for half in (False, True):
        encoder = Encoder(tiny_model(family), None, Head("mean", []), 64)
        if half:
            round_weights(encoder.model)
        chosen = {"steps": STEPS, "by head": Temperature.by_head(head_taus(encoder.model))}.get(temperature)
        encoder.set_temperature(chosen or float(temperature))
        found.append(encoder.encode_tokens(tokens))
    exact, half = found
    assert half.embeddings.dtype == torch.float32
    assert torch.isfinite(half.embeddings).all()
    cosine = (half.embeddings * exact.embeddings).sum(1)
    assert 0.9 < float(cosine.min()) < 1 - 1e-7


def test_weights_are_rounded_to_nearest_and_angles_are_not(tiny_model):
    model = tiny_model("llama")
    before = {name: own.clone() for name, own in model.named_parameters()}
    angles = {name: own.clone() for name, own in model.named_buffers() if own.is_floating_point()}
    assert angles
    round_weights(model)
    for name, own in model.named_parameters():
        assert own.dtype == torch.bfloat16
        np.testing.assert_array_equal(own.float().detach().numpy(), rounded(before[name].detach().numpy(), "bfloat16"))
    for name, own in model.named_buffers():
        if name in angles:
            assert own.dtype == torch.float32
            assert torch.equal(own, angles[name])


def test_tf32_is_no_precision_of_a_cpu(tiny_model, minilm):
    with pytest.raises(ValueError, match="tf32"):
        Encoder(tiny_model("bert"), None, Head("mean", []), precision="tf32")
    with pytest.raises(ValueError, match="tf32"):
        Encoder.load(minilm, device="cpu", precision="tf32")


def test_on_a_gpu_weights_are_rounded_once_and_nothing_is_cast(tiny_model):
    """On torch's device «meta», which is no CPU and computes nothing."""
    encoder = Encoder(tiny_model("bert").to("meta"), None, Head("mean", []), precision="bfloat16")
    assert {own.dtype for own in encoder.model.parameters()} == {torch.bfloat16}
    assert not encoder._casts(torch.device("meta"))
    on_cpu = Encoder(tiny_model("bert"), None, Head("mean", []), precision="bfloat16")
    assert {own.dtype for own in on_cpu.model.parameters()} == {torch.float32}
    assert on_cpu._casts(torch.device("cpu"))


def test_only_weights_in_float32_are_rounded():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).double())
    kept = model[1].weight.clone()
    round_weights(model)
    assert model[0].weight.dtype == torch.bfloat16
    assert torch.equal(model[1].weight, kept)
