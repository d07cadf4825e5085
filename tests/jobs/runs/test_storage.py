"""Files appear whole or not at all, locally and on a remote file system."""

import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tempscale_jobs.errors import Damaged, IncompleteRun, UsageError
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables import audit, pairs, parts
from tempscale_jobs.tables.columns import Table


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.proof)])
def storage(request, tmp_path):
    roots = {"local": str(tmp_path), "memory": f"memory://{tmp_path.name}"}
    found = Storage(f"{roots.get(request.param) or request.getfixturevalue('bucket') + '/' + tmp_path.name}/run")
    yield found
    found.remove("")


def test_written_files_are_listed_read_and_removed(storage):
    assert (storage.list(""), storage.exists("a")) == ([], False)
    storage.write_json("b/2.json", {"τ": [1, None]})
    storage.write("a/1.parquet", b"x")
    storage.write("a/deep/3.parquet", b"yz")
    assert storage.list("") == ["a/1.parquet", "a/deep/3.parquet", "b/2.json"]
    assert storage.list("a", ".parquet") == ["a/1.parquet", "a/deep/3.parquet"]
    assert (storage.list("none"), storage.list("b", ".parquet")) == ([], [])
    assert storage.read_json("b/2.json") == {"τ": [1, None]}
    assert (storage.read("a/1.parquet"), storage.size("a/deep/3.parquet"), storage.exists("a")) == (b"x", 2, True)
    storage.write("a/1.parquet", b"new")
    assert pickle.loads(pickle.dumps(storage)).read("a/1.parquet") == b"new"  # As it travels to workers.
    storage.remove("a")
    assert storage.list("") == ["b/2.json"]
    storage.remove("a")
    with pytest.raises(FileNotFoundError):
        storage.read("a/1.parquet")


NAMES = ("run[1]", "run*", "run?", "[a-z]un1", "run{1,2}", "r%20n", "r#n", "run 1", "-run", "~run", "run@1", "rün")
"""Names that are patterns, or parts of addresses, to somebody."""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_no_pattern(storage, name):
    other, mine = Storage(f"{storage.root}/run1"), Storage(f"{storage.root}/{name}")
    for one in (other, mine):
        one.write("tables/a.parquet", one.root.encode())
        assert one.create(".lock", b"")
    assert not mine.create(".lock", b"")
    assert mine.read("tables/a.parquet") == mine.root.encode()
    assert (mine.size("tables/a.parquet"), mine.names()) == (len(mine.root.encode()), [".lock", "tables"])
    assert mine.list("") == [".lock", "tables/a.parquet"]
    mine.remove("tables")
    mine.remove(".lock")
    assert (mine.exists("tables"), mine.exists(".lock"), mine.list("")) == (False, False, [])
    assert other.list("") == [".lock", "tables/a.parquet"]


@pytest.mark.parametrize(
    "name", ["a::b", "simplecache::a", "run[1]", "r*n", "file:x", "100%", "a#b?c=d", "~nosuchuser", "-x"]
)
def test_any_name_of_a_local_folder_is_that_folder(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (name, "run1"):
        Storage(folder).write("tables/a", b"1")
    assert (tmp_path / name / "tables" / "a").read_bytes() == b"1"
    Storage(name).remove("tables")
    assert Storage(name).list("") == []
    assert Storage("run1").list("") == ["tables/a"]


def test_a_link_in_place_of_a_folder_is_removed_and_not_what_it_leads_to(tmp_path):
    Storage(str(tmp_path / "precious")).write("a", b"1")
    storage = Storage(str(tmp_path / "run"))
    storage.write("x", b"1")
    (tmp_path / "run" / "texts").symlink_to(tmp_path / "precious")
    storage.remove("texts")
    assert (storage.exists("texts"), (tmp_path / "precious" / "a").exists()) == (False, True)


def test_equal_tables_give_equal_bytes_and_come_back_with_their_meaning(storage):
    rows = [{"text_id": "é", "characters": 3, "excerpt": "🙂"}]
    for name in ("x.parquet", "y.parquet"):
        storage.write_table(name, audit.EXCERPTS.build_rows(rows))
    assert storage.read("x.parquet") == storage.read("y.parquet")
    table = storage.read_table("x.parquet")
    assert table.to_pylist() == rows
    assert table.schema.field("characters").metadata[b"unit"] == b"characters"
    assert storage.read_table("x.parquet", ["text_id"]).column_names == ["text_id"]
    assert storage.rows("x.parquet") == 1


def test_what_a_killed_writer_left_is_never_listed_and_swept(tmp_path):
    storage = Storage(str(tmp_path))
    storage.write("texts/part-0", b"x")
    (tmp_path / "texts" / ".writing-123").write_bytes(b"half")
    assert storage.list("texts") == ["texts/part-0"]
    storage.sweep()
    assert not (tmp_path / "texts" / ".writing-123").exists()
    assert storage.list("texts") == ["texts/part-0"]


def test_a_full_disk_is_an_incomplete_run_and_leaves_nothing_half(tmp_path, monkeypatch):
    storage = Storage(str(tmp_path))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(IncompleteRun, match="full"):
        storage.write("a/b.parquet", b"x")
    assert list((tmp_path / "a").iterdir()) == []


def test_a_file_that_cannot_be_put_in_its_place_leaves_what_was_there(tmp_path, monkeypatch):
    storage = Storage(str(tmp_path))
    storage.write("a", b"before")

    def refused(temporary, target):
        assert (tmp_path / "a").read_bytes() == b"before"  # Until all of the other is written.
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.replace", refused)
    with pytest.raises(IncompleteRun, match="Input/output error"):
        storage.write("a", b"after")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"a": b"before"}


