"""Second-order collapse (S2 eqs. 4–6, 30) against d×d square roots, and the properties of a Bures–Wasserstein distance."""

import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.measures import pairwise_socm
from tempscale.second_order import nuclear
from tempscale.second_order.moments import covariance_factor
from tempscale.second_order.socm import (
    cross_nuclear_norms,
    socm,
    socm_pairs,
    socm_square,
    socm_tile,
    socm_value,
    traces,
)

DOUBLE = torch.float64
seeds = st.integers(0, 2**32)
sizes = st.integers(1, 14)


def text(tokens, dim=6, seed=0, offset=1.0, scale=1.0, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(tokens, dim, generator=generator, dtype=DOUBLE) + offset).to(dtype)


def rotation(dim, seed):
    return torch.linalg.qr(text(dim, dim, seed, offset=0.0)).Q


def corpus(lengths, dim=6, seed=0, dtype=DOUBLE):
    return [text(n, dim, seed + k, dtype=dtype) for k, n in enumerate(lengths)]


# --- against d×d square roots -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(1, 8), seeds)
def test_a_pair_equals_the_equations(n1, n2, dim, seed):
    x1, x2 = text(n1, dim, seed), text(n2, dim, seed + 1)
    found = socm(x1, x2)
    scale = max(1.0, oracles.spread(x1.numpy()), oracles.spread(x2.numpy()))
    assert float(found.d_mu) == pytest.approx(oracles.d_mu(x1, x2), abs=1e-12)
    assert float(found.d_sigma) == pytest.approx(oracles.d_sigma(x1, x2), abs=1e-6 * scale)
    assert float(found.socm) == pytest.approx(oracles.socm(x1, x2), abs=1e-6 * scale)


def test_a_pair_worked_by_hand():
    # X1 = (1, ±1): μ = (1, 0), Σ = diag(0, 1). X2 = (±2, 4): μ = (0, 4), scaled (±½, 1), Σ = diag(¼, 0).
    # d_μ = 2/4; Σ1Σ2 = 0, so d_Σ = (1 + ¼)/4 = 5/16; SOCM = 5/32.
    x1 = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=DOUBLE)
    x2 = torch.tensor([[2.0, 4.0], [-2.0, 4.0]], dtype=DOUBLE)
    assert [float(value) for value in socm(x1, x2)] == pytest.approx([1 / 2, 5 / 16, 5 / 32])
    # Against (3, ±1)/3 the covariances lie along one axis: (1 − ⅓)²/4 = 1/9, and the means agree.
    x3 = torch.tensor([[3.0, 1.0], [3.0, -1.0]], dtype=DOUBLE)
    assert [float(value) for value in socm(x1, x3)] == pytest.approx([0.0, 1 / 9, 1 / 9], abs=1e-12)


@pytest.mark.proof
def test_pairs_of_real_texts_all_at_once_and_two_alone_equal_the_equations(token_embeddings):
    found = pairwise_socm(token_embeddings)
    units = [oracles.unit_moments(tokens.numpy()) for tokens in token_embeddings]
    halves = [oracles.root(sigma) for _, sigma in units]
    worst = 0.0
    for i in range(len(units)):
        for j in range(i + 1, len(units), 2):  # Each text with every other one: half the pairs, all lengths.
            (mu1, sigma1), (mu2, sigma2) = units[i], units[j]
            values = np.linalg.eigvalsh(halves[i] @ sigma2 @ halves[i])
            cross = np.sqrt(values[values > 1e-15]).sum()
            d_sigma = float(np.trace(sigma1) + np.trace(sigma2) - 2 * cross) / 4
            d_mu = float((mu1 - mu2) @ (mu1 - mu2)) / 4
            worst = max(worst, abs(float(found.d_mu[i, j]) - d_mu), abs(float(found.d_sigma[i, j]) - d_sigma))
            worst = max(worst, abs(float(found.socm[i, j]) - (1 - d_mu) * d_sigma))
    assert worst < 1e-5
    assert float(found.socm.max()) > 0.3
    assert float(found.socm.diagonal().max()) < 1e-7
    assert float(found.d_mu.diagonal().max()) == 0.0
    for i, j in itertools.product(range(0, len(units), 6), repeat=2):
        for one, every in zip(socm(token_embeddings[i], token_embeddings[j]), found, strict=True):
            assert float(one) == pytest.approx(float(every[i, j]), abs=1e-5)


