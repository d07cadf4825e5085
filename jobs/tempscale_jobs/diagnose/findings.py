"""What a diagnosis found: single numbers with errors, from layers and embeddings of the chosen texts, and their states."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.special import stdtrit

from tempscale.collapse.length import mean_cosines
from tempscale.stats.enough import VALUES_FOR_A_SENTENCE, VALUES_FOR_AN_ERROR
from tempscale.stats.errors import documents_error, within_error
from tempscale_jobs.diagnose import versions
from tempscale_jobs.report.findings import Finding, Findings, State, changed, finding, measured, state
from tempscale_jobs.report.text import count
from tempscale_jobs.tables.columns import finite


class Looked(NamedTuple):
    """The measurements of one model under one temperature, one row per text, sorted by text."""

    sigma_a: pl.DataFrame
    """Columns text_id, source, `all`: the mean of σ_a over heads and layers, and `last`: that over the last one's heads."""
    within_cosine: pl.DataFrame
    """Columns text_id, source and within_cosine after the last layer."""
    seen: pl.DataFrame
    """Columns text_id, source, tokens, interval and embedding.

    `source` is the document that a text is a part of, null where texts come without documents.
    """


LAYERS = ("last", "all")
"""Over which layers σ_a is averaged: the last one, as in print, or all."""
_FIGURES = {
    "length": "{} by length", "temperature": changed("{}"), "versions": "{} by version",
    "versions_cosine": "cosine by version", "model": "within_cosine against the first model",
}  # fmt: skip
_RESTS_ON = {
    "length": "{} of the shortest and of the longest length interval",
    "temperature": "the same {} under the first temperature",
    "versions": "{}, each by its shortest and its longest version", "model": "the same {} in the first model",
}  # fmt: skip
_NOT_SHOWN = {
    "length": "that length is the cause: texts of other lengths are other texts",
    "temperature": "that search becomes better or worse",
}


def figure(row: Mapping[str, Any]) -> str:
    """The figure of a row of `diagnose_findings`; an older version had σ_a of all layers only, and named none."""
    return _FIGURES[row["finding"]].format("sigma_a_last" if row["layers"] == "last" else "sigma_a")


def decide(tables: Mapping[str, pl.DataFrame]) -> Findings:
    """The findings of a diagnosis, from its tables."""
    return Findings([*_differences(tables["diagnose_findings"]), *_assumptions(tables)])


def _differences(table: pl.DataFrame) -> Iterator[Finding]:
    for (_,), rows in table.group_by("model", maintain_order=True):
        for row in rows.to_dicts():
            kind = row["finding"].partition("_")[0]
            if kind == "temperature" and row["temperature"] == rows["temperature"][0]:
                continue
            basis = _RESTS_ON[kind].format(count(row["texts"], "document" if kind == "versions" else "text"))
            grounds = {"rests_on": basis, "not_shown": _NOT_SHOWN.get(kind, "")}
            yield finding(row, figure(row), _state(row), row["change"], row["change_se"], **grounds)


def _state(row: Mapping[str, Any]) -> State:
    """Whether a difference is more than noise, by Student's t over its texts or documents."""
    n = row["texts"]
    if n < VALUES_FOR_A_SENTENCE:
        return state(row["change"], None)
    freedom = max(1, n - (2 if row["finding"] == "length" else 1))
    return state(row["change"], row["change_se"], z=float(stdtrit(freedom, 0.975)))


def _assumptions(tables: Mapping[str, pl.DataFrame]) -> Iterator[Finding]:
    """How far the papers' theorems and assumptions hold here."""
    keys, exceeded = ("model", "temperature", "tau"), pl.col("sigma_a") > pl.col("sigma_a_bound")
    heads = tables["heads"].group_by(keys, maintain_order=True)
    bounds = heads.agg(pl.col("thm2_ratio").max(), exceeded.mean().alias("over_bound_share"), pl.len().alias("rows"))
    for row in bounds.to_dicts():
        for name in ("thm2_ratio", "over_bound_share"):
            rests_on = f"{row['rows']:,} heads of texts and layers"
            yield finding(row, name, measured(row[name]), row[name], rests_on=rests_on)
    for row in tables["equal_norms"].to_dicts() if "equal_norms" in tables else ():  # An older version has none.
        for name, error in (("norm_variation_mean", row["norm_variation_se"]), ("agree_share", None)):
            yield finding(row, name, measured(row[name]), row[name], error, rests_on=count(row["texts"], "text"))


