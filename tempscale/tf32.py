"""How a GPU computes float32 products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def tf32_products(wanted: bool) -> Iterator[None]:
    """Switch TF32 on or off for float32 products on a GPU, and restore the setting afterwards."""
    matmul: Any = torch.backends.cuda.matmul
    # torch has an old and a new setting; once the new one is set, reading the old one raises.
    new = hasattr(matmul, "fp32_precision")
    name, value = ("fp32_precision", "tf32" if wanted else "ieee") if new else ("allow_tf32", wanted)
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)
