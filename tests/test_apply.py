"""Attach, detach, verify: A_τ = softmax(QKᵀ/(τ√d)) in every layer (S1 eq. 6), and nothing else changes."""

import copy
import math

import numpy as np
import oracles
import pytest
import torch
from transformers import AutoModel, BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel

from tempscale.apply import VerificationError, attach, attached, detach, verify
from tempscale.architectures import UnsupportedArchitecture, base_model, places
from tempscale.temperature import Temperature, TemperatureError

TAUS = (0.5, 0.8, 1.0, 1.7)


def first_position(model):
    """RoBERTa counts positions from the padding index on."""
    return model.config.pad_token_id + 1 if "roberta" in model.config.model_type else 0


def oracle(model, ids, tau):
    state = {key: value.double().numpy() for key, value in model.state_dict().items()}
    config = model.config
    return oracles.forward(
        state, config.model_type, config.num_hidden_layers, config.num_attention_heads, ids, tau, first_position(model)
    )


def random_ids(model, lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, model.config.vocab_size, (n,), generator=generator).tolist() for n in lengths]


def batch(model, texts, side="right"):
    """Padded ids, mask and the positions that each token has without padding."""
    width = max(map(len, texts))
    ids = torch.full((len(texts), width), model.config.pad_token_id)
    mask = torch.zeros(len(texts), width, dtype=torch.long)
    positions = torch.full((len(texts), width), first_position(model))
    for row, text in enumerate(texts):
        place = slice(0, len(text)) if side == "right" else slice(width - len(text), width)
        ids[row, place], mask[row, place] = torch.tensor(text), 1
        positions[row, place] = torch.arange(len(text)) + first_position(model)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def run(model, inputs):
    with torch.no_grad():
        return model(**inputs).last_hidden_state


def relative(found, expected):
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


# --- against attention by hand ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", TAUS)
def test_attach_equals_attention_by_hand_with_logits_divided_in_all_layers(tiny_model, family, tau):
    model = attach(tiny_model(family), tau)
    for text in random_ids(model, (1, 2, 17, 40)):
        found = run(model, {"input_ids": torch.tensor([text])})[0]
        assert relative(found, oracle(model, text, tau)[0]) < 1e-5


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_in_double_precision_the_agreement_is_to_rounding_under_either_kernel(tiny_model, family, kernel):
    model = attach(tiny_model(family).double(), 0.8)
    model.set_attn_implementation(kernel)
    (text,) = random_ids(model, (23,))
    assert relative(run(model, {"input_ids": torch.tensor([text])})[0], oracle(model, text, 0.8)[0]) < 1e-12


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_padding_changes_nothing_on_either_side(tiny_model, family, tau, side):
    model = attach(tiny_model(family), tau)
    texts = random_ids(model, (5, 31, 12))
    inputs = batch(model, texts, side)
    found = run(model, inputs)
    for row, text in enumerate(texts):
        own = found[row][inputs["attention_mask"][row].bool()]
        assert relative(own, oracle(model, text, tau)[0]) < 1e-5


@pytest.mark.parametrize("tau", [0.5, 0.8, 1.7])
def test_the_first_layer_has_the_power_of_its_attention_and_later_layers_new_input(tiny_model, family, tau):
    model = tiny_model(family).double()
    model.set_attn_implementation("eager")
    (text,) = random_ids(model, (20,))
    inputs = {"input_ids": torch.tensor([text]), "output_attentions": True}
    with torch.no_grad():
        before = model(**inputs).attentions
        after = attach(model, tau)(**inputs).attentions
    power = before[0] ** (1 / tau)
    torch.testing.assert_close(after[0], power / power.sum(-1, keepdim=True), rtol=1e-9, atol=1e-12)
    powers = before[-1] ** (1 / tau)
    assert (after[-1] - powers / powers.sum(-1, keepdim=True)).abs().max() > 1e-3


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


def test_in_the_limit_of_a_small_temperature_each_token_attends_to_one(tiny_model, family):
    model = attach(tiny_model(family).double(), 1e-4)
    model.set_attn_implementation("eager")
    (text,) = random_ids(model, (15,))
    with torch.no_grad():
        first = model(input_ids=torch.tensor([text]), output_attentions=True).attentions[0]
    largest = first.max(-1)
    assert largest.values.min() > 0.99
    untempered = oracle(detach(model), text, 1.0)[1][0]
    np.testing.assert_array_equal(largest.indices[0], untempered.argmax(-1))


# --- as it was ----------------------------------------------------------------------------------------------------------


