"""SOCM of all pairs of real texts, against the published protocol, other libraries and usual ways to a nuclear norm.

Each method runs on pairs of the same texts. Its ratio is to the published protocol on as many threads, its error is the
difference from singular values in float64. The limit is the time of the product's operations at this machine's rate of
products plus the time in which LAPACK finds the eigenvalues of one matrix a pair; a share may exceed 1.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import fastest, gemm_rate, texts

WIKIPEDIA = Path(__file__).resolve().parents[2] / "shared" / "corpora" / "wikipedia"
SENTENCES, DOCSTRINGS, LONG_TEXTS = 1000, 100, 64
FEW, SOME = 4, 55
"""Pairs for methods that take a tenth of a second each; texts on each side for methods that take a tenth of that."""
ROUNDS = 2


def measure() -> list[dict[str, Any]]:
    """Pairs a second on one and two threads, with the largest error of d_Σ; then of long texts."""
    import scipy.linalg  # noqa: F401 - brings its own BLAS, which only a limit set afterwards finds.
    from threadpoolctl import threadpool_limits

    sentences, paragraphs, source = _corpus()
    with threadpool_limits(1):
        return [*_sentences(_embedded(sentences), source), *_long(_embedded(paragraphs), source)]


def _sentences(tokens: list[Tensor], source: str) -> list[dict[str, Any]]:
    from tempscale import pairwise_socm
    from tempscale.second_order.nuclear import gram_norms

    count = len(tokens)
    pairs = count * (count - 1) // 2
    rows, columns = range(0, 2 * SOME, 2), range(1, 2 * SOME, 2)
    some = [(i, j) for i in rows for j in columns]
    few = [(i, i + 1) for i in range(0, 2 * FEW, 2)]
    exact = {(i, j): _plain(tokens[i].double(), tokens[j].double()) for i, j in some}
    factors = [_factor(x) for x in tokens[: 2 * SOME]]
    traces = [float(factor.double().square().sum()) for factor in factors]
    found: dict[str, dict[tuple[int, int], float]] = {}

    def each(
        name: str, threads: int, own: Sequence[tuple[int, int]], one: Callable[[Tensor, Tensor], float]
    ) -> Callable[[], None]:
        def work() -> None:
            found[name] = dict(zip(own, _each(threads, one, [(tokens[i], tokens[j]) for i, j in own]), strict=True))

        return work

    def gram() -> None:
        norms = gram_norms([factors[i] for i in rows], [factors[j] for j in columns]).tolist()
        found["gram"] = {
            (i, j): (traces[i] + traces[j] - 2 * norms[a][b]) / 4 for a, i in enumerate(rows) for b, j in enumerate(columns)
        }

    def ours(threads: int) -> Callable[[], None]:
        def work() -> None:
            with threads_used(threads):
                values = pairwise_socm(tokens).d_sigma
            found[f"tempscale {threads}"] = {(i, j): float(values[i, j]) for i, j in some}

        return work

    # key, name in the table, threads, pairs, work
    ways: list[tuple[str, str, int, int, Callable[[], None]]] = [
        ("dense 1", "published: two d×d roots a pair", 1, FEW, each("dense 1", 1, few, _dense)),
        ("dense 2", "published: two d×d roots a pair", 2, FEW, each("dense 2", 2, few, _dense)),
        ("sqrtm", "scipy sqrtm of Σ₁Σ₂", 1, FEW, each("sqrtm", 1, few, _sqrtm)),
        ("svdvals", "torch svdvals of F₁F₂ᵀ", 1, len(some), each("svdvals", 1, some, _plain)),
        ("gram", "float64 eigenvalues of Gram matrices, batched", 1, len(some), gram),
        ("tempscale 1", "tempscale.pairwise_socm", 1, pairs, ours(1)),
        ("tempscale 2", "tempscale.pairwise_socm", 2, pairs, ours(2)),
    ]
    if importlib.util.find_spec("ot"):
        ways.insert(3, ("pot", "POT bures_wasserstein_distance", 1, FEW, each("pot", 1, few, _pot)))
    memory = {"tempscale 2": _extra_bytes(ours(2))}  # Only of the first run: later ones find the process grown.
    seconds = dict(zip([way[0] for way in ways], fastest(ROUNDS, *(way[4] for way in ways)), strict=True))
    lengths = torch.tensor([float(len(x)) for x in tokens])
    mean_tokens, dim = float(lengths.mean()), tokens[0].shape[1]
    operations = dim * float(lengths.sum() ** 2 - lengths.square().sum())
    result = []
    for name, what, threads, own, _ in ways:
        errors = [abs(value - exact[pair]) for pair, value in found[name].items()]
        finite = [error for error in errors if error == error]
        row = {
            "what": f"{what}, {_in_words(threads)}", "rate": own / seconds[name], "unit": "pairs/s",
            "ratio": own / seconds[name] * seconds[f"dense {threads}"] / FEW, "threads": threads, "pairs": own,
            "largest_error": max(finite, default=None), "nan": len(errors) - len(finite), "texts": source,
            "mean_tokens": mean_tokens, "dim": dim,
        }  # fmt: skip
        if name.startswith("tempscale"):
            row |= limit(operations, pairs, round(mean_tokens), threads, seconds[name])
            row |= {"memory": memory[name]} if name in memory else {}
        result.append(row)
    return result


def _long(tokens: list[Tensor], source: str) -> list[dict[str, Any]]:
    from tempscale import pairwise_socm

    count, threads, dim = len(tokens), 2, tokens[0].shape[1]
    pairs, mean_tokens = count * (count - 1) // 2, sum(map(len, tokens)) / count
    some = [(i, i + 1) for i in range(0, min(16, count - 1), 2)]
    exact = [_plain(tokens[i].double(), tokens[j].double()) for i, j in some]
    ranks = torch.tensor([float(min(len(x), dim)) for x in tokens])
    operations = dim * float(ranks.sum() ** 2 - ranks.square().sum())
    found: dict[tuple[int, int], float] = {}

    def ours() -> None:
        values = pairwise_socm(tokens).d_sigma
        found.update({pair: float(values[pair]) for pair in some})

    few = [(tokens[i], tokens[j]) for i, j in some[:FEW]]
    dense = fastest(1, lambda: _each(threads, _dense, few))[0] / len(few)
    with threads_used(threads):
        (own,) = fastest(1, ours)
    errors = [abs(found[pair] - value) for pair, value in zip(some, exact, strict=True)]
    row = {
        "what": f"tempscale.pairwise_socm, long texts, {_in_words(threads)}", "rate": pairs / own, "unit": "pairs/s",
        "ratio": pairs / own * dense, "threads": threads, "pairs": pairs, "largest_error": max(errors), "texts": source,
        "mean_tokens": mean_tokens, "dim": dim,
    }  # fmt: skip
    return [row | limit(operations, pairs, round(float(ranks.mean())), threads, own)]


def _in_words(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


# --- texts ------------------------------------------------------------------------------------------------------------


def _corpus() -> tuple[list[str], list[str], str]:
    """Sentences, long texts, and the name of their source; fewer texts, from docstrings, without the Wikipedia texts."""
    if not WIKIPEDIA.is_dir():
        every = texts(3 * DOCSTRINGS)
        return every[:DOCSTRINGS], sorted(every, key=len)[-LONG_TEXTS:], "docstrings of scipy"
    import pyarrow.parquet as pq

    from tempscale.stats.sample import seeded_sample

    def sample(name: str, count: int) -> list[str]:
        table = pq.read_table(WIKIPEDIA / f"{name}.parquet", columns=["id", "text"])
        place = {name: at for at, name in enumerate(table["id"].to_pylist())}
        found: list[str] = table["text"].take([place[i] for i in seeded_sample(sorted(place), count, 0)]).to_pylist()
        return found

    each = 16  # A paragraph has a hundred tokens on average: sixteen are longer than 512.
    paragraphs = sample("paragraphs_100k", each * LONG_TEXTS)
    joined = ["\n".join(paragraphs[at : at + each]) for at in range(0, len(paragraphs), each)]
    return sample("sentences_1M", SENTENCES), joined, "wikipedia"


def sentences() -> tuple[list[str], str]:
    """The texts whose pairs are measured, and the name of their source."""
    chosen, _, source = _corpus()
    return chosen, source


def _embedded(chosen: list[str]) -> list[Tensor]:
    """Each text's token embeddings from the real MiniLM."""
    from tempscale import Encoder
    from tempscale.model.checkpoint import default_model

    encoder = Encoder.load(default_model(), max_length="limit", device="cpu")
    with torch.inference_mode():
        return [encoder.model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in encoder.tokenizer(chosen).ids]


