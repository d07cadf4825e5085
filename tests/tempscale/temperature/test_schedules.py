"""Schedules on every family: each text, layer, head and role has its own τ, and nothing else changes (S1 eq. 6)."""

import copy
import math
import pickle

import pytest
import torch
from attaching import LENGTHS, LOG, STEPS, alone, batch, head_taus, hooked, layer_taus, random_ids, relative, run
from by_hand_attention import by_hand
from tiny import HEADS

from tempscale.temperature.attach import attach, attached, attachment, detach, role
from tempscale.temperature.divisors import Constants, text_temperatures
from tempscale.temperature.families import base_model
from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature
from tempscale.temperature.verify import verify


def tau_of(schedule, tokens):
    """τ of a text, written out."""
    if schedule is LOG:
        return 1.0 if tokens <= 8 else math.log(8) / math.log(tokens)
    return 1.0 if tokens < 6 else 0.8 if tokens < 20 else 0.5


def of_place(taus):
    """τ of each layer, or of each head of it, as attention by hand takes it."""
    return lambda layer: torch.tensor(taus[layer], dtype=torch.float64).reshape(-1, 1, 1)


# --- against attention by hand ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("schedule", [STEPS, LOG], ids=["steps", "log"])
def test_each_text_of_a_batch_has_the_temperature_of_its_own_length(tiny_model, family, schedule, side):
    model, plain = attach(tiny_model(family), schedule), tiny_model(family)
    texts = random_ids(model, LENGTHS)
    inputs = batch(model, texts, side)
    found = run(model, inputs)
    for row, text in enumerate(texts):
        with by_hand(plain, tau_of(schedule, len(text))):
            expected = alone(plain, text)
        assert relative(found[row][inputs["attention_mask"][row].bool()], expected) < 1e-5
        assert relative(alone(model, text), expected) < 1e-5


@pytest.mark.parametrize("kind", ["layers", "heads"])
def test_each_layer_and_each_head_has_its_own_temperature(tiny_model, family, kind):
    plain = tiny_model(family)
    taus = layer_taus(plain) if kind == "layers" else head_taus(plain)
    schedule = Temperature.by_layer(taus) if kind == "layers" else Temperature.by_head(taus)
    model = attach(tiny_model(family), schedule)
    texts = random_ids(model, (27, 9))
    inputs = batch(model, texts)
    found = run(model, inputs)
    for row, text in enumerate(texts):
        with by_hand(plain, of_place(taus)):
            expected = alone(plain, text)
        assert relative(found[row][inputs["attention_mask"][row].bool()], expected) < 1e-5
        assert relative(alone(model, text), expected) < 1e-5, "a second pass must begin at the first layer again"


def test_each_role_has_its_own_temperature_or_schedule(tiny_model, family):
    model = attach(tiny_model(family), Temperature.by_role(query=1.0, document=STEPS))
    (text,) = random_ids(model, (27,))
    plain, steps = tiny_model(family), attach(tiny_model(family), STEPS)
    with role(model, "query"):
        assert torch.equal(alone(model, text), alone(plain, text))
        with role(model, "document"):
            assert torch.equal(alone(model, text), alone(steps, text))
        assert torch.equal(alone(model, text), alone(plain, text))
    with pytest.raises(TemperatureError, match="role"):
        alone(model, text)
    with pytest.raises(TemperatureError, match="'passage'"), role(model, "passage"):
        pass


def test_verify_passes_on_every_family_and_schedule(tiny_model, family):
    model = tiny_model(family)
    for schedule in (
        STEPS, LOG, Temperature.by_layer(layer_taus(model)), Temperature.by_head(head_taus(model)),
        Temperature.by_role(query=0.5, document=0.9), Temperature.by_role(query=LOG, document=1.0),
    ):  # fmt: skip
        verify(attach(model, schedule))
        detach(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["constant", "steps", "heads"])
def test_half_precision_stays_within_its_rounding(tiny_model, family, dtype, kind):
    plain = tiny_model(family)
    taus = head_taus(plain)
    value, tau = {
        "constant": (0.8, 0.8),
        "steps": (STEPS, 0.5),
        "heads": (Temperature.by_head(taus), of_place(taus)),
    }[kind]
    (text,) = random_ids(plain, (27,))
    with by_hand(plain, tau):
        exact = alone(plain, text)
    half = tiny_model(family).to(dtype)
    with by_hand(half, tau):  # What half precision costs without any code of ours: twice that is allowed.
        rounding = (alone(half, text).float() - exact).norm() / exact.norm()
    found = alone(attach(half, value), text)
    assert found.dtype == dtype
    assert (found.float() - exact).norm() / exact.norm() < 2 * rounding
    assert rounding < 0.2


# --- what a schedule sees ---------------------------------------------------------------------------------------------


def test_an_unpadded_batch_gives_each_token_the_temperature_of_its_text():
    ids = torch.zeros(1, 28, dtype=torch.long)
    given = {"input_ids": ids, "cu_seq_lens_q": torch.tensor([0, 3, 23, 28])}
    assert text_temperatures(STEPS, given, Constants()).tolist() == [[1.0] * 3 + [0.5] * 20 + [1.0] * 5]
    found = text_temperatures(LOG, given, Constants())[0]
    assert found[[0, 3, 27]].tolist() == pytest.approx([1.0, math.log(8) / math.log(20), 1.0])


