"""Attach, detach, verify: A_τ = softmax(QKᵀ/(τ√d)) in every layer (S1 eq. 6), and nothing else changes."""

import math
import sys

import numpy as np
import oracles
import pytest
import torch
from attaching import alone, batch, first_position, hooked, random_ids, relative, run
from by_hand_attention import by_hand, use
from tiny import FAMILIES
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    T5Config,
    T5EncoderModel,
)  # fmt: skip

from tempscale.temperature.attach import attach, attached, detach
from tempscale.temperature.families import ARCHITECTURES, UnsupportedArchitecture, places, supported
from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature
from tempscale.temperature.verify import verify

TAUS = (0.5, 0.8, 1.0, 1.7)


def written_out_oracle(model, ids, tau):
    state = {key: value.double().numpy() for key, value in model.state_dict().items()}
    config = model.config
    hidden, attentions = oracles.forward(
        state, config.model_type, config.num_hidden_layers, config.num_attention_heads, ids, tau, first_position(model)
    )
    return torch.tensor(hidden), attentions


# --- against attention by hand ----------------------------------------------------------------------------------------


def test_every_family_of_the_table_is_tested():
    assert sorted(FAMILIES) == sorted(ARCHITECTURES)


@pytest.mark.parametrize("tau", TAUS)
def test_attach_equals_attention_by_hand_in_all_layers_and_padding_changes_nothing(tiny_model, family, tau):
    model, plain = attach(tiny_model(family), tau), tiny_model(family)
    texts = random_ids(model, (1, 2, 17, 40))
    padded = [batch(model, texts, side) for side in ("right", "left")]
    found = [run(model, inputs) for inputs in padded]
    for row, text in enumerate(texts):
        with by_hand(plain, tau):
            expected = alone(plain, text)
        assert relative(alone(model, text), expected) < 1e-5
        for inputs, own in zip(padded, found, strict=True):
            assert relative(own[row][inputs["attention_mask"][row].bool()], expected) < 2e-5


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_in_double_precision_the_agreement_is_to_rounding_under_either_kernel(tiny_model, family, kernel):
    if family == "mpnet" and kernel == "sdpa":
        pytest.skip("MPNet has no other attention than its own")
    model, plain = attach(tiny_model(family).double(), 0.8), tiny_model(family).double()
    model.set_attn_implementation(kernel)
    (text,) = random_ids(model, (23,))
    with by_hand(plain, 0.8):
        expected = alone(plain, text)
    # Many an eager softmax, and ModernBERT's rotary embedding, are computed in float32 whatever the weights are.
    assert relative(alone(model, text), expected) < (1e-11 if kernel == "sdpa" and family != "modernbert" else 2e-6)


@pytest.mark.parametrize("tau", TAUS)
def test_from_the_embeddings_to_the_last_layer_in_numpy(tiny_model, written_out, tau):
    model = attach(tiny_model(written_out).double(), tau)
    for text in random_ids(model, (1, 17, 40)):
        assert relative(alone(model, text), written_out_oracle(model, text, tau)[0]) < 1e-12


def test_one_row_worked_by_hand():
    # One head of size 2, Q = K = V = the input; row 1 has logits (ln 4, 0), so A = (4/5, 1/5).
    # At τ = ½ the logits double: e^{2 ln 4} = 16, A = (16/17, 1/17).
    config = BertConfig(hidden_size=2, num_attention_heads=1, num_hidden_layers=1, intermediate_size=4, vocab_size=9)
    model = BertModel(config).eval().double()
    model.set_attn_implementation("eager")
    attention = model.encoder.layer[0].attention.self
    with torch.no_grad():
        for linear in (attention.query, attention.key, attention.value):
            linear.weight.copy_(torch.eye(2))
            linear.bias.zero_()
    hidden = torch.tensor([[[math.sqrt(math.sqrt(2) * math.log(4)), 0.0], [0.0, 3.0]]], dtype=torch.float64)
    for tau, expected in ((1.0, (4 / 5, 1 / 5)), (0.5, (16 / 17, 1 / 17)), (2.0, (2 / 3, 1 / 3))):
        attach(model, tau)
        with torch.no_grad():
            weights = attention(hidden)[1]
        assert weights[0, 0, 0].tolist() == pytest.approx(expected, abs=1e-12)
        detach(model)


