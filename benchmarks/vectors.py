"""Embeddings of your own, by the million: an audit in closed form, its seconds, and how its memory grows with the vectors.

`python -m benchmarks.vectors [VECTORS]`. It runs the command line, as a user does, on files of random vectors.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

VECTORS, DIM, FILES = 10_000_000, 32, 100
GROWTH = (400_000, 1_600_000)
"""Vectors of the runs whose memory is compared."""
_SECONDS = 0.25


def measure(vectors: int = VECTORS, growth: tuple[int, int] = GROWTH) -> list[dict[str, Any]]:
    """Rate and peak memory of the run over `vectors`, and bytes that the driver needs for a vector more."""
    with tempfile.TemporaryDirectory(prefix="tempscale-vectors-") as name:
        folder = Path(name)
        runs = []
        for number, count in enumerate((*growth, vectors)):
            write(folder / str(number), count)
            runs.append(run(folder / str(number), folder / f"run-{number}"))
    few, more, all_of_them = runs
    grown = (more["driver"] - few["driver"]) / (growth[1] - growth[0])
    return [
        {"what": f"{count:,} vectors of {DIM} dimensions, closed form", "rate": count / one["seconds"], "unit": "vectors/s"}
        | {"ratio": (count / one["seconds"]) / (growth[0] / few["seconds"]), "seconds": one["seconds"]}
        | {"driver_peak_bytes": one["driver"], "peak_memory_bytes": one["all"], "steps": one["steps"]}
        | {"driver_bytes_a_vector": grown}
        for count, one in zip((*growth, vectors), (few, more, all_of_them), strict=True)
    ]


def write(folder: Path, count: int, dim: int = DIM) -> None:
    """Write random vectors of texts of many lengths into a hundred files."""
    folder.mkdir()
    kind = pa.list_(pa.float32(), dim)
    for k in range(FILES):
        own = count // FILES
        rng = np.random.default_rng(k)
        vectors = rng.standard_normal((own, dim)).astype(np.float32) + 0.3
        columns = {
            "id": [f"{k}-{i}" for i in range(own)],
            "tokens": rng.integers(8, 400, own),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), type=kind),
        }
        pq.write_table(pa.table(columns), folder / f"{k:03d}.parquet")


def run(source: Path, out: Path, *more: str) -> dict[str, Any]:
    """Seconds of a run, and the highest memory of its process and of that with all of Ray's."""
    command = [
        sys.executable, "-m", "tempscale_jobs", "audit", "--corpus", str(source), "--embedding-column", "embedding",
        "--length-column", "tokens", "--cosine", "moments", "--out", str(out), *more,
    ]  # fmt: skip
    begun, driver, everything = time.monotonic(), 0, 0
    process = subprocess.Popen(command)
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            own = watched.memory_full_info().uss
            others = sum(_own_memory(child) for child in watched.children(recursive=True))
        except psutil.Error:
            continue
        driver, everything = max(driver, own), max(everything, own + others)
        time.sleep(_SECONDS)
    if process.returncode:
        raise SystemExit(f"the run ended with {process.returncode}")
    steps = json.loads((out / "run.json").read_text("utf-8"))["steps"]
    seconds = time.monotonic() - begun
    return {"seconds": seconds, "driver": driver, "all": everything} | {
        "steps": {name: step["seconds"] for name, step in steps.items()}
    }


def _own_memory(process: psutil.Process) -> int:
    """Memory that no other process shares; nothing for one that has ended."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]) if len(sys.argv) > 1 else VECTORS):
        print(json.dumps(row))