# --- a Bures–Wasserstein distance -------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(sizes, seeds)
def test_it_is_zero_for_identical_texts(n, seed):
    x = text(n, seed=seed)
    found = socm(x, x.clone())
    scale = max(1.0, oracles.spread(x.numpy()))
    assert float(found.d_mu) == 0.0
    assert float(found.d_sigma) == pytest.approx(0.0, abs=1e-12 * scale)
    # The order of tokens is no part of a text's moments.
    assert float(socm(x, x.flip(0)).d_sigma) == pytest.approx(0.0, abs=1e-12 * scale)
    assert float(socm(x, x.repeat(3, 1)).d_sigma) == pytest.approx(0.0, abs=1e-12 * scale)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, seeds, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_order_of_the_texts_one_rotation_of_both_and_the_scale_of_either_change_nothing(n1, n2, seed, first, second):
    x1, x2, turn = text(n1, seed=seed), text(n2, seed=seed + 1), rotation(6, seed + 2)
    expected = torch.stack(socm(x1, x2))
    for found in (socm(x2, x1), socm(x1 @ turn, x2 @ turn), socm(first * x1, second * x2)):
        torch.testing.assert_close(torch.stack(found), expected, atol=1e-9, rtol=1e-9)


@settings(max_examples=30, deadline=None)
@given(sizes, sizes, seeds)
def test_one_token_leaves_a_quarter_of_the_other_trace(n1, n2, seed):
    x1, x2 = text(n1, seed=seed), text(1, seed=seed + 1)
    trace = oracles.spread(x1.numpy())
    assert float(socm(x1, x2).d_sigma) == pytest.approx(trace / 4, rel=1e-12)
    assert float(socm(x1, x2.expand(n2, -1)).d_sigma) == pytest.approx(trace / 4, rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(1, 8), seeds)
def test_the_bounds_hold_in_their_order(n1, n2, dim, seed):
    x1, x2 = text(n1, dim, seed), text(n2, dim, seed + 1)
    trace1, trace2 = oracles.spread(x1.numpy()), oracles.spread(x2.numpy())
    lower = (math.sqrt(trace1) - math.sqrt(trace2)) ** 2 / 4
    upper = (trace1 + trace2 - 2 * oracles.frobenius_norm_of_cross(x1, x2)) / 4
    slack = 1e-9 * max(1.0, trace1, trace2)
    d_sigma = float(socm(x1, x2).d_sigma)
    assert lower - slack <= d_sigma <= upper + slack
    assert upper <= (trace1 + trace2) / 4 + slack


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_never_negative_nor_nan(dtype):
    one = text(1, 24, 1, dtype=dtype)
    odd = {
        "one token": one,
        "tokens alike": one.repeat(40, 1),
        "rank one": one * torch.linspace(0.5, 2.0, 30, dtype=dtype).unsqueeze(1),
        "low rank": text(3, 24, 2, dtype=dtype).repeat(20, 1),
        "512 tokens": text(512, 24, 3, dtype=dtype),
        "512 tokens, almost alike": text(512, 24, 4, scale=1e-4, dtype=dtype),
        "small mean": text(9, 24, 5, offset=0.0, dtype=dtype),
        "sparse": torch.eye(24, dtype=dtype),
        "large": 1e6 * text(7, 24, 6, dtype=dtype),
        "small": 1e-6 * text(7, 24, 7, dtype=dtype),
    }
    every = pairwise_socm(list(odd.values()))
    for value in every:
        assert torch.isfinite(value).all()
        assert (value >= 0).all()
    for i, x1 in enumerate(odd.values()):
        for j, x2 in enumerate(odd.values()):
            found = torch.stack(socm(x1, x2)).double()
            assert torch.isfinite(found).all()
            assert (found >= 0).all()
            expected = torch.stack([value[i, j] for value in every])
            torch.testing.assert_close(found, expected, atol=2e-5 if dtype == torch.float32 else 1e-6, rtol=1e-4)
    assert every.socm.max() > 1, "SOCM is not clipped above"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_not_negative_for_opposite_means(dtype):
    # d_μ = 1 up to rounding, above or below.
    for seed in range(60):
        x1, x2 = text(5, 16, seed, dtype=dtype), text(7, 16, seed + 1000, dtype=dtype)
        x2 = x2 - x2.mean(0) - x1.mean(0)
        assert float(socm(x1, x2).socm) == pytest.approx(0.0, abs=1e-5)
        assert float(socm(x1, x2).socm) >= 0
        assert (pairwise_socm([x1, x2]).socm >= 0).all()
        assert 0 <= float(socm(x1, x2).d_mu) <= 1


