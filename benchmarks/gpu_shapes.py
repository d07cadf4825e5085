"""Models of real shapes on a GPU, from texts to vectors, and super-tiles of cosines from storage; random weights, no Ray.

`python -m benchmarks.gpu_shapes [DEVICE]`. On `cpu` it is small and only checks that it works.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.embedding import operations
from benchmarks.gpu import DTYPES, dense, seconds_of
from benchmarks.gpu_embedding import random_texts
from benchmarks.measuring import save

TEXTS, SHARDS = 8_000, 16
UNPACKED = "MPNet base"
"""A shape whose attention has a bias by position, and is not packed."""
THREADS = (1, 4, 15)
"""Threads that tokenise beside the one that runs the model, as one actor's process could."""
BLOCK, BLOCKS, DIM = 32_768, 8, 384


def measure(device: str = "cuda", small: bool = False) -> Iterator[dict[str, Any]]:
    """Tokens and pairs a second, each with its share of the device's product; nothing without a GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        return
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}  # A thread that tokenises is one.
    corpus = random_texts(40 if small else TEXTS)
    with tempfile.TemporaryDirectory(prefix="tempscale-shapes-") as folder:
        for name, model in _shapes(small).items():
            save(model(), Path(folder, name), 256)
            yield from _of_shape(device, Path(folder, name), name, corpus)
        yield from _end_to_end(device, corpus, (1, 2) if small else THREADS)
        yield from _tiles(device, Path(folder, "tiles"), 64 if small else BLOCK)


def _shapes(small: bool) -> dict[str, Callable[[], Any]]:
    """Functions that make random models, by the name of their shape; small ones are quick on a processor."""
    from transformers import BertConfig, BertModel, MPNetConfig, MPNetModel, Qwen3Config, Qwen3Model

    tiny = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    decoder = {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072}
    heads = {"head_dim": 32, "num_key_value_heads": 1} if small else {"head_dim": 128, "num_key_value_heads": 8}
    sizes = tiny if small else {}
    return {
        "BERT base": lambda: BertModel(BertConfig(**sizes)),
        UNPACKED: lambda: MPNetModel(MPNetConfig(**sizes)),
        "Qwen3-0.6B": lambda: Qwen3Model(Qwen3Config(vocab_size=30522, **(decoder | sizes), **heads)),
    }


def _of_shape(device: str, folder: Path, name: str, corpus: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rate of a model on tokens that are ready, in each precision, with moments and without."""
    from tempscale import Encoder

    for precision in DTYPES if device.startswith("cuda") else ("float32", "bfloat16"):
        rate, packed = dense(device, precision), precision == "bfloat16" and name != UNPACKED
        encoder = Encoder.load(folder, device=device, precision=precision, packed=packed)  # type: ignore[arg-type]
        tokens = encoder.tokenizer(list(corpus))
        for moments in (False, True):
            seconds = seconds_of(device, 1, partial(encoder.encode_tokens, tokens, moments=moments))
            yield (
                {"what": f"{name}, {precision}{', packed' * packed}, tokens ready{', token moments' * moments}"}
                | {"rate": sum(tokens.lengths) / seconds, "unit": "tokens/s", "dense_rate": rate}
                | {"limit_share": operations(encoder.model.config, tokens.lengths) / seconds / rate}
            )


def _end_to_end(device: str, corpus: Sequence[str], threads: Sequence[int]) -> Iterator[dict[str, Any]]:
    """MiniLM from texts to vectors, with threads that tokenise ahead; then two encoders, each in a thread of its own."""
    from tempscale import Encoder
    from tempscale.model.checkpoint import default_model

    size = -(-len(corpus) // SHARDS)
    shards = [list(corpus[k : k + size]) for k in range(0, len(corpus), size)]
    for precision in ("float32", "bfloat16") if device.startswith("cuda") else ("float32",):
        packed, rate = precision == "bfloat16", dense(device, precision)
        encoders = [
            Encoder.load(default_model(), device=device, precision=precision, packed=packed)  # type: ignore[arg-type]
            for _ in range(2)
        ]
        lengths = [n for shard in shards for n in encoders[0].tokenizer(shard).lengths]
        needed = operations(encoders[0].model.config, lengths)
        for count in threads:
            for used in (1, 2):
                seconds = seconds_of(device, 1, partial(_run, encoders[:used], shards, count))
                beside = f"{count} {'thread' if count == 1 else 'threads'} tokenise" + ", two encoders" * (used == 2)
                yield (
                    {"what": f"MiniLM from texts to vectors, {precision}{', packed' * packed}, {beside}"}
                    | {"rate": sum(lengths) / seconds, "unit": "tokens/s", "dense_rate": rate}
                    | {"limit_share": needed / seconds / rate}
                )


def _run(encoders: Sequence[Any], shards: Sequence[list[str]], threads: int) -> None:
    """Embed every shard: threads tokenise ahead, and the encoders take turns."""
    with ThreadPoolExecutor(threads) as tokenising, ThreadPoolExecutor(len(encoders)) as embedding:
        ready = [tokenising.submit(encoders[0].tokenizer, shard) for shard in shards]

        def embed(encoder: Any, place: int) -> None:
            for future in ready[place :: len(encoders)]:
                encoder.encode_tokens(future.result(), moments=False)

        for done in [embedding.submit(embed, encoder, place) for place, encoder in enumerate(encoders)]:
            done.result()


def _tiles(device: str, folder: Path, block: int) -> Iterator[dict[str, Any]]:
    """All pairs of blocks that lie in Parquet files, read, compared and written as an audit does it."""
    from tempscale_jobs.runs.storage import Storage
    from tempscale_jobs.steps import blocks

    for precision in DTYPES if device.startswith("cuda") else ("float32",):
        seconds, pairs = 0.0, 0
        for place, count in (("warm", 2), ("measured", BLOCKS)):  # The first pass compiles.
            grid = blocks.Tiling(Storage(str(folder)), f"{place}-{precision}", 8, 10, 0.95, 100, count, count, precision)  # type: ignore[arg-type]
            _write_blocks(grid, block)
            begun = time.perf_counter()
            pairs = blocks.compare_panels(grid, 0, 0, device)
            seconds = time.perf_counter() - begun
        rate = dense(device, precision)
        yield (
            {"what": f"cosines of {BLOCKS * block:,} texts from storage, {precision}, 10 nearest"}
            | {"rate": pairs / seconds, "unit": "pairs/s", "seconds": seconds, "dense_rate": rate}
            | {"limit_share": 2 * DIM * pairs / seconds / rate}
        )


def _write_blocks(grid: Any, block: int) -> None:
    """Write random unit vectors as the blocks of a grid."""
    from tempscale_jobs.tables import parts

    generator = np.random.default_rng(0)
    for k in range(grid.count):
        rows = generator.standard_normal((block, DIM), dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        label = np.arange(k * block, (k + 1) * block, dtype=np.int32)
        columns = {"embedding": parts.row_bytes(rows), "interval": label % 8, "label": label}
        columns |= {"text_id": label.astype(str), "document": [None] * block}
        grid.storage.write_table(grid.block(k), parts.blocks(DIM).build(columns), "none")


if __name__ == "__main__":
    device = next(iter(sys.argv[1:]), "cuda")
    for row in measure(device, small=device == "cpu"):
        print(json.dumps(row))
