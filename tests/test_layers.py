"""What is seen inside each layer, for every family, against the model's own modules and attention by hand in float64."""

import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from by_hand_attention import by_hand

from tempscale import attach
from tempscale.architectures import base_model, places
from tempscale.contraction import contraction, gain, head_contraction
from tempscale.layers import observe
from tempscale.spectrum import head_spectrum, high_frequency_ratios, sigma_a_bound, sigma_s

IDS = list(range(7, 30))

_BERT = lambda m, y: m.output(m.intermediate(n := m.attention.output.LayerNorm(y)), n)  # noqa: E731
_ROTARY = lambda m, y: m.post_mlp_layernorm((n := m.post_attention_layernorm(y)) + m.mlp(n))  # noqa: E731
_DECODER = lambda m, y: y + m.mlp(m.post_attention_layernorm(y))  # noqa: E731
REST = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra"), _BERT),
    "albert": lambda m, y: m.full_layer_layer_norm(m.ff_chunk(n := m.attention.LayerNorm(y)) + n),
    "distilbert": lambda m, y: m.output_layer_norm(m.ffn(n := m.sa_layer_norm(y)) + n),
    "mpnet": lambda m, y: m.output(m.intermediate(n := m.attention.LayerNorm(y)), n),
    **dict.fromkeys(("t5", "mt5", "umt5"), lambda m, y: m.layer[-1](y)),
    **dict.fromkeys(("nomic_bert", "gte", "jina_embeddings_v3"), _ROTARY),
    "modernbert": lambda m, y: y + m.mlp(m.mlp_norm(y)),
    **dict.fromkeys(("eurobert", "llama", "mistral", "qwen2", "qwen3"), _DECODER),
    "gemma3_text": lambda m, y: y + m.post_feedforward_layernorm(m.mlp(m.pre_feedforward_layernorm(y))),
}
"""A layer's output from its first residual sum, through its own modules."""
SECOND_NORM = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "mpnet"), lambda m: m.output.LayerNorm),
    "albert": lambda m: m.full_layer_layer_norm,
    "distilbert": lambda m: m.output_layer_norm,
    **dict.fromkeys(("nomic_bert", "gte", "jina_embeddings_v3"), lambda m: m.post_mlp_layernorm),
}
"""What stands behind the second residual sum where a family is post-norm."""


@pytest.fixture
def model(tiny_model, family):
    return tiny_model(family)


def close(found, expected, tolerance=2e-5):
    assert float(expected.abs().max()) > 0
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


def test_places_are_proved_by_the_layers_own_output(model, family):
    modules = [place.layer for place in places(model)]
    outputs = []

    def check(layer):
        module = modules[layer.number]
        assert torch.equal(layer.y, layer.h + layer.z)
        close(REST[family](module, layer.y.unsqueeze(0))[0], layer.x)
        close(SECOND_NORM.get(family, lambda m: torch.nn.Identity())(module)(layer.second_sum.unsqueeze(0))[0], layer.x)
        # What the heads leave is what W_O makes of them: their weights, values and probabilities belong together.
        mixed = layer.attention @ layer.values
        out = torch.einsum("htw,hdw->td", mixed, layer.output_weights)
        bias = torch.zeros(()) if (b := getattr(_output(module), "bias", None)) is None else b
        close(out + bias, layer.attention_output)
        # Values are W_V's of what attention reads, but for a bias that all tokens share.
        own = torch.einsum("td,hwd->htw", layer.attended, layer.value_weights)
        close(layer.values - layer.values[:, :1], own - own[:, :1])
        outputs.append((layer.h.clone(), layer.x.clone()))

    base = base_model(model)
    observe(model, IDS, check)
    assert len(outputs) == len(modules)
    for (_, before), (after, _) in itertools.pairwise(outputs):
        assert torch.equal(before, after)
    # The text came through unchanged: eager attention is the only difference to a plain pass.
    with torch.no_grad():
        states = base(input_ids=torch.tensor([IDS]), output_hidden_states=True).hidden_states
    close(outputs[1][0], states[1][0], 1e-4)


def _output(module):
    names = ("out_lin", "o_proj", "Wo", "o")
    for path in ("attention.output.dense", "attention.dense"):
        try:
            return module.get_submodule(path)
        except AttributeError:
            continue
    return next(m for name, m in module.named_modules() if name.split(".")[-1] in names and "mlp" not in name)


