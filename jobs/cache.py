"""Embeddings by text, found by content, so that the next night embeds only what is new. An accelerator: no run needs it.

    CACHE/KEY/key.json                       what decides an embedding: model, temperature, role, window, precision
    CACHE/KEY/bucket-17/NAME.parquet         texts whose content digest begins with one of four bytes

A bucket is read once a run, and only added to: names follow from the contents, so that two runs at once, or one run
twice, leave what one leaves. What is found is copied into the run's own texts/; the rest becomes shards of its own.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs import actor, schema
from jobs.corpus import regroup
from jobs.engine import Cluster, results
from jobs.runs import Model, Run
from jobs.storage import Storage
from tempscale.temperature import Temperature

BUCKETS = 64
KEY = "key.json"
_FORMAT = 1
_TEXTS_OF_A_TASK, _PARTS_OF_A_TASK = 262_144, 64


def key(run: Run, model: Model, temperature: Temperature, role: str = actor.ROLE) -> dict[str, Any]:
    """What decides the embedding of a text, but for the text."""
    return {
        "format": _FORMAT, "model": model.fingerprint, "temperature": temperature.canonical,
        "role": role if temperature.roles else None, "max_length": model.max_length, "long": run.config.embedding.long,
        "precision": run.config.embedding.precision, "max_characters": run.config.corpus.max_characters,
    }  # fmt: skip


def folder(values: dict[str, Any]) -> str:
    """The folder of a key."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def bucket(content_sha: str) -> int:
    """The bucket of a text: the first six bits of its digest."""
    return int(content_sha[:2], 16) // (256 // BUCKETS)


def look_up(run: Run, cluster: Cluster, model: Model, index: dict[str, Any], role: str = actor.ROLE) -> dict[str, Any]:
    """Copy the embeddings that the cache has under every temperature into texts/; shards of the other texts.

    Returns:
        `shards`, as in `index`, of the texts to embed, and `found`, the number of texts that need not be.

    Raises:
        IncompleteRun: a task failed for good.
    """
    import ray

    name = f"partials/cache/model={model.label}/plan.json"
    if run.config.execution.cache is None:
        return {"shards": index["shards"], "found": 0}
    if run.storage.exists(name):
        plan: dict[str, Any] = run.storage.read_json(name)
        return plan
    root = Storage(run.config.execution.cache).root
    keys = [folder(key(run, model, t, role)) for t in run.temperatures]
    places = [run.place("texts", model, t) for t in run.temperatures]
    tasks = min(BUCKETS, -(-index["analysed"] // _TEXTS_OF_A_TASK))
    names, task = [shard["name"] for shard in index["shards"]], ray.remote(_look_up)
    split = np.array_split(np.arange(BUCKETS), tasks)
    submit = lambda k: task.remote(run.storage, root, keys, places, names, split[k].tolist(), k)  # noqa: E731
    missing = dict(results(cluster, submit, range(tasks)))
    absent = np.concatenate([missing[k] for k in range(tasks)])
    found = index["analysed"] - len(absent)
    shards = index["shards"]
    if found:
        shards = regroup(run.storage, run.config, names, absent, f"shards/model={model.label}")
        note = f"{model.label}: {found} of {index['analysed']} texts from the cache, whose last digits may differ"
        run.storage.write_json(f"partials/exceptions/model={model.label}/cache.json", note)
    plan = {"shards": shards, "found": found}
    run.storage.write_json(name, plan)
    return plan


def _look_up(
    storage: Storage, root: str, keys: list[str], places: list[str], shards: list[str], buckets: list[int], number: int
) -> np.ndarray:
    """Leave the texts of some buckets that every key has, a part a temperature; (shard, row) of the others."""
    columns = ["text_id", "content_sha", "cut"]
    own: list[tuple[int, int, str, str, bool]] = []
    wanted = set(buckets)
    for shard, name in enumerate(shards):
        values = [column.to_pylist() for column in storage.read_table(name, columns).columns]
        own += [(shard, row, *text) for row, text in enumerate(zip(*values, strict=True)) if bucket(text[1]) in wanted]
    store = Storage(root)
    cached = [_read(store, place, buckets, {text[3] for text in own}) for place in keys]
    known = set.intersection(*({*table.column("content_sha").to_pylist()} for table in cached))
    hits = [text for text in own if text[3] in known]
    for place, table in zip(places, cached, strict=True):
        if hits:
            row_of = {sha: row for row, sha in enumerate(table.column("content_sha").to_pylist())}
            rows = table.take([row_of[text[3]] for text in hits])
            cut = pa.array([text[4] for text in hits])
            truncated = pc.or_(rows.column("truncated"), cut)
            rows = rows.set_column(rows.schema.get_field_index("truncated"), "truncated", truncated)
            own_columns = {name: rows.column(name) for name in rows.column_names} | {"text_id": [text[2] for text in hits]}
            width = rows.schema.field("embedding").type.list_size
            storage.write_table(f"{place}/part-cached-{number:05d}.parquet", schema.texts(width).build(own_columns))
    return np.array([text[:2] for text in own if text[3] not in known], dtype=np.int64).reshape(-1, 2)


def _read(store: Storage, place: str, buckets: Sequence[int], wanted: set[str]) -> pa.Table:
    """The wanted texts that some buckets of a key hold, each once."""
    tables, seen = [], set[str]()
    for number in buckets:
        for name in store.list(f"{place}/bucket-{number:02d}"):
            try:
                table = store.read_table(name)
            except FileNotFoundError:
                continue  # Another run has just merged or pruned it: what it held is embedded again.
            shas = table.column("content_sha").to_pylist()
            keep = [row for row, sha in enumerate(shas) if sha in wanted and sha not in seen]
            seen.update(shas[row] for row in keep)
            if keep:
                tables.append(table.take(keep))
    return pa.concat_tables(tables) if tables else pa.table({"content_sha": pa.array([], pa.string())})


def remember(run: Run, cluster: Cluster, model: Model, shards: Sequence[dict[str, Any]], role: str = actor.ROLE) -> None:
    """Add the texts that this run embedded to the cache.

    Raises:
        IncompleteRun: a task failed for good.
    """
    import ray

    done = f"partials/cache/model={model.label}/remembered.json"
    if run.config.execution.cache is None or run.storage.exists(done):
        return
    store, task = Storage(run.config.execution.cache), ray.remote(_remember)
    work: list[tuple[list[str], str]] = []
    for temperature in run.temperatures:
        values = key(run, model, temperature, role)
        used = {"name": model.label, "last_used": datetime.datetime.now(datetime.UTC).date().isoformat()}
        store.write_json(f"{folder(values)}/{KEY}", values | used)
        parts = [run.part("texts", model, temperature, number) for number in range(len(shards))]
        work += [(parts[k : k + _PARTS_OF_A_TASK], folder(values)) for k in range(0, len(parts), _PARTS_OF_A_TASK)]
    submit = lambda k: task.remote(run.storage, work[k][0], store.root, work[k][1])  # noqa: E731
    for _ in results(cluster, submit, range(len(work))):
        pass
    run.storage.write_json(done, {"shards": len(shards)})


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
    name = f"{place}/bucket-{number:02d}/{digest}.parquet"
    store.write_table(name, table)
    return name
