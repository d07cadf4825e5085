"""Record the machines and the kinds of processor of a run."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from tempscale_jobs.runs.storage import Storage

BELOW = ("queries", "verify", "results")
"""Folders of a run whose files are of the same kinds as its own: of queries, vectors that are verified, served results."""
PROCESSORS = "partials/processors"
"""The kinds of processor that worked on a run, by step; the last digits depend on them."""


def processor() -> str:
    """The name of this machine's processor, which the last bits of a product depend on."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{platform.machine()} {names[0] if names else platform.processor()}".strip()


@lru_cache(maxsize=1)
def machine() -> str:
    """A unique name of this machine or container, inside which process numbers are unique."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts)


def on_this_machine(state: object) -> str:
    """A digest of the state of files on this machine, which differs on other machines."""
    return hashlib.sha256(repr((machine(), state)).encode()).hexdigest()


def note_processor(storage: Storage, name: str, step: str) -> None:
    """Record a kind of processor that works on a step of the run."""
    file = f"{PROCESSORS}/{step}/{hashlib.sha256(name.encode()).hexdigest()[:12]}.json"
    if not storage.exists(file):
        storage.write_json(file, name)


def processors(storage: Storage, of_driver: set[str]) -> list[str]:
    """A sentence for each step on which several kinds of processor worked."""
    sentences = []
    for step, initial in (("embedded", set[str]()), ("computed", of_driver)):
        places = [PROCESSORS, *(f"{below}/{PROCESSORS}" for below in BELOW)]
        files = [name for place in places for name in storage.list(f"{place}/{step}")]
        names = initial | {storage.read_json(name) for name in files}
        if len(names) > 1:
            sentences.append(f"{step} on {len(names)} kinds of processor: {'; '.join(sorted(names))}")
    return sentences