def test_nothing_is_written_where_a_check_raises(storage):
    def refused():
        raise IncompleteRun("not any more")

    guarded = storage.guarded(refused)
    storage.write("a", b"1")
    for write, *what in (
        (guarded.write, "a", b"2"),
        (guarded.write_json, "b", {}),
        (guarded.write_table, "c", pa.table({})),
    ):
        with pytest.raises(IncompleteRun, match="not any more"):
            write(*what)
    assert storage.list("") == ["a"]
    assert guarded.read("a") == b"1"


def test_of_two_that_create_a_file_the_first_does(storage):
    assert storage.create("lock", b"first")
    assert not storage.create("lock", b"second")
    assert storage.read("lock") == b"first"


@pytest.mark.parametrize(("error", "told"), [
    (OSError("An error occurred (PreconditionFailed) when calling the PutObject operation"), None),
    (OSError("412, At least one of the pre-conditions you specified did not hold."), None),
    (OSError("the network is down"), OSError),
    (TypeError("unexpected keyword 'mode'"), NotImplementedError), (ValueError("mode create"), NotImplementedError),
])  # fmt: skip
def test_a_store_may_say_in_its_own_words_that_a_file_is_there_or_that_it_cannot_create_one(monkeypatch, error, told):
    storage = Storage("memory://answers/run")

    def refused(path, data, mode):
        assert (path, data, mode) == (storage.path("lock"), b"x", "create")
        raise error

    monkeypatch.setattr(storage.filesystem[0], "pipe_file", refused)
    if told is None:
        assert storage.create("lock", b"x") is False
    else:
        with pytest.raises(told, match=str(error) if told is OSError else storage.root):
            storage.create("lock", b"x")


def test_schema_rejects_missing_and_unknown_columns():
    with pytest.raises(ValueError, match=r"missing columns \['excerpt'\]"):
        audit.EXCERPTS.build_rows([{"text_id": "a", "characters": 1}])
    with pytest.raises(ValueError, match=r"unknown columns \['more'\]"):
        audit.EXCERPTS.build({"text_id": ["a"], "characters": [1], "excerpt": ["x"], "more": [1]})


def test_every_column_says_what_it_means():
    fixed = [v for module in (audit, parts, pairs) for v in vars(module).values() if isinstance(v, Table)]
    assert {*audit.TABLES, parts.COSINE_TILE, parts.DUPLICATE_TILE, parts.SOCM_TILE, parts.TEXT_MEANS} <= set(fixed)
    for table in [*fixed, audit.texts(3), audit.factors(3), parts.blocks(3), parts.near_tile(2)]:
        assert table.meaning
        assert all(column.meaning for column in table.columns)
        assert isinstance(table.schema(), pa.Schema)


def test_a_range_of_a_sorted_file_is_read_without_the_rest(tmp_path, monkeypatch):
    storage, read = Storage(str(tmp_path)), []
    columns = {"list": [[1.0, 2.0]] * 100, "word": [f"{k:03d}" for k in range(100)], "bytes": None, "number": range(100)}
    columns["bytes"] = pa.array([bytes([k, 0]) for k in range(100)], pa.binary(2))
    storage.write_table("sorted.parquet", pa.table(columns), rows_of_group=10)
    storage.write_table("empty.parquet", pa.table({"number": pa.array([], pa.int64())}))
    groups = pq.ParquetFile.read_row_groups
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_groups", lambda self, own, **how: read.append(own) or groups(self, own, **how)
    )
    for by, low, high in (("word", "025", "041"), ("bytes", bytes([25, 0]), bytes([41, 0])), ("number", 25, 41)):
        found = storage.read_range("sorted.parquet", by, low, high, columns=["number"])
        assert found.to_pydict() == {"number": list(range(25, 41))}
        assert read.pop() == [2, 3, 4]
    assert storage.read_range("sorted.parquet", "number", 95)["word"].to_pylist() == ["095", "096", "097", "098", "099"]
    assert storage.read_range("sorted.parquet", "number", 30, 30).num_rows == 0
    assert storage.read_range("sorted.parquet", "number", 100).column_names == ["list", "word", "bytes", "number"]
    assert storage.read_range("empty.parquet", "number", 0).num_rows == 0
    for low in range(0, 101, 3):  # The last of a group and the first of one are in it.
        for high in (low, low + 1, 29, 30, 31, None):
            found = storage.read_range("sorted.parquet", "number", low, high, columns=["number"])["number"].to_pylist()
            assert found == list(range(100))[low:high]


