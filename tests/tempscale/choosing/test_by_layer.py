"""One temperature for each layer by gradient: embeddings of an attached schedule, exact gradients, no trace left."""

import copy
import itertools
import re

import pytest
import torch
from tiny import LAYERS

from tempscale.choosing import by_layer
from tempscale.choosing.by_layer import layer_temperatures
from tempscale.model.batches import micro_batches
from tempscale.model.encoder import Encoder
from tempscale.model.sequences import Tokens
from tempscale.temperature.attach import attach, attached
from tempscale.temperature.families import places
from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature

SHORT, LONG, TEXTS = 6, 30, 5
ROUNDED = ("t5", "umt5", "modernbert", "qwen3", "gemma3_text")
"""Families that compute their norms or their rotary embedding in float32 whatever the weights are."""


@pytest.fixture(scope="module")
def encoder_of(tiny_folder):
    """A function that loads a small random model of a family, once; tests leave it as it was."""
    loaded = {}

    def load(family="bert"):
        if family not in loaded:
            loaded[family] = Encoder.load(tiny_folder(family), device="cpu", token_budget=90)
        return loaded[family]

    return load


@pytest.fixture
def double(tiny_folder):
    """A new encoder in double precision."""

    def load(family="bert"):
        encoder = Encoder.load(tiny_folder(family), device="cpu", token_budget=90)
        encoder.model.double()
        encoder.head.double()
        return encoder

    return load


def prefixes(encoder, texts=TEXTS, long=LONG, seed=0):
    """Random tokens cut short and long, the long ones not all of one length."""
    generator = torch.Generator().manual_seed(seed)
    rows = [
        torch.randint(5, encoder.model.config.vocab_size, (long - 2 * k,), generator=generator).tolist()
        for k in range(texts)
    ]
    return [row[:SHORT] for row in rows], rows


def some_taus(encoder):
    return [round(0.6 + 0.15 * (number % 5), 2) for number in range(len(places(encoder)))]


def leaf(values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def encoded(encoder, ids):
    tokens = Tokens([list(row) for row in ids], [False] * len(ids))
    return encoder.encode_tokens(tokens, moments=False).embeddings.double()


def objective_of(encoder, short, keep=10.0):
    """The objective, of an untouched encoder's short prefixes."""
    return by_layer._Objective(by_layer._embeddings(encoder, short), keep)


# --- the same embeddings ------------------------------------------------------------------------------------------------


def test_every_family_embeds_as_with_the_schedule_attached_with_a_graph_and_without(encoder_of, family):
    encoder = encoder_of(family)
    short, long = prefixes(encoder)
    taus = leaf(some_taus(encoder))
    plain = encoded(encoder, long)
    encoder.set_temperature(Temperature.by_layer(taus.tolist()))
    expected = encoded(encoder, [*short, *long])
    encoder.set_temperature(1.0)
    with by_layer._searching(encoder, taus):
        found = by_layer._embeddings(encoder, [*short, *long])
        with_graph = by_layer._embedded(encoder, long)
    assert (found - expected).abs().max() < 1e-5
    assert (with_graph - expected[TEXTS:]).abs().max() < 1e-5
    assert with_graph.requires_grad
    assert (found[TEXTS:] - plain).abs().max() > 1e-3


# --- gradients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "albert", "mpnet", *ROUNDED])
def test_gradients_in_two_passes_are_those_of_one_graph_and_equal_central_differences(double, family):
    encoder = double(family)
    short, long = prefixes(encoder)
    ids, objective = [*short, *long], objective_of(encoder, short)
    start, step = some_taus(encoder), 1e-4
    assert len(micro_batches([len(row) for row in ids], encoder.token_budget)) >= 3
    with by_layer._searching(encoder, taus := leaf(start)):
        gradient, cosines = by_layer._gradient(encoder, ids, taus, objective)
        value, cosines_of_one = objective(torch.cat([by_layer._embedded(encoder, [row]) for row in ids]))
        (of_one,) = torch.autograd.grad(value, taus)
    differences = []
    for layer in range(len(start)):
        sides = []
        for sign in (1, -1):
            moved = leaf([tau + sign * step * (number == layer) for number, tau in enumerate(start)])
            with by_layer._searching(encoder, moved):
                sides.append(objective(by_layer._embeddings(encoder, ids))[0])
        differences.append((sides[0] - sides[1]) / (2 * step))
    expected = torch.stack(differences)
    assert expected.abs().max() > 1e-3
    assert (gradient - expected).abs().max() < (2e-3 if family in ROUNDED else 1e-5) * expected.abs().max()
    torch.testing.assert_close(gradient, of_one, rtol=1e-4 if family in ROUNDED else 1e-6, atol=1e-10)
    assert cosines == pytest.approx(cosines_of_one, abs=1e-6 if family in ROUNDED else 1e-9)


def test_batches_that_memory_does_not_hold_run_in_halves(double, monkeypatch):
    encoder = double("bert")
    short, long = prefixes(encoder)
    ids, objective = [*short, *long], objective_of(encoder, short)
    with by_layer._searching(encoder, taus := leaf([0.7, 0.9, 0.8])):
        expected, _ = by_layer._gradient(encoder, ids, taus, objective)
        hidden = encoder.hidden_states

        def small(ids, mask, tokens):
            if len(ids) > 1:
                raise torch.OutOfMemoryError("CUDA error: out of memory")
            return hidden(ids, mask, tokens)

        monkeypatch.setattr(encoder, "hidden_states", small)
        found, _ = by_layer._gradient(encoder, ids, taus, objective)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# --- the objective ------------------------------------------------------------------------------------------------------


def test_the_objective_is_the_one_that_is_written_down():
    generator = torch.Generator().manual_seed(0)
    before, short, long = (
        torch.nn.functional.normalize(torch.randn(4, 3, generator=generator, dtype=torch.float64) + shift, dim=-1)
        for shift in (0.0, 1.0, 0.5)
    )
    pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]

    def cosines(x):
        return [float(x[i] @ x[j]) for i, j in pairs]

    def mean(values):
        return sum(values) / len(pairs)

    change = mean([(a - b) ** 2 for a, b in zip(cosines(short), cosines(before), strict=True)])
    raised = mean(cosines(short)) - mean(cosines(before))
    assert raised > 0.1
    objective = by_layer._Objective(before, 3.0)
    value, found = objective(torch.cat([short, long]))
    assert float(value) == pytest.approx(mean(cosines(long)) + raised + 3.0 * change)
    assert found == pytest.approx((float(value), mean(cosines(long)), mean(cosines(short)), change**0.5))
    assert found.long - found.short == pytest.approx(mean(cosines(long)) - mean(cosines(short)))
    lowered, _ = by_layer._Objective(short, 3.0)(torch.cat([before, long]))
    assert float(lowered) == pytest.approx(mean(cosines(long)) + 3.0 * change), "falling short texts cost only their change"


