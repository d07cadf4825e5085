"""What a look inside says in single numbers with errors: the rows of the table `findings`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from jobs import versions
from tempscale.length import mean_cosines, within_error

FEWEST = 5
"""Texts that an interval needs to stand for the short or for the long ones."""


class Looked(NamedTuple):
    """What one model showed under one temperature, a row a text, by text."""

    sigma_a: pl.DataFrame
    """text_id, and sigma_a: the mean over heads and layers."""
    within_cosine: pl.DataFrame
    """text_id, and within_cosine behind the last layer."""
    seen: pl.DataFrame
    """text_id, tokens, interval, embedding."""


def rows(own: Looked, first: Looked, base: Looked, document_of: Mapping[str, str]) -> list[dict[str, Any]]:
    """The findings of one model under one temperature.

    Args:
        own: what it showed.
        first: the same model under the first temperature.
        base: the first model under this temperature.
        document_of: the document of each text that is a version of one.
    """
    found = [*_length(own), _difference("temperature", own.sigma_a["sigma_a"] - first.sigma_a["sigma_a"])]
    pairs = versions.ends(document_of, dict(own.seen.select("text_id", "tokens").iter_rows()))
    if pairs:
        found += _versions(own, pairs)
    if base is not own:
        both = own.within_cosine.join(base.within_cosine, on="text_id", suffix="_base").sort("text_id")
        found.append(_difference("model", both["within_cosine"] - both["within_cosine_base"]))
    return found


def _length(own: Looked) -> list[dict[str, Any]]:
    """σ_a of the longest interval of enough texts minus that of the shortest; unknown where there is but one."""
    mine = own.seen.select("text_id", "interval").join(own.sigma_a, on="text_id", maintain_order="left")
    edges = mine.group_by("interval").len().filter(pl.col("len") >= FEWEST)["interval"].sort().to_list()
    if len(edges) < 2:
        return [{"finding": "length", "texts": len(mine), "change": None, "change_se": None}]
    short, long = (mine.filter(pl.col("interval") == edge)["sigma_a"].to_numpy() for edge in (edges[0], edges[-1]))
    error = math.sqrt(short.var(ddof=1) / len(short) + long.var(ddof=1) / len(long))
    change = float(long.mean() - short.mean())
    return [{"finding": "length", "texts": len(short) + len(long), "change": change, "change_se": error}]


def _versions(own: Looked, pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """What length changes with the content held: from the shortest to the longest version of the same documents."""
    sigma = dict(own.sigma_a.iter_rows())
    found = [_difference("versions", pl.Series([sigma[long] - sigma[short] for short, long in pairs]))]
    vectors = dict(zip(own.seen["text_id"], own.seen["embedding"].to_numpy(), strict=True))
    short, long = (np.stack([vectors[pair[side]] for pair in pairs]) for side in (0, 1))
    n = len(pairs)
    if n > 1:
        moved = mean_cosines(long) - mean_cosines(short)
        error = within_error(float(moved.var(ddof=1)), n) if n > 2 else None
        found.append({"finding": "versions_cosine", "texts": n, "change": float(moved.mean()), "change_se": error})
    return found


def _difference(finding: str, values: pl.Series) -> dict[str, Any]:
    return {"finding": finding, "texts": len(values), "change": mean(values), "change_se": error(values)}


def mean(values: pl.Series) -> float | None:
    """The mean of what is known; None where nothing is."""
    known = values.drop_nulls().to_numpy().astype(np.float64)
    return finite(known.mean()) if len(known) else None


def error(values: pl.Series) -> float | None:
    """The standard error of the mean over texts; None for one of them."""
    known = values.drop_nulls().to_numpy()
    return finite(known.std(ddof=1) / math.sqrt(len(known))) if len(known) > 1 else None


def finite(value: float) -> float | None:
    """The number, or None where it is none."""
    return float(value) if math.isfinite(value) else None


def resemblance(vectors: np.ndarray) -> tuple[float | None, float | None]:
    """Mean cosine between unit vectors over all pairs, and its standard error; None where there are too few."""
    n = len(vectors)
    if n < 2:
        return None, None
    means = mean_cosines(vectors)
    return float(means.mean()), finite(within_error(float(means.var(ddof=1)), n)) if n > 2 else None
