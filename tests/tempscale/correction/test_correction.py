"""Each correction against its equation computed one text at a time in float64, a case by hand, its limits, its data, and
sentences for what cannot be used.
"""

import base64
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.correction.curve import Curve
from tempscale.correction.errors import CorrectionError
from tempscale.correction.fit import fit
from tempscale.correction.recipes import PARAMETERS, Recipe
from tempscale.correction.values import Correction

RECIPES = [
    "length", "length(4)", "centre", "centre(unit)", "centre_by_length", "centre_by_length(3)",
    "remove_mean_direction", "remove_top(1)",
    "remove_top(3)", "whiten(0)", "whiten(0.5)", "whiten(1)", "csls(10, 0.5)", "csls(1, 1)", "csls(500, 0.25)",
]  # fmt: skip


def texts(count, seed=0, dim=12, drift=0.6):
    """Embeddings of unit norm that drift towards one direction as their lengths grow."""
    random = np.random.default_rng(seed)
    tokens = np.maximum(1, random.lognormal(3.5, 1.0, count).astype(int))
    common = np.linspace(1.0, -0.5, dim)
    rows = random.normal(size=(count, dim)) + drift * np.log(tokens)[:, None] * common
    return torch.tensor(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=torch.float32), torch.tensor(tokens)


DOCUMENTS, TOKENS = texts(400)
QUERIES, QUERY_TOKENS = texts(150, seed=1, drift=0.2)


def fitted(recipe):
    return fit(recipe, DOCUMENTS, TOKENS, QUERIES, QUERY_TOKENS)


def similarities(correction, **how):
    found = correction.queries(QUERIES, QUERY_TOKENS, **how), correction.documents(DOCUMENTS, TOKENS, **how)
    return (found[0].double() @ found[1].double().T).numpy()


# --- oracles: from the equations, one text at a time -----------------------------------------------------------------


def cosine(x, y):
    return float(x @ y / math.sqrt(float(x @ x) * float(y @ y)))


def mean_of(rows):
    return sum(rows[1:], rows[0].copy()) / len(rows)


def line(x, y):
    """Least squares of y on x with a constant, from sums."""
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)
    return mean_y - slope * mean_x, slope


def by_equation(recipe):
    """The corrected similarity of each query and document."""
    documents, queries = (list(rows.double().numpy()) for rows in (DOCUMENTS, QUERIES))
    logs, asked_logs = ([math.log(n) for n in own.tolist()] for own in (TOKENS, QUERY_TOKENS))
    m_d, m_q = mean_of(documents), mean_of(queries)
    kind, *parameters = recipe.replace("(", " ").replace(")", "").replace(",", " ").split()
    if kind == "length":
        mean_similarity = [sum(float(q @ d) for q in queries) / len(queries) for d in documents]
        constant, slope = line(logs, mean_similarity)
        f = [constant + slope * x - sum(mean_similarity) / len(mean_similarity) for x in logs]
        return [[float(q @ d) - f[k] for k, d in enumerate(documents)] for q in queries]
    if kind == "centre" and not parameters:
        return [[float((q - m_q) @ d) for d in documents] for q in queries]
    if kind == "centre":
        return [[cosine(q - m_q, d - m_d) for d in documents] for q in queries]
    if kind == "centre_by_length":
        moved = []
        for rows, own in ((queries, asked_logs), (documents, logs)):
            lines = [line(own, [float(row[j]) for row in rows]) for j in range(len(m_d))]
            moved.append([row - np.array([a + b * x for a, b in lines]) for row, x in zip(rows, own, strict=True)])
        return [[cosine(q, d) for d in moved[1]] for q in moved[0]]
    if kind == "csls":
        k, weight = int(parameters[0]), float(parameters[1])
        near = []
        for d in documents:
            best = sorted((float(q @ d) for q in queries), reverse=True)[: min(k, len(queries))]
            near.append(sum(best) / len(best))
        return [[float(q @ d) - weight * near[k] for k, d in enumerate(documents)] for q in queries]
    if kind == "remove_mean_direction":
        moved = [[x - (x @ m_d) / (m_d @ m_d) * m_d for x in rows] for rows in (queries, documents)]
        return [[cosine(q, d) for d in moved[1]] for q in moved[0]]
    covariance = sum(np.outer(d - m_d, d - m_d) for d in documents) / len(documents)
    u, s, _ = np.linalg.svd(covariance)  # Another decomposition than the code's.
    if kind == "remove_top":

        def move(x):
            return x - sum((x @ u[:, j]) * u[:, j] for j in range(int(parameters[0])))
    else:

        def move(x):
            return sum((x @ u[:, j]) * s[j] ** (-float(parameters[0]) / 2) * u[:, j] for j in range(len(s)))

    moved = [move(q - m_q) for q in queries], [move(d - m_d) for d in documents]
    return [[cosine(q, d) for d in moved[1]] for q in moved[0]]


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r not in ("length(4)", "centre_by_length(3)")])
def test_each_correction_is_its_equation(recipe):
    np.testing.assert_allclose(similarities(fitted(recipe)), by_equation(recipe), atol=2e-6)
    assert np.abs(similarities(fitted(recipe)) - (QUERIES.double() @ DOCUMENTS.double().T).numpy()).max() > 1e-3