# --- the general form and gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2.0, 1.0), (1.0, 0.5), (0.0, 1.0), (1.0, 0.0), (3.0, 2.0)])
def test_the_general_form_which_leaves_the_two_parts_alone(alpha, beta):
    x1, x2 = text(5), text(9, seed=1)
    expected, found, plain = oracles.socm(x1, x2, alpha, beta), socm(x1, x2, alpha=alpha, beta=beta), socm(x1, x2)
    assert float(found.socm) == pytest.approx(expected, rel=1e-6)
    assert (found.d_mu, found.d_sigma) == (plain.d_mu, plain.d_sigma)
    assert float(pairwise_socm([x1, x2], alpha=alpha, beta=beta).socm[0, 1]) == pytest.approx(expected, rel=1e-6)


def test_the_general_form_by_hand_and_in_its_limits():
    d_mu, d_sigma = torch.tensor([0.0, 0.75, 1.0], dtype=DOUBLE), torch.tensor([0.25, 4.0, 9.0], dtype=DOUBLE)
    assert socm_value(d_mu, d_sigma).tolist() == [0.25, 1.0, 0.0]
    assert socm_value(d_mu, d_sigma, 0.5, 0.5).tolist() == [0.5, 1.0, 0.0]
    assert socm_value(d_mu, d_sigma, 0.0, 1.0).tolist() == d_sigma.tolist()
    # A d_μ that rounding took past 1 has no root and must not give NaN.
    assert socm_value(torch.tensor(1.0 + 1e-7), torch.tensor(1.0), 0.5, 1.0).item() == 0.0


@pytest.mark.parametrize(("n1", "n2"), [(3, 3), (3, 5), (5, 2), (1, 4), (9, 3), (9, 12)])
def test_it_is_differentiable(n1, n2):
    # In few tokens and in more tokens than dimensions, in both texts.
    x1, x2 = text(n1, 6, 1).requires_grad_(), text(n2, 6, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: tuple(socm(a, b)), (x1, x2), atol=1e-5)
    gradient = torch.autograd.grad(socm(x1, x2).socm, x1)[0]
    assert gradient.abs().max() > 1e-3


def test_the_gradient_is_finite_where_texts_agree():
    x = text(4).requires_grad_()
    (gradient,) = torch.autograd.grad(socm(x, x.detach().clone()).socm, x)
    assert torch.isfinite(gradient).all()


# --- the published code's regularisation ------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(3, 4), (5, 20), (1, 6), (30, 40), (60, 70)])
def test_paper_mode_equals_the_published_code(lengths):
    x1, x2 = (text(n, 48, seed, scale=0.8) for seed, n in enumerate(lengths))
    expected = oracles.published_d_sigma(x1.numpy(), x2.numpy(), 1e-9)
    found = pairwise_socm([x1, x2], regularization=1e-9)
    exact = pairwise_socm([x1, x2])
    assert float(found.d_sigma[0, 1]) == pytest.approx(expected, abs=1e-5)
    assert float(found.socm[0, 1]) == pytest.approx((1 - oracles.d_mu(x1, x2)) * expected, abs=1e-5)
    missing = max(0, 48 - min(lengths))
    assert float(exact.d_sigma[0, 1] - found.d_sigma[0, 1]) == pytest.approx(missing * 1e-9**0.5 / 2, abs=4e-5)
    assert torch.equal(found.d_mu, exact.d_mu)


