"""Texts to embeddings and moments: equal to attention by hand, whatever shares a batch."""

import itertools

import numpy as np
import oracles
import pytest
import torch
from by_hand_attention import by_hand
from hypothesis import given, settings
from hypothesis import strategies as st
from sentence_transformers_cases import change
from tiny import LETTERS
from transformers import PreTrainedTokenizerBase

from tempscale.model.batches import micro_batches
from tempscale.model.budgets import TOKEN_BUDGET, usual_budget
from tempscale.model.checkpoint import ModelError
from tempscale.model.encoder import Encoder
from tempscale.model.loading import check_family, load_transformer
from tempscale.model.sequences import Tokens
from tempscale.model.tokens import Tokenizer
from tempscale.temperature.families import ARCHITECTURES, UnsupportedArchitecture, base_model
from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature


@pytest.fixture(scope="module")
def tiny_encoder(tiny_folder):
    return Encoder.load(tiny_folder("bert"), device="cpu")


# --- equality with attention by hand ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("tau", "budget"), [(0.5, 1), (1.0, 64), (0.5, 100_000)])
def test_each_family_equals_the_mean_of_attention_by_hand_whatever_shares_a_batch(tiny_folder, family, tau, budget):
    folder = tiny_folder(family)
    encoder = Encoder.load(folder, temperature=tau, token_budget=budget, device="cpu")
    plain, _ = load_transformer(folder)
    out = encoder.encode(LETTERS)
    for row, ids in enumerate(encoder.tokenizer(LETTERS).ids):
        with torch.no_grad(), by_hand(plain, tau):
            hidden = plain(input_ids=torch.tensor([ids])).last_hidden_state[0].double().numpy()
        mean = hidden.mean(0)
        np.testing.assert_allclose(out.embeddings[row], mean / np.linalg.norm(mean), atol=1e-5)
        assert float(out.moments.mean_norm[row]) == pytest.approx(np.linalg.norm(mean), rel=1e-4)
        assert float(out.moments.spread[row]) == pytest.approx(oracles.spread(hidden), rel=1e-4)
        assert float(out.moments.within_cosine[row]) == pytest.approx(oracles.within_cosine(hidden), rel=1e-4)


def test_moments_and_factors_are_those_of_the_token_embeddings(encoder, real_texts, token_embeddings):
    out = encoder.encode(real_texts[2::5], factors=True)
    for row, hidden in enumerate(token_embeddings[2::5]):
        mean, sigma = oracles.unit_moments(hidden.numpy())
        unit_mean, factor = out.factors[row]
        assert factor.shape == (min(len(hidden), 384), 384)
        np.testing.assert_allclose(unit_mean, mean, atol=1e-5)
        np.testing.assert_allclose(factor.double().T @ factor.double(), sigma, atol=1e-5 * np.abs(sigma).max())
        assert float(out.moments.spread[row]) == pytest.approx(np.trace(sigma), rel=1e-5)
        tokens = hidden.double().numpy()
        units = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
        assert float(out.moments.within_cosine[row]) == pytest.approx((units @ units.T).mean(), rel=1e-5)


# --- batches ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 600), max_size=80), st.integers(1, 3000))
def test_micro_batches_hold_every_index_once_among_its_neighbours_in_length_within_the_budget(lengths, budget):
    batches = micro_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    sizes = [[lengths[i] for i in batch] for batch in batches]
    assert all(len(own) == 1 or len(own) * max(own) <= budget for own in sizes)
    spans = sorted((min(own), max(own)) for own in sizes)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))
    for own, following in itertools.pairwise(sizes):  # One ends where it is full or the next text would waste too much.
        padded = (len(own) + 1) * max(*own, following[0])
        assert padded > budget or (
            padded > 1.04 * (sum(own) + following[0]) and padded - max(*own, following[0]) >= budget / 4
        )
    assert batches == micro_batches(list(lengths), budget)


