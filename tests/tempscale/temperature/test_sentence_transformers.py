"""Temperatures inside sentence-transformers: encode, prompts, roles and pools of processes."""

import numpy as np
import pytest

from tempscale import Temperature, TemperatureError, attach, detach, fold, role, verify

TEXTS = ["a short text", "attention is a low-pass filter that gets stronger with length " * 12, "", "zeros and ones " * 40]
ROLES = Temperature.by_role(query=1.0, document=0.5)


@pytest.fixture
def model(small_model):
    from sentence_transformers import SentenceTransformer

    found = SentenceTransformer(str(small_model), device="cpu")
    found.prompts = {"query": "query: ", "document": "passage: "}
    return found


@pytest.fixture
def at(small_model):
    """Embeddings of an untouched model at a constant, by prompt."""
    from sentence_transformers import SentenceTransformer

    def encode(tau, prompt=None):
        plain = SentenceTransformer(str(small_model), device="cpu")
        if tau != 1.0:
            attach(plain, tau)
        return plain.encode(TEXTS, prompt=prompt)

    return encode


def test_queries_and_documents_have_their_own_temperature_and_prompt(model, at):
    attach(model, ROLES)
    np.testing.assert_array_equal(model.encode_query(TEXTS), at(1.0, "query: "))
    np.testing.assert_array_equal(model.encode_document(TEXTS), at(0.5, "passage: "))
    np.testing.assert_array_equal(model.encode_query(TEXTS), at(1.0, "query: "))
    with role(model, "query"):  # A role named by hand goes before the one of the call.
        np.testing.assert_array_equal(model.encode_document(TEXTS), at(1.0, "passage: "))
    assert np.abs(at(0.5, "query: ") - at(1.0, "query: ")).max() > 1e-3


def test_encode_without_a_role_says_what_is_missing(model, at):
    attach(model, ROLES)
    with pytest.raises(TemperatureError, match="encode_query"):
        model.encode(TEXTS)
    with role(model, "document"):
        np.testing.assert_array_equal(model.encode(TEXTS), at(0.5))
    verify(model)
    detach(model)
    np.testing.assert_array_equal(model.encode(TEXTS), at(1.0))


@pytest.mark.parametrize("inner", [False, True])
def test_a_constant_knows_no_role_and_may_be_on_the_inner_model(model, at, inner):
    attach(model[0].model if inner else model, 0.5)
    np.testing.assert_array_equal(model.encode(TEXTS), at(0.5))
    np.testing.assert_array_equal(model.encode_query(TEXTS), at(0.5, "query: "))


@pytest.mark.parametrize(
    "schedule", [Temperature.log_length(16), Temperature.by_length({0: 1.0, 32: 0.7, 128: 0.5})], ids=str
)
def test_the_batch_does_not_change_what_a_schedule_by_length_gives(model, schedule):
    attach(model, schedule)
    together = model.encode(TEXTS, batch_size=4)
    np.testing.assert_allclose(together, model.encode(TEXTS, batch_size=1), atol=2e-6)
    verify(model)


def test_folded_equals_attached(model, small_model, at):
    np.testing.assert_allclose(fold(model, 0.5).encode(TEXTS), at(0.5), atol=1e-6)


@pytest.mark.soak
def test_a_pool_of_processes_has_the_temperature(model):
    attach(
        model, Temperature.by_role(query=1.0, document={"log_length": 16})
    )  # What a process must know of: role and lengths.
    expected = model.encode_document(TEXTS)
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        found = model.encode_document(TEXTS, pool=pool, chunk_size=2)
    finally:
        model.stop_multi_process_pool(pool)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    detach(model)
    assert np.abs(model.encode_document(TEXTS) - expected).max() > 1e-3


def test_a_schedule_on_the_inner_model_says_where_it_belongs(model):
    attach(model[0].model, Temperature.log_length(16))
    with pytest.raises(TemperatureError, match=r"log_length\(16\) .*SentenceTransformer"):
        model.encode(TEXTS)
