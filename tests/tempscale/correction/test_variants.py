"""Variants of vectors against their definitions, one number at a time, against faiss on real vectors, and their names."""

import math

import numpy as np
import pytest
import torch

from tempscale.correction.errors import CorrectionError
from tempscale.correction.fit import fit
from tempscale.correction.variant_names import canonical, needs_queries
from tempscale.correction.variants import Variant


def drifting(count, seed, drift):
    """Embeddings of unit norm of 12 dimensions that drift towards one direction as their lengths grow, and the lengths."""
    random = np.random.default_rng(seed)
    tokens = np.maximum(1, random.lognormal(3.5, 1.0, count).astype(int))
    rows = random.normal(size=(count, 12)) + drift * np.log(tokens)[:, None] * np.linspace(1.0, -0.5, 12)
    return torch.tensor(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=torch.float32), torch.tensor(tokens)


DOCUMENTS, TOKENS = drifting(400, 0, 0.6)
QUERIES, QUERY_TOKENS = drifting(150, 1, 0.2)
ROWS, ASKING = DOCUMENTS.double().numpy(), QUERIES.double().numpy()


def fitted(what):
    return Variant.fitted(what, DOCUMENTS, TOKENS, QUERIES, QUERY_TOKENS)


def similarities(variant):
    held = variant.documents(ROWS, TOKENS.numpy()).astype(np.float64)
    return variant.queries(ASKING, QUERY_TOKENS.numpy()).astype(np.float64) @ held.T


# --- definitions --------------------------------------------------------------------------------------------------------


def test_nothing_changes_without_a_step():
    variant = fitted("")
    assert (variant.what, variant.vector_bytes, variant.scale) == ("", 4 * 12, 1.0)
    assert similarities(variant) == pytest.approx(ASKING @ ROWS.T, abs=1e-7)


def test_the_first_dimensions_have_unit_norm_again():
    variant = fitted("dims:5")
    for q in (0, 7, 149):
        for d in (0, 399):
            dot = sum(float(QUERIES[q, k]) * float(DOCUMENTS[d, k]) for k in range(5))
            norms = [math.sqrt(sum(float(row[k]) ** 2 for k in range(5))) for row in (QUERIES[q], DOCUMENTS[d])]
            assert similarities(variant)[q, d] == pytest.approx(dot / norms[0] / norms[1], abs=1e-6)
    assert variant.vector_bytes == 20


def test_codes_of_eight_bits_divide_the_range_of_each_dimension():
    variant = fitted("int8")
    held = variant.documents(ROWS, TOKENS.numpy())
    for k in range(12):
        low, high = min(row[k] for row in ROWS), max(row[k] for row in ROWS)
        step = (high - low) / 255
        for d in (0, 5, 399):
            code = round((ROWS[d][k] - low) / step)
            assert held[d, k] == pytest.approx(low + code * step, abs=1e-6)
    assert np.abs(held - ROWS).max() <= ((ROWS.max(0) - ROWS.min(0)) / 255).max() / 2 + 1e-6
    assert variant.queries(ASKING, QUERY_TOKENS.numpy()) == pytest.approx(ASKING, abs=1e-7)
    # What is beyond the range of the fitted texts is cut to it; a dimension without a range keeps its value.
    beyond = np.full((1, 12), 9.0)
    assert variant.documents(beyond, np.ones(1, int))[0] == pytest.approx(ROWS.max(0), abs=1e-6)
    constant = Variant.fitted("int8", torch.full((5, 3), 0.25), torch.ones(5, dtype=torch.int64))
    assert constant.documents(np.zeros((1, 3)), np.ones(1, int)).tolist() == [[0.25, 0.25, 0.25]]
    assert variant.vector_bytes == 12


def test_signs_count_the_bits_that_differ():
    variant = fitted("bits")
    found = similarities(variant)
    for q, d in ((0, 0), (3, 77), (149, 399)):
        differ = sum((float(QUERIES[q, k]) > 0) != (float(DOCUMENTS[d, k]) > 0) for k in range(12))
        assert found[q, d] == 12 - 2 * differ
    assert (variant.vector_bytes, variant.scale) == (2.0, 1 / 12)  # 12 bits take two bytes.