def test_detach_restores_to_the_bit(tiny_model, family):
    model = tiny_model(family)
    inputs = batch(model, random_ids(model, (9, 30)))
    before = run(model, inputs)
    attach(model, 0.7)
    assert not torch.equal(run(model, inputs), before)
    assert detach(model) is model
    assert torch.equal(run(model, inputs), before)
    assert attached(model) is None
    assert not any(place.query._forward_hooks for place in places(model))


def test_one_leaves_the_model_bitwise_untouched(tiny_model, family):
    model = tiny_model(family)
    inputs = batch(model, random_ids(model, (9, 30)))
    before = run(model, inputs)
    assert attach(model, 1.0) is model
    assert attached(model) == Temperature(1.0)
    assert torch.equal(run(model, inputs), before)
    assert not any(module._forward_hooks for module in model.modules())


def test_attaching_changes_no_weight_and_no_checkpoint(tiny_model, family):
    model = tiny_model(family)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    attach(model, 0.7)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_a_copy_is_detached_without_the_original(tiny_model, family):
    model = attach(tiny_model(family), 0.7)
    inputs = batch(model, random_ids(model, (9,)))
    tempered = run(model, inputs)
    plain = run(detach(copy.deepcopy(model)), inputs)
    assert not torch.equal(plain, tempered)
    assert torch.equal(run(model, inputs), tempered)
    verify(model)


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
    found = run(model.base_model, {"input_ids": torch.tensor([text])})[0]
    assert relative(found, oracle(model.base_model, text, 0.5)[0]) < 1e-5
    verify(model)


def test_gradients_flow_through_an_attached_model(tiny_model, family):
    model = attach(tiny_model(family), 0.5)
    (text,) = random_ids(model, (12,))
    model(input_ids=torch.tensor([text])).last_hidden_state[0, 0, 0].backward()
    gradient = places(model)[0].query.weight.grad
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 0


# --- verify -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.3, 0.5, 0.8, 0.95, 1.0, 1.5, 2.0])
def test_verify_passes_on_every_family(tiny_model, family, tau):
    verify(attach(tiny_model(family), tau))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_verify_passes_in_other_precisions(tiny_model, family, dtype):
    verify(attach(tiny_model(family).to(dtype), 0.5))


@pytest.mark.parametrize(
    ("dtype", "tau"),
    [(torch.float32, 0.05), (torch.float32, 0.998), (torch.bfloat16, 0.5), (torch.bfloat16, 0.9), (torch.float16, 0.8)],
)
def test_verify_passes_on_the_real_model(minilm, dtype, tau):
    verify(attach(AutoModel.from_pretrained(minilm, dtype=dtype).eval(), tau))


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_verify_names_the_layer_whose_hook_is_gone(tiny_model, family, layer):
    model = attach(tiny_model(family), 0.8)
    model._tempscale_attachment._handles[layer].remove()
    with pytest.raises(VerificationError, match=f"layer {layer}: .* not applied as it should be"):
        verify(model)


@pytest.mark.parametrize("wrong", [0.4, 0.7, 0.85, 1.6])
def test_verify_names_the_layer_with_another_temperature(tiny_model, family, wrong):
    model = attach(tiny_model(family), 0.8)
    present = model._tempscale_attachment
    present._handles[1].remove()
    places(model)[1].query.register_forward_hook(
        lambda module, inputs, output: output / wrong if present.enabled else output
    )
    with pytest.raises(VerificationError, match=r"layer 1: log A_τ differs from \(log A_1\)/0.8"):
        verify(model)


def test_verify_does_not_pass_a_temperature_on_the_keys_of_one_layer_twice(tiny_model):
    model = attach(tiny_model("bert"), 0.8)
    present = model._tempscale_attachment
    key = model.encoder.layer[2].attention.self.key
    key.register_forward_hook(lambda module, inputs, output: output / 0.8 if present.enabled else output)
    with pytest.raises(VerificationError, match="layer 2"):
        verify(model)


def test_verify_refuses_to_judge_constant_logits(tiny_model, family):
    model = tiny_model(family)
    with torch.no_grad():
        for place in places(model):
            place.query.weight.zero_()
            place.query.bias.zero_()
    with pytest.raises(VerificationError, match="layer 0: attention logits are too even to tell"):
        verify(attach(model, 0.8))


def test_verify_leaves_no_trace(tiny_model, family):
    model = attach(tiny_model(family), 0.8)
    model.train()
    kernel = model.config._attn_implementation
    hooks = [len(module._forward_hooks) for module in model.modules()]
    inputs = batch(model, random_ids(model, (9,)))
    before = run(model.eval(), inputs)
    verify(model.train())
    assert model.training
    assert model.config._attn_implementation == kernel
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    assert torch.equal(run(model.eval(), inputs), before)


