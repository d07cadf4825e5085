"""The groups of texts by the values of a column of --by: the largest by name, all others joined into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale_jobs.corpus.rows import digest_of

OTHERS = "(others)"
"""The name of the group that the joined groups make up."""
MOST_GROUPS = 50
"""Groups with a name."""
NAMED_JOINED = 10
"""Joined groups whose names are kept."""
NOWHERE = -1
"""The group of a text whose source lacks the column, as that of queries may."""
_NO_DIGEST = 0
"""In place of the digest of its value, which is this by chance once in 2⁶⁴."""


class Values(Protocol):
    """The values of all columns of --by of texts, by their places."""

    def __getitem__(self, places: Any) -> np.ndarray:
        """A list for each of these texts, an array of objects."""


@dataclass(frozen=True)
class Grouping:
    """The groups of texts by one column, largest first."""

    by: str
    """The column."""
    names: tuple[str, ...]
    """The value of each group; `OTHERS` last, if groups were joined."""
    code: np.ndarray
    """The number of each text's group, int16; or `NOWHERE`."""
    digests: np.ndarray
    """Those of the values, without `OTHERS`."""
    joined: int = 0
    """How many groups were joined: those of fewer than 30 texts, and those after the 50 largest."""
    joined_names: tuple[str, ...] = ()
    """The values of the largest of these, ten at most."""

    @classmethod
    def of(cls, by: str, digests: np.ndarray, values: Values, number: int) -> Grouping:
        """The groups of texts from the digests of their values, `number` among the values of each text."""
        unique, first, own, texts = np.unique(digests, return_index=True, return_inverse=True, return_counts=True)
        order = np.lexsort((unique, -texts))
        large = order[texts[order] >= TEXTS_FOR_AN_INTERVAL][:MOST_GROUPS]
        joined = order[~np.isin(order, large)]
        named = np.concatenate([large, joined[:NAMED_JOINED]])
        names = dict(zip(named.tolist(), (row[number] for row in values[first[named]]), strict=True)) if len(named) else {}
        ranked = sorted(large.tolist(), key=lambda group: (-texts[group], names[group]))
        code = np.full(len(unique), len(ranked), np.int16)
        code[ranked] = np.arange(len(ranked))
        return cls(
            by, tuple(names[group] for group in ranked) + (OTHERS,) * (len(joined) > 0), code[own], unique[ranked],
            len(joined), tuple(names[group] for group in joined[:NAMED_JOINED].tolist()),
        )  # fmt: skip

    def of_queries(self, digests: np.ndarray) -> Grouping:
        """Queries in the same groups; a value that is no group's is one of `OTHERS`, if there are any."""
        order = np.argsort(self.digests)
        place = np.minimum(np.searchsorted(self.digests[order], digests), max(0, len(order) - 1))
        code = np.full(len(digests), len(self.digests) if self.joined else NOWHERE, np.int16)
        if len(order):
            known = self.digests[order[place]] == digests
            code[known] = order[place[known]]
        code[digests == _NO_DIGEST] = NOWHERE
        return Grouping(self.by, self.names, code, self.digests, self.joined, self.joined_names)

    @property
    def texts(self) -> np.ndarray:
        """The texts of each group."""
        return np.bincount(self.code[self.code != NOWHERE], minlength=len(self.names))


def digests(groups: pa.ChunkedArray, columns: int) -> np.ndarray:
    """The digests of the values of some texts, (text, column), from the column `groups` of texts/."""
    encoded = pc.dictionary_encode(groups.combine_chunks().flatten())
    of_value = np.array([digest_of(value) for value in encoded.dictionary.to_pylist()] + [_NO_DIGEST], dtype=np.int64)
    index = encoded.indices.fill_null(len(of_value) - 1).to_numpy(zero_copy_only=False)
    return np.asarray(of_value[index].reshape(-1, columns))
