"""The file of results of one machine: each benchmark's rows, with the date and the versions of their measurement."""

from __future__ import annotations

import json
import os
import platform
import re
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch", "transformers", "sentence-transformers", "scikit-learn", "numpy", "numba", "scipy", "tokenizers", "tokie",
    "ray", "POT", "faiss-cpu", "mteb",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """The processor, cores, system and GPU of this machine."""
    import torch

    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def processor() -> str:
    """The processor's name."""
    names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def measured() -> dict[str, str]:
    """Today's date in UTC as `on`, and the installed versions by package."""
    import tempscale

    versions = {"tempscale": tempscale.__version__, "python": platform.python_version()}
    return {"on": datetime.now(UTC).date().isoformat()} | versions | {package: _version(package) for package in PACKAGES}


def _version(package: str) -> str:
    """A package's version; POT and faiss are optional."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def file_of(folder: Path, machine: dict[str, Any]) -> Path:
    """The path of a machine's results, named by its processor and GPU, and by its cores if that name is taken."""
    gpu = "" if machine["gpu"] == "none" else f" {machine['gpu']}"
    name = re.sub(r"[^a-z0-9]+", "-", f"{machine['processor']}{gpu}".lower()).strip("-")
    file = folder / f"{name}.json"
    if file.exists() and json.loads(file.read_text("utf-8"))["machine"]["cores"] != machine["cores"]:
        return folder / f"{name}-{machine['cores']}-cores.json"
    return file


def put(file: Path, machine: dict[str, Any], benchmark: str, rows: list[dict[str, Any]], measured: dict[str, str]) -> None:
    """Replace one benchmark's rows and versions; those of the others do not change."""
    found = json.loads(file.read_text("utf-8")) if file.exists() else {"measured": {}, "results": []}
    others = [row for row in found["results"] if row["benchmark"] != benchmark]
    file.parent.mkdir(exist_ok=True)
    whole = {
        "machine": machine,
        "measured": found.get("measured", {}) | {benchmark: measured},
        "results": others + [{"benchmark": benchmark} | row for row in rows],
    }
    file.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", "utf-8")
