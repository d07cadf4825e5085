"""Values that nobody thought of: each is a temperature of every length, or refused in one sentence."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_inputs import JSON, SECONDS, drawn, sentence, taus

from tempscale.temperature.schedule import Temperature

pytestmark = [pytest.mark.proof, pytest.mark.timeout(SECONDS)]

SCHEDULES = ["constant", "by_length", "log_length", "by_layer", "by_head", "by_role"]
ODD = [1.0, 0.8, 1, 2, 0, 2.5, "0.9", None, True, math.nan, math.inf, -0.0, 5e-324, 10**400]
TAUS = st.sampled_from(ODD) | st.floats(0.01, 2)
EDGES = st.sampled_from([0, 0, "0", "64", 64, 64.0, -1, " 7 ", "x", None, True, "٣", "²", 10**30]) | st.integers(0, 600)
LAYERS = st.lists(TAUS, max_size=3)
STEPS = st.dictionaries(EDGES, TAUS, max_size=4)
WHOLE_STEPS = st.dictionaries(st.integers(1, 600), st.floats(0.01, 2), max_size=3).map(lambda steps: {0: 1.0} | steps)
ROWS = st.lists(st.fixed_dictionaries({"from": EDGES, "tau": TAUS}, optional={"to": EDGES, "more": EDGES}), max_size=3)
FLAT = st.one_of(
    TAUS,
    (STEPS | WHOLE_STEPS | ROWS).map(lambda steps: {"by_length": steps}),
    (EDGES | JSON).map(lambda n: {"log_length": n}),
    LAYERS.map(lambda taus: {"by_layer": taus}),
    st.lists(LAYERS, max_size=3).map(lambda taus: {"by_head": taus}),
    TAUS.map(lambda tau: {"constant": tau}),
    JSON,
    st.dictionaries(st.sampled_from([*SCHEDULES, "x"]), JSON, max_size=2),
)
ROLES = st.dictionaries(st.sampled_from(["query", "document"]), FLAT, min_size=1).map(lambda roles: {"by_role": roles})
NESTED = ["by_layer(" + "[" * 9000 + ")", "by_role(query: 1, document: by_role(query: 1, document: 2))", "1e999", "1_0"]
TEXTS = st.one_of(
    st.text("by_lengthroad(),:[]{}0123456789. eNaifqu", max_size=24),
    st.builds("{}({})".format, st.sampled_from(SCHEDULES), st.text("0123456789.,: []()-", max_size=12)),
    st.sampled_from(NESTED),
)


def test_any_value_is_a_temperature_of_every_length_or_one_sentence():
    kinds, refused = set(), 0

    @drawn(1500)
    @given(FLAT | ROLES | TEXTS)
    def check(value):
        nonlocal refused
        try:
            found = Temperature.of(value)
        except ValueError as error:
            refused += 1
            sentence(error)
            return
        kinds.add(found.canonical.split("(")[0] if "(" in found.canonical else "constant")
        for tokens in (1, 2, 3, 63, 64, 512, 10**9):
            assert 0 < taus(found, tokens) <= 2
        assert Temperature.of(found.canonical) == found
        assert Temperature.of(json.loads(json.dumps(found.as_data()))) == found
        assert 0 < len(found.slug.encode()) <= 255
        assert not set(found.slug) & set("/\\ ")

    check()
    assert kinds == set(SCHEDULES)
    assert refused > 300
