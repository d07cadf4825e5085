"""`make gpu`, on a machine with a GPU: every test of one, then rates, into results/ and the page of figures. No Ray needed.

`python -m benchmarks.card [--device DEVICE] [--small]`. Anything but CUDA, such as `cpu`, and `--small` only try the command
itself: nothing is then written to results/.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import record

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NEEDED = (
    "torch",
    "transformers",
    "sentence_transformers",
    "pytest",
    "pytest_timeout",
    "hypothesis",
    "jaxtyping",
    "numba",
    "psutil",
    "pyarrow",
    "pydantic",
    "rich",
    "scipy",
    "threadpoolctl",
    "typer",
)
"""What the tests and benchmarks import besides tempscale itself."""
PROCESSES = 8
"""Processes that run tests beside one another, where pytest-xdist is installed: most of a test is a processor's work."""
SOCM_ERROR = 1e-5
"""Largest distance of d_Σ on a GPU from singular values in float64."""


def main(arguments: list[str]) -> int:
    """Run tests and benchmarks; return 1 if a test or a tolerance failed, 2 if there is no GPU or a package is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.card", description="Every test of a GPU, then its rates.")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the command without a GPU")
    parser.add_argument("--small", action="store_true", help="a few tests and small sizes, to try the command")
    chosen = parser.parse_args(arguments)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"these packages are missing: {', '.join(missing)}; pip install -e '.[test]' beside a torch for CUDA",
            file=sys.stderr,
        )
        return 2
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    if chosen.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA GPU at hand, or a torch without CUDA; --device cpu --small only tries the command", file=sys.stderr)
        return 2
    begun = time.monotonic()
    passed, summary = tested(chosen.device, chosen.small)
    print(f"tests: {summary} ({time.monotonic() - begun:.0f} s)", flush=True)
    rows: list[dict[str, Any]] = []
    kept = chosen.device == "cuda" and not chosen.small
    for name, measure in measures(chosen.device, chosen.small).items():
        started, before = time.monotonic(), len(rows)
        for row in measure():
            show(row)
            rows.append(row)
            if kept:  # At once, so that little is lost when it is stopped.
                write(rows, summary)
        print(f"{name}: {len(rows) - before} rates ({time.monotonic() - started:.0f} s)", flush=True)
    wrong = [row for row in rows if row.get("max_error", 0.0) > SOCM_ERROR]
    for row in wrong:
        print(f"too far from float64 ({row['max_error']:.1e}, allowed are {SOCM_ERROR:.0e}): {row['what']}", file=sys.stderr)
    if kept:
        print(f"written to {record.file_of(HERE / 'results', record.machine())}")
        draw()
    print(f"{time.monotonic() - begun:.0f} s in all")
    return 0 if passed and not wrong else 1


def tested(device: str, small: bool) -> tuple[bool, str]:
    """Whether every test of a GPU passed, and pytest's last line; tests that were skipped are listed with their reasons."""
    files = [str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_gpu*.py")]
    files.sort(key=lambda name: ("compiled" not in name, name))  # They take longest.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(["-n", str(PROCESSES)] if importlib.util.find_spec("xdist") and not small else []),
        *files,
        *(["-k", "poolings"] if small else []),
    ]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "jobs"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TEMPSCALE_CARD": device, "PYTHONPATH": paths}, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    lines = done.stdout.rstrip().splitlines() or ["pytest said nothing"]
    if done.returncode:
        print("\n".join([*done.stderr.splitlines()[-50:], *lines[-200:]]))
    else:
        print("\n".join(line for line in lines if line.startswith("SKIPPED")))
    return done.returncode == 0, lines[-1].strip("= ")


def measures(device: str, small: bool) -> dict[str, Callable[[], Iterable[dict[str, Any]]]]:
    """The benchmarks of a GPU by what they measure."""
    from benchmarks import gpu, gpu_embedding, gpu_shapes, layers

    pairs = device if device == "cuda" else "cpu:0"
    sizes = (30, 512) if small else (gpu.TEXTS, gpu.TILE)
    texts: tuple[Any, ...] = (5, (32,), (1024,)) if small else ()
    return {
        "pairs of texts": lambda: gpu.measure(pairs, *sizes),
        "embedding": lambda: gpu_embedding.measure(device, *texts),
        "shapes, threads, storage": lambda: gpu_shapes.measure(device, small),
        "layers": lambda: [layers.on_device(device, 1 if small else 60)],
    }


def show(row: dict[str, Any]) -> None:
    """Print a rate with its ratio and its share of the limit."""
    from benchmarks.wording import cells, further

    print(f"  {row['what']}: {', '.join(filter(None, [*cells(row), further(row)]))}", flush=True)


def write(rows: list[dict[str, Any]], summary: str) -> None:
    """Write the rates beside the machine's others."""
    machine = record.machine()
    file = record.file_of(HERE / "results", machine)
    record.put(file, machine, "gpu", rows, record.measured() | {"tests": summary})


def draw() -> None:
    """Write the page, where what draws it is installed."""
    try:
        from benchmarks import render
    except ImportError as error:
        print(f"the page of figures needs {error.name}: where it is installed, python -m benchmarks render writes it")
        return
    for page in render.write(HERE / "results", ROOT / "docs" / "dev"):
        print(f"written to {page}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
