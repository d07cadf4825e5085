"""The first two moments of a text's token embeddings (S2 eqs. 2, 3, 8, 12, H.2)."""

import math
import re

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.second_order.moments import Scatter, covariance_factor, token_sums

DOUBLE = torch.float64


def text(tokens, dim, seed=0, offset=1.0, dtype=DOUBLE):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(tokens, dim, generator=generator, dtype=DOUBLE) + offset).to(dtype)


def padded(texts, value=float("nan")):
    width = max(map(len, texts))
    hidden = torch.full((len(texts), width, texts[0].shape[1]), value, dtype=texts[0].dtype)
    mask = torch.zeros(len(texts), width, dtype=torch.bool)
    for row, tokens in enumerate(texts):
        hidden[row, : len(tokens)], mask[row, : len(tokens)] = tokens, True
    return hidden, mask


def alone(tokens):
    return token_sums(tokens.unsqueeze(0), torch.ones(1, len(tokens), dtype=torch.bool)).moments()


# --- token moments ----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 8), st.integers(0, 2**32))
def test_token_moments_equal_the_equations_whatever_stands_at_padded_places(lengths, dim, seed):
    texts = [text(n, dim, seed + k) for k, n in enumerate(lengths)]
    for value in (float("nan"), float("inf"), 1e30):
        found = token_sums(*padded(texts, value)).moments()
        for row, tokens in enumerate(texts):
            x = tokens.numpy()
            assert float(found.mean_norm[row]) == pytest.approx(np.linalg.norm(oracles.moments(x)[0]), rel=1e-10)
            assert float(found.spread[row]) == pytest.approx(oracles.spread(x), rel=1e-9, abs=1e-12)
            assert float(found.within_cosine[row]) == pytest.approx(oracles.within_cosine(x), rel=1e-9, abs=1e-12)


def test_two_tokens_worked_by_hand():
    # (3, 0) and (1, 4): μ = (2, 2), ‖μ‖² = 8; deviations (1, −2), (−1, 2): S = 5, S/‖μ‖² = 5/8.
    # cos = 3·1/(3·√17) = 1/√17; all four pairs: (1 + 1 + 2/√17)/4.
    tokens = torch.tensor([[3.0, 0.0], [1.0, 4.0]], dtype=DOUBLE)
    found, (mean, factor) = alone(tokens), covariance_factor(tokens)
    assert float(found.mean_norm) == pytest.approx(8**0.5)
    assert float(found.spread) == pytest.approx(5 / 8)
    assert float(found.within_cosine) == pytest.approx((1 + 17**-0.5) / 2)
    # Over ‖μ‖ = √8 the deviations are ±(1, −2)/√8, each row over √2 once more.
    np.testing.assert_allclose(mean, [0.5**0.5, 0.5**0.5], atol=1e-15)
    np.testing.assert_allclose(factor, np.array([[1, -2], [-1, 2]]) / 4, atol=1e-15)


def test_alike_tokens_have_no_spread_and_cosine_one():
    found = alone(text(1, 6).expand(7, 6))
    assert float(found.spread) == pytest.approx(0.0, abs=1e-30)
    assert float(found.within_cosine) == pytest.approx(1.0)
    assert float(found.mean_norm) > 0.5


def test_one_token_is_its_own_mean_and_has_no_covariance():
    tokens = torch.tensor([[3.0, 4.0]], dtype=DOUBLE)
    found, (mean, factor) = alone(tokens), covariance_factor(tokens)
    assert (float(found.mean_norm), float(found.spread)) == (5.0, 0.0)
    assert float(found.within_cosine) == pytest.approx(1.0)
    assert (mean.tolist(), factor.tolist()) == (pytest.approx([0.6, 0.8]), [[0.0, 0.0]])


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 12), st.integers(0, 2**32), st.floats(1e-3, 1e3))
def test_rotation_order_and_scale_leave_spread_and_cosine(n, seed, scale):
    tokens = text(n, 6, seed)
    rotation = torch.linalg.qr(text(6, 6, seed + 1, offset=0.0)).Q
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    before, after = alone(tokens), alone(scale * tokens[order] @ rotation)
    torch.testing.assert_close(after.spread, before.spread)
    torch.testing.assert_close(after.within_cosine, before.within_cosine)
    torch.testing.assert_close(after.mean_norm, scale * before.mean_norm)


