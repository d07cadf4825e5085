"""No pair that could be among the most collapsed is ever left out, and what is left is what the bounds say."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.second_order import bounds as module
from tempscale.second_order.bounds import survivors
from tempscale.second_order.nuclear import pair_frobenius, paired_nuclear_norms


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
    st.sampled_from([(1.0, 1.0), (2.0, 1.0), (0.5, 2.0), (0.0, 1.0)]), st.booleans(), st.integers(0, 2**32),
)  # fmt: skip
def test_pairs_that_reach_a_threshold_are_kept_and_no_others(
    n, m, diagonal, socm, same_mean, cosine, exponents, means, seed
):
    rows, random = units(n, seed), np.random.default_rng(seed)
    columns = rows if diagonal else units(m, seed + 1)
    row_trace = random.uniform(0, 4, len(rows)).astype(np.float32)
    column_trace = row_trace if diagonal else random.uniform(0, 4, len(columns)).astype(np.float32)
    alpha, beta = exponents
    places, cosines, ranking = survivors(
        rows, row_trace, columns, column_trace, diagonal=diagonal, socm=socm, same_mean=same_mean, cosine=cosine,
        alpha=alpha, beta=beta, means=means,
    )  # fmt: skip
    expected = plainly(rows, row_trace, columns, column_trace, diagonal, socm, same_mean, cosine, alpha, beta, means)
    found = {(int(i), int(j)): int(r) for (i, j), r in zip(places, ranking, strict=True)}
    assert len(found) == len(places)
    for pair, margins in expected.items():
        for bit, margin in zip((1, 2), margins, strict=True):
            if margin > 1e-5:
                assert found.get(pair, 0) & bit, "a pair that reaches the threshold was left out"
            if margin < -1e-4:
                assert not found.get(pair, 0) & bit
    for (i, j), value in zip(places, cosines, strict=True):
        assert value == pytest.approx(float(rows[i] @ columns[j]), abs=1e-6)


def test_it_does_not_depend_on_how_the_product_is_cut(monkeypatch):
    rows, columns = units(300, 1), units(500, 2)
    random = np.random.default_rng(0)
    traces = random.uniform(0, 4, 300).astype(np.float32), random.uniform(0, 4, 500).astype(np.float32)
    settings = {"diagonal": False, "socm": 0.9, "same_mean": 0.8, "cosine": 0.6}
    whole = survivors(rows, traces[0], columns, traces[1], **settings)
    monkeypatch.setattr(module, "_ROWS", 64)
    monkeypatch.setattr(module, "_COLUMNS", 96)
    cut = survivors(rows, traces[0], columns, traces[1], **settings)
    assert 100 < len(whole[0]) < 100_000
    assert sorted(map(tuple, whole[0].tolist())) == sorted(map(tuple, cut[0].tolist()))


def test_of_more_texts_than_a_product_holds_each_pair_is_kept_once(monkeypatch):
    """Unit vectors of 40 axes: a cosine is 1 on the same axis and 0 on two, to the bit."""
    monkeypatch.setattr(module, "_ROWS", 64)
    monkeypatch.setattr(module, "_COLUMNS", 96)
    axis = np.random.default_rng(6).integers(0, 40, 300)
    rows, trace = np.eye(40, dtype=np.float32)[axis], np.ones(len(axis), np.float32)
    places, cosines, ranking = survivors(rows, trace, rows, trace, diagonal=True, socm=0.6, same_mean=0.5, cosine=0.5)
    expected = np.argwhere(np.triu(axis[:, None] == axis[None], 1))
    assert len(expected) > 500
    assert sorted(map(tuple, places.tolist())) == sorted(map(tuple, expected.tolist()))
    assert (cosines == 1).all()
    assert (ranking == 2).all()  # (1 + 1)/2 · (1 + 1)/4 = 0.5 is below the threshold of the other.


def test_nothing_left_is_empty():
    rows, trace = units(20, 3), np.ones(20, np.float32)
    places, cosines, ranking = survivors(rows, trace, rows, trace, diagonal=True, socm=5.0, same_mean=5.0, cosine=2.0)
    assert places.shape == (0, 2)
    assert len(cosines) == len(ranking) == 0


@pytest.mark.parametrize("share", [0.02, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_of_explicit_pairs(share, dtype):
    random = np.random.default_rng(5)
    factors = [torch.from_numpy(random.normal(size=(n, 12))).to(dtype) for n in random.integers(0, 9, 60)]
    pairs = np.array([pair for pair in itertools.combinations(range(60), 2) if random.random() < share])
    first, second = pairs[:, 0], pairs[:, 1]
    nuclear, frobenius = paired_nuclear_norms(factors, first, second).numpy(), pair_frobenius(factors, first, second)
    assert nuclear.max() > 10
    for k, (i, j) in enumerate(pairs):
        values = np.linalg.svd((factors[i] @ factors[j].mT).double().numpy(), compute_uv=False)
        assert nuclear[k] == pytest.approx(values.sum(), rel=1e-5, abs=1e-6)
        assert frobenius[k] == pytest.approx(np.sqrt((values**2).sum()), rel=1e-5, abs=1e-6)
    assert (frobenius <= nuclear * (1 + 1e-5) + 1e-6).all()
