"""fold: the weights alone express the temperature, and a plain model computes what an attached one does (S1 eq. 6)."""

import copy

import pytest
import torch
from attaching import STEPS, alone, head_taus, hooked, layer_taus, random_ids, relative
from by_hand_attention import by_hand

from tempscale.temperature.attach import attach, attached
from tempscale.temperature.families import places
from tempscale.temperature.fold import fold
from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature

SHARED_BIAS = ("t5", "mt5", "mpnet")
ONE_NORM = ("qwen3", "gemma3_text")


@pytest.mark.parametrize("tau", [0.5, 0.8, 1.0, 1.7])
def test_fold_equals_attention_by_hand(tiny_model, family, tau):
    folded, plain = fold(tiny_model(family), tau), tiny_model(family)
    for text in random_ids(plain, (2, 17, 40)):
        with by_hand(plain, tau):
            expected = alone(plain, text)
        assert relative(alone(folded, text), expected) < 1e-5


def test_a_folded_model_is_a_plain_one_and_one_changes_no_bit(tiny_model, family):
    before, model = tiny_model(family).state_dict(), tiny_model(family)
    assert fold(model, 1.0) is model
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    fold(model, 0.8)
    assert attached(model) is None
    assert not hooked(model)
    assert model.state_dict().keys() == before.keys()
    attach(model, 0.5)


def test_fold_changes_the_query_and_the_bias_table_alone(tiny_model, family):
    before, model = tiny_model(family).state_dict(), fold(tiny_model(family), 0.5)
    expected = {
        id(module.weight) for place in places(model) for module in (place.query, place.bias_table) if module is not None
    }
    expected |= {id(place.query.bias) for place in places(model) if getattr(place.query, "bias", None) is not None}
    named = dict(model.named_parameters())
    changed = {name for name, value in named.items() if not torch.equal(value, before[name])}
    assert {id(named[name]) for name in changed} == expected
    for name in changed:
        value = named[name].detach()
        if family == "gemma3_text":  # Its norms multiply by 1 + w.
            torch.testing.assert_close(1 + value, 2 * (1 + before[name]))
        elif family == "modernbert":  # Query, key and value in one.
            width = len(value) // 3
            assert torch.equal(value[:width], 2 * before[name][:width])
            assert torch.equal(value[width:], before[name][width:])
        else:
            assert torch.equal(value, 2 * before[name])


def test_a_temperature_for_each_layer_is_folded_or_refused(tiny_model, family):
    model = tiny_model(family)
    temperature = Temperature.by_layer(layer_taus(model))
    before = copy.deepcopy(model.state_dict())
    if family in (*SHARED_BIAS, "albert"):
        shared = "share their weights" if family == "albert" else "share one position bias"
        with pytest.raises(TemperatureError, match=f"{family} {shared}"):
            fold(model, temperature)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        return
    (text,) = random_ids(model, (27,))
    expected = alone(attach(tiny_model(family), temperature), text)
    assert relative(alone(fold(model, temperature), text), expected) < 1e-5


def test_a_temperature_for_each_head_is_folded_or_refused(tiny_model, family):
    model = tiny_model(family)
    temperature = Temperature.by_head(head_taus(model))
    if family in ONE_NORM:
        with pytest.raises(TemperatureError, match=f"q_norm .*{family}"):
            fold(model, temperature)
        return
    if family in (*SHARED_BIAS, "albert"):
        with pytest.raises(TemperatureError, match="fold a constant"):
            fold(model, temperature)
        temperature = Temperature.by_head([head_taus(model)[0]] * len(places(model)))  # The same in every layer is possible.
    (text,) = random_ids(model, (27,))
    expected = alone(attach(tiny_model(family), temperature), text)
    assert relative(alone(fold(model, temperature), text), expected) < 1e-5


@pytest.mark.parametrize(
    ("temperature", "message"),
    [
        (STEPS, "length"), (Temperature.log_length(8), r"log_length\(8\) .* length"),
        (Temperature.by_role(query=1.0, document=0.8), "role"), (Temperature.by_layer([0.8] * 2), "2 layers, .* 3"),
    ],
)  # fmt: skip
def test_what_weights_cannot_say_is_refused(tiny_model, temperature, message):
    with pytest.raises(TemperatureError, match=message):
        fold(tiny_model("bert"), temperature)
    model = attach(tiny_model("bert"), 0.5)
    with pytest.raises(TemperatureError, match=r"0\.5 attached"):
        fold(model, 0.8)


def test_weights_that_are_not_plain_are_refused_as_a_whole(tiny_model):
    model = tiny_model("bert")
    before = copy.deepcopy(model.state_dict())
    weight = model.encoder.layer[2].attention.self.query.weight
    model.encoder.layer[2].attention.self.query.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
    with pytest.raises(TemperatureError, match=r"layer 2: .*torch.int8"):
        fold(model, 0.8)
    first = "encoder.layer.0.attention.self.query.weight"
    assert torch.equal(model.state_dict()[first], before[first])
    with torch.device("meta"):
        away = type(model)(model.config)
    with pytest.raises(TemperatureError, match="on meta"):
        fold(away, 0.8)


def test_adapters_on_the_query_are_refused(tiny_model):
    model = tiny_model("bert")
    torch.nn.utils.parametrizations.weight_norm(model.encoder.layer[1].attention.self.query)
    with pytest.raises(TemperatureError, match="layer 1: "):
        fold(model, 0.8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_each_weight_is_rounded_once(tiny_model, dtype):
    exact = tiny_model("bert").to(dtype).encoder.layer[1].attention.self.query.weight.double() / 0.7
    model = fold(tiny_model("bert").to(dtype), 0.7)
    assert torch.equal(model.encoder.layer[1].attention.self.query.weight, exact.to(dtype))
