"""Copy what a cache has of a corpus into texts/, and give the other texts new shards.

Digests of contents are exchanged over ranges of buckets, so that no process knows all texts and each bucket is read once:
a task for each group of shards sorts its texts by digest, one for each range of buckets takes its share of all groups and
looks it up, and one for each group writes what is absent of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale_jobs.config.audit import Embedding
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.shards import Texts, rewritten
from tempscale_jobs.embedding.cache import BUCKETS, Cache, folder, key, known
from tempscale_jobs.runs.folder import EXCEPTIONS, Model, Run, cached, of_unit
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import texts
from tempscale_jobs.workers.engine import BESIDE_ACTORS, Cluster, results

_TEXTS_OF_A_GROUP, _TEXTS_OF_A_RANGE = 131_072, 32_768
"""About the texts of a group of shards, and those that one task looks up: 50 MB of embeddings at 384 dimensions."""
_SORTED_ROWS = 16_384
"""Texts of a row group: what a range of buckets does not need of a group of shards is not read."""
_WANTED = ["content_sha", "shard", "row", "text_id", "cut", "document"]


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
        plan = _exchanged(run, cluster, model, cache, index, Texts(corpus, sizes, ""))
        if plan.found:
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


def _exchanged(run: Run, cluster: Cluster, model: Model, cache: Cache, index: Index, contents: Texts) -> Plan:
    """Look all texts of a corpus up."""
    groups, place = _groups(index.shards), run.place("partials/cache", model)
    _done(cluster, _sort, [(run.storage, first, [s.name for s in own], _sorted(first)) for first, own in groups])
    ranges = min(BUCKETS, -(-index.analysed // _TEXTS_OF_A_RANGE))
    cuts = [BUCKETS * k // ranges for k in range(ranges + 1)]
    keys = [folder(key(cache, cluster, model, t)) for t in run.temperatures]
    targets = [run.place("texts", model, t) for t in run.temperatures]
    wanted, root = [_sorted(first) for first, _ in groups], Storage(cache.root).root
    absent = [f"{place}/absent-{k:08d}.parquet" for k in range(ranges)]
    work = [
        (run.storage, root, keys, targets, wanted, range(*between), k, absent[k]) for k, between in enumerate(pairwise(cuts))
    ]
    found = sum(_done(cluster, _look_up, work))
    if not found:
        return Plan(index.shards)
    target = run.place("shards", model)
    rewrite = [(run.storage, contents, first, [s.name for s in own], absent, target) for first, own in groups]
    shards = [Shard(*shard) for own in _done(cluster, _rewrite, rewrite) for shard in own]
    return Plan(tuple(shards), found)


def _groups(shards: Sequence[Shard]) -> list[tuple[int, list[Shard]]]:
    """Consecutive shards of about as many texts as a unit of a source has, each group with the number of its first."""
    groups, texts = list[tuple[int, list[Shard]]](), _TEXTS_OF_A_GROUP
    for number, shard in enumerate(shards):
        if texts >= _TEXTS_OF_A_GROUP:
            groups.append((number, []))
            texts = 0
        groups[-1][1].append(shard)
        texts += shard.texts
    return groups


def _sorted(first: int) -> str:
    """The texts of a group of shards by their contents, the same for all models; `first` is its first shard."""
    return f"{of_unit('contents', first)}.parquet"


def _done(cluster: Cluster, function: Callable[..., Any], work: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of a function of each of these arguments, run as tasks."""
    import ray

    task = ray.remote(**BESIDE_ACTORS)(function)
    found = dict(results(cluster, lambda k: task.remote(*work[k]), range(len(work)), ahead=1))
    return [found[k] for k in range(len(work))]


def _sort(storage: Storage, first: int, names: list[str], target: str) -> None:
    """Write the texts of a group of shards, without what they say, in the order of their contents."""
    if storage.exists(target):
        return
    tables = []
    for number, name in enumerate(names, first):
        table = storage.read_table(name, ["content_sha", "text_id", "cut", "document"])
        table = table.append_column("shard", pa.array(np.full(table.num_rows, number, np.int32)))
        tables.append(table.append_column("row", pa.array(np.arange(table.num_rows, dtype=np.int32))))
    # Hexadecimal digits sort like numbers, so a range of the sorted digests is a range of buckets.
    order = [(name, "ascending") for name in _WANTED[:3]]
    storage.write_table(target, pa.concat_tables(tables).select(_WANTED).sort_by(order), rows_of_group=_SORTED_ROWS)


def _look_up(
    storage: Storage, root: str, keys: Sequence[str], places: Sequence[str], groups: Sequence[str], buckets: range,
    number: int, name: str,
) -> int:  # fmt: skip
    """Write the texts of a range of buckets that every key has, one part for each temperature, and the places of the others.

    Returns how many the cache has.
    """
    ends = [("content_sha", ">=", f"{buckets[0]:02x}")]
    ends += [("content_sha", "<", f"{buckets[-1] + 1:02x}")] if buckets[-1] + 1 < BUCKETS else []
    wanted = pa.concat_tables([storage.read_table(group, _WANTED, rows=ends) for group in groups])
    wanted = wanted.sort_by([(column, "ascending") for column in _WANTED[:3]])
    store, shas, tables = Storage(root), wanted.column("content_sha").to_pylist(), []
    everywhere = set(shas)
    for place in keys:
        tables.append(known(store, place, buckets, everywhere))
        everywhere &= set(tables[-1].column("content_sha").to_pylist())
    hit = pc.is_in(wanted.column("content_sha"), pa.array(sorted(everywhere), pa.string()))
    hits = wanted.filter(hit)
    for table, target in zip(tables, places, strict=True) if everywhere else ():
        rows = table.take(pc.index_in(hits.column("content_sha"), table.column("content_sha").combine_chunks()))
        columns = {column: rows.column(column) for column in rows.column_names}
        columns |= {"truncated": pc.or_(rows.column("truncated"), hits.column("cut"))}
        columns |= {column: hits.column(column) for column in ("text_id", "document")}
        width = rows.schema.field("embedding").type.list_size
        storage.write_table(cached(target, number), texts(width).build(columns))
    others = wanted.filter(pc.invert(hit)).select(["shard", "row"])
    storage.write_table(name, others.sort_by([("shard", "ascending"), ("row", "ascending")]), rows_of_group=_SORTED_ROWS)
    return hits.num_rows


def _rewrite(
    storage: Storage, contents: Texts, first: int, names: list[str], absent: Sequence[str], target: str
) -> list[tuple[str, int, int]]:
    """Write the absent texts of a group of shards as new shards; return what is known of each."""
    own = [("shard", ">=", first), ("shard", "<", first + len(names))]
    places = pa.concat_tables([storage.read_table(name, ["shard", "row"], rows=own) for name in absent])
    shard, row = (places.column(name).to_numpy() for name in ("shard", "row"))
    rows = {name: np.sort(row[shard == number]) for number, name in enumerate(names, first)}
    return rewritten(storage, contents, rows, target, first)