def test_the_objective_falls_and_what_is_reported_is_what_an_attached_schedule_gives(encoder_of):
    encoder = encoder_of("mpnet")
    short, long = prefixes(encoder, texts=8, long=50)
    found = layer_temperatures(encoder, short, long, bounds=(0.3, 2.0), steps=8)
    assert found.after.objective < found.before.objective - 1e-3
    assert found.history[-1].objective < found.history[0].objective
    assert found.history[0] == pytest.approx(found.before, abs=1e-6)
    assert len(found.history) == 8
    assert found.temperatures == [round(tau, 2) for tau in found.temperatures]
    assert found.temperature == Temperature.by_layer(found.temperatures)
    untouched = encoded(encoder, short)
    encoder.set_temperature(found.temperature)
    expected = by_layer._Objective(untouched, by_layer.KEEP)(encoded(encoder, [*short, *long]))[1]
    encoder.set_temperature(1.0)
    assert found.after == pytest.approx(expected, abs=1e-5)


def test_keeping_short_texts_more_changes_them_less(encoder_of):
    encoder = encoder_of("bert")
    short, long = prefixes(encoder)
    free, kept = (layer_temperatures(encoder, short, long, bounds=(0.3, 2.0), steps=8, keep=keep) for keep in (0.0, 1e3))
    assert kept.after.change < 0.5 * free.after.change
    assert free.after.long < kept.after.long


@pytest.mark.parametrize("bounds", [(0.9, 0.95), (1.1, 1.3), (0.876, 0.913)])
def test_bounds_hold_to_the_last_and_need_not_hold_one(encoder_of, bounds):
    encoder = encoder_of("bert")
    found = layer_temperatures(encoder, *prefixes(encoder), bounds=bounds, steps=3, learning_rate=0.5)
    assert all(bounds[0] <= tau <= bounds[1] for tau in found.temperatures)
    assert found.before.change == 0.0


