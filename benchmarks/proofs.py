"""What proofs cost: checksums of a part of embeddings, written and read; a model's fingerprint, and its files' state."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tempscale.model import checkpoint
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import texts

ROWS, DIM, ROUNDS = 65_536, 384, 5
MODEL_BYTES = 1 << 30


def measure() -> list[dict[str, Any]]:
    """Megabytes a second with proofs and without, each the best of a few rounds, in turns."""
    with tempfile.TemporaryDirectory() as name:
        return [*_parts(Path(name)), *_models(Path(name))]


def _parts(folder: Path) -> list[dict[str, Any]]:
    storage, table = Storage(str(folder)), _table()

    def written() -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_statistics=True)
        storage.write("plain.parquet", sink.getvalue().to_pybytes())

    def read() -> None:
        with storage.opened("plain.parquet") as stream:
            pq.read_table(stream)

    each: dict[str, Callable[[], object]] = {
        "write a part as pyarrow does": written,
        "write it with checksums of pages and footer": lambda: storage.write_table("sealed.parquet", table),
        "read a part as pyarrow does": read,
        "read it and compare the checksums": lambda: storage.read_table("sealed.parquet"),
    }
    seconds = _best(each)
    size = storage.size("sealed.parquet") / 1e6
    found = []
    for plain, proven in (list(each)[:2], list(each)[2:]):
        for what in (plain, proven):
            row = {"what": f"{what}, {ROWS:,} texts", "rate": size / seconds[what], "unit": "MB/s"}
            found.append(row | {"ratio": seconds[plain] / seconds[what], "limit_share": None, "threads": 2})
    return found


def _models(folder: Path) -> list[dict[str, Any]]:
    """A model of a gigabyte of weights, which lie in the page cache, as they do after a model was loaded."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(np.random.default_rng(0).bytes(MODEL_BYTES))

    def plain() -> None:
        with (model / "model.safetensors").open("rb") as stream:
            hashlib.file_digest(stream, "sha256")

    each: dict[str, Callable[[], object]] = {
        "SHA-256 of a file by hashlib": plain,
        "the fingerprint of a model": lambda: checkpoint.fingerprint(model),
    }
    seconds = _best(each)
    size = MODEL_BYTES / 1e6
    found = [
        {"what": f"{what}, 1 GiB", "rate": size / seconds[what], "unit": "MB/s", "threads": 1}
        | {"ratio": seconds["SHA-256 of a file by hashlib"] / seconds[what], "limit_share": None}
        for what in each
    ]
    looks = 1000
    begun = time.perf_counter()
    for _ in range(looks):
        checkpoint.state(model)
    rate = looks / (time.perf_counter() - begun)
    look = {"what": "the state of a model's files, before each part", "rate": rate, "unit": "looks/s", "threads": 1}
    return [*found, look | {"ratio": None, "limit_share": None}]


def _best(each: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least seconds of each in a few rounds, in turns, so that all meet the same machine."""
    best = dict.fromkeys(each, float("inf"))
    for _ in range(ROUNDS):
        for what, run in each.items():
            begun = time.perf_counter()
            run()
            best[what] = min(best[what], time.perf_counter() - begun)
    return best


def _table() -> pa.Table:
    """Random unit vectors with what a part of texts/ holds besides."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((ROWS, DIM), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    columns: dict[str, Any] = {
        "text_id": [str(k) for k in range(ROWS)],
        "content_sha": [hashlib.sha256(str(k).encode()).hexdigest() for k in range(ROWS)],
        "document": [None] * ROWS, "source_row": [None] * ROWS, "tokens": random.integers(3, 256, ROWS),
        "truncated": [False] * ROWS, "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM),
    }  # fmt: skip
    return texts(DIM).build(columns | {name: random.random(ROWS) for name in ("mean_norm", "spread", "within_cosine")})
