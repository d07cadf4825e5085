"""Texts -> token ids: cut at the model's window, or split into chunks of that length."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tempscale.model.checkpoint import ModelError, first_line
from tempscale.model.fast_tokens import FastTokenizer, NotFast
from tempscale.model.sequences import Spans, Tokens
from tempscale.model.settings import Settings, window_of_tokenizer

if TYPE_CHECKING:
    from semantic_text_splitter import TextSplitter

Long = Literal["truncate", "chunk"]
"""The treatment of a text longer than the window."""
LIMIT = "limit"
"""Instead of a window: the most tokens that the model has positions for."""
_LEARNED_POSITIONS = ("bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "distilbert", "mpnet")
"""Families with a table of positions, which fail beyond its end; others compute any position."""
_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Families whose positions start after that of the padding."""
_COUNTING_PADDING = ("bert", "electra", "albert", "distilbert")
"""Families whose positions count padding on the left, which changes vectors in sentence-transformers."""
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model", "*.spm", "*.tiktoken", "tekken.json")
"""Files of vocabularies; a folder with a tokenizer has at least one."""
_LONGEST = 1 << 20
"""The largest window of a model that names none."""
NOT_ASKED, _NOT_WANTED = "the tokenizer", "the tokenizer, since tokie was not wanted"
"""What tokenises as long as no call had many texts, and where tokie may not be asked."""
_WORTH = 256
"""Texts of one call for which tokie is asked."""
_FIRST, _EVERY = 1000, 1000
"""So many first texts are compared with the tokenizer's own ids; then one in so many."""


