"""Reading the blocks of two panels of the pair grid: as each tile needs them, and once, as for a GPU.

`python -m benchmarks panels`; from this machine's disk (whose files the system keeps in memory) and from a stand-in of S3 in
a process of its own. Nothing is computed: what is timed is what a GPU would wait for.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import blocks
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.tables import parts

PANEL, TEXTS, DIM = 16, 8192, 384
_SERVER = """
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
time.sleep(3600)
"""


class _Counting(Storage):
    """Counts the reads of each file."""

    read: ClassVar[Counter[str]] = Counter()

    def read_table(self, name: str, *given: Any, **how: Any) -> Any:
        """See `Storage.read_table`."""
        self.read[name] += 1
        return super().read_table(name, *given, **how)


@contextmanager
def _bucket() -> Iterator[str]:
    """The address of an empty bucket."""
    import s3fs

    with subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            host, port = server.stdout.readline().split()
            os.environ |= {
                "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench",
                "AWS_DEFAULT_REGION": "us-east-1",
            }  # fmt: skip
            s3fs.S3FileSystem.clear_instance_cache()
            s3fs.S3FileSystem().makedirs("panels", exist_ok=True)
            yield "s3://panels/run"
        finally:
            server.kill()


def _written(root: str) -> Tiling:
    """Two panels of random unit vectors."""
    tiling = Tiling(_Counting(root), "partials/cosine", 1, 0, 0.9, 0, 2 * PANEL, together=PANEL)
    generator = np.random.default_rng(0)
    for k in range(tiling.count):
        rows = generator.standard_normal((TEXTS, DIM), dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        columns = {"embedding": parts.row_bytes(rows), "interval": np.zeros(TEXTS, np.int16)}
        columns |= {"label": np.arange(TEXTS, dtype=np.int32), "text_id": [str(i) for i in range(TEXTS)]}
        table = parts.blocks(DIM).build(columns | {"document": [None] * TEXTS})
        tiling.storage.write_table(tiling.block(k), table, "none")
    return tiling


def measure() -> list[dict[str, Any]]:
    """Both ways from both storages; the ratio is to the first way."""
    found = []
    with tempfile.TemporaryDirectory(prefix="tempscale-panels-") as folder, _bucket() as bucket:
        for place, root in (("disk", folder), ("a stand-in of S3", bucket)):
            tiling, before = _written(root), 0.0
            for way, tiles in (("as each tile needs them", blocks._tiles_of), ("once", blocks.tiles_read_once)):
                _Counting.read.clear()
                begun = time.perf_counter()
                count = sum(1 for _ in tiles(tiling, 0, 1))
                seconds = time.perf_counter() - begun
                before = before or seconds
                reads = sum(_Counting.read.values())
                found.append(
                    {
                        "what": f"blocks of two panels of {PANEL}, from {place}, {way}", "unit": "tiles/s",
                        "rate": count / seconds, "ratio": before / seconds, "seconds": seconds,
                        "blocks_read": reads, "read_bytes": reads * TEXTS * DIM * 4,
                    }
                )  # fmt: skip
    return found
