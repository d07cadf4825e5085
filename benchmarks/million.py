"""A million sentences from file to report with a small model, then a second night on which one in a hundred has changed.

`python -m benchmarks.million [TEXTS]`; needs the Wikipedia sentences in shared/corpora. It runs the command line, as a user
does, not the library.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.socm import WIKIPEDIA

TEXTS, FEWER, CHANGED = 1_000_000, 100_000, 100
"""The texts of the large run and of the run whose memory it is compared with; one text in CHANGED changes."""


def measure(texts: int = TEXTS) -> list[dict[str, Any]]:
    """Seconds, texts a second and peak memory of each night; empty without the sentences."""
    source = WIKIPEDIA / "sentences_1M.parquet"
    if not source.is_file():
        return []
    with tempfile.TemporaryDirectory(prefix="tempscale-million-") as name:
        folder = Path(name)
        model = _small_model(folder / "small")
        second = _changed(source, folder / "second.parquet", texts)
        cache = ["--cache", str(folder / "cache")]
        nights = [
            ("fewer", _night(folder / "fewer", source, model, min(FEWER, texts), [])),
            ("first night", _night(folder / "first", source, model, texts, cache)),
            ("second night", _night(folder / "second", second, model, texts, cache)),
        ]
    (_, fewer), (_, first), (_, last) = nights
    rows = []
    for what, night in nights:
        rows.append(
            {"what": f"{night['texts']:,} sentences, {what}", "rate": night["texts"] / night["seconds"], "unit": "texts/s"}
            | {"ratio": first["embedding"] / night["embedding"], "seconds": night["seconds"]}
            | {"embedding_seconds": night["embedding"], "peak_memory_bytes": night["memory"], "steps": night["steps"]}
        )
    rows[1]["memory_over_fewer"] = first["memory"] / fewer["memory"]
    rows[2]["embedding_over_first"] = last["embedding"] / first["embedding"]
    return rows


def _night(out: Path, source: Path, model: Path, texts: int, more: list[str], cosine: str = "moments") -> dict[str, Any]:
    """The figures of one run of the command line, from its run.json."""
    command = [
        sys.executable, "-m", "tempscale_jobs", "audit", "--corpus", str(source), "--limit", str(texts),
        "--model", str(model),
        "--tau", "1.0", "--cosine", cosine, "--out", str(out), *more,
    ]  # fmt: skip
    begun = time.monotonic()
    subprocess.run(command, check=True)
    seconds = time.monotonic() - begun
    record = json.loads((out / "run.json").read_text("utf-8"))
    steps = record["steps"]
    embedding = sum(step["seconds"] for name, step in steps.items() if name.startswith(("embed ", "cache")))
    return {
        "texts": record["corpus"]["analysed"], "seconds": seconds, "embedding": embedding,
        "memory": record["peak_memory_bytes"], "steps": {name: step["seconds"] for name, step in steps.items()},
    }  # fmt: skip


def _small_model(folder: Path) -> Path:
    """Save a model of two layers, 128 wide, with random weights and the real MiniLM's tokenizer."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from tempscale.model.checkpoint import default_model

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
    BertModel(BertConfig(vocab_size=30522, initializer_range=0.2, **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(default_model()).save_pretrained(folder)
    return folder


def _changed(source: Path, file: Path, texts: int) -> Path:
    """Write the corpus of the second night."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(source, columns=["id", "text"]).slice(0, texts)
    rows = [f"{text} It changed." if k % CHANGED == 0 else text for k, text in enumerate(table["text"].to_pylist())]
    pq.write_table(pa.table({"id": table["id"], "text": rows}), file)
    return file


if __name__ == "__main__":
    for row in measure(int(sys.argv[1]) if len(sys.argv) > 1 else TEXTS):
        print(json.dumps(row))
