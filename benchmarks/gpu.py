"""The pairwise engine on a GPU: SOCM of short and of long texts, beside that of the processors, and super-tiles of cosines
in each precision.

Random token embeddings and embeddings with the shape and spectrum of a model of 768 dimensions:
`python -m benchmarks.gpu [DEVICE TEXTS TILE]`. A small run on `cpu:0` only checks that it works.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import fastest
from tempscale.tf32 import tf32_products

DIM, TEXTS, TILE = 768, 400, 65_536
TOKENS = {35: 1, 128: 2, 512: 8}
"""Tokens of a text, and by how much fewer texts are compared then."""
CHECKED = 40
"""Pairs whose d_Σ is compared with singular values in float64."""
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}


def measure(device: str = "cuda", texts: int = TEXTS, tile: int = TILE) -> list[dict[str, Any]]:
    """Pairs a second of SOCM and of cosines; empty without a GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        return []
    rates = {name: dense(device, name) for name in DTYPES}
    found = [row for tokens, fewer in TOKENS.items() for row in _socm(device, tokens, texts // fewer, rates["float32"])]
    return [*found, *_cosines(device, tile, rates)]


def seconds_of(device: str, rounds: int, work: Callable[[], object]) -> float:
    """Seconds of the fastest round; each round waits until the device has finished."""

    def finished() -> None:
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    return fastest(rounds, finished)[0]


def dense(device: str, precision: str) -> float:
    """Operations a second of a large square product in a precision."""
    size = 8192 if device.startswith("cuda") else 1024
    a, b = (torch.randn(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
    with tf32_products(precision == "tf32"):
        return 2 * size**3 / seconds_of(device, 5, lambda: a @ b)


def _tokens(tokens: int, texts: int) -> list[Tensor]:
    """Random token embeddings of texts of about so many tokens, with a spectrum that falls like a real one."""
    generator = np.random.default_rng(0)
    scale = (np.arange(1, DIM + 1) ** -0.5).astype(np.float32)
    centre = 8 * scale * generator.standard_normal(DIM, dtype=np.float32)
    lengths = np.clip(generator.lognormal(np.log(tokens), 0.4, texts), 3, 512).astype(int)
    return [torch.from_numpy(generator.standard_normal((n, DIM), dtype=np.float32) * scale + centre) for n in lengths]


def _socm(device: str, tokens: int, texts: int, rate: float) -> list[dict[str, Any]]:
    """All pairs on the device, and on all processors of this machine."""
    from tempscale import pairwise_socm

    here = _tokens(tokens, texts)
    there = [x.to(device) for x in here]
    seconds = [
        seconds_of("cpu", 1, lambda: pairwise_socm(here)),
        seconds_of(device, 1, lambda: pairwise_socm(there)),
    ]
    found = pairwise_socm(there).d_sigma.cpu()
    chosen = np.random.default_rng(1).integers(0, texts, (CHECKED, 2))
    error = max(abs(float(found[i, j]) - _exact(here[i], here[j])) for i, j in chosen.tolist() if i != j)
    pairs = texts * (texts - 1) // 2
    products = 2 * DIM * sum(len(x) for x in here) ** 2 / 2
    what = f"SOCM of all pairs of {texts:,} texts of about {tokens} tokens"
    return [
        {
            "what": f"{what}, {torch.get_num_threads()} threads of the processor", "rate": pairs / seconds[0],
            "unit": "pairs/s", "ratio": 1.0, "seconds": seconds[0],
        },
        {
            "what": what, "rate": pairs / seconds[1], "unit": "pairs/s", "ratio": seconds[0] / seconds[1],
            "seconds": seconds[1], "max_error": error, "limit_share": products / rate / seconds[1],
        },
    ]  # fmt: skip


def _exact(one: Tensor, other: Tensor) -> float:
    """d_Σ (S2 eq. 6) from singular values in float64."""
    means = [x.double().mean(0) for x in (one, other)]
    a, b = ((x.double() - m) / m.norm() / len(x) ** 0.5 for x, m in zip((one, other), means, strict=True))
    return float((a.square().sum() + b.square().sum() - 2 * torch.linalg.svdvals(a @ b.mT).sum()) / 4)


def _cosines(device: str, tile: int, rates: dict[str, float]) -> list[dict[str, Any]]:
    from tempscale.collapse.aggregates import Block
    from tempscale.collapse.cosine import cosine_tile, rounded, rounding_error

    generator = np.random.default_rng(0)
    scale = (np.arange(1, DIM + 1) ** -0.35).astype(np.float32)
    rows = generator.standard_normal((2 * tile, DIM), dtype=np.float32) * scale
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    interval = np.repeat(np.arange(8), tile // 8)
    labels = np.arange(2 * tile, dtype=np.int32)
    found: list[dict[str, Any]] = []
    for precision, rate in rates.items():
        seen = rounded(rows, precision)  # type: ignore[arg-type]
        left = Block(seen[:tile], interval * 0, labels[:tile])
        right = Block(seen[tile:], interval, labels[tile:])
        for neighbours in (0, 10):
            seconds = seconds_of(
                device, 2,
                lambda left=left, right=right, k=neighbours, how=precision: cosine_tile(
                    left, right, 8, diagonal=False, neighbours=k, duplicate=0.95, listed=100, device=device, precision=how
                ),
            )  # fmt: skip
            found.append(
                {
                    "what": f"cosines of {tile:,} × {tile:,} texts, {precision}"
                    + (f", {neighbours} nearest" * bool(neighbours))
                }
                | {"rate": tile**2 / seconds, "unit": "pairs/s", "seconds": seconds, "dense_rate": rate}
                | {"ratio": found[0]["seconds"] / seconds if found else 1.0, "largest_error": rounding_error(precision)}  # type: ignore[arg-type]
                | {"limit_share": 2 * DIM * tile**2 / seconds / rate}
            )
    return [*found, _peer(device, rows, tile, rates["float32"], found[0]["seconds"])]


def _peer(device: str, rows: np.ndarray, tile: int, rate: float, first: float) -> dict[str, Any]:
    """The ten nearest texts of the rows alone, by what sentence-transformers offers for it."""
    from sentence_transformers.util import semantic_search

    asking, asked = (torch.from_numpy(own).to(device) for own in (rows[:tile], rows[tile:]))
    seconds = seconds_of(device, 1, lambda: semantic_search(asking, asked, top_k=10))
    return {
        "what": f"sentence-transformers' semantic_search, {tile:,} × {tile:,} texts, float32, 10 nearest of the rows",
        "rate": tile**2 / seconds, "unit": "pairs/s", "seconds": seconds, "ratio": first / seconds,
        "limit_share": 2 * DIM * tile**2 / seconds / rate,
    }  # fmt: skip


if __name__ == "__main__":
    device, texts, tile = (*sys.argv[1:], *("cuda", str(TEXTS), str(TILE))[len(sys.argv) - 1 :])
    print(json.dumps(measure(device, int(texts), int(tile)), indent=2))
