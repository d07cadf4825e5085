"""Fitted corrections: frozen values that change embeddings of documents and queries, and can be written and read.

The similarity after a correction is the inner product of a corrected query and a corrected document.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tempscale.correction.curve import Curve
from tempscale.correction.data import curve_data, curve_of, packed, unpacked
from tempscale.correction.errors import CorrectionError
from tempscale.correction.recipes import Recipe

FORMAT = 1
"""The version of the written data; it is increased when their meaning changes."""
_AT_ONCE = 1 << 14
"""Documents that are compared with the fitted queries at a time."""


@dataclass(frozen=True, eq=False)
class Correction(ABC):
    """A change of embeddings of unit norm; equal corrections have equal data."""

    recipe: Recipe
    dim: int
    """Dimensions of the embeddings."""
    needs_tokens: ClassVar[bool] = False
    """Whether it depends on the lengths of documents."""
    needs_query_tokens: ClassVar[bool] = False
    """Whether it depends on the lengths of queries."""
    needs_inner_product: ClassVar[bool] = False
    """Whether its documents differ in norm, so that an index of cosines ranks differently; see `equal_norms`."""

    @property
    def canonical(self) -> str:
        """Its recipe as text."""
        return self.recipe.canonical

    def documents(
        self, embeddings: Float[Tensor, "text dim"], tokens: Int[Tensor, " text"] | None = None, *,
        groups: Sequence[str] | None = None, equal_norms: bool = False,
    ) -> Float[Tensor, "text more"]:  # fmt: skip
        """Correct embeddings of documents.

        Args:
            embeddings: unit norm.
            tokens: each document's length, at least 1, where the correction depends on it.
            groups: the name of each document's group, where the correction depends on it.
            equal_norms: add a coordinate √(M² − ‖x‖²), M the largest possible norm, so that an index of cosines or of
                Euclidean distances ranks as the inner product does; queries have 0 there.

        Returns:
            Float32 on the CPU; as many rows, with one coordinate more for «length» and «csls», and one for `equal_norms`.

        Raises:
            CorrectionError: the dimension differs, lengths or groups are missing, lengths are below 1, or numbers are not
                finite.
        """
        rows, lengths = self._checked(embeddings, tokens, self.needs_tokens)
        of_groups = self.recipe.column is not None
        corrected = self._documents(rows, checked_groups(groups, len(rows), self.canonical) if of_groups else lengths)
        if equal_norms and self.needs_inner_product:
            difference = self._largest_norm() ** 2 - (corrected**2).sum(1, keepdims=True)
            corrected = np.concatenate([corrected, np.sqrt(np.maximum(difference, 0.0))], 1)
        return torch.from_numpy(corrected.astype(np.float32))

    def queries(
        self, embeddings: Float[Tensor, "text dim"], tokens: Int[Tensor, " text"] | None = None, *, equal_norms: bool = False
    ) -> Float[Tensor, "text more"]:
        """Correct embeddings of queries: their inner products with corrected documents are the corrected similarities."""
        corrected = self._queries(*self._checked(embeddings, tokens, self.needs_query_tokens))
        if equal_norms and self.needs_inner_product:
            corrected = np.concatenate([corrected, np.zeros((len(corrected), 1))], 1)
        return torch.from_numpy(corrected.astype(np.float32))

    def _checked(self, embeddings: Tensor, tokens: Tensor | None, needed: bool) -> tuple[np.ndarray, np.ndarray]:
        return checked(embeddings, tokens, needed, self.canonical, self.dim)

    @abstractmethod
    def _documents(self, embeddings: np.ndarray, of_texts: np.ndarray) -> np.ndarray:
        """The corrected documents in float64; `of_texts` has their lengths, or for a correction by groups their groups."""

    @abstractmethod
    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The corrected queries in float64."""

    def _largest_norm(self) -> float:
        """An upper bound of the norm of a corrected document."""
        return 1.0

    # ------------------------------------------------------------------------------------------ data

    @abstractmethod
    def _fitted(self) -> dict[str, Any]:
        """The fitted values as plain data."""

    @classmethod
    @abstractmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> Correction:
        """The correction of such data."""

    def as_data(self) -> dict[str, Any]:
        """The correction as plain data for JSON, which `Correction.of` reads."""
        return {"format": FORMAT, "correction": self.canonical, "dimensions": self.dim} | self._fitted()

    @staticmethod
    def of(data: Any) -> Correction:
        """Read a correction from the data of `as_data`; further entries, such as the model's, are ignored."""
        if not isinstance(data, Mapping) or "correction" not in data:
            raise CorrectionError("this is no correction: the entry «correction» is missing")
        if data.get("format") != FORMAT:
            raise CorrectionError(f"this correction has format {data.get('format')}, and this tempscale reads {FORMAT}")
        recipe = Recipe.of(data["correction"])
        try:
            return KINDS[recipe.kind]._of(recipe, int(data["dimensions"]), data)
        except (KeyError, TypeError, ValueError) as error:
            raise CorrectionError(f"this correction is damaged: {type(error).__name__}: {error}") from None

    @property
    def digest(self) -> str:
        """SHA-256 of its data, hexadecimal."""
        return hashlib.sha256(json.dumps(self.as_data(), sort_keys=True).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Correction) and self.as_data() == other.as_data()

    def __hash__(self) -> int:
        return hash(self.digest)


