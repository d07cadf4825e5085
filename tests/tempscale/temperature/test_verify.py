"""verify: raises unless A_τ ∝ A_1^{1/τ} in every layer, each given the same input (S1 eq. 6)."""

import pytest
import torch
from attaching import batch, random_ids, run
from transformers import AutoModel

from tempscale.temperature.attach import attach, attachment
from tempscale.temperature.families import places
from tempscale.temperature.verify import VerificationError, verify


@pytest.mark.parametrize(
    ("dtype", "tau"),
    [*((torch.float32, tau) for tau in (0.3, 0.5, 0.8, 0.95, 1.0, 1.5, 2.0)), (torch.float64, 0.5), (torch.bfloat16, 0.5)],
)
def test_verify_passes_on_every_family(tiny_model, family, dtype, tau):
    verify(attach(tiny_model(family).to(dtype), tau))


@pytest.mark.parametrize(
    ("dtype", "tau"),
    [(torch.float32, 0.05), (torch.float32, 0.998), (torch.bfloat16, 0.5), (torch.bfloat16, 0.9), (torch.float16, 0.8)],
)
def test_verify_passes_on_the_real_model(minilm, dtype, tau):
    verify(attach(AutoModel.from_pretrained(minilm, dtype=dtype).eval(), tau))


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_verify_names_the_layer_whose_query_is_not_divided(tiny_model, family, layer):
    model = attach(tiny_model(family), 0.8)
    query = places(model)[layer].query
    query._forward_hooks.clear()
    first = [place.query for place in places(model)].index(query)  # ALBERT's layers share theirs.
    with pytest.raises(VerificationError, match=f"layer {first}:"):
        verify(model)


@pytest.mark.parametrize("family", ["t5", "mt5", "mpnet", "umt5"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_verify_names_the_layer_whose_position_bias_is_not_divided(tiny_model, family, layer):
    model = attach(tiny_model(family), 0.8)
    attention = places(model)[layer].attention
    if family == "umt5":  # Each of its layers has a bias of its own.
        del attention.compute_bias
    else:
        attention._forward_pre_hooks.clear()
    with pytest.raises(VerificationError, match=f"layer {layer}:"):
        verify(model)


@pytest.mark.parametrize("wrong", [0.4, 0.7, 0.85, 1.6])
def test_verify_names_the_layer_with_another_temperature(tiny_model, written_out, wrong):
    model = attach(tiny_model(written_out), 0.8)
    present, query = attachment(model), places(model)[1].query
    query._forward_hooks.clear()
    query.register_forward_hook(lambda module, inputs, output: output / wrong if present.enabled else output)
    with pytest.raises(VerificationError, match=r"layer 1: .*0\.8"):
        verify(model)


def test_verify_names_the_layer_whose_kernel_does_not_see_the_temperature(tiny_model, monkeypatch):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model = attach(tiny_model("bert"), 0.8)
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def without(module, query, *rest, **kwargs):
        return sdpa(module, query * 0.8 if module is places(model)[2].attention else query, *rest, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", without)
    with pytest.raises(VerificationError, match=r"layer 2: .*sdpa"):
        verify(model)


def test_verify_does_not_pass_a_temperature_on_the_keys_of_one_layer_twice(tiny_model):
    model = attach(tiny_model("bert"), 0.8)
    present = attachment(model)
    key = model.encoder.layer[2].attention.self.key
    key.register_forward_hook(lambda module, inputs, output: output / 0.8 if present.enabled else output)
    with pytest.raises(VerificationError, match="layer 2"):
        verify(model)


def test_verify_refuses_to_judge_constant_logits(tiny_model, family):
    model = tiny_model(family)
    with torch.no_grad():
        for place in places(model):
            for name, parameter in place.attention.named_parameters():
                if "q" in name.split(".")[-2]:  # its projection, its bias and, where it has one, its norm
                    parameter.zero_()
            if family == "modernbert":
                place.query.weight.zero_()
            if family == "gemma3_text":
                place.query.weight.fill_(-1)
            if place.bias_table is not None:
                place.bias_table.weight.zero_()
    with pytest.raises(VerificationError, match="layer 0: "):
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
    places(model)[2].query._forward_hooks.clear()
    inputs = batch(model, random_ids(model, (9,)))
    before = run(model, inputs)
    with pytest.raises(VerificationError):
        verify(model)
    assert torch.equal(run(model, inputs), before)
    assert model.config._attn_implementation == "sdpa"