def test_single_precision_keeps_its_digits_far_from_the_origin():
    tokens = text(30, 16, offset=300.0, dtype=torch.float32)
    expected = oracles.spread(tokens.double().numpy())
    assert expected < 1e-4
    assert float(alone(tokens).spread) == pytest.approx(expected, rel=1e-4)


def test_a_token_of_zeros_is_kept_without_a_direction():
    found = alone(torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=DOUBLE))
    assert float(found.within_cosine) == pytest.approx(1 / 4)
    assert float(found.spread) == pytest.approx(1.0)


# --- covariance factor ------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 2**32))
def test_the_factor_gives_the_covariance_over_the_squared_norm_of_the_mean(n, dim, seed):
    tokens = text(n, dim, seed)
    mu, sigma = oracles.moments(tokens.numpy())
    mean, factor = covariance_factor(tokens)
    norm = np.linalg.norm(mu)
    np.testing.assert_allclose(mean, mu / norm, atol=1e-12)
    np.testing.assert_allclose(factor.T @ factor, sigma / norm**2, atol=1e-11 * max(1.0, np.trace(sigma) / norm**2))
    assert factor.shape == (min(n, dim), dim)


@pytest.mark.parametrize("n", [4, 9])
def test_the_covariance_is_differentiable(n):
    # Of few tokens (n ≤ d) and of many (n > d).
    weight = text(5, 5, seed=3, offset=0.0)

    def value(tokens):
        mean, factor = covariance_factor(tokens)
        return (weight * (factor.T @ factor)).sum() + (weight[0] * mean).sum()

    assert torch.autograd.gradcheck(value, text(n, 5).requires_grad_())


@pytest.mark.parametrize(
    "tokens",
    [[[0.0, 0.0]] * 3, [[1.0, -2.0], [-1.0, 2.0]], *([[1.0, value]] * 2 for value in (math.nan, math.inf, -math.inf))],
)
def test_a_mean_that_is_zero_or_not_finite_is_refused(tokens):
    with pytest.raises(ValueError, match="zero"):
        covariance_factor(torch.tensor(tokens))
    assert not torch.isfinite(alone(torch.tensor(tokens)).spread)


EPSILON = {torch.float32: 2.0**-23, DOUBLE: 2.0**-52}
SIZES = [(2, 1), (2, 64), (3, 5), (17, 384), (128, 768), (513, 32), (4096, 8)]


def cancelling(n, dim, share, dtype, seed=0):
    """2n tokens ±x_j, to each of which the same vector is added: ‖μ‖ = share·√n·ε·√tr Σ."""
    tokens = text(n, dim, seed, offset=0.0)
    tokens = torch.cat([tokens, -tokens])
    spread = tokens.square().sum() / len(tokens)
    shift = text(1, dim, seed + 1)[0]
    return (tokens + share * (len(tokens) * spread) ** 0.5 * EPSILON[dtype] * shift / shift.norm()).to(dtype)


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize(("n", "dim"), [(2, 8), (30, 384), (500, 16)])
def test_a_mean_counts_as_zero_below_four_roots_of_n_of_the_precision(n, dim, dtype):
    with pytest.raises(ValueError, match="zero"):
        covariance_factor(cancelling(n, dim, 3.6, dtype))
    mean, factor = covariance_factor(cancelling(n, dim, 4.4, dtype))
    assert float(mean.norm()) == pytest.approx(1, rel=1e-5)
    assert float(factor.double().square().sum()) == pytest.approx(1 / (4.4**2 * 2 * n * EPSILON[dtype] ** 2), rel=0.1)