def rows(own: Looked, first: Looked, base: Looked, document_of: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows of `diagnose_findings` of one model and temperature, against its first one and the first model (`base`)."""
    pairs = versions.shortest_and_longest(document_of, dict(own.seen.select("text_id", "tokens").iter_rows()))
    findings = []
    for layers in LAYERS:
        moved = own.sigma_a[layers] - first.sigma_a[layers]
        findings += [_length(own, layers), _difference("temperature", layers, moved, own.sigma_a["source"])]
        if pairs:
            sigma = dict(own.sigma_a.select("text_id", layers).iter_rows())
            moved = pl.Series([sigma[long] - sigma[short] for short, long in pairs])
            findings.append(_difference("versions", layers, moved, None))
    if len(pairs) > 1:
        findings.append(_versions_cosine(own, pairs))
    if base is not own:
        both = own.within_cosine.join(base.within_cosine, on="text_id", suffix="_base").sort("text_id")
        findings.append(_difference("model", "last", both["within_cosine"] - both["within_cosine_base"], both["source"]))
    return findings


def _length(looked: Looked, layers: str) -> dict[str, Any]:
    """σ_a in the longest interval with enough texts minus σ_a in the shortest; None where fewer than two have enough."""
    mine = looked.seen.select("text_id", "interval").join(looked.sigma_a, on="text_id", maintain_order="left")
    edges = mine.group_by("interval").len().filter(pl.col("len") >= VALUES_FOR_A_SENTENCE)["interval"].sort().to_list()
    if len(edges) < 2:
        return _row("length", layers, len(mine), None, None)
    ends = [mine.filter(pl.col("interval") == edge) for edge in (edges[0], edges[-1])]
    short, long = (end[layers].to_numpy() for end in ends)
    error: float | None = math.sqrt(short.var(ddof=1) / len(short) + long.var(ddof=1) / len(long))
    if not mine["source"].null_count():
        error = finite(documents_error([short, long], [-1.0, 1.0], [end["source"].to_numpy() for end in ends]))
    return _row("length", layers, len(short) + len(long), float(long.mean() - short.mean()), error)


def _versions_cosine(looked: Looked, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """The effect of length on embeddings of the same content: from the shortest to the longest version of documents."""
    vectors = dict(zip(looked.seen["text_id"], looked.seen["embedding"].to_numpy(), strict=True))
    short, long = (np.stack([vectors[pair[side]] for pair in pairs]) for side in (0, 1))
    moved, n = mean_cosines(long) - mean_cosines(short), len(pairs)
    error = within_error(float(moved.var(ddof=1)), n) if n >= VALUES_FOR_AN_ERROR else None
    return _row("versions_cosine", None, n, float(moved.mean()), error)


def _difference(finding: str, layers: str, values: pl.Series, source: pl.Series | None) -> dict[str, Any]:
    return _row(finding, layers, len(values), mean(values), error(values, source))


def _row(finding: str, layers: str | None, texts: int, change: float | None, error: float | None) -> dict[str, Any]:
    return {"finding": finding, "layers": layers, "texts": texts, "change": change, "change_se": error}


def equal_norms(seen: pl.DataFrame) -> dict[str, Any]:
    """How far S2's Appendix J is right: equal norms of the tokens, and tr Σ ≤ 2 where their mean cosine is large enough."""
    n = pl.col("tokens").cast(pl.Float64)
    condition = (n * pl.col("within_cosine") - 1) / (n - 1) >= 1 / 3
    both = seen.drop_nulls(["spread", "within_cosine"]).select(condition=condition, spread=pl.col("spread") <= 2)
    shares = (both["condition"], both["spread"], both["condition"] == both["spread"])
    names = ("condition_share", "spread_within_2_share", "agree_share")
    variation = seen["norm_variation"]
    return {
        "texts": len(seen),
        "norm_variation_mean": mean(variation),
        "norm_variation_se": error(variation, seen["source"]),
    } | {name: mean(share) for name, share in zip(names, shares, strict=True)}


def mean(values: pl.Series) -> float | None:
    """The mean of the known values; None where there are none."""
    known = values.drop_nulls().to_numpy().astype(np.float64)
    return finite(known.mean()) if len(known) else None


def error(values: pl.Series, source: pl.Series | None) -> float | None:
    """The standard error of the mean over texts, of documents where they come in some; None for fewer than two texts."""
    is_known = values.is_not_null()
    known = values.filter(is_known).to_numpy().astype(np.float64)
    if len(known) < 2:
        return None
    if source is None or source.null_count():
        return finite(known.std(ddof=1) / math.sqrt(len(known)))
    return finite(documents_error([known], [1.0], [source.filter(is_known).to_numpy()]))


def resemblance(vectors: np.ndarray, source: pl.Series) -> tuple[float | None, float | None]:
    """Mean cosine between unit vectors over all pairs, and its standard error; None where there are too few."""
    n = len(vectors)
    if n < 2:
        return None, None
    means = mean_cosines(vectors)
    if not source.null_count():
        return float(means.mean()), finite(documents_error([means], [2.0], [source.to_numpy()]))
    return float(means.mean()), finite(within_error(float(means.var(ddof=1)), n)) if n >= VALUES_FOR_AN_ERROR else None


PERPLEXITY = 30.0


def map_rows(seen: pl.DataFrame, seed: int) -> list[dict[str, Any]]:
    """The rows of the table `map` without key columns, from each text's columns.

    There are none for fewer than five texts, or without scikit-learn, which the extra `figures` installs.
    """
    if len(seen) < VALUES_FOR_A_SENTENCE or importlib.util.find_spec("sklearn") is None:
        return []
    places = placed(np.stack(seen["embedding"].to_list()), seed)
    distances = np.linalg.norm(places, axis=1)
    columns = seen.select("text_id", "tokens", "interval", "document").to_dicts()
    return [
        row | {"x": float(x), "y": float(y), "origin_distance": float(distance)}
        for row, (x, y), distance in zip(columns, places, distances, strict=True)
    ]


def placed(vectors: np.ndarray, seed: int) -> np.ndarray:
    """The t-SNE coordinates of the texts (texts, 2), centred; call it with one thread, as more threads change the digits."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    coordinates = TSNE(init="pca", perplexity=perplexity, random_state=seed % 2**32).fit_transform(
        vectors.astype(np.float32)
    )
    centred: np.ndarray = coordinates.astype(np.float64) - coordinates.astype(np.float64).mean(0)
    return centred
