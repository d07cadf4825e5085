"""The device of the tests of a GPU: CUDA, or what TEMPSCALE_CARD says, to try the tests themselves without one."""

import os

import pytest
import torch

CARD = os.environ.get("TEMPSCALE_CARD", "cuda")
needs_card = pytest.mark.skipif(CARD == "cuda" and not torch.cuda.is_available(), reason="no CUDA GPU at hand")