def test_the_position_bias_is_divided_too():
    # T5 without any query: its logits are the bias alone, so the first token's attention is e^{b/τ} over the buckets.
    config = T5Config(
        vocab_size=20, d_model=4, d_kv=2, d_ff=4, num_layers=1, num_heads=2,
        relative_attention_num_buckets=4, relative_attention_max_distance=4,
    )  # fmt: skip
    model = T5EncoderModel(config).eval().double()
    model.set_attn_implementation("eager")
    attention = model.encoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        attention.q.weight.zero_()
        # Buckets of the distances 0 and 1 (key after query): 0, and 2 + 1.
        attention.relative_attention_bias.weight.copy_(
            torch.tensor([[0.0, 1.0], [9.0, 9.0], [9.0, 9.0], [math.log(3), 0.0]])
        )
        for tau, expected in ((1.0, 3.0), (0.5, 9.0), (2.0, math.sqrt(3))):
            weights = attach(model, tau)(input_ids=torch.tensor([[3, 4]]), output_attentions=True).attentions[0]
            assert float(weights[0, 0, 0, 1] / weights[0, 0, 0, 0]) == pytest.approx(expected, rel=1e-6)
            assert float(weights[0, 1, 0, 0] / weights[0, 1, 0, 1]) == pytest.approx(math.e ** (1 / tau), rel=1e-6)
            detach(model)


def test_in_the_limit_of_a_small_temperature_each_token_attends_to_one(tiny_model, written_out):
    model = attach(tiny_model(written_out).double(), 1e-4)
    model.set_attn_implementation("eager")
    (text,) = random_ids(model, (15,))
    with torch.no_grad():
        first = model(input_ids=torch.tensor([text]), output_attentions=True).attentions[0]
    largest = first.max(-1)
    assert largest.values.min() > 0.99
    untempered = written_out_oracle(detach(model), text, 1.0)[1][0]
    np.testing.assert_array_equal(largest.indices[0], untempered.argmax(-1))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gemma3_text", {"use_bidirectional_attention": True}),
        ("llama", {"is_causal": False}),
        ("qwen3", {"is_causal": False}),
    ],
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_decoder_that_looks_both_ways(tiny_model, family, changes, side):
    model, plain = attach(tiny_model(family, **changes), 0.5), tiny_model(family, **changes)
    texts = random_ids(model, (5, 31))
    inputs = batch(model, texts, side)
    found = run(model, inputs)
    causal = run(attach(tiny_model(family), 0.5), inputs)
    for row, text in enumerate(texts):
        with by_hand(plain, 0.5):
            expected = alone(plain, text)
        kept = inputs["attention_mask"][row].bool()
        assert relative(found[row][kept], expected) < 1e-5
        assert relative(causal[row][kept], expected) > 1e-2
    verify(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_and_without_gradients_are_equal_to_the_bit_and_gradients_flow(tiny_model, family, dtype):
    model = attach(tiny_model(family).to(dtype), 0.7)
    use(model, "eager")  # T5's bias wants gradients, and sdpa takes another kernel for it.
    inputs = {"input_ids": torch.tensor(random_ids(model, (23, 23)))}
    with_gradients = model(**inputs).last_hidden_state
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(model(**inputs).last_hidden_state, with_gradients)
    with_gradients[0, -1, 0].backward()  # Under a causal mask the first token attends to itself whatever its query is.
    gradient = places(model)[0].query.weight.grad
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


# --- as it was ----------------------------------------------------------------------------------------------------------


def test_one_leaves_the_model_bitwise_untouched(tiny_model, family):
    model = tiny_model(family)
    inputs = batch(model, random_ids(model, (9, 30)))
    before = run(model, inputs)
    assert attach(model, 1.0) is model
    assert attached(model) == Temperature(1.0)
    assert torch.equal(run(model, inputs), before)
    assert not hooked(model)


@pytest.mark.parametrize("head", [BertForMaskedLM, BertForSequenceClassification])
def test_a_model_with_a_head_has_the_temperature_in_its_base(head):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=160, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, initializer_range=0.4,
    )  # fmt: skip
    model = head(config).eval()
    attach(model, 0.5)
    assert attached(model.base_model) == Temperature(0.5)
    (text,) = random_ids(model, (12,))
    assert relative(alone(model.base_model, text), written_out_oracle(model.base_model, text, 0.5)[0]) < 1e-5
    verify(model)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0.8, 1.0])
