"""Results of a SOCM sample's pairs: cells of length intervals, rankings, and the (d_μ, d_Σ) plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tempscale.stats.enough import VALUES_FOR_AN_ERROR
from tempscale.stats.errors import between_error, documents_error, within_error
from tempscale_jobs.tables.columns import finite

SAME_MEAN_SHARE = 0.01
_ONLY_OF_GROUPS = (
    "groups", "socm_p50_se", "socm_p95_se", "socm_over_1_share_se", "socm_over_1_share_se_superpopulation",
)  # fmt: skip
"""Columns that have figures only for groups."""
_SCATTER_PAIRS, _SCATTER_BINS = 20_000, 64


@dataclass(frozen=True)
class Sample:
    """The texts of a sample and all their pairs: symmetric matrices, NaN on the diagonal."""

    ids: np.ndarray
    tokens: np.ndarray
    interval: np.ndarray
    d_mu: np.ndarray
    d_sigma: np.ndarray
    value: np.ndarray

    def pairs(self) -> np.ndarray:
        """SOCM of every unordered pair."""
        return self.value[np.triu_indices(len(self.ids), 1)]

    def inside(self) -> np.ndarray:
        """Each text's mean with the other texts of its interval; NaN without others."""
        by_text = [self.value[k, self.interval == self.interval[k]] for k in range(len(self.ids))]
        return np.array([mean(values) for values in by_text], dtype=float)

    def overall(self) -> np.ndarray:
        """Each text's mean with all others."""
        return np.array([mean(values) for values in self.value], dtype=float)


class PairValues(NamedTuple):
    """Values of listed pairs; `first` and `second` are places in a list of texts."""

    first: np.ndarray
    second: np.ndarray
    d_mu: np.ndarray
    d_sigma: np.ndarray
    value: np.ndarray

    def by(self, ranking: str) -> np.ndarray:
        """The values that a ranking is ordered by."""
        return self.value if ranking == "socm" else self.d_sigma

    def some(self, chosen: np.ndarray) -> PairValues:
        """Some of the pairs."""
        return PairValues(*(column[chosen] for column in self))


def mean(values: np.ndarray) -> float | None:
    """The mean of the values that are not NaN; None without values."""
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else None


