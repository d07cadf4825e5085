"""The model that mteb scores under many temperatures, with caches of tokens and, for pairs of roles, of embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mteb.similarity_functions import dot_score
from mteb.types import PromptType

from tempscale import Encoder
from tempscale.model.mteb_model import MtebModel
from tempscale.model.sequences import Sequences, Tokens
from tempscale.model.settings import Settings
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.evaluate.tasks import PIECE_TEXTS
from tempscale_jobs.runs.memory import return_freed

_MOST_TOKENS_KEPT = 50_000_000
_AT_ONCE = 65_536
"""Documents that a query is compared with at once."""

Correct = Callable[["EncodedTexts", np.ndarray], np.ndarray]
"""Changes the embeddings of one call."""
Embedded = Callable[[Temperature, str], "np.ndarray | None"]
"""Reads the embeddings of a piece of documents under a temperature, by its digest; None if nobody has embedded it."""


class EncodedTexts(NamedTuple):
    """The texts of one call without their contents."""

    role: str
    split: str
    subset: str
    ids: list[str]
    """The data set's ids, or the texts' numbers if it has none."""
    lengths: list[int]
    """Tokens of each text with its prompt, after it was cut."""
    whole: list[int]
    """Tokens of each text with its prompt, before it was cut."""
    truncated: int
    """Number of texts that were cut at the window."""
    vectors: Path | None
    """The file of their embeddings, in the same order, if `begin` got a folder."""


class Checkpoint(NamedTuple):
    """The facts about a checkpoint, without its weights."""

    name: str
    revision: str
    similarity: str = "cosine"
    settings: Settings | None = None
    """Set if the checkpoint's prompts are put before texts; else every text gets the encoder's prompt."""


class GridModel(MtebModel):
    """A model with an exchangeable temperature, for `mteb.evaluate`, with the embeddings of `SentenceTransformer.encode`."""

    def __init__(self, encoder: Encoder, known: Checkpoint, piece_texts: int = PIECE_TEXTS) -> None:
        name, revision, similarity, settings = known
        self._describe(encoder, name, revision, similarity, settings)
        self.piece_texts = piece_texts
        """Texts that are batched together, so that the bytes of a call do not depend on who embeds its pieces."""
        self.seen: list[EncodedTexts] = []
        """The calls since the last `begin`, in order."""
        self._tokens: dict[bytes, tuple[np.ndarray, int]] = {}
        self._kept: dict[str, np.ndarray] | None = None
        """Embeddings of pieces, by digest."""
        self._embedded_before: Embedded | None = None
        self._correct: Correct | None = None
        self._size = 0
        self._temperature = encoder.temperature
        self._folder: Path | None = None

    def begin(
        self, temperature: Temperature, keep: bool, folder: Path | None = None, embedded: Embedded | None = None,
        correct: Correct | None = None,
    ) -> None:  # fmt: skip
        """Use this temperature; `keep` embeddings for other roles, save each call's in `folder`, take those `embedded`."""
        self.seen, self._temperature, self._folder, self._embedded_before = [], temperature, folder, embedded
        self._correct = correct
        self._kept = (self._kept if self._kept is not None else {}) if keep else None

    def encode(
        self,
        inputs: Iterable[dict[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **_: Any,
    ) -> np.ndarray:
        """Embeddings (texts, d), of unit norm if the model's last stage normalises; the signature is mteb's."""
        texts, keys, ids = self.read(inputs, task_metadata, prompt_type)
        role = "query" if prompt_type == PromptType.query else "document"
        tokens = self._tokenised(texts, keys)
        token_ids, whole = [ids_of_text for ids_of_text, _ in tokens], [n for _, n in tokens]
        lengths = list(map(len, token_ids))
        temperature = dict(self._temperature.roles).get(role, self._temperature)
        pieces = (slice(start, start + self.piece_texts) for start in range(0, len(texts), self.piece_texts))
        vectors = np.concatenate([self._embedded(token_ids[piece], keys[piece], role, temperature) for piece in pieces])
        file = None if self._folder is None else self._folder / f"{len(self.seen)}.npy"
        cut = sum(n > length for n, length in zip(whole, lengths, strict=True))
        call = EncodedTexts(role, hf_split, hf_subset, ids, lengths, whole, cut, file)
        if self._correct is not None:
            vectors = self._correct(call, vectors)
        if file is not None:
            np.save(file, vectors)
        self.seen.append(call)
        return vectors

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The model's similarity of all pairs, of corrected embeddings the inner product; the signature is mteb's."""
        if self._correct is not None:
            return dot_score(embeddings1, embeddings2)
        return super().similarity(embeddings1, embeddings2)

    def read(
        self, inputs: Iterable[dict[str, Any]], task_metadata: Any, prompt_type: PromptType | None
    ) -> tuple[list[str], list[bytes], list[str]]:
        """The texts of a call with their prompts, their digests and their ids."""
        prompt = self._prompt(task_metadata, prompt_type)
        texts: list[str] = []
        ids: list[str] = []
        for batch in inputs:
            texts += [prompt + text for text in batch["text"]]
            ids += map(str, batch.get("id", range(len(ids), len(texts))))
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        return texts, keys, ids

    def embed_documents(self, texts: list[str], keys: list[bytes], temperature: Temperature) -> np.ndarray:
        """Embeddings (texts, d) of one piece of documents, equal to the bit to those of `encode`."""
        return self._run([token_ids for token_ids, _ in self._tokenised(texts, keys)], keys, temperature)

    def ranks(
        self, calls: list[EncodedTexts], absent: dict[str, list[str]], without_itself: bool = False
    ) -> dict[tuple[str, str], int]:
        """The rank over the whole corpus of the documents in `absent`, by query, of which mteb keeps no rank."""
        # The order is trec_eval's: by score, ties by id, both descending.
        files = {id(texts): np.load(texts.vectors, mmap_mode="r") for texts in calls if texts.vectors is not None}
        asking = [texts for texts in calls if texts.role == "query"]
        queries = {key: row for texts in asking for key, row in zip(texts.ids, files[id(texts)], strict=True)}
        documents = [texts for texts in calls if texts.role == "document"]
        places = {key: (t, k) for t, texts in enumerate(documents) for k, key in enumerate(texts.ids)}
        vectors = [files[id(texts)] for texts in documents]
        names = [np.array(texts.ids, dtype=object) for texts in documents]
        ranks: dict[tuple[str, str], int] = {}
        for query, wanted in absent.items():
            one = np.asarray(queries[query])[None]
            scores = [self._scores(one, call_vectors) for call_vectors in vectors]
            for document in wanted:
                if document not in places:
                    continue
                call, row = places[document]
                score, rank = scores[call][row], 1
                for call_scores, ids in zip(scores, names, strict=True):
                    before = (call_scores > score) | ((call_scores == score) & (ids > document))
                    rank += int((before & (ids != query)).sum() if without_itself else before.sum())
                ranks[query, document] = rank
        return ranks

    def _scores(self, query: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """The similarity of one query (1, d) with documents (documents, d), a block of them at a time."""
        blocks = range(0, len(documents), _AT_ONCE)
        scores = [np.asarray(self.similarity(query, np.array(documents[k : k + _AT_ONCE])))[0] for k in blocks]
        return np.concatenate(scores)

    def _tokenised(self, texts: list[str], keys: list[bytes]) -> list[tuple[np.ndarray, int]]:
        """Tokens of each text, and their number before it was cut; known texts are not tokenised again."""
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._tokens}
        made = {}
        if new:
            tokens = self.model.tokenizer(list(new.values()), prompt="")  # The texts have their prompts.
            assert tokens.whole is not None
            rows = zip(new, tokens.ids, tokens.whole, strict=True)
            made = {key: (np.array(ids, dtype=np.int32), whole) for key, ids, whole in rows}
        tokens_of_texts = [made[key] if key in made else self._tokens[key] for key in keys]
        self._size += sum(len(ids) for ids, _ in made.values())
        if self._size <= _MOST_TOKENS_KEPT:
            self._tokens |= made
        return tokens_of_texts

    def _embedded(self, tokens: list[np.ndarray], keys: list[bytes], role: str, temperature: Temperature) -> np.ndarray:
        """Embeddings of a piece: kept or stored ones, else of a run on all of its texts."""
        name = digest(keys, role, temperature)
        if self._kept is not None and name in self._kept:
            return self._kept[name]
        read = self._embedded_before if role == "document" else None
        if read is not None and (stored := read(temperature, name)) is not None:
            return stored
        vectors = self._run(tokens, keys, temperature)
        if self._kept is not None:
            self._kept[name] = vectors
        return vectors

    def _run(self, tokens: list[np.ndarray], keys: list[bytes], temperature: Temperature) -> np.ndarray:
        """Run the model on each distinct text of a piece; micro-batches depend on the piece alone."""
        place = {key: k for k, key in enumerate(keys)}
        self.model.set_temperature(temperature)
        ids = Sequences.of([tokens[k] for k in place.values()])
        out = self.model.encode_tokens(Tokens(ids, [False] * len(ids)), moments=False)
        return_freed()  # A task is a whole cell: of mpnet it had 9 GB after an hour without this.
        rows = {key: row for row, key in enumerate(place)}
        return np.asarray((out.norms[:, None] * out.embeddings).numpy()[[rows[key] for key in keys]])


def digest(keys: list[bytes], role: str, temperature: Temperature) -> str:
    """A digest of a piece's texts, their role and their temperature, which names its embeddings."""
    what = f"{role} {temperature.canonical}\n".encode()
    return hashlib.blake2b(what + b"".join(keys), digest_size=16).hexdigest()