def test_a_curve_is_the_spline_of_least_squares():
    """Against a natural cubic spline in truncated powers, another basis of the same space (Hastie et al. eq. 5.4)."""
    x, y = np.log(TOKENS.numpy()), np.random.default_rng(3).normal(size=400)
    curve = Curve.fitted(TOKENS.numpy(), y, 4)
    knots = np.log(curve.tokens)
    assert len(knots) == 4
    assert (knots[0], knots[-1]) == pytest.approx((x.min(), x.max()))

    def d(k, at):
        return (np.maximum(at - knots[k], 0) ** 3 - np.maximum(at - knots[-1], 0) ** 3) / (knots[-1] - knots[k])

    basis = np.stack([np.ones_like(x), x, d(0, x) - d(2, x), d(1, x) - d(2, x)], 1)
    expected = basis @ np.linalg.lstsq(basis, y, rcond=None)[0]
    np.testing.assert_allclose(curve(TOKENS.numpy()), expected, atol=1e-8)
    # Constant beyond the shortest and the longest text it was fitted to.
    assert curve(np.array([1, 10**6])) == pytest.approx(curve(np.array([TOKENS.min(), TOKENS.max()])))
    assert np.abs(curve(np.arange(1, 10_000))).max() <= curve.largest()


# --- by hand, and limits ----------------------------------------------------------------------------------------------


def test_length_by_hand():
    """Documents of 1 and e² tokens whose similarity to the one query direction is 0.2 and 0.6: f is −0.2 and +0.2."""
    low, high = [0.2, math.sqrt(1 - 0.04)], [0.6, 0.8]
    documents = torch.tensor([low] * 50 + [high] * 50)
    tokens = torch.tensor([1] * 50 + [7] * 50)
    queries = torch.tensor([[1.0, 0.0]] * 100)
    correction = fit("length", documents, tokens, queries)
    assert correction.curve(np.array([1, 7])) == pytest.approx([-0.2, 0.2])
    # Half way in log length, the line is at 0; beyond 7 tokens it stays.
    assert correction.curve(np.array([1, 49])) == pytest.approx([-0.2, 0.2])
    found = correction.queries(queries[:1]) @ correction.documents(documents[[0, -1]], tokens[[0, -1]]).T
    assert found[0].tolist() == pytest.approx([0.4, 0.4])


def test_one_length_changes_nothing_and_moves_no_mean():
    correction = fit("length", DOCUMENTS, torch.full((400,), 17), QUERIES)
    assert correction.curve(np.array([17, 3])) == pytest.approx([0, 0], abs=1e-12)
    own = fitted("length")
    assert own.curve(TOKENS.numpy()).mean() == pytest.approx(0, abs=1e-12)
    # What was fitted is gone: the mean similarity no longer has a slope in log length.
    logs = np.log(TOKENS.numpy())
    before, after = ((QUERIES.double() @ DOCUMENTS.double().T).numpy().mean(0), similarities(own).mean(0))
    assert abs(line(logs, after)[1]) < 1e-7 < 0.01 < abs(line(logs, before)[1])