def cells(
    edges: tuple[int, ...], sample: Sample, correction: np.ndarray, exact: bool, documents: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """One row for each cell of intervals; `correction` is each interval's finite-population factor, `exact` means no ε."""
    rows = []
    interval = sample.interval
    present = np.unique(interval).tolist()
    for a in present:
        for b in [k for k in present if k >= a]:
            cell = np.ix_(interval == a, interval == b)
            block = sample.value[cell]
            mask = np.triu(np.ones_like(block, dtype=bool), 1) if a == b else np.ones_like(block, dtype=bool)
            values = block[mask]
            if not len(values):
                continue
            corrected, error = _errors(block, a == b, correction[a], correction[b])
            if documents is not None:
                error = _documents_error(block, a == b, documents[interval == a], documents[interval == b])
            rows.append(
                {"interval_a": edges[a], "interval_b": edges[b], "pairs": len(values), "exact": exact, "d_sigma_error": 0.0}
                | {f"{d}_mean": float(getattr(sample, d)[cell][mask].mean()) for d in ("d_mu", "d_sigma")}
                | {"socm_mean": float(values.mean()), "socm_se": corrected, "socm_se_superpopulation": error}
                | {f"socm_p{share}": float(np.quantile(values, share / 100)) for share in (50, 95)}
                | {"socm_over_1_share": float((values > 1).mean())}
                | dict.fromkeys(_ONLY_OF_GROUPS)
            )
    return rows


def _errors(block: np.ndarray, inside: bool, correction_a: float, correction_b: float) -> tuple[float | None, float | None]:
    """Standard errors of a cell's mean, with and without finite-population corrections; None for too few texts."""
    texts_a, texts_b = block.shape
    if inside:
        error = within_error(np.nanmean(block, axis=1).var(ddof=1), texts_a) if texts_a >= VALUES_FOR_AN_ERROR else None
        return (None if error is None else error * correction_a), error
    if texts_a < 2 or texts_b < 2:
        return None, None
    rows, columns = block.mean(1).var(ddof=1), block.mean(0).var(ddof=1)
    corrected = between_error(rows * correction_a**2, texts_a, columns * correction_b**2, texts_b)
    return corrected, between_error(rows, texts_a, columns, texts_b)


def _documents_error(block: np.ndarray, inside: bool, rows: np.ndarray, columns: np.ndarray) -> float | None:
    """Standard error of a cell's mean over corpora of other documents; None for too few documents."""
    if inside:
        return finite(documents_error([np.nanmean(block, axis=1)], [2.0], [rows])) if len(block) > 1 else None
    return finite(documents_error([block.mean(1), block.mean(0)], [1.0, 1.0], [rows, columns]))


def closest(cosine: np.ndarray) -> np.ndarray:
    """Whether each pair is among the 1 % of highest cosine, as booleans."""
    return np.asarray(cosine >= (np.quantile(cosine, 1 - SAME_MEAN_SHARE) if len(cosine) else 0.0))


def ranked(sample: Sample, embeddings: np.ndarray, size: int) -> list[dict[str, Any]]:
    """The pairs of largest SOCM, and those of largest d_Σ among the 1 % of highest cosine; ties by id."""
    rows: list[dict[str, Any]] = []
    row, column = np.triu_indices(len(sample.ids), 1)
    if not len(row):
        return rows
    vectors = embeddings.astype(np.float64)
    cosine = (vectors @ vectors.T)[row, column]
    for ranking, scores, selected in (("socm", sample.value, slice(None)), ("same_mean", sample.d_sigma, closest(cosine))):
        first, second = row[selected], column[selected]
        pairs = PairValues(first, second, *(m[first, second] for m in (sample.d_mu, sample.d_sigma, sample.value)))
        best_pairs = best(pairs, cosine[selected], scores[first, second], Named(sample.ids, sample.tokens), size)
        rows += [{"over": "sample", "ranking": ranking} | pair for pair in best_pairs]
    return rows


class Named(NamedTuple):
    """The texts of some pairs."""

    ids: np.ndarray
    tokens: np.ndarray


def best(pairs: PairValues, cosine: np.ndarray, score: np.ndarray, texts: Named, size: int) -> list[dict[str, Any]]:
    """The pairs of largest score; ties by ids. `cosine` is that of each pair's embeddings."""
    ids, tokens = texts
    if not len(score):
        return []
    last = min(size, len(score))
    # Keep all pairs that tie with the last place, so that ids decide.
    ordered = []
    for k in np.flatnonzero(score >= np.partition(score, -last)[-last]).tolist():
        a, b = sorted((int(pairs.first[k]), int(pairs.second[k])), key=lambda text: str(ids[text]))
        ordered.append((-score[k], ids[a], ids[b], a, b, k))
    return [
        {"rank": rank, "text_id_a": id_a, "text_id_b": id_b, "tokens_a": int(tokens[a]), "tokens_b": int(tokens[b])}
        | {"d_mu": float(pairs.d_mu[k]), "d_sigma": float(pairs.d_sigma[k]), "socm": float(pairs.value[k])}
        | {"cosine": float(cosine[k])}
        for rank, (_, id_a, id_b, a, b, k) in enumerate(sorted(ordered)[:size], start=1)
    ]


def scatter(x: np.ndarray, y: np.ndarray, seed: int) -> list[dict[str, Any]]:
    """The occupied bins of the (d_μ, d_Σ) plane of pairs, then a seeded sample of them."""
    if not len(x):
        return []
    # The upper edge is slightly above the largest value, so that this value is inside the last bin.
    limits = [[0.0, max(1e-9, float(values.max())) * (1 + 1e-9)] for values in (x, y)]
    counts, x_edges, y_edges = np.histogram2d(x, y, bins=_SCATTER_BINS, range=limits)
    widths = {"d_mu_width": float(x_edges[1]), "d_sigma_width": float(y_edges[1])}
    bins = [
        {"kind": "bin", "d_mu": float(x_edges[i]), "d_sigma": float(y_edges[j]), "pairs": int(counts[i, j])} | widths
        for i, j in zip(*np.nonzero(counts), strict=True)
    ]
    chosen = np.sort(np.random.default_rng(seed).permutation(len(x))[:_SCATTER_PAIRS])
    pair = {"kind": "pair", "d_mu_width": 0.0, "d_sigma_width": 0.0, "pairs": 1}
    return bins + [pair | {"d_mu": float(x[k]), "d_sigma": float(y[k])} for k in chosen]
