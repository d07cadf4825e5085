"""Nearest neighbours by cosine, and hubness: whether few texts fill many of the neighbour slots.

N_k(j) counts the queries that have text j among their k nearest (the k-occurrence). Its skewness is hubness (Radovanović et
al. 2010). See `exposure` for the lengths of neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

NOBODY = np.iinfo(np.int32).max
"""The label of an empty slot, when a text has fewer neighbours than requested."""


@dataclass(frozen=True)
class Nearest:
    """The k nearest texts of each text: largest cosine first, ties by the neighbour's label. Mergeable."""

    cosine: Float[np.ndarray, "text k"]
    """Float32; −∞ in an empty slot."""
    label: Int[np.ndarray, "text k"]
    """Int32; NOBODY in an empty slot."""

    @classmethod
    def empty(cls, texts: int, k: int) -> Nearest:
        """Lists without neighbours: −∞ and NOBODY."""
        return cls(np.full((texts, k), -np.inf, np.float32), np.full((texts, k), NOBODY, np.int32))

    def merged(self, other: Nearest) -> Nearest:
        """The k nearest of two lists of the same texts that share no neighbour, in either order."""
        cosine = np.concatenate([self.cosine, other.cosine], axis=1)
        label = np.concatenate([self.label, other.label], axis=1)
        order = np.lexsort((label, -cosine), axis=1)[:, : self.cosine.shape[1]]
        return Nearest(np.take_along_axis(cosine, order, 1), np.take_along_axis(label, order, 1))


class PowerSums(NamedTuple):
    """The number of values and the sums of their first three powers: whole numbers of any size. Mergeable."""

    values: int
    """n."""
    first: int
    """Σv."""
    second: int
    """Σv²."""
    third: int
    """Σv³."""

    @classmethod
    def of(cls, values: Int[np.ndarray, " text"]) -> PowerSums:
        """The exact sums of some whole numbers."""
        unique, number = (column.tolist() for column in np.unique(values, return_counts=True))
        powers = (sum(n * v**power for v, n in zip(unique, number, strict=True)) for power in (1, 2, 3))
        return cls(len(values), *powers)

    def merged(self, other: PowerSums) -> PowerSums:
        """The sums over two sets of values."""
        return PowerSums(*(left + right for left, right in zip(self, other, strict=True)))


def skewness(occurrence: PowerSums) -> float:
    """E[(N_k − mean)³]/sd³, the hubness of Radovanović et al. 2010.

    Args:
        occurrence: of N_k of each text, at least one.

    Returns:
        Any number: above 0 if a few texts are neighbours of many queries; 0 if every text occurs equally often.
    """
    n, first, second, third = occurrence
    variance = n * second - first**2  # n²·sd²; below, n³ times the numerator. Whole numbers, so nothing is rounded.
    return (n * n * third - 3 * n * first * second + 2 * first**3) / variance**1.5 if variance else 0.0
