"""`python -m benchmarks [NAME …]`: a table, and a file in results/.

Names: embedding, paragraphs, overhead, socm, cosine, stage, layers, grid, gpu; and million, which takes half an hour and is
left out where no name is given.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from threadpoolctl import threadpool_limits

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "torch", "transformers", "sentence-transformers", "scikit-learn", "numpy", "numba", "scipy", "tokenizers", "ray", "POT",
    "faiss-cpu", "mteb",
)  # fmt: skip


def main(names: list[str]) -> int:
    """Run the named benchmarks, on one thread unless they say otherwise, and write what they found; 2 for an unknown one."""
    import torch
    from rich.console import Console
    from rich.table import Table
    from transformers.utils import logging

    import tempscale
    from benchmarks import cosine, embedding, gpu, gpu_embedding, grid, layers, million, overhead, paragraphs, socm, stage

    every = {
        "embedding": embedding.measure,
        "paragraphs": paragraphs.measure,
        "overhead": overhead.measure,
        "socm": socm.measure,
        "cosine": cosine.measure,
        "stage": stage.measure,
        "layers": layers.measure,
        "grid": grid.measure,
        "gpu": lambda: [*gpu.measure(), *gpu_embedding.measure(), *layers.measure_gpu()],
        "million": million.measure,
    }
    unknown = set(names) - set(every)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(every)}", file=sys.stderr)
        return 2
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    console, rows = Console(), []
    table = Table("benchmark", "what", "rate", "ratio", "of the limit", box=None, padding=(0, 1))
    with threadpool_limits(1), console.status("measuring") as status:
        for name in names or [name for name in every if name != "million"]:
            status.update(f"measuring {name}")
            rows += [{"benchmark": name} | row for row in every[name]()]
    for row in rows:
        limit = row.get("limit_share")
        table.add_row(
            row["benchmark"], row["what"], f"{row['rate']:,.0f} {row['unit']}",
            f"{row['ratio']:.2f}" if "overhead" not in row else f"{row['overhead']:+.2%} ± {row['overhead_se']:.2%}",
            "" if limit is None else f"{100 * limit:.0f} %",
        )  # fmt: skip
    console.print(table)
    machine = processor()
    name = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    versions = {package: _version(package) for package in PACKAGES}
    file = RESULTS / f"{name}.json"
    if names and file.exists():  # What was not measured now stays as it was.
        rows = [row for row in json.loads(file.read_text("utf-8"))["results"] if row["benchmark"] not in names] + rows
    found = {
        "machine": {
            "processor": machine,
            "cores": os.cpu_count(),
            "threads_used": 1,
            "system": f"{platform.system()} {platform.machine()}",
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        },
        "versions": {"tempscale": tempscale.__version__, "python": platform.python_version()} | versions,
        "results": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    file.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", "utf-8")
    console.print(f"written to {file}", highlight=False, soft_wrap=True)
    return 0


def _version(package: str) -> str:
    """A package's version; the peers POT and faiss are measured only where they are installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def processor() -> str:
    """The processor's own name."""
    names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else []
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
