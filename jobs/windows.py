"""Test sets of a classification by length interval, as S1 (arXiv 2410.24200) has 500 texts an interval (Fig 1a, Fig 6).

A corpus seldom has enough texts of every length: its short intervals are filled up with windows of longer texts, runs of
whole words at seeded places, which carry their text's label.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from tempscale.length import interval_of
from tempscale.tiles import keyed_hash
from tempscale.tokens import Tokenizer

FEWEST_TOKENS = 8
"""No window is shorter, special tokens included: a word or two seldom say what the text's label says."""

_WORD = re.compile(r"\S+")
_BATCH = 256
_ROUNDS = 6
"""How often a window's end may be moved before its text is given up."""


class Labelled(NamedTuple):
    """A text of a classification; the label is its number."""

    id: str
    text: str
    label: int


class Chosen(NamedTuple):
    """A text to test on."""

    id: str
    """Its own, or that of the text it is a window of with the words taken: `id[first:last]`, the last exclusive."""
    text: str
    label: int
    window: bool


class _Split(NamedTuple):
    """A text in words."""

    source: Labelled
    spans: list[tuple[int, int]]
    """Characters of each word."""
    tokens: Int[np.ndarray, " word+1"]
    """Tokens before each word and, last, of all; estimates, since words are measured one by one."""


class _Window(NamedTuple):
    """The words [first, last) of a text, meant to be so many tokens."""

    split: _Split
    first: int
    last: int
    target: int

    def text(self) -> str:
        """As it stands in the text, inner whitespace included."""
        return self.split.source.text[self.split.spans[self.first][0] : self.split.spans[self.last - 1][1]]

    def chosen(self) -> Chosen:
        source = self.split.source
        return Chosen(f"{source.id}[{self.first}:{self.last}]", self.text(), source.label, True)

    def moved(self, tokens: int) -> _Window | None:
        """With a nearer end, given how many tokens it turned out to have; None where the text ends first."""
        last = int(_nearest(self.split.tokens, self.split.tokens[self.last] + self.target - tokens))
        if last == self.last:
            last += 1 if tokens < self.target else -1
        return self._replace(last=last) if self.first < last <= len(self.split.spans) else None


def by_interval(
    texts: Sequence[Labelled], tokenizer: Tokenizer, edges: Sequence[int], most: int, windows: bool, seed: int
) -> list[Chosen]:
    """Texts to test on, from each length interval [edge_k, edge_{k+1}) at most so many; the last interval is open.

    Lengths are what the model sees: special tokens included, after truncation at the tokenizer's `max_length`. An
    interval beyond that gets nothing. Windows come from texts that reach beyond the interval, one from each, so the
    interval that holds `max_length` has none. A window may lie beyond the part of its text that the model sees.
    Languages written without spaces give no windows.

    Args:
        texts: to choose from, in any order; not those that the classifier learns from.
        tokenizer: the model's.
        edges: ascending lower edges in tokens; shorter texts than the first are left out.
        most: texts of one interval, those of smallest keyed hash.
        windows: whether an interval with fewer texts is filled up with windows of longer ones.
        seed: of the choice of texts and of the windows' sources, lengths and places.

    Returns:
        By interval, texts before windows, then by id; fewer than `most` of an interval where there are no more.
    """
    texts = sorted(texts)  # From here on nothing depends on the order they came in, not even where ids repeat.
    measure = _Measure(tokenizer)
    lengths = measure.tokens([text.text for text in texts])
    interval = interval_of(lengths, edges)
    found: list[Chosen] = []
    for k, (low, high) in enumerate(zip(edges, [*edges[1:], tokenizer.max_length + 1], strict=True)):
        inside = [texts[i] for i in np.flatnonzero(interval == k)]
        own = heapq.nsmallest(most, inside, key=lambda text: (keyed_hash(text.id, seed), text))
        found += [Chosen(*text, False) for text in sorted(own)]
        if windows and len(own) < most:
            longer = [texts[i] for i in np.flatnonzero(lengths >= high)]
            found += sorted(_windows(longer, measure, low, high, most - len(own), seed))
    return found


