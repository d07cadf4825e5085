"""`python -m benchmarks [NAME …]` writes a table, a file in results/, and docs/dev/performance.md.

Names: embedding, paragraphs, overhead, socm, cosine, stage, growth, workers, layers, gpu.
tokenising, peers, mean_socm, reading, correcting, vectors, what_if, shrinking, verifying, wide and million take minutes to
hours and run only if they are named.
`python -m benchmarks render` measures nothing and writes the page again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import record, render, wording

HERE = Path(__file__).resolve().parent
RESULTS, DOCS = HERE / "results", HERE.parent / "docs" / "dev"


ON_REQUEST = (
    "tokenising",
    "peers",
    "mean_socm",
    "reading",
    "correcting",
    "vectors",
    "what_if",
    "shrinking",
    "verifying",
    "wide",
    "million",
)
"""Benchmarks that take long and run only if they are named."""


def every() -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """The benchmarks by name, in the order of measurement."""
    from benchmarks import correcting, cosine, embedding, gpu, gpu_embedding, gpu_shapes, growth, layers, mean_socm, million  # isort: skip
    from benchmarks import overhead, paragraphs, peers, reading, shrinking, socm, stage, tokenising, vectors, verifying  # isort: skip
    from benchmarks import what_if, wide, workers  # isort: skip

    return {
        "embedding": embedding.measure,
        "paragraphs": paragraphs.measure,
        "overhead": overhead.measure,
        "socm": socm.measure,
        "cosine": cosine.measure,
        "stage": stage.measure,
        "growth": growth.measure,
        "workers": workers.measure,
        "layers": layers.measure,
        "gpu": lambda: [*gpu.measure(), *gpu_embedding.measure(), *gpu_shapes.measure(), *layers.measure_gpu()],
        "tokenising": tokenising.measure,
        "peers": peers.measure,
        "mean_socm": mean_socm.measure,
        "reading": reading.measure,
        "correcting": correcting.measure,
        "vectors": vectors.measure,
        "what_if": what_if.measure,
        "shrinking": shrinking.measure,
        "verifying": verifying.measure,
        "wide": wide.measure,
        "million": million.measure,
    }


def main(names: list[str]) -> int:
    """Run the named benchmarks and write their results and the page; return 2 for an unknown name.

    Each benchmark runs on one thread unless it says otherwise. Its rows are written when it ends, and those of other
    benchmarks do not change.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if names != ["render"]:
        benchmarks = every()
        unknown = set(names) - set(benchmarks)
        if unknown:
            print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(benchmarks)}", file=sys.stderr)
            return 2
        chosen = names or [name for name in benchmarks if name not in ON_REQUEST]
        table = Table("benchmark", "what", "rate", "ratio", "of the limit", box=None, padding=(0, 1))
        for name, row in _measured({name: benchmarks[name] for name in chosen}, console):
            table.add_row(name, row["what"], *wording.cells(row))
        console.print(table)
    for file in render.write(RESULTS, DOCS):
        console.print(f"written to {file}", highlight=False, soft_wrap=True)
    return 0


def _measured(benchmarks: dict[str, Callable[[], list[dict[str, Any]]]], console: Any) -> list[tuple[str, dict[str, Any]]]:
    """Every row with the name of its benchmark; the rows of one are written to the file before the next begins."""
    import torch
    from threadpoolctl import threadpool_limits
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    machine, found = record.machine(), []
    file = record.file_of(RESULTS, machine)
    with threadpool_limits(1), console.status("measuring") as status:
        for name, measure in benchmarks.items():
            status.update(f"measuring {name}")
            rows = measure()
            if rows:  # A benchmark that this machine cannot run, such as one of GPUs, changes nothing.
                record.put(file, machine, name, rows, record.measured())
            found += [(name, row) for row in rows]
    console.print(f"written to {file}", highlight=False, soft_wrap=True)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
