"""A share of a population, from a simple random sample of it."""

from __future__ import annotations


def clopper_pearson(hits: int, sampled: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share p, of which `hits` of `sampled` were found.

        low  = the (1−c)/2 quantile of Beta(k, n−k+1),  0 for k = 0
        high = the (1+c)/2 quantile of Beta(k+1, n−k),  1 for k = n          (Clopper and Pearson 1934)

    Args:
        hits: k, from 0 to n.
        sampled: n, ≥ 1.
        confidence: c, in (0, 1); two-sided. The upper end alone holds with probability (1+c)/2.

    Returns:
        (low, high). It contains p with probability c at least, whatever p is.

    Raises:
        ValueError: k is not between 0 and n, or n is 0.
    """
    from scipy.stats import beta

    if not 0 <= hits <= sampled or sampled < 1:
        raise ValueError(f"{hits} of {sampled} is no share")
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, sampled - hits + 1))
    high = 1.0 if hits == sampled else float(beta.ppf(1 - tail, hits + 1, sampled - hits))
    return low, high
