"""Bits that flip and ends that are cut are noticed in all Parquet, and in the JSON that decides."""

import io
import pickle
import random
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_run import flipped

from tempscale_jobs.errors import Damaged
from tempscale_jobs.runs import sealed
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import texts as texts_table

FLIPS = 2000


def part(rows=120, width=32):
    """A part of texts/ as a run writes one."""
    generator = np.random.default_rng(0)
    columns = {
        "text_id": [f"t{k}" for k in range(rows)], "content_sha": [f"{k:064x}" for k in range(rows)],
        "document": [None if k % 2 else k for k in range(rows)], "source_row": list(range(rows)),
        "tokens": generator.integers(3, 200, rows), "truncated": [bool(k % 3) for k in range(rows)],
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(generator.standard_normal(rows * width, np.float32)), width),
    }  # fmt: skip
    columns |= {name: generator.random(rows) for name in ("mean_norm", "spread", "within_cosine")}
    return texts_table(width).build(columns)


# --- bits -------------------------------------------------------------------------------------------------------------


def outcomes(storage, name, whole, read, flips=FLIPS):
    """How many single flipped bits are noticed, and how many change nothing; none may pass as something else."""
    original, noticed, same = read(), 0, 0
    generator = random.Random(0)
    for _ in range(flips):
        bit = generator.randrange(8 * len(whole))
        Path(storage.path(name)).write_bytes(flipped(whole, bit))
        try:
            found = read()
        except Damaged as error:
            noticed += error.path == f"{storage.root}/{name}"
        else:
            same += 1
            assert found.equals(original) if isinstance(found, pa.Table) else found == original, bit
    return noticed, same


@pytest.mark.proof
@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("how", ["whole", "range", pytest.param("rows", marks=pytest.mark.soak)])
def test_no_flipped_bit_of_a_part_passes(tmp_path, compression, how):
    storage, name = Storage(str(tmp_path)), "texts/part-00000000.parquet"
    storage.write_table(name, part(), compression, rows_of_group=50)
    reads = {
        "whole": lambda: storage.read_table(name),
        "range": lambda: storage.read_range(name, "source_row", 20, 70, ["text_id", "embedding"]),
        "rows": lambda: storage.take(name, ["text_id", "embedding"], np.array([3, 99, 4])),
    }
    whole = (tmp_path / name).read_bytes()
    noticed, same = outcomes(storage, name, whole, reads[how])
    if how == "whole":
        assert noticed > 0.95 * FLIPS  # The others hit what nobody reads: statistics of pages, the mark itself.
    assert noticed + same == FLIPS


@pytest.mark.proof
def test_no_flipped_bit_of_the_footer_passes(tmp_path):
    storage, name = Storage(str(tmp_path)), "part.parquet"
    storage.write_table(name, part(8, 4))
    original, whole = storage.read_table(name), (tmp_path / name).read_bytes()
    begin = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for bit in range(8 * begin, 8 * len(whole), 3):  # Every byte, at each of its bits in turn.
        (tmp_path / name).write_bytes(flipped(whole, bit))
        with pytest.raises(Damaged):
            storage.read_table(name)
    (tmp_path / name).write_bytes(whole)
    assert storage.read_table(name).equals(original)


@pytest.mark.parametrize("left", [0, 3, 11, 40, -1, -9, -200])
def test_a_cut_part_is_damaged(tmp_path, left):
    storage = Storage(str(tmp_path))
    storage.write_table("part.parquet", part(20, 4))
    whole = (tmp_path / "part.parquet").read_bytes()
    (tmp_path / "part.parquet").write_bytes(whole[:left])
    for read in (storage.read_table, storage.rows):
        with pytest.raises(Damaged, match=r"part\.parquet"):
            read("part.parquet")


def test_no_flipped_bit_of_a_json_that_decides_passes(tmp_path):
    storage = Storage(str(tmp_path))
    value = {"unit": 3, "parts": [[3, 44], [9, 1]], "reasons": {"empty": 2, "ä": 1}, "x": 0.1, "no": None}
    storage.write_json("unit.json", value)
    whole = (tmp_path / "unit.json").read_bytes()
    noticed, same = outcomes(storage, "unit.json", whole, lambda: storage.read_json("unit.json"), 8 * len(whole))
    assert same < 0.35 * 8 * len(whole)  # White space, and the name of the checksum's key.
    assert noticed > 0
    assert sealed.loads(whole) == value


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), lambda inner: (
    st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4))))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_json_comes_back_as_it_was(value):
    value = value if not isinstance(value, dict) else {key: own for key, own in value.items() if key != "checksum"}
    assert sealed.loads(sealed.dumps(value)) == value
    assert sealed.loads(sealed.dumps(value, plain=True)) == value


def test_every_reader_reads_a_sealed_file_and_files_of_earlier_versions_are_read(tmp_path):
    table, storage = part(), Storage(str(tmp_path))
    (tmp_path / "part.parquet").write_bytes(sealed.parquet(table, rows_of_group=7))
    assert pq.read_table(tmp_path / "part.parquet").equals(table)
    assert pl.read_parquet(tmp_path / "part.parquet").equals(pl.DataFrame(pl.from_arrow(table)))
    assert pl.scan_parquet(tmp_path / "part.parquet").filter(pl.col("source_row") == 77).collect().height == 1
    pq.write_table(table, tmp_path / "old.parquet", compression="zstd")
    (tmp_path / "old.json").write_text('{"a": 1}')
    assert storage.read_table("old.parquet").equals(table)
    assert storage.read_json("old.json") == {"a": 1}


def test_a_large_footer_is_read_whole(tmp_path):
    storage = Storage(str(tmp_path))
    table = pa.table({f"a column of a long name, {k}": pa.array(range(40)) for k in range(300)})
    storage.write_table("wide.parquet", table, rows_of_group=4)
    whole = (tmp_path / "wide.parquet").read_bytes()
    assert int.from_bytes(whole[-8:-4], "little") > 1 << 16
    assert storage.read_table("wide.parquet").equals(table)
    (tmp_path / "wide.parquet").write_bytes(flipped(whole, 8 * (len(whole) - 100_000)))
    with pytest.raises(Damaged, match=r"wide\.parquet"):
        storage.read_table("wide.parquet")


def test_an_error_of_the_disk_is_no_damage(tmp_path, monkeypatch):
    storage = Storage(str(tmp_path))
    storage.write_table("part.parquet", part(8, 4))

    class Failing(io.BytesIO):
        def seek(self, *where):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(storage, "opened", lambda name: Failing(b""))
    with pytest.raises(OSError, match="Input/output error") as error:
        storage.read_table("part.parquet")
    assert not isinstance(error.value, Damaged)


def test_damage_keeps_its_path_on_the_way_from_a_worker():
    error = pickle.loads(pickle.dumps(Damaged("it is cut", "texts/part-0.parquet")))
    assert (str(error), error.path) == ("it is cut", "texts/part-0.parquet")