@pytest.mark.proof
def test_paper_mode_equals_the_published_code_on_real_texts_in_their_order(token_embeddings):
    # The published value depends on the order of the two texts, by up to about √ε·tr Σ/4; entry (i, j), i < j, has i first.
    chosen = [tokens.double() for tokens in token_embeddings[:20:3]]
    found = pairwise_socm(chosen, regularization=1e-9)
    exact = pairwise_socm(chosen)
    for i, j in itertools.combinations(range(len(chosen)), 2):
        expected = oracles.published_d_sigma(chosen[i].numpy(), chosen[j].numpy(), 1e-9)
        assert float(found.d_sigma[i, j]) == pytest.approx(expected, abs=1e-7)
    long, short = chosen[-1], chosen[0]
    assert len(short) < 10 < 400 < len(long)
    expected = oracles.published_d_sigma(long.numpy(), short.numpy(), 1e-9)
    assert float(pairwise_socm([long, short], regularization=1e-9).d_sigma[0, 1]) == pytest.approx(expected, abs=1e-5)
    lowered = (exact.d_sigma - found.d_sigma)[~torch.eye(len(chosen), dtype=torch.bool)]
    assert lowered.min() >= 0
    assert lowered.max() == pytest.approx(384 * 1e-9**0.5 / 2, rel=0.1)


