"""Groups of texts: whether a group's texts find each other, and how near the texts of a group and of two groups are.

Both rest on sums of whole numbers, which are the same for any order and any division of the texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tempscale.collapse.exposure import QueryNeighbours
from tempscale.collapse.neighbours import NOBODY

PARTS = 2.0**36
"""Values are rounded to whole parts of 1, of which int64 holds the sum of 2²⁷ unit vectors; most float32 are exact."""
_AT_ONCE = 1 << 12
"""Texts whose products with the groups are computed together."""


class Asking(NamedTuple):
    """The nearest texts of some queries."""

    near: QueryNeighbours
    group: Int[np.ndarray, " query"]
    """The group of each query; −1 of none."""


@dataclass(frozen=True)
class Stays:
    """Counts of the results of each group's queries, from which the share that stays in the group follows. Mergeable.

    Units are those of `exposure.Slots`: a result is a dyad of the unit of its query and of that of the text.
    """

    queries: Int[np.ndarray, " group"]
    """The group's queries."""
    results: Int[np.ndarray, " group"]
    """Their results."""
    same: Int[np.ndarray, " group"]
    """Those that are texts of the group."""
    units: Int[np.ndarray, "group 3"]
    """Σ a², Σ ab and Σ b² over units: each takes part in a results of the group's queries, b of them texts of the group."""
    pairs: Int[np.ndarray, "group 3"]
    """The same sums over pairs of units, with the results between the two."""

    def merged(self, other: Stays) -> Stays:
        """The counts of two sets of units, added."""
        return Stays(
            self.queries + other.queries, self.results + other.results, self.same + other.same,
            self.units + other.units, self.pairs + other.pairs,
        )  # fmt: skip


def stays_counted(
    asking: Iterable[Asking],
    group: Int[np.ndarray, " text"],
    groups: int,
    units: range,
    *,
    count: int,
    unit: Int[np.ndarray, " text"] | None = None,
) -> Stays:
    """Count the results of each group's queries in which some units take part.

    Args:
        asking: all queries with their nearest texts and groups, each once.
        group: the group of every text that could be a neighbour.
        groups: how many groups there are.
        units: consecutive units; the counts of ranges that contain each unit once add up to those of all.
        count: the number of all units.
        unit: the unit of each text; by default each text is a unit with its number.

    Returns:
        The counts; a query counts with its unit, and its results with it.
    """
    apart_keys, pair_keys = list[np.ndarray](), list[np.ndarray]()
    asked = np.zeros((3, groups), np.int64)
    for (query, text), own in asking:
        here = (query >= units.start) & (query < units.stop) & (own >= 0)
        asked[0] += np.bincount(own[here], minlength=groups)
        row, column = np.nonzero((text != NOBODY) & (own[:, None] >= 0))
        filler, of = text[row, column], own[row].astype(np.int64)
        one, other = query[row].astype(np.int64), (filler if unit is None else unit[filler]).astype(np.int64)
        same = group[filler] == of
        kind = 2 * of + same
        inside = (one >= units.start) & (one < units.stop)
        for total, chosen in zip(asked[1:], (inside, inside & same), strict=True):
            total += np.bincount(of[chosen], minlength=groups)
        apart = one != other
        for end, counts in ((one, inside), (other, apart & (other >= units.start) & (other < units.stop))):
            apart_keys.append((end[counts] - units.start) * 2 * groups + kind[counts])
        least = np.minimum(one, other)
        chosen = apart & (least >= units.start) & (least < units.stop)
        pair = (least[chosen] - units.start) * count + np.maximum(one, other)[chosen]
        pair_keys.append(pair * 2 * groups + kind[chosen])
    return Stays(asked[0], asked[1], asked[2], _squares(apart_keys, groups), _squares(pair_keys, groups))


