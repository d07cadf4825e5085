"""The encoder in MTEB's protocol; it keeps tokens for the next temperature and embeddings for the next pair of roles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType

from tempscale import Encoder
from tempscale.model.settings import Settings
from tempscale.model.tokens import Tokens
from tempscale.temperature.schedule import Temperature

_MOST_TOKENS_KEPT = 50_000_000


class Texts(NamedTuple):
    """The texts of one call, without their content."""

    role: str
    split: str
    subset: str
    ids: list[str]
    """The data set's ids, or the texts' places where it has none."""
    lengths: list[int]
    """Tokens of each text as the model saw it, prompt included."""
    truncated: int
    """Number of texts that were cut at the window."""


class MtebModel(AbsEncoder):  # type: ignore[misc]  # mteb's classes are not typed here
    """A model with an exchangeable temperature, for `mteb.evaluate`.

    Embeddings are those of `SentenceTransformer.encode`, and `similarity` compares them. `settings` are given if the
    checkpoint's own prompts are put before texts; otherwise every text gets the encoder's prompt.
    """

    def __init__(
        self, encoder: Encoder, name: str, revision: str, similarity: str = "cosine", settings: Settings | None = None
    ) -> None:
        self.model = encoder
        self.model_prompts = None if settings is None else dict(settings.prompts)
        self._settings = settings
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": f"tempscale/{name}", "revision": revision, "similarity_fn_name": ScoringFunction(similarity),
                "framework": ["PyTorch"],
            }
        )  # fmt: skip
        self.seen: list[Texts] = []
        """The calls since the last `begin`, in order."""
        self._tokens: dict[bytes, tuple[np.ndarray, bool]] = {}
        self._kept: dict[tuple[str, str, bytes], np.ndarray] | None = None
        self._size = 0
        self._temperature = encoder.temperature

    def begin(self, temperature: Temperature, keep: bool) -> None:
        """Use this temperature from now on; `keep` keeps embeddings for temperatures that differ in one role only."""
        self.seen, self._temperature = [], temperature
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
        """Embeddings (texts, d), unit norm where the model's last stage normalises; the signature is mteb's."""
        prompt = self._prompt(task_metadata, prompt_type)
        texts: list[str] = []
        ids: list[str] = []
        for batch in inputs:
            texts += [prompt + text for text in batch["text"]]
            ids += map(str, batch.get("id", range(len(ids), len(texts))))
        role = "query" if prompt_type == PromptType.query else "document"
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        tokens = self._tokenised(texts, keys)
        cut = sum(truncated for _, truncated in tokens)
        self.seen.append(Texts(role, hf_split, hf_subset, ids, [len(own) for own, _ in tokens], cut))
        temperature = dict(self._temperature.roles).get(role, self._temperature)
        return self._embedded([own for own, _ in tokens], keys, role, temperature)

    def _prompt(self, task_metadata: Any, prompt_type: PromptType | None) -> str:
        """The prompt that mteb's own wrapper of sentence-transformers puts before texts, or the encoder's."""
        if self._settings is None:
            return self.model.tokenizer.prompt
        name = self.get_prompt_name(task_metadata, prompt_type)
        if name in self._settings.prompts:
            return self._settings.prompts[name]
        return self._settings.default_prompt if prompt_type is None else self._settings.prompt("model", prompt_type.value)

    def _tokenised(self, texts: list[str], keys: list[bytes]) -> list[tuple[np.ndarray, bool]]:
        """Tokens of each text and whether it was cut; texts that were seen before are not tokenised again."""
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._tokens}
        made = {}
        if new:
            tokens = self.model.tokenizer(list(new.values()), prompt="")  # Each text has its prompt already.
            rows = zip(new, tokens.ids, tokens.truncated, strict=True)
            made = {key: (np.array(ids, dtype=np.int32), cut) for key, ids, cut in rows}
        found = [made[key] if key in made else self._tokens[key] for key in keys]
        self._size += sum(len(ids) for ids, _ in made.values())
        if self._size <= _MOST_TOKENS_KEPT:
            self._tokens |= made
        return found

    def _embedded(self, tokens: list[np.ndarray], keys: list[bytes], role: str, temperature: Temperature) -> np.ndarray:
        """Embeddings of a call; all of its texts run together or none, so that micro-batches depend on the call alone."""
        own: dict[tuple[str, str, bytes], np.ndarray] = self._kept if self._kept is not None else {}
        named = [(temperature.canonical, role, key) for key in keys]
        if any(name not in own for name in named):
            place = {name: k for k, name in enumerate(named)}
            self.model.set_temperature(temperature)
            ids = [tokens[k].tolist() for k in place.values()]
            out = self.model.encode_tokens(Tokens(ids, [False] * len(ids)), moments=False)
            own |= dict(zip(place, (out.norms[:, None] * out.embeddings).numpy(), strict=True))
        return np.stack([own[name] for name in named])