@pytest.mark.proof
@pytest.mark.parametrize(("first", "step"), [(0, 1), *(pytest.param(k, 2, marks=pytest.mark.soak) for k in (0, 1))])
def test_paper_mode_in_float32_is_within_its_bound_of_the_published_code(token_embeddings, first, step):
    """In the order of each pair, among all pairs, listed ones and two lists; the bound is √ε·tr Σ_2/4."""
    chosen = token_embeddings[first::step][:14]
    assert len({len(tokens) for tokens in chosen}) > 4
    means, factors = zip(*map(covariance_factor, chosen), strict=True)
    assert factors[0].dtype == torch.float32
    square = socm_square(torch.stack(means), factors, regularization=1e-9).d_sigma
    tile = socm_tile(torch.stack(means), factors, torch.stack(means), factors, regularization=1e-9).d_sigma
    pairs = [(i, j) for i in range(len(chosen)) for j in range(len(chosen)) if i != j]
    few = pairs[: len(chosen) ** 2 // 9]
    listed = {
        pair: value
        for some in (pairs, few)
        for pair, value in zip(
            some, socm_pairs(torch.stack(means), factors, *zip(*some, strict=True), regularization=1e-9).d_sigma, strict=True
        )
    }
    missed = []
    for i, j in pairs:
        expected = oracles.published_d_sigma(chosen[i].double().numpy(), chosen[j].double().numpy(), 1e-9)
        bound = 1e-9**0.5 * float(factors[j].double().square().sum()) / 4 + 2e-6
        found = [tile[i, j], listed[i, j], *([square[i, j], square[j, i]] if i < j else [])]
        missed += [float(value) - expected for value in found]
        assert -1e-6 < missed[-1] < bound
        assert max(map(float, found)) - min(map(float, found)) < 2e-6
    assert max(missed) < 1.2e-5
    assert np.mean(missed) < 4e-6


def test_paper_mode_clamps_at_zero_and_goes_to_the_exact_value():
    x1, x2 = text(4), text(7, seed=1)
    assert pairwise_socm([x1, x1], regularization=1e-4).d_sigma.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    exact = pairwise_socm([x1, x2]).d_sigma[0, 1]
    gaps = [float(exact - pairwise_socm([x1, x2], regularization=e).d_sigma[0, 1]) for e in (1e-6, 1e-8, 1e-10, 1e-14)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 1e-4
    assert gaps[-1] < 1e-6


def test_the_regularised_cross_term_by_hand():
    # GᵀG + ε F_2F_2ᵀ = diag(36 + 4ε, ε) in d = 4: √(36 + 5ε) + √(2ε) + (4 − 2)√ε.
    first = torch.tensor([[3.0, 0, 0, 0], [0, 1, 0, 0]], dtype=DOUBLE)
    second = torch.tensor([[2.0, 0, 0, 0], [0, 0, 1, 0]], dtype=DOUBLE)
    found = cross_nuclear_norms([first], [second], regularization=0.25)
    assert found.tolist() == [[pytest.approx(37.25**0.5 + 0.5**0.5 + 2 * 0.5)]]
    assert cross_nuclear_norms([first], [second]).tolist() == [[pytest.approx(6.0)]]


# --- many texts -------------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(st.lists(sizes, min_size=1, max_size=7), seeds)
def test_pairwise_is_symmetric_and_each_entry_is_that_pair(lengths, seed):
    texts = corpus(lengths, seed=seed)
    found = pairwise_socm(texts)
    for value in found:
        assert value.shape == (len(texts), len(texts))
        assert value.dtype == DOUBLE
        assert torch.equal(value, value.T)
    scale = max(1.0, *(oracles.spread(x.numpy()) for x in texts))
    for i, x1 in enumerate(texts):
        for j, x2 in enumerate(texts):
            expected = torch.stack(socm(x1, x2))
            torch.testing.assert_close(torch.stack([value[i, j] for value in found]), expected, atol=1e-6 * scale, rtol=1e-6)


@pytest.mark.parametrize("regularization", [0.0, 1e-9])
@pytest.mark.parametrize("elements", [1, 100, 4_000_000])
def test_the_cross_term_is_the_nuclear_norm_however_it_is_cut(monkeypatch, elements, regularization):
    monkeypatch.setattr(nuclear, "GRAM_ELEMENTS", elements)
    first = [covariance_factor(x)[1] for x in corpus([3, 12, 1, 5], 7, seed=0)]
    second = [covariance_factor(x)[1] for x in corpus([2, 2, 9], 7, seed=9)]
    found = cross_nuclear_norms(first, second, regularization=regularization)
    assert found.shape == (4, 3)
    if not regularization:
        torch.testing.assert_close(found, cross_nuclear_norms(second, first).T, atol=1e-6, rtol=1e-6)
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            half = oracles.root((one.T @ one).numpy() + regularization * np.eye(7))
            expected = np.trace(oracles.root(half @ (other.T @ other).numpy() @ half + regularization * np.eye(7)))
            assert float(found[i, j]) == pytest.approx(expected, abs=1e-6)


def test_traces_are_squared_norms_in_double_precision():
    factors = [torch.full((2, 3), 2.0), torch.tensor([[3.0, 4.0, 0.0]])]
    assert traces(factors).tolist() == [24.0, 25.0]
    assert traces(factors).dtype == DOUBLE


def test_no_texts_have_no_pairs_and_one_text_has_itself():
    assert [tuple(value.shape) for value in pairwise_socm([])] == [(0, 0)] * 3
    alone = pairwise_socm([text(5)])
    assert [tuple(value.shape) for value in alone] == [(1, 1)] * 3
    assert float(alone.socm) == pytest.approx(0.0, abs=1e-7)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_texts_of_other_widths_are_refused_with_both():
    for function in (lambda x: socm(x, text(3, 5)), lambda x: pairwise_socm([x, text(3, 5)])):
        with pytest.raises(ValueError, match="4 and 5 dimensions"):
            function(text(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_mean_that_is_zero_but_for_rounding_or_not_finite_and_an_empty_text_are_refused(dtype):
    tokens, fine = text(40, 16, dtype=dtype), text(7, 16, 1, dtype=dtype)
    centred = tokens - tokens.mean(0)
    assert 0 < float(centred.mean(0).norm()) < 1e-5
    for function in (lambda x: socm(x, fine), lambda x: socm(fine, x), lambda x: pairwise_socm([fine, x])):
        for wrong in (centred, math.nan * tokens, math.inf * tokens):
            with pytest.raises(ValueError, match="zero"):
                function(wrong)
        with pytest.raises(ValueError, match="token"):
            function(tokens[:0])
        assert all(torch.isfinite(value).all() for value in function(centred + 1e-3))
