"""Choose the texts of the groups in which SOCM is measured."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tempscale.stats.enough import GROUPS_FOR_AN_ERROR
from tempscale.stats.errors import enough_documents
from tempscale.stats.groups import texts_of_a_group
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.audit import SOCM_GROUPS, Analysis
from tempscale_jobs.steps.layout import Layout

_SQUARES_OF_A_TOKEN = 2000.0
"""Embedding a token costs about as much as this many tokens² of a pair (MiniLM, 384 dimensions)."""


class Dealt(NamedTuple):
    """The texts of one group."""

    ids: list[str]
    drawn: int
    """The number of their set of documents, or of the group itself if texts come without documents."""


def deal(layout: Layout, analysis: Analysis, groups: int) -> list[Dealt]:
    """The texts of each group: some of each interval, in the order of their keyed hash, so that more groups begin equally.

    There are fewer groups if no interval has texts for all. Where texts come in documents, each group is from one set of
    documents, in turn.
    """
    dealt = _dealt(layout, analysis, groups)
    ids = layout.ids[np.concatenate([*(places for places, _ in dealt), np.zeros(0, np.int64)])].tolist()
    starts = np.cumsum([0, *(len(places) for places, _ in dealt)]).tolist()
    return [Dealt(ids[start : start + len(places)], drawn) for start, (places, drawn) in zip(starts, dealt, strict=False)]


def _dealt(layout: Layout, analysis: Analysis, groups: int) -> list[tuple[np.ndarray, int]]:
    """The places of the texts of each group, and the number that `Dealt.drawn` describes."""
    sizes, set_of = texts_of_a_group(layout.texts_by_interval(), SOCM_GROUPS), document_sets(layout, analysis)
    count = 1 if set_of is None else int(set_of.max()) + 1
    chunks = [list[np.ndarray]() for _ in range(groups)]
    for a in np.flatnonzero(sizes).tolist():
        in_interval, size = np.flatnonzero(layout.interval == a), int(sizes[a])
        for number in range(count):
            candidates = in_interval if set_of is None else in_interval[set_of[in_interval] == number]
            targets = range(number, groups, count)
            chosen = layout.sample(len(targets) * size, candidates)
            for turn, group in enumerate(targets):
                chunks[group].append(chosen[turn * size : (turn + 1) * size])
    joined = [np.concatenate([np.zeros(0, np.int64), *parts]) for parts in chunks]
    return [(places, k if set_of is None else k % count) for k, places in enumerate(joined) if len(places) > 1]


def document_sets(layout: Layout, analysis: Analysis) -> np.ndarray | None:
    """The set of each text: documents go to the sets in turn, by keyed hash; None without enough documents for an error."""
    if layout.documents is None:
        return None
    names, place = np.unique(layout.documents, return_inverse=True)
    count = min(analysis.socm_groups, len(names) // 2)
    if count < GROUPS_FOR_AN_ERROR:
        return None
    order = sorted(range(len(names)), key=lambda k: (keyed_hash(str(names[k]), layout.seed), names[k]))
    set_of = np.empty(len(names), dtype=np.int64)
    set_of[order] = np.arange(len(names)) % count
    set_of_text: np.ndarray = set_of[place]
    return set_of_text if enough_documents(set_of_text) else None


def pairs_of(dealt: list[Dealt]) -> int:
    """The number of pairs of all groups."""
    return sum(len(group.ids) * (len(group.ids) - 1) // 2 for group in dealt)


def shares_of_work(dealt: list[Dealt], layout: Layout) -> list[float]:
    """About the share of each group in the work on all: its tokens, and the tokens² of its pairs at their cost."""
    tokens = layout.tokens[layout.places(i for group in dealt for i in group.ids)].astype(float)
    each = np.split(tokens, np.cumsum([len(group.ids) for group in dealt])[:-1])
    work = np.array([t.sum() + (t.sum() ** 2 - np.square(t).sum()) / 2 / _SQUARES_OF_A_TOKEN for t in each])
    shares: list[float] = (work / work.sum()).tolist()
    return shares


def enough(layout: Layout, analysis: Analysis) -> bool:
    """Whether the texts give enough groups for an error; otherwise they have few pairs."""
    return len(_dealt(layout, analysis, min(analysis.socm_groups, SOCM_GROUPS))) >= GROUPS_FOR_AN_ERROR
