"""Writes docs/dev/coverage.md from benchmarks/results/coverage.json. Part of docs/generate.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "coverage.json"

NUMBERS = (
    "tempscale", "audit/summary.py", "audit/words.py", "corpus/vectors.py", "diagnose/looks.py", "diagnose/repeated.py",
    "diagnose/summary.py", "diagnose/two_texts.py", "evaluate/analyses.py", "evaluate/audits.py", "evaluate/scored.py",
    "evaluate/summary.py", "evaluate/windows.py", "nights/compare.py", "nights/gate.py", "nights/night.py",
    "pairs/chunks.py", "pairs/socm.py", "pairs/summary.py", "report/charts.py", "report/text.py", "steps/blocks.py",
    "steps/by_length.py", "steps/calibration.py", "steps/cosine.py", "steps/dealing.py", "steps/embed.py",
    "steps/exposure.py", "steps/factor_pairs.py", "steps/factors.py", "steps/group_tables.py", "steps/groups.py",
    "steps/largest.py", "steps/layout.py", "steps/named.py", "steps/neighbours.py", "steps/pair_values.py",
    "steps/pieces.py", "steps/precision.py", "steps/probe.py", "steps/query_cosines.py",
    "steps/slots.py", "steps/socm.py", "steps/socm_tables.py",
    "steps/source_order.py", "steps/worst.py", "tables/parts.py", "tune/collapse.py", "tune/layers.py", "tune/scores.py",
    "verify/compare.py", "verify/computed.py", "verify/explain.py", "verify/sample.py", "verify/summary.py",
    "verify/variants.py",
)  # fmt: skip
"""Folders and files that decide numbers: all of tempscale/, and the files of the jobs that compute or sum."""
KEPT = (
    "config/given.py", "corpus/address.py", "corpus/arrays.py", "corpus/distinct.py", "corpus/faiss_files.py",
    "corpus/iceberg.py", "corpus/index.py", "corpus/lakes.py", "corpus/postgres.py", "corpus/qdrant.py", "corpus/readers.py",
    "corpus/reading.py", "corpus/rows.py", "corpus/shards.py", "corpus/sources.py", "corpus/stored.py", "corpus/stores.py",
    "corpus/stream.py", "corpus/units.py", "diagnose/versions.py", "steps/cache.py", "steps/prune.py", "errors.py",
    "evaluate/own_tasks.py", "nights/record.py", "runs/folder.py", "runs/lock.py", "runs/storage.py", "tables/audit.py",
    "tables/columns.py", "verify/joined.py", "workers/marks.py", "workers/nodes.py",
)  # fmt: skip
"""Files of the jobs that decide which rows are read, which are rejected, and what is kept of a run."""
_GPU = "on a CUDA GPU only"
_COMPARED = f"{_GPU}, where tests/tempscale/test_gpu.py compares it with the CPU"
_RAISES = "the last attempt returns or raises"
WHY = {
    "jobs/tempscale_jobs/corpus/iceberg.py": "the library writes no deleted rows; a catalogue without its driver",
    "jobs/tempscale_jobs/corpus/postgres.py": "no value of a known type fails in Arrow",
    "jobs/tempscale_jobs/corpus/qdrant.py": "a server of Qdrant that fails while it is read",
    "jobs/tempscale_jobs/diagnose/looks.py": _RAISES,
    "jobs/tempscale_jobs/runs/lock.py": _RAISES,
    "jobs/tempscale_jobs/steps/blocks.py": "who reads blocks ahead takes each and ends",
    "jobs/tempscale_jobs/steps/probe.py": "the loop always ends early",
    "jobs/tempscale_jobs/steps/worst.py": "a run that was killed after this search, as `make soak` kills it",
    "tempscale/__init__.py": "only a type checker skips the block",
    "tempscale/choosing/by_layer.py": "nothing is attached only where attaching fails, which loading refuses before",
    "tempscale/collapse/fused.py": f"{_GPU}, by Triton, where tests/tempscale/collapse/test_fused.py compares it with torch",
    "tempscale/collapse/gpu.py": _COMPARED,
    "tempscale/correction/values.py": "each correction that needs the inner product has its own",
    "tempscale/layers/spectrum.py": f"a line {_GPU}, tested on the CPU; the loop always ends early; no text has one token",
    "tempscale/model/batches.py": _GPU,
    "tempscale/model/encoder.py": _GPU,
    "tempscale/model/packed.py": f"{_GPU}, where tests/tempscale/test_gpu_encoder.py compares it with padded texts",
    "tempscale/model/padded.py": _GPU,
    "tempscale/second_order/nuclear.py": _COMPARED,
    "tempscale/temperature/attach.py": "torch.compile runs two lines unseen; no whole model runs with τ switched off",
}
"""Why some lines or branches of a file are not run, for each such file."""


def group(name: str) -> str | None:
    """`numbers`, `kept` or neither, for a file of the report."""
    name = name.removeprefix("jobs/tempscale_jobs/")
    if any(name == own or name.startswith(f"{own}/") for own in NUMBERS):
        return "numbers"
    return "kept" if name in KEPT else None


def gaps(own: dict[str, Any]) -> bool:
    """Whether some lines or branches of a file are not run."""
    return bool(own["lines"] > own["lines_run"] or own["branches"] > own["branches_run"])


def share() -> str:
    """The share of lines and branches that are run, of the code that decides numbers or what is kept, in words."""
    files = json.loads(RESULT.read_text("utf-8"))["files"]
    shares = _shares([own for name, own in files.items() if group(name) is not None])
    return ", ".join(f"{share:.1f} % of {kind}" for kind, (_, share) in shares.items())


def page() -> str:
    """The page."""
    found = json.loads(RESULT.read_text("utf-8"))
    files = found["files"]
    lines = [
        "# Which lines and branches the tests run",
        "",
        "Nearly all of them, where numbers are decided or data is kept. To measure it again:",
        "",
        "    make coverage",
        "",
        f"The last one ({found['on']}, coverage.py {found['coverage']}) ran `make test` and `make proof`, with their",
        "processes and Ray's workers. Functions that numba compiles are left out: Python's tracer does not see them;",
        "tests check their results.",
        "",
        "| | lines | run | branches | run |",
        "| --- | ---: | ---: | ---: | ---: |",
        _row("code that decides numbers", [own for name, own in files.items() if group(name) == "numbers"]),
        _row("code that decides what is kept", [own for name, own in files.items() if group(name) == "kept"]),
        _row("the rest: commands, reports, figures, messages", [own for name, own in files.items() if group(name) is None]),
        _row("all", list(files.values())),
        "",
        "In the first two groups, every file that is not listed here is run completely. The others, by the reason why some",
        "lines or branches are not:",
        "",
    ]
    of_reason: dict[str, list[str]] = {}
    for name, own in files.items():
        if group(name) is not None and gaps(own):
            of_reason.setdefault(WHY.get(name, ""), []).append(name.removeprefix("jobs/tempscale_jobs/"))
    lines += [f"- {', '.join(names)}: {reason}." for reason, names in of_reason.items()]
    return "\n".join(lines) + "\n"


def _shares(files: list[dict[str, Any]]) -> dict[str, tuple[int, float]]:
    """Lines and branches of some files, and the percentage that is run."""
    counts = {kind: (sum(f[kind] for f in files), sum(f[f"{kind}_run"] for f in files)) for kind in ("lines", "branches")}
    return {kind: (every, 100 * run / max(every, 1)) for kind, (every, run) in counts.items()}


def _row(what: str, files: list[dict[str, Any]]) -> str:
    return f"| {what} | {' | '.join(f'{every:,} | {share:.1f} %' for every, share in _shares(files).values())} |"
