"""The cost of an attached temperature: untouched, attached and folded models take turns on two threads."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from benchmarks.measuring import texts

ROUNDS, TEXTS, THREADS = 150, 8, 2


def measure() -> list[dict[str, Any]]:
    """Tokens a second of sentence-transformers' `encode`, and the median over rounds of the ratio to the untouched model."""
    from sentence_transformers import SentenceTransformer

    from tempscale import attach, fold
    from tempscale.model.checkpoint import default_model

    corpus = texts()[:TEXTS]
    models = {
        name: SentenceTransformer(default_model(), device="cpu") for name in ("untouched", "attached", "by length", "folded")
    }
    attach(models["attached"], 0.8)
    attach(models["by length"], {"log_length": 64})
    fold(models["folded"], 0.8)
    # sentence-transformers cuts MiniLM at 256 tokens.
    tokens = sum(min(256, len(ids)) for ids in models["untouched"].tokenizer(corpus)["input_ids"])
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    seconds: dict[str, list[float]] = {name: [] for name in models}
    names = list(models)
    try:
        for number in range(ROUNDS + 1):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:  # Each model begins a round in turn, so that no position is better.
                begun = time.perf_counter()
                models[name].encode(corpus, show_progress_bar=False)
                if number:
                    seconds[name].append(time.perf_counter() - begun)
    finally:
        torch.set_num_threads(threads)
    found = []
    for name in names:
        ratios = [own / base for own, base in zip(seconds[name], seconds["untouched"], strict=True)]
        spread = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5 if name != "untouched" else 0.0
        found.append(
            {"what": f"MiniLM, {name}", "rate": tokens / statistics.median(seconds[name]), "unit": "tokens/s",
             "ratio": 1 / statistics.median(ratios), "limit_share": None, "rounds": ROUNDS, "threads": THREADS,
             "overhead": statistics.median(ratios) - 1, "overhead_se": spread,
             "overhead_of_fastest": min(seconds[name]) / min(seconds["untouched"]) - 1}
        )  # fmt: skip
    return found
