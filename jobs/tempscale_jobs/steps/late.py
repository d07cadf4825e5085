"""Late pooling: the model reads consecutive chunks of a text together, and each is pooled over its own tokens.

A window is a part of the text with as many whole chunks as the model reads. A chunk alone in its window has the vector that
it has as a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from tempscale.model.sequences import Tokens
    from tempscale.model.tokens import Tokenizer

_WINDOW, _BEGIN = "window", "window_begin"
"""Columns of a shard of chunks: the window's text at its first chunk, null at the others, and where each begins in it."""


def windows(tokenizer: Tokenizer, text: str, chunks: Sequence[tuple[int, str]]) -> list[tuple[str | None, int]]:
    """For each chunk of a text, given with its first character: its window, at the first only, and where it begins in it."""
    rows = list[tuple[str | None, int]]()
    for first, stop in _together(tokenizer, text, chunks):
        whole = _text(text, chunks, (first, stop))
        begins = [begin - chunks[first][0] for begin, _ in chunks[first:stop]]
        rows += [(whole if begin == 0 else None, begin) for begin in begins]
    return rows


def _together(tokenizer: Tokenizer, text: str, chunks: Sequence[tuple[int, str]]) -> list[tuple[int, int]]:
    """The first chunk of each window, and the chunk after its last."""
    limit, (around,) = tokenizer.max_length, _lengths(tokenizer, [""])
    room, firsts = 0, list[int]()
    for k, length in enumerate(_lengths(tokenizer, [chunk for _, chunk in chunks])):
        room -= length - around
        if not firsts or room < 0:
            firsts.append(k)
            room = limit - length
    left, found = list(zip(firsts, [*firsts[1:], len(chunks)], strict=True)), list[tuple[int, int]]()
    while left:  # Tokens of chunks need not add up to those of their window.
        first, stop = left.pop(0)
        if stop - first > 1 and _lengths(tokenizer, [_text(text, chunks, (first, stop))])[0] > limit:
            left[:0] = [(first, stop - 1), (stop - 1, stop)]
        else:
            found.append((first, stop))
    return found


def _text(text: str, chunks: Sequence[tuple[int, str]], window: tuple[int, int]) -> str:
    """The part of the text from the first to the last of a window's chunks."""
    start, chunk = chunks[window[1] - 1]
    return text[chunks[window[0]][0] : start + len(chunk)]


def _lengths(tokenizer: Tokenizer, texts: Sequence[str]) -> list[int]:
    """The tokens of each text before it is cut; more than the model reads where the tokenizer fails on one of them."""
    whole = tokenizer(texts, tokenizer.max_length, isolate=True).whole
    return [tokenizer.max_length + 1] * len(texts) if whole is None else whole


def with_windows(shard: pa.Table, rows: Sequence[tuple[str | None, int]]) -> pa.Table:
    """A shard of chunks with the windows that they are read in."""
    columns = pa.array([text for text, _ in rows], pa.string()), pa.array([begin for _, begin in rows], pa.int64())
    return shard.append_column(_WINDOW, columns[0]).append_column(_BEGIN, columns[1])


def has_windows(shard: pa.Table) -> bool:
    """Whether a shard's texts are pooled late."""
    return _WINDOW in shard.column_names


def tokens(tokenizer: Tokenizer, shard: pa.Table) -> Tokens:
    """The tokens of the texts of such a shard."""
    texts, starts = list[str](), list[list[int]]()
    for text, begin in zip(shard.column(_WINDOW).to_pylist(), shard.column(_BEGIN).to_pylist(), strict=True):
        if text is not None:
            texts.append(text)
            starts.append([])
        starts[-1].append(begin)
    return tokenizer.parts(texts, starts)