def test_the_same_seed_finds_the_same_and_a_step_sees_no_more_texts_than_it_may(encoder_of):
    encoder = encoder_of("bert")
    short, long = prefixes(encoder, texts=9)
    first, again, other = (
        layer_temperatures(encoder, short, long, steps=3, texts_per_step=4, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again
    assert first.history != other.history
    assert first.before == other.before
    assert layer_temperatures(encoder, short, long, steps=2) == layer_temperatures(encoder, short, long, steps=2, seed=1)


# --- the encoder afterwards ---------------------------------------------------------------------------------------------


def state_of(encoder):
    """All that a search could leave behind."""
    modules, parameters = list(encoder.model.modules()), [*encoder.model.parameters(), *encoder.head.parameters()]
    return (
        [copy.deepcopy(parameter.data.tolist()) for parameter in parameters],
        [parameter.requires_grad for parameter in parameters],
        [parameter.grad for parameter in parameters],
        [module.training for module in [*modules, *encoder.head.modules()]],
        [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in modules],
        ["compute_bias" in vars(module) for module in modules],
        attached(encoder.model),
    )


@pytest.mark.proof
@pytest.mark.parametrize("tau", [None, 1.0, 0.8, Temperature.by_length({0: 1.0, 16: 0.7})], ids=str)
@pytest.mark.parametrize("family", ["bert", "umt5", "qwen3"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_encoder_is_left_as_it_was(monkeypatch, tiny_folder, family, tau, fails):
    encoder = Encoder.load(tiny_folder(family), device="cpu")
    short, long = prefixes(encoder)
    next(encoder.model.parameters()).requires_grad_(False)
    encoder.model.get_input_embeddings().train()
    if tau is not None:
        attach(encoder.model, tau)
    state, expected = state_of(encoder), encoded(encoder, long)

    if fails:
        hidden, steps = encoder.hidden_states, itertools.count()

        def interrupted(*given):
            if torch.is_grad_enabled() and next(steps):  # After the first step.
                raise KeyboardInterrupt
            return hidden(*given)

        monkeypatch.setattr(encoder, "hidden_states", interrupted)
        with pytest.raises(KeyboardInterrupt):
            layer_temperatures(encoder, short, long, steps=3)
        monkeypatch.undo()
    else:
        layer_temperatures(encoder, short, long, steps=2)
    assert state_of(encoder) == state
    assert torch.equal(encoded(encoder, long), expected)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_dropout_the_encoders_temperature_and_the_callers_mode_have_no_part_in_the_search(tiny_folder, mode):
    encoder = Encoder.load(tiny_folder("bert"), device="cpu")
    short, long = prefixes(encoder)
    expected = layer_temperatures(encoder, short, long, steps=2)
    encoder.model.train()
    encoder.set_temperature(0.6)
    with mode():
        assert layer_temperatures(encoder, short, long, steps=2) == expected
        assert not torch.is_grad_enabled()


def test_a_budget_for_a_gpu_is_not_that_of_a_graph(encoder_of, monkeypatch):
    encoder = encoder_of("bert")
    short, long = prefixes(encoder, texts=12)
    seen, hidden = {True: [], False: []}, encoder.hidden_states

    def noting(ids, mask, tokens):
        seen[torch.is_grad_enabled()].append(int(mask.sum()))
        return hidden(ids, mask, tokens)

    monkeypatch.setattr(encoder, "hidden_states", noting)
    expected = layer_temperatures(encoder, short, long, steps=2)
    assert max(seen[True] + seen[False]) <= encoder.token_budget < sum(map(len, long))
    monkeypatch.setattr(encoder, "token_budget", 10**6)
    monkeypatch.setattr(by_layer, "GRAPH_BUDGET", 60)
    seen[True].clear()
    found = layer_temperatures(encoder, short, long, steps=2)
    assert found.history[0] == pytest.approx(expected.history[0], abs=1e-6)  # A step's sign may hang on rounding.
    assert max(seen[True]) <= 60 < max(seen[False])


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bounds", (0.0, 1.0)), ("bounds", (0.9, 0.5)), ("bounds", (0.5, 2.5)), ("bounds", (0.5, float("nan"))),
        ("steps", 0), ("learning_rate", 0.0), ("learning_rate", float("nan")), ("keep", -1.0), ("texts_per_step", 2),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named_with_its_value(encoder_of, name, value):
    encoder = encoder_of("bert")
    with pytest.raises(TemperatureError, match=re.escape(f"{name} {value}")):
        layer_temperatures(encoder, *prefixes(encoder), **{name: value})


def test_prefixes_that_do_not_belong_together_are_refused(encoder_of):
    encoder = encoder_of("bert")
    short, long = prefixes(encoder)
    for given, words in (
        ((short[:2], long[:2]), "2 texts"),
        ((short[:4], long), "4 short prefixes and 5 long"),
        ((short, [long[0], short[1], *long[2:]]), "text 1 has 6 tokens short and 6 long"),
        (([[], *short[1:]], long), "text 0 has 0 tokens"),
        ((short, [*long[:4], [7] * 65]), "text 4 has 65 tokens; .* 64"),
    ):
        with pytest.raises(ValueError, match=words):
            layer_temperatures(encoder, *given)


def test_embeddings_that_are_not_finite_are_refused_and_leave_no_trace(tiny_folder):
    encoder = Encoder.load(tiny_folder("bert"), device="cpu")
    with torch.no_grad():
        encoder.model.encoder.layer[LAYERS - 1].output.dense.weight.fill_(float("nan"))
    with pytest.raises(TemperatureError, match="not finite"):
        layer_temperatures(encoder, *prefixes(encoder))
    assert attached(encoder.model) is None
    assert all(parameter.requires_grad for parameter in encoder.model.parameters())