def test_a_failed_verify_leaves_the_temperature_on(tiny_model):
    model = attach(tiny_model("bert"), 0.8)
    model._tempscale_attachment._handles[2].remove()
    inputs = batch(model, random_ids(model, (9,)))
    before = run(model, inputs)
    with pytest.raises(VerificationError):
        verify(model)
    assert torch.equal(run(model, inputs), before)
    assert model.config._attn_implementation == "sdpa"


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_second_temperature_is_refused_with_both_values(tiny_model, family):
    model = attach(tiny_model(family), 0.8)
    with pytest.raises(TemperatureError, match=r"already has temperature 0.8; detach it before attaching 0.5"):
        attach(model, 0.5)
    assert attached(model) == Temperature(0.8)
    verify(model)


def test_a_second_temperature_is_refused_after_one_too(tiny_model):
    model = attach(tiny_model("bert"), 1.0)
    with pytest.raises(TemperatureError, match=r"already has temperature 1\.0"):
        attach(model, 0.5)


@pytest.mark.parametrize("value", [0, -1, float("nan"), 3, True, "hot", {"tau": 0.8}])
def test_a_temperature_out_of_range_leaves_the_model_alone(tiny_model, value):
    model = tiny_model("bert")
    with pytest.raises(TemperatureError):
        attach(model, value)
    assert attached(model) is None
    assert not any(module._forward_hooks for module in model.modules())
    attach(model, 0.5)


def test_detach_and_verify_say_that_there_is_no_temperature(tiny_model):
    model = tiny_model("bert")
    with pytest.raises(TemperatureError, match="no temperature to detach"):
        detach(model)
    with pytest.raises(TemperatureError, match="no temperature to verify; attach one first"):
        verify(model)


@pytest.mark.parametrize("family", ["electra", "albert", "mpnet"])
def test_an_unknown_family_is_named_beside_those_that_are_supported(family):
    from transformers import AutoConfig

    sizes = {"hidden_size": 16, "embedding_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = AutoModel.from_config(AutoConfig.for_model(family, vocab_size=50, intermediate_size=16, **sizes))
    message = f"model family '{family}' is not supported; supported families: bert, distilbert, roberta, xlm-roberta"
    with pytest.raises(UnsupportedArchitecture, match=message):
        attach(model, 0.8)
    with pytest.raises(UnsupportedArchitecture, match=family):
        places(model)


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), torch.nn.Sequential(), torch.nn.Sequential(torch.nn.ReLU())])
def test_what_is_no_transformers_model_is_named(model):
    with pytest.raises(UnsupportedArchitecture, match=f"a {type(model).__name__} is no transformers model"):
        attach(model, 0.8)


def test_a_decoder_is_refused(tiny_model):
    with pytest.raises(UnsupportedArchitecture, match="this bert is configured as a decoder"):
        attach(tiny_model("bert", is_decoder=True), 0.8)


def test_a_model_without_layers_is_refused(tiny_model):
    with pytest.raises(UnsupportedArchitecture, match="this bert has no layers"):
        attach(tiny_model("bert", num_hidden_layers=0), 0.8)


def test_a_model_that_is_laid_out_otherwise_is_refused_as_a_whole(tiny_model):
    model = tiny_model("bert")
    model.encoder.layer[2].attention.self.query = torch.nn.Identity()
    with pytest.raises(UnsupportedArchitecture, match=r"this bert is not laid out as expected: .*query is a Identity, not"):
        attach(model, 0.8)
    del model.encoder.layer[2].attention.self.query
    with pytest.raises(UnsupportedArchitecture, match="not laid out as expected"):
        attach(model, 0.8)
    assert attached(model) is None
    assert not any(module._forward_hooks for module in model.modules())


# --- sentence-transformers and the real model ---------------------------------------------------------------------------


def test_the_model_inside_a_sentence_transformer_is_found(minilm):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm), device="cpu")
    assert attach(model, 0.8) is model
    assert base_model(model).config.model_type == "bert"
    assert attached(base_model(model)) == Temperature(0.8)
    assert len(places(model)) == 6
    verify(model)
    detach(model)


@pytest.mark.parametrize("tau", [0.5, 0.8, 1.0])
def test_the_real_model_equals_attention_by_hand(minilm, encoder, real_texts, tau):
    model = attach(AutoModel.from_pretrained(minilm).eval(), tau)
    (ids,) = encoder.tokenizer([real_texts[12]]).ids
    assert relative(run(model, {"input_ids": torch.tensor([ids])})[0], oracle(model, ids, tau)[0]) < 1e-5
    verify(model)
