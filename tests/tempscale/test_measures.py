"""SOCM and σ_a of texts as they are: equal to the oracles on token embeddings of each text run alone."""

import numpy as np
import oracles
import pytest
import torch

import tempscale as ts
from tempscale.model.encoder import Encoder

TEXTS = ["a", "b c", "the quick brown fox", "0 1 2 3 4 5 6 7 8 9", "mean pooling hides what differs"]


@pytest.fixture(scope="module")
def tiny(tiny_folder):
    return Encoder.load(tiny_folder("bert"), device="cpu")


@pytest.fixture(scope="module")
def tokens(tiny):
    """Token embeddings of each text, run alone."""
    return [tiny.token_embeddings(ids) for ids in tiny.tokenizer(TEXTS).ids]


def values(found):
    return [float(value) for value in found]


def expected(x1, x2):
    x1, x2 = x1.double().numpy(), x2.double().numpy()
    return [oracles.d_mu(x1, x2), oracles.d_sigma(x1, x2), oracles.socm(x1, x2)]


def test_two_texts_have_the_socm_of_their_token_embeddings(tiny, tokens):
    for first in range(len(TEXTS)):
        for second in range(first):
            found = ts.socm(TEXTS[first], TEXTS[second], encoder=tiny)
            assert values(found) == pytest.approx(expected(tokens[first], tokens[second]), abs=2e-5)
            assert found.socm.ndim == 0
    assert values(ts.socm(TEXTS[2], TEXTS[4], encoder=tiny))[1] > 1e-3


def test_two_lists_are_compared_pair_by_pair(tiny, tokens):
    found = ts.socm(TEXTS[:2], TEXTS[3:], encoder=tiny)
    assert found.socm.shape == (2,)
    for k in range(2):
        pair = [float(value[k]) for value in found]
        assert pair == pytest.approx(expected(tokens[k], tokens[3 + k]), abs=2e-5)
    assert ts.socm([], []).socm.shape == (0,)


def test_all_pairs_of_texts_are_those_of_two(tiny, tokens):
    found = ts.pairwise_socm(TEXTS, encoder=tiny)
    for first in range(len(TEXTS)):
        assert float(found.d_sigma[first, first]) == 0
        for second in range(first):
            pair = [float(value[first, second]) for value in found]
            assert pair == pytest.approx(expected(tokens[first], tokens[second]), abs=2e-5)


def test_texts_arrays_and_tensors_may_be_mixed(tiny, tokens):
    wanted = expected(tokens[2], tokens[4])
    for first in (TEXTS[2], tokens[2], tokens[2].double(), tokens[2].numpy(), tokens[2].double().numpy()):
        for second in (TEXTS[4], tokens[4], tokens[4].numpy()):
            assert values(ts.socm(first, second, encoder=tiny)) == pytest.approx(wanted, abs=2e-5)
    mixed = ts.pairwise_socm([TEXTS[2], tokens[4].numpy(), tokens[0].double()], encoder=tiny)
    assert float(mixed.socm[0, 1]) == pytest.approx(wanted[2], abs=2e-5)
    assert mixed.socm.dtype == torch.float64


def test_half_precision_is_computed_in_float32(tokens):
    for kind, error in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
        found = ts.socm(tokens[2].to(kind), tokens[4])
        assert found.socm.dtype == torch.float32
        assert values(found) == pytest.approx(expected(tokens[2], tokens[4]), rel=error, abs=error)
    assert ts.socm(tokens[2].half().numpy(), tokens[4].double()).socm.dtype == torch.float64


def test_token_embeddings_have_gradients(tokens):
    x1, x2 = tokens[2].clone().requires_grad_(), tokens[4].double()
    ts.socm(x1, x2).socm.backward()
    assert float(x1.grad.abs().max()) > 0


def test_the_default_model_is_loaded_once(minilm, monkeypatch):
    loaded = []
    load = Encoder.load

    def counted(*arguments, **options):
        loaded.append(arguments)
        return load(*arguments, **options)

    monkeypatch.setattr(Encoder, "load", counted)
    from tempscale import measures

    measures._default_encoder.cache_clear()
    found = [ts.socm("a text", "another"), ts.socm("a text", "another")]
    assert len(loaded) == 1
    assert values(found[0]) == values(found[1])
    alone = [measures._default_encoder().encode([text]).embeddings[0].double().numpy() for text in ("a text", "another")]
    assert values(found[0])[0] == pytest.approx((1 - float(alone[0] @ alone[1])) / 2, abs=1e-6)


def test_sigma_a_of_a_text_is_that_of_its_attention(tiny_folder):
    folder = tiny_folder("bert")
    plain = Encoder.load(folder, device="cpu")
    ids = plain.tokenizer(["mean pooling hides"]).ids[0]
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        attentions = model(torch.tensor([ids]), output_attentions=True).attentions
    n = len(ids)
    filtering = np.eye(n) - np.ones((n, n)) / n
    wanted = [[np.linalg.norm(filtering @ head.double().numpy(), 2) for head in layer[0]] for layer in attentions]
    found = ts.sigma_a(plain, "mean pooling hides")
    assert found.shape == (len(attentions), model.config.num_attention_heads)
    np.testing.assert_allclose(found.double().numpy(), wanted, rtol=1e-4)
    sharper = ts.sigma_a(Encoder.load(folder, temperature=0.5, device="cpu"), "mean pooling hides")
    assert float((sharper - found).abs().max()) > 0.05


def test_sigma_a_cuts_at_the_window_also_where_texts_are_chunked(tiny_folder):
    folder = tiny_folder("bert")
    cut = ts.sigma_a(Encoder.load(folder, max_length=8, device="cpu"), "a b c d e f g h i j k l")
    chunked = ts.sigma_a(Encoder.load(folder, max_length=8, long="chunk", device="cpu"), "a b c d e f g h i j k l")
    assert torch.equal(cut, chunked)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda tiny: ts.socm(None, "a"), TypeError),
        (lambda tiny: ts.socm("a", 3), TypeError),
        (lambda tiny: ts.socm(["a", None], ["b", "c"], encoder=tiny), TypeError),
        (lambda tiny: ts.socm(["a"], "b", encoder=tiny), ValueError),
        (lambda tiny: ts.socm(["a"], ["b", "c"], encoder=tiny), ValueError),
        (lambda tiny: ts.socm("a", torch.ones(3, 5) + torch.eye(3, 5), encoder=tiny), ValueError),
        (lambda tiny: ts.socm("a", torch.ones(5), encoder=tiny), ValueError),
        (lambda tiny: ts.socm("a", np.array([["x"]]), encoder=tiny), TypeError),
        (lambda tiny: ts.socm("a", "b", encoder="all-MiniLM-L6-v2"), TypeError),
        (lambda tiny: ts.pairwise_socm("one text", encoder=tiny), TypeError),
        (lambda tiny: ts.pairwise_socm([torch.ones(2, 3), torch.zeros(0, 3)]), ValueError),
        (lambda tiny: ts.sigma_a("all-MiniLM-L6-v2", "a"), TypeError),
        (lambda tiny: ts.sigma_a(tiny, ["a"]), TypeError),
        (lambda tiny: ts.fit_by_length("all-MiniLM-L6-v2", ["a"], n0=4), TypeError),
        (lambda tiny: tiny.encode([None]), TypeError),
        (lambda tiny: tiny.encode(["a", 3]), TypeError),
    ],
)
def test_a_mistake_is_a_sentence(tiny, call, kind):
    with pytest.raises(kind) as caught:
        call(tiny)
    assert type(caught.value) is kind
    assert "has no attribute" not in str(caught.value)
