"""TF32 on a GPU is switched on for one product and off again, whichever of torch's two settings a program has used."""

import pytest
import torch

from tempscale.collapse.gpu import cosine_product
from tempscale.tf32 import tf32_products

MATMUL = torch.backends.cuda.matmul


@pytest.fixture(autouse=True)
def as_it_was():
    before = MATMUL.fp32_precision
    yield
    MATMUL.fp32_precision = before


@pytest.mark.parametrize("set_before", ["tf32", "ieee", "none"])
@pytest.mark.parametrize("wanted", [True, False])
def test_what_was_set_by_the_new_setting_is_restored_also_after_an_error(set_before, wanted):
    """After the new setting torch refuses to read the old one, which made a tile fail."""
    MATMUL.fp32_precision = set_before
    with tf32_products(wanted):
        assert MATMUL.fp32_precision == ("tf32" if wanted else "ieee")
    assert MATMUL.fp32_precision == set_before
    with pytest.raises(KeyError), tf32_products(wanted):
        raise KeyError
    assert MATMUL.fp32_precision == set_before


@pytest.mark.parametrize("wanted", [True, False])
def test_a_torch_that_has_only_the_old_setting(monkeypatch, wanted):
    class Old:
        allow_tf32 = "as before"

    monkeypatch.setattr(torch.backends.cuda, "matmul", Old)
    with tf32_products(wanted):
        assert Old.allow_tf32 is wanted
    assert Old.allow_tf32 == "as before"


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_product_of_cuda_tensors_is_float32_whatever_was_set(precision):
    """On tensors that only say that they are on a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    MATMUL.fp32_precision = "tf32"
    with FakeTensorMode():
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        left, right = (torch.empty(8, 4, device="cuda", dtype=dtype) for _ in range(2))
        assert left.is_cuda
        assert cosine_product(left, right.mT, precision).dtype == torch.float32
    assert MATMUL.fp32_precision == "tf32"
