"""Tokenised texts, as the model sees them: sequences of token ids in one array, and which text each belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, overload

import numpy as np
from jaxtyping import Int
from typing_extensions import override


class Sequences(Sequence[list[int]]):
    """Sequences of token ids in one array, `flat`, for micro-batches without Python lists; equal to a list of lists."""

    def __init__(self, flat: Int[np.ndarray, " token"], lengths: Int[np.ndarray, " sequence"]) -> None:
        self.flat, self.lengths = flat, lengths
        self._ends = np.cumsum(lengths)

    @classmethod
    def of(cls, ids: Sequence[Sequence[int] | Int[np.ndarray, " token"]]) -> Sequences:
        """Sequences from the token ids of each, as int32; not copied if they already are `Sequences`."""
        if isinstance(ids, Sequences):
            return ids
        arrays = [np.asarray(sequence, np.int32) for sequence in ids]
        lengths = np.array([len(sequence) for sequence in arrays], np.int64)
        return cls(np.concatenate(arrays) if arrays else np.zeros(0, np.int32), lengths)

    def padded(
        self, which: Sequence[int], padding: int
    ) -> tuple[Int[np.ndarray, "sequence token"], Int[np.ndarray, " sequence"]]:
        """Some sequences as rows of one int64 array, filled up on the right with `padding`, and the length of each."""
        indices = np.asarray(which, np.int64)
        lengths, ends = self.lengths[indices], self._ends[indices]
        rows = np.full((len(indices), int(lengths.max())), padding, np.int64)
        for row, (length, end) in enumerate(zip(lengths.tolist(), ends.tolist(), strict=True)):
            rows[row, :length] = self.flat[end - length : end]
        return rows, lengths

    @overload
    def __getitem__(self, index: int) -> list[int]: ...

    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...

    @override
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[k] for k in range(len(self))[index]]
        end = self._ends[index]
        ids: list[int] = self.flat[end - self.lengths[index] : end].tolist()
        return ids

    @override
    def __len__(self) -> int:
        return len(self.lengths)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Spans(NamedTuple):
    """Texts that are parts of sequences: each is pooled over its own tokens, which the model reads with the others."""

    sequence: Int[np.ndarray, " text"]
    """The sequence of each text, ascending."""
    start: Int[np.ndarray, " text"]
    """Its first token there."""
    stop: Int[np.ndarray, " text"]
    """The token after its last."""


@dataclass(frozen=True)
class Tokens:
    """Tokenised texts, as the model sees them."""

    ids: Sequence[list[int]]
    """One sequence a text; for chunked texts one sequence a chunk, each with its own special tokens."""
    truncated: list[bool]
    """Whether each text was cut."""
    text: Sequence[int] | None = None
    """The text of each sequence, ascending; None if every sequence is a text."""
    failed: dict[int, str] = field(default_factory=dict)
    """With `isolate`, texts that the tokenizer failed on, and why; their placeholder sequences must not be run."""
    whole: list[int] | None = field(default=None, compare=False)
    """Tokens of each text before it was cut, special tokens included; None where this is unknown."""
    spans: Spans | None = field(default=None, compare=False)
    """Where each text is, if sequences have several texts; `text` is None then."""

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text, special tokens included, after truncation; the total of all its chunks."""
        counts = self.sequences.lengths if self.spans is None else self.spans.stop - self.spans.start
        if self.text is not None:
            counts, sequence_counts = np.zeros(len(self.truncated), np.int64), counts
            np.add.at(counts, self.text, sequence_counts)
        result: list[int] = counts.tolist()
        return result

    @cached_property
    def sequences(self) -> Sequences:
        """`ids` in one array."""
        return Sequences.of(self.ids)

    @property
    def owner(self) -> Sequence[int]:
        """The text of each sequence, ascending; every text where `spans` has their sequences."""
        return range(len(self)) if self.text is None else self.text

    def texts_of(self, sequence: int) -> Sequence[int]:
        """The texts that a sequence has tokens of."""
        if self.spans is None:
            return (self.owner[sequence],)
        return range(*np.searchsorted(self.spans.sequence, [sequence, sequence + 1]).tolist())

    def __len__(self) -> int:
        return len(self.truncated)

    def take(self, texts: Iterable[int]) -> Tokens:
        """The texts with these indices, in this order."""
        chunks, chosen = self.chunks(), list(texts)
        failed = {k: self.failed[i] for k, i in enumerate(chosen) if i in self.failed}
        return Tokens.of_chunks([chunks[i] for i in chosen], [self.truncated[i] for i in chosen], failed)

    def chunks(self) -> list[list[list[int]]]:
        """The sequences of each text; one unless the text is chunked. Not of texts that are parts of sequences."""
        assert self.spans is None
        if self.text is None:
            return [[ids] for ids in self.ids]
        result: list[list[list[int]]] = [[] for _ in self.truncated]
        for ids, text in zip(self.ids, self.text, strict=True):
            result[text].append(ids)
        return result

    @classmethod
    def of_chunks(
        cls, chunks: Sequence[Sequence[list[int]]], truncated: list[bool], failed: dict[int, str] | None = None
    ) -> Tokens:
        """Tokens from the sequences of each text, as `chunks` returns them; `text` is None if each text is one sequence."""
        if all(len(sequences) == 1 for sequences in chunks):
            return cls([sequences[0] for sequences in chunks], truncated, None, failed or {})
        text = [k for k, sequences in enumerate(chunks) for _ in sequences]
        return cls([ids for sequences in chunks for ids in sequences], truncated, text, failed or {})
