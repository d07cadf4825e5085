"""What the gap between long and short prefixes of the same texts is made of: pooling, context, length and topic.

Texts are cut at a short and at a long number of tokens, ℓ and L. A segment is the ℓ tokens of a text that follow those of
the segment before it, with special tokens of its own; its first one is the short prefix. Of two texts, over all pairs, let

    J(n)   be the mean cosine of their prefixes of n tokens
    A(n)   of the means of the unit vectors of these prefixes' segments, each embedded apart and weighted by its tokens;
           A(ℓ) = J(ℓ)
    R(n)   of their first segments, repeated up to n tokens; R(ℓ) = J(ℓ)
    S(n)   of their first segments, followed by segments of other texts up to n tokens, no text's segments in both

Then the prefix gap is G = J(L) − J(ℓ) = [A(L) − A(ℓ)] + [(J − A)(L) − (J − A)(ℓ)]: what averaging more tokens does, and
what their being read together does. R(L) − R(ℓ) is what length does to a fixed content, S(L) − J(L) what a change of topic
does to a text of the same length and beginning, over the pairs that S has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from tempscale.collapse.length import mean_cosines
from tempscale.stats.errors import documents_error, within_error

FIGURES = ("prefix_gap", "pooling", "context", "fixed_content", "topic_change")


class Readings(NamedTuple):
    """Vectors of the same texts, (texts, d) each, of any length."""

    short: Float[np.ndarray, "text dim"]
    """Of the prefixes of ℓ tokens."""
    long: Float[np.ndarray, "text dim"]
    """Of those of L tokens."""
    apart: Float[np.ndarray, "text dim"]
    """The means of the unit vectors of the segments."""
    repeated: Float[np.ndarray, "text dim"]
    """Of the first segments repeated up to L tokens."""
    mixed: Float[np.ndarray, "mixed dim"]
    """Of the first segments and those of other texts, for the first texts."""
    circle: Int[np.ndarray, " mixed"]
    """Those of one number have segments of the same texts, see `followers`."""


class Figure(NamedTuple):
    """A difference of mean cosines over all pairs."""

    name: str
    value: float
    error: float
    """Its standard error for other texts, or documents; NaN for too few documents."""
    texts: int


def decompose(readings: Readings, documents: Int[np.ndarray, " text"] | None = None) -> list[Figure]:
    """The prefix gap, its two parts, the effect of length at a fixed content, and that of a change of topic.

    Args:
        readings: of at least three texts.
        documents: the document of each text; None where texts come without documents.

    Returns:
        `FIGURES`, in this order, without the last where no texts are mixed; the first is the sum of the next two. Errors are
        of differences of the same texts' means.
    """
    short, long, apart, repeated = (mean_cosines(unit(vectors)) for vectors in readings[:4])
    differences = [long - short, apart - short, long - apart, repeated - short]
    if len(readings.mixed):
        pairs = readings.mixed, readings.long[: len(readings.mixed)]
        mixed, whole = (_across(unit(rows), readings.circle) for rows in pairs)
        differences.append(mixed - whole)
    return [
        Figure(name, float(values.mean()), _error(values, documents), len(values))
        for name, values in zip(FIGURES, differences, strict=False)
    ]


def _across(rows: np.ndarray, circle: np.ndarray) -> np.ndarray:
    """Each unit vector's mean cosine with those of other circles, which are of equal size."""
    cosines = rows @ rows.T
    others = circle[:, None] != circle
    means: np.ndarray = (cosines * others).sum(1) / others.sum(1)
    return means


def unit(vectors: Float[np.ndarray, "row dim"]) -> Float[np.ndarray, "row dim"]:
    """The same vectors with norm 1, float64."""
    rows = vectors.astype(np.float64)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def _error(values: np.ndarray, documents: np.ndarray | None) -> float:
    if documents is None:
        return within_error(float(values.var(ddof=1)), len(values))
    return documents_error([values], [2.0], [documents[: len(values)]])


def followers(texts: int, segments: int) -> Int[np.ndarray, "mixed segment"]:
    """Whose segment is at each place of each mixed text: its own at place 0, then those of other texts.

    The first m·s texts stand in s circles of m, as many as segments: k, k + s, k + 2s, … Each text has one segment of every
    text of its circle, at the place where that text has it, so that no segment is in two texts, and texts of two circles
    have no text in common. Too few texts for two circles stand in none.
    """
    circles = texts // segments if texts >= 2 * segments else 0
    mixed = circles * segments
    return np.asarray((np.arange(mixed)[:, None] + circles * np.arange(segments)) % max(1, mixed))


class Frame(NamedTuple):
    """The special tokens around the content of a sequence, with those of a prompt."""

    before: Sequence[int]
    after: Sequence[int]

    def around(self, content: Sequence[int]) -> list[int]:
        """A sequence with this content."""
        return [*self.before, *content, *self.after]


class Sequences(NamedTuple):
    """The sequences of some texts that are read in other ways than their prefixes."""

    apart: list[list[list[int]]]
    """The segments of each text."""
    repeated: list[list[int]]
    mixed: list[list[int]]
    circle: list[int]
    """Of each mixed one."""


def sequences(contents: Sequence[Sequence[int]], frame: Frame, short: int, long: int) -> Sequences:
    """The sequences of segments, of repeated first segments, and of mixed ones.

    Args:
        contents: the tokens of each text, without special tokens.
        frame: what is around them.
        short, long: ℓ and L, with the frame; where a text does not fill L, no sequence is longer than that text.

    Raises:
        ValueError: the frame leaves no room for a text in a segment.
    """
    around = len(frame.around([]))
    size, room = short - around, min(long - around, *map(len, contents))
    if size < 1:
        raise ValueError(f"{short} tokens leave no room for a text: the model adds {around} tokens to each")
    segments = [[content[start : min(start + size, room)] for start in range(0, room, size)] for content in contents]
    whose = followers(len(contents), len(segments[0]))
    mixed = [[token for k, other in enumerate(row) for token in segments[other][k]] for row in whose.tolist()]
    repeated = [[own[0][k % size] for k in range(room)] for own in segments]
    return Sequences(
        [[frame.around(segment) for segment in own] for own in segments],
        [frame.around(content) for content in repeated], [frame.around(content) for content in mixed],
        [row.min() for row in whose],
    )  # fmt: skip
