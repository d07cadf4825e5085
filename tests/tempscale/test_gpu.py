"""The same identities on a GPU, in bfloat16 and float16, under each attention kernel; SOCM; cosines. Skipped without one.

Tolerances of attention: twice what the same precision costs attention by hand against float64, as in test_schedules.py.
"""

import numpy as np
import pytest
import torch
from attaching import LENGTHS, LOG, STEPS, batch, head_taus, layer_taus, random_ids, run
from by_hand_attention import by_hand
from torch.nn.attention import SDPBackend, sdpa_kernel

from tempscale.collapse import gpu
from tempscale.collapse.aggregates import Block
from tempscale.collapse.cosine import cosine_tile, rounded, rounding_error, truncation_error
from tempscale.measures import pairwise_socm
from tempscale.second_order import polar
from tempscale.second_order.moments import covariance_factor
from tempscale.second_order.nuclear import paired_nuclear_norms
from tempscale.second_order.socm import cross_nuclear_norms
from tempscale.temperature.attach import attach, detach
from tempscale.temperature.fold import fold
from tempscale.temperature.schedule import Temperature
from tempscale.temperature.verify import verify
from tempscale_jobs.diagnose.looks import Glance

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU at hand")
HALVES = [torch.bfloat16, torch.float16]
# What takes a mask; flash attention takes none and is tested on one text alone.
MASKED = [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


def on_gpu(inputs):
    return {name: value.cuda() for name, value in inputs.items()}


def distance(found, expected):
    return float((found.cpu().double() - expected).norm() / expected.norm())


def expectation(tiny_model, family, dtype, tau, text):
    """(what float64 gives, what attention by hand in this precision on this GPU is away from it)"""
    ids = {"input_ids": torch.tensor([text])}
    plain = tiny_model(family).double()
    with by_hand(plain, tau):
        exact = run(plain, ids)[0]
    half = tiny_model(family).to("cuda", dtype)
    with by_hand(half, tau):
        return exact, distance(run(half, on_gpu(ids))[0], exact)


def test_looks_into_layers_are_those_of_the_cpu(tiny_model, family):
    """Both lack the same figures: the embedding layer has few."""
    ids = list(range(7, 40))
    own, other = Glance().of(tiny_model(family), ids), Glance().of(tiny_model(family).to("cuda"), ids)
    for found, expected in zip([*other[0], *other[1]], [*own[0], *own[1]], strict=True):
        known = {name: value for name, value in expected.items() if value is not None}
        assert {name: value for name, value in found.items() if value is not None} == pytest.approx(known, rel=1e-3)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("tau", [0.5, 0.8])
@pytest.mark.parametrize("change", [attach, fold])
def test_attach_and_fold_equal_attention_by_hand(tiny_model, family, dtype, tau, change):
    (text,) = random_ids(tiny_model(family), (33,))
    exact, rounding = expectation(tiny_model, family, dtype, tau, text)
    model = change(tiny_model(family).to("cuda", dtype), tau)
    found = run(model, {"input_ids": torch.tensor([text], device="cuda")})[0]
    assert found.dtype == dtype
    assert distance(found, exact) < 2 * rounding
    assert rounding < 0.25


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("backend", [*MASKED, SDPBackend.FLASH_ATTENTION], ids=str)
def test_under_each_kernel(tiny_model, dtype, backend):
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 64}  # Heads of 64, as kernels want them.
    build = lambda family: tiny_model(family, **sizes)  # noqa: E731
    (text,) = random_ids(build("bert"), (40,))
    exact, rounding = expectation(lambda family: build(family), "bert", dtype, 0.5, text)
    for model in (attach(build("bert").to("cuda", dtype), 0.5), fold(build("bert").to("cuda", dtype), 0.5)):
        with sdpa_kernel(backend):
            assert distance(run(model, {"input_ids": torch.tensor([text], device="cuda")})[0], exact) < 2 * rounding


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("schedule", [STEPS, LOG], ids=["steps", "log"])
def test_each_text_of_a_batch_has_its_own_temperature(tiny_model, family, schedule, side):
    model = attach(tiny_model(family).cuda(), schedule)
    plain = tiny_model(family)
    texts = random_ids(plain, LENGTHS)
    inputs = batch(plain, texts, side)
    found = run(model, on_gpu(inputs)).cpu()
    for row, text in enumerate(texts):
        expected = run(attach(tiny_model(family), schedule), {"input_ids": torch.tensor([text])})[0]
        assert distance(found[row][inputs["attention_mask"][row].bool()], expected.double()) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_verify_passes_on_every_family(tiny_model, family, dtype):
    model = tiny_model(family).to("cuda", dtype)
    for schedule in (
        Temperature(0.5),
        STEPS,
        Temperature.by_layer(layer_taus(model)),
        Temperature.by_head(head_taus(model)),
    ):
        verify(attach(model, schedule))
        detach(model)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
def test_verify_passes_on_the_real_model(minilm, dtype):
    from transformers import AutoModel

    verify(attach(AutoModel.from_pretrained(minilm, dtype=dtype).cuda().eval(), 0.8))


