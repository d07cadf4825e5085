"""How a GPU computes float32 products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def tf32_products(wanted: bool) -> Iterator[None]:
    """Let float32 products on a GPU be computed in TF32, or not; what was set before is restored.

    torch has an old and a new setting for it, and reading the old one raises where anything has set the new one.
    """
    matmul: Any = torch.backends.cuda.matmul
    new = hasattr(matmul, "fp32_precision")
    name, value = ("fp32_precision", "tf32" if wanted else "ieee") if new else ("allow_tf32", wanted)
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)