class _Measure:
    """How many tokens texts have, and words about."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._words: dict[str, int] = {}
        empty, one = self.tokens(["", "a"])
        self.special, self._before = int(empty), int(one)

    def tokens(self, texts: Sequence[str]) -> Int[np.ndarray, " text"]:
        """Length of each, as the model sees it."""
        found: list[int] = []
        for first in range(0, len(texts), _BATCH):
            found += self._tokenizer(texts[first : first + _BATCH], self._tokenizer.max_length).lengths
        return np.array(found, np.int64)

    def split(self, sources: Iterable[Labelled]) -> list[_Split]:
        """Texts in words; a word is tokenised once, however often it occurs."""
        spans = [(source, [match.span() for match in _WORD.finditer(source.text)]) for source in sources]
        words = [[source.text[first:last] for first, last in own] for source, own in spans]
        new = list({word for own in words for word in own} - self._words.keys())
        # Behind another word, where most stand: byte-pair tokenizers have other tokens for a word after a space.
        counts = self.tokens([f"a {word}" for word in new]) - self._before
        self._words.update(zip(new, counts.tolist(), strict=True))
        return [
            _Split(source, own, np.cumsum([0, *(self._words[word] for word in named)]))
            for (source, own), named in zip(spans, words, strict=True)
        ]


def _windows(sources: Sequence[Labelled], measure: _Measure, low: int, high: int, wanted: int, seed: int) -> list[Chosen]:
    """So many windows of `low` to `high` − 1 tokens, each of another text, or as many as can be had.

    Each text's window follows from its id, the interval and the seed alone, whichever others are tried beside it.
    """
    fewest = max(low, FEWEST_TOKENS)
    if fewest >= high:
        return []

    def drawn(what: str, source: Labelled) -> int:
        # By the interval too: each takes other texts, and other parts of a text that it shares with another.
        return keyed_hash(f"{what} {low} {source.id}", seed)

    order = sorted(sources, key=lambda source: drawn("order", source))
    found: list[Chosen] = []
    for first in range(0, len(order), _BATCH):
        meant: list[_Window] = []
        for split in measure.split(order[first : first + _BATCH]):
            target = fewest + drawn("length", split.source) % (high - fewest)
            starts, ends = _places(split.tokens, target - measure.special, fewest - measure.special, high - measure.special)
            if len(starts):
                place = drawn("place", split.source) % len(starts)
                meant.append(_Window(split, int(starts[place]), int(ends[place]), target))
        found += [window.chosen() for window in _fitted(meant, measure, fewest, high)]
        if len(found) >= wanted:
            break
    return found[:wanted]


def _places(
    tokens: Int[np.ndarray, " word+1"], target: int, low: int, high: int
) -> tuple[Int[np.ndarray, " start"], Int[np.ndarray, " start"]]:
    """First words with `target` tokens or more to come, and the end of each that comes nearest, inside [low, high)."""
    starts = np.flatnonzero(tokens[:-1] + target <= tokens[-1])
    ends = _nearest(tokens, tokens[starts] + target)
    count = tokens[ends] - tokens[starts]
    fit = (count >= max(low, 1)) & (count < high)
    return starts[fit], ends[fit]


def _nearest(ascending: Int[np.ndarray, " word+1"], values: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """Where the number nearest to each value stands; the lower of two equally near."""
    above = np.searchsorted(ascending, values).clip(1, len(ascending) - 1)
    return np.asarray(np.where(ascending[above] - values < values - ascending[above - 1], above, above - 1))


def _fitted(meant: Sequence[_Window], measure: _Measure, low: int, high: int) -> list[_Window]:
    """Those that have `low` to `high` − 1 tokens when tokenised themselves, their ends moved where that helps; in order."""
    found: dict[int, _Window] = {}
    open_ = dict(enumerate(meant))
    for _ in range(_ROUNDS):
        counts = measure.tokens([window.text() for window in open_.values()]).tolist()
        moved = {}
        for (place, window), count in zip(open_.items(), counts, strict=True):
            if low <= count < high:
                found[place] = window
            elif (nearer := window.moved(count)) is not None:
                moved[place] = nearer
        open_ = moved
    return [found[place] for place in sorted(found)]
