"""σ_a = ‖(I − (1/n)11ᵀ)A‖₂ and the schedule by length that holds it (S1 §2)."""

import math

import numpy as np
import oracles
import pytest
import torch

from tempscale import Encoder, TemperatureError, attach, detach, fit_by_length
from tempscale.choosing.by_length import mean_sigma_a
from tempscale.layers.spectrum import sigma_a, sigma_a_bound, sigma_a_by_squaring
from tempscale.temperature.schedule import Temperature


@pytest.fixture(scope="module")
def attentions(minilm):
    """A function that gives every layer's attention (layer, head, token, token) of one text, straight from transformers."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()

    def attentions(ids, tau=1.0):
        attach(model, tau)
        with torch.no_grad():
            found = model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
        detach(model)
        return torch.cat(found)

    return attentions


@pytest.mark.proof
@pytest.mark.parametrize(
    ("tokens", "below", "above"),
    [(8, 0.6, 0.8), (16, 0.6, 0.8), (32, 0.6, 0.8), (128, 0.8, 1.0), (512, 1.0, 1.2), (1024, 1.1, 1.3)],
)
def test_gaussian_logits_exceed_theorem_3_from_a_spread_on_that_depends_on_the_length(tokens, below, above):
    """The bound is stated for Gaussian logits: each side of where it ends to hold, as the docs say it."""
    random = np.random.default_rng(tokens)

    def measured(spread):
        logits = spread * random.standard_normal((max(2, 2048 // tokens), tokens, tokens))
        rows = np.exp(logits - logits.max(-1, keepdims=True))
        return np.mean([oracles.sigma_a(one) for one in rows / rows.sum(-1, keepdims=True)])

    bounds = [float(sigma_a_bound(torch.tensor(spread, dtype=torch.float64), tokens)) for spread in (below, above)]
    assert measured(below) < bounds[0]
    assert measured(above) > bounds[1]


@pytest.mark.proof
@pytest.mark.parametrize("tau", [1.0, 0.5, 0.2])
def test_on_real_attention_it_equals_a_full_decomposition(encoder, attentions, real_texts, tau):
    for ids in encoder.tokenizer([real_texts[3], real_texts[14], real_texts[-1]]).ids:
        every = attentions(ids, tau).flatten(0, 1)
        found = sigma_a(every)
        expected = [oracles.sigma_a(matrix) for matrix in every[::7].numpy()]
        np.testing.assert_allclose(found[::7], expected, rtol=2e-5)
        # As a GPU computes it.
        np.testing.assert_allclose(sigma_a_by_squaring(every[::7]), expected, rtol=1e-5)
        assert max(expected) > 1.2 * min(expected)


@pytest.mark.parametrize("way", [sigma_a, sigma_a_by_squaring])
def test_cases_by_hand(way):
    # A = I: (I − 11ᵀ/n) has norm 1. A = 11ᵀ/n: every token gets the mean, nothing is left.
    assert float(way(torch.eye(7, dtype=torch.float64))) == pytest.approx(1.0, abs=1e-12)
    assert float(way(torch.full((7, 7), 1 / 7, dtype=torch.float64))) < 1e-6
    # Two tokens, A = [[a, 1−a], [b, 1−b]]: (I − 11ᵀ/2)A = ½(a−b)[[1, −1], [−1, 1]], norm |a−b|.
    both = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.3, 0.7], [0.2, 0.8]]], dtype=torch.float64)
    np.testing.assert_allclose(way(both), [0.7, 0.1], rtol=1e-6)
    # All but one token attend to the last, which attends to the first: σ_a may exceed 1 and stays below √n.
    n = 9
    matrix = torch.zeros(n, n, dtype=torch.float64)
    matrix[:-1, -1], matrix[-1, 0] = 1.0, 1.0
    assert float(way(matrix)) == pytest.approx(oracles.sigma_a(matrix.numpy()), rel=1e-6)
    assert 1.0 < float(way(matrix)) < math.sqrt(n)
    assert float(way(torch.ones(1, 1))) == 0.0


@pytest.mark.parametrize("gap", [0.3, 1e-2, 1e-3, 2e-4, 1e-4, 3e-5, 0.0])
@pytest.mark.parametrize("n", [64, 200])
def test_it_is_found_however_near_the_next_singular_value_is(gap, n):
    """All others as near to it as `gap`, or half of them: the worst there is."""
    generator = torch.Generator().manual_seed(0)
    centred = torch.eye(n, dtype=torch.float64) - 1 / n
    left, right = (torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q for _ in range(2))
    left = torch.linalg.qr(centred @ left[:, : n - 1]).Q
    values = torch.full((n - 1,), 1.0 - gap, dtype=torch.float64)
    values[0] = 1.0
    halved = values.clone()
    halved[n // 2 :] = torch.linspace(0.9, 0.0, n - 1 - n // 2, dtype=torch.float64)
    both = torch.stack([left @ torch.diag(own) @ right[: n - 1] for own in (values, halved)])
    for dtype in (torch.float64, torch.float32):
        for way in (sigma_a, sigma_a_by_squaring):
            np.testing.assert_allclose(way(both.to(dtype)), 1.0, rtol=1e-4)


def test_attention_that_is_repeated_leaves_the_mean_alone(encoder, attentions, real_texts):
    """S1's Lemma 1: ‖HC[Aᵗz]‖/‖DC[Aᵗz]‖ → 0 for every head, at the rate of its second eigenvalue."""
    (ids,) = encoder.tokenizer([real_texts[9]]).ids
    every = attentions(ids).flatten(0, 1).double()
    assert (every > 0).all()
    z, ratios = torch.rand(every.shape[-1], 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64), []
    z = z.expand(len(every), -1, 1)
    for squaring in range(16):  # A, A², A⁴, …: after the last, A has been applied 2¹⁶ − 1 times.
        z = every @ z
        every = every @ every
        every = every / every.sum(-1, keepdim=True)
        if squaring in (0, 5, 15):
            ratios.append((z - z.mean(1, keepdim=True)).norm(dim=1) / (z.mean(1).abs() * z.shape[1] ** 0.5))
    assert (ratios[0] > 1e-6).any()
    assert (ratios[1] <= ratios[0]).all()
    assert float(ratios[2].max()) < 1e-9


