"""Wide models and long texts: one layer of 384 to 4,096 dimensions on texts of 512 to 8,192 tokens, on one thread.

Each width and length runs in a process of its own; the memory of a way is what the process grows by at its peak. The layer
is a random one of Qwen3's architecture. The ratio is the share of the product's rate over that of the narrowest layer on the
shortest texts: a way that does not scale shows as a ratio far below 1. `python -m benchmarks wide`, about 20 minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.embedding import operations
from benchmarks.measuring import gemm_rate, peak_bytes, save

WIDTHS, LENGTHS = (384, 768, 1024, 4096), (512, 2048, 8192)
EMBEDDED_TOKENS = 8192
"""Tokens that one measurement embeds: so many texts of one length."""
_SVD_ROWS = 1024
"""Of larger cross blocks LAPACK's singular values in float32 are not measured beside ours: they take minutes."""


def measure() -> list[dict[str, Any]]:
    """Tokens a second and memory of each way at each width and length; pairs a second of SOCM beside LAPACK."""
    rows: list[dict[str, Any]] = []
    first: dict[str, float] = {}
    for width in WIDTHS:
        for length in LENGTHS:
            command = [sys.executable, "-m", "benchmarks.wide", str(width), str(length)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            for way, found in json.loads(done.stdout.splitlines()[-1]).items():
                row = {"what": f"{width:,} dimensions, {length:,} tokens: {way}"} | found
                if "limit_share" in row:
                    row["ratio"] = row["limit_share"] / first.setdefault(way, row["limit_share"])
                rows.append(row)
    return rows


def _model(folder: Path, width: int, length: int) -> None:
    """One random layer with MiniLM's tokenizer."""
    from transformers import Qwen3Config, Qwen3Model

    torch.manual_seed(0)
    head = 64 if width == WIDTHS[0] else 128
    sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 1, "head_dim": head}
    heads = {"num_attention_heads": width // head, "num_key_value_heads": width // head}
    config = Qwen3Config(vocab_size=30522, max_position_embeddings=length, **sizes, **heads)
    save(Qwen3Model(config), folder, length)


def _ways(encoder: Any, length: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured of texts of one length, by name."""
    from tempscale.model.sequences import Tokens
    from tempscale.second_order.nuclear import LARGEST_BLOCK

    generator = torch.Generator().manual_seed(0)
    texts = EMBEDDED_TOKENS // length
    # Pairs of smaller blocks are computed sixteen at a time: six texts have fifteen.
    factored = 6 if min(encoder.model.config.hidden_size, length) ** 2 <= LARGEST_BLOCK else 2
    ids = torch.randint(1000, 30_000, (max(texts, factored), length), generator=generator).tolist()
    tokens = Tokens(ids[:texts], [False] * texts)

    def embedded(tau: float, **options: bool) -> dict[str, Any]:
        encoder.set_temperature(tau)
        seconds, peak = _timed(lambda: encoder.encode_tokens(tokens, **options))
        share = operations(encoder.model.config, [length] * texts) / seconds / gemm_rate()
        return {"rate": texts * length / seconds, "unit": "tokens/s", "limit_share": share, "peak_bytes": peak}

    return {
        "embeddings": lambda: embedded(1.0, moments=False),
        "embeddings, τ 0.8": lambda: embedded(0.8, moments=False),
        "embeddings and moments": lambda: embedded(1.0),
        "embeddings and factors": lambda: embedded(1.0, moments=False, factors=True),
        "SOCM of pairs": lambda: _socm(encoder, Tokens(ids[:factored], [False] * factored)),
        "a layer's figures": lambda: _looked(encoder, ids[0]),
    }


def _socm(encoder: Any, tokens: Any) -> dict[str, Any]:
    """Pairs a second, and how many times LAPACK's: float32 singular values of the same blocks, one by one."""
    from tempscale.second_order.nuclear import paired_nuclear_norms

    factors = [factor for _, factor in encoder.encode_tokens(tokens, moments=False, factors=True).factors]
    first, second = (side.tolist() for side in torch.triu_indices(len(factors), len(factors), 1))
    warm = [factor[:8] for factor in factors]
    paired_nuclear_norms(warm, first, second)
    seconds, peak = _timed(lambda: paired_nuclear_norms(factors, first, second))
    row = {"rate": len(first) / seconds, "unit": "pairs/s", "peak_bytes": peak}
    if len(factors[0]) <= _SVD_ROWS:
        blocks = [factors[i] @ factors[j].mT for i, j in zip(first, second, strict=True)]
        row["ratio"] = _timed(lambda: [torch.linalg.svdvals(block).sum() for block in blocks])[0] / seconds
    return row


def _looked(encoder: Any, ids: list[int]) -> dict[str, Any]:
    """Tokens a second of all figures of a layer and its heads, as `tempscale diagnose` measures them."""
    from tempscale_jobs.diagnose.looks import Glance

    glance = Glance()
    first, peak = _timed(lambda: glance.of(encoder.model, ids))
    seconds = min(first, _timed(lambda: glance.of(encoder.model, ids))[0])  # The first look waits for fresh memory.
    share = operations(encoder.model.config, [len(ids)]) / seconds / gemm_rate()
    return {"rate": len(ids) / seconds, "unit": "tokens/s", "limit_share": share, "peak_bytes": peak}


def _timed(work: Callable[[], object]) -> tuple[float, int]:
    """Seconds of a work, and bytes that the process grows by at its peak."""
    process = psutil.Process()
    before = process.memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
    begun = time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    return seconds, max(0, peak_bytes() - before)


def _main(width: int, length: int) -> None:
    from tempscale import Encoder
    from tempscale.model.sequences import Tokens

    torch.set_num_threads(1)
    gemm_rate()
    found = {}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        _model(Path(folder), width, length)
        encoder = Encoder.load(folder, max_length="limit", device="cpu")
        encoder.encode_tokens(Tokens([[1000] * 64], [False]), factors=True)
        heads = encoder.model.config.num_attention_heads
        for way, run in _ways(encoder, length).items():
            if way == "a layer's figures" and 4 * 4 * heads * length**2 > psutil.virtual_memory().total:
                continue  # `tempscale diagnose` refuses it with a sentence.
            found[way] = run()
    print(json.dumps(found))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