def test_micro_batches_by_hand():
    # Longest first: 9 alone, since 2·9 > 10; then 5, since with 3 of 10 tokens 2 were padding; 3 likewise; then 2 and 2.
    assert micro_batches([5, 2, 9, 2, 3], 10) == [[2], [0], [4], [1, 3]]
    # A batch below a quarter of the budget takes what it can get.
    assert micro_batches([5, 2, 9, 2, 3], 100) == [[2, 0, 4], [1, 3]]
    assert micro_batches([26] * 3 + [25], 104) == [[0, 1, 2, 3]]
    assert micro_batches([26] * 3 + [20], 104) == [[0, 1, 2], [3]]
    assert micro_batches([5, 2, 9, 2, 3], 1) == [[2], [0], [4], [1], [3]]
    assert micro_batches([4, 4, 4], 8) == [[0, 1], [2]]
    assert micro_batches([], 8) == []
    # Packed, no batch ends for its padding: 5, 3 and then 2 fit into 15 padded tokens.
    assert micro_batches([5, 2, 9, 2, 3], 15, packed=True) == [[2], [0, 4, 1], [3]]
    assert micro_batches([5, 2, 9, 2, 3], 15) == [[2], [0], [4, 1], [3]]


@pytest.mark.parametrize(
    ("device", "width", "budget"),
    [("cpu", 384, 1024), ("cpu", 8192, 1024), ("cuda", 384, 65_536), ("cuda", 1024, 65_536), ("cuda", 4096, 16_384)],
)
def test_the_usual_budget_is_that_of_the_device_and_of_the_width(device, width, budget):
    assert usual_budget(device, width) == budget


def test_an_encoder_takes_the_usual_budget_unless_one_is_given(tiny_folder):
    assert Encoder.load(tiny_folder(), device="cpu").token_budget == TOKEN_BUDGET
    assert Encoder.load(tiny_folder(), device="cpu", token_budget=7).token_budget == 7
    assert Encoder.load(tiny_folder(), device="meta").token_budget == 65_536  # Not a CPU's.
    with pytest.raises(ValueError, match="token_budget 0"):
        Encoder.load(tiny_folder(), token_budget=0)


def test_the_same_call_gives_the_same_bits_of_unit_norm_on_the_cpu_in_single_precision(tiny_encoder):
    found = tiny_encoder.encode(LETTERS, moments=False).embeddings
    assert torch.equal(found, tiny_encoder.encode(LETTERS, moments=False).embeddings)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(len(LETTERS)), atol=1e-6, rtol=0)
    assert (found.dtype, found.device.type, found.requires_grad) == (torch.float32, "cpu", False)


