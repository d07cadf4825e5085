"""What an index could hold instead of a model's vectors: fewer dimensions, codes of eight bits, signs, corrected vectors.

A variant is a text of steps joined by «+», such as «dims:256+int8» or «centre+bits». Each step changes documents and
queries; the similarity is the inner product of a changed query and a changed document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tempscale.correction.errors import CorrectionError
from tempscale.correction.fit import fit
from tempscale.correction.recipes import Recipe
from tempscale.correction.values import Centre, Correction, normalised
from tempscale.correction.variant_names import step_names

_CODES = 255
"""The largest code of eight bits."""

Rows = Float[np.ndarray, "text dim"]
Lengths = Int[np.ndarray, " text"]
Groups = Mapping[str, Sequence[str]]
"""By column, the name of each text's group."""
_NO_GROUPS: Groups = {}


class _Texts(NamedTuple):
    """Some texts that a step is fitted to."""

    rows: Rows
    tokens: Lengths | None
    groups: Groups = _NO_GROUPS


class _Step(Protocol):
    """A fitted step; both methods take and give float64."""

    def documents(self, rows: Rows, tokens: Lengths, groups: Groups = _NO_GROUPS) -> Rows:
        """Change documents."""

    def queries(self, rows: Rows, tokens: Lengths) -> Rows:
        """Change queries."""


@dataclass(frozen=True)
class _Dims:
    """The first numbers of each vector, of unit norm again, as of Matryoshka models."""

    dims: int

    def documents(self, rows: Rows, tokens: Lengths, groups: Groups = _NO_GROUPS) -> Rows:
        return normalised(rows[:, : self.dims])

    def queries(self, rows: Rows, tokens: Lengths) -> Rows:
        return self.documents(rows, tokens)


@dataclass(frozen=True)
class _Codes:
    """Documents as codes 0 … 255 of each dimension's range; queries as they are.

    c = ⌊(x − low)/step⌉, cut to [0, 255],   x' = low + c·step,   step = (high − low)/255
    """

    low: Float[np.ndarray, " dim"]
    step: Float[np.ndarray, " dim"]

    @classmethod
    def of(cls, rows: Rows) -> _Codes:
        low = rows.min(0)
        return cls(low, (rows.max(0) - low) / _CODES)

    def documents(self, rows: Rows, tokens: Lengths, groups: Groups = _NO_GROUPS) -> Rows:
        step = np.where(self.step > 0, self.step, 1.0)
        codes = np.clip(np.rint((rows - self.low) / step), 0, _CODES)
        held: Rows = self.low + codes * self.step
        return held

    def queries(self, rows: Rows, tokens: Lengths) -> Rows:
        return rows


class _Signs:
    """Both sides as signs ±1, a 0 as −1: their inner product is d − 2h, h the bits that differ."""

    def documents(self, rows: Rows, tokens: Lengths, groups: Groups = _NO_GROUPS) -> Rows:
        return np.where(rows > 0, 1.0, -1.0)

    def queries(self, rows: Rows, tokens: Lengths) -> Rows:
        return self.documents(rows, tokens)


class _Corrected(NamedTuple):
    """A fitted correction; «centre» moves documents too, which ranks them alike and lets codes and signs follow it."""

    correction: Correction

    def documents(self, rows: Rows, tokens: Lengths, groups: Groups = _NO_GROUPS) -> Rows:
        if isinstance(self.correction, Centre) and not self.correction.unit:
            return np.asarray(rows - self.correction.of_documents)
        of_column = _groups_for(self.correction.recipe, groups)
        moved = self.correction.documents(torch.from_numpy(rows), torch.from_numpy(tokens), groups=of_column)
        return np.asarray(moved, np.float64)

    def queries(self, rows: Rows, tokens: Lengths) -> Rows:
        return np.asarray(self.correction.queries(torch.from_numpy(rows), torch.from_numpy(tokens)), np.float64)


@dataclass(frozen=True)
class Variant:
    """A variant whose steps are fitted."""

    what: str
    """Its canonical text."""
    steps: tuple[_Step, ...]
    vector_bytes: float
    """The bytes of a stored document."""
    scale: float
    """What its inner products are multiplied by to be like cosines: 1, or 1/d of d signs."""

    @classmethod
    def fitted(
        cls,
        what: str,
        documents: Float[Tensor, "text dim"],
        tokens: Int[Tensor, " text"],
        queries: Float[Tensor, "query dim"] | None = None,
        query_tokens: Int[Tensor, " query"] | None = None,
        *,
        groups: Groups = _NO_GROUPS,
    ) -> Variant:
        """Fit a variant's steps, each to what the steps before it make of the texts.

        Args:
            what: such as «dims:256», «int8», «centre+bits»; the empty text leaves vectors as they are.
            documents: unit norm.
            tokens: the documents' lengths.
            queries: unit norm; needed by corrections that are fitted to queries.
            query_tokens: their lengths.
            groups: the documents' groups by each column that a correction depends on.

        Raises:
            CorrectionError: it is no variant, has more dimensions than there are, or a correction cannot be fitted.
        """
        names, steps = step_names(what) if what else [], list[_Step]()
        here, lengths, asking = documents.double().numpy(), tokens.numpy(), None
        if queries is not None:
            asking = _Texts(queries.double().numpy(), None if query_tokens is None else query_tokens.numpy())
        for name in names:
            step = _fitted(name, _Texts(here, lengths, groups), asking)
            steps.append(step)
            here = step.documents(here, lengths, groups)
            if asking is not None:
                asking = None if asking.tokens is None else asking._replace(rows=step.queries(asking.rows, asking.tokens))
        dim, last = here.shape[1], names[-1] if names else ""
        vector_bytes = {"int8": float(dim), "bits": float(-(-dim // 8))}.get(last, 4.0 * dim)
        return cls("+".join(names), tuple(steps), vector_bytes, 1 / dim if last == "bits" else 1.0)

    def documents(self, rows: Rows, tokens: Lengths, groups: Groups = _NO_GROUPS) -> Float[np.ndarray, "text more"]:
        """What an index would hold of some documents, as float32."""
        for step in self.steps:
            rows = step.documents(rows.astype(np.float64), tokens, groups)
        return rows.astype(np.float32)

    def queries(self, rows: Rows, tokens: Lengths) -> Float[np.ndarray, "query more"]:
        """Queries for it, as float32."""
        for step in self.steps:
            rows = step.queries(rows.astype(np.float64), tokens)
        return rows.astype(np.float32)


def _fitted(name: str, texts: _Texts, queries: _Texts | None) -> _Step:
    """A step that is fitted to some documents and queries."""
    rows = texts.rows
    if name == "int8":
        return _Codes.of(rows)
    if name == "bits":
        return _Signs()
    if name.startswith("dims:"):
        dims = int(name.removeprefix("dims:"))
        if dims > rows.shape[1]:
            raise CorrectionError(f"{name}: the vectors have {rows.shape[1]} dimensions")
        return _Dims(dims)
    recipe = Recipe.of(name)
    of_texts, asking = (
        (None, None) if side is None else (torch.from_numpy(side.rows), _tensor(side.tokens)) for side in (texts, queries)
    )
    return _Corrected(fit(recipe, *of_texts, *asking, groups=_groups_for(recipe, texts.groups)))


def _tensor(tokens: Lengths | None) -> Tensor | None:
    return None if tokens is None else torch.from_numpy(tokens)


def _groups_for(recipe: Recipe, groups: Groups) -> Sequence[str] | None:
    """The groups that a correction depends on."""
    return None if recipe.column is None else groups.get(recipe.column)
