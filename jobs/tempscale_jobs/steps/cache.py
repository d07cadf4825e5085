"""A cache of embeddings by the text's content, so that the next night embeds only new texts. No run depends on it.

    CACHE/KEY/key.json                       model, temperature, role, window, precision: everything but the text
    CACHE/KEY/bucket-017/NAME.parquet        texts whose content digest begins with the byte 17

A run reads each bucket once (see `lookup`) and only adds files. A file's name follows from its contents, so several runs, or
one run twice, write the same files as one run.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.sections import Encoding
from tempscale_jobs.runs.folder import Model
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.scope import Scope
from tempscale_jobs.tables.audit import texts
from tempscale_jobs.tables.parts import matrix
from tempscale_jobs.urls import reason
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import results

BUCKETS = 256
KEY = "key.json"
_FORMAT = 1
_OF_THE_RUN = ("text_id", "document", "source_row", "groups")
"""Columns of texts/ that a cache does not have: they depend on the corpus."""
_TOLERANCE = 1e-3
"""The largest distance of an embedding's norm from 1, and between entries of one text: bfloat16 changes them by less."""
_PARTS_OF_A_TASK = 64
"""Parts that one task adds."""


@dataclass(frozen=True)
class Cache:
    """The cache of a run, and the settings that an embedding depends on, except text, model and temperature."""

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
    # Only if they are used, so that no other key changes.
    if prompt := model.prompt(cache.role):
        values["prompt"] = prompt
    return values | {name: True for name in ("compiled", "packed") if getattr(cache.encoding, name)}


def _computed_in(precision: str, gpu: bool) -> str:
    """The precision in a key; a GPU rounds its weights to bfloat16, a CPU (and version 0.2.0 on a GPU) casts them."""
    return "bfloat16 weights" if gpu and precision == "bfloat16" else precision


