"""What is seen inside each layer, for every family, against the model's own modules and attention by hand in float64."""

import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from attaching import hooked
from places_by_hand import BEHIND_THE_SECOND_SUM, seen

from tempscale import Encoder, attach
from tempscale.layers import observe as observing
from tempscale.layers.contraction import concentration, contraction, gain, head_contraction
from tempscale.layers.observe import observe, sigma_s
from tempscale.layers.spectrum import head_spectrum, high_frequency_ratios, sigma_a_bound
from tempscale.temperature.families import base_model, places
from tempscale_jobs.diagnose.looks import Glance

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
        close(
            BEHIND_THE_SECOND_SUM.get(family, lambda m: torch.nn.Identity())(module)(layer.second_sum.unsqueeze(0))[0],
            layer.x,
        )
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
    agrees(tiny_model(family), tiny_model(family).double(), family, IDS, tau)


@pytest.mark.parametrize("rows", [1, 5])
def test_every_figure_agrees_if_few_rows_are_looked_at_together(tiny_model, family, rows, monkeypatch):
    """As of long texts; the last rows are fewer."""
    monkeypatch.setattr(observing, "_CACHED", rows * len(IDS))
    agrees(tiny_model(family), tiny_model(family).double(), family, IDS, 0.7)


@pytest.mark.proof
@pytest.mark.parametrize(("which", "tau"), [(16, 1.0), (-1, 0.7)])
def test_every_figure_agrees_on_the_real_model_too(minilm, real_texts, which, tau):
    """On a text of some sentences and on one that is cut at the window."""
    encoder = Encoder.load(minilm, device="cpu", max_length=192)
    exact = Encoder.load(minilm, device="cpu").model.double()
    (ids,) = encoder.tokenizer([real_texts[which]]).ids
    agrees(encoder.model, exact, "bert", ids, tau)


def agrees(model, exact, family, ids, tau):
    """Every figure of every layer and head within 1e-4 (relative) of what the oracle makes of the same places."""
    by_hand = seen(base_model(exact), [place.layer for place in places(exact)], family, ids, tau)
    if tau != 1.0:
        attach(model, tau)
    n = len(ids)
    eye = np.eye(n) - np.ones((n, n)) / n

    def figures(layer):
        norms = torch.linalg.matrix_norm(layer.value_weights.double(), 2)
        products = (layer.output_weights.double() @ layer.value_weights.double()).numpy()
        gains = gain(layer)
        np.testing.assert_allclose(gains, [np.linalg.svd(p, compute_uv=False)[0] for p in products], rtol=1e-6)
        weights = layer.value_weights.double().numpy()
        return (
            head_spectrum(layer, norms),
            head_contraction(layer, gains),
            gains.numpy(),
            weights,
            contraction(layer),
            high_frequency_ratios(layer),
        )

    found = observe(model, ids, figures)
    assert len(found) == len(by_hand)
    for (heads, lambdas, gains, value_weights, every, ratios), own in zip(found, by_hand, strict=True):
        attention, visible = own["attention"], own["logits"] > -1e30
        sigma_a = [oracles.sigma_a(a) for a in attention]
        near(heads.sigma_s, [logits[v].std() for logits, v in zip(own["logits"], visible, strict=True)])
        near(heads.sigma_a, sigma_a)
        near(lambdas, [g**2 * np.square(eye @ a).sum() / (n - 1) for g, a in zip(gains, attention, strict=True)])
        theorem_2 = [
            np.linalg.norm(eye @ a @ own["attended"] @ w.T)
            / (sigma * np.linalg.norm(w, 2) * np.linalg.norm(eye @ own["attended"]))
            for a, w, sigma in zip(attention, value_weights, sigma_a, strict=True)
        ]
        near(heads.theorem_2_ratio, theorem_2)
        assert 0 < min(theorem_2) <= max(theorem_2) <= 1 + 1e-9
        left = {name: np.linalg.norm(eye @ m) for name, m in own.items() if name not in ("logits", "attention")}
        mean = {name: np.linalg.norm(own[name].mean(0)) for name in ("x", "y")}
        rho, r = (left["z"] / left["h"]) ** 2, left["h"] ** 2 / n / mean["y"] ** 2
        spread = left["x"] ** 2 / n / mean["x"] ** 2
        c = spread / (left["y"] ** 2 / n / mean["y"] ** 2)
        near([every.rho, every.r, every.c, every.spread], [rho, r, c, spread])
        near(every.bound, c * (1 + math.sqrt(rho)) ** 2 * r)
        assert float(every.spread) <= float(every.bound) * (1 + 1e-6)
        near(every.within_cosine, oracles.within_cosine(own["x"]))
        attended = left["attention_output"] / left["attended"]
        fed = left["feed_forward_output"] / left["fed"]
        residual = left["y"] / left["z"] * left["second_sum"] / left["branch"]
        whole = left["x"] / left["h"]
        near([ratios.whole, ratios.attention, ratios.residual], [whole, attended, residual])
        near([ratios.feed_forward, ratios.norms], [fed, whole / attended / residual / fed])