def test_a_second_temperature_is_refused_with_both_values(tiny_model, first):
    model = attach(tiny_model("bert"), first)
    with pytest.raises(TemperatureError, match=f"temperature {first}; .* 0.5"):
        attach(model, 0.5)
    assert attached(model) == Temperature(first)
    verify(model)


def test_detach_and_verify_say_that_there_is_no_temperature(tiny_model):
    model = tiny_model("bert")
    for needing in (detach, verify):
        with pytest.raises(TemperatureError, match="no temperature"):
            needing(model)


@pytest.mark.parametrize(
    ("family", "needed"),
    [
        ("deberta-v2", "disentangled attention"), ("longformer", "second query"), ("big_bird", "block-sparse"),
        ("funnel", "pools the sequence"), ("nystromformer", "approximation"), ("convbert", "convolutions"),
        ("xlm", "not verified"), ("gemma2", "caps"), ("gemma3", "text model"), ("gpt2", "supported families: albert, bert"),
    ],
)  # fmt: skip
def test_a_family_that_is_not_supported_is_named_with_what_would_be_needed(family, needed):
    with pytest.raises(UnsupportedArchitecture, match=f"'{family}' .*{needed}"):
        supported(family)


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("bert", {"is_decoder": True}, "decoder"), ("bert", {"num_hidden_layers": 0}, "no layers"),
        ("gemma3_text", {"attn_logit_softcapping": 30.0}, "caps"),
    ],
)  # fmt: skip
def test_a_model_that_its_family_allows_and_we_do_not_is_refused(tiny_model, family, changes, named):
    with pytest.raises(UnsupportedArchitecture, match=f"this {family} .*{named}"):
        attach(tiny_model(family, **changes), 0.8)


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), torch.nn.Sequential(), torch.nn.Sequential(torch.nn.ReLU())])
def test_what_is_no_transformers_model_is_named(model):
    with pytest.raises(UnsupportedArchitecture, match=type(model).__name__):
        attach(model, 0.8)


def test_t5_with_its_decoder_is_refused():
    from transformers import T5Model

    model = T5Model(T5Config(vocab_size=20, d_model=4, d_kv=2, d_ff=4, num_layers=1, num_heads=2))
    with pytest.raises(UnsupportedArchitecture, match="this t5 has a decoder"):
        attach(model, 0.8)


def test_a_model_that_is_laid_out_otherwise_is_refused_as_a_whole(tiny_model):
    model, biased = tiny_model("bert"), tiny_model("mpnet")
    model.encoder.layer[2].attention.self.query = torch.nn.Identity()
    with pytest.raises(UnsupportedArchitecture, match=r"query .*Identity"):
        attach(model, 0.8)
    del model.encoder.layer[2].attention.self.query
    with pytest.raises(UnsupportedArchitecture, match="laid out"):
        attach(model, 0.8)
    assert attached(model) is None
    assert not hooked(model)
    del biased.encoder.relative_attention_bias
    with pytest.raises(UnsupportedArchitecture, match=r"encoder\.relative_attention_bias"):
        attach(biased, 0.5)


# --- the real model and processes without dynamo ---------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.5, 0.8, 1.0])
def test_the_real_model_equals_attention_by_hand(minilm, encoder, real_texts, tau):
    model = attach(AutoModel.from_pretrained(minilm).eval(), tau)
    (ids,) = encoder.tokenizer([real_texts[12]]).ids
    assert relative(alone(model, ids), written_out_oracle(model, ids, tau)[0]) < 1e-5
    verify(model)


def test_a_temperature_is_attached_and_taken_off_where_nothing_was_ever_compiled(tiny_model, monkeypatch):
    model = tiny_model("bert")
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert attached(attach(model, 0.5)) == Temperature(0.5)
    assert attached(detach(model)) is None
    assert "torch._dynamo" not in sys.modules
