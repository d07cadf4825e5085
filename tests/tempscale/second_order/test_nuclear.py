"""Nuclear norms of cross blocks, sixteen at a time in SIMD lanes, against numpy's float64 singular values of each block."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.measures import pairwise_socm
from tempscale.second_order import nuclear
from tempscale.second_order.bidiagonal import nuclear_norms
from tempscale.second_order.nuclear import all_nuclear_norms, cross_nuclear_norms, paired_nuclear_norms

LANES = 16
seeds = st.integers(0, 2**32)


def random(rows, columns, seed=0, rank=None):
    """A float32 matrix of the given rank and of Frobenius norm about 1."""
    generator = np.random.default_rng(seed)
    rank = min(rows, columns) if rank is None else rank
    product = generator.standard_normal((rows, rank)) @ generator.standard_normal((rank, columns))
    return (product / max(1, rows * columns * rank) ** 0.5).astype(np.float32)


def exact(block):
    return float(np.linalg.svd(np.asarray(block, dtype=np.float64), compute_uv=False).sum()) if np.size(block) else 0.0


def allowed(block):
    """Rounding of float32 reflections, which grows with their number; then what is dropped below 1e-15."""
    block = np.asarray(block, dtype=np.float64)
    return (1e-6 + 1e-8 * min(block.shape)) * np.linalg.norm(block) + 4e-15 * min(block.shape)


def in_lanes(groups):
    """The kernel's norms of groups of sixteen matrices, all of as many columns: (groups, 16)."""
    stacked = [np.stack(group, axis=-1).astype(np.float32) for group in groups]
    starts = np.cumsum([0, *(len(group) for group in stacked)])
    flat = np.concatenate([group.ravel() for group in stacked])
    norms = np.full(len(groups) * LANES, np.nan)
    nuclear_norms(flat, starts.astype(np.int64), stacked[0].shape[1], 0.0, norms)
    return norms.reshape(-1, LANES)


def factors(ranks, dim=24, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rank, dim, generator=generator, dtype=torch.float64).to(dtype) / (dim * max(1, rank)) ** 0.5
        for rank in ranks
    ]


def expected(first, second):
    """The norm of every pair's block, formed and decomposed in float64, with what float32 may be away from it."""
    first, second = ([factor.double().numpy() for factor in each] for each in (first, second))
    found = np.array([[exact(one @ other.T) for other in second] for one in first]).reshape(len(first), len(second))
    # The product itself is rounded relative to ‖F₁‖‖F₂‖, which may be above the norm of the block.
    size = np.array([[np.linalg.norm(one) * np.linalg.norm(other) for other in second] for one in first])
    return found, 1e-6 * size.reshape(found.shape) + 1e-12


def assert_right(found, first, second):
    value, slack = expected(first, second)
    assert found.shape == value.shape
    assert found.dtype == torch.float64
    assert (np.abs(found.numpy() - value) <= slack).all()


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


# --- sixteen blocks ---------------------------------------------------------------------------------------------------

SHAPES = [
    (1, 1), (1, 2), (2, 1), (1, 9), (9, 1), (2, 2), (3, 5), (5, 3), (4, 4), (7, 8), (8, 7), (16, 17), (33, 32), (12, 40),
    (40, 12), (64, 64),
]  # fmt: skip
LONG = [(200, 200, 1), (200, 200, 5), (384, 384, 20), (384, 384, 384), (512, 130, 130), (130, 512, 7)]
"""Shapes and ranks of the blocks of long texts."""


@pytest.mark.parametrize(("rows", "columns", "rank"), [*((*shape, rank) for shape in SHAPES for rank in (None, 1)), *LONG])
def test_every_shape_equals_the_singular_values(rows, columns, rank):
    group = [random(rows, columns, seed, rank) for seed in range(LANES)]
    found = in_lanes([group])[0]
    for norm, block in list(zip(found, group, strict=True))[:: 5 if rows > 64 else 1]:
        assert norm == pytest.approx(exact(block), abs=allowed(block))
    assert len(set(found)) == LANES, "each lane has its own matrix"


def test_matrices_worked_by_hand():
    by_hand = {
        "diagonal, signs and all": ([[3, 0], [0, -4]], 7),
        "one column": ([[3, 0], [4, 0]], 5),
        "one row": ([[0, 0], [5, 12]], 13),
        "all ones": ([[1, 1], [1, 1]], 2),
        "a rotation": ([[0, 1], [-1, 0]], 2),
        "a shear": ([[1, 1], [0, 1]], 5**0.5),  # σ₁σ₂ = 1 and σ₁² + σ₂² = 3.
        "zero": ([[0, 0], [0, 0]], 0),
    }
    group = [np.array(block, np.float32) for block, _ in by_hand.values()]
    found = in_lanes([group + [np.eye(2, dtype=np.float32)] * (LANES - len(group))])[0]
    assert found[: len(group)].tolist() == pytest.approx([value for _, value in by_hand.values()], abs=1e-6)
    assert found[len(group) :].tolist() == [2.0] * (LANES - len(group))


