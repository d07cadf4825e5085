"""The files and tiles of a corpus a hundred times as large: blocks, parts and units a hundredth of the usual.

`python -m benchmarks.shrinking`. A million vectors have as many parts, units and blocks as a hundred million otherwise, so
what the process that starts a run does for each of them can be seen. Each run is a process of its own, whose storage
operations are counted in all of its workers, by step.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import counting

RUNS = {100_000: "full", 300_000: "full", 1_000_000: "full"}
"""Vectors, and whether all of their pairs are compared: a million have 1.2 million tiles, a quarter of an hour of work."""
DIM, OF_DIM, FILE_ROWS, INTERVALS, WORKERS = 16, 384, 10_000, [0, 20, 40], 2
UNIT_ROWS = 131_072 // 100
CONSTANTS = {
    "tempscale.collapse.tiles:SMALLEST_BLOCK": 10,
    "tempscale.collapse.tiles:LARGEST_BLOCK": 65_536 // 100,
    "tempscale_jobs.steps.blocks:GATHERED_BYTES": (256 << 20) * DIM // OF_DIM // 100,
    "tempscale_jobs.corpus.vectors:PART": 4096 // 100 + 1,
    "tempscale_jobs.corpus.reading:IDS_OF_A_GROUP": 16_384 // 100,
    "tempscale_jobs.corpus.reading:IDS_OF_A_RUN": 131_072 // 100,
    "tempscale_jobs.corpus.distinct:PARTITION_IDS": 2_000_000 // 100,
    "tempscale_jobs.steps.source_order:_EMBEDDINGS": 16_384 // 100,
}
"""Constants that are a hundredth of the usual. A task gathers as many rows as it would of OF_DIM dimensions."""
STEPS = {
    "read all of the corpus": "reading", "layout": "layout", "cosine: blocks": "cosine: blocks",
    "cosine: sums": "cosine: sums", "cosine: means by text": "cosine: means by text", "cosine: tiles": "cosine: tiles",
    "exposure: near-duplicates of the tiles": "exposure: near-duplicates of the tiles",
    "exposure: neighbours of the tiles": "exposure: neighbours of the tiles",
    "exposure: neighbours of a sample": "exposure: neighbours of a sample", "exposure: counts": "exposure: counts",
    "exposure, τ 1.0": "exposure: the rest",
    "order of the source": "order of the source", "tables": "tables",
}  # fmt: skip
"""The steps of `counting.Steps` that have rows of their own; the others are added up."""
REST = "everything else"


def measure(runs: dict[int, str] = RUNS) -> list[dict[str, Any]]:
    """A row for each step and number of vectors. The ratio is that of the operations a vector to those of the fewest."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="tempscale-shrinking-") as name:
        for count, cosine in runs.items():
            folder = Path(name, str(count))
            _write(folder / "source", count)
            corpus = {"source": str(folder / "source"), "embedding_column": "embedding", "length_column": "tokens"}
            data = {
                "corpus": corpus | {"unit_rows": UNIT_ROWS},
                # A correction by length asks as a sample does: of runs with tiles it would be counted in that step.
                "analysis": {"cosine": cosine, "intervals": INTERVALS, "length_correction": cosine != "full"},
                "execution": {"workers": WORKERS},
            }
            found[count] = counting.audited(folder, data, CONSTANTS)
    return rows({count: _steps(steps) for count, steps in found.items()}, runs)


def rows(found: dict[int, dict[str, dict[str, float]]], runs: dict[int, str]) -> list[dict[str, Any]]:
    """The rows of the steps of runs by their number of vectors."""
    rows = []
    for step in [*STEPS.values(), REST]:
        fewest = next((n for n in found if step in found[n]), 0)
        for count, steps in found.items():
            if step not in steps:
                continue
            own, first = steps[step], found[fewest][step]
            rows.append(
                {"what": f"{step}, {count:,} vectors", "rate": count / own["seconds"], "unit": "vectors/s"}
                | {"ratio": own["operations"] / count / max(first["operations"] / fewest, 1e-9), "vectors": count}
                | {"step": step, "cosine": runs[count]}
                | own
            )
    return rows


def _steps(found: dict[str, counting.Step]) -> dict[str, dict[str, float]]:
    """The figures of each of STEPS, and of all others together."""
    steps: dict[str, dict[str, float]] = {}
    for name, step in found.items():
        own: dict[str, float] = {"seconds": step.seconds, "driver_cpu_seconds": step.driver_seconds}
        for whose, counts in (("", step.every), ("driver_", step.driver)):
            own |= {f"{whose}operations": counts.operations, f"{whose}bytes": counts.bytes}
        own |= {"read_bytes": step.every.bytes_read, "written_bytes": step.every.bytes_written}
        before = steps.setdefault(STEPS.get(name, REST), {})
        peak = max(before.get("driver_step_bytes", 0), step.driver_peak_bytes)
        before |= {key: before.get(key, 0) + value for key, value in own.items()} | {"driver_step_bytes": peak}
    return steps


def _write(folder: Path, count: int) -> None:
    """Write random vectors of three intervals of length, in files of 10,000."""
    folder.mkdir(parents=True)
    for k, start in enumerate(range(0, count, FILE_ROWS)):
        own, random = min(FILE_ROWS, count - start), np.random.default_rng(k)
        vectors = random.standard_normal((own, DIM)).astype(np.float32) + 0.3
        columns = {
            "id": [f"{k}-{i}" for i in range(own)],
            "tokens": random.integers(1, 60, own),
            "embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM),
        }
        pq.write_table(pa.table(columns), folder / f"{k:05d}.parquet")


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row))
