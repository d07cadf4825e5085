"""Ids that appear in several units, and samples of all units, by sets and sorted lists: no Ray, no text."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from tempscale_jobs.corpus.distinct import repeated, sampled
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


def gone(storage, units):
    """All repeated rows (unit, row), and their counts by unit."""
    found, counts = set(), Counter()
    for k in range(PARTITIONS):
        counts.update(repeated(storage, range(len(units)), (k, PARTITIONS), f"gone-{k}.parquet"))
        if storage.exists(f"gone-{k}.parquet"):
            table = storage.read_table(f"gone-{k}.parquet")
            found |= set(zip(table["unit"].to_pylist(), table["row"].to_pylist(), strict=True))
    return found, counts


def expected(units):
    seen, found = set(), set()
    for unit, digests in enumerate(units):
        found |= {(unit, row) for row, own in enumerate(digests) if own in seen}
        seen |= set(digests)
    return found


@pytest.mark.parametrize("count", [1, 5, 30])
def test_rows_whose_ids_an_earlier_unit_has_are_those_of_a_set(tmp_path, count):
    units = drawn(count)
    units[4:5] = [[]] * len(units[4:5])  # One has no row.
    found, counts = gone(written(tmp_path, units), units)
    assert found == expected(units)
    assert len(found) > 10 or count == 1
    assert counts == Counter(unit for unit, _ in found)


def test_a_sample_is_the_rows_of_smallest_key_that_are_not_repeated(storage, units):
    random, every = np.random.default_rng(1), []
    away = expected(units)
    for unit, digests in enumerate(units):
        keys = random.integers(0, 12, len(digests)).astype(np.uint64)  # Many are equal: then the digest decides.
        table = {"digest": pa.array(digests, pa.binary(12)), "row": pa.array(range(len(digests)), pa.int32())}
        storage.write_table(candidates_of(unit), pa.table({"key": pa.array(keys)} | table))
        every += [(int(keys[row]), own, unit, row) for row, own in enumerate(digests) if (unit, row) not in away]
    gone(storage, units)
    names = [name for name in storage.list("") if name.startswith("gone-")]
    counts = sampled(storage, range(5), 25, (names, []), "sample.parquet")
    taken = sorted((unit, row) for _, _, unit, row in sorted(every)[:25])
    found = storage.read_table("sample.parquet")
    assert list(zip(found["unit"].to_pylist(), found["row"].to_pylist(), strict=True)) == taken
    assert counts == {unit: sum(own == unit for own, _ in taken) for unit in {own for own, _ in taken}}
