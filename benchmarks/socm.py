"""SOCM of all pairs: the factor form against the dense protocol of the published code and a plain nuclear norm."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from benchmarks.measuring import fastest, texts

TEXTS, DENSE_PAIRS = 64, 6


def measure() -> list[dict[str, Any]]:
    """Pairs a second on real token embeddings, and how far each way is from the plain nuclear norm in float64."""
    from tempscale import Encoder, pairwise_socm
    from tempscale.checkpoint import default_model

    encoder = Encoder.load(default_model(), device="cpu")
    chosen = texts()[:TEXTS]
    with torch.inference_mode():
        tokens = [encoder.model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in encoder.tokenizer(chosen).ids]
    pairs = list(itertools.combinations(range(TEXTS), 2))
    few = pairs[:: len(pairs) // DENSE_PAIRS][:DENSE_PAIRS]
    exact = {(i, j): _plain(tokens[i].double(), tokens[j].double()) for i, j in pairs}
    ours = pairwise_socm(tokens).d_sigma
    seconds = fastest(
        2,
        lambda: [_dense(tokens[i].double(), tokens[j].double()) for i, j in few],
        lambda: [_plain(tokens[i], tokens[j]) for i, j in pairs],
        lambda: pairwise_socm(tokens),
    )
    rates = [len(few) / seconds[0], len(pairs) / seconds[1], len(pairs) / seconds[2]]
    errors = [
        max(abs(_dense(tokens[i].double(), tokens[j].double()) - exact[i, j]) for i, j in few),
        max(abs(_plain(tokens[i], tokens[j]) - exact[i, j]) for i, j in pairs),
        max(abs(float(ours[i, j]) - exact[i, j]) for i, j in pairs),
    ]
    names = ("published: two d×d roots a pair", "torch svdvals of F₁F₂ᵀ", "tempscale.pairwise_socm")
    mean = sum(map(len, tokens)) / TEXTS
    return [
        {"what": name, "rate": rate, "unit": "pairs/s", "ratio": rate / rates[0], "largest_error": error}
        | {"mean_tokens": mean, "dim": tokens[0].shape[1]}
        for name, rate, error in zip(names, rates, errors, strict=True)
    ]


def _factor(x: torch.Tensor) -> torch.Tensor:
    mean = x.mean(0)
    return (x - mean) / (mean.norm() * len(x) ** 0.5)


def _plain(x1: torch.Tensor, x2: torch.Tensor) -> float:
    """d_Σ by the singular values of the n₁×n₂ cross block."""
    f1, f2 = _factor(x1), _factor(x2)
    cross = torch.linalg.svdvals(f1 @ f2.mT).sum()
    return float(f1.square().sum() + f2.square().sum() - 2 * cross) / 4


def _dense(x1: torch.Tensor, x2: torch.Tensor) -> float:
    """d_Σ as the published code does it, but without its ε: a dense root, a dense product, a second root."""
    s1, s2 = (f.mT @ f for f in (_factor(x1), _factor(x2)))
    values, vectors = torch.linalg.eigh(s1)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    cross = torch.linalg.eigvalsh(root @ s2 @ root).clamp_min(0).sqrt().sum()
    return float(s1.trace() + s2.trace() - 2 * cross) / 4