def test_blocks_of_other_heights_follow_one_another():
    # 0 rows stand for a text whose factor has none, also at the end of what is given.
    heights = [0, 1, 5, 0, 6, 7, 30, 0]
    groups = [[random(rows, 6, seed) for seed in range(LANES)] for rows in heights]
    found = in_lanes(groups)
    for norms, group in zip(found, groups, strict=True):
        assert norms.tolist() == pytest.approx([exact(block) for block in group], abs=1e-6)


def awkward(rows, columns, seed):
    block = random(rows, columns, seed)
    spread = 10.0 ** np.linspace(-20, 0, columns)
    one = random(rows, columns, seed, 1)
    return {
        "zero": 0 * block,
        "zero first column": block * (np.arange(columns) > 0),
        "zero last column": block * (np.arange(columns) < columns - 1),
        "every other column zero": block * (np.arange(columns) % 2),
        "zero rows": block * (np.arange(rows) % 3 > 0)[:, None],
        "columns alike": np.repeat(block[:, :1], columns, axis=1),
        "rows in pairs alike": block[np.arange(rows) // 2],
        "rank one": one,
        "rank one and a little": one + 1e-6 * block,
        "one entry": np.where(np.arange(rows * columns).reshape(rows, columns) == rows * columns - 1, 0.3, 0.0),
        "diagonal": np.eye(rows, columns) * spread,
        "constant": np.full((rows, columns), 0.1),
        "columns over twenty decades": block * spread,
        "and the other way": block * spread[::-1],
        "triangular": np.triu(block),
        "tiny": 1e-20 * block,
    }


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (5, 11), (23, 9), (48, 48)])
def test_awkward_blocks_side_by_side_equal_the_singular_values(rows, columns):
    cases = {name: np.asarray(block, np.float32) for name, block in awkward(rows, columns, 3).items()}
    assert len(cases) == LANES
    for name, norm in zip(cases, in_lanes([list(cases.values())])[0], strict=True):
        assert norm == pytest.approx(exact(cases[name]), abs=allowed(cases[name])), name
        assert norm >= 0


@st.composite
def over_decades(draw):
    """Low rank, its columns and perhaps its rows scaled by anything from 1e-20 to 1: squares underflow in float32."""
    rows, columns = draw(st.integers(1, 47)), draw(st.integers(1, 47))
    exponents = st.one_of(st.just(0.0), st.floats(-20, 0), st.floats(-20, -17), st.floats(-16, -14))
    block = random(rows, columns, draw(seeds), draw(st.integers(1, min(rows, columns)))).astype(np.float64)
    block *= 10.0 ** np.array(draw(st.lists(exponents, min_size=columns, max_size=columns)))
    if draw(st.booleans()):
        block *= 10.0 ** np.array(draw(st.lists(exponents, min_size=rows, max_size=rows)))[:, None]
    return block.astype(np.float32)


@settings(max_examples=400, deadline=None)
@given(over_decades(), seeds)
def test_entries_over_twenty_decades_equal_the_singular_values(block, seed):
    rows, columns = block.shape
    others = [random(rows, columns, seed + k) for k in range(LANES - 2)]
    found = in_lanes([[block, *others, block]])[0]
    assert found[0] == found[-1] == pytest.approx(exact(block), abs=allowed(block))


def bidiagonal(size, generator):
    """A matrix that is bidiagonal already, with entries of order one, far below the rounding of float32, and of zero."""
    most, least = generator.uniform(-3, 0, 2 * size), generator.uniform(-19, -10, 2 * size)
    entries = 10.0 ** np.where(generator.integers(0, 3, 2 * size) == 0, most, least)
    entries[generator.integers(0, 6, 2 * size) == 0] = 0
    return (np.diag(entries[:size]) + np.diag(entries[size:-1], 1)).astype(np.float32)


def test_a_lane_that_has_converged_before_the_others_keeps_its_sum():
    """It is iterated with them to the end, with numbers that underflow."""
    generator = np.random.default_rng(0)
    for _ in range(150):
        size = int(generator.integers(6, 13))
        group = [bidiagonal(size, generator) for _ in range(LANES - 2)]
        group += [random(size, size, int(generator.integers(2**32))) for _ in range(2)]
        for found, block in zip(in_lanes([group])[0], group, strict=True):
            assert found == pytest.approx(exact(block), abs=allowed(block))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), seeds)