def test_a_mean_is_taken_off_before_signs_are_taken():
    means = [sum(row[k] for row in rows) / len(rows) for rows in (ROWS, ASKING) for k in range(12)]
    of_documents, of_queries = means[:12], means[12:]
    found = similarities(fitted("centre+bits"))
    for q, d in ((0, 0), (3, 77), (149, 399)):
        left = [ASKING[q][k] - of_queries[k] > 0 for k in range(12)]
        right = [ROWS[d][k] - of_documents[k] > 0 for k in range(12)]
        assert found[q, d] == 12 - 2 * sum(a != b for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(
    "recipe", ["length", "centre", "centre(unit)", "centre_by_length", "remove_top(2)", "csls(10, 0.5)"]
)
def test_a_correction_alone_ranks_as_it_does_elsewhere(recipe):
    correction = fit(recipe, DOCUMENTS, TOKENS, QUERIES, QUERY_TOKENS)
    expected = correction.queries(QUERIES, QUERY_TOKENS).double() @ correction.documents(DOCUMENTS, TOKENS).double().T
    found = similarities(fitted(recipe))
    difference = found - expected.numpy()  # Centre moves all documents of a query by one number.
    assert np.ptp(difference, axis=1).max() == pytest.approx(0, abs=1e-6)
    assert fitted(recipe).vector_bytes == 4 * len(fitted(recipe).documents(ROWS[:1], TOKENS.numpy()[:1])[0])


def test_each_step_is_fitted_to_what_the_steps_before_it_make():
    first = fitted("dims:6")
    held = torch.from_numpy(first.documents(ROWS, TOKENS.numpy()))
    asking = torch.from_numpy(first.queries(ASKING, QUERY_TOKENS.numpy()))
    second = Variant.fitted("centre+int8", held, TOKENS, asking, QUERY_TOKENS)
    expected = second.documents(held.double().numpy(), TOKENS.numpy())
    assert fitted("dims:6+centre+int8").documents(ROWS, TOKENS.numpy()) == pytest.approx(expected, abs=1e-5)


# --- real vectors ---------------------------------------------------------------------------------------------------------


ASKING_FIRST = 300


@pytest.fixture(scope="module", params=[("minilm", 800), ("mpnet", 300)], ids=["minilm", "mpnet"])
def real(request):
    """Real embeddings of two models, the first 300 of which ask."""
    from benchmarks.measuring import texts
    from tempscale.model.encoder import Encoder

    model, count = request.param
    return Encoder.load(request.getfixturevalue(model), max_length=64).encode(texts(count), moments=False).embeddings.numpy()


def nearest(similarity, k=10):
    return [set(np.argsort(-row, kind="stable")[:k].tolist()) for row in similarity]


def kept(found, exact):
    return float(np.mean([len(a & b) / len(b) for a, b in zip(found, exact, strict=True)]))


@pytest.mark.proof
@pytest.mark.parametrize("what", ["int8", "bits", "dims:256", "dims:128+bits"])
def test_as_many_neighbours_are_kept_as_by_faiss(real, what):
    faiss = pytest.importorskip("faiss")
    documents, asking = real, real[:ASKING_FIRST]
    exact = nearest(asking @ documents.T, 10)
    lengths = np.ones(len(documents), np.int64)
    variant = Variant.fitted(what, torch.from_numpy(documents), torch.from_numpy(lengths))
    own = nearest(variant.queries(asking, lengths[:ASKING_FIRST]) @ variant.documents(documents, lengths).T)
    if what.startswith("dims"):
        cut = np.ascontiguousarray(documents[:, : int(what.split(":")[1].split("+")[0])])
        faiss.normalize_L2(cut)
        documents, asking = cut, cut[:ASKING_FIRST]
    if what.endswith("bits"):
        index = faiss.IndexBinaryFlat(documents.shape[1])
        index.add(np.packbits(documents > 0, axis=1))
        _, found = index.search(np.packbits(asking > 0, axis=1), 10)
    else:
        index = faiss.index_factory(documents.shape[1], "SQ8" if what == "int8" else "Flat", faiss.METRIC_INNER_PRODUCT)
        index.train(documents)
        index.add(documents)
        _, found = index.search(asking, 10)
    other = kept([set(row) for row in found.tolist()], exact)
    assert kept(own, exact) == pytest.approx(other, abs=0.01)
    assert 0.3 < kept(own, exact) < 1.0


# --- names ----------------------------------------------------------------------------------------------------------------


def test_one_text_for_one_variant():
    assert canonical(" centre(plain) + bits ") == "centre+bits"
    assert canonical("dims: 0256+int8") == "dims:256+int8"
    assert canonical("csls(10,.5)") == "csls(10, 0.5)"
    assert [needs_queries(what) for what in ("dims:8", "remove_top(1)+bits", "centre+bits", "length")] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("int4", "int4"), ("", "no variant"), ("dims:0", "dims:0"), ("dims:-3", "dims:-3"), ("bits+int8", "comes last"),
        ("int8+centre", "comes last"), ("length+int8", "length"), ("dims:8+csls(10, 0.5)", "csls"),
        ("dims:8+dims:4", "twice"), ("centre+", "no variant"), ("remove_top(0)", "components"), ("centre centre", "centre"),
    ],
)  # fmt: skip
def test_what_is_no_variant_is_named(what, named):
    with pytest.raises(CorrectionError, match=named):
        canonical(what)


def test_more_dimensions_than_there_are_and_missing_queries_are_named():
    with pytest.raises(CorrectionError, match="12 dimensions"):
        fitted("dims:13")
    with pytest.raises(CorrectionError, match="queries"):
        Variant.fitted("centre+bits", DOCUMENTS, TOKENS)
