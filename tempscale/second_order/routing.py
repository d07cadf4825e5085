"""Choose where SOCM is computed: on a GPU with fast float64, otherwise on a CPU.

The iterations of `polar` need float64: in float32 they lose singular values below 1e-5 of ‖G‖_F, which for texts of hundreds
of tokens is more than the guaranteed 1e-5 of d_Σ. GPUs for data centres have half of their float32 speed in float64; others
have a thirty-second or less, and the lanes of a few CPU cores are faster.
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
"""The speed in float64 relative to float32, by compute capability (CUDA C++ Programming Guide, throughput)."""
_OTHERS = 1 / 64
"""The same for other GPUs: T4, A10, L4, L40S, the RTX cards and B300 have at most a thirty-second."""
_WORTH = 1 / 4


def float64_rate(device: torch.device) -> float:
    """The speed of a device in float64 relative to float32: 1/2 to 1/64 for GPUs, 1/2 for a CPU."""
    if device.type == "cpu":
        return 1 / 2
    return _FLOAT64_RATE.get(tuple(torch.cuda.get_device_capability(device)), _OTHERS)  # type: ignore[arg-type]


def socm_device(device: torch.device, regularization: float = 0.0) -> torch.device:
    """The device that computes the SOCM of texts which `device` embedded: the same, or the CPU."""
    # A regularization needs the eigenvalues of many small matrices, which GPUs compute slowly.
    worth = float64_rate(device) >= _WORTH and not regularization
    return device if worth or device.type == "cpu" else torch.device("cpu")


def moved(means: Tensor, factors: Sequence[Tensor], device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """Copy unit means (texts, d) and covariance factors to a device, by one copy each."""
    if means.device == device:
        return means, list(factors)
    ranks = [factor.shape[0] for factor in factors]
    return means.to(device), list(torch.split(torch.cat(list(factors)).to(device), ranks))
