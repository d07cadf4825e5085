"""Choose test texts of a classification by length interval, as S1 does (arXiv 2410.24200, Fig 1a, 6).

Few corpora have enough texts of every length, so short intervals are filled up with windows of longer texts: whole words
from a seeded place, with the text's label.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from tempscale.collapse.length import interval_of
from tempscale.model.tokens import Tokenizer
from tempscale.stats.enough import TOKENS_FOR_A_WINDOW
from tempscale.stats.sample import keyed_hash

_WORD = re.compile(r"\S+")
_BATCH = 256
_ROUNDS = 6
"""The most attempts to fit a window's end."""


class Labelled(NamedTuple):
    """A text of a classification, with the number of its label."""

    id: str
    text: str
    label: int


class Chosen(NamedTuple):
    """A text to test on."""

    id: str
    """The text's id; for a window `id[first:last]`, the words first to last − 1 of that text."""
    text: str
    label: int
    window: bool


class SplitText(NamedTuple):
    """A text split into words."""

    source: Labelled
    spans: list[tuple[int, int]]
    """Characters of each word."""
    tokens: Int[np.ndarray, " word+1"]
    """Estimated tokens before each word and, last, of the whole text: words are tokenised one by one."""


class Window(NamedTuple):
    """The words [first, last) of a text, and the wanted number of tokens."""

    split: SplitText
    first: int
    last: int
    target: int

    def text(self) -> str:
        """The window as in the text, inner whitespace included."""
        return self.split.source.text[self.split.spans[self.first][0] : self.split.spans[self.last - 1][1]]

    def chosen(self) -> Chosen:
        """The window as a text, whose id has its first and last word."""
        source = self.split.source
        return Chosen(f"{source.id}[{self.first}:{self.last}]", self.text(), source.label, True)

    def moved(self, tokens: int) -> Window | None:
        """The window with a better end for its measured tokens; None if the text is too short."""
        last = int(_nearest(self.split.tokens, self.split.tokens[self.last] + self.target - tokens))
        if last == self.last:
            last += 1 if tokens < self.target else -1
        return self._replace(last=last) if self.first < last <= len(self.split.spans) else None


class TextsToTest(NamedTuple):
    """Options for choosing test texts of each length interval."""

    most: int
    windows: bool
    """Whether windows of longer texts fill an interval up."""
    seed: int


def by_interval(
    texts: Sequence[Labelled], tokenizer: Tokenizer, edges: Sequence[int], wanted: TextsToTest
) -> list[Chosen]:  # fmt: skip
    """At most `wanted.most` texts from each length interval, filled up with windows of longer texts on request."""
    # Lengths include special tokens, after truncation. A longer text gives at most one window per interval, perhaps beyond
    # the part that the model sees; languages written without spaces give no windows.
    texts = sorted(texts)  # The result must not depend on the order of the texts, even if ids repeat.
    measure, (most, windows, seed) = _Measure(tokenizer), wanted
    lengths = measure.tokens([text.text for text in texts])
    interval = interval_of(lengths, edges)
    chosen: list[Chosen] = []
    for k, (low, high) in enumerate(zip(edges, [*edges[1:], tokenizer.max_length + 1], strict=True)):
        inside = [texts[i] for i in np.flatnonzero(interval == k)]
        sample = heapq.nsmallest(most, inside, key=lambda text: (keyed_hash(text.id, seed), text))
        chosen += [Chosen(*text, False) for text in sorted(sample)]
        if windows and len(sample) < most:
            longer = [texts[i] for i in np.flatnonzero(lengths >= high)]
            chosen += sorted(_windows(longer, measure, (low, high), most - len(sample), seed))
    return chosen


