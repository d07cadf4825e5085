"""Which tenth of a text its vector follows: the cosine of the text and itself with that tenth of another text.

A text of m tokens, special ones and a prompt left out, has ten tenths: the tokens from ⌊m·t/10⌋ to ⌊m·(t+1)/10⌋. In each of
ten copies one tenth is replaced by the tokens of another text at the same places. The nearer a copy's vector is to the
text's own, the less that vector follows the tenth. For an encoder that averages orthonormal tokens with weights w_p the
cosine is 1 − Σ_{p in the tenth} w_p² / Σ_p w_p².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tempscale.stats.errors import documents_error

TENTHS = 10


class Tenth(NamedTuple):
    """The mean over some texts."""

    number: int
    """1 to 10, from the beginning."""
    cosine: float
    """Between a text and itself with this tenth replaced."""
    error: float
    """Its standard error for other texts, or documents; NaN for too few documents."""
    texts: int


def replaced(content: Sequence[int], other: Sequence[int]) -> list[list[int]]:
    """The tokens of a text, then those with its first, second, … tenth replaced by another text's.

    Args:
        content, other: tokens without special ones; of the longer one the rest is left out.

    Returns:
        Eleven lists of equal length; none where a tenth would have no token.
    """
    room = min(len(content), len(other))
    if room < TENTHS:
        return []
    ends = [room * t // TENTHS for t in range(TENTHS + 1)]
    whole = list(content[:room])
    return [whole, *([*whole[:start], *other[start:end], *whole[end:]] for start, end in pairwise(ends))]


def by_tenth(cosines: Float[np.ndarray, "text 10"], documents: Int[np.ndarray, " text"] | None = None) -> list[Tenth]:
    """The mean of each tenth, with its error.

    Args:
        cosines: of at least two texts.
        documents: the document of each text; None where texts come without documents.
    """
    return [
        Tenth(k + 1, float(values.mean()), _error(values, documents), len(values))
        for k, values in enumerate(cosines.astype(np.float64).T)
    ]


def _error(values: np.ndarray, documents: np.ndarray | None) -> float:
    if documents is None:
        return math.sqrt(values.var(ddof=1) / len(values))
    return documents_error([values], [1.0], [documents])
