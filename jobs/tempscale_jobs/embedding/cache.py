"""A cache of embeddings by the text's content, so that the next night embeds only new texts. No run depends on it.

    CACHE/KEY/key.json                       what decides an embedding: model, temperature, role, window, precision
    CACHE/KEY/bucket-017/NAME.parquet        texts whose content digest begins with the byte 17

A run reads each bucket once and only adds files. A file's name follows from its contents, so two runs at the same time, or
one run twice, write the same files as one run. Cached texts are copied into the run's texts/; the others get new shards.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale.model.checkpoint import first_line
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.audit import Embedding
from tempscale_jobs.config.sections import Corpus, Encoding
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.shards import Texts, regroup
from tempscale_jobs.errors import RunError
from tempscale_jobs.runs.folder import EXCEPTIONS, Model, Run, cached
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import texts
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.engine import BESIDE_ACTORS, Cluster, results

BUCKETS = 256
KEY = "key.json"
_FORMAT = 1
_TEXTS_OF_A_TASK, _PARTS_OF_A_TASK = 32_768, 64
"""Texts that one task looks up (50 MB of embeddings at 384 dimensions), and parts that one task adds."""


@dataclass(frozen=True)
class Cache:
    """The cache of a run, with the settings that an embedding depends on besides text, model and temperature."""

    root: str
    encoding: Encoding
    max_characters: int
    role: str = actor.ROLE


def key(cache: Cache, cluster: Cluster, model: Model, temperature: Temperature) -> dict[str, Any]:
    """Everything but the text that an embedding depends on; equal keys give equal embeddings up to the last digits."""
    return {
        "format": _FORMAT, "model": model.fingerprint, "temperature": temperature.canonical,
        "role": cache.role if temperature.roles else None, "max_length": model.max_length, "long": cache.encoding.long,
        "precision": cache.encoding.precision, "max_characters": cache.max_characters,
        "device": "gpu" if cluster.gpus else "cpu",
        "versions": {name: ".".join(metadata.version(name).split(".")[:2]) for name in ("torch", "transformers")},
    } | ({"prompt": prompt} if (prompt := model.prompt(cache.role)) else {})  # fmt: skip


def folder(values: dict[str, Any]) -> str:
    """The name of the folder of a key."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def bucket(content_sha: str) -> int:
    """The bucket of a text: the first byte of its digest."""
    return int(content_sha[:2], 16)


@dataclass(frozen=True)
class Plan:
    """The result of a look-up, kept so that a resumed run embeds the same texts even if the cache has changed."""

    shards: tuple[Shard, ...]
    """The texts to embed."""
    found: int = 0
    """Texts copied from the cache."""


def look_up(
    run: Run, cluster: Cluster, model: Model, cache: Cache | None, index: Index, corpus: Corpus, sizes: Embedding
) -> Plan:
    """Copy the texts that the cache has under every temperature into texts/; write and return shards of the others."""
    name = planned(run, model)
    if run.storage.exists(name):
        data = run.storage.read_json(name)
        return Plan(
            index.shards if data["shards"] is None else tuple(Shard(**shard) for shard in data["shards"]), data["found"]
        )
    for temperature in run.temperatures:  # Parts of an unfinished look-up.
        run.storage.remove(run.place("texts", model, temperature))
    plan = Plan(index.shards)
    if cache is not None:
        absent = _copied(run, cluster, model, cache, index)
        if len(absent) < index.analysed:
            shards = regroup(run.storage, Texts(corpus, sizes, ""), index.shards, absent, run.place("shards", model))
            plan = Plan(shards, index.analysed - len(absent))
            note = f"{model.label}: {plan.found} of {index.analysed} texts from the cache, whose last digits may differ"
            run.storage.write_json(f"{run.place(EXCEPTIONS, model)}/cache.json", note)
    run.storage.write_json(name, asdict(plan))
    return plan


def planned(run: Run, model: Model) -> str:
    """The file with what a model embeds, and what came from the cache."""
    return f"{run.place('partials/cache', model)}/plan.json"


def without(run: Run, model: Model) -> None:
    """Keep that a model embeds all shards, whether or not a later session has a cache."""
    if not run.storage.exists(planned(run, model)):
        run.storage.write_json(planned(run, model), {"shards": None, "found": 0})