@pytest.mark.parametrize(("rows", "whole"), [(9, False), (10, True), (11, False), (5, False)])
def test_columns_of_files_are_as_long_as_they_must_be(storage, rows, whole):
    for name, values in (("a", range(5)), ("b", range(5, 10))):
        storage.write_table(name, pa.table({"x": pa.array(values, pa.int64()), "y": pa.array([1.5] * 5)}))
    if whole:
        x, y = storage.arrays(["a", "b"], ["x", "y"], rows)
        assert (x.tolist(), y.tolist()) == (list(range(10)), [1.5] * 10)
    else:
        with pytest.raises(IncompleteRun, match=f"{rows} rows"):
            storage.arrays(["a", "b"], ["x", "y"], rows)


def test_some_rows_of_a_file_are_read_in_their_order_and_other_groups_are_not(storage, monkeypatch):
    numbers = np.arange(100, dtype=np.int64)
    storage.write_table("a.parquet", pa.table({"number": numbers, "other": -numbers}), rows_of_group=10)
    storage.write_table("b.parquet", pa.table({"number": numbers + 1000, "other": -numbers}))
    read, real = [], pq.ParquetFile.read_row_group

    def noted(own, k, columns, **how):
        read.append((k, columns))
        return real(own, k, columns, **how)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    rows = [np.array([57, 3, 99, 3, 50, 9]), np.array([0, 99])]
    found = [own.column("number").to_pylist() for own in storage.taken(["a.parquet", "b.parquet"], ["number"], rows)]
    assert found == [[57, 3, 99, 3, 50, 9], [1000, 1099]]
    assert sorted(read) == [(0, ["number"]), (0, ["number"]), (5, ["number"]), (9, ["number"])]


@pytest.mark.parametrize("name", ["x.json", "x.parquet"])
def test_what_is_missing_is_damage_and_what_may_not_be_read_is_said(tmp_path, name):
    storage = Storage(str(tmp_path))
    read = storage.read_json if name.endswith("json") else storage.read_table
    with pytest.raises(Damaged) as missing:
        read(name)
    assert missing.value.path == f"{tmp_path}/{name}"
    (tmp_path / name).mkdir()
    with pytest.raises(IncompleteRun) as refused:
        read(name)
    assert not isinstance(refused.value, Damaged)  # It would be removed.
    assert str(tmp_path / name) in str(refused.value)
    (tmp_path / name).rmdir()
    storage.write(name, b"1")
    (tmp_path / name).chmod(0)
    if os.geteuid() == 0:
        return  # Root reads it.
    with pytest.raises(IncompleteRun):
        read(name)


def test_sizes_and_digests_are_those_of_the_files(tmp_path):
    storage = Storage(str(tmp_path))
    for name, data in {"a/x": b"123", "a/b/y": b"", "z": b"12"}.items():
        storage.write(name, data)
    (tmp_path / "a" / ".writing-1").write_bytes(b"half")
    assert storage.sizes("a") == {"a/x": 3, "a/b/y": 0}
    assert storage.sizes("z") == {"z": 2}
    assert storage.sizes("none") == {}
    one, other = storage.digests(["a/x", "z"])
    assert one != other
    storage.write("z", b"123")
    assert storage.digests(["z", "a/x"]) == [one, one]
    with pytest.raises(Damaged):
        storage.digests(["none"])


def test_a_folder_is_removed_where_it_holds_no_file(storage):
    storage.write("texts/kept.json", b"{}")
    storage.remove_empty("texts")
    assert storage.exists("texts/kept.json")
    storage.remove("texts/kept.json")
    storage.remove_empty("texts")
    storage.remove_empty("nothing")
    assert not storage.exists("texts")


def test_columns_of_a_later_version_are_null_in_an_earlier_table(storage):
    storage.write_table("t.parquet", pa.table({"a": [1, 2], "b": ["x", "y"]}))
    found = storage.read_table("t.parquet", ["a"], {"c": pa.int64(), "b": pa.string()})
    assert found.to_pydict() == {"a": [1, 2], "b": ["x", "y"], "c": [None, None]}
    assert found.schema.field("c").type == pa.int64()


def test_a_scheme_that_nobody_knows_is_refused_and_where_nothing_is_nothing_is_swept(tmp_path):
    with pytest.raises(UsageError, match="nosuch://bucket"):
        Storage("nosuch://bucket/run").check_reachable()
    for root in (str(tmp_path / "none"), "memory://none"):
        Storage(root).sweep()
    assert not (tmp_path / "none").exists()
