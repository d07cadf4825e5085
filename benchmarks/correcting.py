"""A million embeddings corrected: `tempscale correct` with one and two workers and after a kill, and a loop over the file.

`python -m benchmarks.correcting [ROWS]`.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from tempscale.correction.fit import fit
from tempscale.correction.values import Correction

ROWS, DIM, GROUP, FITTED = 1_000_000, 384, 65_536, 10_000


def measure(rows: int = ROWS) -> list[dict[str, Any]]:
    """Rows a second of whole commands, including the start of Ray, and of a loop in one process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, rows)
        loop = _loop(folder)
        one, memory, bytes_of_one = _corrected(folder, 1)
        two, more, bytes_of_two = _corrected(folder, 2)
        _, _, after = _corrected(folder, 2, killed=True)
    same = "the same bytes" if bytes_of_one == bytes_of_two == after else "OTHER BYTES"
    given = (
        (f"pyarrow and numpy, a loop over the file, {rows:,} rows", loop, "", 1),
        ("tempscale correct, one worker", one, memory, 1),
    )
    given += (("tempscale correct, two workers", two, f"{more}; {same} as of one, and after a kill", 2),)
    return [
        {"what": f"{what}: {'; '.join(filter(None, (f'{seconds:.1f} s', note)))}", "rate": rows / seconds, "unit": "rows/s"}
        | {"ratio": loop / seconds, "limit_share": None, "threads": threads}
        for what, seconds, note, threads in given
    ]


def _write(folder: Path, rows: int) -> None:
    """Write random unit vectors with lengths, and a correction by length."""
    random = np.random.default_rng(0)
    schema = pa.schema([("id", pa.string()), ("tokens", pa.int32()), ("embedding", pa.list_(pa.float32(), DIM))])
    with pq.ParquetWriter(folder / "vectors.parquet", schema) as writer:
        for start in range(0, rows, GROUP):
            count = min(GROUP, rows - start)
            vectors = random.standard_normal((count, DIM), dtype=np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            tokens = np.maximum(1, np.exp(random.normal(4, 1, count))).astype(np.int32)
            embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
            ids = [f"t{k}" for k in range(start, start + count)]
            writer.write_table(pa.table([ids, tokens, embedding], schema=schema))
            if not start:
                few = torch.from_numpy(vectors[:FITTED])
                found = fit("length", few, torch.from_numpy(tokens[:FITTED].astype(np.int64)), few)
                (folder / "length.json").write_text(json.dumps(found.as_data()), "utf-8")


def _loop(folder: Path) -> float:
    """Seconds of a plain loop: read a batch, correct it, write it, in one process."""
    correction, begun = Correction.of(json.loads((folder / "length.json").read_text("utf-8"))), time.perf_counter()
    writer = None
    for batch in pq.ParquetFile(folder / "vectors.parquet").iter_batches(8192):
        table = pa.table(batch)
        vectors = table.column("embedding").combine_chunks().flatten().to_numpy().reshape(-1, DIM)
        tokens = torch.from_numpy(table.column("tokens").to_numpy().astype(np.int64))
        moved = correction.documents(torch.from_numpy(vectors.astype(np.float64)), tokens).numpy()
        own = pa.FixedSizeListArray.from_arrays(pa.array(moved.ravel()), moved.shape[1])
        table = table.set_column(2, "embedding", own)
        writer = writer or pq.ParquetWriter(folder / "loop.parquet", table.schema, compression="zstd")
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return time.perf_counter() - begun


def _corrected(folder: Path, workers: int, killed: bool = False) -> tuple[float, str, str]:
    """Seconds of a whole command, its memory over all processes, and a digest of what it left."""
    out = folder / f"out-{workers}-{killed}"
    command = [sys.executable, "-m", "tempscale_jobs", "correct", "--embeddings", str(folder / "vectors.parquet")]
    command += ["--length-column", "tokens", "--correction", str(folder / "length.json"), "--out", str(out)]
    command += ["--workers", str(workers)]
    if killed:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and len(list((out / "shards").glob("corrected-*.json"))) < 2:
            time.sleep(0.1)
        assert process.poll() is None, "it ended before it could be killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
    begun = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    seconds, digest = time.perf_counter() - begun, hashlib.sha256()
    for file in sorted((out / "vectors").iterdir()):
        digest.update(file.name.encode() + file.read_bytes())
        file.unlink()
    memory = json.loads((out / "run.json").read_text("utf-8"))["peak_memory_bytes"]
    return seconds, f"{memory / 2**30:.1f} GB over all processes", digest.hexdigest()


if __name__ == "__main__":
    for row in measure(*map(int, sys.argv[1:])):
        print(row)
