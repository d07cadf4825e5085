"""Temperature as data: what is read, what is refused, and the one text of each."""

import dataclasses
import json
import math
import string
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature

taus = st.floats(min_value=0.0, max_value=2.0, exclude_min=True, allow_nan=False)


@pytest.mark.parametrize("value", [0.8, "0.8", " 0.80 ", {"constant": 0.8}, Temperature(0.8)])
def test_a_number_its_text_and_plain_data_read_as_the_same_temperature(value):
    assert Temperature.of(value) == Temperature.constant(0.8)
    assert Temperature.of(value).tau == 0.8


def test_the_range_is_open_at_zero_and_closed_at_two():
    assert Temperature(2.0).tau == 2.0
    assert Temperature(1e-3).tau == 1e-3
    for value in (2.0000001, 0, -0.0, -0.8, "nan", float("inf"), "-inf"):
        with pytest.raises(TemperatureError, match=f"{value} .*range"):
            Temperature.of(value)


@pytest.mark.parametrize(
    "value", [True, None, [0.8], 0.8j, {"constant": True}, {"constant": "0.8"}, "", "warm", "0,8", "0.8 1.0"]
)
def test_what_is_no_number_is_refused_though_python_would_convert_it(value):
    with pytest.raises(TemperatureError, match="is not a number"):
        Temperature.of(value)


def test_text_is_read_by_of_only():
    with pytest.raises(TemperatureError, match=r"'0\.8' is not a number"):
        Temperature("0.8")


@pytest.mark.parametrize("value", [{}, {"tau": 0.8}, {"constant": 0.8, "by_length": {}}])
def test_unknown_plain_data_is_refused_with_what_is_known(value):
    with pytest.raises(TemperatureError, match="constant, by_length"):
        Temperature.of(value)


def test_whole_numbers_become_floats_with_one_text():
    assert Temperature(1).canonical == Temperature(1.0).canonical == "1.0"
    assert isinstance(Temperature(2).tau, float)
    assert hash(Temperature(1)) == hash(Temperature(1.0))


def test_only_one_is_the_identity():
    assert Temperature(1).is_identity
    assert not Temperature(0.9999999).is_identity


@settings(max_examples=60, deadline=None)
@given(taus, taus)
def test_texts_and_plain_data_read_back_the_same_number_and_are_equal_exactly_where_temperatures_are(first, second):
    temperature = Temperature(first)
    assert Temperature.of(temperature.canonical) == temperature
    assert Temperature.of(json.loads(json.dumps(temperature.as_data()))) == temperature
    assert set(temperature.slug) <= set("0123456789.e-+")
    assert (temperature.canonical == Temperature(second).canonical) == (first == second)


def test_a_temperature_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Temperature(0.8).tau = 0.5


# --- schedules --------------------------------------------------------------------------------------------------------

SCHEDULES = {
    "by_length(0: 1.0, 256: 0.8)": {"by_length": {"0": 1.0, "256": 0.8}},
    "log_length(128)": {"log_length": 128},
    "by_layer(1.0, 0.9, 0.8)": {"by_layer": [1.0, 0.9, 0.8]},
    "by_head([1.0, 0.9], [0.8, 0.7])": {"by_head": [[1.0, 0.9], [0.8, 0.7]]},
    "by_role(query: 1.0, document: 0.8)": {"by_role": {"query": {"constant": 1.0}, "document": {"constant": 0.8}}},
    "by_role(query: 0.9, document: by_length(0: 1.0, 64: 0.5))": {
        "by_role": {"query": {"constant": 0.9}, "document": {"by_length": {"0": 1.0, "64": 0.5}}}
    },
}


@pytest.mark.parametrize(("canonical", "data"), SCHEDULES.items())
def test_each_schedule_has_one_text_and_one_form_as_data(canonical, data):
    temperature = Temperature.of(data)
    assert temperature.canonical == canonical
    assert temperature.as_data() == data
    assert Temperature.of(canonical) == temperature
    assert Temperature.of(json.loads(json.dumps(data))) == temperature
    assert Temperature.of(tomllib.loads("t = " + as_toml(data))["t"]) == temperature
    assert temperature.tau is None
    assert not temperature.is_identity
    assert set(temperature.slug) <= set(string.ascii_lowercase + string.digits + "._-")


def as_toml(data):
    if isinstance(data, dict):
        return "{" + ", ".join(f'"{key}" = {as_toml(value)}' for key, value in data.items()) + "}"
    return "[" + ", ".join(map(as_toml, data)) + "]" if isinstance(data, list) else repr(data)


def test_schedules_have_different_folders():
    slugs = {Temperature.of(data).slug for data in SCHEDULES.values()}
    many = {Temperature.by_layer([0.5 + 0.001 * k] * 40 + [1.0 - 0.001 * k]).slug for k in range(50)}
    assert len(slugs) == len(SCHEDULES)
    assert len(many) == 50
    assert max(map(len, many)) <= 80


