"""Vectors and texts of two tables are joined by their ids, in one range of ids or in many."""

import numpy as np
import pyarrow as pa
import pytest

from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.rows import Rejects
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.verify import ROWS
from tempscale_jobs.verify import computed, joined

SHARD = 7


def side(folder, ids, usable=None):
    """A table of rows with these ids, in shards of seven: its vectors and texts name the id."""
    storage, shards = Storage(str(folder)), []
    for first in range(0, len(ids), SHARD):
        rows = [
            dict.fromkeys((column.name for column in ROWS.columns), "")
            | {"text_id": name, "text": f"text of {name}", "vector": [float(name), 1.0], "groups": []}
            for name in ids[first : first + SHARD]
        ]
        name = f"shards/part-{first:08d}.parquet"
        storage.write_table(name, ROWS.build_rows(rows))
        shards.append(Shard(name, len(rows)))
    return storage, Index("x", {}, "f", len(ids), 0, usable or len(ids), len(ids), {}, tuple(shards))


def rows_of(storage, index):
    """The text and the vector of each id."""
    tables = [storage.read_table(shard.name).to_pylist() for shard in index.shards]
    return {row["text_id"]: (row["text"], row["vector"]) for table in tables for row in table}


@pytest.mark.parametrize("at_once", [1000, 20, 8])
def test_each_id_of_both_tables_is_joined_once_however_many_ranges_there_are(at_once, monkeypatch, tmp_path):
    monkeypatch.setattr(joined, "AT_ONCE", at_once)
    order = np.random.default_rng(0).permutation(60)
    vectors, texts = side(tmp_path / "v", [str(k) for k in order]), side(tmp_path / "t", [str(k) for k in range(3, 62)])
    found = joined.join(vectors, texts, 0)
    rows = rows_of(vectors[0], found.rows)
    assert rows == {str(k): (f"text of {k}", [float(k), 1.0]) for k in range(3, 60)}
    assert sum(shard.texts for shard in found.rows.shards) == 57
    assert found.missing == {joined.NO_TEXT: 3, joined.NO_VECTOR: 2}
    assert found.ids == 62
    rejected = [row["text_id"] for name in vectors[0].list("rejected") for row in vectors[0].read_table(name).to_pylist()]
    assert sorted(rejected, key=int) == ["0", "1", "2", "60", "61"]


def test_of_samples_only_ids_that_both_know_are_counted_as_missing(tmp_path):
    ids = [str(k) for k in range(200)]
    lowest = sorted(ids, key=lambda name: joined.keyed_hash(name, 0))
    vectors, texts = side(tmp_path / "v", lowest[:40], usable=200), side(tmp_path / "t", lowest[1:60], usable=199)
    found = joined.join(vectors, texts, 0)
    assert found.missing == {joined.NO_TEXT: 1, joined.NO_VECTOR: 0}
    assert set(rows_of(vectors[0], found.rows)) == set(lowest[1:40])


def test_tables_without_a_common_id_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no id in common"):
        joined.join(side(tmp_path / "v", ["1"]), side(tmp_path / "t", ["2"]), 0)


def test_rejected_rows_of_the_texts_are_kept_with_those_of_the_vectors(tmp_path):
    vectors, texts = (Storage(str(tmp_path / name)) for name in "vt")
    for storage, reasons in ((vectors, ["a"]), (texts, ["b", "c"])):
        for reason in reasons:
            rejects = Rejects(storage, ord(reason))
            rejects.add(f"id {reason}", "row", reason)
            rejects.flush()
    joined.keep_rejected(texts, vectors)
    found = [row["reason"] for name in vectors.list("rejected") for row in vectors.read_table(name).to_pylist()]
    assert sorted(found) == ["a", "b", "c"]


def test_precision_is_measured_on_texts_of_all_lengths_of_the_first_shards(tmp_path):
    storage, ids = Storage(str(tmp_path)), [str(k) for k in range(2100)]
    shards = []
    for name, part in (("a", ids[:2050]), ("b", ids[2050:])):
        texts = ["x" * (1 + int(k)) for k in part]
        storage.write_table(f"shards/{name}.parquet", pa.table({"text": texts}))
        shards.append(Shard(f"shards/{name}.parquet", len(part)))
    found = [len(text) for text in computed.spread(storage, Index("x", {}, "f", 2100, 0, 2100, 2100, {}, tuple(shards)))]
    assert (found[0], found[-1], len(found)) == (1, 2050, computed.TEXTS)  # The second shard is not needed.
    assert np.diff(found).min() > 0.9 * 2050 / computed.TEXTS
