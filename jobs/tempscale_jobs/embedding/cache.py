"""A cache of embeddings by the text's content, so that the next night embeds only new texts. No run depends on it.

    CACHE/KEY/key.json                       what decides an embedding: model, temperature, role, window, precision
    CACHE/KEY/bucket-017/NAME.parquet        texts whose content digest begins with the byte 17

A run reads each bucket once (see `lookup`) and only adds files. A file's name follows from its contents, so two runs at the
same time, or one run twice, write the same files as one run.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import pyarrow as pa

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.sections import Encoding
from tempscale_jobs.errors import Damaged, RunError
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import reason
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.engine import BESIDE_ACTORS, Cluster, results
from tempscale_jobs.workers.slow import Kind

BUCKETS = 256
KEY = "key.json"
_FORMAT = 1
_PARTS_OF_A_TASK = 64
"""Parts that one task adds."""


@dataclass(frozen=True)
class Cache:
    """The cache of a run, with the settings that an embedding depends on besides text, model and temperature."""

    root: str
    encoding: Encoding
    max_characters: int
    role: str = actor.ROLE


def key(cache: Cache, cluster: Cluster, model: Model, temperature: Temperature) -> dict[str, Any]:
    """Everything but the text that an embedding depends on; equal keys give equal embeddings up to the last digits."""
    values = {
        "format": _FORMAT, "model": model.fingerprint, "temperature": temperature.canonical,
        "role": cache.role if temperature.roles else None, "max_length": model.max_length, "long": cache.encoding.long,
        "precision": _computed_in(cache.encoding.precision, bool(cluster.gpus)), "max_characters": cache.max_characters,
        "device": "gpu" if cluster.gpus else "cpu",
        "versions": {name: ".".join(metadata.version(name).split(".")[:2]) for name in ("torch", "transformers")},
    }  # fmt: skip
    # Only where they are used, so that no other key changes.
    if prompt := model.prompt(cache.role):
        values["prompt"] = prompt
    return values | {name: True for name in ("compiled", "packed") if getattr(cache.encoding, name)}


def _computed_in(precision: str, gpu: bool) -> str:
    """A GPU holds its weights in bfloat16, a CPU casts them as it multiplies; version 0.2.0's GPUs cast them too."""
    return "bfloat16 weights" if gpu and precision == "bfloat16" else precision


def folder(values: dict[str, Any]) -> str:
    """The name of the folder of a key."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def bucket(content_sha: str) -> int:
    """The bucket of a text: the first byte of its digest."""
    return int(content_sha[:2], 16)


def known(store: Storage, place: str, buckets: Sequence[int], wanted: set[str]) -> pa.Table:
    """The wanted texts in some buckets of a key, each once."""
    tables, seen = [], set[str]()
    for number in buckets:
        for name in _listed(store, f"{place}/bucket-{number:03d}"):
            try:
                table = store.read_table(name)
            except (OSError, Damaged):
                continue  # Merged by another process, or damaged: its texts are embedded again.
            shas = table.column("content_sha").to_pylist()
            keep = [row for row, sha in enumerate(shas) if sha in wanted and sha not in seen]
            seen.update(shas[row] for row in keep)
            if keep:
                tables.append(table.take(keep))
    return pa.concat_tables(tables) if tables else pa.table({"content_sha": pa.array([], pa.string())})


def _listed(store: Storage, place: str) -> list[str]:
    """The files of a bucket; none where it cannot be listed."""
    try:
        return store.list(place)
    except OSError:
        return []


def remember(run: Run, cluster: Cluster, model: Model, cache: Cache, parts: int) -> str | None:
    """Add this run's texts to the cache; return a sentence if that failed, because the run goes on without it."""
    import ray

    done = f"{run.place('partials/cache', model)}/remembered.json"
    if run.storage.exists(done):
        return None
    try:
        store, task = (
            Storage(cache.root),
            ray.remote(**BESIDE_ACTORS)(_remember),
        )  # The model's actors hold the CPUs.
        keys = [key(cache, cluster, model, t) for t in run.temperatures]
        work: list[tuple[list[str], str]] = []
        for temperature, values in zip(run.temperatures, keys, strict=True):
            names = [run.part("texts", model, temperature, number) for number in range(parts)]
            work += [(names[k : k + _PARTS_OF_A_TASK], folder(values)) for k in range(0, parts, _PARTS_OF_A_TASK)]
        submit = lambda k: task.remote(run.storage, work[k][0], store.root, work[k][1])  # noqa: E731
        for _ in results(cluster, submit, range(len(work)), ahead=1, kind=Kind("parts for the cache")):
            pass
        # Written last, so that no texts stay without their key if the cache is pruned at the same time.
        used = {"name": model.label, "last_used": datetime.datetime.now(datetime.UTC).date().isoformat()}
        for values in keys:
            store.write_json(f"{folder(values)}/{KEY}", values | used)
    except (RunError, OSError) as error:
        return f"the cache could not be added to: {reason(error)}"
    run.storage.write_json(done, {"shards": parts})
    return None


def _remember(storage: Storage, parts: list[str], root: str, place: str) -> None:
    """Add the texts of some parts to their buckets."""
    table = pa.concat_tables([storage.read_table(name) for name in parts]).combine_chunks()
    shas = table.column("content_sha").to_pylist()
    first = {sha: row for row, sha in reversed(list(enumerate(shas)))}
    rows: dict[int, list[int]] = {}
    for sha in sorted(first):
        rows.setdefault(bucket(sha), []).append(first[sha])
    for number, chosen in rows.items():
        write_bucket(Storage(root), place, number, table.drop_columns(["text_id", "document", "source_row"]).take(chosen))


def write_bucket(store: Storage, place: str, number: int, table: pa.Table) -> str:
    """Write texts, sorted by digest, as a file of a bucket; return its name, which follows from the texts."""
    digest = hashlib.sha256("".join(table.column("content_sha").to_pylist()).encode()).hexdigest()[:24]
    name = f"{place}/bucket-{number:03d}/{digest}.parquet"
    store.write_table(name, table)
    return name