# --- second-order collapse --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed_texts(token_embeddings):
    """Real texts of a few to 512 tokens, and one token, tokens alike, low rank, and a text twice."""
    tokens = token_embeddings
    awkward = [tokens[0][:1], tokens[1][:1].repeat(40, 1), tokens[2].repeat(4, 1), tokens[-1][:16].repeat(32, 1), tokens[-1]]
    return [*tokens[:-3:2], *tokens[-3:], *awkward]


@pytest.fixture(scope="module")
def in_double(mixed_texts):
    return pairwise_socm([x.double() for x in mixed_texts])


def assert_near(found, expected, error=1e-5):
    for value, exact in zip(found, expected, strict=True):
        assert value.device.type == "cpu"
        assert value.dtype == torch.float64
        assert torch.isfinite(value).all()
        assert (value >= 0).all()
        assert float((value - exact).abs().max()) <= error


def test_socm_of_all_pairs_equals_float64_on_the_cpu(mixed_texts, in_double):
    found = pairwise_socm([x.cuda() for x in mixed_texts])
    assert_near(found, in_double)
    assert float(found.d_sigma.max()) > 0.3
    assert torch.equal(found.d_sigma, found.d_sigma.T)
    assert float(found.d_sigma.diagonal().max()) == 0


def test_socm_in_double_precision_on_the_gpu_equals_the_cpu(mixed_texts, in_double):
    assert_near(pairwise_socm([x.double().cuda() for x in mixed_texts]), in_double, 1e-6)


@pytest.mark.parametrize("elements", [1, 300_000])
def test_cross_terms_do_not_depend_on_how_they_are_cut(monkeypatch, mixed_texts, elements):
    factors = [covariance_factor(x)[1] for x in mixed_texts if len(x) < 130]
    factors.append(torch.zeros(0, factors[0].shape[1]))
    monkeypatch.setattr(polar, "BATCH_ELEMENTS", elements)
    on_cpu = cross_nuclear_norms([factor.double() for factor in factors], [factor.double() for factor in factors[:17]])
    found = cross_nuclear_norms([factor.cuda() for factor in factors], [factor.cuda() for factor in factors[:17]])
    assert float((found - on_cpu).abs().max()) <= 1e-5


def test_listed_pairs_equal_float64_on_the_cpu(mixed_texts):
    factors = [covariance_factor(x)[1] for x in mixed_texts]
    random = np.random.default_rng(2)
    first, second = random.integers(0, len(factors), (2, 60)).tolist()
    found = paired_nuclear_norms([factor.cuda() for factor in factors], first, second)
    exact = paired_nuclear_norms([factor.double() for factor in factors], first, second)
    assert float((found - exact).abs().max()) <= 1e-5


# --- cosines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("dim", [96, 768, 4096])
def test_what_tensor_cores_cut_off_is_within_its_bound(dim, precision):
    rows = 8 + np.random.default_rng(0).normal(size=(200, dim)).astype(np.float32)
    seen = torch.from_numpy(rounded(rows / np.linalg.norm(rows, axis=1, keepdims=True), precision)).cuda()
    exact, factors = seen.double() @ seen.double().mT, seen.bfloat16() if precision == "bfloat16" else seen
    lost = exact - gpu.cosine_product(factors, factors.mT, precision).double()
    assert float(lost.abs().max()) <= truncation_error(precision, dim) + 1e-6
    assert float(exact.min()) > 0.9


@pytest.mark.parametrize("kernel", ["0", ""], ids=["torch's operations", "the fused kernel"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_cosines_on_the_gpu_are_those_of_the_rounded_embeddings(precision, kernel, monkeypatch):
    """Products of rounded numbers are exact in float32, so that only the order of their sums may differ."""
    monkeypatch.setenv(gpu.FUSED, kernel)
    gpu.serves.cache_clear()
    if not kernel:
        pytest.importorskip("triton", reason="Triton is not installed")
        assert gpu.serves("cuda")
    random = np.random.default_rng(0)
    rows = random.normal(size=(700, 96)).astype(np.float32) + 0.2
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    seen = rounded(rows, precision)
    texts = Block(seen, np.sort(random.integers(0, 3, 700)), random.permutation(700).astype(np.int32))
    settings = {"diagonal": True, "neighbours": 5, "duplicate": 0.5, "listed": 700}
    found = cosine_tile(texts, texts, 3, **settings, device="cuda", precision=precision)
    expected = cosine_tile(texts, texts, 3, **settings)
    for name in ("first", "second"):
        np.testing.assert_allclose(getattr(found.cells, name), getattr(expected.cells, name), rtol=1e-6, atol=1e-4)
    np.testing.assert_array_equal(found.cells.pairs, expected.cells.pairs)
    np.testing.assert_allclose(found.rows.cosine, expected.rows.cosine, atol=1e-6)
    assert (found.cells.histogram.cumsum(-1) - expected.cells.histogram.cumsum(-1)).max() <= 20
    exact = rows.astype(np.float64) @ rows.T.astype(np.float64)
    np.fill_diagonal(exact, -2)
    best = -np.sort(-exact, axis=1)[:, :5]
    assert np.abs(found.rows.cosine - best).max() <= rounding_error(precision) + 1e-6
