"""Texts to embeddings and moments: equal to sentence-transformers and to attention by hand, whatever shares a batch."""

import contextlib
import itertools
import json
import re
import shutil

import numpy as np
import oracles
import pytest
import torch
from by_hand_attention import by_hand
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import LETTERS

from tempscale.model.batches import micro_batches
from tempscale.model.checkpoint import ModelError
from tempscale.model.encoder import TOKEN_BUDGET, Encoder, usual_budget
from tempscale.model.loading import check_family, check_temperatures, load_transformer
from tempscale.model.tokens import Tokenizer, Tokens
from tempscale.temperature.families import ARCHITECTURES, UnsupportedArchitecture
from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature


@pytest.fixture(scope="module")
def sentence_transformer(minilm):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm), device="cpu")
    model.max_seq_length = 512
    return model


@pytest.fixture(scope="module")
def tiny_encoder(tiny_folder):
    return Encoder.load(tiny_folder("bert"), device="cpu")


def edited(folder, tmp_path, name, **changes):
    """A copy of a model folder with other values in one JSON file."""
    copy = tmp_path / "edited"
    shutil.copytree(folder, copy)
    data = json.loads((copy / name).read_text("utf-8"))
    (copy / name).write_text(json.dumps(data | changes), "utf-8")
    return copy


# --- equality with sentence-transformers and with attention by hand ---------------------------------------------------


def test_equals_sentence_transformers_on_real_texts(encoder, sentence_transformer, real_texts):
    texts = real_texts[::2]
    found = encoder.encode(texts).embeddings.numpy()
    expected = sentence_transformer.encode(texts, batch_size=4)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - found[0]).max() > 0.1


@pytest.mark.proof
@pytest.mark.parametrize("tau", [0.5, 0.8])
def test_a_temperature_means_the_same_on_a_sentence_transformer(minilm, sentence_transformer, real_texts, tau):
    from tempscale import attach, detach

    texts = real_texts[:18:4]
    found = Encoder.load(minilm, temperature=tau, device="cpu").encode(texts).embeddings.numpy()
    plain = sentence_transformer.encode(texts, batch_size=4)
    attach(sentence_transformer, tau)
    expected = sentence_transformer.encode(texts, batch_size=4)
    detach(sentence_transformer)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - plain).max() > 1e-3
    np.testing.assert_array_equal(sentence_transformer.encode(texts, batch_size=4), plain)


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_each_family_equals_the_mean_of_attention_by_hand(tiny_folder, family, tau):
    folder = tiny_folder(family)
    encoder = Encoder.load(folder, temperature=tau, device="cpu")
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
    assert usual_budget(torch.device(device), width) == budget


def test_an_encoder_takes_the_usual_budget_unless_one_is_given(tiny_folder):
    assert Encoder.load(tiny_folder(), device="cpu").token_budget == TOKEN_BUDGET
    assert Encoder.load(tiny_folder(), device="cpu", token_budget=7).token_budget == 7
    assert Encoder.load(tiny_folder(), device="meta").token_budget == 65_536  # Not a CPU's.


def test_a_result_does_not_depend_on_what_shares_its_batch(encoder, real_texts):
    texts = real_texts[:21:3]
    together = encoder.encode(texts, factors=True)
    alone = [encoder.encode([text], factors=True) for text in texts]
    torch.testing.assert_close(together.embeddings, torch.cat([out.embeddings for out in alone]), atol=1e-5, rtol=0)
    torch.testing.assert_close(together.moments.spread, torch.cat([out.moments.spread for out in alone]), atol=0, rtol=1e-5)
    for (mean, factor), out in zip(together.factors, alone, strict=True):
        torch.testing.assert_close(mean, out.factors[0][0], atol=1e-5, rtol=0)
        gram, own = factor.T @ factor, out.factors[0][1].T @ out.factors[0][1]
        torch.testing.assert_close(gram, own, atol=1e-5, rtol=0)


@pytest.mark.parametrize("budget", [1, 64, 100_000])
def test_a_result_does_not_depend_on_the_budget(tiny_folder, tiny_encoder, family, budget):
    folder = tiny_folder(family)
    usual, other = (Encoder.load(folder, token_budget=b, device="cpu") for b in (2048, budget))
    torch.testing.assert_close(other.encode(LETTERS).embeddings, usual.encode(LETTERS).embeddings, atol=1e-5, rtol=0)


