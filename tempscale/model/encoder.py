"""Texts -> micro-batches by token budget -> hidden states -> text embeddings and token moments.

A result depends only on the texts of one call and on the encoder's settings; `batches` explains why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from tempscale.model.batches import micro_batches, run_batches
from tempscale.model.budgets import usual_budget
from tempscale.model.checkpoint import default_model, resolve
from tempscale.model.gathering import Encoded, Factor, Pass, Request, Troubles, apart, gather
from tempscale.model.loading import check_config, load_transformer, round_weights
from tempscale.model.packed import Packed
from tempscale.model.padded import Padded, downloaded, finished
from tempscale.model.pooling import Head, load_head
from tempscale.model.sequences import Tokens
from tempscale.model.settings import Settings
from tempscale.model.tokens import Long, Tokenizer, described
from tempscale.second_order.moments import Scatter, TokenMoments, TokenSums, check_direction, covariance_factor, token_sums
from tempscale.temperature import attach
from tempscale.temperature.families import base_model, family_of, supported
from tempscale.temperature.schedule import Temperature
from tempscale.tf32 import tf32_products

Precision = Literal["float32", "tf32", "bfloat16"]
"""The precision that the transformer computes in; pooling, moments and factors are float32.

float32: IEEE products. tf32: only on a GPU, float32 weights and products of numbers with 11 significant bits. bfloat16: 8
significant bits; on a CPU float32 weights under torch's autocast, on a GPU rounded weights.
"""


class Encoder:
    """A transformer, its tokenizer, its pooling and one attention temperature.

        enc = Encoder.load("path or hub name", temperature=0.8)
        out = enc.encode(texts)        # out.embeddings (texts, d), out.moments.spread (texts,)

    Which texts run together depends only on their lengths and the token budget, and so do the last digits of a result.

    Args:
        model: a transformers model of a supported family; it is put into evaluation mode.
        tokenizer: the tokenizer of this model.
        head: the stages from token embeddings to text embeddings.
        token_budget: padded tokens in one micro-batch, ≥ 1; by default that of `model.budgets.usual_budget`.
        precision: the precision that the transformer computes in.
        compiled: whether torch.compile compiles the transformer, for batches of any shape and for every τ of one kind; or
            the name of one of its backends. It changes the last digits.
        packed: whether the texts of a micro-batch run one after the other without padding, on a GPU in bfloat16 only. Each
            text keeps its τ. It changes the last digits.

    Attributes:
        model: the transformers model; `attach`, `verify` and `fold` also accept the encoder itself.
        tokenizer: its `Tokenizer`; texts are cut at `tokenizer.max_length`.
        head: pooling and the stages after it.
        token_budget: padded tokens in one micro-batch.
        precision: the precision that the transformer computes in.
        compiled: whether torch.compile compiles the transformer.
        packed: whether texts run without padding.
        padding: the token that fills up shorter texts.
        halved: how many micro-batches so far did not fit in memory and ran in halves.

    Raises:
        ValueError: the token budget is below 1, the precision is unknown or not one of this device, or texts cannot be both
            packed and compiled.
        UnsupportedArchitecture: the model's family is not supported, or cannot be packed or compiled.
    """

    def __init__(
        self, model: torch.nn.Module, tokenizer: Tokenizer, head: Head, token_budget: int | None = None, *,
        precision: Precision = "float32", compiled: bool | str = False, packed: bool = False,
    ) -> None:  # fmt: skip
        if token_budget is not None and token_budget < 1:
            raise ValueError(f"token_budget {token_budget} must be at least 1")
        if precision not in get_args(Precision):
            raise ValueError(f"precision can be {' or '.join(get_args(Precision))}, not {precision!r}")
        device = next(model.parameters()).device
        if token_budget is None:
            config: Any = base_model(model).config
            token_budget = usual_budget(device.type, int(config.hidden_size))
        if precision == "tf32" and device.type == "cpu":
            raise ValueError("tf32 is a precision of GPUs, and this model is on the CPU: choose float32 or bfloat16")
        if precision == "bfloat16" and device.type != "cpu":
            round_weights(model)
        self.precision = precision
        self.compiled = bool(compiled)
        self.halved = 0
        self.model: Any = model.eval()
        # Otherwise a decoder would cache the keys and values of every layer for later tokens.
        self._arguments = {"use_cache": False} if supported(family_of(base_model(model))).decoder else {}
        self.packed = packed
        self._run: Any = base_model(model)
        if packed and compiled:
            raise ValueError("packed texts have another shape each time and are not compiled: choose one of the two")
        self._packed = Packed(model, self._arguments) if packed else None
        if compiled:
            backend: dict[str, Any] = {} if compiled is True else {"backend": compiled}
            attach.attach_tensors(model, attach.attached(model) or Temperature(1.0))
            self._run = torch.compile(self._run, dynamic=True, **backend)
        self.tokenizer, self.head, self.token_budget = tokenizer, head.eval(), token_budget
        self.padding = int(getattr(model.config, "pad_token_id", None) or 0)

    @classmethod
    def load(
        cls,
        name: str | Path | None = None,
        temperature: Temperature | float | str | Mapping[str, Any] = 1.0,
        *,
        max_length: int | Literal["limit"] | None = None,
        token_budget: int | None = None,
        device: str | torch.device | None = None,
        precision: Precision = "float32",
        long: Long = "truncate",
        prompt: str | None = None,
        compiled: bool = False,
        packed: bool = False,
    ) -> Encoder:
        """Load a model folder or hub name: safetensors only, no remote code.

        Args:
            name: a transformers or sentence-transformers folder, or a hub name; the demo MiniLM by default.
            temperature: τ in (0, 2], a schedule, or any value that `Temperature.of` reads.
            max_length: the window in tokens, or «limit» for as many as the model has positions for; the checkpoint's own by
                default, as in sentence-transformers.
            token_budget: as in `Encoder`.
            device: CUDA by default if there is a GPU, else CPU.
            precision: tf32 or bfloat16: faster if the processor supports it; see `Precision`. tf32 needs a GPU.
            long: what happens to a text longer than `max_length`: it is cut, or run in chunks of that length whose token
                embeddings are then treated as one text. Moments and factors of chunks are exact; the embedding is the mean
                over chunks, weighted by tokens.
            prompt: a text that is put before every text; by default the checkpoint's default prompt, as in
                sentence-transformers. Few checkpoints have one.
            compiled: whether torch.compile compiles the transformer, once for all shapes and every constant τ. It takes a
                minute, is worth it on a GPU, and changes the last digits.
            packed: whether texts run without padding; on a GPU it needs bfloat16. It changes the last digits.

        Returns:
            An encoder on the device; its weights are float32, or bfloat16 where a GPU computes in it.

        Raises:
            ModelError: the folder or hub name has no safetensors model, or `max_length`, `long` or `prompt` does not fit it.
            UnsupportedArchitecture: the model's family is not supported.
            TemperatureError: τ cannot be used, or the schedule has another number of layers or heads than the model.
            ValueError: the token budget is below 1, or the precision is unknown.
        """
        folder = resolve(str(name) if name is not None else default_model())
        check_config(folder)
        prompt = Settings.of(folder).default_prompt if prompt is None else prompt
        head, tokenizer = load_head(folder), Tokenizer(folder, max_length, long, prompt)
        head.check_prompt(prompt)
        model, _ = load_transformer(folder)
        target = device if device is not None else ("cuda" if torch.cuda.is_available() else "cpu")
        if precision == "bfloat16" and torch.device(target).type != "cpu":
            round_weights(model)  # Before they are copied, so that the GPU never stores them in float32.
        options: dict[str, Any] = {"precision": precision, "compiled": compiled, "packed": packed}
        encoder = cls(model.to(target), tokenizer, head.to(target), token_budget, **options)
        encoder.set_temperature(temperature)
        return encoder

    @property
    def temperature(self) -> Temperature:
        """The temperature of every following `encode`; `Temperature(1.0)` if none is attached."""
        return attach.attached(self.model) or Temperature(1.0)

    def set_temperature(self, temperature: Temperature | float | str | Mapping[str, Any]) -> None:
        """Replace the temperature. τ = 1 leaves the model untouched, so another temperature can be attached to it.

        Args:
            temperature: as in `load`.

        Raises:
            TemperatureError: it cannot be used, or has another number of layers or heads than the model; the old one is
                kept.
        """
        temperature = Temperature.of(temperature)
        if self.compiled:
            attach.attach_tensors(self.model, temperature)
            return
        before = attach.attached(self.model)
        if before is not None:
            attach.detach(self.model)
        try:
            if not temperature.is_identity:
                attach.attach(self.model, temperature)
        except ValueError:
            if before is not None:
                attach.attach(self.model, before)
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
        """Embed texts, each after the encoder's prompt, if it has one.

            u = pool(x_1 … x_n) / ‖pool(x_1 … x_n)‖,  for mean pooling  pool = μ = (1/n)Σ x_j          S2 eq. 2

        The vector of `SentenceTransformer.encode` is ‖pool(…)‖·u: `out.norms[:, None] * out.embeddings`.

        Args:
            texts: strings.
            moments: also compute ‖μ‖, spread and within-text cosine of each text.
            factors: also return the unit mean and the covariance factor (min(tokens, d), d) of each text.
            max_length: where texts are cut, in tokens from 3 to the model's limit; the encoder's own by default.
            role: «query» or «document», for a temperature that depends on it.

        Returns:
            `Encoded`: embeddings (texts, d) of unit norm, their norms before and, unless switched off, moments (texts,);
            float32, on the CPU, in the order of the texts.

        Raises:
            TypeError: texts is one string, or one of them is none.
            ModelError: `max_length` is out of range.
            TemperatureError: the temperature depends on the role and none is given, or the role is unknown.
        """
        return self.encode_tokens(self.tokenizer(texts, max_length), moments=moments, factors=factors, role=role)

    def encode_tokens(
        self,
        tokens: Tokens,
        *,
        moments: bool = True,
        factors: bool | Collection[int] = False,
        role: str | None = None,
        isolate: bool = False,
        batches: Sequence[list[int]] | None = None,
        before: Callable[[list[int]], None] | None = None,
        padded: Padded | None = None,
    ) -> Encoded:
        """Embed tokenised texts.

        Args:
            tokens: from this encoder's tokenizer.
            moments: also compute ‖μ‖, spread and within-text cosine of each text.
            factors: also return unit mean and covariance factor (min(tokens, d), d) of all texts, or of those listed.
            role: «query» or «document», for a temperature that depends on it.
            isolate: find the texts that the model fails on instead of raising; `Encoded.failed` lists them with those that
                the tokenizer failed on.
            batches: which sequences of `tokens` run together, each in one batch; `self.batches(tokens)` by default.
            before: called with the sequences of each micro-batch, after all earlier ones have ended (also on a GPU).
            padded: from this encoder's `padded(tokens)`, where several temperatures run the same texts.

        Returns:
            The same as `encode`; NaN for a text that failed, or whose sequences are in no batch.

        Raises:
            TemperatureError: the temperature depends on the role and none is given.
        """
        batches = self.batches(tokens) if batches is None else batches
        owner, spans = tokens.owner, tokens.spans
        lengths, device = tokens.sequences.lengths.tolist(), next(self.model.parameters()).device
        sizes = lengths if spans is None else tokens.lengths
        factored: Collection[int] = range(len(tokens) if factors is True else 0) if isinstance(factors, bool) else factors
        chunked: dict[int, Scatter] = {}
        padded_batches = self.padded(tokens) if padded is None else padded
        waiting = before is not None

        def run(batch: list[int]) -> Pass:
            hidden, mask = self.hidden_states(*padded_batches[batch], sum(lengths[i] for i in batch))
            with torch.autocast(device.type, enabled=False):
                hidden = hidden.float()
                if spans is not None:
                    batch, hidden, mask = apart(tokens, batch, hidden)
                sums = token_sums(hidden, mask) if moments else None
                selected = [(owner[i], hidden[row, : sizes[i]]) for row, i in enumerate(batch) if owner[i] in factored]
                wait = waiting or bool(selected)
                if tokens.text is not None:
                    chunks = [self.head.pool(hidden, mask), *(sums or ()), *(x for _, x in selected)]
                    pooled, *remaining = downloaded(chunks, wait)
                    chunk_sums = TokenSums(*remaining[:4]) if sums is not None else None
                    for (text, _), x in zip(selected, remaining[len(sums or ()) :], strict=True):
                        scatter = Scatter.of(x)
                        chunked[text] = chunked[text].merged(scatter) if text in chunked else scatter
                    return Pass(batch, pooled, None, chunk_sums, None, {})
                columns = sums.moments() if sums is not None else ()
                pairs = [covariance_factor(x, check=False) for _, x in selected]
                values = [*self.head(hidden, mask), *columns, *chain.from_iterable(pairs)]
                unit, norms, *remaining = downloaded(values, wait)
                text_moments = TokenMoments(*remaining[:3]) if sums is not None else None
                means, spreads = remaining[len(columns) :: 2], remaining[len(columns) + 1 :: 2]
                for mean in means:
                    check_direction(mean)
                text_factors = {
                    text: pair for (text, _), pair in zip(selected, zip(means, spreads, strict=True), strict=True)
                }
                return Pass(batch, unit, norms, None, text_moments, text_factors)

        halved: list[list[int]] = []
        failed: dict[int, str] | None = {} if isolate else None
        with attach.role(self.model, role), torch.inference_mode():
            # One autocast for all micro-batches, because it caches the weights it has cast until it ends.
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self._casts(device)):
                passes = list(run_batches(batches, run, halved=halved, failed=failed, before=before))
                finished(device)
            self.halved += len(halved)
            width = self.head.width(self.model.config.hidden_size)

            def finish(pooled: Tensor) -> tuple[Tensor, Tensor]:
                unit, norms = self.head.finish(pooled.to(device))
                return unit.cpu(), norms.cpu()

            request, troubles = Request(width, finish, moments, factors is not False), Troubles(failed or {}, halved)
            return gather(tokens, passes, request, troubles if spans is None else troubles.by_text(tokens), chunked)

    def token_embeddings(self, ids: Sequence[int], role: str | None = None) -> Float[Tensor, "token dim"]:
        """Last-layer token embeddings (tokens, d) of one text, run alone; float32, on the CPU.

        Args:
            ids: the tokens of the text, special tokens included.
            role: as in `encode_tokens`.

        Returns:
            The x_1 … x_n of S2 as rows (tokens, d), under the encoder's temperature and before any pooling.

        Raises:
            TemperatureError: the temperature depends on the role and none is given.
        """
        with attach.role(self.model, role), torch.inference_mode():
            hidden, _ = self.hidden_states(*self.padded(Tokens([list(ids)], [False]))[[0]], len(ids))
        return hidden[0].float().cpu()

    def batches(self, tokens: Tokens) -> list[list[int]]:
        """Which sequences run together. Texts that the tokenizer failed on are in no batch.

        Args:
            tokens: from this encoder's tokenizer.

        Returns:
            Micro-batches of at most `token_budget` padded tokens, or of one sequence, longest first.
        """
        batches = micro_batches(tokens.sequences.lengths.tolist(), self.token_budget, self.packed)
        return _without(batches, lambda i: any(text in tokens.failed for text in tokens.texts_of(i)))

    def factors_of(
        self, tokens: Tokens, wanted: Collection[int], role: str | None = None, without: Collection[int] = (),
        padded: Padded | None = None,
    ) -> dict[int, Factor]:  # fmt: skip
        """Unit mean and covariance factor of some texts, each run in the same micro-batch as in `encode_tokens`.

        The results equal those of `encode_tokens(tokens, factors=True)` to the bit. Other micro-batches are not run.

        Args:
            tokens: from this encoder's tokenizer.
            wanted: indices of texts.
            role: as in `encode_tokens`.
            without: texts to remove from their micro-batches because the model cannot run them.
            padded: as in `encode_tokens`.

        Returns:
            Text -> unit mean (d,) and covariance factor (min(tokens, d), d), float32, on the CPU.

        Raises:
            TemperatureError: the temperature depends on the role and none is given.
        """
        batches = _without(self.batches(tokens), lambda i: any(text in without for text in tokens.texts_of(i)))
        batches = [batch for batch in batches if any(text in wanted for i in batch for text in tokens.texts_of(i))]
        options: dict[str, Any] = {"role": role, "batches": batches, "isolate": True, "padded": padded}
        out = self.encode_tokens(tokens, moments=False, factors=wanted, **options)
        assert out.factors is not None
        return {i: out.factors[i] for i in wanted}

    def padded(self, tokens: Tokens) -> Padded:
        """The micro-batches of some texts on the device of the model, for `encode_tokens` under several temperatures.

        Args:
            tokens: from this encoder's tokenizer.

        Returns:
            Micro-batches that are assembled and uploaded once, when they are first run.
        """
        return Padded(tokens.sequences, self.padding, next(self.model.parameters()).device)

    def hidden_states(self, ids: Tensor, mask: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Last-layer token embeddings of one micro-batch.

        Args:
            ids: (texts, tokens), padded on the right.
            mask: (texts, tokens), 1 where a token is one of the text.
            tokens: the number of tokens of all texts.

        Returns:
            (texts, tokens, dimensions), and the mask.
        """
        with tf32_products(self.precision == "tf32") if ids.is_cuda else nullcontext():
            if self._packed is not None:
                return self._packed(ids, mask, tokens), mask
            output = self._run(input_ids=ids, attention_mask=mask.long(), **self._arguments)
        return output.last_hidden_state, mask

    def _casts(self, device: torch.device) -> bool:
        """Whether autocast to bfloat16 is on: only on a CPU, because a GPU has rounded weights."""
        return self.precision == "bfloat16" and device.type == "cpu"


def check_encoder(encoder: object) -> None:
    """Raise a TypeError unless an argument is an Encoder."""
    if not isinstance(encoder, Encoder):
        raise TypeError(f"encoder is {described(encoder)}; give an Encoder, such as Encoder.load('a folder or a hub name')")


def _without(batches: list[list[int]], left_out: Callable[[int], bool]) -> list[list[int]]:
    """The micro-batches without some sequences."""
    remaining = [[i for i in batch if not left_out(i)] for batch in batches]
    return [batch for batch in remaining if batch]
