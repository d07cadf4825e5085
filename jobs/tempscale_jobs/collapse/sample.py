"""The sample of texts for SOCM: a simple random sample, or one by length interval for a wanted standard error."""

from __future__ import annotations

import math

import numpy as np

from tempscale.stats.enough import VALUES_FOR_AN_ERROR
from tempscale.stats.sample import seeded_sample
from tempscale_jobs.collapse.socm_tables import Sample
from tempscale_jobs.embedding.layout import Layout

PILOT_TEXTS = 40
"""Texts of each interval in the pilot sample; its pairs give the variances."""


def simple(layout: Layout, size: int, seed: int) -> list[str]:
    """The `size` texts of smallest keyed hash, so that every night draws the same sample."""
    return seeded_sample(layout.ids.tolist(), size, seed)


def stratified(layout: Layout, sizes: np.ndarray, seed: int) -> list[str]:
    """The texts of smallest keyed hash in each interval, so that a larger sample contains a smaller one."""
    return [
        text_id
        for a, size in enumerate(sizes)
        for text_id in seeded_sample(layout.ids[layout.interval == a].tolist(), int(size), seed)
    ]


def pilot_sizes(layout: Layout) -> np.ndarray:
    """Texts of each interval in the pilot."""
    sizes: np.ndarray = np.minimum(layout.texts(), PILOT_TEXTS)
    return sizes


def wanted_sizes(pilots: list[Sample], layout: Layout, error: float, most: int) -> np.ndarray:
    """Number of texts in each interval that gives every cell the standard error `error`, with at most `most` texts in all.

    A cell's error is 2·sd/√n inside an interval and √(v_a/n_a + v_b/n_b) between two, v the variance over texts of their
    mean with the other interval; each side gets half. From N texts of the corpus, n' = n/(1+n/N) are enough. The temperature
    (a pilot each) that needs most texts decides.
    """
    texts = layout.texts()
    need = np.zeros(len(texts))
    for pilot in pilots:
        members = [np.flatnonzero(pilot.interval == a) for a in range(len(texts))]
        for a, rows in enumerate(members):
            for b, columns in enumerate(members):
                if len(rows) < VALUES_FOR_AN_ERROR or len(columns) < (VALUES_FOR_AN_ERROR if a == b else 1):
                    continue
                variance = float(np.nanmean(pilot.value[np.ix_(rows, columns)], axis=1).var(ddof=1))
                need[a] = max(need[a], (4 if a == b else 2) * variance / error**2)
    behind = np.array([layout.population(float(n)) for n in texts])
    enough = np.ceil(need / (1 + need / np.maximum(behind, 1)))
    sizes: np.ndarray = np.minimum(texts, np.maximum(enough, pilot_sizes(layout))).astype(int)
    if sizes.sum() > most:
        sizes = np.array([max(min(int(n), 2), math.floor(n * most / sizes.sum())) for n in sizes])
    return sizes