def test_no_texts_have_the_width_that_texts_have_and_what_is_not_asked_for_is_none(tiny_folder, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Pooling, Transformer

    stages = [Transformer(str(tiny_folder())), Pooling(32), Dense(32, 7)]
    SentenceTransformer(modules=stages, device="cpu").save(str(tmp_path))
    encoder = Encoder.load(tmp_path, device="cpu")
    one, none = encoder.encode(["a"], moments=False), encoder.encode([], factors=True)
    assert (one.embeddings.shape, none.embeddings.shape) == ((1, 7), (0, 7))
    assert none.tokens.shape == none.truncated.shape == (0,)
    assert (one.moments, one.factors, none.factors) == (None, None, [])
    assert len(encoder.encode(LETTERS, moments=False, factors=True).factors) == len(LETTERS)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_are_counted_after_truncation_and_what_is_cut_off_has_no_effect(encoder):
    texts = ["", "hello", "hello world", "hello " * 510, "hello " * 511, "hello " * 510 + "catastrophe " * 40]
    out, ids = encoder.encode(texts, moments=False), encoder.tokenizer(texts).ids
    assert out.tokens.tolist() == [2, 3, 4, 512, 512, 512]
    assert out.truncated.tolist() == [False, False, False, False, True, True]
    assert ids[-1] == ids[-2]
    assert ids[-1][-1] == ids[1][-1], "the last token stays"


@pytest.mark.parametrize(
    ("family", "changes", "longest"),
    [
        ("bert", {}, 64), ("roberta", {}, 64), ("xlm-roberta", {}, 64), ("distilbert", {}, 64),
        # Fewer positions than the tokenizer believes; two of RoBERTa's lie before the first token.
        ("bert", {"max_position_embeddings": 20}, 20), ("roberta", {"max_position_embeddings": 20}, 18),
    ],
)  # fmt: skip
def test_the_longest_text_of_each_family_runs(tiny_folder, family, changes, longest):
    out = Encoder.load(tiny_folder(family, **changes), device="cpu").encode(["a " * 100])
    assert out.tokens.tolist() == [longest]
    assert torch.isfinite(out.embeddings).all()


@pytest.mark.parametrize("value", [2, -5, 65])
def test_a_maximum_out_of_range_is_refused_with_the_range(tiny_folder, tiny_encoder, value):
    with pytest.raises(ModelError, match=f"max_length {value} .*64"):
        Encoder.load(tiny_folder("bert"), max_length=value)
    with pytest.raises(ModelError, match=f"max_length {value} .*64"):
        tiny_encoder.encode(["a " * 100], max_length=value)


@pytest.mark.parametrize("value", [3, 64])
def test_a_maximum_at_the_ends_of_the_range_is_kept_and_one_call_can_cut_shorter(tiny_folder, tiny_encoder, value):
    asked = Encoder.load(tiny_folder("bert"), max_length=value, device="cpu").encode(["a " * 100, "a"])
    called = tiny_encoder.encode(["a " * 100, "a"], max_length=value)
    for out in (asked, called):
        assert out.tokens.tolist() == [value, 3]
        assert out.truncated.tolist() == [True, False]
        assert torch.equal(out.embeddings, asked.embeddings)
    assert tiny_encoder.tokenizer.max_length == 64


def test_texts_and_their_tokens_give_the_same(tiny_encoder):
    tokens = tiny_encoder.tokenizer(LETTERS)
    assert tokens.lengths == [len(ids) for ids in tokens.ids]
    assert torch.equal(tiny_encoder.encode_tokens(tokens).embeddings, tiny_encoder.encode(LETTERS).embeddings)
    assert tiny_encoder.tokenizer([]) == Tokens([], [])
    with pytest.raises(TypeError, match="one string"):
        tiny_encoder.tokenizer("one text")


@pytest.mark.parametrize(
    ("error", "isolate"), [(ValueError("no"), False), (KeyboardInterrupt(), True), (SystemExit(1), True)]
)
def test_an_error_of_the_tokenizer_is_raised_unless_it_is_to_be_isolated_and_no_way_to_end_is(
    tiny_folder, monkeypatch, error, isolate
):
    tokenizer = Tokenizer(tiny_folder("bert"))

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(PreTrainedTokenizerBase, "__call__", fail)
    with pytest.raises(type(error)):
        tokenizer(LETTERS, isolate=isolate)


# --- temperature ------------------------------------------------------------------------------------------------------


def test_a_temperature_is_replaced_and_taken_back_to_the_bit(tiny_folder, family):
    encoder = Encoder.load(tiny_folder(family), device="cpu")
    before = encoder.encode(LETTERS).embeddings
    assert encoder.temperature == Temperature(1.0)
    encoder.set_temperature(0.5)
    half = encoder.encode(LETTERS).embeddings
    encoder.set_temperature("0.8")
    assert encoder.temperature == Temperature(0.8)
    assert not torch.allclose(half, encoder.encode(LETTERS).embeddings, atol=1e-3)
    encoder.set_temperature(0.5)
    assert torch.equal(half, encoder.encode(LETTERS).embeddings)
    encoder.set_temperature(1)
    assert torch.equal(before, encoder.encode(LETTERS).embeddings)
    assert not torch.allclose(before, half, atol=1e-3)


def test_attach_detach_and_verify_take_an_encoder(tiny_folder):
    from tempscale import attach, attached, detach, verify

    encoder = Encoder.load(tiny_folder(), device="cpu")
    plain = encoder.encode(LETTERS).embeddings
    expected = Encoder.load(tiny_folder(), temperature=0.5, device="cpu").encode(LETTERS).embeddings
    assert attach(encoder, 0.5) is encoder
    assert attached(encoder) == encoder.temperature == Temperature(0.5)
    verify(encoder)
    assert torch.equal(encoder.encode(LETTERS).embeddings, expected)
    assert torch.equal(detach(encoder).encode(LETTERS).embeddings, plain)


def test_a_role_is_named_with_the_texts(tiny_folder):
    encoder = Encoder.load(tiny_folder(), temperature={"by_role": {"query": 1.0, "document": 0.5}}, device="cpu")
    for name, tau in (("query", 1.0), ("document", 0.5)):
        expected = Encoder.load(tiny_folder(), temperature=tau, device="cpu").encode(LETTERS).embeddings
        assert torch.equal(encoder.encode(LETTERS, role=name).embeddings, expected)
    with pytest.raises(TemperatureError, match="role"):
        encoder.encode(LETTERS)


@pytest.mark.parametrize("before", [0.5, 1.0])
def test_a_temperature_that_cannot_be_set_leaves_the_one_before(tiny_folder, before):
    encoder = Encoder.load(tiny_folder(), temperature=before, device="cpu")
    expected = encoder.encode(LETTERS).embeddings
    for value, words in ((0, "out of range"), ({"by_layer": [0.5, 0.6]}, "names 2 layers")):
        with pytest.raises(TemperatureError, match=words):
            encoder.set_temperature(value)
    assert encoder.temperature == Temperature(before)
    assert torch.equal(encoder.encode(LETTERS).embeddings, expected)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["convbert", "hyena"])
