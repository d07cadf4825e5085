"""What people get wrong when they embed texts: each way gives the vectors of some rows, made in that way.

The ways come in the order of their cost. A way is left out for a row whose tokens it does not change.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from typing_extensions import override

from tempscale.stored.rounding import cosine
from tempscale.temperature import attach
from tempscale_jobs.corpus.stored import StoredRow
from tempscale_jobs.verify.computed import in_precision, of_tokens, vectors
from tempscale_jobs.workers.actor import ROLE

if TYPE_CHECKING:
    from torch import Tensor

    from tempscale.model.encoder import Encoder
    from tempscale.model.pooling import Head
    from tempscale.model.sequences import Tokens

PROMPTS = (
    "query: ", "passage: ", "search_query: ", "search_document: ", "clustering: ", "classification: ",
    "Represent this sentence for searching relevant passages: ", "Represent the document for retrieval: ",
    "Represent this sentence: ", "title: none | text: ", "task: search result | query: ",
)  # fmt: skip
"""Prompts of published models."""
CHARACTERS = (
    100, 128, 200, 250, 256, 300, 400, 500, 512, 600, 700, 750, 800, 900, 1000, 1024, 1200, 1500, 1600, 2000, 2048, 2500,
    3000, 4000, 4096, 5000, 6000, 8000, 8192, 10_000, 16_000, 16_384, 32_000, 32_768,
)  # fmt: skip
"""Lengths at which programs cut texts, in characters."""
_WINDOWS = (16, 32, 64, 100, 128, 200, 250, 256, 300, 384, 400, 500, 512, 768, 1000, 1024, 2048, 4096, 8192, 16_384, 32_768)
TAUS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
_ROUNDED = 2.0
"""A vector may be so many times as far from the exact one as our own in the same precision."""
_STEPS = (64, 32, 16, 8, 4, 2, 1)
"""Steps in the search for the length to which a text was padded."""
_LONGEST_PADDED = 1024
_SEPARATORS = (" ", "\n", "\n\n", ": ", ". ", " - ")
_FORMS: dict[str, Callable[[str], str]] = {
    "without white space at its ends": str.strip,
    "with line breaks as spaces": lambda text: text.replace("\n", " "),
    "with runs of white space as one space": lambda text: " ".join(text.split()),
    "in lower case": str.lower,
    "in Unicode's form NFC": lambda text: unicodedata.normalize("NFC", text),
    "in Unicode's form NFKC": lambda text: unicodedata.normalize("NFKC", text),
    "in Unicode's form NFD": lambda text: unicodedata.normalize("NFD", text),
}


class Made(NamedTuple):
    """Vectors of some rows, made in one way."""

    cause: str
    rows: Sequence[int]
    vectors: np.ndarray
    errors: Sequence[float] | None = None
    """The relative distance that explains each row; None for that of the model's own computation."""


