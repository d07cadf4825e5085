"""Token ids from tokie, many times as fast as from the tokenizer's own library, where comparisons found them the same.

Tokie knows the tokenizers of most encoders: WordPiece as in BERT, and BPE of bytes. Its tables of characters are those of
another version of Unicode: a text goes through it only if each of its characters, among others, gives the same ids in both.
`Tokenizer` compares whole texts too, and takes nothing from here after the first difference.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from tempscale.model.sequences import Sequences, Tokens

_ASCII = frozenset(map(chr, range(128)))
_USUAL = frozenset(map(chr, range(32, 127))) | {"\t", "\n"}
"""Characters of nearly every text: where one of them gives other ids, tokie is of no use."""
_LONGEST = 200
"""The longest token of BPE: tokie gives other ids where one has 256 bytes or more."""
_NEVER = frozenset(map(chr, [*range(9), 11, 12, *range(14, 32), 127, *range(0xD800, 0xE000), *range(0x10000, 0x1F000)]))
"""Controls, halves of characters, which no tokenizer takes, and scripts whose pairs only newer versions of Unicode join."""
_SCRIPTS = (
    "The quick brown fox doesn't jump; it's 3.14 × 10⁻⁷ (or 1,000,000 $)?  Two spaces, a\ttab\nand\n\nlines.\r\n",
    "Größe, naïve café, Ørsted, İstanbul ŞAŞ, Łódź, e\u0301te\u0301, ﬁ ﬂ ½ ² ™ Å Ω",
    "Быстрая лиса прыгает. Γρήγορη αλεπού Σίσυφος. Թարգմանություն. ქართული ენა.",
    "שלום עולם, בְּרֵאשִׁית. مرحبا بالعالم، السَّلام. नमस्ते दुनिया। বাংলা ভাষা. தமிழ் மொழி. ภาษาไทยไม่มีช่องว่าง",
    "日本語のテキストは空白なし。カタカナ ｶﾀｶﾅ 中文文本没有空格。繁體字 한국어 문장입니다. 𠀀𠀁",
    "😀👩‍👩‍👧‍👦🏳️‍🌈🇫🇷 ☃ → ∞ ∑ ⠿ ░ \u200b\u200d\ufeff\u00ad\u2028\u00a0",
    "def f(x_1): return {'a': [1, 2], \"b\": x**2} # https://example.org/?q=a&b=%20\\n <p class=\"x\">&amp;</p>",
    "a" * 99, "b" * 100, "c" * 101, "a" * 1000, "x1" * 500, "é" * 1000, "!" * 300, " " * 50,
    "\x00\x01\x1f\x7f\x85\ufffd", "", " ", "\n",
)  # fmt: skip


class NotFast(Exception):
    """Why tokie is not used."""


class FastTokenizer:
    """The ids that a tokenizer of transformers gives, from tokie.

    Raises:
        NotFast: tokie is not installed or does not know this kind of tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        try:
            import tokie
        except ImportError:
            raise NotFast("tokie is not installed (pip install 'tempscale[fast]')") from None
        from tokenizers import Tokenizer as Backend

        described = json.loads(tokenizer.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}
        _check_kind(described)
        self.name = f"tokie {metadata.version('tokie')}"
        self._plain = Backend.from_str(json.dumps(described))
        with tempfile.TemporaryDirectory() as folder:  # Tokie reads files only.
            file = Path(folder) / "tokenizer.json"
            file.write_text(json.dumps(described), "utf-8")
            self._fast: Any = tokie.Tokenizer.from_json(str(file))
        mask = tokenizer(["a"], return_special_tokens_mask=True)
        ids, special = mask["input_ids"][0], mask["special_tokens_mask"][0]
        first = special.index(0)
        self._before, self._after = ids[:first], ids[len(ids) - special[::-1].index(0) :]
        self._names = [token["content"] for token in described["added_tokens"]]
        self._odd: set[str] = set()
        """Characters that give other ids."""
        self._known: set[str] = set()
        """Characters that have been tried."""
        self._try(_ASCII)
        if odd := self._odd & _USUAL:
            raise NotFast(f"{self.name} gives other ids where {min(odd)!r} stands")

    def battery(self) -> list[str]:
        """Texts on which every tokenizer has to be compared: scripts, controls, long words and its own special tokens."""
        named = [f"before {name} after{name}{name}x {name}" for name in self._names[:100]]
        return [*_SCRIPTS, *named, " ".join(self._names[:20]), " ".join(_SCRIPTS)]

    def tokens(self, texts: Sequence[str], limit: int, cut: bool) -> Tokens:
        """The tokens of texts, cut at a limit or in chunks of it, as `Tokenizer` gives them."""
        flat, starts, counts = self._contents(texts)
        room = limit - len(self._before) - len(self._after)
        if cut:
            sequences = self._framed(flat, starts, np.minimum(counts, room))
            whole = (counts + limit - room).tolist()
            return Tokens(sequences, (counts > room).tolist(), None, {}, whole)
        chunks = np.maximum(-(-counts // room), 1)
        text = np.repeat(np.arange(len(texts)), chunks)
        skipped = (np.arange(len(text)) - np.repeat(np.cumsum(chunks) - chunks, chunks)) * room
        sequences = self._framed(flat, starts[text] + skipped, np.minimum(counts[text] - skipped, room))
        return Tokens(sequences, [False] * len(texts), None if len(text) == len(texts) else text.tolist())

    def _contents(
        self, texts: Sequence[str]
    ) -> tuple[Int[np.ndarray, " token"], Int[np.ndarray, " text"], Int[np.ndarray, " text"]]:
        """The ids of texts without special ones around them, and where those of each text begin and how many they are."""
        characters = set("".join(text for text in texts if not text.isascii())) | _ASCII
        self._try(characters - self._known)
        odd = sorted(characters & self._odd)
        strange = np.array([any(character in text for character in odd) for text in texts], dtype=bool)
        order = np.argsort(strange, kind="stable")
        usual = len(texts) - int(strange.sum())
        fast, counts = self._fast.encode_batch_flat([texts[k] for k in order[:usual]], add_special_tokens=False)
        others = self._plain.encode_batch_fast([texts[k] for k in order[usual:]], add_special_tokens=False)
        plain = [np.asarray(encoding.ids, np.int32) for encoding in others]
        flat = np.concatenate([fast.astype(np.int32), *plain])
        sorted_counts = np.array([*counts.tolist(), *map(len, plain)], np.int64)
        starts, ends = np.empty(len(texts), np.int64), np.cumsum(sorted_counts)
        starts[order] = ends - sorted_counts
        of_text = np.empty(len(texts), np.int64)
        of_text[order] = sorted_counts
        return flat, starts, of_text

    def _framed(
        self, flat: Int[np.ndarray, " token"], starts: Int[np.ndarray, " sequence"], kept: Int[np.ndarray, " sequence"]
    ) -> Sequences:
        """Runs of ids, each with the special ones around it."""
        lengths = kept + len(self._before) + len(self._after)
        ends = np.cumsum(lengths)
        ids = np.empty(int(lengths.sum()), np.int32)
        for place, token in enumerate(self._before):
            ids[ends - lengths + place] = token
        for place, token in enumerate(reversed(self._after), 1):
            ids[ends - place] = token
        within = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
        ids[np.repeat(ends - lengths + len(self._before), kept) + within] = flat[np.repeat(starts, kept) + within]
        return Sequences(ids, lengths)

    def _try(self, characters: set[str] | frozenset[str]) -> None:
        """Compare the ids of texts in which each of these characters stands between letters, digits, marks and itself."""
        self._odd |= characters & _NEVER
        tried = sorted(characters - _NEVER)
        # Tokie reads ASCII in another way. Marks above and below a letter get an order that depends on what is between them.
        between = [f"{c}a{c}B1{c}a {c} 1 {c}, {c}{c}z{c}the{c}" for c in tried]
        marked = [f"é {c}a{c} e\u0301{c}\u0316{c}\u0301 \u094d{c}\u093c{c}" for c in tried]
        texts = [*between, *marked]
        fast = Sequences(*self._fast.encode_batch_flat(texts, add_special_tokens=False)) if texts else []
        plain = self._plain.encode_batch_fast(texts, add_special_tokens=False)
        self._odd |= {c for c, ids, other in zip([*tried, *tried], fast, plain, strict=True) if ids != other.ids}
        self._known |= characters


def _check_kind(described: dict[str, Any]) -> None:
    """Raise unless tokie gave the same ids for every text that was tried with this kind of tokenizer."""
    model, before, normal = described["model"], described["pre_tokenizer"] or {}, described["normalizer"] or {}
    words = (model["type"], before.get("type"), normal.get("type")) == ("WordPiece", "BertPreTokenizer", "BertNormalizer")
    in_bytes = before.get("type") == "ByteLevel" and before.get("use_regex") and normal.get("type") in (None, "NFC")
    pairs = model["type"] == "BPE" and not any(model.get(name) for name in ("dropout", "byte_fallback", "ignore_merges"))
    if pairs and max(map(len, model["vocab"])) > _LONGEST:
        raise NotFast(f"tokie gives other ids where a token is longer than {_LONGEST} characters")
    if not words and not (in_bytes and pairs):
        kind = ", ".join(part.get("type", "?") for part in (model, before, normal) if part)
        raise NotFast(f"tokie was found exact for WordPiece of BERT and for BPE of bytes, not for {kind}")
