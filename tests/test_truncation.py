"""Covariance factors cut to fewer rows: what is certified holds for every pair, against numpy's float64 singular values."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.moments import covariance_factor
from tempscale.socm import pairwise_socm
from tempscale.truncation import truncate

DOUBLE = torch.float64
seeds = st.integers(0, 2**32)
tolerances = st.sampled_from([1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0])
ROUNDING = {torch.float32: 1e-6, DOUBLE: 1e-9}


def nuclear(one, other):
    block = one.double().numpy() @ other.double().numpy().T
    return float(np.linalg.svd(block, compute_uv=False).sum()) if block.size else 0.0


def singular_values(factor):
    return np.linalg.svd(factor.double().numpy(), compute_uv=False) if factor.numel() else np.zeros(0)


def with_spectrum(spectrum, dim, generator, dtype):
    """A factor of these singular values along random directions."""
    spectrum = np.asarray(spectrum, np.float64)[:dim]
    left, right = (np.linalg.qr(generator.standard_normal((n, len(spectrum))))[0] for n in (len(spectrum), dim))
    return torch.from_numpy((left * spectrum) @ right.T).to(dtype)


@st.composite
def collections(draw):
    """Factors whose spectra fall slowly, fast, not at all, or are zero in part."""
    generator = np.random.default_rng(draw(seeds))
    dtype, dim = draw(st.sampled_from([torch.float32, DOUBLE])), draw(st.integers(1, 16))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        rank = draw(st.integers(0, 20))
        falls = draw(st.sampled_from(["power", "geometric", "flat", "random", "zero"]))
        steps = np.arange(rank)
        spectrum = {
            "power": (1.0 + steps) ** -draw(st.floats(0.3, 3)),
            "geometric": draw(st.floats(0.05, 0.95)) ** steps,
            "flat": np.ones(rank),
            "random": np.sort(generator.random(rank))[::-1] ** 3,
            "zero": np.zeros(rank),
        }[falls]
        found.append(with_spectrum(draw(st.floats(1e-3, 1.0)) * spectrum, dim, generator, dtype))
    return found


def assert_certified(factors, tolerance):
    cut = truncate(factors, tolerance)
    assert len(cut.factors) == len(factors)
    assert cut.loss.dtype == DOUBLE
    assert (cut.loss >= 0).all()
    assert (cut.loss <= tolerance / 2).all()
    for before, after, loss in zip(factors, cut.factors, cut.loss, strict=True):
        assert after.dtype == before.dtype
        assert len(after) <= len(before)
        assert after is before or len(after) < len(before)
        assert loss == 0 or after is not before
        scale = ROUNDING[before.dtype] * max(1.0, float(before.norm()) ** 2)
        for other, other_after, other_loss in zip(factors, cut.factors, cut.loss, strict=True):
            lost = (nuclear(before, other) - nuclear(after, other_after)) / 2
            slack = scale * max(1.0, float(other.norm()) ** 2)
            assert -slack <= lost <= float(loss + other_loss) + slack
            # One side alone is within its own half.
            assert -slack <= (nuclear(before, other) - nuclear(after, other)) / 2 <= float(loss) + slack
    return cut


@settings(max_examples=100, deadline=None)
@given(collections(), tolerances)
def test_what_is_certified_holds_for_every_pair(factors, tolerance):
    assert_certified(factors, tolerance)


@settings(max_examples=60, deadline=None)
@given(collections(), tolerances)
def test_a_cut_factor_keeps_the_largest_singular_values(factors, tolerance):
    for before, after in zip(factors, truncate(factors, tolerance).factors, strict=True):
        largest = singular_values(before)[: len(after)]
        assert singular_values(after)[: len(largest)] == pytest.approx(largest, abs=1e-6)
        # Of FᵀF too, hence along its own directions: what is left out is orthogonal to what stays.
        rest = before.double().mT @ before.double() - after.double().mT @ after.double()
        assert float((after.double() @ rest).norm()) == pytest.approx(0.0, abs=1e-5 * max(1.0, float(before.norm()) ** 3))


@settings(max_examples=40, deadline=None)
@given(collections())
def test_a_larger_tolerance_cuts_more(factors):
    steps = [truncate(factors, tolerance) for tolerance in (0.0, 1e-5, 1e-3, 1e-2, 0.1, 1.0, 1e6)]
    for less, more in itertools.pairwise(steps):
        assert all(len(a) >= len(b) for a, b in zip(less.factors, more.factors, strict=True))
        assert (less.loss <= more.loss).all()
    assert {len(factor) for factor in steps[-1].factors} == {0}


def test_a_cut_worked_by_hand():
    # S = (1, 0.5, 0.2). Text 1 without its last: 0.1·1 = 0.1; without two: 0.5·1 + 0.1·0.5 = 0.55.
    # Text 2 without its last: 0.2·1. Within 0.12 text 1 loses one row, b₁/2 = 0.05, and text 2 none.
    one, other = (
        torch.diag(torch.tensor([1, 0.5, 0.1], dtype=DOUBLE)),
        torch.diag(torch.tensor([0.8, 0.4, 0.2], dtype=DOUBLE)),
    )
    cut = truncate([one, other], 0.12)
    assert [len(factor) for factor in cut.factors] == [2, 3]
    assert cut.loss.tolist() == [pytest.approx(0.05), 0.0]
    assert cut.factors[1] is other
    # ‖F₁F₂ᵀ‖_* = 0.8 + 0.2 + 0.02, of which the cut leaves 1: d_Σ grows by 0.01.
    assert (nuclear(one, other) - nuclear(cut.factors[0], other)) / 2 == pytest.approx(0.01)
    # Within 0.6 text 1 loses two rows, 0.55/2, and text 2 also: 0.4·1 + 0.2·0.5 = 0.5.
    wider = truncate([one, other], 0.6)
    assert [len(factor) for factor in wider.factors] == [1, 1]
    assert wider.loss.tolist() == pytest.approx([0.275, 0.25])
    torch.testing.assert_close(wider.factors[0].abs(), one[:1])


def test_the_bound_is_reached():
    # Two texts alike: what the cut loses is s₃², and both certify s₃·S₁, so S must be flat for equality.
    flat = torch.eye(3, 5, dtype=DOUBLE)
    cut = truncate([flat, flat[:1]], 1.2)
    assert [len(factor) for factor in cut.factors] == [2, 0]
    assert cut.loss.tolist() == pytest.approx([0.5, 0.5])
    assert (nuclear(flat, flat) - nuclear(cut.factors[0], flat)) / 2 == pytest.approx(0.5)


def test_without_a_tolerance_the_factors_come_back_themselves():
    factors = [torch.randn(4, 6), torch.zeros(3, 6), torch.zeros(0, 6)]
    cut = truncate(factors, 0)
    assert all(after is before for before, after in zip(factors, cut.factors, strict=True))
    assert cut.loss.tolist() == [0.0, 0.0, 0.0]
    assert truncate([], 0.1).factors == []
    assert truncate([], 0.1).loss.shape == (0,)


@pytest.mark.parametrize("tolerance", [-1e-9, -1.0, float("nan"), float("-inf")])
def test_a_tolerance_that_is_none_is_refused(tolerance):
    for function in (
        lambda: truncate([torch.eye(2)], tolerance),
        lambda: pairwise_socm([torch.ones(2, 2)], tolerance=tolerance),
    ):
        with pytest.raises(ValueError, match=r"tolerance \S+ must be 0 \(exact\) or above"):
            function()


def test_a_tolerance_beside_a_regularization_is_refused():
    with pytest.raises(
        ValueError, match="tolerance belongs to the exact value; leave it at 0 where regularization is given"
    ):
        pairwise_socm([torch.ones(2, 2), torch.eye(2)], regularization=1e-9, tolerance=1e-3)


# --- d_Σ of texts -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts(token_embeddings):
    """Real texts, three of more than 384 tokens among them, and awkward ones."""
    tokens = token_embeddings
    assert sum(len(x) > 384 for x in tokens[-4:]) >= 3
    awkward = [tokens[0][:1], tokens[1][:1].repeat(9, 1), tokens[-1].clone(), tokens[-1][:16].repeat(32, 1)]
    return [*tokens[:-4:4], *tokens[-4:], *awkward]


@pytest.fixture(scope="module")
def exact(texts):
    return pairwise_socm(texts)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-2])
def test_real_texts_stay_within_what_is_certified(texts, exact, tolerance):
    cut = pairwise_socm(texts, tolerance=tolerance)
    grown, error = cut.d_sigma - exact.d_sigma, cut.d_sigma_error
    assert error.dtype == DOUBLE
    assert torch.equal(error, error.T)
    assert (error.diagonal() == 0).all()
    assert (error >= 0).all()
    assert float(error.max()) <= tolerance
    assert float(error.max()) > 0
    assert float(grown.min()) > -2e-6
    assert (grown <= error + 2e-6).all()
    assert torch.equal(cut.d_mu, exact.d_mu)
    assert torch.equal(cut.d_sigma, cut.d_sigma.T)
    assert (cut.d_sigma >= 0).all()
    assert float(exact.d_sigma_error.max()) == 0


def test_long_texts_lose_rows_though_their_spectra_fall_slowly(texts):
    factors = [covariance_factor(x)[1] for x in texts]
    for tolerance, most in ((1e-2, 380), (0.1, 350)):
        cut = truncate(factors, tolerance)
        long = [len(after) for before, after in zip(factors, cut.factors, strict=True) if len(before) == 384]
        assert len(long) >= 3
        assert max(long) < most
        # 16 tokens over and over are at most 16 rows; one token is none.
        assert len(cut.factors[-1]) <= 16
        assert len(cut.factors[-4]) == 0


def test_the_certificate_of_long_texts_holds_in_float64(texts):
    assert_certified([covariance_factor(x)[1] for x in [*texts[:3], *texts[-6:-3], texts[-1]]], 1e-2)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=5), tolerances, st.sampled_from([torch.float32, DOUBLE]), seeds)
def test_any_texts_stay_within_what_is_certified(lengths, tolerance, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randn(n, 6, generator=generator, dtype=DOUBLE).add(1).to(dtype) for n in lengths]
    exact, cut = pairwise_socm(texts), pairwise_socm(texts, tolerance=tolerance)
    slack = 1e-6 * max(1.0, float(exact.d_sigma.max()))
    assert (cut.d_sigma >= exact.d_sigma - slack).all()
    assert (cut.d_sigma <= exact.d_sigma + cut.d_sigma_error + slack).all()
    assert float(cut.d_sigma_error.max()) <= tolerance
