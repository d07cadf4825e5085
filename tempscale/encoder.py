"""Texts -> token-budget micro-batches -> hidden states -> text embeddings and token moments.

A result depends on the texts of one call and on the encoder's settings alone: which texts share a micro-batch follows
from their lengths, never from workers or time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tempscale import apply
from tempscale.architectures import base_model, family_of, supported
from tempscale.checkpoint import ModelError, default_model, first_line, read_json, resolve
from tempscale.loading import check_family, load_transformer
from tempscale.moments import TokenMoments, covariance_factor, token_moments
from tempscale.pooling import Head, load_head, transformer_folder
from tempscale.temperature import Temperature

TOKEN_BUDGET = 1024
"""Padded tokens of one micro-batch."""


@dataclass(frozen=True)
class Tokens:
    """Tokenised texts: what the model sees."""

    ids: list[list[int]]
    truncated: list[bool]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text, special tokens included, after truncation."""
        return [len(ids) for ids in self.ids]


class Tokenizer:
    """A model's tokenizer with its maximum length; cheap to load without the model.

    Attributes:
        max_length: the longest text in tokens, special tokens included.
    """

    def __init__(self, folder: Path, max_length: int | None = None) -> None:
        from transformers import AutoConfig, AutoTokenizer

        inner = transformer_folder(folder)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(inner, trust_remote_code=False)
            config = AutoConfig.from_pretrained(inner, trust_remote_code=False)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"the tokenizer or configuration in {inner} cannot be loaded: {first_line(error)}") from None
        if not self._tokenizer.is_fast:
            raise ModelError(f"the tokenizer in {inner} has no tokenizer.json; save it again with a fast tokenizer")
        self._limit = _position_limit(config, int(self._tokenizer.model_max_length))
        self.max_length = self._limit
        self.max_length = self._checked(max_length)
        settings = inner / "sentence_bert_config.json"
        self._lower = bool(read_json(settings).get("do_lower_case")) if settings.is_file() else False

    def __call__(self, texts: Sequence[str], max_length: int | None = None) -> Tokens:
        """Tokenise, special tokens included, cut at `max_length` (the tokenizer's own unless given)."""
        if isinstance(texts, str):
            raise TypeError("texts is one string; give a list of strings")
        limit = self._checked(max_length)
        if not texts:
            return Tokens([], [])
        texts = [text.lower() for text in texts] if self._lower else list(texts)
        encoded = self._tokenizer(texts, truncation=True, max_length=limit, verbose=False)
        return Tokens(encoded["input_ids"], [bool(encoding.overflowing) for encoding in encoded.encodings])

    def _checked(self, max_length: int | None) -> int:
        if max_length is None:
            return self.max_length
        if not 3 <= max_length <= self._limit:
            raise ModelError(f"max_length {max_length} is out of range; this model takes 3 to {self._limit} tokens")
        return max_length


@dataclass(frozen=True)
class Encoded:
    """What `Encoder.encode` returns, one entry a text, in the order of the texts, on the CPU."""

    embeddings: Float[Tensor, "text dim"]
    """Unit norm, float32."""
    tokens: Int[Tensor, " text"]
    truncated: Bool[Tensor, " text"]
    moments: TokenMoments | None
    factors: list[tuple[Float[Tensor, " dim"], Float[Tensor, "rank dim"]]] | None
    """Unit mean and covariance factor of each text, where asked for."""


