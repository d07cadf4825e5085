"""Copy the cached texts of a corpus into texts/, and write new shards of the others.

Digests of contents are exchanged over ranges of buckets, so that no process has all texts and each bucket is read once: a
task for each group of shards sorts its texts by digest; a task for each range of buckets takes its part of all groups and
looks it up; and a task for each group writes its found and its absent texts, both in the source's order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale.model import checkpoint
from tempscale.model.loading import dimensions
from tempscale_jobs.corpus.index import Shard
from tempscale_jobs.corpus.shards import TextShards, rewritten, source_row
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import EXCEPTIONS, Model, Run, cached, of_unit
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.cache import BUCKETS, Cache, cached_texts, folder, is_foreign, key
from tempscale_jobs.steps.scope import Scope
from tempscale_jobs.tables.audit import texts
from tempscale_jobs.workers.dispatch import results

PLACE = "partials/cache"
"""The folder of what is known of the cache."""
TEXTS_OF_A_GROUP, TEXTS_OF_A_RANGE = 131_072, 32_768
"""About the texts of a group of shards, and those that one task looks up: 50 MB of embeddings at 384 dimensions."""
_SORTED_ROWS = 16_384
"""Texts of a row group of sorted contents; readers skip the row groups that they do not need."""
_FOUND_ROWS = 1024
"""The same of found texts."""
_STORED_ROWS = 8192
"""The same of texts/."""
_BY_CONTENT = [("content_sha", "ascending"), ("source_row", "ascending")]


@dataclass(frozen=True)
class LookedUp:
    """The result of a look-up; it is stored, so that a resumed run embeds the same texts even if the cache has changed."""

    shards: tuple[Shard, ...]
    """The texts to embed."""
    found: int = 0
    """Texts copied from the cache."""
    ignored: dict[str, int] = field(default_factory=dict)
    """The number of unused files, keys and entries of the cache, by reason."""

    def in_words(self, texts: int) -> str:
        """The result of the look-up of `texts` texts, for the terminal."""
        unused = "".join(f"; ignored: {number:,} {why}" for why, number in sorted(self.ignored.items()))
        return f"{self.found:,} of {count(texts, 'text')} in the cache{unused}"


def look_up(scope: Scope, cache: Cache | None) -> LookedUp:
    """Copy the texts that the cache has under every temperature into texts/; write and return shards of the others."""
    run, model, index, name = scope.run, scope.model, scope.index, planned(scope.run, scope.model)
    if run.storage.exists(name):
        data = run.storage.read_json(name)
        return LookedUp(
            index.shards if data["shards"] is None else tuple(Shard(**shard) for shard in data["shards"]),
            data["found"],
            data.get("ignored", {}),
        )
    for temperature in run.temperatures:  # Remove parts of an unfinished look-up, and of texts embedded after it.
        place = run.place("texts", model, temperature)
        if any("/part-cached-" in part for part in run.storage.list(place)):
            run.storage.remove(place)
    plan = LookedUp(index.shards)
    if cache is not None:
        plan = look_up_all(scope, cache)
        if plan.found:
            note = f"{model.label}: {plan.found} of {index.analysed} texts from the cache, whose last digits may differ"
            run.storage.write_json(f"{run.place(EXCEPTIONS, model)}/cache.json", note)
    # Without a cache the shards are those of the index, even if a resumed run has a cache.
    run.storage.write_json(name, asdict(plan) if cache is not None else {"shards": None, "found": 0})
    return plan


def planned(run: Run, model: Model) -> str:
    """The file of a model's `LookedUp`."""
    return f"{run.place(PLACE, model)}/plan.json"


def ignored(run: Run, model: Model) -> dict[str, int]:
    """The number of unused files, keys and entries of the cache, by reason."""
    name = planned(run, model)
    counts: dict[str, int] = run.storage.read_json(name).get("ignored", {}) if run.storage.exists(name) else {}
    return counts


class Exchange(NamedTuple):
    """The arguments that all tasks of a look-up share."""

    storage: Storage
    cache: str
    keys: list[str]
    """The folder of each temperature in the cache."""
    texts: list[str]
    """The folder of each temperature in texts/."""
    scratch: str
    dim: int
    """Dimensions of the model's embeddings."""
    of_shard: tuple[str, ...] = ("text_id", "document")
    """The columns of texts/ that come from the shards, without the texts' places in the source."""

    def found(self, temperature: int, part: int) -> str:
        """The file of the texts that one range of buckets has under one temperature, in the source's order."""
        return f"{self.scratch}/found-{temperature:08d}-{part:08d}.parquet"

    def absent(self, part: int) -> str:
        """The file of the places of the texts that one range of buckets does not have."""
        return f"{self.scratch}/absent-{part:08d}.parquet"


