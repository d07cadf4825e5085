"""The default number of padded tokens in a micro-batch."""

from __future__ import annotations

TOKEN_BUDGET = 1024
"""Padded tokens in one micro-batch on a CPU, by default."""
GPU_BUDGET, GPU_NUMBERS = 65_536, 1 << 26
"""The same on a GPU, and the most numbers in their hidden states: a wide model fills a GPU with fewer tokens."""


def usual_budget(device: str, width: int) -> int:
    """Padded tokens in one micro-batch, for a kind of device such as «cpu» and the model's number of dimensions."""
    return TOKEN_BUDGET if device == "cpu" else max(1, min(GPU_BUDGET, GPU_NUMBERS // width))