def test_equal_schedules_written_differently_are_one():
    expected = Temperature.by_length({0: 1.0, 256: 0.8})
    assert Temperature.by_length({256: 0.8, 0: 1}) == expected
    assert Temperature.by_length({"0": 1.0, "256": 0.8}) == expected
    assert Temperature.by_length({0: 1.0, 100: 1.0, 256: 0.8}) == expected, "a step that changes nothing is no step"
    assert Temperature.of({"by_length": [{"from": 256, "tau": 0.8}, {"from": 0, "to": 256, "tau": 1.0}]}) == expected
    assert Temperature.of({"by_length": [{"from": "256", "tau": 0.8}, {"from": 0, "to": "256", "tau": 1.0}]}) == expected
    assert hash(Temperature.of("by_length(256: 0.8,0:1)")) == hash(expected)
    assert Temperature.by_length({0: 0.7}) == Temperature(0.7)
    assert Temperature.by_role(query=0.8, document="0.8") == Temperature(0.8)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.integers(1, 10_000), taus, max_size=5), taus)
def test_a_step_table_gives_each_length_the_step_it_lies_in(steps, first):
    steps = {0: first, **steps}
    temperature = Temperature.by_length(steps)
    for tokens in (1, 2, 100, 9_999, 10_000, 50_000):
        assert temperature.of_length(tokens) == steps[max(edge for edge in steps if edge <= tokens)]
    assert Temperature.of(temperature.canonical) == temperature


@pytest.mark.parametrize(
    ("tokens", "tau"), [(1, 1.0), (16, 1.0), (17, math.log(16) / math.log(17)), (256, 0.5), (65536, 0.25)]
)
def test_log_length_is_the_entropy_invariant_rule(tokens, tau):
    assert Temperature.log_length(16).of_length(tokens) == pytest.approx(tau, rel=1e-15)


def table(*rows):
    """Steps as a list of (from, to, τ), without `to` where it is None."""
    return [{"from": begin, "tau": tau} | ({} if end is None else {"to": end}) for begin, end, tau in rows]


REFUSED = [
    *(({"by_length": steps}, words) for steps, words in (
        ({}, "is no table"), (0.8, "is no table"), ([], "is no table"),
        ({64: 0.8}, "gap: .* 64"), ({0: 1.0, "0": 0.8}, "overlapping steps: 0"),
        ({0: 1.0, -5: 0.8}, "step at -5"), ({0: 1.0, 2.5: 0.8}, r"step at 2\.5"), ({0: 1.0, "long": 0.8}, "step at 'long'"),
        ({0: 1.0, 64: 0.0}, r"0\.0 is out of range"), ({0: 1.0, 64: "0.8"}, "is not a number"),
        (table((0, 64, 1.0), (100, None, 0.8)), "gap: .* 64"), (table((0, 128, 1.0), (100, None, 0.8)), "overlap: .* 128"),
        (table((0, None, 1.0), (100, None, 0.8)), "overlap"), (table((0, 100, 1.0)), "gap: .* 100"),
        ([{"from": 0, "tau": 1.0, "upto": 3}], "must be"), ([0.8], "must be"),
    )),
    *(({"log_length": n0}, "log_length .* whole number") for n0 in (1, -3, 64.0, True, "64", None)),
    *(({"by_layer": taus}, words) for taus, words in (
        ([], "by_layer .* no list"), (0.8, "by_layer .* no list"), ("0.8", "no list"), ([0.8, 3.0], r"3\.0 is out of range"),
    )),
    *(({"by_head": taus}, words) for taus, words in (
        ([0.8], "by_head .* no table"), ([[0.8], [0.8, 0.9]], "by_head .* no table"), ([[]], "by_head .* no table"),
        ([[0.8, float("nan")]], "nan is out of range"),
    )),
    *(({"by_role": roles}, words) for roles, words in (
        (0.8, "query .* document"), ({"query": 0.8}, "query .* document"),
        ({"query": 0.8, "document": 1.0, "passage": 1.0}, "nothing else"),
        ({"query": {"by_role": {"query": 1.0, "document": 0.5}}, "document": 1.0}, "by_role inside by_role"),
    )),
    ("log_length(1)", "log_length 1"), ("by_length(0: 1.0, 0: 0.5)", "overlapping steps"), ("by_layer()", "no list"),
    *((text, "is not a number") for text in ("log_length(x)", "by_layer(0.8", "by_role(query: 1.0)", "warm(1)", "1e")),
]  # fmt: skip


@pytest.mark.parametrize(("data", "words"), REFUSED)
def test_a_schedule_that_means_nothing_is_refused(data, words):
    with pytest.raises(TemperatureError, match=words):
        Temperature.of(data)


def test_a_schedule_of_layers_is_no_function_of_length_nor_the_other_way_round():
    with pytest.raises(TemperatureError, match="length"):
        Temperature.by_layer([0.5]).of_length(3)
    with pytest.raises(TemperatureError, match="layer"):
        Temperature.log_length(8).of_layer(0)


@pytest.mark.parametrize(
    "text", [f"by_layer({'[' * 100_000})", "by_role(query: " * 400 + "0.8" + ", document: 1.0)" * 400], ids=["list", "roles"]
)
def test_a_text_that_is_nested_too_deeply_is_refused_like_any_other(text):
    with pytest.raises(TemperatureError, match="is not a number"):
        Temperature.of(text)