def test_results_stand_in_the_order_of_the_texts(tiny_encoder):
    there, back = tiny_encoder.encode(LETTERS, factors=True), tiny_encoder.encode(LETTERS[::-1], factors=True)
    torch.testing.assert_close(there.embeddings, back.embeddings.flip(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(there.moments.spread, back.moments.spread.flip(0), atol=1e-5, rtol=1e-5)
    assert there.tokens.tolist() == back.tokens.tolist()[::-1]
    assert [len(factor) for _, factor in there.factors] == [len(factor) for _, factor in back.factors[::-1]]
    assert len(set(there.tokens.tolist())) > 3


def test_the_same_call_gives_the_same_bits(tiny_encoder):
    assert torch.equal(tiny_encoder.encode(LETTERS).embeddings, tiny_encoder.encode(LETTERS).embeddings)


def test_embeddings_have_unit_norm_and_rest_on_the_cpu_in_single_precision(encoder, real_texts):
    out = encoder.encode(real_texts[:8])
    torch.testing.assert_close(out.embeddings.norm(dim=1), torch.ones(8), atol=1e-6, rtol=0)
    assert out.embeddings.dtype == torch.float32
    assert out.embeddings.device.type == "cpu"
    assert not out.embeddings.requires_grad


def test_moments_and_factors_are_returned_where_asked_for(tiny_encoder):
    out = tiny_encoder.encode(LETTERS, moments=False)
    assert out.moments is None
    assert out.factors is None
    assert len(tiny_encoder.encode(LETTERS, moments=False, factors=True).factors) == len(LETTERS)


def test_no_texts_are_no_rows(tiny_encoder):
    out = tiny_encoder.encode([], factors=True)
    assert out.embeddings.shape == (0, 32)
    assert out.tokens.shape == out.truncated.shape == (0,)
    assert out.factors == []


def test_no_texts_have_the_width_that_texts_have(tiny_folder, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Pooling, Transformer

    stages = [Transformer(str(tiny_folder())), Pooling(32), Dense(32, 7)]
    SentenceTransformer(modules=stages, device="cpu").save(str(tmp_path))
    encoder = Encoder.load(tmp_path, device="cpu")
    assert encoder.encode(["a"]).embeddings.shape == (1, 7)
    assert encoder.encode([]).embeddings.shape == (0, 7)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_are_counted_with_special_tokens_after_truncation(encoder):
    texts = ["", "hello", "hello world", "hello " * 510, "hello " * 511, "hello " * 2000]
    out = encoder.encode(texts, moments=False)
    assert out.tokens.tolist() == [2, 3, 4, 512, 512, 512]
    assert out.truncated.tolist() == [False, False, False, False, True, True]


def test_what_is_cut_off_has_no_effect_and_the_last_token_stays(encoder):
    long, longer = "hello " * 511, "hello " * 510 + "catastrophe " * 40
    assert encoder.tokenizer([long]).ids == encoder.tokenizer([longer]).ids
    assert encoder.tokenizer([long]).ids[0][-1] == encoder.tokenizer(["hello"]).ids[0][-1]
    assert torch.equal(encoder.encode([long]).embeddings, encoder.encode([longer]).embeddings)


def test_another_maximum_is_taken(minilm):
    assert Encoder.load(minilm, max_length=100, device="cpu").tokenizer.max_length == 100


@pytest.mark.parametrize(("family", "positions"), [("bert", 64), ("roberta", 66), ("xlm-roberta", 66), ("distilbert", 64)])
def test_the_longest_text_of_each_family_runs(tiny_folder, family, positions):
    encoder = Encoder.load(tiny_folder(family), device="cpu")
    assert encoder.model.config.max_position_embeddings == positions
    assert encoder.tokenizer.max_length == 64
    out = encoder.encode(["a " * 100])
    assert out.tokens.tolist() == [64]
    assert torch.isfinite(out.embeddings).all()


def test_fewer_positions_than_the_tokenizer_believes_are_what_counts(tiny_folder):
    assert Tokenizer(tiny_folder("bert", max_position_embeddings=20)).max_length == 20
    # Two positions of RoBERTa lie before the first token.
    assert Tokenizer(tiny_folder("roberta", max_position_embeddings=20)).max_length == 18
    out = Encoder.load(tiny_folder("roberta", max_position_embeddings=20), device="cpu").encode(["a " * 100])
    assert out.tokens.tolist() == [18]


@pytest.mark.parametrize("value", [2, 0, -5, 65, 512])
def test_a_maximum_out_of_range_is_refused_with_the_range(tiny_folder, tiny_encoder, value):
    words = f"max_length {value} is out of range; this model takes 3 to 64 tokens"
    with pytest.raises(ModelError, match=words):
        Encoder.load(tiny_folder("bert"), max_length=value)
    with pytest.raises(ModelError, match=words):
        tiny_encoder.encode(["a " * 100], max_length=value)


@pytest.mark.parametrize("value", [3, 64])
def test_a_maximum_at_the_ends_of_the_range_is_kept(tiny_folder, value):
    out = Encoder.load(tiny_folder("bert"), max_length=value, device="cpu").encode(["a " * 100])
    assert out.tokens.tolist() == [value]
    assert out.truncated.tolist() == [True]


def test_one_call_can_cut_shorter(tiny_encoder):
    out = tiny_encoder.encode(["a b c d e f", "a"], max_length=5)
    assert out.tokens.tolist() == [5, 3]
    assert out.truncated.tolist() == [True, False]
    assert torch.allclose(out.embeddings[0], tiny_encoder.encode(["a b c"]).embeddings[0], atol=1e-5)
    assert tiny_encoder.tokenizer.max_length == 64


def test_texts_and_their_tokens_give_the_same(tiny_encoder):
    tokens = tiny_encoder.tokenizer(LETTERS)
    assert tokens.lengths == [len(ids) for ids in tokens.ids]
    assert torch.equal(tiny_encoder.encode_tokens(tokens).embeddings, tiny_encoder.encode(LETTERS).embeddings)
    assert tiny_encoder.tokenizer([]) == Tokens([], [])


def test_a_tokenizer_is_loaded_without_the_weights(tiny_folder):
    folder = tiny_folder("bert")
    (folder / "model.safetensors").unlink()
    assert Tokenizer(folder)(["a b"]).lengths == [4]


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


@pytest.mark.parametrize("before", [0.5, 1.0])
def test_a_temperature_that_cannot_be_set_leaves_the_one_before(tiny_folder, before):
    encoder = Encoder.load(tiny_folder(), temperature=before, device="cpu")
    expected = encoder.encode(LETTERS).embeddings
    for value, words in ((0, "out of range"), ({"by_layer": [0.5, 0.6]}, "names 2 layers")):
        with pytest.raises(TemperatureError, match=words):
            encoder.set_temperature(value)
    assert encoder.temperature == Temperature(before)
    assert torch.equal(encoder.encode(LETTERS).embeddings, expected)
    with pytest.raises(TemperatureError, match="out of range"):
        Encoder.load(tiny_folder(), temperature=-1)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_an_unsupported_family_is_named_with_and_without_its_weights(tmp_path, tiny_folder):
    from transformers import ConvBertConfig, ConvBertModel

    shutil.copytree(tiny_folder(), tmp_path, dirs_exist_ok=True)
    sizes = {"hidden_size": 16, "embedding_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ConvBertModel(ConvBertConfig(vocab_size=160, intermediate_size=16, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedArchitecture, match="model family 'convbert' is not supported: half of its heads"):
        Encoder.load(tmp_path)
    with pytest.raises(UnsupportedArchitecture, match="model family 'convbert' is not supported"):
        check_family(tmp_path)


def test_the_family_is_checked_without_the_weights(tiny_folder, family, tmp_path):
    folder = tiny_folder(family)
    (folder / "model.safetensors").unlink()
    assert check_family(folder) is ARCHITECTURES[family]
    with pytest.raises(ModelError, match=r"config.json cannot be read as JSON"):
        check_family(tmp_path)


def test_a_family_that_transformers_does_not_know_is_named(tiny_folder, tmp_path):
    with pytest.raises(UnsupportedArchitecture, match="model family 'hyena' is not supported; supported families: albert, "):
        check_family(edited(tiny_folder(), tmp_path, "config.json", model_type="hyena"))


@pytest.mark.parametrize("budget", [0, -1])
def test_a_token_budget_below_one_is_refused(tiny_folder, budget):
    with pytest.raises(ValueError, match=f"token_budget {budget} must be at least 1"):
        Encoder.load(tiny_folder(), token_budget=budget)


def test_a_tokenizer_that_cannot_be_read_is_named(tiny_folder):
    folder = tiny_folder()
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"the tokenizer or configuration in .* cannot be loaded"):
        Encoder.load(folder)


@pytest.mark.parametrize("kept", [0, 7, 1000])
def test_weights_that_end_early_are_refused_in_a_sentence(tiny_folder, kept):
    file = tiny_folder() / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ModelError, match="cannot be loaded"):
        Encoder.load(file.parent)


def test_weights_that_are_not_the_models_are_refused(tiny_folder):
    # transformers fills what is missing with random numbers and says so in the log only.
    from safetensors.torch import load_file, save_file

    file = tiny_folder() / "model.safetensors"
    state = load_file(str(file))
    del state["encoder.layer.1.attention.self.query.weight"]
    save_file(state, str(file), metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"encoder.layer.1.attention.self.query.weight"):
        Encoder.load(file.parent)


def test_weights_without_the_unused_pooler_are_complete(tiny_folder):
    from safetensors.torch import load_file, save_file

    file = tiny_folder() / "model.safetensors"
    expected = Encoder.load(file.parent, device="cpu").encode(LETTERS).embeddings
    state = {key: value for key, value in load_file(str(file)).items() if not key.startswith("pooler")}
    assert len(state) == len(load_file(str(file))) - 2
    save_file(state, str(file), metadata={"format": "pt"})
    assert torch.equal(Encoder.load(file.parent, device="cpu").encode(LETTERS).embeddings, expected)


def test_weights_of_another_size_are_refused_in_a_sentence(tiny_folder, tmp_path):
    folder = edited(tiny_folder(), tmp_path, "config.json", intermediate_size=48)
    with pytest.raises(ModelError, match="cannot be loaded"):
        Encoder.load(folder)


def test_lower_casing_that_sentence_transformers_does_is_done_or_refused(tmp_path, minilm):
    # A checkpoint of an old sentence-transformers may ask for lower case on top of a cased tokenizer.
    from sentence_transformers import SentenceTransformer

    folder = edited(minilm, tmp_path, "sentence_bert_config.json", do_lower_case=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokenizer["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"do_lower_case": False}), "utf-8")
    texts = ["HELLO WORLD", "Mean Pooling"]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    with contextlib.suppress(ModelError):
        found = Encoder.load(folder, device="cpu").encode(texts).embeddings.numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)


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
    with pytest.raises(TemperatureError, match="depends on the role"):
        encoder.encode(LETTERS)


def test_one_string_is_no_list_of_texts(tiny_encoder):
    with pytest.raises(TypeError, match="texts is one string; give a list of strings"):
        tiny_encoder.tokenizer("one text")


@pytest.mark.parametrize(
    ("error", "isolate"), [(ValueError("no"), False), (KeyboardInterrupt(), True), (SystemExit(1), True)]
)
def test_an_error_of_the_tokenizer_is_raised_unless_it_is_to_be_isolated_and_no_way_to_end_is(
    tiny_folder, monkeypatch, error, isolate
):
    tokenizer = Tokenizer(tiny_folder("bert"))

    def fail(*_):
        raise error

    monkeypatch.setattr(tokenizer, "_tokens", fail)
    with pytest.raises(type(error)):
        tokenizer(LETTERS, isolate=isolate)


def test_a_tokenizer_of_python_alone_is_refused_with_the_mend(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    with pytest.raises(ModelError, match=r"has no tokenizer\.json .* save it with a fast tokenizer"):
        Tokenizer(tmp_path)


def test_a_configuration_that_cannot_be_read_is_named(tiny_folder, tmp_path):
    folder = edited(tiny_folder("bert"), tmp_path, "config.json", num_hidden_layers="several")
    with pytest.raises(ModelError, match=re.escape(f"{folder}/config.json has num_hidden_layers = 'several'")):
        check_temperatures(folder, [Temperature(0.8)])


def test_a_text_whose_tokens_cancel_has_no_spread_and_no_factor(encoder):
    """The mean of the last layer's tokens is taken off each of them, which leaves a mean of rounding errors."""

    def centred(module, inputs, output):
        hidden = output.last_hidden_state
        output["last_hidden_state"] = hidden - hidden.mean(1, keepdim=True)

    text = "attention is a low-pass filter that gets stronger with length"
    handle = encoder._run.register_forward_hook(centred)
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
