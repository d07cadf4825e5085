"""How strong a low-pass filter attention is: σ_a, the largest gain it leaves to anything but the mean of the tokens.

S1 (arXiv 2410.24200) §2: DC[Z] = (1/n)11ᵀZ, HC[Z] = (I − (1/n)11ᵀ)Z, σ_a = ‖(I − (1/n)11ᵀ)A‖₂.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_BLOCK = 4
_MOST_ITERATIONS = 300


def sigma_a(attention: Float[Tensor, "*batch token token"], tolerance: float = 1e-6) -> Float[Tensor, "*batch"]:
    """σ_a = ‖(I − (1/n)11ᵀ)A‖₂ of each attention matrix (S1 §2), without a decomposition of it.

    Subspace iteration with a block of four on AᵀPA, P = I − (1/n)11ᵀ, from a fixed start, until no value grows by more
    than `tolerance` (relative) in a step. It approaches σ_a from below. Computed in float32 at least.

    Args:
        attention: rows that sum to 1, of one unpadded text: (…, n, n).
        tolerance: when to stop.

    Returns:
        σ_a in [0, √n], (…).
    """
    a = attention if attention.dtype == torch.float64 else attention.float()
    n = a.shape[-1]
    if n == 1:
        return torch.zeros(a.shape[:-2], dtype=a.dtype, device=a.device)
    # Cosines of several frequencies: a fixed start that is orthogonal to no direction one would expect.
    place = (torch.arange(n, dtype=a.dtype, device=a.device) + 0.5) / n
    start = torch.stack(
        [torch.cos(torch.pi * place * (k + 1)) + 0.1 * torch.cos(37.0 * place + k) for k in range(min(_BLOCK, n))]
    )
    basis = torch.linalg.qr(start.T).Q.expand(*a.shape[:-2], n, -1)
    before = torch.zeros(a.shape[:-2], dtype=a.dtype, device=a.device)
    for _ in range(_MOST_ITERATIONS):
        image = a @ basis
        image = image - image.mean(-2, keepdim=True)
        # The largest singular value of P·A on the subspace: never above the true one.
        found = torch.linalg.eigvalsh(image.mT @ image)[..., -1].clamp_min(0).sqrt()
        if bool((found - before <= tolerance * found).all()):
            break
        before = found
        basis = torch.linalg.qr(a.mT @ image).Q
    sigma: Tensor = found
    return sigma
