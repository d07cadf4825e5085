"""Fit a correction to embeddings of documents, their lengths, and embeddings of queries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from tempscale.correction.curve import Curve
from tempscale.correction.errors import CorrectionError
from tempscale.correction.recipes import LEAST_ASKING, LEAST_TEXTS, Recipe
from tempscale.correction.values import (
    Centre,
    CentreBy,
    CentreByLength,
    Correction,
    Csls,
    Length,
    Linear,
    checked,
    checked_groups,
)
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL


def fit(
    recipe: str | Recipe,
    documents: Float[Tensor, "text dim"],
    tokens: Int[Tensor, " text"] | None = None,
    queries: Float[Tensor, "query dim"] | None = None,
    query_tokens: Int[Tensor, " query"] | None = None,
    *,
    groups: Sequence[str] | None = None,
) -> Correction:
    """Fit a correction; the classes in `values` have the equations.

    Args:
        recipe: such as «length», «centre», «centre_by(language)», «whiten(0.5)» or «csls(10, 0.5)»; see `Recipe.of`.
        documents: unit norm, at least 100.
        tokens: the documents' lengths, for «length» and «centre_by_length».
        queries: unit norm, at least 100; needed by «length», «centre», «centre_by_length», «centre_by» and «csls».
        query_tokens: their lengths, for «centre_by_length».
        groups: the documents' groups by name, for «centre_by».

    Returns:
        The correction; the same for the same rows in any order, up to rounding.

    Raises:
        CorrectionError: the recipe is unknown, texts are fewer than 100, needed queries, lengths or groups are missing,
            numbers are not finite, or dimensions differ.
    """
    recipe = Recipe.of(recipe) if isinstance(recipe, str) else recipe
    name = recipe.canonical
    rows, lengths = checked(documents, tokens, recipe.kind in ("length", "centre_by_length"), name)
    dim = rows.shape[1]
    _enough(len(rows), name, "documents")
    if queries is None:
        if recipe.asks:
            raise CorrectionError(
                f"{name} is fitted to queries, and none are given; the mean of the documents cannot replace them"
            )
        asking, asked_lengths = None, None
    else:
        asking, asked_lengths = checked(queries, query_tokens, recipe.kind == "centre_by_length", name, dim)
        _enough(len(asking), name, "queries", LEAST_ASKING if recipe.kind == "length" else LEAST_TEXTS)
    mean = rows.mean(0)
    of_queries = mean if asking is None else asking.mean(0)
    if recipe.kind == "remove_mean_direction":
        return Linear(recipe, dim, np.zeros(dim), np.zeros(dim), _off(mean, recipe))
    if recipe.kind in ("remove_top", "whiten"):
        return Linear(recipe, dim, mean, of_queries, _matrix(recipe, rows - mean))
    assert asking is not None
    if recipe.kind == "length":
        similarity = rows @ of_queries
        return Length(recipe, dim, _curve_of(lengths, similarity - similarity.mean(), recipe))
    if recipe.kind == "centre":
        return Centre(recipe, dim, mean, of_queries)
    if recipe.kind == "centre_by":
        return _centre_by(recipe, rows, checked_groups(groups, len(rows), name), of_queries)
    if recipe.kind == "centre_by_length":
        assert asked_lengths is not None
        curves = _curve_of(lengths, rows, recipe), _curve_of(asked_lengths, asking, recipe)
        return CentreByLength(recipe, dim, *curves)
    return Csls(recipe, dim, asking)


def _enough(texts: int, name: str, kind: str, least: int = LEAST_TEXTS) -> None:
    if texts < least:
        raise CorrectionError(f"{name} needs at least {least} {kind}; there are {texts}")


def _centre_by(recipe: Recipe, rows: np.ndarray, groups: np.ndarray, of_queries: np.ndarray) -> CentreBy:
    """The means of the groups with at least 30 documents, in the order of their names, then that of all others together."""
    names, code, texts = np.unique(groups, return_inverse=True, return_counts=True)
    large = texts >= TEXTS_FOR_AN_INTERVAL
    place = np.where(large, np.cumsum(large) - 1, large.sum())
    of_text = place[code]
    used = np.bincount(of_text) >= TEXTS_FOR_AN_INTERVAL  # All but the last, if the others together are too few as well.
    means = [rows[of_text == mean].mean(0) for mean in np.flatnonzero(used)]
    mean_of = {name: mean for name, mean in zip(names.tolist(), place.tolist(), strict=True) if used[mean]}
    return CentreBy(recipe, rows.shape[1], rows.mean(0), of_queries, np.array(means).reshape(-1, rows.shape[1]), mean_of)


def _curve_of(tokens: np.ndarray, values: np.ndarray, recipe: Recipe) -> Curve:
    return Curve.fitted(tokens, values, int(recipe.parameters[0]))


def _off(mean: np.ndarray, recipe: Recipe) -> np.ndarray:
    """The projection off the direction of a mean of unit vectors."""
    norm = float(np.linalg.norm(mean))
    if norm < np.finfo(np.float32).eps:
        raise CorrectionError(f"{recipe.canonical}: the mean of the documents is 0 and has no direction")
    return np.asarray(np.eye(len(mean)) - np.outer(mean / norm, mean / norm))


def _matrix(recipe: Recipe, centred: np.ndarray) -> np.ndarray:
    """W of `Linear`, from the covariance of the documents."""
    values, vectors = np.linalg.eigh(centred.T @ centred / len(centred))
    if recipe.kind == "remove_top":
        if not int(recipe.parameters[0]) < len(values):
            raise CorrectionError(f"{recipe.canonical} leaves nothing of {len(values)} dimensions")
        top = vectors[:, -int(recipe.parameters[0]) :]
        return np.asarray(np.eye(len(values)) - top @ top.T)
    # Directions in which the documents differ only by rounding have no variance to divide by.
    used = values > values.max() * len(values) * np.finfo(np.float32).eps if values.max() > 0 else values > 0
    scale = np.where(used, np.maximum(values, np.finfo(np.float64).tiny) ** (-float(recipe.parameters[0]) / 2), 0.0)
    return np.asarray((vectors * scale) @ vectors.T)