# --- ways to d_Σ ------------------------------------------------------------------------------------------------------


def _each(threads: int, one: Callable[[Tensor, Tensor], float], pairs: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    """The value of every pair, with one pair a thread: one pair alone would not use a second thread."""
    if threads == 1:
        return [one(*pair) for pair in pairs]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda pair: one(*pair), pairs))


def _factor(x: Tensor) -> Tensor:
    mean = x.mean(0)
    factor: Tensor = (x - mean) / (mean.norm() * len(x) ** 0.5)
    return factor


def _covariances(x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
    f1, f2 = _factor(x1.double()), _factor(x2.double())
    return f1.mT @ f1, f2.mT @ f2


def _plain(x1: Tensor, x2: Tensor) -> float:
    """d_Σ from the singular values of the n₁×n₂ cross block."""
    f1, f2 = _factor(x1), _factor(x2)
    cross = torch.linalg.svdvals(f1 @ f2.mT).sum()
    return float(f1.square().sum() + f2.square().sum() - 2 * cross) / 4


def _dense(x1: Tensor, x2: Tensor) -> float:
    """d_Σ as in the published code, but in float64 and without its ε: a dense root, a dense product, a second root."""
    s1, s2 = _covariances(x1, x2)
    values, vectors = torch.linalg.eigh(s1)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    cross = torch.linalg.eigvalsh(root @ s2 @ root).clamp_min(0).sqrt().sum()
    return float(s1.trace() + s2.trace() - 2 * cross) / 4


def _sqrtm(x1: Tensor, x2: Tensor) -> float:
    """d_Σ from one root of Σ₁Σ₂, whose trace is that of (Σ₁^½Σ₂Σ₁^½)^½, as usual for Fréchet distances of images."""
    from scipy.linalg import sqrtm

    s1, s2 = _covariances(x1, x2)
    return float(s1.trace() + s2.trace() - 2 * np.trace(sqrtm((s1 @ s2).numpy())).real) / 4


def _pot(x1: Tensor, x2: Tensor) -> float:
    """d_Σ from POT's W₂² = 4(d_μ + d_Σ) with equal means."""
    from ot.gaussian import bures_wasserstein_distance  # type: ignore[import-untyped]

    s1, s2 = _covariances(x1, x2)
    mean = np.zeros(len(s1))
    with np.errstate(invalid="ignore"):
        return float(np.real(bures_wasserstein_distance(mean, mean, s1.numpy(), s2.numpy()))) ** 2 / 4


# --- limits -----------------------------------------------------------------------------------------------------------


@contextmanager
def threads_used(count: int) -> Iterator[None]:
    """Run a block with `count` threads of torch, then restore the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def limit(operations: float, pairs: int, rank: int, threads: int, seconds: float) -> dict[str, float]:
    """Seconds of the products at the rate of large ones and of LAPACK on one matrix of mean rank a pair, and their share."""
    product, lapack = operations / _product_rate(threads), _eigenvalue_seconds(rank) * pairs / threads
    return {"gemm_seconds": product, "lapack_seconds": lapack, "limit_share": (product + lapack) / seconds}


@lru_cache
def _product_rate(threads: int) -> float:
    with threads_used(threads):
        return gemm_rate.__wrapped__()  # Past its cache.


@lru_cache
def _eigenvalue_seconds(rank: int) -> float:
    """The time of LAPACK for the eigenvalues of one Gram matrix, in float64 on one thread."""
    grams = torch.randn(max(4, 40_000 // rank**2), rank, rank, dtype=torch.float64)
    grams = grams @ grams.mT
    return fastest(5, lambda: torch.linalg.eigvalsh(grams))[0] / len(grams)


def _extra_bytes(work: Callable[[], None]) -> int | None:
    """The growth of the process during the work, in bytes, or None where the kernel does not report it (not Linux)."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None

    def kilobytes(name: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))

    reset.write_text("5")  # Reset the peak.
    before = kilobytes("VmRSS")
    work()
    return 1024 * (kilobytes("VmHWM") - before)