@pytest.mark.parametrize("dtype", EPSILON)
def test_moments_are_refused_at_twice_that_so_that_a_text_that_has_them_has_a_factor(dtype):
    below, above = (alone(cancelling(30, 64, share, dtype)) for share in (7.2, 8.8))
    assert torch.isnan(below.spread).all()
    assert torch.isfinite(below.mean_norm).all()
    assert torch.isfinite(below.within_cosine).all()
    assert torch.isfinite(above.spread).all()


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize(("n", "dim"), SIZES)
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_tokens_less_their_mean_are_refused_whatever_their_scale(n, dim, dtype, scale):
    tokens = text(n, dim, n, dtype=dtype) * scale
    centred = tokens - tokens.mean(0)
    assert not bool((centred.abs().sum(0) == 0).all())
    with pytest.raises(ValueError, match="zero"):
        covariance_factor(centred)
    assert torch.isnan(alone(centred).spread).all()
    for chunk in (Scatter.of(centred), Scatter.of(centred[: n // 2]).merged(Scatter.of(centred[n // 2 :]))):
        assert torch.isnan(chunk.factor()[0]).all()


@pytest.mark.parametrize("dtype", EPSILON)
@pytest.mark.parametrize(("n", "dim"), SIZES)
def test_tokens_with_nothing_in_common_and_one_large_dimension_are_kept(n, dim, dtype):
    tokens = text(n, dim, n, offset=0.0, dtype=dtype)
    for own in (tokens, 1e8 * tokens, torch.cat([tokens, 30 + tokens[:, :1]], dim=1), tokens[:1].expand(n, dim)):
        assert torch.isfinite(covariance_factor(own)[0]).all()
        assert torch.isfinite(alone(own).spread).all()


@pytest.mark.parametrize("shape", [(0, 4), (4,), (2, 3, 4)])
def test_what_is_no_text_is_refused_with_its_shape(shape):
    with pytest.raises(ValueError, match=re.escape(str(shape))):
        covariance_factor(torch.ones(shape))


@pytest.mark.parametrize("scale", [1e-30, 1e-23, 1e-21, 1e19, 1e30])
@pytest.mark.parametrize("n", [6, 20])
def test_tokens_of_any_scale_have_one_factor(n, scale):
    tokens = text(n, 8, dtype=torch.float32)
    mean, factor = covariance_factor(tokens)
    scaled_mean, scaled = covariance_factor(tokens * scale)
    assert torch.allclose(mean, scaled_mean, atol=1e-6)
    assert torch.allclose(factor.T @ factor, scaled.T @ scaled, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e-23, 1e-20, 1e18, 1e20])
def test_moments_of_tiny_and_huge_tokens_are_right_or_not_a_number(scale):
    tokens = text(12, 16, dtype=torch.float32)
    expected, found = alone(tokens), alone(tokens * scale)
    assert torch.allclose(found.within_cosine, expected.within_cosine, rtol=1e-5)
    assert torch.allclose(found.mean_norm.double() / scale, expected.mean_norm.double(), rtol=1e-5)
    assert torch.isnan(found.spread) or torch.allclose(found.spread, expected.spread, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 30.0, 1e5])
def test_ordinary_tokens_keep_every_bit(scale):
    tokens = text(40, 384, dtype=torch.float32) * scale
    sums = token_sums(tokens[None], torch.ones(1, 40, dtype=torch.bool))
    tiny = torch.finfo(torch.float32).tiny
    assert torch.equal(sums.units[0], torch.nn.functional.normalize(tokens, dim=-1, eps=tiny)[None].sum(1)[0])
    assert torch.equal(sums.moments().mean_norm, torch.linalg.vector_norm(sums.mean, dim=-1))
    mean, factor = covariance_factor(tokens)
    norm = torch.linalg.vector_norm(tokens.mean(0))
    assert torch.equal(mean, tokens.mean(0) / norm)
    assert torch.equal(factor, (tokens - tokens.mean(0)) / (norm * 40**0.5))