class Encoder:
    """A transformer, its tokenizer, its pooling and one attention temperature.

    enc = Encoder.load("path or hub name", temperature=0.8)
    out = enc.encode(texts)        # out.embeddings (texts, d), out.moments.spread (texts,)
    """

    def __init__(self, model: torch.nn.Module, tokenizer: Tokenizer, head: Head, token_budget: int = TOKEN_BUDGET) -> None:
        if token_budget < 1:
            raise ValueError(f"token_budget {token_budget} must be at least 1")
        self.model: Any = model.eval()
        self.tokenizer, self.head, self.token_budget = tokenizer, head.eval(), token_budget
        self._padding = int(getattr(model.config, "pad_token_id", None) or 0)
        # A decoder would keep the keys and values of every layer for tokens to come.
        self._arguments = {"use_cache": False} if supported(family_of(base_model(model))).decoder else {}

    @classmethod
    def load(
        cls,
        name: str | Path | None = None,
        temperature: Temperature | float | str | Mapping[str, Any] = 1.0,
        *,
        max_length: int | None = None,
        token_budget: int = TOKEN_BUDGET,
        device: str | torch.device | None = None,
    ) -> Encoder:
        """Load a model folder or hub name, safetensors only, no remote code.

        Args:
            name: a transformers or sentence-transformers folder, or a hub name; the demo MiniLM unless given.
            temperature: τ in (0, 2], a schedule, or anything `Temperature.of` reads.
            max_length: in tokens; the model's own limit unless given.
            token_budget: padded tokens of one micro-batch.
            device: CUDA where there is one, else CPU, unless given.

        Raises:
            ModelError, UnsupportedArchitecture, TemperatureError: each a sentence.
        """
        folder = resolve(str(name) if name is not None else default_model())
        check_family(folder)
        head, tokenizer = load_head(folder), Tokenizer(folder, max_length)
        model, _ = load_transformer(folder)
        chosen = device if device is not None else ("cuda" if torch.cuda.is_available() else "cpu")
        encoder = cls(model.to(chosen), tokenizer, head.to(chosen), token_budget)
        encoder.set_temperature(temperature)
        return encoder

    @property
    def temperature(self) -> Temperature:
        """The temperature of every following `encode`."""
        return apply.attached(self.model) or Temperature(1.0)

    def set_temperature(self, temperature: Temperature | float | str | Mapping[str, Any]) -> None:
        """Replace the temperature; τ = 1 leaves the model untouched, free to attach another."""
        temperature = Temperature.of(temperature)
        before = apply.attached(self.model)
        if before is not None:
            apply.detach(self.model)
        try:
            if not temperature.is_identity:
                apply.attach(self.model, temperature)
        except ValueError:
            if before is not None:
                apply.attach(self.model, before)
            raise

    def encode(
        self,
        texts: Sequence[str],
        *,
        moments: bool = True,
        factors: bool = False,
        max_length: int | None = None,
        role: str | None = None,
    ) -> Encoded:
        """Embed texts: no prompt is added. See `encode_tokens`."""
        return self.encode_tokens(self.tokenizer(texts, max_length), moments=moments, factors=factors, role=role)

    def encode_tokens(
        self, tokens: Tokens, *, moments: bool = True, factors: bool = False, role: str | None = None
    ) -> Encoded:
        """Embed tokenised texts.

        Args:
            tokens: from this encoder's tokenizer.
            moments: also compute ‖μ‖, spread and within-text cosine of each text.
            factors: also return each text's unit mean and covariance factor (min(tokens, d), d).
            role: «query» or «document», for a temperature that depends on it.

        Raises:
            TemperatureError: the temperature depends on the role and none is given.
        """
        with apply.role(self.model, role):
            return self._encode(tokens, moments, factors)

    def _encode(self, tokens: Tokens, moments: bool, factors: bool) -> Encoded:
        lengths, device = tokens.lengths, next(self.model.parameters()).device
        embeddings: list[Tensor] = []
        parts: list[TokenMoments] = []
        found: list[tuple[Tensor, Tensor]] = []
        order: list[int] = []
        for batch in micro_batches(lengths, self.token_budget):
            order += batch
            hidden, mask = self._hidden([tokens.ids[i] for i in batch], device)
            with torch.inference_mode():
                embeddings.append(self.head(hidden, mask).float().cpu())
                if moments:
                    parts.append(TokenMoments(*(column.cpu() for column in token_moments(hidden.float(), mask))))
                if factors:
                    pairs = (covariance_factor(hidden[row, : lengths[i]].float()) for row, i in enumerate(batch))
                    found += [(mean.cpu(), factor.cpu()) for mean, factor in pairs]
        back = torch.argsort(torch.tensor(order, dtype=torch.long))
        width = self.head.width(self.model.config.hidden_size)
        return Encoded(
            embeddings=torch.cat(embeddings)[back] if embeddings else torch.zeros(0, width),
            tokens=torch.tensor(lengths, dtype=torch.long),
            truncated=torch.tensor(tokens.truncated, dtype=torch.bool),
            moments=TokenMoments(*(torch.cat(column)[back] for column in zip(*parts, strict=True))) if parts else None,
            factors=[found[i] for i in back.tolist()] if factors else None,
        )

    def factors_of(
        self, tokens: Tokens, wanted: Collection[int], role: str | None = None
    ) -> dict[int, tuple[Float[Tensor, " dim"], Float[Tensor, "rank dim"]]]:
        """Unit mean and covariance factor of some texts, each in the micro-batch that `encode_tokens` would run it in.

        So they are those of `encode_tokens(tokens, factors=True)` to the bit, and micro-batches without a wanted text cost
        nothing.
        """
        lengths, device = tokens.lengths, next(self.model.parameters()).device
        found: dict[int, tuple[Tensor, Tensor]] = {}
        with apply.role(self.model, role), torch.inference_mode():
            for batch in micro_batches(lengths, self.token_budget):
                if not any(i in wanted for i in batch):
                    continue
                hidden, _ = self._hidden([tokens.ids[i] for i in batch], device)
                for row, i in enumerate(batch):
                    if i in wanted:
                        mean, factor = covariance_factor(hidden[row, : lengths[i]].float())
                        found[i] = mean.cpu(), factor.cpu()
        return found

    def _hidden(self, ids: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
        """Last-layer token embeddings of one right-padded micro-batch and its mask."""
        width = max(len(row) for row in ids)
        padded = torch.full((len(ids), width), self._padding, dtype=torch.long)
        mask = torch.zeros(len(ids), width, dtype=torch.bool)
        for row, sequence in enumerate(ids):
            padded[row, : len(sequence)] = torch.tensor(sequence)
            mask[row, : len(sequence)] = True
        padded, mask = padded.to(device), mask.to(device)
        with torch.inference_mode():
            output = base_model(self.model)(input_ids=padded, attention_mask=mask.long(), **self._arguments)
        return output.last_hidden_state, mask


def micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Indices of texts that run together: longest first, at most `token_budget` padded tokens each (or one text).

    Ties keep their order, so the batches follow from the lengths alone.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= token_budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _position_limit(config: Any, tokenizer_limit: int) -> int:
    """The longest sequence that positions and tokenizer allow; RoBERTa's and MPNet's start after the padding index."""
    positions = int(getattr(config, "max_position_embeddings", 0) or tokenizer_limit)
    if config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions -= int(config.pad_token_id) + 1
    return min(positions, tokenizer_limit)
