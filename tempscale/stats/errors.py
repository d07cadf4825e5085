"""Standard errors of means over pairs of texts, and their correction for a finite population.

Another corpus has other texts or, where texts are parts of documents, other documents. Texts of one document are similar, so
an error that assumes independent texts is too small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tempscale.stats.enough import EQUAL_DOCUMENTS_FOR_AN_ERROR, GROUPS_FOR_AN_ERROR

Z_95 = 1.96
"""Standard errors on either side of an estimate that contain 95 % of a normal distribution."""


def within_error(variance: float, texts: float) -> float:
    """Standard error of the mean over all pairs inside one set of texts: 2·sd(per-text means)/√n.

    Each pair counts in the means of two texts, hence the 2 (the first-order term of a U-statistic of degree 2).

    Args:
        variance: sample variance of the texts' mean cosines with the others.
        texts: n ≥ 1.

    Returns:
        ≥ 0, in the unit of the mean; for a sample of a finite population see `finite_population`.
    """
    return float(2.0 * np.sqrt(variance / texts))


def between_error(row_variance: float, rows: float, column_variance: float, columns: float) -> float:
    """Standard error of the mean over all pairs between two sets: √(var(row means)/n_a + var(column means)/n_b).

    Args:
        row_variance: sample variance of the mean cosines of one set's texts with the other set.
        rows: n_a ≥ 1.
        column_variance: the same for the texts of the other set.
        columns: n_b ≥ 1.

    Returns:
        ≥ 0, in the unit of the mean.
    """
    return float(np.sqrt(row_variance / rows + column_variance / columns))


def finite_population(texts: float, population: float) -> float:
    """√(1 − n/N): the factor of a standard error if the figure is about the N texts from which the n texts were drawn.

    Args:
        texts: n.
        population: N.

    Returns:
        In [0, 1]; 0 if all texts were drawn, or there are none.
    """
    return float(np.sqrt(max(0.0, 1.0 - texts / population))) if population > 0 else 0.0


def equal_documents(documents: Int[np.ndarray, " text"]) -> float:
    """(Σn_g)²/Σn_g²: the number of documents of equal size that are worth as much (Kish's effective number, 1965).

    Args:
        documents: the document of each text, at least one.

    Returns:
        From 1, if one document has all texts, to the number of documents, if all have equally many texts.
    """
    return _equal(np.unique(documents, return_counts=True)[1])


def enough_documents(documents: Int[np.ndarray, " text"]) -> bool:
    """Whether the documents of some texts are enough for an error: at least ten, worth at least seven of equal size.

    Args:
        documents: the document of each text, at least one.

    Returns:
        False where an error of these documents would be too small by an unknown factor.
    """
    return _enough(np.unique(documents, return_counts=True)[1])


def _equal(texts: np.ndarray) -> float:
    """`equal_documents` from the number of texts of each."""
    texts = texts.astype(np.float64)
    return float(texts.sum() ** 2 / np.square(texts).sum())


def _enough(texts: np.ndarray) -> bool:
    """`enough_documents` from the number of texts of each document."""
    return len(texts) >= GROUPS_FOR_AN_ERROR and _equal(texts) >= EQUAL_DOCUMENTS_FOR_AN_ERROR


def documents_error(
    sets: Sequence[Float[np.ndarray, " text"]],
    weights: Sequence[float],
    documents: Sequence[Int[np.ndarray, " text"]],
) -> float:
    """Standard error of Σ_k w_k·x̄_k, means over sets of texts that come in documents: one document is drawn as a whole.

        √Σ_g (Σ_k w_k·c_k·Σ_{i∈g∩k} (x_i − x̄_k)/n_k)²,   c_k = √(G_k/(G_k − 1))

    With a document for each text it is √Σ_k w_k²·s_k²/n_k. For means over pairs x_i is text i's mean and w counts it twice,
    as in `within_error`; a mean between two sets is the sum of the sets' means of x_i, each with w = 1.

    Args:
        sets: x_i of the texts of each set, finite.
        weights: w_k, negative for a set whose mean is subtracted.
        documents: the document of each of these texts; one document may have texts in several sets.

    Returns:
        ≥ 0, in the unit of the means; NaN if a set has fewer than ten documents, or fewer than seven `equal_documents`: the
        error would be too small by an unknown factor.
    """
    sums = [DocumentSums.of(values[:, None], labels) for values, labels in zip(sets, documents, strict=True)]
    return error_of_sums(sums, [0] * len(sums), weights)


class DocumentSums(NamedTuple):
    """Sums of values over the texts of each document, for `documents_error`. Mergeable."""

    documents: Int[np.ndarray, " document"]
    """Ascending."""
    texts: Int[np.ndarray, " document"]
    """Texts of each document."""
    sums: Float[np.ndarray, "document column"]
    """Their summed values, float64."""

    @classmethod
    def of(cls, values: Float[np.ndarray, "text column"], documents: Int[np.ndarray, " text"]) -> DocumentSums:
        """The sums over some texts, from a row of values and the document of each."""
        unique, index = np.unique(documents, return_inverse=True)
        sums = np.stack([np.bincount(index, column, len(unique)) for column in values.T.astype(np.float64)], axis=1)
        return cls(unique, np.bincount(index, minlength=len(unique)), sums)

    def merged(self, other: DocumentSums) -> DocumentSums:
        """The sums over two sets of texts, in the same columns."""
        unique, places = np.unique(np.concatenate([self.documents, other.documents]), return_inverse=True)
        texts, sums = np.zeros(len(unique), np.int64), np.zeros((len(unique), self.sums.shape[1]))
        for part, index in zip((self, other), np.split(places, [len(self.documents)]), strict=True):
            texts[index] += part.texts
            sums[index] += part.sums
        return DocumentSums(unique, texts, sums)


def error_of_sums(sets: Sequence[DocumentSums], columns: Sequence[int], weights: Sequence[float]) -> float:
    """`documents_error` of one column of each of some sets of texts.

    Args:
        sets: the sums of each set.
        columns: the column of each set.
        weights: w_k.

    Returns:
        As `documents_error`.
    """
    shares, names = [], []
    for part, column, weight in zip(sets, columns, weights, strict=True):
        count, texts, sums = len(part.documents), part.texts.sum(), part.sums[:, column]
        if not _enough(part.texts):
            return float("nan")
        centred = sums - part.texts * (sums.sum() / texts)
        shares.append(weight * np.sqrt(count / (count - 1)) * centred / texts)
        names.append(part.documents)
    _, index = np.unique(np.concatenate(names), return_inverse=True)
    return float(np.sqrt(np.square(np.bincount(index, np.concatenate(shares))).sum()))