def checked(
    embeddings: Tensor, tokens: Tensor | None, needed: bool, name: str, dim: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings in float64 and lengths, or zeros where none are needed; a CorrectionError if they do not fit."""
    rows = torch.as_tensor(embeddings).detach().cpu().numpy().astype(np.float64)
    if rows.ndim != 2 or (dim is not None and rows.shape[1] != dim):
        raise CorrectionError(f"{name} is for embeddings of {dim} dimensions, not of shape {tuple(rows.shape)}")
    if not np.isfinite(rows).all():
        wrong = int((~np.isfinite(rows).all(1)).sum())
        raise CorrectionError(f"{wrong:,} of {len(rows):,} embeddings are not finite")
    if not needed:
        return rows, np.zeros(len(rows), np.int64)
    if tokens is None:
        raise CorrectionError(f"{name} depends on the lengths of the texts in tokens, and none are given")
    lengths = torch.as_tensor(tokens).cpu().numpy()
    if len(lengths) != len(rows):
        raise CorrectionError(f"there are {len(rows):,} embeddings and {len(lengths):,} lengths")
    if not (np.isfinite(lengths) & (lengths >= 1)).all():
        wrong = int((~(np.isfinite(lengths) & (lengths >= 1))).sum())
        raise CorrectionError(f"{wrong:,} of {len(lengths):,} lengths are not at least 1 token")
    return rows, lengths.astype(np.int64)


def checked_groups(groups: Sequence[str] | None, texts: int, name: str) -> np.ndarray:
    """The group of each of some documents, an array of objects; a CorrectionError if they do not fit."""
    column = Recipe.of(name).column
    if groups is None:
        raise CorrectionError(f"{name} depends on the documents' values of column '{column}', and none are given")
    if len(groups) != texts:
        raise CorrectionError(f"there are {texts:,} embeddings and {len(groups):,} values of column '{column}'")
    named = np.empty(texts, dtype=object)
    named[:] = groups
    if (wrong := next((group for group in named.tolist() if not isinstance(group, str)), "")) != "":
        raise CorrectionError(f"{name}: a group is named by a text, not by {wrong!r}")
    return named


@dataclass(frozen=True, eq=False)
class Length(Correction):
    """Subtract a smooth function f of the log of the document's tokens from the cosine.

        s(q, d) = ⟨q, d⟩ − f(n_d),   document [d, −f(n_d)],   query [q, 1]

    f is the least-squares curve of a document's mean similarity to the queries, minus its mean over the documents: it
    changes ranks, not the mean similarity. The order of documents of one length does not change.
    """

    curve: Curve
    """f."""
    needs_tokens = True
    needs_inner_product = True

    def _documents(self, embeddings: np.ndarray, of_texts: np.ndarray) -> np.ndarray:
        return np.concatenate([embeddings, -self.curve(of_texts)[:, None]], 1)

    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.concatenate([embeddings, np.ones((len(embeddings), 1))], 1)

    def _largest_norm(self) -> float:
        return float(np.sqrt(1.0 + self.curve.largest() ** 2))

    def _fitted(self) -> dict[str, Any]:
        return {"f": curve_data(self.curve)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> Length:
        return cls(recipe, dim, curve_of(fitted["f"]))


@dataclass(frozen=True, eq=False)
class Centre(Correction):
    """Subtract the mean of documents and that of queries.

    plain:  s(q, d) = ⟨q − m_q, d⟩, which ranks as ⟨q − m_q, d − m_d⟩ does, so documents and their index stay unchanged
    unit:   s(q, d) = cos(q − m_q, d − m_d)
    """

    of_documents: Float[np.ndarray, " dim"]
    """m_d."""
    of_queries: Float[np.ndarray, " dim"]
    """m_q."""

    @property
    def unit(self) -> bool:
        """Whether both sides are renormalised."""
        return self.recipe.parameters[0] == "unit"

    def _documents(self, embeddings: np.ndarray, of_texts: np.ndarray) -> np.ndarray:
        return normalised(embeddings - self.of_documents) if self.unit else embeddings

    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        moved = embeddings - self.of_queries
        return normalised(moved) if self.unit else moved

    def _fitted(self) -> dict[str, Any]:
        return {"documents": packed(self.of_documents), "queries": packed(self.of_queries)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> Centre:
        return cls(recipe, dim, unpacked(fitted["documents"], dim), unpacked(fitted["queries"], dim))


@dataclass(frozen=True, eq=False)
class CentreByLength(Correction):
    """Subtract the mean of documents, and that of queries, at each text's length, and renormalise.

    s(q, d) = cos(q − m_q(n_q), d − m_d(n_d)),   m a smooth function of the log of the tokens, one curve a dimension
    """

    of_documents: Curve
    """m_d(n)."""
    of_queries: Curve
    """m_q(n)."""
    needs_tokens = True
    needs_query_tokens = True

    def _documents(self, embeddings: np.ndarray, of_texts: np.ndarray) -> np.ndarray:
        return normalised(embeddings - self.of_documents(of_texts))

    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return normalised(embeddings - self.of_queries(tokens))

    def _fitted(self) -> dict[str, Any]:
        return {"documents": curve_data(self.of_documents), "queries": curve_data(self.of_queries)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> CentreByLength:
        return cls(recipe, dim, curve_of(fitted["documents"], dim), curve_of(fitted["queries"], dim))


@dataclass(frozen=True, eq=False)
class CentreBy(Correction):
    """Subtract the mean of the documents of each document's group, and the mean of all queries, and renormalise.

        s(q, d) = cos(q − m_q, d − m_d(g))

    g is the document's value of a column, such as its language. Groups of fewer than 30 documents have one mean together.
    Where together they have fewer than 30, and of groups unknown at the fit, m_d is the mean of all documents. Queries have
    one mean, whatever their group: whichever mean is taken off q, the mean of ⟨q, d − m_d(g)⟩ over a group is 0.
    """

    of_documents: Float[np.ndarray, " dim"]
    """The mean of all documents."""
    of_queries: Float[np.ndarray, " dim"]
    """m_q."""
    of_groups: Float[np.ndarray, "mean dim"]
    """The values of m_d(g)."""
    mean_of: Mapping[str, int]
    """Which of them each group has."""

    def _documents(self, embeddings: np.ndarray, of_texts: np.ndarray) -> np.ndarray:
        of_all = len(self.of_groups)
        places = [self.mean_of.get(group, of_all) for group in of_texts.tolist()]
        return normalised(embeddings - np.concatenate([self.of_groups, self.of_documents[None]])[places])

    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return normalised(embeddings - self.of_queries)

    def _fitted(self) -> dict[str, Any]:
        means = {"documents": packed(self.of_documents), "queries": packed(self.of_queries)}
        return means | {"groups": packed(self.of_groups), "mean_of": dict(self.mean_of)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> CentreBy:
        mean_of = dict(fitted["mean_of"])
        if not all(isinstance(group, str) and type(mean) is int for group, mean in mean_of.items()):
            raise ValueError("a group needs a name and the number of its mean")
        used = sorted(set(mean_of.values()))
        if used != list(range(len(used))):
            raise ValueError("the numbers of the groups' means have gaps")
        of_documents, of_queries = (unpacked(fitted[side], dim) for side in ("documents", "queries"))
        return cls(recipe, dim, of_documents, of_queries, unpacked(fitted["groups"], len(used), dim), mean_of)


@dataclass(frozen=True, eq=False)
class Linear(Correction):
    """Subtract the mean of documents and that of queries, multiply by one symmetric matrix, and renormalise.

        remove_mean_direction:  W = I − m_d m_dᵀ/‖m_d‖², and no mean is subtracted     arXiv 2511.11041, R2
        remove_top(k):    W = I − Σ_{j≤k} v_j v_jᵀ                      Mu & Viswanath 2018, «all but the top»
        whiten(p):        W = V Λ^(−p/2) Vᵀ                             Su et al. 2021 (p = 1); p = 0 only centres

    v_j and Λ are eigenvectors and eigenvalues of the documents' covariance, the largest first. Without queries the
    documents' mean is used for both.
    """

    of_documents: Float[np.ndarray, " dim"]
    """m_d."""
    of_queries: Float[np.ndarray, " dim"]
    """m_q."""
    matrix: Float[np.ndarray, "dim dim"]
    """W."""

    def _documents(self, embeddings: np.ndarray, of_texts: np.ndarray) -> np.ndarray:
        return normalised((embeddings - self.of_documents) @ self.matrix)

    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return normalised((embeddings - self.of_queries) @ self.matrix)

    def _fitted(self) -> dict[str, Any]:
        means = {"documents": packed(self.of_documents), "queries": packed(self.of_queries)}
        return means | {"matrix": packed(self.matrix)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> Linear:
        of_documents, of_queries = (unpacked(fitted[side], dim) for side in ("documents", "queries"))
        return cls(recipe, dim, of_documents, of_queries, unpacked(fitted["matrix"], dim, dim))


@dataclass(frozen=True, eq=False)
class Csls(Correction):
    """Subtract a document's mean similarity to its nearest queries from the cosine.

        s(q, d) = ⟨q, d⟩ − w·r(d),   r(d) = mean cosine of d to its k nearest fitted queries      Conneau et al. 2018, eq. 4

    Their 2⟨q, d⟩ − r(q) − r(d) ranks the documents of a query as w = ½ does.
    """

    asking: Float[np.ndarray, "text dim"]
    """The queries that it was fitted to."""
    needs_inner_product = True

    @property
    def neighbours(self) -> int:
        """k, at most the number of fitted queries."""
        return min(int(self.recipe.parameters[0]), len(self.asking))

    @property
    def weight(self) -> float:
        """w, the subtracted share of r."""
        return float(self.recipe.parameters[1])

    def _documents(self, embeddings: np.ndarray, of_texts: np.ndarray) -> np.ndarray:
        near = np.empty(len(embeddings))
        for start in range(0, len(embeddings), _AT_ONCE):
            cosines = embeddings[start : start + _AT_ONCE] @ self.asking.T
            k = self.neighbours
            near[start : start + _AT_ONCE] = np.sort(np.partition(cosines, -k, axis=1)[:, -k:], axis=1).mean(1)
        return np.concatenate([embeddings, -self.weight * near[:, None]], 1)

    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.concatenate([embeddings, np.ones((len(embeddings), 1))], 1)

    def _largest_norm(self) -> float:
        return float(np.sqrt(1.0 + self.weight**2)) * (1 + 1e-6)  # Norms in float32 may exceed 1.

    def _fitted(self) -> dict[str, Any]:
        return {"asking": packed(self.asking), "asking_texts": len(self.asking)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> Csls:
        return cls(recipe, dim, unpacked(fitted["asking"], int(fitted["asking_texts"]), dim))


KINDS: dict[str, type[Correction]] = {
    "length": Length, "centre": Centre, "centre_by_length": CentreByLength, "centre_by": CentreBy,
    "remove_mean_direction": Linear, "remove_top": Linear, "whiten": Linear, "csls": Csls,
}  # fmt: skip
"""The class of each kind of correction."""


def normalised(rows: np.ndarray) -> np.ndarray:
    """Rows of unit norm; a row that is 0 stays 0."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))
