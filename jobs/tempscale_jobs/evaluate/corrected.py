"""Correct the embeddings of a scored retrieval task, without embedding a text again.

A correction is fitted on the documents and the development queries alone, so that the held-out queries can confirm it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from tempscale.correction.fit import fit
from tempscale.correction.recipes import Recipe
from tempscale.correction.values import Correction, normalised
from tempscale.stats.sample import seeded_sample
from tempscale_jobs.evaluate.analyses import held_out

if TYPE_CHECKING:  # It imports mteb, which may not be installed.
    from tempscale_jobs.evaluate.grid_model import EncodedTexts

FITTED = 100_000
"""The most documents that a correction is fitted on; of more a random sample is taken."""
Groups = Mapping[str, Mapping[str, str]]
"""By column, the group of each document, by id."""
SHOWN, FIFTHS = 10, 5
"""The places of a result list that count for exposure, and the number of equally large length intervals."""


class CorrectedScores(NamedTuple):
    """A task scored with one correction, or with none."""

    recipe: str
    """The correction's canonical text, or `PLAIN`."""
    items: list[dict[str, Any]]
    """The queries, as those of a cell."""
    exposure: list[dict[str, Any]]
    """The exposure of each fifth of documents by length."""
    fitted: list[dict[str, Any]]
    """The correction of each split and subset, as data."""
    problem: str | None = None
    """Why the correction could not be fitted."""


@dataclass(frozen=True)
class Corrections:
    """The corrections to fit, and the held-out queries that confirm them."""

    recipes: tuple[str, ...]
    held_out: float
    seed: int

    def are_held_out(self, names: Sequence[str]) -> np.ndarray:
        """Whether each item is held out."""
        return held_out(names, self.held_out, self.seed)


class Sides(NamedTuple):
    """The unit embeddings of one split and subset, with ids and lengths of the texts before they were cut."""

    queries: np.ndarray
    query_ids: list[str]
    query_lengths: np.ndarray
    documents: np.ndarray
    document_ids: list[str]
    document_lengths: np.ndarray

    @classmethod
    def of(cls, own: Sequence[EncodedTexts]) -> Sides:
        """The sides from the calls of one split and subset, whose vectors are in files."""
        fields: list[Any] = []
        for role in ("query", "document"):
            calls = [texts for texts in own if texts.role == role and texts.vectors is not None]
            vectors = [np.load(texts.vectors) for texts in calls if texts.vectors is not None]
            fields.append(normalised(np.concatenate(vectors)).astype(np.float32))
            fields.append([key for texts in calls for key in texts.ids])
            fields.append(np.array([n for texts in calls for n in texts.whole], np.int64))
        return cls(*fields)

    def fitted(self, recipe: str, how: Corrections, groups: Groups) -> Correction:
        """A correction fitted on the documents, or a sample of them, with their groups, and on the development queries."""
        chosen: Any = slice(None)
        if len(self.document_ids) > FITTED:
            sample = set(seeded_sample(self.document_ids, FITTED, how.seed))
            chosen = np.array([name in sample for name in self.document_ids])
        ids = np.array(self.document_ids, dtype=object)[chosen].tolist()
        development = ~how.are_held_out(self.query_ids)
        documents, lengths = self.documents[chosen], np.maximum(self.document_lengths[chosen], 1)
        return fit(
            recipe, torch.from_numpy(documents), torch.from_numpy(lengths), torch.from_numpy(self.queries[development]),
            torch.from_numpy(np.maximum(self.query_lengths[development], 1)),
            groups=groups_of(Recipe.of(recipe), ids, groups),
        )  # fmt: skip


def exposures(
    here: dict[str, str], sides: Sides, results: dict[str, dict[str, float]], how: Corrections
) -> list[dict[str, Any]]:
    """The exposure of each fifth b of documents by length in the first ten results of held-out queries, with its error."""
    # exposure_b = (share of the places that documents of b take)/(share of b in the documents)
    edges = np.quantile(sides.document_lengths, np.arange(1, FIFTHS) / FIFTHS, method="nearest")
    fifth = np.searchsorted(edges, sides.document_lengths, side="left")
    of_document = dict(zip(sides.document_ids, fifth.tolist(), strict=True))
    counts = []
    for query, held in zip(sides.query_ids, how.are_held_out(sides.query_ids), strict=True):
        if held and query in results:
            # Ties are broken by id, as trec_eval does.
            ranked = sorted(results[query].items(), key=lambda pair: (pair[1], pair[0]), reverse=True)[:SHOWN]
            counts.append(np.bincount([of_document[document] for document, _ in ranked], minlength=FIFTHS))
    rows, matrix = [], np.array(counts).reshape(-1, FIFTHS)
    for k in range(FIFTHS):
        inside = fifth == k
        if not inside.any() or not len(matrix):
            continue
        share, places = float(inside.mean()), float(matrix.sum() / len(matrix))
        lengths = sides.document_lengths[inside]
        error = float(matrix[:, k].std(ddof=1) / np.sqrt(len(matrix)) / places / share) if len(matrix) > 1 else None
        rows.append(
            here
            | {"tokens_from": int(lengths.min()), "tokens_to": int(lengths.max()), "documents": int(inside.sum())}
            | {"queries": len(matrix), "exposure": float(matrix[:, k].mean() / places / share), "exposure_se": error}
        )
    return rows


def groups_of(recipe: Recipe, ids: Sequence[str], groups: Groups) -> list[str] | None:
    """The groups of documents that a correction depends on; None if it depends on none, or the task has no such column."""
    if recipe.column is None or recipe.column not in groups:
        return None
    return [groups[recipe.column][text_id] for text_id in ids]


def moved(correction: Correction, call: EncodedTexts, vectors: np.ndarray, groups: Groups) -> np.ndarray:
    """Corrected embeddings of one call."""
    rows = torch.from_numpy(normalised(vectors.astype(np.float64)).astype(np.float32))
    tokens = torch.from_numpy(np.maximum(np.array(call.whole, np.int64), 1))
    if call.role == "query":
        return correction.queries(rows, tokens).numpy()
    return correction.documents(rows, tokens, groups=groups_of(correction.recipe, call.ids, groups)).numpy()
