"""Which rows are compared: of those that were drawn at random, lengths and groups in proportion to their shares."""

from __future__ import annotations

from collections import defaultdict

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.runs.storage import Storage


def chosen(storage: Storage, index: Index, size: int, seed: int) -> dict[int, list[int]]:
    """The rows of each shard that are compared, by its number; all rows where there are no more than `size`.

    A systematic sample: every (rows/size)th row in the order of lengths and groups, from a seeded start, so that each row is
    as likely as another, and each length and group has its share.
    """
    rows = list[tuple[str, int, int, int]]()
    for number, shard in enumerate(index.shards):
        table = storage.read_table(shard.name, ["text_id", "text", "groups"])
        for row, (text_id, text, groups) in enumerate(zip(*(c.to_pylist() for c in table.columns), strict=True)):
            # Lengths of one power of two are together, of each combination of groups.
            rows.append((f"{groups} {len(text).bit_length():02}", keyed_hash(text_id, seed), number, row))
    rows.sort()
    start, rows_by_shard = keyed_hash("the start of the sample", seed) % max(1, len(rows)), defaultdict[int, list[int]](list)
    count = min(size, len(rows))
    for k in range(count):
        _, _, number, row = rows[(start + k * len(rows) // count) % len(rows)]
        rows_by_shard[number].append(row)
    return {number: sorted(rows_by_shard[number]) for number in sorted(rows_by_shard)}