class Ways:
    """All ways in which one model may have made vectors by mistake."""

    def __init__(
        self, encoder: Encoder, rows: Sequence[StoredRow], temperature: Any, prompts: Sequence[str],
        causes: frozenset[str] | None = None,
    ) -> None:  # fmt: skip
        """`prompts` are those that the model's own settings name; `causes` are those that are tried, all if None."""
        self._encoder, self._rows, self._temperature, self._named = encoder, rows, temperature, prompts
        self._causes = causes
        self.left = list(range(len(rows)))
        """The rows that nothing has explained yet; the caller removes them."""
        encoder.set_temperature(temperature)
        self._tokens = encoder.tokenizer([row.text for row in rows], isolate=True)
        self.right = of_tokens(encoder, self._tokens)
        """The model's own vectors."""

    @cached_property
    def before_norm(self) -> np.ndarray:
        """The norms of the model's vectors before its last stage, if that scales them to norm 1."""
        norms: np.ndarray = np.linalg.norm(self._without_normalize(self._tokens), axis=1)
        return norms

    def __iter__(self) -> Iterator[Made]:
        for ways in (
            self._neighbours, self._poolings, self._forms, self._prompts, self._windows, self._characters, self._padding,
            self._temperatures, self._precisions,
        ):  # fmt: skip
            yield from ways()

    def _is_tried(self, cause: str) -> bool:
        return bool(self.left) and (self._causes is None or cause in self._causes)

    def _without_normalize(self, tokens: Tokens) -> np.ndarray:
        from tempscale.model.pooling import Head, Normalize

        head = self._encoder.head
        stages = [stage for stage in head.stages if not isinstance(stage, Normalize)]
        return of_tokens(self._with_head(Head(head.pooling, stages, truncate_dim=head.truncate_dim)), tokens)

    def _with_head(self, head: Head) -> Encoder:
        from tempscale.model.encoder import Encoder

        return Encoder(self._encoder.model, self._encoder.tokenizer, head, self._encoder.token_budget)

    def _of_texts(self, cause: str, texts: Sequence[str | None], **options: Any) -> Iterator[Made]:
        """The remaining rows with other texts, where these have other tokens."""
        chosen = [k for k in self.left if texts[k]]
        if chosen and self._is_tried(cause):
            tokens = self._encoder.tokenizer([str(texts[k]) for k in chosen], isolate=True, **options)
            yield from self._of_tokens(cause, chosen, tokens)

    def _of_tokens(self, cause: str, rows: Sequence[int], tokens: Tokens) -> Iterator[Made]:
        changed = [k for k, row in enumerate(rows) if tokens.ids[k] != self._tokens.ids[row]]
        if changed:
            yield Made(cause, [rows[k] for k in changed], of_tokens(self._encoder, tokens.take(changed)))

    def _neighbours(self) -> Iterator[Made]:
        yield from self._of_texts("of the row above", [row.above for row in self._rows])
        yield from self._of_texts("of the row below", [row.below for row in self._rows])

    def _poolings(self) -> Iterator[Made]:
        from tempscale.model.pooling import POOLINGS, Head, Normalize

        head = self._encoder.head
        heads: dict[str, Head] = {
            f"pooled by {kind}": Head(kind, list(head.stages), truncate_dim=head.truncate_dim)
            for kind in POOLINGS
            if kind != head.pooling
        }
        heads["pooled by max"] = _max_pooling(head)
        if not all(isinstance(stage, Normalize) for stage in head.stages):
            heads["without the stages after pooling"] = Head(head.pooling, [])
        for cause, other in heads.items():
            if self._is_tried(cause):
                yield Made(cause, list(self.left), of_tokens(self._with_head(other), self._tokens.take(self.left)))

    def _forms(self) -> Iterator[Made]:
        texts = [row.text for row in self._rows]
        for name, form in _FORMS.items():
            yield from self._of_texts(f"embedded from the text {name}", [form(text) for text in texts])
        for separator in _SEPARATORS:
            titled = [row.title and f"{row.title}{separator}{row.text}" for row in self._rows]
            yield from self._of_texts(f"embedded from the title, {separator!r} and the text", titled)

    def _prompts(self) -> Iterator[Made]:
        texts = [row.text for row in self._rows]
        for prompt in dict.fromkeys(["", *self._named, *PROMPTS]):
            if prompt != self._encoder.tokenizer.prompt:
                cause = f"embedded with the prompt {prompt!r}" if prompt else "embedded without a prompt"
                yield from self._of_texts(cause, texts, prompt=prompt)

    def _windows(self) -> Iterator[Made]:
        texts, tokenizer = [row.text for row in self._rows], self._encoder.tokenizer
        for window in sorted({*_WINDOWS, tokenizer.limit}):
            is_own = window == tokenizer.max_length and tokenizer.long == "truncate"
            if window <= tokenizer.limit and not is_own:
                yield from self._of_texts(f"cut to a window of {window} tokens", texts, max_length=window)

    def _characters(self) -> Iterator[Made]:
        for most in CHARACTERS:
            cut = [row.text[:most] if len(row.text) > most else None for row in self._rows]
            yield from self._of_texts(f"cut at {most:,} characters", cut)

    def _padding(self) -> Iterator[Made]:
        """Texts padded to a longer one and run without a mask; the length of the longer one is searched for."""
        window = min(self._encoder.tokenizer.max_length, _LONGEST_PADDED)
        for pooled in (False, True):
            cause = f"padded without a mask{', also in the pooling' if pooled else ''}"
            if not self._is_tried(cause):
                continue
            best = {k: (cosine(self._rows[k].vector, self.right[k]), 0) for k in self.left if self._fits(k)}
            near = {k: 1 - (1 - nearest) / 2 for k, (nearest, _) in best.items()}
            for length in sorted({window, *(shorter for shorter in _WINDOWS if shorter < window)}):
                yield from self._at(dict.fromkeys(best, length), best, cause, pooled)
            # Longer padding moves a vector further, so that the best length is found by steps of half the size each time.
            for step in _STEPS:
                for side in (-step, step):
                    lengths = {k: at + side for k, (nearest, at) in best.items() if at and nearest > near[k]}
                    yield from self._at(lengths, best, cause, pooled)

    def _at(
        self, lengths: dict[int, int], best: dict[int, tuple[float, int]], cause: str, pooled: bool
    ) -> Iterator[Made]:  # fmt: skip
        """The remaining rows at these lengths, in batches; `best` gets the length whose vector is nearest."""
        rows_by_length, left = dict[int, list[int]](), set(self.left)
        for row, length in lengths.items():
            if row in left and len(self._tokens.ids[row]) < length <= self._encoder.tokenizer.limit:
                rows_by_length.setdefault(length, []).append(row)
        for length, rows in sorted(rows_by_length.items()):
            at_once = max(1, self._encoder.token_budget // length)
            for first in range(0, len(rows), at_once):
                batch = rows[first : first + at_once]
                made = self._padded(batch, length, pooled)
                for row, vector in zip(batch, made, strict=True):
                    best[row] = max(best[row], (cosine(self._rows[row].vector, vector), length))
                yield Made(cause, batch, made)

    def _fits(self, row: int) -> bool:
        """Whether a row's vector has the model's dimensions, and the text is one sequence."""
        return self._tokens.text is None and len(self._rows[row].vector) == int(self.right.shape[1])

    def _padded(self, rows: Sequence[int], length: int, pooled: bool) -> np.ndarray:
        import torch

        padding = self._encoder.padding
        ids = torch.full((len(rows), length), padding, dtype=torch.long)
        mask = torch.zeros((len(rows), length), dtype=torch.bool)
        for place, row in enumerate(rows):
            tokens = self._tokens.ids[row]
            ids[place, : len(tokens)] = torch.tensor(tokens)
            mask[place, : len(tokens)] = True
        device, everything = next(self._encoder.model.parameters()).device, torch.ones_like(mask)
        with attach.role(self._encoder.model, ROLE), torch.inference_mode():
            hidden, _ = self._encoder.hidden_states(ids.to(device), everything.to(device), ids.numel())
            unit, norms = self._encoder.head(hidden.float(), (everything if pooled else mask).to(device))
        made: np.ndarray = (unit.double() * norms.double()[:, None]).cpu().numpy()
        return made

    def _temperatures(self) -> Iterator[Made]:
        for tau in (1.0, *TAUS):
            cause = f"embedded under the temperature {tau:g}"
            if self._is_tried(cause) and self._temperature.tau != tau:
                self._encoder.set_temperature(tau)
                made = of_tokens(self._encoder, self._tokens.take(self.left))
                self._encoder.set_temperature(self._temperature)
                yield Made(cause, list(self.left), made)

    def _precisions(self) -> Iterator[Made]:
        for precision in ("float16", "bfloat16"):
            cause = f"computed in {precision}"
            if self._is_tried(cause):
                encoder = in_precision(self._encoder, precision, self._temperature)
                rows, right = list(self.left), self.right[self.left]
                rounded = of_tokens(encoder, self._tokens.take(rows))
                # Another program rounds in another order: its vector is about as far away, in another direction.
                apart = np.linalg.norm(rounded - right, axis=1) / np.linalg.norm(right, axis=1)
                yield Made(cause, rows, right, (_ROUNDED * apart).tolist())


def _max_pooling(head: Head) -> Head:
    """A head with the same stages after the largest number of each dimension."""
    from tempscale.model.pooling import Head

    class MaxPooling(Head):
        @override
        def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
            largest: Tensor = hidden.masked_fill(~mask.bool().unsqueeze(-1), float("-inf")).amax(1)
            return largest

    return MaxPooling(head.pooling, list(head.stages), truncate_dim=head.truncate_dim)


def of_candidate(encoder: Encoder, name: str, rows: Sequence[StoredRow], of_model: dict[str, Any]) -> Iterator[Made]:
    """The vectors of another model: in its own window and with its own prompt, then with those of the run's model."""
    tokenizer = encoder.tokenizer
    of_model = of_model | {"max_length": min(of_model["max_length"], tokenizer.limit)}
    own = {"max_length": tokenizer.max_length, "prompt": tokenizer.prompt}
    for options in (own, *([of_model] if of_model != own else [])):
        if rows:
            yield Made(f"of the model {name}", range(len(rows)), vectors(encoder, [row.text for row in rows], **options))
