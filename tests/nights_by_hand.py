"""A night's summary row from vectors and lengths alone: every cosine in one matrix, errors typed from their equations."""

import numpy as np

from tempscale_jobs.tables.audit import COLLAPSE_SUMMARY

EDGES = (0, 32, 64, 100)
FEWEST = 30


def summary_row(model, temperature="1.0", **figures):
    """A row of collapse_summary: what is not given is not known."""
    row = dict.fromkeys(column.name for column in COLLAPSE_SUMMARY.columns)
    return row | {"model": model, "temperature": temperature, "schema_version": 1} | figures


def summary(vectors, tokens, *, model="small", corpus_texts=None, truncated=None, **more):
    """The row of collapse_summary for unit vectors and their lengths; figures that these do not tell are null.

    mean over pairs: (Σ_ij u_i·u_j − n)/(n(n−1)); its error 2·sd(per-text means)/√n; the gap's, of both ends in squares.
    """
    vectors, tokens = np.asarray(vectors, np.float64), np.asarray(tokens)
    n, cosine = len(vectors), np.asarray(vectors, np.float64) @ np.asarray(vectors, np.float64).T
    row = summary_row(model, tau=1.0, texts=n, rejected=0)
    row |= {"corpus_texts": corpus_texts or n, "tokens": int(tokens.sum()), "socm_texts": 0}
    row["cosine_mean"], error = _mean(cosine)
    row |= errors("cosine", error, n, row["corpus_texts"])
    which = np.searchsorted(EDGES, tokens, side="right") - 1
    enough = [k for k in range(len(EDGES)) if (which == k).sum() >= FEWEST]
    if len(enough) > 1:
        ends = [which == k for k in (enough[0], enough[-1])]
        (short, e_short), (long, e_long) = (_mean(cosine[np.ix_(end, end)]) for end in ends)
        row |= {"collapse_gap": long - short, "gap_texts": int(min(end.sum() for end in ends))}
        row |= {"gap_shortest": EDGES[enough[0]], "gap_longest": EDGES[enough[-1]]}
        row |= errors("collapse_gap", np.hypot(e_short, e_long), n, row["corpus_texts"])
    row["truncated_share"] = float(np.mean(truncated)) if truncated is not None else 0.0
    return row | more


def errors(name, error, n, corpus_texts):
    return {f"{name}_se_superpopulation": float(error), f"{name}_se": float(error) * (1 - n / corpus_texts) ** 0.5}


def _mean(cosine):
    n = len(cosine)
    means = (cosine.sum(1) - np.diag(cosine)) / (n - 1)
    return float(means.mean()), 2 * means.std(ddof=1) / n**0.5
