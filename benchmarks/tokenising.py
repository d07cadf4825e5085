"""Token ids from tokie and from the tokenizer's own library, on one thread: MiniLM's and those of families, trained here.

A family's tokenizer is of transformers' own class, with 8,000 tokens trained on paragraphs; its files are like those of the
published models but for the vocabulary, and but for the table of characters of Unigram models, which no class has.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import fastest
from benchmarks.paragraphs import paragraphs

TRAINED, COUNT = 4000, 20_000
FAMILIES = (
    "Roberta", "GPTNeoX", "Qwen2", "Llama", "Gemma", "XLMRoberta", "Camembert", "T5", "Albert", "DebertaV2",
)  # fmt: skip
"""Of transformers' tokenizer classes: ModernBERT's is like GPTNeoX's, Mistral's like Llama's, mT5's like T5's."""


def measure() -> list[dict[str, Any]]:
    """Tokens a second by both, their ratio, and for how many texts tokie gives other ids; or why it is left alone."""
    from tempscale.model.checkpoint import default_model

    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    corpus, _ = paragraphs(COUNT)
    rows = _rows("MiniLM", Path(default_model()), corpus)
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            rows += _rows(family, _trained(family, Path(folder) / family, corpus[:TRAINED]), corpus)
    return rows


def _trained(family: str, folder: Path, corpus: list[str]) -> Path:
    import transformers

    tokenizer = getattr(transformers, f"{family}Tokenizer")().train_new_from_iterator(iter(corpus), 8000)
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 10000, "max_position_embeddings": 512}')
    return folder


def _rows(family: str, folder: Path, corpus: list[str]) -> list[dict[str, Any]]:
    from tempscale.model.tokens import Tokenizer

    plain, fast = (Tokenizer(folder, 256, fast=fast) for fast in (False, True))
    expected, tokens = plain(corpus), fast(corpus)
    assert expected.whole is not None
    read = sum(expected.whole)
    if not fast.tokenised_by.startswith("tokie "):
        (seconds,) = fastest(1, lambda: plain(corpus))
        return [{"what": f"{family}, the library; {fast.tokenised_by}", "rate": read / seconds, "unit": "tokens/s"}]
    seconds, faster = fastest(1, lambda: plain(corpus), lambda: fast(corpus))
    differing = sum(one != other for one, other in zip(expected.ids, tokens.ids, strict=True))
    return [
        {"what": f"{family}, the library", "rate": read / seconds, "unit": "tokens/s", "ratio": 1.0},
        {"what": f"{family}, tokie", "rate": read / faster, "unit": "tokens/s", "ratio": seconds / faster}
        | {"differing": f"{differing} of {len(corpus):,}"},
    ]