class _Measure:
    """Counts the tokens of texts exactly, and those of words approximately."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._words: dict[str, int] = {}
        empty, letter = self.tokens(["", "a"])
        self.special, self._before = int(empty), int(letter)

    def tokens(self, texts: Sequence[str]) -> Int[np.ndarray, " text"]:
        """Tokens of each text after truncation."""
        lengths: list[int] = []
        for first in range(0, len(texts), _BATCH):
            lengths += self._tokenizer(texts[first : first + _BATCH], self._tokenizer.max_length).lengths
        return np.array(lengths, np.int64)

    def split(self, sources: Iterable[Labelled]) -> list[SplitText]:
        """Split texts into words; each distinct word is tokenised once."""
        spans = [(source, [match.span() for match in _WORD.finditer(source.text)]) for source in sources]
        words = [[source.text[first:last] for first, last in word_spans] for source, word_spans in spans]
        new = list({word for text_words in words for word in text_words} - self._words.keys())
        # Measure a word after another word, because byte-pair tokenizers treat a word after a space differently.
        counts = self.tokens([f"a {word}" for word in new]) - self._before
        self._words.update(zip(new, counts.tolist(), strict=True))
        return [
            SplitText(source, word_spans, np.cumsum([0, *(self._words[word] for word in text_words)]))
            for (source, word_spans), text_words in zip(spans, words, strict=True)
        ]


def _windows(sources: Sequence[Labelled], measure: _Measure, span: tuple[int, int], most: int, seed: int) -> list[Chosen]:
    """At most `most` windows with tokens in `span`, each from another text, whose id alone decides where it begins."""
    low, high = span
    fewest = max(low, TOKENS_FOR_A_WINDOW)
    if fewest >= high:
        return []

    def drawn(what: str, source: Labelled) -> int:
        # With the interval in the key, intervals take different texts, and different parts of a text.
        return keyed_hash(f"{what} {low} {source.id}", seed)

    order = sorted(sources, key=lambda source: drawn("order", source))
    windows: list[Chosen] = []
    for first in range(0, len(order), _BATCH):
        planned: list[Window] = []
        for split in measure.split(order[first : first + _BATCH]):
            target = fewest + drawn("length", split.source) % (high - fewest)
            starts, ends = _places(split.tokens, target - measure.special, fewest - measure.special, high - measure.special)
            if len(starts):
                place = drawn("place", split.source) % len(starts)
                planned.append(Window(split, int(starts[place]), int(ends[place]), target))
        windows += [window.chosen() for window in fitted(planned, measure, fewest, high)]
        if len(windows) >= most:
            break
    return windows[:most]


def _places(
    tokens: Int[np.ndarray, " word+1"], target: int, low: int, high: int
) -> tuple[Int[np.ndarray, " start"], Int[np.ndarray, " start"]]:
    """First words before at least `target` tokens, and for each the end nearest to the target, within [low, high)."""
    starts = np.flatnonzero(tokens[:-1] + target <= tokens[-1])
    ends = _nearest(tokens, tokens[starts] + target)
    count = tokens[ends] - tokens[starts]
    fit = (count >= max(low, 1)) & (count < high)
    return starts[fit], ends[fit]


def _nearest(ascending: Int[np.ndarray, " word+1"], values: Int[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """The index of the number nearest to each value; the lower of two equally near ones."""
    above = np.searchsorted(ascending, values).clip(1, len(ascending) - 1)
    return np.asarray(np.where(ascending[above] - values < values - ascending[above - 1], above, above - 1))


def fitted(meant: Sequence[Window], measure: _Measure, low: int, high: int) -> list[Window]:
    """The windows that have `low` to `high` − 1 tokens, if necessary after their ends were moved, in order."""
    accepted: dict[int, Window] = {}
    open_ = dict(enumerate(meant))
    for _ in range(_ROUNDS):
        counts = measure.tokens([window.text() for window in open_.values()]).tolist()
        moved = {}
        for (place, window), count in zip(open_.items(), counts, strict=True):
            if low <= count < high:
                accepted[place] = window
            elif (nearer := window.moved(count)) is not None:
                moved[place] = nearer
        open_ = moved
    return [accepted[place] for place in sorted(accepted)]
