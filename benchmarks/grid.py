"""Scores under five temperatures: one `tempscale evaluate`, five with one temperature each, and mteb alone at τ = 1."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TAUS = ("1.0", "0.9", "0.8", "0.7", "0.5")
TEXTS, QUERY_CHARACTERS = 800, 80
_MTEB = """
import sys
import mteb
from sentence_transformers import SentenceTransformer
from tempscale_jobs.config.evaluate import OwnTask, read_tasks
from tempscale_jobs.evaluate.own_tasks import build
from tempscale.model.checkpoint import default_model
(own,) = read_tasks([sys.argv[1]], None, None)
model = SentenceTransformer(default_model(), device="cpu")
model.max_seq_length = 512
print(mteb.evaluate(model, build(OwnTask.model_validate(own), 0), cache=None, co2_tracker=False).task_results[0].get_score())
"""


def measure() -> list[dict[str, Any]]:
    """Cells an hour of whole commands on two threads, including the start of Ray and of the model."""
    with tempfile.TemporaryDirectory() as folder:
        task = f"retrieval:{_write(Path(folder) / 'task')}"
        evaluate = [sys.executable, "-m", "tempscale_jobs", "evaluate", "--task", task, "--workers", "2"]
        grid = _seconds([*evaluate, *(part for tau in TAUS for part in ("--tau", tau)), "--out", f"{folder}/grid"])
        alone = sum(_seconds([*evaluate, "--tau", tau, "--out", f"{folder}/{tau}"]) for tau in TAUS)
        plain = _seconds([sys.executable, "-c", _MTEB, task])
    rows = ((f"{len(TAUS)} runs of one τ each", alone, 5), ("one run of all five", grid, 5))
    found = [
        {"what": what, "rate": 3600 * cells / seconds, "unit": "cells/h", "ratio": alone / seconds, "limit_share": None}
        for what, seconds, cells in rows
    ]
    what = "mteb with sentence-transformers, τ 1 only"
    found.append({"what": what, "rate": 3600 / plain, "unit": "cells/h", "ratio": alone / 5 / plain, "limit_share": None})
    return [row | {"threads": 2} for row in found]


def _write(folder: Path) -> Path:
    """Write a retrieval task: the query of each scipy docstring is its first words."""
    from benchmarks.measuring import texts

    folder.mkdir()
    corpus = [text for text in texts(2 * TEXTS) if len(text) > 3 * QUERY_CHARACTERS][:TEXTS]
    sides = {
        "corpus": [text[QUERY_CHARACTERS:] for text in corpus], "queries": [text[:QUERY_CHARACTERS] for text in corpus]
    }  # fmt: skip
    for name, rows in sides.items():
        lines = (json.dumps({"id": str(k), "text": text}) + "\n" for k, text in enumerate(rows))
        (folder / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    (folder / "qrels.tsv").write_text("query_id\tdoc_id\n" + "".join(f"{k}\t{k}\n" for k in range(len(corpus))), "utf-8")
    return folder


def _seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begun
