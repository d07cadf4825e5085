"""Fitted corrections: frozen values that change embeddings of documents and queries, and can be written and read.

The similarity after a correction is the inner product of a corrected query and a corrected document.
"""

from __future__ import annotations

import base64
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tempscale.correction.curve import Curve
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
        self, embeddings: Float[Tensor, "text dim"], tokens: Int[Tensor, " text"] | None = None, *, equal_norms: bool = False
    ) -> Float[Tensor, "text more"]:
        """Correct embeddings of documents.

        Args:
            embeddings: unit norm.
            tokens: each document's length, at least 1, where the correction depends on it.
            equal_norms: add a coordinate √(M² − ‖x‖²), M the largest possible norm, so that an index of cosines or of
                Euclidean distances ranks as the inner product does; queries have 0 there.

        Returns:
            Float32 on the CPU; as many rows, with one coordinate more for «length» and «csls», and one for `equal_norms`.

        Raises:
            CorrectionError: the dimension differs, lengths are missing or below 1, or numbers are not finite.
        """
        corrected = self._documents(*self._checked(embeddings, tokens, self.needs_tokens))
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
    def _documents(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """The corrected documents in float64."""

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

    def _documents(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.concatenate([embeddings, -self.curve(tokens)[:, None]], 1)

    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return np.concatenate([embeddings, np.ones((len(embeddings), 1))], 1)

    def _largest_norm(self) -> float:
        return float(np.sqrt(1.0 + self.curve.largest() ** 2))

    def _fitted(self) -> dict[str, Any]:
        return {"f": _curve_data(self.curve)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> Length:
        return cls(recipe, dim, _curve(fitted["f"]))


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

    def _documents(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return normalised(embeddings - self.of_documents) if self.unit else embeddings

    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        moved = embeddings - self.of_queries
        return normalised(moved) if self.unit else moved

    def _fitted(self) -> dict[str, Any]:
        return {"documents": _packed(self.of_documents), "queries": _packed(self.of_queries)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> Centre:
        return cls(recipe, dim, _unpacked(fitted["documents"], dim), _unpacked(fitted["queries"], dim))


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

    def _documents(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return normalised(embeddings - self.of_documents(tokens))

    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return normalised(embeddings - self.of_queries(tokens))

    def _fitted(self) -> dict[str, Any]:
        return {"documents": _curve_data(self.of_documents), "queries": _curve_data(self.of_queries)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> CentreByLength:
        return cls(recipe, dim, _curve(fitted["documents"], dim), _curve(fitted["queries"], dim))


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

    def _documents(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return normalised((embeddings - self.of_documents) @ self.matrix)

    def _queries(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        return normalised((embeddings - self.of_queries) @ self.matrix)

    def _fitted(self) -> dict[str, Any]:
        means = {"documents": _packed(self.of_documents), "queries": _packed(self.of_queries)}
        return means | {"matrix": _packed(self.matrix)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> Linear:
        of_documents, of_queries = (_unpacked(fitted[side], dim) for side in ("documents", "queries"))
        return cls(recipe, dim, of_documents, of_queries, _unpacked(fitted["matrix"], dim, dim))


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

    def _documents(self, embeddings: np.ndarray, tokens: np.ndarray) -> np.ndarray:
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
        return {"asking": _packed(self.asking), "asking_texts": len(self.asking)}

    @classmethod
    def _of(cls, recipe: Recipe, dim: int, fitted: Mapping[str, Any]) -> Csls:
        return cls(recipe, dim, _unpacked(fitted["asking"], int(fitted["asking_texts"]), dim))


KINDS: dict[str, type[Correction]] = {
    "length": Length, "centre": Centre, "centre_by_length": CentreByLength,
    "remove_mean_direction": Linear, "remove_top": Linear, "whiten": Linear, "csls": Csls,
}  # fmt: skip
"""The class of each kind of correction."""


def normalised(rows: np.ndarray) -> np.ndarray:
    """Rows of unit norm; a row that is 0 stays 0."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(norms > 0, norms, 1.0))


def _packed(values: np.ndarray) -> str:
    """Numbers as base64 of little-endian float64, which JSON keeps to the bit."""
    return base64.b64encode(np.ascontiguousarray(values, "<f8").tobytes()).decode()


def _unpacked(text: str, *shape: int) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(text, validate=True), "<f8").reshape(shape).astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("numbers that are not finite")
    return values


def _curve_data(curve: Curve) -> dict[str, Any]:
    values = curve.values.tolist() if curve.values.ndim == 1 else _packed(curve.values)
    return {"tokens": list(curve.tokens), "values": values}


def _curve(data: Mapping[str, Any], *shape: int) -> Curve:
    tokens = tuple(map(float, data["tokens"]))
    values = _unpacked(data["values"], len(tokens), *shape) if shape else np.array(data["values"], np.float64)
    if not tokens or len(values) != len(tokens) or not np.isfinite(values).all() or list(tokens) != sorted(set(tokens)):
        raise ValueError("a curve needs ascending lengths and a finite value for each")
    if tokens[0] < 1 - 1e-9:
        raise ValueError("lengths below 1 token")
    return Curve(tokens, values)