def test_a_lane_depends_neither_on_its_place_nor_on_the_texts_beside_it(rows, columns, seed):
    generator = np.random.default_rng(seed)
    group = [random(rows, columns, seed + k, int(generator.integers(1, min(rows, columns) + 1))) for k in range(LANES)]
    found = in_lanes([group])[0]
    order = generator.permutation(LANES)
    assert in_lanes([[group[k] for k in order]])[0].tolist() == found[order].tolist()
    beside = [random(rows, columns, seed + 100 + k) for k in range(LANES - 1)]
    for k in (0, 7, 15):
        assert in_lanes([[*beside, group[k]]])[0, -1] == pytest.approx(found[k], abs=1e-6)
        assert in_lanes([[group[k]] + [0 * group[k]] * (LANES - 1)])[0, 0] == pytest.approx(found[k], abs=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e30], ids=["nan", "inf", "-inf", "square above float32"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (4, 1), (6, 5), (5, 6)])
def test_what_is_not_finite_gives_nan_in_its_own_lane_alone(rows, columns, value):
    group = [random(rows, columns, seed) for seed in range(LANES)]
    clean = in_lanes([group])[0]
    for place in ((0, 0), (rows - 1, columns - 1)):
        broken = [block.copy() for block in group]
        broken[4][place] = value
        found = in_lanes([broken])[0]
        assert np.isnan(found[4])
        assert np.delete(found, 4) == pytest.approx(np.delete(clean, 4), abs=1e-6)


# --- many pairs -------------------------------------------------------------------------------------------------------


def test_factors_without_rows_and_no_factors():
    one, nothing = factors([9, 0, 1]), factors([0, 0, 0])
    assert cross_nuclear_norms(nothing, one).tolist() == [[0.0] * len(one)] * 3
    assert all_nuclear_norms(nothing).tolist() == [[0.0] * 3] * 3
    assert cross_nuclear_norms([], one).shape == (0, len(one))
    assert cross_nuclear_norms(one, []).shape == (len(one), 0)
    assert all_nuclear_norms([]).shape == (0, 0)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=40), st.integers(1, 30), seeds)