def near(found, expected):
    np.testing.assert_allclose(np.asarray(found, dtype=float), expected, rtol=1e-4)


def test_contraction_by_hand():
    from tempscale.layers.observe import Layer

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


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_the_first_rows_may_show_nothing(rows, monkeypatch):
    monkeypatch.setattr(observing, "_CACHED", 8 * rows)
    logits = torch.arange(64.0).reshape(1, 8, 8)
    logits[:, :2] = torch.finfo(torch.float32).min
    assert float(sigma_s(logits)) == pytest.approx(math.sqrt((48**2 - 1) / 12), rel=1e-12)


def test_logits_that_a_mask_hides_do_not_count():
    logits = torch.tensor([[[1.0, torch.finfo(torch.float32).min], [3.0, 2.0]]])
    assert float(sigma_s(logits)) == pytest.approx(float(torch.tensor([1.0, 3.0, 2.0]).std(correction=0)))


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_logits_far_from_zero_keep_their_deviation(rows, monkeypatch):
    monkeypatch.setattr(observing, "_CACHED", 8 * rows)
    logits = 1e4 + torch.arange(64.0).reshape(1, 8, 8)
    assert float(sigma_s(logits)) == pytest.approx(math.sqrt((64**2 - 1) / 12), rel=1e-12)
    assert float(sigma_s(torch.full((1, 8, 8), 0.1))) == pytest.approx(0, abs=1e-12)


def test_a_model_is_left_as_it_was(tiny_model):
    model = tiny_model("bert").train()
    model.set_attn_implementation("sdpa")
    observe(model, IDS, lambda layer: None)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert not hooked(model)
    with pytest.raises(ZeroDivisionError):
        observe(model, IDS, lambda layer: 1 / 0)
    assert not hooked(model)
    assert model.config._attn_implementation == "sdpa"


def test_padding_other_texts_and_the_cut_change_no_figure(minilm, real_texts):
    """A plain batched pass, padded and masked, shows the same attention and states; and a text is its own first tokens."""
    encoder = Encoder.load(minilm, device="cpu", max_length=128)
    glance = Glance()
    tokens = encoder.tokenizer([real_texts[9], real_texts[16], real_texts[-1]])
    (uncut,) = Encoder.load(minilm, device="cpu").tokenizer([real_texts[-1]]).ids
    assert len(uncut) > 128 == len(tokens.ids[-1])
    assert tokens.ids[-1] == [*uncut[:127], uncut[-1]]
    alone = [glance.of(encoder.model, ids) for ids in tokens.ids]
    width = max(map(len, tokens.ids)) + 7
    ids = torch.tensor([[*own, *[0] * (width - len(own))] for own in tokens.ids])
    mask = torch.tensor([[1] * len(own) + [0] * (width - len(own)) for own in tokens.ids])
    encoder.model.set_attn_implementation("eager")
    with torch.no_grad():
        out = encoder.model(input_ids=ids, attention_mask=mask, output_attentions=True, output_hidden_states=True)
    for text, (layers, heads) in enumerate(alone):
        n = len(tokens.ids[text])
        assert layers[0]["spread"] == pytest.approx(spread_of(out.hidden_states[0][text, :n].double().numpy()), rel=1e-5)
        for row in layers[1:]:
            h, x = (out.hidden_states[row["layer"] + k][text, :n].double().numpy() for k in (0, 1))
            centred = [np.linalg.norm(m - m.mean(0)) for m in (h, x)]
            assert row["hc_ratio"] == pytest.approx(centred[1] / centred[0], rel=1e-5)
            assert row["spread"] == pytest.approx(centred[1] ** 2 / n / np.square(x.mean(0)).sum(), rel=1e-5)
            assert row["within_cosine"] == pytest.approx(oracles.within_cosine(x), rel=1e-5)
        for row in heads[::5]:
            attention = out.attentions[row["layer"]][text, row["head"], :n, :n].double().numpy()
            assert row["sigma_a"] == pytest.approx(oracles.sigma_a(attention), rel=1e-5)


def spread_of(tokens):
    return np.square(tokens - tokens.mean(0)).sum() / len(tokens) / np.square(tokens.mean(0)).sum()


def test_tokens_of_one_length_have_the_spread_that_appendix_j_says():
    """Equal norms: S(X)/‖μ‖² = 1/w − 1. By hand: (3, 4) and (4, 3) vary by nothing, (1, 0) and (3, 0) by half their mean."""
    tokens = torch.randn(40, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = 3 * tokens / tokens.norm(dim=1, keepdim=True) + 0
    equal = concentration(tokens)
    assert equal.norm_variation == pytest.approx(0, abs=1e-12)
    assert equal.spread == pytest.approx(1 / float(equal.within_cosine) - 1, rel=1e-10)
    assert concentration(torch.tensor([[3.0, 4.0], [4.0, 3.0]])) == pytest.approx((0.5 / 24.5, 24.5 / 25, 0))
    assert concentration(torch.tensor([[1.0, 0.0], [3.0, 0.0]])) == pytest.approx((1 / 4, 1, 0.5))