class Tokenizer:
    """The tokenizer of a model and its window; it loads quickly, without the model.

    Args:
        folder: a transformers or sentence-transformers folder, as `model.checkpoint.resolve` returns it.
        max_length: the window in tokens, from 3 to the model's limit, or «limit». By default it is the checkpoint's own, as
            in sentence-transformers: its `max_seq_length`, else the tokenizer's `model_max_length`, at most the limit.
        long: whether a longer text is cut at `max_length` or continues in further sequences.
        prompt: a text that is put before every text.
        fast: whether many texts may be tokenised by tokie, while its ids are the tokenizer's own.

    Raises:
        ModelError: the folder has no fast tokenizer that can be loaded, or a setting is out of range.
    """

    def __init__(
        self, folder: Path, max_length: int | Literal["limit"] | None = None, long: Long = "truncate", prompt: str = "",
        *, fast: bool = True,
    ) -> None:  # fmt: skip
        from transformers import AutoConfig, AutoTokenizer

        if long not in get_args(Long):
            raise ModelError(f"long texts can be {' or '.join(get_args(Long))}, not {long!r}")
        settings = Settings.of(folder)
        inner = settings.transformer
        if not any(True for pattern in _VOCABULARIES for _ in inner.glob(pattern)):
            raise ModelError(
                f"{inner} has no tokenizer.json and no other vocabulary; copy or download the model again, "
                "or save it with a fast tokenizer"
            )
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(inner, trust_remote_code=False, **settings.tokenizer)
            config = AutoConfig.from_pretrained(inner, trust_remote_code=False)
        except Exception as error:  # For a damaged tokenizer.json the library raises Exception itself.
            raise ModelError(f"the tokenizer or configuration in {inner} cannot be loaded: {first_line(error)}") from None
        self.long, self.prompt = long, prompt
        tokenizer_window = window_of_tokenizer(self._tokenizer.model_max_length, inner)
        self._check(folder, config)
        if settings.lower_case:
            _lower_case(self._tokenizer)
        window, self.limit = _windows(settings, config, tokenizer_window)
        """The most tokens that the model has positions for."""
        if window is None and not isinstance(max_length, int):
            raise ModelError(f"the tokenizer in {inner} names no window; give a max_length in tokens (--max-length 512)")
        self.max_length = min(window or self.limit, self.limit)
        self.max_length = self.limit if max_length == LIMIT else self._checked(max_length)
        self._fast: FastTokenizer | None = None
        self.tokenised_by = NOT_ASKED if fast else _NOT_WANTED
        """What tokenises many texts: tokie and its version, or the tokenizer and why."""
        self._compared = 0
        """Texts that were compared, up to the first thousand."""
        self.differing_text: str | None = None
        """The first text for which tokie gave other ids: texts that were tokenised before may have wrong ones, too."""

    def _check(self, folder: Path, config: Any) -> None:
        """Raise unless the tokenizer has files, makes the tokens of the model, and uses no chat template."""
        inner = Settings.of(folder).transformer
        if not self._tokenizer.is_fast:
            raise ModelError(f"the tokenizer in {inner} has no tokenizer.json; save it again with a fast tokenizer")
        names = {"tokenizer.json", str(self._tokenizer.vocab_files_names.get("vocab_file", "tokenizer.json"))}
        if not any((inner / name).is_file() for name in names) and not any(inner.glob("*.model")):
            # The library would make a tokenizer of special tokens only, to which every word is unknown.
            raise ModelError(f"{inner} has no {' and no '.join(sorted(names))}; copy or download the model again")
        if not (folder / "modules.json").is_file() and self._tokenizer.chat_template is not None:
            raise ModelError(
                f"the texts of the model in {folder} go through the chat template of its tokenizer, which is not supported; "
                "save it with sentence-transformers, with texts alone in its modality_config"
            )
        vocabulary = self._tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
        probe = self._tokenizer("a", verbose=False)
        largest = max([*vocabulary.values(), *probe["input_ids"]], default=0)
        if largest >= config.vocab_size:
            raise ModelError(
                f"the tokenizer in {inner} makes ids up to {largest}, and config.json has vocab_size {config.vocab_size}; "
                "give the tokenizer that belongs to the model"
            )
        if "attention_mask" not in probe:
            raise ModelError(
                f"the tokenizer in {inner} has model_input_names without attention_mask, so that padding would count as "
                "text, which is not supported; add attention_mask to them in tokenizer_config.json"
            )
        if self._tokenizer.padding_side == "left" and config.model_type in _COUNTING_PADDING:
            raise ModelError(
                f"the tokenizer in {inner} has padding_side 'left', which moves the positions of a {config.model_type} and "
                "is not supported; set it to 'right' if the model was trained so"
            )
        if any(probe.get("token_type_ids", ())):
            raise ModelError(f"the tokenizer in {inner} gives texts another token_type_ids than 0, which is not supported")

    def __call__(
        self, texts: Sequence[str], max_length: int | None = None, *, isolate: bool = False, prompt: str | None = None
    ) -> Tokens:
        """Tokenise texts, special tokens included.

        Args:
            texts: strings.
            max_length: where texts are cut; by default `long` decides about a longer text.
            isolate: find the texts that the tokenizer fails on instead of raising; see `Tokens.failed`.
            prompt: replaces the tokenizer's own prompt.

        Returns:
            One entry a text, in the same order.

        Raises:
            TypeError: texts is one string, or one of them is none.
            ModelError: `max_length` is out of range.
        """
        if isinstance(texts, str):
            raise TypeError("texts is one string; give a list of strings")
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"text {place} is {described(text)}, not a string")
        limit = self._checked(max_length)
        cut = self.long == "truncate" or max_length is not None
        try:
            prompt = self.prompt if prompt is None else prompt
            return self._tokens([prompt + text for text in texts], limit, cut)
        except BaseException as error:
            _raise_if_asked_to_end(error)
            if not isolate:
                raise
            if len(texts) == 1:
                reason = f"the tokenizer fails with {type(error).__name__}: {first_line(error)}"
                return Tokens([[0]], [False], None, {0: reason})
        by_text = [self([text], max_length, isolate=True, prompt=prompt) for text in texts]
        failed = {k: tokens.failed[0] for k, tokens in enumerate(by_text) if tokens.failed}
        return Tokens.of_chunks([tokens.ids for tokens in by_text], [tokens.truncated[0] for tokens in by_text], failed)

    def splitter(self, tokens: int, overlap: int = 0) -> TextSplitter:
        """What cuts a text into chunks of at most so many tokens, with special tokens and prompt, at sentences if it can.

        Raises:
            ModelError: the special tokens and the prompt leave no room.
        """
        from semantic_text_splitter import TextSplitter
        from tokenizers import Tokenizer as Backend

        around = len(self._tokenizer(self.prompt)["input_ids"])
        if around + overlap >= tokens:
            raise ModelError(f"a chunk of {tokens} tokens has no room for a text: the model adds {around} tokens to each")
        counting = Backend.from_str(self._tokenizer.backend_tokenizer.to_str())
        counting.no_truncation()
        counting.no_padding()
        return TextSplitter.from_huggingface_tokenizer(counting, tokens - around, overlap)

    def parts(self, texts: Sequence[str], starts: Sequence[Sequence[int]]) -> Tokens:
        """Tokenise texts whose parts are embedded, each read with the rest of its text; each text fits into the window.

        Args:
            texts: strings.
            starts: the first character of each part of each text, ascending from 0.

        Returns:
            One entry a part. Special tokens and the prompt belong to the first part, and those at the end to the last.
        """
        tokens = self(texts, self.max_length, isolate=True)
        good = [k for k in range(len(texts)) if k not in tokens.failed]
        read = [self.prompt + texts[k] for k in good]
        encodings = self._tokenizer(read, truncation=True, max_length=self.max_length).encodings if good else []
        bounds = {k: np.array([0, *[1] * len(starts[k])]) for k in tokens.failed}
        for k, encoding in zip(good, encodings, strict=True):
            last = np.array([end for _, end in encoding.offsets]) - len(self.prompt) - 1  # The last character of each token.
            part = np.maximum.accumulate(np.searchsorted(starts[k], np.maximum(last, 0), side="right") - 1)
            bounds[k] = np.searchsorted(part, np.arange(len(starts[k]) + 1))
        sequence = [k for k, of_text in enumerate(starts) for _ in of_text]
        start, stop = (np.concatenate([bounds[k][at] for k in range(len(texts))]) for at in (slice(-1), slice(1, None)))
        failed = {part: tokens.failed[k] for part, k in enumerate(sequence) if k in tokens.failed}
        truncated = [tokens.truncated[k] for k in sequence]
        return Tokens(tokens.ids, truncated, None, failed, spans=Spans(np.array(sequence), start, stop))

    def framing(self) -> tuple[list[int], list[int]]:
        """The tokens before a text, special ones and those of the prompt, and the special ones after it."""
        (encoding,) = self._tokenizer([self.prompt or "a"]).encodings
        text = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
        first = text[0] if text else len(encoding.ids)
        before = encoding.ids[: text[-1] + 1 if self.prompt and text else first]
        return list(before), list(encoding.ids[text[-1] + 1 if text else first :])

    def contents(self, texts: Sequence[str], most: int) -> list[list[int]]:
        """The tokens of each text, at most so many with special ones, but without these and without the prompt."""
        encodings = self._tokenizer(list(texts), truncation=True, max_length=most, verbose=False).encodings
        return [
            [token for token, special in zip(encoding.ids, encoding.special_tokens_mask, strict=True) if not special]
            for encoding in encodings
        ]

    def vocabulary(self) -> dict[str, int]:
        """Ids of the ordinary tokens by their text, without special tokens."""
        special = set(self._tokenizer.all_special_ids)
        return {token: number for token, number in self._tokenizer.get_vocab().items() if number not in special}

    def around(self) -> set[int]:
        """Ids of the special tokens around texts, such as [CLS] and [SEP]: all but that of an unknown word."""
        return set(self._tokenizer.all_special_ids) - {self._tokenizer.unk_token_id}

    def words(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, as in the vocabulary."""
        return [str(token) for token in self._tokenizer.convert_ids_to_tokens(list(ids))]

    def _tokens(self, texts: Sequence[str], limit: int, cut: bool) -> Tokens:
        """The tokens of texts with their prompt, cut at a limit or in chunks of it."""
        if not texts:
            return Tokens([], [])
        if len(texts) >= _WORTH and (tokens := self._fast_tokens(texts, limit, cut)) is not None:
            return tokens
        return self._plain_tokens(texts, limit, cut)

    def _fast_tokens(self, texts: Sequence[str], limit: int, cut: bool) -> Tokens | None:
        """The tokens by tokie, if it gives the tokenizer's own for the first thousand texts and one in a thousand later."""
        fast, name = self._fast, self.tokenised_by
        if name == NOT_ASKED:
            fast, name = self._compared_with_battery(limit, cut)
        if fast is None:
            self.tokenised_by = name
            return None
        compared = texts[: _FIRST - self._compared] if self._compared < _FIRST else texts[::_EVERY]
        self._fast, self.tokenised_by = None, NOT_ASKED  # Until these texts agree: the process may be interrupted.
        try:
            if self._agrees(fast, compared, limit, cut):
                tokens = fast.tokens(texts, limit, cut)
                self._fast, self.tokenised_by, self._compared = fast, name, self._compared + len(compared)
                return tokens
            differing = (text for text in compared if not self._agrees(fast, [text], limit, cut))
            self.differing_text = next(differing, compared[0])
            self.tokenised_by = f"the tokenizer, since {name} gave other ids"
            warnings.warn(
                "tokie gave other ids than the tokenizer for the text in Tokenizer.differing_text, and is left; texts that "
                "were tokenised before may have wrong ids: tokenise them again",
                stacklevel=2,
            )
        except BaseException as error:
            _raise_if_asked_to_end(error)
            self.tokenised_by = f"the tokenizer, since {name} failed: {first_line(error)}"
        return None

    def __getstate__(self) -> dict[str, Any]:
        """The tokenizer without tokie, which cannot be pickled or copied."""
        asked = {} if self._fast is None else {"tokenised_by": NOT_ASKED}
        return self.__dict__ | asked | {"_fast": None, "_compared": 0}

    def leave_tokie(self) -> None:
        """Take no ids from tokie any longer: where a difference that is found late could not be mended."""
        self._fast, self.tokenised_by = None, _NOT_WANTED

    def _compared_with_battery(self, limit: int, cut: bool) -> tuple[FastTokenizer | None, str]:
        """Tokie, if it gives the tokenizer's own ids for a battery of texts; and what tokenises, with the reason."""
        settings = [(limit, cut), (limit, not cut), (min(limit, 8), True), (min(limit, 8), False)]
        try:
            fast = FastTokenizer(self._tokenizer)
            if all(self._agrees(fast, fast.battery(), *setting) for setting in settings):
                return fast, fast.name
            return (
                None,
                f"the tokenizer: {fast.name} gives other ids for a text of many scripts, special tokens or long words",
            )
        except NotFast as why:
            return None, f"the tokenizer: {why}"
        except BaseException as error:
            _raise_if_asked_to_end(error)
            return None, f"the tokenizer: a text of scripts, special tokens or long words fails: {first_line(error)}"

    def _agrees(self, fast: FastTokenizer, texts: Sequence[str], limit: int, cut: bool) -> bool:
        """Whether tokie gives the tokenizer's own ids."""
        tokens, plain = fast.tokens(texts, limit, cut), self._plain_tokens(texts, limit, cut)
        return tokens == plain and tokens.whole == plain.whole

    def _plain_tokens(self, texts: Sequence[str], limit: int, cut: bool) -> Tokens:
        """The tokens by the tokenizer itself."""
        encoded = self._tokenizer(list(texts), truncation=True, max_length=limit, verbose=False)
        if cut:
            special = self._tokenizer.num_special_tokens_to_add()
            ids, overflows = encoded["input_ids"], [encoding.overflowing for encoding in encoded.encodings]
            whole = [
                len(sequence) + sum(len(more) - special for more in cut)
                for sequence, cut in zip(ids, overflows, strict=True)
            ]
            return Tokens(ids, [bool(cut) for cut in overflows], None, {}, whole)
        chunks = [[encoding.ids, *(more.ids for more in encoding.overflowing)] for encoding in encoded.encodings]
        return Tokens.of_chunks(chunks, [False] * len(texts))

    def _checked(self, max_length: int | str | None) -> int:
        if max_length is None:
            return self.max_length
        if not isinstance(max_length, int) or not 3 <= max_length <= self.limit:
            raise ModelError(f"max_length {max_length} is out of range; this model takes 3 to {self.limit} tokens")
        return max_length


def _raise_if_asked_to_end(error: BaseException) -> None:
    """Raise what asks the process to end; a panic in a library's compiled code is no Exception either."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error


def described(value: object) -> str:
    """The kind of a wrong argument, for an error."""
    return "None" if value is None else f"a {type(value).__name__}"


def _windows(settings: Settings, config: Any, tokenizer_window: int | None) -> tuple[int | None, int]:
    """The window of `SentenceTransformer.encode`, None where texts are not cut, and the most tokens of a text."""
    positions = max(0, int(getattr(config, "max_position_embeddings", None) or 0))
    ends = (tokenizer_window, positions) if settings.window is None else (settings.window,)
    window = min((end for end in ends if end), default=None) if settings.truncates else None
    if config.model_type not in _LEARNED_POSITIONS or not positions:
        return window, max(tokenizer_window or 0, positions, window or 0) or _LONGEST
    if config.model_type in _AFTER_PADDING:
        if config.pad_token_id is None:
            raise ModelError(f"{settings.transformer / 'config.json'} names no pad_token_id, after which positions start")
        positions -= int(config.pad_token_id) + 1
    return positions if window is None else window, positions


def _lower_case(tokenizer: Any) -> None:
    """Put a lower-casing normaliser before the tokenizer's own, where sentence-transformers does."""
    from tokenizers import normalizers

    backend: Any = tokenizer.backend_tokenizer
    normalizer = backend.normalizer
    before = list(normalizer) if isinstance(normalizer, normalizers.Sequence) else [normalizer]  # type: ignore[call-overload]
    if not any(isinstance(part, normalizers.Lowercase) for part in before):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *(part for part in before if part is not None)])
