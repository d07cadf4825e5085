"""Which rows are compared: of those that were drawn at random, lengths and groups in proportion to their shares."""

from __future__ import annotations

from collections import defaultdict

from tempscale.stats.sample import keyed_hash
from tempscale.stats.shares import allotted
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.runs.storage import Storage


def chosen(storage: Storage, index: Index, size: int, seed: int) -> dict[int, list[int]]:
    """The rows of each shard that are compared, by its number; all rows where there are no more than `size`."""
    strata = defaultdict[str, list[tuple[int, int, int]]](list)
    for number, shard in enumerate(index.shards):
        table = storage.read_table(shard.name, ["text_id", "text", "groups"])
        for row, (text_id, text, groups) in enumerate(zip(*(c.to_pylist() for c in table.columns), strict=True)):
            # Lengths of one power of two are one stratum, of each combination of groups.
            strata[f"{len(text).bit_length()} {groups}"].append((keyed_hash(text_id, seed), number, row))
    draws = allotted({name: len(rows) for name, rows in strata.items()}, size)
    rows_by_shard = defaultdict[int, list[int]](list)
    for name, rows in strata.items():
        for _, number, row in sorted(rows)[: draws[name]]:
            rows_by_shard[number].append(row)
    return {number: sorted(rows_by_shard[number]) for number in sorted(rows_by_shard)}
