"""Hubs: texts that are among the nearest of more askers than chance and their length explain; and reciprocity."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int
from scipy.special import bdtrc

from tempscale.collapse.exposure import Slots
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL

TIMES = 5
"""A hub is found at least so many times as often as the mean text of its length."""
CHANCE = 0.01
"""The chance that any text of a corpus is called a hub where all texts of one length are found equally often."""


def hub_counts(filled: Int[np.ndarray, " interval"], texts: Int[np.ndarray, " interval"]) -> Int[np.ndarray, " interval"]:
    """The least N_k of a hub of each length interval.

    With S slots that texts of the interval fill and n such texts, it is the smallest whole number c with

        c ≥ 5·S/n    and    P(X ≥ c) ≤ 0.01/N,    X ~ Binomial(S, 1/n), N the number of all texts.

    The second condition rules out what chance does if every text of a length is found equally often (Bonferroni over the N
    texts); the first what is certain but small: in many dimensions, few texts have exactly their share.

    Args:
        filled: slots by the interval of the text that fills them (`Slots.filled`).
        texts: the texts of each interval. Those with fewer than 30 count as one interval with all texts: S and n are then
            those of the corpus.

    Returns:
        Counts; one above S where no count of the interval is enough.
    """
    every, slots = int(texts.sum()), int(filled.sum())
    own = [(int(s), int(n)) if n >= TEXTS_FOR_AN_INTERVAL else (slots, every) for s, n in zip(filled, texts, strict=True)]
    return np.array([_least(s, n, CHANCE / max(1, every)) for s, n in own], dtype=np.int64)


def _least(slots: int, texts: int, chance: float) -> int:
    """The least count of a hub among some texts that fill some slots."""
    least = max(1, math.ceil(TIMES * slots / max(1, texts)))
    while least <= slots and bdtrc(least - 1, slots, 1 / texts) > chance:
        least += 1
    return least


def reciprocity(counts: Slots) -> float:
    """The share of the relations a → b (b is among the k nearest of a) for which b → a holds too.

    A pair u of texts has n_u = 0, 1 or 2 relations. n_u² − n_u is 2 if both hold, else 0. So, over all pairs,

        reciprocity = (Σ_u n_u² − Σ_u n_u)/Σ_u n_u .

    Args:
        counts: of all texts, each of which asks and is a unit: the entries of `pairs` add up to Σ_u n_u², and those of
            `filled` to Σ_u n_u.

    Returns:
        From 0 to 1, if every relation holds both ways; 0 without relations.
    """
    relations = int(counts.filled.sum())
    return (int(counts.pairs.sum()) - relations) / max(1, relations)
