"""No pair that could be among the most collapsed is ever left out, and what is left is what the bounds say."""

import itertools
from unittest import mock

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.second_order import bounds as module
from tempscale.second_order.bounds import d_sigma_bound, survivors
from tempscale.second_order.moments import covariance_factor
from tempscale.second_order.nuclear import paired_nuclear_norms, principal_rows


def units(texts, seed, dim=6):
    rows = np.random.default_rng(seed).normal(size=(texts, dim)) + 0.4
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def plainly(rows, row_trace, columns, column_trace, diagonal, socm, same_mean, cosine, alpha, beta, means):
    """Every pair in turn, in float64."""
    kept = {}
    for i, j in itertools.product(range(len(rows)), range(len(columns))):
        if diagonal and j <= i:
            continue
        near = float(rows[i].astype(float) @ columns[j].astype(float))
        most = (float(row_trace[i]) + float(column_trace[j])) / 4
        bound = ((1 + near) / 2 if means else 1.0) ** alpha * most**beta
        # Float32 decides only where a value is not within a hair of its threshold.
        kept[i, j] = (bound - socm, min(near - cosine, most - same_mean))
    return kept


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.booleans(), st.floats(0.1, 1.5), st.floats(0.2, 1.2), st.floats(-0.5, 0.9),
    st.sampled_from([(1.0, 1.0), (2.0, 1.0), (0.5, 2.0), (0.0, 1.0)]), st.booleans(),
    st.sampled_from([(512, 2048), (3, 5), (16, 7), (1, 1)]), st.integers(0, 2**32),
)  # fmt: skip
def test_pairs_that_reach_a_threshold_are_kept_once_and_no_others(
    n, m, diagonal, socm, same_mean, cosine, exponents, means, product, seed
):
    """However the product is cut."""
    rows, random = units(n, seed), np.random.default_rng(seed)
    columns = rows if diagonal else units(m, seed + 1)
    row_trace = random.uniform(0, 4, len(rows)).astype(np.float32)
    column_trace = row_trace if diagonal else random.uniform(0, 4, len(columns)).astype(np.float32)
    alpha, beta = exponents
    with mock.patch.object(module, "ROWS", product[0]), mock.patch.object(module, "COLUMNS", product[1]):
        places, cosines, ranking = survivors(
            rows, row_trace, columns, column_trace, diagonal=diagonal, socm=socm, same_mean=same_mean, cosine=cosine,
            alpha=alpha, beta=beta, means=means,
        )  # fmt: skip
    expected = plainly(rows, row_trace, columns, column_trace, diagonal, socm, same_mean, cosine, alpha, beta, means)
    found = {(int(i), int(j)): int(r) for (i, j), r in zip(places, ranking, strict=True)}
    assert places.shape == (len(found), 2)
    for pair, margins in expected.items():
        for bit, margin in zip((1, 2), margins, strict=True):
            if margin > 1e-5:
                assert found.get(pair, 0) & bit, "a pair that reaches the threshold was left out"
            if margin < -1e-4:
                assert not found.get(pair, 0) & bit
    for (i, j), value in zip(places, cosines, strict=True):
        assert value == pytest.approx(float(rows[i] @ columns[j]), abs=1e-6)


# --- bounds from the first rows of factors ----------------------------------------------------------------------------


def text(tokens, seed, dim=12):
    """Token embeddings whose axes differ in length."""
    random = torch.Generator().manual_seed(seed)
    scales = torch.linspace(2.0, 0.1, dim, dtype=torch.float64)
    return torch.randn(tokens, dim, generator=random, dtype=torch.float64) * scales + 1.0


def factors_of(texts, dtype=torch.float64):
    return [principal_rows(covariance_factor(one.to(dtype))[1]) for one in texts]


def test_principal_rows_by_hand():
    """FᵀF has the variances 9 and 1 along the axes (1, 1)/√2 and (1, −1)/√2."""
    factor = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    rows = principal_rows(factor)
    torch.testing.assert_close(rows.abs(), torch.tensor([[3.0, 3.0], [1.0, 1.0]], dtype=torch.float64) / 2**0.5)
    assert float(rows[0] @ rows[1]) == pytest.approx(0, abs=1e-12)
    assert principal_rows(torch.zeros(0, 5)).shape == (0, 5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32))
def test_bounds_fall_row_by_row_to_d_sigma(n1, n2, seed):
    """Against d×d matrices: of no row the traces alone, of all rows d_Σ itself; and the margin, 1e-5 of the traces."""
    x1, x2 = text(n1, seed), text(n2, seed + 1)
    factors, pair = factors_of([x1, x2]), (np.array([0]), np.array([1]))
    exact = oracles.d_sigma(x1.numpy(), x2.numpy())
    bounds = [float(d_sigma_bound(factors, *pair, rows)[0]) for rows in range(13)]
    traces = oracles.spread(x1.numpy()) + oracles.spread(x2.numpy())
    assert bounds[0] == pytest.approx(traces / 4 + 1e-5 * traces, rel=1e-12)
    assert bounds[12] == pytest.approx(max(exact, 0.0) + 1e-5 * traces, abs=1e-7 * (1 + traces))
    assert all(later <= earlier + 1e-9 * (1 + traces) for earlier, later in itertools.pairwise(bounds))


@pytest.mark.proof
def test_bounds_of_real_texts_are_none_too_small_and_near(token_embeddings):
    """The fast way in float32 on texts of up to 512 tokens; 32 of up to 384 rows are most of the cross term."""
    texts = sorted(token_embeddings, key=len)[-12:]
    assert len(texts[0]) > 70
    factors = factors_of(texts, torch.float32)
    first, second = np.triu_indices(len(texts), 1)
    doubles = [one.double().numpy() for one in texts]
    exact = np.array([oracles.d_sigma(doubles[i], doubles[j]) for i, j in zip(first, second, strict=True)])
    traces = d_sigma_bound(factors, first, second, 0)
    few = d_sigma_bound(factors, first, second, 32)
    assert (few >= exact).all()
    assert ((few - exact) < 0.6 * (traces - exact)).all()
    every = d_sigma_bound(factors, first, second, 1000)
    assert (every >= exact).all()
    np.testing.assert_allclose(every, exact, atol=2e-5 + 2e-5 * float(traces.max()) * 4)


@pytest.mark.parametrize("share", [0.02, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_of_explicit_pairs(share, dtype):
    random = np.random.default_rng(5)
    factors = [torch.from_numpy(random.normal(size=(n, 12))).to(dtype) for n in random.integers(0, 9, 60)]
    pairs = np.array([pair for pair in itertools.combinations(range(60), 2) if random.random() < share])
    nuclear = paired_nuclear_norms(factors, pairs[:, 0], pairs[:, 1]).numpy()
    assert nuclear.max() > 10
    for k, (i, j) in enumerate(pairs):
        values = np.linalg.svd((factors[i] @ factors[j].mT).double().numpy(), compute_uv=False)
        assert nuclear[k] == pytest.approx(values.sum(), rel=1e-5, abs=1e-6)