def _squares(keys: list[np.ndarray], groups: int) -> Int[np.ndarray, "group 3"]:
    """Σ a², Σ ab and Σ b² of each group, from (unit·groups + group)·2 + (1 if the text is of the group) of each result."""
    kinds, times = np.unique(np.concatenate([np.zeros(0, np.int64), *keys]), return_counts=True)
    unit, first = np.unique(kinds // 2, return_inverse=True)
    a, b = (np.bincount(first, times * chosen, len(unit)) for chosen in (1, kinds % 2))
    of = unit % groups
    return np.stack([np.bincount(of, product, groups) for product in (a * a, a * b, b * b)], axis=1).astype(np.int64)


class Staying(NamedTuple):
    """The share of the results of each group's queries that are texts of the group; NaN without results."""

    share: Float[np.ndarray, " group"]
    error: Float[np.ndarray, " group"]
    """Standard error over repeated draws of texts and queries."""


def staying(texts: Stays, units: Stays | None = None) -> Staying:
    """The share s of each group's results that stay in the group, with the error that results have as dyads.

    Results that share a unit are dependent, as in `exposure.exposures`. Let e = (1[the text is of the group] − s)/results of
    each result of the group's queries; S_t the sum of e over the results in which unit t takes part; T_u that over the
    results between the same two units u. Then the variance is Σ_t S_t² − Σ_u T_u², or Σ_u T_u² where that is not above 0.

    Args:
        texts: the counts by text.
        units: the counts by document, if documents are known.

    Returns:
        The shares and their errors.
    """
    counts = texts if units is None else units
    share, error = np.full((2, len(texts.results)), np.nan)
    for g in np.flatnonzero(texts.results).tolist():
        total, same = int(texts.results[g]), int(texts.same[g])
        # Σ (b − s·a)²·total² in whole numbers.
        nodes, dyads = (
            int(bb) * total**2 - 2 * same * total * int(ab) + same**2 * int(aa)
            for aa, ab, bb in (counts.units[g], counts.pairs[g])
        )
        share[g] = same / total
        error[g] = (nodes - dyads if nodes > dyads else dyads) ** 0.5 / total**2
    return Staying(share, error)


def _whole(values: Float[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """Values as whole numbers of parts."""
    return np.rint(values * PARTS).astype(np.int64)


@dataclass(frozen=True)
class GroupSums:
    """Sums of the vectors of each group. Mergeable."""

    texts: Int[np.ndarray, " group"]
    vectors: Int[np.ndarray, "group dim"]
    """Σ x over the texts of a group, in parts."""
    squares: Int[np.ndarray, " group"]
    """Σ ‖x‖², in parts."""

    @classmethod
    def of(cls, embeddings: Float[np.ndarray, "text dim"], group: Int[np.ndarray, " text"], groups: int) -> GroupSums:
        """The sums of some texts; those of a group from `groups` on, or below 0, are left out."""
        vectors, squares = np.zeros((groups, embeddings.shape[1]), np.int64), np.zeros(groups, np.int64)
        texts = np.bincount(group[(group >= 0) & (group < groups)], minlength=groups)
        for g in np.flatnonzero(texts).tolist():
            rows = embeddings[group == g].astype(np.float64)
            vectors[g], squares[g] = _whole(rows).sum(0), _whole((rows * rows).sum(1)).sum()
        return cls(texts, vectors, squares)

    def merged(self, other: GroupSums) -> GroupSums:
        """The sums of two sets of texts."""
        return GroupSums(self.texts + other.texts, self.vectors + other.vectors, self.squares + other.squares)

    def pairs(self) -> Int[np.ndarray, "group group"]:
        """Unordered pairs of texts, inside each group and between each two."""
        return np.asarray(np.outer(self.texts, self.texts) - np.diag(self.texts * (self.texts + 1) // 2))

    def means(self) -> Float[np.ndarray, "group group"]:
        """The mean cosine of all pairs inside each group and between each two; NaN without a pair.

            inside  (|S_g|² − Σ‖x‖²)/(n_g(n_g − 1)) ,  between  S_g·S_h/(n_g n_h) ,  S_g = Σ x over the texts of g.

        Returns:
            Symmetric, in [−1, 1].
        """
        sums, texts = self.vectors / PARTS, self.texts.astype(np.float64)
        products = (sums[:, None, :] * sums).sum(2) - np.diag(self.squares / PARTS)
        counts = np.outer(texts, texts) - np.diag(texts)
        return np.asarray(np.divide(products, counts, out=np.full_like(products, np.nan), where=counts > 0))

    def text_means(
        self, embeddings: Float[np.ndarray, "text dim"], group: Int[np.ndarray, " text"]
    ) -> Float[np.ndarray, "text group"]:
        """Each text's mean cosine with the other texts of each group; NaN where there are none.

        Args:
            embeddings: of some of the texts.
            group: the group of each, from 0.

        Returns:
            The same to the bit for a text, whatever others are with it.
        """
        sums, parts = self.vectors / PARTS, list[np.ndarray]()
        for start in range(0, len(embeddings), _AT_ONCE):
            rows = embeddings[start : start + _AT_ONCE].astype(np.float64)
            parts.append(np.stack([(rows * vector).sum(1) for vector in sums], axis=1))
            itself = np.arange(len(rows)), group[start : start + _AT_ONCE]
            parts[-1][itself] -= (rows * rows).sum(1)
        totals = np.concatenate([np.zeros((0, len(sums))), *parts])
        counts = np.tile(self.texts.astype(np.float64), (len(totals), 1))
        counts[np.arange(len(totals)), group] -= 1
        return np.asarray(np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0))


@dataclass(frozen=True)
class Spread:
    """Squares of the distances of the texts' mean cosines from those of their groups. Mergeable."""

    texts: Int[np.ndarray, " group"]
    squares: Int[np.ndarray, "group group"]
    """Over the texts of the first group, of their mean cosines with the second, in parts."""

    @classmethod
    def of(cls, means: Float[np.ndarray, "text group"], group: Int[np.ndarray, " text"], sums: GroupSums) -> Spread:
        """Of some texts with these mean cosines."""
        away = _whole(np.square(np.nan_to_num(means - sums.means()[group])))
        squares = np.stack([away[group == g].sum(0) for g in range(len(sums.texts))])
        return cls(np.bincount(group, minlength=len(sums.texts)), squares)

    def merged(self, other: Spread) -> Spread:
        """Of two sets of texts."""
        return replace(self, texts=self.texts + other.texts, squares=self.squares + other.squares)

    def variance(self) -> Float[np.ndarray, "group group"]:
        """The sample variance of the mean cosines of the texts of each group with each group; 0 for fewer than two texts."""
        return np.asarray(self.squares / PARTS / np.maximum(self.texts - 1, 1)[:, None])
