"""Polar iterations on the CPU, where their algorithm is the same as on a GPU, against numpy's float64 singular values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tempscale.second_order import polar
from tempscale.second_order.moments import covariance_factor
from tempscale.second_order.polar import Stacked, nuclear_norms, quintics

DOUBLE = torch.float64


def polar_norms(one, other):
    return polar.polar_norms(Stacked.of(one), Stacked.of(other))


seeds = st.integers(0, 2**32)


def exact(block):
    return float(np.linalg.svd(np.asarray(block, dtype=np.float64), compute_uv=False).sum()) if np.size(block) else 0.0


def low_rank(rows, columns, rank, seed=0):
    """Of Frobenius norm 1."""
    generator = np.random.default_rng(seed)
    block = generator.standard_normal((rows, rank)) @ generator.standard_normal((rank, columns))
    return torch.from_numpy(block / np.linalg.norm(block))


# --- the polynomials --------------------------------------------------------------------------------------------------


def value(step, x):
    a, b, c = step
    return a * x + b * x**3 + c * x**5


# At 1e-4 and 1e-9 rounding moves the points of the last exchange for ever: it ends after its 200 rounds.
@pytest.mark.parametrize("smallest", sorted({*polar.SMALLEST.values(), 1e-4, 1e-9}))
def test_each_quintic_is_the_closest_to_one_on_what_the_last_has_left(smallest):
    low, high = smallest, 1.0
    for step in quintics(smallest)[:-3]:
        top = high * polar.MARGIN
        _, error = polar.closest_to_one(low, top)
        a, b, c = step
        turns = np.sqrt(np.roots([5 * c, 3 * b, a]))
        assert low < min(turns) < max(turns) < top
        # Four points of alternating, equal distance: by Chebyshev no odd quintic stays closer.
        points = np.array([low, *sorted(turns), top])
        assert value(step, points) - 1 == pytest.approx(error * np.array([-1, 1, -1, 1]), abs=1e-13)
        grid = np.concatenate([np.geomspace(low, top, 20_001), np.linspace(low, top, 20_001)])
        assert np.abs(value(step, grid) - 1).max() <= error + 1e-13
        low, high = 1 - error, 1 + error
    assert high - 1 < 0.02


@pytest.mark.parametrize(("smallest", "steps"), [(1e-5, 12), (1e-10, 20)])
def test_all_steps_together_make_every_singular_value_one(smallest, steps):
    assert len(quintics(smallest)) == steps
    inside, below = np.geomspace(smallest, 1.0, 100_001), np.geomspace(smallest * 1e-6, smallest, 1001)
    for step in quintics(smallest):
        inside, below = value(step, inside), value(step, below)
    assert np.abs(inside - 1).max() < 1e-14
    # A smaller one counts in part, and never more than in full.
    assert (below > 0).all()
    assert below.max() < 1 + 1e-14


def test_many_texts_are_padded_by_as_few_operations_as_few():
    class Counted(TorchDispatchMode):
        operations = 0

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            Counted.operations += 1
            return function(*arguments, **(keywords or {}))

    found = []
    for texts in (3, 300):
        factors = [torch.full((1 + k % 5, 4), 1.0 + k) for k in range(texts)]
        stacked, Counted.operations = Stacked.of(factors), 0
        with Counted():
            padded = stacked.part(slice(1, None)).padded()
        found.append(Counted.operations)
        assert torch.equal(padded, torch.nn.utils.rnn.pad_sequence(factors[1:], batch_first=True))
    assert 0 < found[0] == found[1] < 15


def test_the_last_steps_are_the_classical_ones():
    assert quintics(1e-5)[-3:] == ((15 / 8, -5 / 4, 3 / 8),) * 3


# --- single blocks ----------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 24), st.integers(1, 24), st.integers(1, 24), st.floats(-12, 0), seeds)
def test_double_precision_equals_the_singular_values(rows, columns, rank, decades, seed):
    block = low_rank(rows, columns, min(rank, rows, columns), seed) * torch.logspace(decades, 0, columns, dtype=DOUBLE)
    assert float(nuclear_norms(block[None])) == pytest.approx(exact(block), abs=1e-8 * float(block.norm()))
    single = block.float()
    # Each step rounds what the one before has left; what is shipped iterates in float64.
    assert float(nuclear_norms(single[None])) == pytest.approx(exact(single), abs=3e-5 * float(block.norm()))


AWKWARD = {
    "long and full": low_rank(384, 384, 384),
    "long and of low rank": low_rank(384, 384, 5),
    "rank one": low_rank(200, 200, 1),
    "tall": low_rank(512, 30, 30),
    "wide": low_rank(30, 512, 30),
    "one row": low_rank(1, 100, 1),
    "one column": low_rank(100, 1, 1),
    "one entry": torch.full((1, 1), -2.0, dtype=DOUBLE),
    "orthogonal": torch.linalg.qr(low_rank(64, 64, 64)).Q / 8,
    "zeros around it": torch.nn.functional.pad(low_rank(20, 30, 20), (5, 40, 60, 3)),
    "falling fast": torch.diag(torch.logspace(0, -18, 60, dtype=DOUBLE)),
    "tiny": 1e-15 * low_rank(30, 30, 30),
}


@pytest.mark.parametrize("block", AWKWARD.values(), ids=AWKWARD)
def test_awkward_blocks_equal_the_singular_values(block):
    size = float(block.norm())
    assert float(nuclear_norms(block[None])) == pytest.approx(exact(block), abs=1e-8 * size)
    single = block.float()
    assert float(nuclear_norms(single[None])) == pytest.approx(exact(single), abs=5e-6 * size)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_blocks_worked_by_hand(dtype):
    blocks = torch.tensor(
        [[[3, 0], [0, -4]], [[3, 0], [4, 0]], [[1, 1], [1, 1]], [[1, 1], [0, 1]], [[0, 0], [0, 0]]], dtype=dtype
    )
    assert nuclear_norms(blocks).tolist() == pytest.approx(
        [7, 5, 2, 5**0.5, 0], abs=1e-5 if dtype == torch.float32 else 1e-12
    )
    assert nuclear_norms(blocks.mT).tolist() == pytest.approx(nuclear_norms(blocks).tolist(), rel=1e-6)
    assert nuclear_norms(blocks)[-1] == 0


def test_a_block_does_not_depend_on_its_batch_and_nan_stays_its_own():
    blocks = torch.stack([low_rank(12, 9, 1 + k, k) for k in range(8)])
    found = nuclear_norms(blocks)
    assert found.tolist() == pytest.approx([float(nuclear_norms(block[None])) for block in blocks], abs=1e-12)
    blocks[2, 3, 4] = float("nan")
    broken = nuclear_norms(blocks)
    assert broken[2].isnan()
    others = torch.arange(8) != 2
    assert broken[others].tolist() == pytest.approx(found[others].tolist(), abs=1e-12)


# --- lists of factors -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short_factors(token_embeddings):
    """Factors of real texts below 130 tokens and of awkward ones, by ascending rank."""
    tokens = token_embeddings
    awkward = [
        tokens[0][:1],
        tokens[1][:1].repeat(9, 1),
        tokens[3].repeat(3, 1),
        tokens[5].clone(),
        tokens[-1][:16].repeat(8, 1),
    ]
    factors = [covariance_factor(x)[1] for x in [*tokens[:14:2], *awkward]]
    assert max(map(len, factors)) < 130
    return sorted([torch.zeros(0, 384), *factors], key=len)


@pytest.fixture(scope="module")
def long_factors(token_embeddings):
    """Two real texts of 512 tokens, and one that says the same sixteen tokens over and over."""
    longest = [x for x in token_embeddings if len(x) == 512][:2]
    factors = [covariance_factor(x)[1] for x in [*longest, longest[0][:16].repeat(32, 1)]]
    assert [len(factor) for factor in factors] == [384, 384, 384]
    return factors


def worst(found, first, second):
    values = [[exact(one.double() @ other.double().mT) for other in second] for one in first]
    assert found.dtype == DOUBLE
    assert found.shape == (len(first), len(second))
    return np.abs(found.numpy() - np.array(values)).max()


@pytest.mark.proof
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(DOUBLE, marks=pytest.mark.soak)])
def test_real_texts_equal_float64(short_factors, long_factors, dtype):
    # d_Σ has half of it. In single precision the product is rounded; the iteration, in float64, adds nothing to that.
    short, long = ([factor.to(dtype) for factor in each] for each in (short_factors, long_factors))
    error = 5e-6 if dtype == torch.float32 else 1e-8
    assert worst(polar_norms(short, short), short, short) < min(error, 2e-6)
    assert worst(polar_norms(short[::3], long), short[::3], long) < error
    found = polar_norms(long[::2], long)
    assert worst(found, long[::2], long) < error
    assert float(found.min()) > 0.3


@pytest.mark.parametrize("elements", [1, 3000])
def test_the_size_of_a_batch_changes_nothing(monkeypatch, elements):
    generator = torch.Generator().manual_seed(0)
    factors = [torch.randn(k // 2, 24, generator=generator) / (1 + k) for k in range(30)]
    whole = polar_norms(factors, factors[5:21])
    monkeypatch.setattr(polar, "BATCH_ELEMENTS", elements)
    torch.testing.assert_close(polar_norms(factors, factors[5:21]), whole, atol=1e-7, rtol=0)


def test_factors_without_rows_give_zero():
    nothing, one = torch.zeros(0, 4), torch.ones(2, 4)
    assert polar_norms([nothing, one], [nothing, one]).tolist() == [[0, 0], [0, pytest.approx(8.0)]]
    assert polar_norms([nothing, nothing], [nothing]).tolist() == [[0], [0]]
    pairs = polar.pair_norms([nothing, one], np.array([0, 0, 1]), np.array([0, 1, 1]))
    assert pairs.tolist() == [0, 0, pytest.approx(8.0)]
    assert polar.pair_norms([nothing], np.array([0]), np.array([0])).tolist() == [0]
