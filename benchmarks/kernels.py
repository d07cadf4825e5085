"""`python -m benchmarks.kernels` prints the tables of benchmarks/NOTES.md: methods for ‖F₁F₂ᵀ‖_* on one CPU thread.

Every method gets the same float32 cross blocks of real token embeddings, so that the common product is not counted. Times
are processor time, so that other load on the machine matters little.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from benchmarks.measuring import texts

RANKS = (16, 32, 64, 128, 256, 384)
TALL = ((64, 16), (128, 32), (384, 16), (384, 32), (384, 64), (384, 128))
"""Shapes of the block of a long and a short text."""
LANES, ELEMENTS, LEAST_SECONDS = 16, 1 << 20, 0.3


def main() -> int:
    """Print both tables as Markdown, with microseconds a pair and the largest error of d_Σ over all ranks."""
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "numba", "llvmlite"))
    print(f"Python {platform.python_version()}, {versions}\n")
    with threadpool_limits(1), torch.inference_mode():
        long = _long_texts()
        print(_table("n₁ = n₂", SQUARE_WAYS, [(rank, rank) for rank in RANKS], long))
        print(_table("n₁ × n₂", TALL_WAYS, TALL, long))
    return 0


def _table(corner: str, ways: dict[str, Callable[[Any], Any]], shapes: Any, long: list[Tensor]) -> str:
    times: dict[str, list[float]] = {name: [] for name in ways}
    errors = dict.fromkeys(ways, 0.0)
    for rows, columns in shapes:
        blocks = _blocks(long, rows, columns)
        exact = np.linalg.svd(blocks.double().numpy(), compute_uv=False).sum(-1)
        in_lanes = blocks.reshape(-1, LANES, rows, columns).permute(0, 2, 3, 1).contiguous().numpy()
        for name, way in ways.items():
            print(f"{rows}×{columns} {name}", file=sys.stderr)
            given = in_lanes if name.startswith("lanes") else blocks
            found = way(given)  # The first call compiles.
            norms = np.asarray(_norms_of_bidiagonals(found) if name == LOOPS else found, dtype=np.float64)
            errors[name] = max(errors[name], float(np.abs(norms - exact).max()) / 2)
            times[name].append(1e6 * _seconds(partial(way, given)) / len(blocks))
    heads = [f"{rows}" if rows == columns else f"{rows}×{columns}" for rows, columns in shapes]
    lines = [f"| {corner} | {' | '.join(heads)} | error of d_Σ |", "|---" * (len(heads) + 2) + "|"]
    for name in ways:
        cells = " | ".join(f"{value:,.1f}" if value < 100 else f"{value:,.0f}" for value in times[name])
        lines.append(f"| {name} | {cells} | {errors[name]:.0e} |")
    return "\n".join(lines) + "\n"


def _seconds(work: Callable[[], object]) -> float:
    """The least processor time of a call, over at least five calls and 0.3 seconds."""
    best, total, calls = float("inf"), 0.0, 0
    while calls < 5 or total < LEAST_SECONDS:
        begun = time.process_time()
        work()
        taken = time.process_time() - begun
        best, total, calls = min(best, taken), total + taken, calls + 1
        if total > 20:
            break
    return best


# --- blocks -----------------------------------------------------------------------------------------------------------


def _long_texts() -> list[Tensor]:
    """Token embeddings of docstrings of 512 tokens from the real MiniLM."""
    from tempscale import Encoder
    from tempscale.model.checkpoint import default_model

    encoder = Encoder.load(default_model(), max_length="limit", device="cpu")
    ids = [ids for ids in encoder.tokenizer(texts()).ids if len(ids) == 512][:12]
    return [encoder.model(input_ids=torch.tensor([own])).last_hidden_state[0] for own in ids]


def _blocks(long: list[Tensor], rows: int, columns: int) -> Tensor:
    """F₁F₂ᵀ of random pairs of runs of consecutive tokens: (pairs, rows, columns) float32."""
    from tempscale.second_order.moments import covariance_factor

    generator = np.random.default_rng(0)

    def factor(tokens: int) -> Tensor:
        text = long[generator.integers(len(long))]
        start = generator.integers(len(text) - tokens + 1)
        return covariance_factor(text[start : start + tokens])[1]

    pairs = max(LANES, ELEMENTS // (rows * columns) // LANES * LANES)
    return torch.stack([factor(rows) @ factor(columns).mT for _ in range(pairs)])


# --- ways -------------------------------------------------------------------------------------------------------------


def _in_lanes(given: np.ndarray) -> np.ndarray:
    from tempscale.second_order.bidiagonal import nuclear_norms

    groups, rows, columns, _ = given.shape
    norms = np.empty(groups * LANES)
    # The kernel overwrites its input, so the copy is part of its time.
    nuclear_norms(given.copy().ravel(), np.arange(groups + 1, dtype=np.int64) * rows, columns, 0.0, norms)
    return norms


def _in_loops(given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bidiagonal matrices by the same reflections, with a loop over sixteen lanes where the kernel has a vector."""
    groups, _, columns, _ = given.shape
    diagonal, above = np.zeros((groups, columns, LANES), np.float32), np.zeros((groups, columns, LANES), np.float32)
    scratch = given.copy()
    for group in range(groups):
        _bidiagonalise(scratch[group], diagonal[group], above[group])
    return diagonal, above


