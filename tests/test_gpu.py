"""The same identities on a GPU, in bfloat16 and float16, under each attention kernel it has. Skipped without one.

Tolerances: twice what the same precision costs attention by hand against float64, as in test_schedules.py.
"""

import pytest
import torch
from by_hand_attention import by_hand
from test_apply import batch, random_ids, run
from test_schedules import LENGTHS, LOG, STEPS, head_taus, layer_taus
from torch.nn.attention import SDPBackend, sdpa_kernel

from tempscale.apply import attach, detach
from tempscale.fold import fold
from tempscale.temperature import Temperature
from tempscale.verify import verify

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


@pytest.mark.parametrize("schedule", [0.5, STEPS], ids=str)
def test_compiled_equals_uncompiled(tiny_model, schedule):
    model = attach(tiny_model("bert").cuda(), schedule)
    inputs = on_gpu(batch(model, random_ids(model, (9, 25))))
    torch.testing.assert_close(run(torch.compile(model), inputs), run(model, inputs), rtol=1e-3, atol=1e-3)
