"""Where SOCM is computed: on a GPU whose float64 is worth it, otherwise on a processor.

The iterations of `polar` need float64: in float32 they lose singular values below 1e-5 of ‖G‖_F, which for texts of
hundreds of tokens is more than the 1e-5 of d_Σ that is promised. Cards for data centres compute in float64 half as fast as
in float32, others a thirty-second or a sixty-fourth, where the lanes of a few processor cores are faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_FLOAT64_RATE = {
    (6, 0): 1 / 2,  # P100
    (7, 0): 1 / 2,  # V100
    (8, 0): 1 / 2,  # A100
    (9, 0): 1 / 2,  # H100, H200
    (10, 0): 1 / 2,  # B200
}
"""Multiplications in float64 to those in float32, by compute capability (CUDA C++ Programming Guide, throughput)."""
_OTHERS = 1 / 64
"""Of cards that are not listed: at most a thirty-second of T4, A10, L4, L40S, the RTX cards and B300."""
_WORTH = 1 / 4


def float64_rate(device: torch.device) -> float:
    """The rate of a device's float64 to its float32, 1/2 to 1/64 of GPUs and 1/2 of a processor."""
    if device.type == "cpu":
        return 1 / 2
    return _FLOAT64_RATE.get(tuple(torch.cuda.get_device_capability(device)), _OTHERS)  # type: ignore[arg-type]


def socm_device(device: torch.device, regularization: float = 0.0) -> torch.device:
    """Where the SOCM of texts that a device embedded is computed: there, or on the processor.

    A regularization needs the eigenvalues of many small matrices, which GPUs compute slowly.
    """
    worth = float64_rate(device) >= _WORTH and not regularization
    return device if worth or device.type == "cpu" else torch.device("cpu")


def moved(means: Tensor, factors: Sequence[Tensor], device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Unit means (texts, d) and covariance factors of texts on a device, by one copy each."""
    if means.device == device:
        return means, list(factors)
    ranks = [factor.shape[0] for factor in factors]
    return means.to(device), list(torch.split(torch.cat(list(factors)).to(device), ranks))
