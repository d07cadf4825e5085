"""Embeddings by text, found by content, so that the next night embeds only what is new. An accelerator: no run needs it.

    CACHE/KEY/key.json                       what decides an embedding: model, temperature, role, window, precision
    CACHE/KEY/bucket-017/NAME.parquet        texts whose content digest begins with the byte 17

A bucket is read once a run, and only added to: names follow from the contents, so that two runs at once, or one run
twice, leave what one leaves. What is found is copied into the run's own texts/; the rest becomes shards of its own.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs import actor, schema
from jobs.corpus import regroup
from jobs.engine import Cluster, results
from jobs.errors import RunError
from jobs.runs import EXCEPTIONS, Model, Run
from jobs.storage import Storage
from tempscale.checkpoint import first_line
from tempscale.temperature import Temperature

BUCKETS = 256
KEY = "key.json"
_FORMAT = 1
_TEXTS_OF_A_TASK, _PARTS_OF_A_TASK = 32_768, 64
"""50 MB of embeddings at 384 dimensions."""


def key(run: Run, cluster: Cluster, model: Model, temperature: Temperature, role: str = actor.ROLE) -> dict[str, Any]:
    """What decides the embedding of a text, but for the text, to its last digits but one."""
    return {
        "format": _FORMAT, "model": model.fingerprint, "temperature": temperature.canonical,
        "role": role if temperature.roles else None, "max_length": model.max_length, "long": run.config.embedding.long,
        "precision": run.config.embedding.precision, "max_characters": run.config.corpus.max_characters,
        "device": "gpu" if cluster.gpus else "cpu",
        "versions": {name: ".".join(metadata.version(name).split(".")[:2]) for name in ("torch", "transformers")},
    }  # fmt: skip


def folder(values: dict[str, Any]) -> str:
    """The folder of a key."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def bucket(content_sha: str) -> int:
    """The bucket of a text: the first byte of its digest."""
    return int(content_sha[:2], 16)


def look_up(run: Run, cluster: Cluster, model: Model, index: dict[str, Any], role: str = actor.ROLE) -> dict[str, Any]:
    """Copy the embeddings that the cache has under every temperature into texts/; shards of the other texts.

    What was found is kept: a run that goes on embeds the same texts, whatever became of the cache.

    Returns:
        `shards`, as in `index`, of the texts to embed, and `found`, the number of texts that need not be.

    Raises:
        IncompleteRun: a task failed for good.
    """
    name = f"partials/cache/model={model.label}/plan.json"
    if run.storage.exists(name):
        plan: dict[str, Any] = run.storage.read_json(name)
        return plan
    for temperature in run.temperatures:  # Of a look-up that did not come to its end.
        run.storage.remove(run.place("texts", model, temperature))
    plan = {"shards": index["shards"], "found": 0}
    if run.config.execution.cache is not None:
        absent = _copied(run, cluster, model, index, role)
        if len(absent) < index["analysed"]:
            shards = regroup(
                run.storage, run.config, [shard["name"] for shard in index["shards"]], absent, f"shards/model={model.label}"
            )
            plan = {"shards": shards, "found": index["analysed"] - len(absent)}
            note = (
                f"{model.label}: {plan['found']} of {index['analysed']} texts from the cache, whose last digits may differ"
            )
            run.storage.write_json(f"{EXCEPTIONS}/model={model.label}/cache.json", note)
    run.storage.write_json(name, plan)
    return plan


def _copied(run: Run, cluster: Cluster, model: Model, index: dict[str, Any], role: str) -> np.ndarray:
    """Copy what the cache has; (shard, row) of the texts that it has not."""
    import ray

    tables = []
    for number, shard in enumerate(index["shards"]):
        table = run.storage.read_table(shard["name"], ["text_id", "content_sha", "cut"])
        place = {"shard": pa.array(np.full(table.num_rows, number)), "row": pa.array(np.arange(table.num_rows))}
        tables.append(pa.table(place | {name: table.column(name) for name in table.column_names}))
    asked = pa.concat_tables(tables)
    # Hexadecimal digits sort as their numbers do: a slice of the sorted digests is a range of buckets.
    asked = asked.take(pc.sort_indices(asked, [("content_sha", "ascending"), ("shard", "ascending"), ("row", "ascending")]))
    heads = np.array([bucket(sha) for sha in pc.utf8_slice_codeunits(asked.column("content_sha"), 0, 2).to_pylist()])
    starts = np.searchsorted(heads, np.arange(BUCKETS + 1))
    groups, first = [], 0
    for last in range(1, BUCKETS + 1):
        if last == BUCKETS or starts[last + 1] - starts[first] > _TEXTS_OF_A_TASK:
            groups.append((first, last))
            first = last
    keys = [folder(key(run, cluster, model, t, role)) for t in run.temperatures]
    places, root = [run.place("texts", model, t) for t in run.temperatures], Storage(str(run.config.execution.cache)).root
    task = ray.remote(_look_up)

    def submit(number: int) -> Any:
        begin, end = groups[number]
        own = asked.slice(starts[begin], starts[end] - starts[begin]).combine_chunks()
        return task.remote(run.storage, root, keys, places, own, list(range(begin, end)), number)

    missing = dict(results(cluster, submit, range(len(groups)), ahead=1))
    return np.concatenate([missing[k] for k in range(len(groups))])