def _norms_of_bidiagonals(found: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    diagonal, above = found
    groups, columns, _ = diagonal.shape
    whole = np.zeros((groups, LANES, columns, columns))
    places = np.arange(columns)
    whole[:, :, places, places] = diagonal.transpose(0, 2, 1)
    whole[:, :, places[:-1], places[1:]] = above.transpose(0, 2, 1)[:, :, :-1]
    norms: np.ndarray = np.linalg.svd(whole, compute_uv=False).sum(-1).ravel()
    return norms


@njit(error_model="numpy", boundscheck=False, fastmath={"contract", "nsz"})  # type: ignore[untyped-decorator]
def _bidiagonalise(block: np.ndarray, diagonal: np.ndarray, above: np.ndarray) -> None:
    rows, columns, lanes = block.shape
    products = np.empty((columns, lanes), np.float32)
    scale, sums = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
    for k in range(columns):
        for reflected in range(2):
            # Column k from the left, then row k from the right.
            length = rows if reflected == 0 else columns
            first = k + reflected
            if first >= length:
                continue
            sums[:] = 0
            for i in range(first, length):
                for lane in range(lanes):
                    x = block[i, k, lane] if reflected == 0 else block[k, i, lane]
                    sums[lane] += x * x
            for lane in range(lanes):
                norm = np.sqrt(sums[lane])
                x = block[first, k, lane] if reflected == 0 else block[k, first, lane]
                scale[lane] = np.float32(1.0) / (norm * (norm + abs(x))) if sums[lane] > 1e-30 else np.float32(0.0)
                lifted = x + np.copysign(norm, x)
                if reflected == 0:
                    diagonal[k, lane] = norm
                    block[first, k, lane] = lifted
                else:
                    above[k, lane] = norm
                    block[k, first, lane] = lifted
            if reflected == 0:
                products[:] = 0
                for i in range(k, rows):
                    for j in range(k + 1, columns):
                        for lane in range(lanes):
                            products[j, lane] += block[i, k, lane] * block[i, j, lane]
                for j in range(k + 1, columns):
                    for lane in range(lanes):
                        products[j, lane] *= scale[lane]
                for i in range(k, rows):
                    for j in range(k + 1, columns):
                        for lane in range(lanes):
                            block[i, j, lane] -= block[i, k, lane] * products[j, lane]
            else:
                for i in range(k + 1, rows):
                    sums[:] = 0
                    for j in range(first, columns):
                        for lane in range(lanes):
                            sums[lane] += block[i, j, lane] * block[k, j, lane]
                    for j in range(first, columns):
                        for lane in range(lanes):
                            block[i, j, lane] -= sums[lane] * scale[lane] * block[k, j, lane]


def _gram(blocks: Tensor) -> Tensor:
    if blocks.shape[1] > blocks.shape[2]:
        blocks = blocks.mT
    squares: Tensor = torch.linalg.eigvalsh(blocks @ blocks.mT)
    return squares.clamp_min_(0).sqrt_().sum(-1)


def _polar(blocks: Tensor, smallest: float | None = None) -> Tensor:
    from tempscale.second_order.polar import nuclear_norms

    with _first_interval(blocks.dtype, smallest):
        return nuclear_norms(blocks)


@contextmanager
def _first_interval(dtype: torch.dtype, smallest: float | None) -> Iterator[None]:
    from tempscale.second_order import polar

    before = polar.SMALLEST[dtype]
    polar.SMALLEST[dtype] = smallest or before
    try:
        yield
    finally:
        polar.SMALLEST[dtype] = before


def _triangles(blocks: Tensor) -> Tensor:
    triangle: Tensor = torch.linalg.qr(blocks, mode="r").R
    return triangle


LOOPS = "lanes: the reflections alone, as plain loops"
COMMON: dict[str, Callable[[Any], Any]] = {
    "lanes: reflections and QL, sixteen pairs a vector": _in_lanes,
    "torch svdvals, float32": lambda blocks: torch.linalg.svdvals(blocks).sum(-1),
    "torch svdvals, float64": lambda blocks: torch.linalg.svdvals(blocks.double()).sum(-1),
    "Gram matrix and its eigenvalues, float64": lambda blocks: _gram(blocks.double()),
}
SQUARE_WAYS = COMMON | {
    LOOPS: _in_loops,
    "Gram matrix and its eigenvalues, float32": _gram,
    "polar iterations, float64": lambda blocks: _polar(blocks.double()),
    "polar iterations, float32, from 1e-5": _polar,
    "polar iterations, float32, from 1e-6": lambda blocks: _polar(blocks, 1e-6),
    "polar iterations, float32, from 1e-7": lambda blocks: _polar(blocks, 1e-7),
}
TALL_WAYS = COMMON | {
    "QR, then torch svdvals, float32": lambda blocks: torch.linalg.svdvals(_triangles(blocks)).sum(-1),
    "QR, then Gram matrix, float64": lambda blocks: _gram(_triangles(blocks).double()),
}


if __name__ == "__main__":
    sys.exit(main())
