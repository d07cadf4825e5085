"""Embedding on a GPU: the real MiniLM over synthetic texts in each precision, against sentence-transformers.

A text goes through the tokenizer and the model, as there; "tokens ready" is the model alone, as in a run on Ray, whose
processors tokenise beside the GPU.

`python -m benchmarks.gpu_embedding [DEVICE TEXTS]`. A small run on `cpu` only checks that it works.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.embedding import operations
from benchmarks.gpu import DTYPES, dense, seconds_of

TEXTS, BATCHES, BUDGETS = 10_000, (32, 128, 512), (65_536, 262_144)
WORDS = [
    "river", "bridge", "winter", "market", "engine", "garden", "paper", "silver", "theory", "number", "city", "music",
    "water", "language", "history",
]  # fmt: skip
SECONDS = 2.0
"""What one pass of the slowest method may take: on a slower card fewer texts are embedded."""


def measure(
    device: str = "cuda", count: int = TEXTS, batches: Sequence[int] = BATCHES, budgets: Sequence[int] = BUDGETS
) -> Iterator[dict[str, Any]]:
    """Tokens a second of each method; ratios to sentence-transformers with its defaults (float32, batches of 32). In another
    precision, the least cosine of a text's embedding to that in float32.
    """
    if device == "cuda" and not torch.cuda.is_available():
        return
    from sentence_transformers import SentenceTransformer

    from tempscale import Encoder
    from tempscale.model.checkpoint import default_model

    folder, corpus = default_model(), random_texts(count)
    peers = {}
    for dtype in ("float32", "bfloat16"):
        peers[dtype] = SentenceTransformer(folder, device=device, model_kwargs={"dtype": getattr(torch, dtype)})
        peers[dtype].max_seq_length = 512
    corpus = corpus[: affordable(device, count, lambda texts: _encoded(peers["float32"], corpus[:texts], batches[0]))]
    plain = Encoder.load(folder, max_length="limit", device="cpu")
    tokens = plain.tokenizer(corpus)
    lengths = tokens.lengths
    precisions = [name for name in DTYPES if name != "tf32" or device.startswith("cuda")]
    rates = {name: dense(device, name) for name in precisions}
    ways: list[tuple[str, str, Any]] = []
    cosines: dict[str, float] = {}
    for dtype, peer in peers.items():
        for batch in batches:
            encode = lambda peer=peer, batch=batch: _encoded(peer, corpus, batch)  # noqa: E731
            ways.append((f"sentence-transformers, {dtype}, batches of {batch}", dtype, encode))
    exact = torch.empty(0)
    for dtype, packed in [*((own, False) for own in precisions), ("bfloat16", True)]:
        for budget in budgets:
            encoder = Encoder.load(
                folder, max_length="limit", device=device, precision=dtype, token_budget=budget, packed=packed  # type: ignore[arg-type]
            )  # fmt: skip
            what = f"tempscale, {dtype}{', packed' * packed}, {budget:,} tokens at once"
            if budget == budgets[0]:
                encode = lambda encoder=encoder: encoder.encode(corpus, moments=False)  # noqa: E731
                ways.append((what, dtype, encode))
                found = encoder.encode_tokens(tokens, moments=False).embeddings.double()
                if dtype == "float32":
                    exact = found
                else:
                    cosines[what] = min(1.0, float((found * exact).sum(1).min()))
            for moments in (False, True):
                encode = lambda encoder=encoder, moments=moments: encoder.encode_tokens(tokens, moments=moments)  # noqa: E731
                ways.append((f"{what}, tokens ready" + ", token moments" * moments, dtype, encode))
    first = 0.0
    for what, dtype, encode in ways:
        s = seconds_of(device, 2, encode)
        first = first or s
        yield (
            {"what": what, "rate": sum(lengths) / s, "unit": "tokens/s", "ratio": first / s, "dense_rate": rates[dtype]}
            | {"limit_share": operations(plain.model.config, lengths) / s / rates[dtype], "least_cosine": cosines.get(what)}
        )


def random_texts(count: int) -> list[str]:
    """Texts of a few to hundreds of words."""
    generator = random.Random(0)
    return [" ".join(generator.choices(WORDS, k=max(3, int(generator.lognormvariate(4, 0.8))))) for _ in range(count)]


def affordable(device: str, count: int, embed: Callable[[int], object]) -> int:
    """How many of so many texts are embedded within SECONDS, judged by a tenth of them."""
    tenth = -(-count // 10)
    return max(tenth, min(count, int(tenth * SECONDS / seconds_of(device, 1, lambda: embed(tenth)))))


def _encoded(peer: Any, texts: list[str], batch: int) -> object:
    return peer.encode(texts, batch_size=batch, normalize_embeddings=True, show_progress_bar=False)


if __name__ == "__main__":
    device, count = (*sys.argv[1:], *("cuda", str(TEXTS))[len(sys.argv) - 1 :])
    print(json.dumps([*measure(device, int(count))], indent=2))