def _look_up(
    storage: Storage, root: str, keys: list[str], places: list[str], asked: pa.Table, buckets: list[int], number: int
) -> np.ndarray:
    """Leave the texts that every key has, a part a temperature; (shard, row) of the others."""
    store, shas = Storage(root), asked.column("content_sha").to_pylist()
    known = set(shas)
    tables = []
    for place in keys:
        tables.append(_read(store, place, buckets, known))
        known &= set(tables[-1].column("content_sha").to_pylist())
    hit = np.array([sha in known for sha in shas], dtype=bool)
    hits = asked.filter(pa.array(hit))
    for table, target in zip(tables, places, strict=True):
        if not known:
            break
        row_of = {sha: row for row, sha in enumerate(table.column("content_sha").to_pylist())}
        rows = table.take([row_of[sha] for sha in hits.column("content_sha").to_pylist()])
        truncated = pc.or_(rows.column("truncated"), hits.column("cut"))
        columns = {name: rows.column(name) for name in rows.column_names}
        columns |= {"truncated": truncated, "text_id": hits.column("text_id")}
        width = rows.schema.field("embedding").type.list_size
        storage.write_table(f"{target}/part-cached-{number:05d}.parquet", schema.texts(width).build(columns))
    absent = asked.filter(pa.array(~hit))
    return np.stack([absent.column(name).to_numpy() for name in ("shard", "row")], axis=1)


def _read(store: Storage, place: str, buckets: Sequence[int], wanted: set[str]) -> pa.Table:
    """The wanted texts that some buckets of a key hold, each once."""
    tables, seen = [], set[str]()
    for number in buckets:
        for name in _listed(store, f"{place}/bucket-{number:03d}"):
            try:
                table = store.read_table(name)
            except (OSError, pa.ArrowException):
                continue  # Merged by another process, or damaged: what it held is embedded again.
            shas = table.column("content_sha").to_pylist()
            keep = [row for row, sha in enumerate(shas) if sha in wanted and sha not in seen]
            seen.update(shas[row] for row in keep)
            if keep:
                tables.append(table.take(keep))
    return pa.concat_tables(tables) if tables else pa.table({"content_sha": pa.array([], pa.string())})


def _listed(store: Storage, place: str) -> list[str]:
    """The files of a bucket; none where it cannot be looked into."""
    try:
        return store.list(place)
    except OSError:
        return []


def remember(
    run: Run, cluster: Cluster, model: Model, shards: Sequence[dict[str, Any]], role: str = actor.ROLE
) -> str | None:
    """Add the texts that this run embedded to the cache; a sentence where that failed, which costs the run nothing."""
    import ray

    done = f"partials/cache/model={model.label}/remembered.json"
    if run.config.execution.cache is None or run.storage.exists(done):
        return None
    try:
        store, task = Storage(run.config.execution.cache), ray.remote(_remember)
        keys = [key(run, cluster, model, t, role) for t in run.temperatures]
        work: list[tuple[list[str], str]] = []
        for temperature, values in zip(run.temperatures, keys, strict=True):
            parts = [run.part("texts", model, temperature, number) for number in range(len(shards))]
            work += [(parts[k : k + _PARTS_OF_A_TASK], folder(values)) for k in range(0, len(parts), _PARTS_OF_A_TASK)]
        submit = lambda k: task.remote(run.storage, work[k][0], store.root, work[k][1])  # noqa: E731
        for _ in results(cluster, submit, range(len(work)), ahead=1):
            pass
        # Last: one who prunes meanwhile then leaves no texts without their key.
        used = {"name": model.label, "last_used": datetime.datetime.now(datetime.UTC).date().isoformat()}
        for values in keys:
            store.write_json(f"{folder(values)}/{KEY}", values | used)
    except (RunError, OSError) as error:
        return f"the cache could not be added to: {first_line(error)}"
    run.storage.write_json(done, {"shards": len(shards)})
    return None


def _remember(storage: Storage, parts: list[str], root: str, place: str) -> None:
    """Write the texts of some parts into their buckets."""
    table = pa.concat_tables([storage.read_table(name) for name in parts]).combine_chunks()
    shas = table.column("content_sha").to_pylist()
    first = {sha: row for row, sha in reversed(list(enumerate(shas)))}
    rows: dict[int, list[int]] = {}
    for sha in sorted(first):
        rows.setdefault(bucket(sha), []).append(first[sha])
    for number, chosen in rows.items():
        write_bucket(Storage(root), place, number, table.drop_columns(["text_id"]).take(chosen))


def write_bucket(store: Storage, place: str, number: int, table: pa.Table) -> str:
    """Add texts, ascending by digest, to a bucket under a name that follows from them; returns it."""
    digest = hashlib.sha256("".join(table.column("content_sha").to_pylist()).encode()).hexdigest()[:24]
    name = f"{place}/bucket-{number:03d}/{digest}.parquet"
    store.write_table(name, table)
    return name
