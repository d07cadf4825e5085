"""Texts of one repeated token: two of them share only special tokens, and are more similar the longer they are (S1 E.4)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.diagnose.looks import Read
from tempscale_jobs.runs.folder import Model
from tempscale_jobs.tables.diagnose import REPEATED_PARTS
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Crew, Piece, missing

_BEGINNINGS = "▁Ġ"
SHORTEST, LONGEST = 8, 512


class Repeated(NamedTuple):
    """The settings of pairs of texts of one repeated token."""

    tokens: int
    pairs: int
    seed: int


def embed_repeated(read: Read, crew: Crew, model: Model) -> int:
    """Embed pairs of repeated tokens at 8, 16, … 512 tokens under every temperature; return the number of lengths."""
    run, pairs, lengths = read.run, read.config.diagnosis.repeated_pairs, lengths_up_to(model.max_length)
    if not pairs or not lengths:
        return 0
    every = [
        Piece(
            k, (k, Repeated(length, pairs, read.config.seed)), f"length {length}",
            tuple(run.part(REPEATED_PARTS, model, t, k) for t in run.temperatures), cost=float(length),
        )
        for k, length in enumerate(lengths)
    ]  # fmt: skip
    for _ in crew.run(write_cosines, missing(run.storage, every)):
        pass
    return len(lengths)


def lengths_up_to(window: int) -> list[int]:
    """The lengths 8, 16, … tokens, up to the model's window and 512."""
    lengths: list[int] = []
    while (length := SHORTEST << len(lengths)) <= min(window, LONGEST):
        lengths.append(length)
    return lengths


def write_cosines(worker: actor.ModelActor, number: int, wanted: Repeated) -> None:
    """Write the cosine of each pair at one length, one part per temperature."""
    from tempscale.model.sequences import Tokens

    worker.note_processor()
    first, last = special_tokens(worker.encoder.tokenizer)
    words = ordinary(worker.encoder.tokenizer, 2 * wanted.pairs, wanted.seed)
    words = words[: len(words) // 2 * 2]  # A small vocabulary gives fewer pairs.
    inside = wanted.tokens - len(first) - len(last)
    texts = Tokens([[*first, *[word] * inside, *last] for word in words], [False] * len(words))
    padded = worker.encoder.padded(texts)
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        cosine = np.empty(0)
        if words and inside > 0:
            out = worker.encoder.encode_tokens(texts, moments=False, role=actor.ROLE, padded=padded)
            vectors = out.embeddings.double().numpy()
            cosine = (vectors[0::2] * vectors[1::2]).sum(1)
        name = worker.part(REPEATED_PARTS, temperature, number)
        worker.storage.write_table(name, pa.table({"tokens": np.full(len(cosine), wanted.tokens), "cosine": cosine}))


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and after every text."""
    one, other = (tokenizer([word], prompt="").ids[0] for word in ("0", "a"))
    shortest = min(len(one), len(other))
    before = next((k for k in range(shortest) if one[k] != other[k]), None)
    after = next((k for k in range(shortest) if one[-1 - k] != other[-1 - k]), None)
    if before is None or after is None:  # The vocabulary has neither word.
        return [], []
    return one[:before], one[len(one) - after :]


def ordinary(tokenizer: Any, count: int, seed: int) -> list[int]:
    """Ids of at most `count` ordinary tokens: the words of the vocabulary with the smallest keyed hashes."""
    vocabulary = tokenizer.vocabulary()
    # If a vocabulary marks the beginning of words, tokens without the mark are parts of words.
    marked = [token for token in vocabulary if token[0:1] in tuple(_BEGINNINGS)]
    words = {token: vocabulary[token] for token in (marked or vocabulary) if token.lstrip(_BEGINNINGS).isalpha()}
    return [words[token] for token in sorted(words, key=lambda token: (keyed_hash(token, seed), token))[:count]]