def test_an_unpadded_batch_is_refused_where_each_text_would_need_its_own_position_bias(tiny_model):
    model = attach(tiny_model("t5"), STEPS)
    present = attachment(base_model(model))
    ids = torch.zeros(1, 28, dtype=torch.long)
    present.begin(model, (), {"input_ids": ids, "cu_seq_lens_q": torch.tensor([0, 3, 23, 28])})
    with pytest.raises(TemperatureError, match="position bias"):
        present.divide_bias([0], torch.zeros(1, HEADS, 28, 28))


def test_without_a_mask_every_token_counts():
    assert text_temperatures(STEPS, {"input_ids": torch.zeros(2, 7)}, Constants()).tolist() == [[pytest.approx(0.8)]] * 2
    assert text_temperatures(STEPS, {"inputs_embeds": torch.zeros(1, 20, 4)}, Constants()).tolist() == [[0.5]]


def test_a_mask_that_does_not_tell_lengths_is_refused(tiny_model):
    model = attach(tiny_model("bert"), STEPS)
    with pytest.raises(TemperatureError, match="mask"):
        model(input_ids=torch.zeros(1, 4, dtype=torch.long) + 5, attention_mask=torch.ones(1, 1, 4, 4))


def test_short_texts_are_untouched_to_the_bit(tiny_model, family):
    model, plain = attach(tiny_model(family), LOG), tiny_model(family)
    (text,) = random_ids(model, (8,))
    assert torch.equal(alone(model, text), alone(plain, text))


def test_attaching_changes_no_weight_and_detach_restores_to_the_bit_after_every_schedule(tiny_model, family):
    model, plain = tiny_model(family), tiny_model(family)
    inputs = batch(model, random_ids(model, LENGTHS))
    before, weights = run(plain, inputs), plain.state_dict()
    schedules = (STEPS, LOG, Temperature.by_layer(layer_taus(model)), Temperature.by_head(head_taus(model)))
    for schedule in (Temperature(0.7), *schedules):
        assert not torch.equal(run(attach(model, schedule), inputs), before)
        assert model.state_dict().keys() == weights.keys()
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
        assert detach(model) is model
        assert attached(model) is None
        assert torch.equal(run(model, inputs), before)
    assert not hooked(model)
    assert not any("compute_bias" in vars(module) for module in model.modules())


@pytest.mark.parametrize("schedule", [0.5, STEPS, Temperature.by_role(query=0.5, document=0.9)], ids=str)
def test_an_attached_model_travels_to_another_process(tiny_model, family, schedule):
    model = attach(tiny_model(family), schedule)
    inputs = batch(model, random_ids(model, (9, 25)))
    for travelled in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert attached(travelled) == attached(model)
        with role(model, "document"), role(travelled, "document"):
            expected = run(model, inputs)
            assert torch.equal(run(travelled, inputs), expected)
        assert not torch.equal(run(detach(travelled), inputs), expected)
        with role(model, "document"):
            assert torch.equal(run(model, inputs), expected)


# --- torch.compile ----------------------------------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.parametrize(
    "family",
    ["bert", "t5", "qwen3"]
    + [pytest.param(name, marks=pytest.mark.soak) for name in ("albert", "mpnet", "umt5", "modernbert", "gemma3_text")],
)  # each layout
@pytest.mark.parametrize(
    "schedule", [0.5, pytest.param(STEPS, marks=pytest.mark.soak), pytest.param("layers", marks=pytest.mark.soak)], ids=str
)
def test_compiled_equals_uncompiled(tiny_model, family, schedule):
    model = tiny_model(family)
    schedule = Temperature.by_layer(layer_taus(model)) if schedule == "layers" else schedule
    inputs = batch(model, random_ids(model, (9, 25)))
    expected = run(attach(model, schedule), inputs)
    compiled = torch.compile(model, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(run(compiled, inputs), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.proof
def test_a_change_after_compiling_is_not_missed(tiny_model):
    model = tiny_model("bert")
    inputs = batch(model, random_ids(model, (9, 25)))
    plain = run(model, inputs)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(run(compiled, inputs), plain)
    for tau in (0.5, 0.8):
        expected = run(attach(tiny_model("bert"), tau), inputs)
        assert attach(compiled, tau) is compiled
        torch.testing.assert_close(run(compiled, inputs), expected)
        detach(compiled)
        torch.testing.assert_close(run(compiled, inputs), plain)


@pytest.mark.proof
def test_roles_change_under_compiled_code(tiny_model):
    model = attach(tiny_model("bert"), Temperature.by_role(query=0.5, document=1.0))
    compiled = torch.compile(model, backend="eager")
    inputs = batch(model, random_ids(model, (25,)))
    found = {}
    for name in ("query", "document", "query"):
        with role(model, name):
            found[name] = run(compiled, inputs)
            torch.testing.assert_close(found[name], run(model, inputs))
    assert not torch.allclose(found["query"], found["document"])


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Temperature.by_layer([0.5, 0.8]), "2 layers, .* 3"),
        (Temperature.by_layer([0.5] * 4), "4 layers, .* 3"),
        (Temperature.by_head([[0.5] * 4] * 2), "2 layers, .* 3"),
        (Temperature.by_head([[0.5] * 5] * 3), "5 heads in layer 0, .* 4"),
        (Temperature.by_role(query=1.0, document={"by_layer": [0.5] * 9}), "9 layers, .* 3"),
        (3, "3"),
    ],
)
def test_a_schedule_that_does_not_fit_leaves_the_model_alone(tiny_model, schedule, message):
    model = tiny_model("bert")
    with pytest.raises(TemperatureError, match=message):
        attach(model, schedule)
    assert attached(model) is None
    assert not hooked(model)