@pytest.mark.parametrize("tau", [1.0, 0.7])
def test_every_figure_agrees_with_float64_and_attention_by_hand(tiny_model, family, tau):
    model, exact, seen = tiny_model(family), tiny_model(family).double(), []
    base = base_model(exact)
    arguments = {"use_cache": False} if family in ("llama", "mistral", "qwen2", "qwen3", "gemma3_text") else {}
    with torch.no_grad(), by_hand(base, tau, seen):
        states = base(input_ids=torch.tensor([IDS]), output_hidden_states=True, **arguments).hidden_states
    if tau != 1.0:
        attach(model, tau)
    n = len(IDS)
    eye = np.eye(n) - np.ones((n, n)) / n

    def figures(layer):
        norms = torch.linalg.matrix_norm(layer.value_weights.double(), 2)
        products = (layer.output_weights.double() @ layer.value_weights.double()).numpy()
        gains = gain(layer)
        np.testing.assert_allclose(gains, [np.linalg.svd(p, compute_uv=False)[0] for p in products], rtol=1e-6)
        heads = head_spectrum(layer, norms)
        assert bool((heads.theorem_2_ratio <= 1 + 1e-6).all())
        assert bool((heads.theorem_2_ratio > 0).all())
        every = contraction(layer)
        assert float(every.spread) <= float(every.bound) * (1 + 1e-6)
        return heads, head_contraction(layer, gains), gains, every, high_frequency_ratios(layer)

    found = observe(model, IDS, figures)
    assert len(found) == len(seen)
    for number, ((heads, lambdas, gains, every, ratios), (logits, weights)) in enumerate(zip(found, seen, strict=True)):
        visible = logits > -1e30
        np.testing.assert_allclose(heads.sigma_s, [own[v].std() for own, v in zip(logits, visible, strict=True)], rtol=1e-4)
        np.testing.assert_allclose(heads.sigma_a, [oracles.sigma_a(a) for a in weights], rtol=1e-4)
        expected = [g**2 * np.square(eye @ a).sum() / (n - 1) for g, a in zip(gains.numpy(), weights, strict=True)]
        np.testing.assert_allclose(lambdas, expected, rtol=1e-4)
        h, x = states[number][0].numpy(), states[number + 1][0].numpy()
        scatter = [np.square(m - m.mean(0)).sum() / n for m in (h, x)]
        if number + 1 < len(found):  # Behind the last layer some families put a norm that belongs to no layer.
            assert float(ratios.whole) == pytest.approx(math.sqrt(scatter[1] / scatter[0]), rel=1e-4)
            assert float(every.spread) == pytest.approx(scatter[1] / np.square(x.mean(0)).sum(), rel=1e-4)
            assert float(every.within_cosine) == pytest.approx(oracles.within_cosine(x), rel=1e-4)
        parts = ratios.attention * ratios.residual * ratios.norms * ratios.feed_forward
        assert float(parts) == pytest.approx(float(ratios.whole), rel=1e-9)


def test_contraction_by_hand():
    from tempscale.layers import Layer

    nothing = torch.zeros(0)
    h, z = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    layer = Layer(
        0, h, h, nothing, torch.tensor([[[0.75, 0.25], [0.25, 0.75]]]), nothing, z, z, h + z, nothing, nothing, nothing,
        torch.tensor([[1.0, 1.0], [1.0, 0.0]]), nothing, nothing, nothing,
    )  # fmt: skip
    found = contraction(layer)
    # S(H) = 1, S(Z) = 1/4, μ(Y) = (3/2, 0), S(Y) = 9/4; S(X) = 1/4, μ(X) = (1, 1/2).
    assert float(found.rho) == pytest.approx(1 / 4)
    assert float(found.r) == pytest.approx(4 / 9)
    assert float(found.spread) == pytest.approx(1 / 5)
    assert float(found.c) == pytest.approx(1 / 5)
    assert float(found.bound) == pytest.approx(1 / 5 * (3 / 2) ** 2 * 4 / 9)  # Equal: Z is half of H.
    # The unit tokens are (1, 1)/√2 and (1, 0): their mean's square is (1 + cos 45°)/2.
    assert float(found.within_cosine) == pytest.approx((1 + math.sqrt(0.5)) / 2)
    # PA = ½·[[½, −½], [−½, ½]]: its square sums to 1/4.
    assert float(head_contraction(layer, torch.tensor([3.0]))) == pytest.approx(9 / 4)


def test_the_bound_of_theorem_3_by_hand_and_at_its_ends():
    zero = torch.tensor(0.0, dtype=torch.float64)
    assert float(sigma_a_bound(zero, 2)) == pytest.approx(math.sqrt(2 / (2 * math.sqrt(2) + 1)))
    assert float(sigma_a_bound(zero, 1)) == 1.0
    # τ moves it by at most 2^¼.
    far = float(sigma_a_bound(torch.tensor(50.0, dtype=torch.float64), 10_000))
    assert 1 < far / float(sigma_a_bound(zero, 10_000)) < 2**0.25 + 1e-3
    lengths = [float(sigma_a_bound(zero, n)) for n in (2, 8, 32, 128, 512)]
    assert lengths == sorted(lengths, reverse=True)


def test_logits_that_a_mask_hides_do_not_count():
    logits = torch.tensor([[[1.0, torch.finfo(torch.float32).min], [3.0, 2.0]]])
    assert float(sigma_s(logits)) == pytest.approx(float(torch.tensor([1.0, 3.0, 2.0]).std(correction=0)))


def test_a_model_is_left_as_it_was(tiny_model):
    model = tiny_model("bert").train()
    model.set_attn_implementation("sdpa")
    observe(model, IDS, lambda layer: None)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with pytest.raises(ZeroDivisionError):
        observe(model, IDS, lambda layer: 1 / 0)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert model.config._attn_implementation == "sdpa"