def test_limits():
    cosines = (QUERIES.double() @ DOCUMENTS.double().T).numpy()
    np.testing.assert_allclose(similarities(fitted("csls(10, 0)")), cosines, atol=1e-6)
    np.testing.assert_allclose(similarities(fitted("whiten(0)")), similarities(fitted("centre(unit)")), atol=1e-6)
    # Whitened documents before they are renormalised have the identity as covariance.
    linear = fitted("whiten(1)")
    moved = (DOCUMENTS.double().numpy() - linear.of_documents) @ linear.matrix
    np.testing.assert_allclose(np.cov(moved.T, bias=True), np.eye(12), atol=1e-6)
    # Nothing is left of the removed directions.
    removed = fitted("remove_top(3)").documents(DOCUMENTS).double().numpy()
    assert np.linalg.matrix_rank(removed, tol=1e-4) == 9
    without = fitted("remove_mean_direction")
    direction = DOCUMENTS.double().mean(0)
    assert (
        (without.documents(DOCUMENTS).double() @ direction).abs().max() < 1e-6 < (DOCUMENTS.double() @ direction).abs().max()
    )
    assert without == fit("remove_mean_direction", DOCUMENTS)  # It needs no queries.
    # Where nobody asks, queries are moved as documents are.
    alone = fit("remove_top(3)", DOCUMENTS)
    assert torch.equal(alone.queries(DOCUMENTS), alone.documents(DOCUMENTS))
    # Rows that do not differ from their mean have no direction, and are not numbers divided by 0.
    same = fit("whiten(1)", DOCUMENTS[:1].repeat(100, 1))
    assert not same.documents(DOCUMENTS[:1]).abs().max() > 1e-3


def test_plain_centring_ranks_as_centring_both_sides():
    moved = similarities(fitted("centre"))
    m_d, m_q = DOCUMENTS.double().mean(0), QUERIES.double().mean(0)
    both = ((QUERIES.double() - m_q) @ (DOCUMENTS.double() - m_d).T).numpy()
    assert (moved.argsort(1) == both.argsort(1)).mean() > 0.999
    assert torch.equal(fitted("centre").documents(DOCUMENTS), DOCUMENTS)


@pytest.mark.parametrize("recipe", RECIPES)
def test_rows_do_not_depend_on_one_another_nor_on_their_order(recipe):
    correction = fitted(recipe)
    whole = correction.documents(DOCUMENTS, TOKENS)
    assert torch.equal(
        torch.cat([correction.documents(DOCUMENTS[k : k + 1], TOKENS[k : k + 1]) for k in range(9)]), whole[:9]
    )
    order = torch.randperm(400, generator=torch.Generator().manual_seed(2))
    again = fit(recipe, DOCUMENTS[order], TOKENS[order], QUERIES.flip(0), QUERY_TOKENS.flip(0))
    np.testing.assert_allclose(again.documents(DOCUMENTS, TOKENS), whole, atol=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
def test_with_equal_norms_cosine_and_distance_rank_as_the_inner_product(recipe):
    correction = fitted(recipe)
    plain = similarities(correction)
    documents = correction.documents(DOCUMENTS, TOKENS, equal_norms=True).double()
    queries = correction.queries(QUERIES, QUERY_TOKENS, equal_norms=True).double()
    np.testing.assert_allclose((queries @ documents.T).numpy(), plain, atol=1e-6)
    norms = documents.norm(dim=1)
    assert float(norms.max() - norms.min()) < 1e-5
    best = plain.argmax(1)
    rows = np.arange(len(best))
    for score in (
        torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(documents).T,
        -torch.cdist(queries, documents),
    ):
        assert (score.numpy().argmax(1) == best).mean() > 0.9  # csls(1, 1) has ties.
        assert (plain[rows, score.numpy().argmax(1)] > plain[rows, best] - 1e-5).all()


# --- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_data_go_through_json_to_the_bit(recipe):
    correction = fitted(recipe)
    again = Correction.of(json.loads(json.dumps(correction.as_data() | {"model": "something else"})))
    assert again == correction
    assert hash(again) == hash(correction)
    assert again.digest == correction.digest
    assert again.canonical == Recipe.of(recipe).canonical
    for side, rows, lengths in (("documents", DOCUMENTS, TOKENS), ("queries", QUERIES, QUERY_TOKENS)):
        assert torch.equal(getattr(again, side)(rows, lengths), getattr(correction, side)(rows, lengths))
    other = fit(recipe, DOCUMENTS.flip(1), TOKENS, QUERIES.flip(1), QUERY_TOKENS)
    assert recipe in ("length", "length(4)") or other != correction  # A flip of dimensions changes no mean similarity.


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("length", "length"), (" length( 2 ) ", "length"), ("length(5)", "length(5)"), ("centre(plain)", "centre"),
     ("centre(unit)", "centre(unit)"), ("remove_top", "remove_top(1)"), ("whiten", "whiten(1)"),
     ("whiten(0.50)", "whiten(0.5)"),
     ("csls", "csls(10, 0.5)"), ("csls(7)", "csls(7, 0.5)"), ("centre_by_length()", "centre_by_length")],
)  # fmt: skip
def test_a_recipe_has_one_text(text, canonical):
    assert Recipe.of(text).canonical == canonical
    assert Recipe.of(canonical) == Recipe.of(text)


