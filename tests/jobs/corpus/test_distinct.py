"""Ids that appear in several units, and samples of all units, by sets and sorted lists: no Ray, no text."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from tempscale_jobs.corpus import distinct
from tempscale_jobs.corpus.distinct import lists, merge, merges, repeated, sampled
from tempscale_jobs.corpus.reading import candidates_of, ids_of
from tempscale_jobs.runs.storage import Storage

PARTITIONS = 3


def digest(head, tail):
    return int(head).to_bytes(8, "big") + int(tail).to_bytes(4, "big")


def drawn(count):
    """The digests of units' rows: distinct inside a unit, some in several, and some equal but for their last bytes."""
    random = np.random.default_rng(0)
    heads = random.integers(0, 2**63, 40, dtype=np.uint64) * np.uint64(2)
    heads[0], heads[1] = 0, 2**64 - 1  # The first and the last of all.
    every = [digest(head, tail) for head in heads for tail in (0, 2, 2**32 - 2)]  # Even: of ids.
    return [[every[k] for k in random.permutation(len(every))[: 30 + unit]] for unit in range(count)]


def written(folder, units):
    found = Storage(str(folder))
    for unit, digests in enumerate(units):
        table = pa.table({"digest": pa.array(digests, pa.binary(12)), "row": pa.array(range(len(digests)), pa.int32())})
        found.write_table(ids_of(unit), table.sort_by("digest"), rows_of_group=7)
    return found


@pytest.fixture
def units():
    return drawn(5)


@pytest.fixture
def storage(tmp_path, units):
    return written(tmp_path, units)


def gone(storage, ids, first):
    """All repeated rows (unit, row) of the units from `first` on, and their counts by unit."""
    found, counts = set(), Counter()
    for k in range(PARTITIONS):
        counts.update(repeated(storage, ids, first, (k, PARTITIONS), f"gone-{first}-{k}.parquet"))
        if storage.exists(f"gone-{first}-{k}.parquet"):
            table = storage.read_table(f"gone-{first}-{k}.parquet")
            found |= set(zip(table["unit"].to_pylist(), table["row"].to_pylist(), strict=True))
    return found, counts


def expected(units, first):
    seen, found = set(), set()
    for unit, digests in enumerate(units):
        found |= {(unit, row) for row, own in enumerate(digests) if own in seen and unit >= first}
        seen |= set(digests)
    return found


@pytest.mark.parametrize("first", [0, 2, 4])
def test_rows_whose_ids_an_earlier_unit_has_are_those_of_a_set(storage, units, first):
    found, counts = gone(storage, lists([len(own) for own in units]), first)
    assert found == expected(units, first)
    assert len(found) > 10
    assert counts == Counter(unit for unit, _ in found)


@pytest.mark.parametrize("count", [1, 3, 8, 30])
@pytest.mark.parametrize("ids_of_a_file", [10_000, 20])
def test_merged_lists_say_the_same(tmp_path, monkeypatch, count, ids_of_a_file):
    """Three by three, in one file or in several by ranges of digests; one unit has no row."""
    monkeypatch.setattr(distinct, "TOGETHER", 3)
    monkeypatch.setattr(distinct, "PARTITION_IDS", ids_of_a_file)
    units = drawn(count)
    units[4:5] = [[]] * len(units[4:5])
    storage, rows = written(tmp_path, units), [len(own) for own in units]
    for level in merges(rows):
        for ids, merged_from in level:
            assert (ids.files > 1) == (ids_of_a_file == 20)
            for number in range(ids.files):
                merge(storage, ids, merged_from, number)
    every = lists(rows)
    ranges = [range(own.number * 3**own.level, (own.number + 1) * 3**own.level) for own in every]
    assert [unit for own in ranges for unit in own] == [*range(count)]
    assert len(every) <= 2 * 4
    assert max(own.level for own in every) == {1: 0, 3: 1, 8: 1, 30: 3}[count]
    for own, held_units in zip(every, ranges, strict=True):
        held = own.read(storage, 0, 1 << 64)
        assert sorted(held["digest"].to_pylist()) == sorted(digest for unit in held_units for digest in units[unit])
    for first in (0, count // 2):
        assert gone(storage, every, first)[0] == expected(units, first)


def test_a_sample_is_the_rows_of_smallest_key_that_are_not_repeated(storage, units):
    random, every = np.random.default_rng(1), []
    away = expected(units, 0)
    for unit, digests in enumerate(units):
        keys = random.integers(0, 12, len(digests)).astype(np.uint64)  # Many are equal: then the digest decides.
        table = {"digest": pa.array(digests, pa.binary(12)), "row": pa.array(range(len(digests)), pa.int32())}
        storage.write_table(candidates_of(unit), pa.table({"key": pa.array(keys)} | table))
        every += [(int(keys[row]), own, unit, row) for row, own in enumerate(digests) if (unit, row) not in away]
    gone(storage, lists([len(own) for own in units]), 0)
    names = [name for name in storage.list("") if name.startswith("gone-")]
    counts = sampled(storage, range(5), 25, (names, []), "sample.parquet")
    taken = sorted((unit, row) for _, _, unit, row in sorted(every)[:25])
    found = storage.read_table("sample.parquet")
    assert list(zip(found["unit"].to_pylist(), found["row"].to_pylist(), strict=True)) == taken
    assert counts == {unit: sum(own == unit for own, _ in taken) for unit in {own for own, _ in taken}}
