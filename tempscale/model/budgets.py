"""How many padded tokens a micro-batch has, unless that is given."""

from __future__ import annotations

TOKEN_BUDGET = 1024
"""Padded tokens in one micro-batch on a CPU, unless they are given."""
GPU_BUDGET, GPU_NUMBERS = 65_536, 1 << 26
"""The same on a GPU, and the most numbers that their hidden states may have there: a wide model keeps a GPU busy with fewer
tokens, and needs more memory for each.
"""


def usual_budget(device: str, width: int) -> int:
    """Padded tokens in one micro-batch of a model of so many dimensions, on a kind of device such as «cpu»."""
    return TOKEN_BUDGET if device == "cpu" else max(1, min(GPU_BUDGET, GPU_NUMBERS // width))