@given(st.sampled_from(sorted(PARAMETERS)), st.data())
@settings(max_examples=60, deadline=None)
def test_recipes_are_read_back(kind, data):
    values = []
    for parameter in PARAMETERS[kind]:
        if parameter.column:
            values.append(data.draw(st.sampled_from(["language", "Source.name", "a b"])))
        elif parameter.words:
            values.append(data.draw(st.sampled_from(parameter.words)))
        elif isinstance(parameter.default, int):
            values.append(data.draw(st.integers(int(parameter.least), int(min(parameter.most, 1000)))))
        else:
            values.append(data.draw(st.floats(parameter.least, parameter.most).map(lambda x: float(f"{x:g}"))))
    recipe = Recipe(kind, tuple(values))
    assert Recipe.of(recipe.canonical) == recipe


# --- what cannot be used ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [("whitening", "'whitening'"), ("length(1)", "from 2 to 20, not '1'"), ("length(2.5)", "'2.5'"),
     ("whiten(2)", "from 0 to 1, not '2'"), ("whiten(nan)", "'nan'"), ("centre(both)", "plain or unit, not 'both'"),
     ("csls(1, 1, 1)", "csls"), ("remove_top(0)", "from 1 to 1000, not '0'"), ("", "''")],
)  # fmt: skip
def test_a_recipe_that_there_is_not(text, named):
    with pytest.raises(CorrectionError, match=named):
        Recipe.of(text)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("length", DOCUMENTS[:99], TOKENS[:99], QUERIES), "100 documents.* 99"),
        (("centre", DOCUMENTS, None, QUERIES[:20]), "100 queries.* 20"),
        (("length", DOCUMENTS, None, QUERIES), "lengths.* none"),
        (("length", DOCUMENTS, TOKENS.where(TOKENS > 20, 0), QUERIES), "at least 1 token"),
        (("length", DOCUMENTS, TOKENS[:9], QUERIES), "400 embeddings and 9"),
        (("centre_by_length", DOCUMENTS, TOKENS, QUERIES), "lengths.* none"),
        (("remove_top(12)", DOCUMENTS), "12 dimensions"),
        (("remove_mean_direction", torch.cat([DOCUMENTS, -DOCUMENTS])), "no direction"),
        (("whiten(1)", DOCUMENTS, None, QUERIES[:, :5]), "12 dimensions"),
        (("whiten(1)", torch.cat([DOCUMENTS, torch.full((1, 12), math.nan)])), "1 of 401"),
        *(((recipe, DOCUMENTS, TOKENS), "queries, and none") for recipe in ("length", "centre", "centre_by_length", "csls")),
    ],
)
def test_what_cannot_be_fitted(arguments, named):
    with pytest.raises(CorrectionError, match=named):
        fit(*arguments)


@pytest.mark.parametrize(
    ("rows", "lengths", "named"),
    [
        (DOCUMENTS[:, :5], TOKENS, "12 dimensions"), (DOCUMENTS, None, "lengths.* none"),
        (DOCUMENTS, TOKENS * 0, "at least 1 token"), (DOCUMENTS * math.inf, TOKENS, "not finite"),
    ],
)  # fmt: skip
def test_what_cannot_be_applied(rows, lengths, named):
    with pytest.raises(CorrectionError, match=named):
        fitted("length").documents(rows, lengths)


def test_data_that_are_no_correction():
    data, not_finite = fitted("length").as_data(), fitted("whiten(1)").as_data()
    values = np.frombuffer(base64.b64decode(not_finite["matrix"]), "<f8").copy()
    values[0] = math.inf
    not_finite["matrix"] = base64.b64encode(values.tobytes()).decode()
    for wrong, named in (
        ({}, "no correction"), ([], "no correction"), (data | {"format": 9}, "format 9"),
        (data | {"correction": "nothing"}, "'nothing'"), ({k: v for k, v in data.items() if k != "f"}, "damaged"),
        (data | {"f": {"tokens": [3.0, 2.0], "values": [0.1, 0.2]}}, "ascending"),
        (data | {"f": {"tokens": [2.0, 3.0], "values": [0.1, math.nan]}}, "finite"),
        (data | {"f": {"tokens": [0.5, 3.0], "values": [0.1, 0.2]}}, "below 1"),
        (not_finite, "not finite"),
        (fitted("whiten(1)").as_data() | {"matrix": "AAAA"}, "damaged"),
    ):  # fmt: skip
        with pytest.raises(CorrectionError, match=named):
            Correction.of(wrong)