def test_an_unsupported_family_is_named(tiny_folder, name):
    """transformers knows the first only."""
    folder = tiny_folder()
    change(folder, "config.json", model_type=name)
    for use in (Encoder.load, check_family):
        with pytest.raises(UnsupportedArchitecture, match=f"'{name}'"):
            use(folder)


def test_families_are_checked_and_tokenizers_loaded_without_the_weights(tiny_folder, family, tmp_path):
    folder = tiny_folder(family)
    (folder / "model.safetensors").unlink()
    assert check_family(folder) is ARCHITECTURES[family]
    assert Tokenizer(folder)(["a b"]).lengths == [4]
    with pytest.raises(ModelError, match=r"config\.json"):
        check_family(tmp_path)


def test_weights_that_are_not_the_models_are_refused_and_an_unused_pooler_is_not_missed(tiny_folder):
    # transformers fills what is missing with random numbers and says so in the log only.
    from safetensors.torch import load_file, save_file

    file = tiny_folder() / "model.safetensors"
    expected = Encoder.load(file.parent, device="cpu").encode(LETTERS).embeddings
    state = {key: value for key, value in load_file(str(file)).items() if not key.startswith("pooler")}
    assert len(state) == len(load_file(str(file))) - 2
    save_file(state, str(file), metadata={"format": "pt"})
    assert torch.equal(Encoder.load(file.parent, device="cpu").encode(LETTERS).embeddings, expected)
    del state["encoder.layer.1.attention.self.query.weight"]
    save_file(state, str(file), metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"encoder.layer.1.attention.self.query.weight"):
        Encoder.load(file.parent)


def test_a_text_whose_tokens_cancel_has_no_spread_and_no_factor(encoder):
    """The mean of the last layer's tokens is taken off each of them, which leaves a mean of rounding errors."""

    def centred(module, inputs, output):
        hidden = output.last_hidden_state
        output["last_hidden_state"] = hidden - hidden.mean(1, keepdim=True)

    text = "attention is a low-pass filter that gets stronger with length"
    handle = base_model(encoder.model).register_forward_hook(centred)
    try:
        out = encoder.encode([text])
        with pytest.raises(ValueError, match="zero"):
            encoder.encode([text], factors=True)
        failed = encoder.encode_tokens(encoder.tokenizer([text]), factors=True, isolate=True).failed
    finally:
        handle.remove()
    assert 0 < float(out.moments.mean_norm[0]) < 1e-5
    assert torch.isnan(out.moments.spread[0])
    assert list(failed) == [0]
    assert 0 < float(encoder.encode([text]).moments.spread[0]) < 100
