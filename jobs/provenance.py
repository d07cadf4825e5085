"""What a run may say of where it came from: kinds of processors, and no secrets."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

from jobs.storage import Storage
from jobs.urls import shown

PROCESSORS = "partials/processors"
"""What kinds worked on a run, by step: each has last digits of its own."""


def processor() -> str:
    """What decides the last bits of a product on this machine."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{platform.machine()} {names[0] if names else platform.processor()}".strip()


def note_processor(storage: Storage, name: str, step: str) -> None:
    """Leave a record of what kind of processor works on a step of the run."""
    file = f"{PROCESSORS}/{step}/{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"
    if not storage.exists(file):
        storage.write_json(file, name)


def processors(storage: Storage, of_driver: set[str]) -> list[str]:
    """A sentence for each step that several kinds of processor worked on."""
    found = []
    for step, own in (("embedded", set[str]()), ("computed", of_driver)):
        noted = [*storage.list(f"{PROCESSORS}/{step}"), *storage.list(f"queries/{PROCESSORS}/{step}")]
        names = own | {storage.read_json(name) for name in noted}
        if len(names) > 1:
            found.append(f"{step} on {len(names)} kinds of processor: {'; '.join(sorted(names))}")
    return found


def hide_secrets(config: dict[str, Any], reads: str) -> None:
    """Leave out what a source's URL may hold that is nobody else's business."""
    for section, name in (("gate", "baseline"), ("record", "history")):
        if isinstance(config.get(section), dict) and config[section][name] is not None:
            config[section][name] = shown(config[section][name])
    if isinstance(config.get("audits"), list):
        config["audits"] = [shown(folder) for folder in config["audits"]]
    sections: list[Any] = []
    for key in dict.fromkeys((reads, "corpus", "queries")):
        sections += config[key] if isinstance(config.get(key), list) else [config.get(key)]
    for section in sections:
        for name in ("source", "corpus", "queries", "qrels"):
            if isinstance(section, dict) and isinstance(section.get(name), str):
                section[name] = shown(section[name])
