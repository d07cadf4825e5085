"""What six variants of a million vectors cost an audit: seconds and memory beside the audit without them.

`python -m benchmarks.what_if [VECTORS]`. It runs the command line, as a user does, on files of random vectors.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.vectors import run, write

VECTORS, QUERIES, DIM = 1_000_000, 2_000, 384
VARIANTS = ("dims:256", "dims:128", "int8", "bits", "centre+bits", "length")


def measure(vectors: int = VECTORS) -> list[dict[str, Any]]:
    """Seconds and memory of an audit asked by queries, without variants and with six."""
    with tempfile.TemporaryDirectory(prefix="tempscale-what-if-") as name:
        folder = Path(name)
        write(folder / "vectors", vectors, DIM)
        write(folder / "queries", QUERIES, DIM)
        asked = ["--queries", str(folder / "queries"), "--queries-embedding-column", "embedding", "--quick"]
        asked += ["--exposure-sample", str(QUERIES)]
        variants = [option for what in VARIANTS for option in ("--what-if", what)]
        without, with_six = (
            run(folder / "vectors", folder / what, *asked, *more) for what, more in (("plain", ()), ("variants", variants))
        )
    return [
        {"what": what, "rate": vectors / one["seconds"], "unit": "vectors/s", "ratio": one["seconds"] / without["seconds"]}
        | {"seconds": one["seconds"], "driver_peak_bytes": one["driver"], "peak_memory_bytes": one["all"]}
        | {"steps": one["steps"]}
        for what, one in (("without variants", without), ("with six variants", with_six))
    ]


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]) if len(sys.argv) > 1 else VECTORS):
        print(json.dumps(row))
