"""d_μ and d_Σ of every pair of some texts, from their unit means and covariance factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Factors(NamedTuple):
    """The unit means (texts, d) and the covariance factors of some texts."""

    means: Tensor
    factors: Sequence[Tensor]

    def on(self, device: torch.device | str) -> Factors:
        """The same on a device."""
        import torch

        from tempscale.second_order.routing import moved

        return Factors(*moved(self.means, self.factors, torch.device(device)))


class Values(NamedTuple):
    """The values of pairs, and the places `row` and `column` of their texts."""

    row: np.ndarray
    column: np.ndarray
    d_mu: np.ndarray
    d_sigma: np.ndarray


def every_pair(texts: Factors, others: Factors | None, regularization: float) -> Values:
    """Every pair of some texts, or each of them with each of the others."""
    from tempscale.second_order.socm import socm_square, socm_tile

    if others is None:
        matrices = socm_square(*texts, regularization=regularization)
        row, column = np.triu_indices(len(texts.factors), 1)
    else:
        matrices = socm_tile(*texts, *others, regularization=regularization)
        row, column = (index.ravel() for index in np.indices((len(texts.factors), len(others.factors))))
    return Values(row, column, matrices.d_mu.numpy()[row, column], matrices.d_sigma.numpy()[row, column])
