"""Reading a million sentences into shards, by one worker and by two.

`python -m benchmarks.reading [TEXTS]`; needs the Wikipedia sentences in shared/corpora. Each run is a process of its own,
whose growth is that of the process that starts a run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.socm import WIKIPEDIA

TEXTS = 1_000_000
_ONE = """
import json, os, sys, time
import psutil, ray
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import cluster as sessions

source, out, workers, limit = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
config = resolve({"out": out, "corpus": {"source": source, "limit": limit}})
memory = lambda: psutil.Process().memory_full_info().uss
with sessions.session(Execution.model_validate({"workers": workers})) as cluster:
    ray.get([ray.remote(num_cpus=0)(lambda: os.getpid()).remote() for _ in range(4)])
    before, begun = memory(), time.perf_counter()
    reader = SourceReader(Storage(out), TextShards(config.corpus, config.embedding, out), 0, out)
    reader.finish(cluster)
    seconds = time.perf_counter() - begun
    found = {"seconds": seconds, "grown": memory() - before, "texts": reader.index.analysed}
print(json.dumps(found))
"""


def measure(texts: int = TEXTS) -> list[dict[str, Any]]:
    """Seconds of reading with one and two workers, and how much the driver grew."""
    source = WIKIPEDIA / "sentences_1M.parquet"
    if not source.is_file():
        return []
    found = {}
    for workers in (1, 2):
        with tempfile.TemporaryDirectory(prefix="tempscale-reading-") as folder:
            command = [sys.executable, "-c", _ONE, str(source), f"{folder}/run", str(workers), str(texts)]
            found[workers] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return [
        {
            "what": f"reading {one['texts']:,} sentences, {workers} worker{'s' * (workers > 1)}", "unit": "texts/s",
            "rate": one["texts"] / one["seconds"], "ratio": found[1]["seconds"] / one["seconds"],
            "seconds": one["seconds"],
            "driver_bytes_a_text": one["grown"] / one["texts"],
        }
        for workers, one in found.items()
    ]  # fmt: skip


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]) if len(sys.argv) > 1 else TEXTS):
        print(json.dumps(row))