def test_the_order_of_the_tokens_does_not_matter():
    attention = torch.softmax(
        3 * torch.randn(5, 40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64), -1
    )
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        sigma_a(attention[:, order][:, :, order], 1e-12), sigma_a(attention, 1e-12), rtol=1e-8, atol=0
    )


def test_the_mean_over_a_model_is_that_of_its_attentions(encoder, attentions, real_texts):
    ids = encoder.tokenizer([real_texts[5], real_texts[9]]).ids
    for tau in (1.0, 0.6):
        every = [oracles.sigma_a(m) for text in ids for m in attentions(text, tau).flatten(0, 1).numpy()]
        assert mean_sigma_a(encoder, ids, tau) == pytest.approx(np.mean(every), rel=1e-3)
        last = [oracles.sigma_a(m) for text in ids for m in attentions(text, tau)[-1].numpy()]
        assert mean_sigma_a(encoder, ids, tau, "last") == pytest.approx(np.mean(last), rel=1e-3)
        assert abs(np.mean(last) - np.mean(every)) > 0.1
    assert encoder.temperature == Temperature(1.0)


@pytest.fixture(scope="module")
def own(minilm):
    return Encoder.load(minilm, temperature=0.7, device="cpu", max_length=96)


@pytest.fixture(scope="module")
def fitted(own, real_texts):
    return fit_by_length(own, real_texts, n0=48)


@pytest.mark.proof
@pytest.mark.parametrize("layers", ["all", pytest.param("last", marks=pytest.mark.soak)])
def test_the_fitted_schedule_holds_the_measured_filter(own, fitted, attentions, real_texts, layers):
    fitted = fitted if layers == "all" else fit_by_length(own, real_texts, n0=48, layers=layers)
    long = [i for i, n in enumerate(own.tokenizer(real_texts).lengths) if n >= 96]
    assert [step.tokens for step in fitted.steps] == [68, 96]
    step = fitted.steps[-1]
    ids = own.tokenizer([real_texts[i] for i in long], 96).ids
    short = own.tokenizer([real_texts[i] for i in long], 48).ids

    def mean(texts, tau=1.0):
        seen = [attentions(text, tau)[0 if layers == "all" else -1 :].flatten(0, 1) for text in texts]
        return np.mean([oracles.sigma_a(m) for own in seen for m in own.numpy()])

    target, held, untouched = mean(short), mean(ids, step.tau), mean(ids)
    assert held == pytest.approx(target, rel=0.02)
    assert abs(untouched - target) > 5 * abs(held - target)
    assert fitted.temperature.of_length(48) == 1.0
    assert fitted.temperature.of_length(96) == step.tau
    assert Temperature.of(fitted.temperature.canonical) == fitted.temperature
    assert own.temperature == Temperature(0.7)
    assert own.model.config._attn_implementation == "sdpa"


def test_nothing_longer_than_n0_needs_no_schedule(own, real_texts):
    found = fit_by_length(own, real_texts, n0=96)
    assert found.temperature == Temperature(1.0)
    assert found.steps == []


@pytest.mark.parametrize(
    ("n0", "texts", "words"),
    [(2, 24, "n0 2 .* 3 to 96"), (97, 24, "n0 97 "), (48.0, 24, r"n0 48\.0 "), (48, 3, "of 3 .* 48"), (48, 0, "of 0")],
)
def test_what_cannot_be_fitted_is_said(own, real_texts, n0, texts, words):
    with pytest.raises(TemperatureError, match=words):
        fit_by_length(own, real_texts[:texts], n0=n0)
    with pytest.raises(TemperatureError, match="'first'"):
        fit_by_length(own, real_texts, layers="first")
