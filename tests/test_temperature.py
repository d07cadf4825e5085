"""Temperature as data: what is read, what is refused, and the one text of each."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.temperature import Temperature, TemperatureError

taus = st.floats(min_value=0.0, max_value=2.0, exclude_min=True, allow_nan=False)


@pytest.mark.parametrize("value", [0.8, "0.8", " 0.80 ", {"constant": 0.8}, Temperature(0.8)])
def test_a_number_its_text_and_plain_data_read_as_the_same_temperature(value):
    assert Temperature.of(value) == Temperature.constant(0.8)
    assert Temperature.of(value).tau == 0.8


def test_the_range_is_open_at_zero_and_closed_at_two():
    assert Temperature(2.0).tau == 2.0
    assert Temperature(1e-3).tau == 1e-3
    with pytest.raises(TemperatureError, match="out of range"):
        Temperature(2.0000001)


@pytest.mark.parametrize(
    "value", [0, 0.0, -0.0, -0.8, 2.5, float("nan"), float("inf"), float("-inf"), "nan", "-1", "0", "1e400"]
)
def test_out_of_range_is_refused_with_the_range(value):
    with pytest.raises(TemperatureError, match=r"temperature .* is out of range; τ must be above 0 and at most 2"):
        Temperature.of(value)


@pytest.mark.parametrize("value", [True, False, None, [0.8], 0.8j, {"constant": True}, {"constant": "0.8"}])
def test_what_is_no_number_is_refused_though_python_would_convert_it(value):
    with pytest.raises(TemperatureError, match=r"is not a number; give a τ in \(0, 2\]"):
        Temperature.of(value)


@pytest.mark.parametrize("value", ["", "warm", "0,8", "0.8 1.0"])
def test_text_that_is_no_number_is_quoted(value):
    with pytest.raises(TemperatureError, match=f"temperature '{value}' is not a number"):
        Temperature.of(value)


def test_text_is_read_by_of_only():
    with pytest.raises(TemperatureError, match=r"temperature '0.8' is not a number"):
        Temperature("0.8")


@pytest.mark.parametrize("value", [{}, {"tau": 0.8}, {"constant": 0.8, "by_length": {}}])
def test_unknown_plain_data_is_refused_with_an_example(value):
    with pytest.raises(
        TemperatureError, match=r"is not known; write one of constant, by_length, .*, e\.g\. \{'constant': 0.8\}"
    ):
        Temperature.of(value)


def test_whole_numbers_become_floats_with_one_text():
    assert Temperature(1).canonical == Temperature(1.0).canonical == "1.0"
    assert isinstance(Temperature(2).tau, float)
    assert hash(Temperature(1)) == hash(Temperature(1.0))


def test_only_one_is_the_identity():
    assert Temperature(1).is_identity
    assert not Temperature(0.9999999).is_identity


@settings(max_examples=60, deadline=None)
@given(taus)
def test_canonical_text_and_plain_data_read_back_the_same_number(tau):
    temperature = Temperature(tau)
    assert Temperature.of(temperature.canonical) == temperature
    assert Temperature.of(json.loads(json.dumps(temperature.as_data()))) == temperature


@settings(max_examples=60, deadline=None)
@given(taus, taus)
def test_texts_are_equal_exactly_where_temperatures_are(first, second):
    assert (Temperature(first).canonical == Temperature(second).canonical) == (first == second)


@settings(max_examples=30, deadline=None)
@given(taus)
def test_the_slug_is_a_folder_name(tau):
    assert set(Temperature(tau).slug) <= set("0123456789.e-+")


def test_a_temperature_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Temperature(0.8).tau = 0.5