def test_all_pairs_are_right_symmetric_to_the_bit_and_the_same_in_any_order(ranks, dim, seed):
    texts, few = factors(ranks, dim, seed), factors([3, 0, 26], dim, seed + 1)
    found = all_nuclear_norms(texts)
    assert_right(found, texts, texts)
    assert_right(cross_nuclear_norms(texts, few), texts, few)
    assert_right(cross_nuclear_norms(few, texts), few, texts)
    assert torch.equal(found, found.T)
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(all_nuclear_norms([texts[k] for k in order]), found[order][:, order], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(cross_nuclear_norms(texts, texts), found, atol=1e-6, rtol=1e-6)


@pytest.mark.usefixtures("two_threads")
def test_one_and_two_threads_give_the_same_bytes():
    texts = factors([1 + (11 * k) % 37 for k in range(120)], dim=32, seed=5)
    found = [(all_nuclear_norms(texts), cross_nuclear_norms(texts[:70], texts[40:]))]
    torch.set_num_threads(1)
    found.append((all_nuclear_norms(texts), cross_nuclear_norms(texts[:70], texts[40:])))
    for two, one in zip(*found, strict=True):
        assert torch.equal(two, one)


@pytest.mark.parametrize(
    ("name", "value"), [*(("_CHUNK_ELEMENTS", n) for n in (1, 700, 20_000)), *(("LARGEST_BLOCK", n) for n in (1, 60, 400))]
)
def test_chunks_of_any_size_and_blocks_too_large_for_lanes_give_the_same(monkeypatch, name, value):
    texts = factors([0, *(1 + (11 * k) % 23 for k in range(40))], dim=32, seed=7)
    whole = all_nuclear_norms(texts), cross_nuclear_norms(texts, texts[:19])
    monkeypatch.setattr(nuclear, name, value)
    with mock.patch.object(nuclear, "gram_norms", wraps=nuclear.gram_norms) as by_eigenvalues:
        again = all_nuclear_norms(texts), cross_nuclear_norms(texts, texts[:19])
    assert by_eigenvalues.called == (name == "LARGEST_BLOCK")
    for found, before in zip(again, whole, strict=True):
        torch.testing.assert_close(found, before, atol=1e-6, rtol=0)


def test_blocks_past_the_largest_of_the_lanes_are_right():
    first, second = factors([600, 3], 640, seed=1), factors([520, 600], 640, seed=2)
    assert nuclear.LARGEST_BLOCK < 600 * 520
    assert_right(cross_nuclear_norms(first, second), first, second)


def test_listed_pairs_of_texts_without_rank_and_of_large_ones_are_right():
    texts = factors([0, 600, 520, *(3,) * 57], 640, seed=1)
    first, second = [0, 1, 1, 5], [7, 0, 2, 6]  # So few of all pairs that each is computed alone.
    found = paired_nuclear_norms(texts, first, second).numpy()
    value, slack = (each[first, second] for each in expected(texts, texts))
    assert (np.abs(found - value) <= slack).all()
    assert found[:2].tolist() == [0, 0]
    assert paired_nuclear_norms(texts, [0, 1], [7, 0]).tolist() == [0, 0]


def test_a_regularized_text_of_rank_zero_leaves_the_root_of_epsilon_in_every_dimension():
    """Σ_2 = 0: tr (εI)^½ = d·√ε."""
    found = cross_nuclear_norms(factors([3, 1], dim=4), factors([0, 0], dim=4), regularization=0.01)
    assert found.tolist() == [[pytest.approx(0.4)] * 2] * 2


def test_double_precision_stays_double():
    one, other = factors([3, 9, 1, 20], 48, 1, torch.float64), factors([14, 2], 48, 2, torch.float64)
    for first, second in ((one, one), (one, other), (other, one)):
        # A Gram matrix keeps half the digits of singular values that are 0, and padding adds such.
        found = cross_nuclear_norms(first, second).numpy() - expected(first, second)[0]
        assert np.abs(found).max() < 1e-7
        for i, text in enumerate(first):
            alone = cross_nuclear_norms([text], second[:1]).numpy() - expected([text], second[:1])[0]
            assert np.abs(alone).max() < 1e-10, i
    repeated = [one[3][:2].repeat(8, 1), one[3], torch.zeros(0, 48, dtype=torch.float64)]
    assert np.abs(all_nuclear_norms(repeated).numpy() - expected(repeated, repeated)[0]).max() < 1e-7


def test_columns_taken_from_a_wider_matrix_and_gradients_do_no_harm():
    wide = factors([6, 9], 48, 3)
    strided = [factor[:, ::2].requires_grad_() for factor in wide]
    assert_right(
        all_nuclear_norms(strided), [factor.detach() for factor in strided], [factor.detach() for factor in strided]
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_a_factor_that_is_not_finite_gives_nan_for_its_pairs_alone(value):
    texts = factors([5] * 20)
    clean = all_nuclear_norms(texts)
    texts[3] = texts[3].clone()
    texts[3][2, 1] = value
    others = [k for k in range(20) if k != 3]
    found = all_nuclear_norms(texts)
    assert found[3].isnan().all()
    assert found[:, 3].isnan().all()
    torch.testing.assert_close(found[others][:, others], clean[others][:, others], atol=1e-6, rtol=0)


# --- real token embeddings --------------------------------------------------------------------------------------------


def exact_d_sigma(texts):
    """d_Σ of all pairs from float64 singular values of F₁F₂ᵀ (S2 eqs. 2, 3, 6, 8)."""
    roots = []
    for tokens in texts:
        x = tokens.double().numpy()
        mean = x.mean(0)
        roots.append((x - mean) / np.linalg.norm(mean) / len(x) ** 0.5)
    found = np.zeros((len(roots), len(roots)))
    for i, one in enumerate(roots):
        for j, other in enumerate(roots[:i]):
            traces = (one * one).sum() + (other * other).sum()
            found[i, j] = found[j, i] = (traces - 2 * exact(one @ other.T)) / 4
    return found


def awkward_texts(tokens):
    """One token, one token many times, and 512 tokens of low rank, of which a mean and rounding are all that is left."""
    return [
        tokens[0][:1],
        tokens[1][:1].repeat(40, 1),
        tokens[-1].clone(),
        tokens[-1].flip(0),
        tokens[2].repeat(4, 1),
        tokens[-1][:16].repeat(32, 1),
        tokens[3][:2],
    ]


def test_d_sigma_of_real_texts_equals_float64(token_embeddings):
    texts = token_embeddings[::4]
    texts += awkward_texts(texts)
    found = pairwise_socm(texts).d_sigma
    assert np.abs(found.numpy() - exact_d_sigma(texts)).max() < 1e-5
    assert (found >= 0).all()
    assert float(found.max()) > 0.3