def look_up_all(scope: Scope, cache: Cache) -> LookedUp:
    """Look up all texts of a source in the cache."""
    run, cluster, model, index = scope.run, scope.cluster, scope.model, scope.index
    contents = TextShards(scope.source, scope.encoding, "", scope.config.by)
    store, keys = Storage(cache.root), [key(cache, cluster, model, t) for t in run.temperatures]
    if foreign := sum(is_foreign(store, values) for values in keys):
        return LookedUp(index.shards, 0, {"folders are of other settings": foreign})
    exchange = Exchange(
        run.storage,
        store.root,
        [folder(values) for values in keys],
        [run.place("texts", model, t) for t in run.temperatures],
        f"{run.place(PLACE, model)}/exchanged",
        dimensions(checkpoint.resolve(model.name)),
        ("text_id", "document", *(["groups"] if scope.config.by else [])),
    )
    groups = [(first, [shard.name for shard in members]) for first, members in _groups(index.shards)]
    results(cluster, sort_group, [(exchange, *group) for group in groups], "shards for the cache")
    parts = min(BUCKETS, -(-index.analysed // TEXTS_OF_A_RANGE))
    cuts = pairwise(BUCKETS * k // parts for k in range(parts + 1))
    firsts = [first for first, _ in groups]
    ranges = [(exchange, firsts, range(*between), k) for k, between in enumerate(cuts)]
    looked_up = results(cluster, look_up_range, ranges, "look-up")
    counts, ignored = [number for number, _ in looked_up], sum((unused for _, unused in looked_up), Counter[str]())
    shards = index.shards
    if any(counts):
        target = run.place("shards", model)
        work = [(exchange, contents, group, counts, target) for group in groups]
        written = results(cluster, write_hits, work, "shards to embed")
        shards = tuple(Shard(*shard) for group in written for shard in group)
    run.storage.remove(exchange.scratch)
    return LookedUp(shards, sum(counts), dict(ignored))


def _groups(shards: Sequence[Shard]) -> list[tuple[int, list[Shard]]]:
    """Groups of consecutive shards with about `TEXTS_OF_A_GROUP` texts, each with the number of its first shard."""
    groups, texts = list[tuple[int, list[Shard]]](), TEXTS_OF_A_GROUP
    for number, shard in enumerate(shards):
        if texts >= TEXTS_OF_A_GROUP:
            groups.append((number, []))
            texts = 0
        groups[-1][1].append(shard)
        texts += shard.texts
    return groups


def sorted_name(first: int) -> str:
    """The file of the sorted contents of a group of shards from shard `first` on, the same for all models."""
    return f"{of_unit('contents', first)}.parquet"


def sort_group(how: Exchange, first: int, names: list[str]) -> None:
    """Write digests, ids and places of the texts of a group of shards, sorted by digest."""
    if how.storage.exists(sorted_name(first)):
        return
    tables = []
    for number, name in enumerate(names, first):
        table = how.storage.read_table(name, ["content_sha", "cut", *how.of_shard])
        places = source_row(number, np.arange(table.num_rows, dtype=np.int64))
        tables.append(table.append_column("source_row", pa.array(places)))
    # Hexadecimal digits sort like numbers, so a range of the sorted digests is a range of buckets.
    whole = pa.concat_tables(tables).sort_by(_BY_CONTENT)
    how.storage.write_table(sorted_name(first), whole, rows_of_group=_SORTED_ROWS)


def look_up_range(how: Exchange, groups: list[int], buckets: range, number: int) -> tuple[int, Counter[str]]:
    """Write the texts of some buckets that every key has, and the places of the others, and count the former."""
    ends = f"{buckets[0]:02x}", f"{buckets[-1] + 1:02x}" if buckets[-1] + 1 < BUCKETS else None
    contents = pa.concat_tables([how.storage.read_range(sorted_name(group), "content_sha", *ends) for group in groups])
    contents = contents.sort_by("source_row")
    store, tables, ignored = Storage(how.cache), list[pa.Table](), Counter[str]()
    everywhere = set(contents.column("content_sha").to_pylist())
    for place in how.keys:
        in_cache = cached_texts(store, place, buckets, everywhere, how.dim)
        ignored += in_cache.ignored
        tables.append(in_cache.texts)
        everywhere &= set(tables[-1].column("content_sha").to_pylist())
    hit = pc.is_in(contents.column("content_sha"), pa.array(sorted(everywhere), pa.string()))
    hits = contents.filter(hit)
    for k, table in enumerate(tables if everywhere else ()):
        rows = table.take(pc.index_in(hits.column("content_sha"), table.column("content_sha").combine_chunks()))
        columns = {column: rows.column(column) for column in rows.column_names}
        columns |= {"truncated": pc.or_(rows.column("truncated"), hits.column("cut"))}
        columns |= {column: hits.column(column) for column in (*how.of_shard, "source_row")}
        table = texts(how.dim, "groups" in columns).build(columns)
        how.storage.write_table(how.found(k, number), table, rows_of_group=_FOUND_ROWS)
    absent = contents.filter(pc.invert(hit)).select(["source_row"])
    how.storage.write_table(how.absent(number), absent, rows_of_group=_SORTED_ROWS)
    return int(hits.num_rows), ignored


def write_hits(
    how: Exchange, contents: TextShards, group: tuple[int, list[str]], found: list[int], target: str
) -> list[tuple[str, int, int]]:
    """Write the found texts of a group (first shard, names) to texts/, and the others as new shards, which are returned."""
    first, names = group
    span = "source_row", source_row(first, 0), source_row(first + len(names), 0)
    for k, place in enumerate(how.texts):
        tables = [how.storage.read_range(how.found(k, n), *span) for n, count in enumerate(found) if count]
        table = pa.concat_tables(tables)
        if table.num_rows:
            how.storage.write_table(cached(place, first), table.sort_by("source_row"), rows_of_group=_STORED_ROWS)
    absent = [how.storage.read_range(how.absent(n), *span).column("source_row") for n in range(len(found))]
    shard, row = np.divmod(np.sort(np.concatenate([column.to_numpy() for column in absent])), source_row(1, 0))
    rows = {name: row[shard == number] for number, name in enumerate(names, first)}
    return rewritten(how.storage, contents, rows, target, first)