def folder(values: dict[str, Any]) -> str:
    """The name of the folder of a key."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def bucket(content_sha: str) -> int:
    """The bucket of a text: the first byte of its digest."""
    return int(content_sha[:2], 16)


class CachedTexts(NamedTuple):
    """The wanted texts that some buckets of a cache have."""

    texts: pa.Table
    """Each once."""
    ignored: Counter[str]
    """The number of unused files, and of unused entries of wanted texts, by reason."""


def cached_texts(store: Storage, place: str, buckets: Sequence[int], wanted: set[str], dim: int) -> CachedTexts:
    """The wanted texts in some buckets of a key, each once; invalid files and entries are ignored."""
    schema, ignored, digests = columns(dim), Counter[str](), pa.array(sorted(wanted), pa.string())
    tables = [schema.empty_table()]
    for number in buckets:
        for name in _listed(store, f"{place}/bucket-{number:03d}"):
            try:
                table = store.read_table(name)
            except Exception:  # Every storage has its own exceptions.
                ignored["files cannot be read"] += 1  # Merged by another process, damaged, or not from a cache.
                continue
            if not table.schema.equals(schema):
                ignored["files have other columns or dimensions"] += 1
                continue
            table = table.filter(pc.is_in(table.column("content_sha"), digests))
            good = _usable(table)
            if not good.all():
                ignored["entries are no unit vectors with their figures"] += int((~good).sum())
            tables.append(table.filter(pa.array(good)))
    entries, conflicts = _each_once(pa.concat_tables(tables).combine_chunks())
    if conflicts:
        ignored["texts have entries that differ"] += conflicts
    return CachedTexts(entries, ignored)


def columns(dim: int) -> pa.Schema:
    """The columns of an entry: those of texts/ without id, document and place."""
    whole = texts(dim).schema()
    return pa.schema([field for field in whole if field.name not in _OF_THE_RUN])


def _usable(table: pa.Table) -> np.ndarray:
    """Which entries are finite unit vectors whose figures are finite."""
    good = np.ones(table.num_rows, bool)
    if not table.num_rows:
        return good
    for name in table.column_names:
        good &= ~table.column(name).is_null().to_numpy()
    for name in ("mean_norm", "spread", "within_cosine"):
        good &= np.isfinite(table.column(name).fill_null(float("nan")).to_numpy())
    norms = np.full(table.num_rows, np.nan)
    norms[good] = np.linalg.norm(matrix(table.filter(pa.array(good)), "embedding").astype(np.float64), axis=1)
    return np.asarray(good & (np.abs(norms - 1) <= _TOLERANCE))


def _each_once(table: pa.Table) -> tuple[pa.Table, int]:
    """The first entry of each text, without texts whose entries differ, and the number of the latter."""
    first, conflicts = dict[str, int](), set[str]()
    vectors = matrix(table, "embedding") if table.num_rows else None
    for row, sha in enumerate(table.column("content_sha").to_pylist()):
        at = first.setdefault(sha, row)
        # The same text in another micro-batch has other last digits.
        if at != row and vectors is not None and np.abs(vectors[at] - vectors[row]).max() > _TOLERANCE:
            conflicts.add(sha)
    return table.take(pa.array([row for sha, row in first.items() if sha not in conflicts], pa.int64())), len(conflicts)


def is_foreign(store: Storage, values: dict[str, Any]) -> bool:
    """Whether the folder of a key has a readable key.json of other settings."""
    name = f"{folder(values)}/{KEY}"
    try:
        written = store.read_json(name)
    except Exception:  # Every storage has its own exceptions.
        return False
    return not isinstance(written, dict) or {key: written.get(key) for key in values} != values


def _listed(store: Storage, place: str) -> list[str]:
    """The files of a bucket; none where it cannot be listed."""
    try:
        return store.list(place)
    except Exception:  # Every storage has its own exceptions.
        return []


def add_texts(scope: Scope, cache: Cache, parts: int) -> str | None:
    """Add this run's texts to the cache; return a sentence instead of raising, because the run does not need the cache."""
    run, cluster, model = scope.run, scope.cluster, scope.model
    marker = f"{run.place('partials/cache', model)}/remembered.json"
    if run.storage.exists(marker):
        return None
    try:
        store = Storage(cache.root)
        keys = [key(cache, cluster, model, t) for t in run.temperatures]
        for values in keys:
            if is_foreign(store, values):
                return (
                    f"nothing was added to the cache: '{folder(values)}/{KEY}' has other settings; remove it if it is yours"
                )
        work: list[tuple[Any, ...]] = []
        for temperature, values in zip(run.temperatures, keys, strict=True):
            names = [run.part("texts", model, temperature, number) for number in range(parts)]
            groups = [names[k : k + _PARTS_OF_A_TASK] for k in range(0, parts, _PARTS_OF_A_TASK)]
            work += [(run.storage, group, store.root, folder(values)) for group in groups]
        results(cluster, add_parts, work, "parts for the cache")
        # Written last, so that texts always have a key, even if the cache is pruned at the same time.
        used = {"name": model.label, "last_used": datetime.datetime.now(datetime.UTC).date().isoformat()}
        for values in keys:
            store.write_json(f"{folder(values)}/{KEY}", values | used)
    except Exception as error:  # Every storage has its own exceptions.
        return f"the cache could not be written: {reason(error, cache.root)}"
    run.storage.write_json(marker, {"shards": parts})
    return None


def add_parts(storage: Storage, parts: list[str], root: str, place: str) -> None:
    """Add the texts of some parts to their buckets."""
    table = pa.concat_tables([storage.read_table(name) for name in parts]).combine_chunks()
    shas = table.column("content_sha").to_pylist()
    first = {sha: row for row, sha in reversed(list(enumerate(shas)))}
    rows: dict[int, list[int]] = {}
    for sha in sorted(first):
        rows.setdefault(bucket(sha), []).append(first[sha])
    kept = [name for name in table.column_names if name not in _OF_THE_RUN]
    for number, chosen in rows.items():
        write_bucket(Storage(root), place, number, table.select(kept).take(chosen))


def write_bucket(store: Storage, place: str, number: int, table: pa.Table) -> str:
    """Write texts, sorted by digest, as a file of a bucket; return its name, which follows from the texts."""
    digest = hashlib.sha256("".join(table.column("content_sha").to_pylist()).encode()).hexdigest()[:24]
    name = f"{place}/bucket-{number:03d}/{digest}.parquet"
    store.write_table(name, table)
    return name