def _copied(run: Run, cluster: Cluster, model: Model, cache: Cache, index: Index) -> np.ndarray:
    """Copy the texts that the cache has; return (shard, row) of the others."""
    import ray

    tables = []
    for number, shard in enumerate(index.shards):
        table = run.storage.read_table(shard.name, ["text_id", "content_sha", "cut", "document"])
        place = {"shard": pa.array(np.full(table.num_rows, number)), "row": pa.array(np.arange(table.num_rows))}
        tables.append(pa.table(place | {name: table.column(name) for name in table.column_names}))
    wanted = pa.concat_tables(tables)
    # Hexadecimal digits sort like numbers, so a slice of the sorted digests is a range of buckets.
    order = [("content_sha", "ascending"), ("shard", "ascending"), ("row", "ascending")]
    wanted = wanted.take(pc.sort_indices(wanted, order))
    heads = np.array([bucket(sha) for sha in pc.utf8_slice_codeunits(wanted.column("content_sha"), 0, 2).to_pylist()])
    starts = np.searchsorted(heads, np.arange(BUCKETS + 1))
    groups, first = [], 0
    for last in range(1, BUCKETS + 1):
        if last == BUCKETS or starts[last + 1] - starts[first] > _TEXTS_OF_A_TASK:
            groups.append((first, last))
            first = last
    keys = [folder(key(cache, cluster, model, t)) for t in run.temperatures]
    places, root = [run.place("texts", model, t) for t in run.temperatures], Storage(cache.root).root
    task = ray.remote(**BESIDE_ACTORS)(_look_up)

    def submit(number: int) -> Any:
        begin, end = groups[number]
        own = wanted.slice(starts[begin], starts[end] - starts[begin]).combine_chunks()
        return task.remote(run.storage, root, keys, places, own, list(range(begin, end)), number)

    missing = dict(results(cluster, submit, range(len(groups)), ahead=1))
    return np.concatenate([missing[k] for k in range(len(groups))])


def _look_up(
    storage: Storage, root: str, keys: list[str], places: list[str], wanted: pa.Table, buckets: list[int], number: int
) -> np.ndarray:
    """Write the texts that every key has, one part for each temperature; return (shard, row) of the others."""
    store, shas = Storage(root), wanted.column("content_sha").to_pylist()
    known = set(shas)
    tables = []
    for place in keys:
        tables.append(_read(store, place, buckets, known))
        known &= set(tables[-1].column("content_sha").to_pylist())
    hit = np.array([sha in known for sha in shas], dtype=bool)
    hits = wanted.filter(pa.array(hit))
    for table, target in zip(tables, places, strict=True):
        if not known:
            break
        row_of = {sha: row for row, sha in enumerate(table.column("content_sha").to_pylist())}
        rows = table.take([row_of[sha] for sha in hits.column("content_sha").to_pylist()])
        truncated = pc.or_(rows.column("truncated"), hits.column("cut"))
        columns = {name: rows.column(name) for name in rows.column_names}
        columns |= {"truncated": truncated, "text_id": hits.column("text_id"), "document": hits.column("document")}
        width = rows.schema.field("embedding").type.list_size
        storage.write_table(cached(target, number), texts(width).build(columns))
    absent = wanted.filter(pa.array(~hit))
    return np.stack([absent.column(name).to_numpy() for name in ("shard", "row")], axis=1)


def _read(store: Storage, place: str, buckets: Sequence[int], wanted: set[str]) -> pa.Table:
    """The wanted texts in some buckets of a key, each once."""
    tables, seen = [], set[str]()
    for number in buckets:
        for name in _listed(store, f"{place}/bucket-{number:03d}"):
            try:
                table = store.read_table(name)
            except (OSError, pa.ArrowException):
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
        for _ in results(cluster, submit, range(len(work)), ahead=1):
            pass
        # Written last, so that no texts stay without their key if the cache is pruned at the same time.
        used = {"name": model.label, "last_used": datetime.datetime.now(datetime.UTC).date().isoformat()}
        for values in keys:
            store.write_json(f"{folder(values)}/{KEY}", values | used)
    except (RunError, OSError) as error:
        return f"the cache could not be added to: {first_line(error)}"
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
        write_bucket(Storage(root), place, number, table.drop_columns(["text_id", "document"]).take(chosen))


def write_bucket(store: Storage, place: str, number: int, table: pa.Table) -> str:
    """Write texts, sorted by digest, as a file of a bucket; return its name, which follows from the texts."""
    digest = hashlib.sha256("".join(table.column("content_sha").to_pylist()).encode()).hexdigest()[:24]
    name = f"{place}/bucket-{number:03d}/{digest}.parquet"
    store.write_table(name, table)
    return name
