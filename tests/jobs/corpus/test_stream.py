"""A source in many units is the source in one: the same texts, counts, rejected rows, sample and fingerprint."""

import contextlib
import gzip
import json
import os
import time
from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import as_lines

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.corpus import distinct, reading, stream
from tempscale_jobs.corpus.rows import SeenIds, digest_of_id
from tempscale_jobs.corpus.shards import Text, TextShards
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.corpus.vectors import Vectors
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs.folder import PLANNED, SHARDED
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import cluster as sessions

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("ray_session")]

ROWS = 600
KINDS = ("parquet", "jsonl", "txt", "folder", "csv", "gz", "lance", "delta", "hub")


@pytest.fixture(scope="module")
def cluster(ray_session):
    with sessions.session(Execution.model_validate({"workers": 2})) as found:
        yield found


def rows_with_mistakes():
    """Rows of which some have no text, and ids that appear again, near and far."""
    rows = [{"id": f"t{k}", "text": f"text number {k} " * (1 + k % 4), "v": [float(k), 1.0, -2.0]} for k in range(ROWS)]
    for k, of in ((5, 4), (210, 3), (333, 332), (599, 0), (598, 599), (400, 3)):
        rows[k]["id"] = rows[of]["id"]
    rows[3]["text"] = " "  # The first row of this id is not usable, so row 210 is the one that stays.
    rows[77]["text"], rows[501]["text"] = None, ""
    for k in (20, 21, 260, 440, 590):
        rows[k]["text"] = "the same text"  # In a file without ids, copies of one another: in a unit and in several.
    return rows


def written(kind, folder):
    """A source of a kind in a new folder, and the options that make many units of it."""
    folder.mkdir()
    rows = rows_with_mistakes()
    table, hundreds = pa.Table.from_pylist(rows), [rows[k : k + 100] for k in range(0, ROWS, 100)]
    if kind == "parquet":
        pq.write_table(table, folder / "a.parquet", row_group_size=130)
    elif kind == "jsonl":
        # A blank line is no row, but counts in the places of the rows behind it.
        (folder / "a.jsonl").write_text("\n\n \n".join(json.dumps(row) for row in rows[:300]) + "\n")
        (folder / "b.jsonl").write_text("\n".join(json.dumps(row) for row in rows[300:]))
    elif kind == "txt":
        # A blank line is no row here either; what is not UTF-8 is rejected.
        lines = [(row["text"] or "").strip().encode() or b"\xff\n\n" for row in rows]
        (folder / "a.txt").write_bytes(b"\n".join(lines))
    elif kind == "folder":
        for k in range(6):
            pq.write_table(table.slice(100 * k, 100), folder / f"{k}.parquet")
    elif kind == "csv":
        for k, own in enumerate(hundreds):
            (folder / f"{k}.csv").write_text("\n".join(["id,text", *(f'{row["id"]},"{row["text"] or ""}"' for row in own)]))
    elif kind == "gz":
        for k, own in enumerate(hundreds):
            (folder / f"{k}.jsonl.gz").write_bytes(gzip.compress(as_lines(own).encode()))
    elif kind == "lance":
        lance = pytest.importorskip("lance")
        lance.write_dataset(table.slice(0, 250), str(folder / "a.lance"))
        lance.write_dataset(table.slice(250), str(folder / "a.lance"), mode="append")
        return str(folder / "a.lance"), {"unit_rows": 90}
    elif kind == "delta":
        deltalake = pytest.importorskip("deltalake")
        deltalake.write_deltalake(str(folder / "t"), table)
        return str(folder / "t"), {"unit_rows": 90}
    else:
        for k in range(3):
            pq.write_table(table.slice(200 * k, 200), folder / f"train-{k}.parquet")
        return f"hf:{folder}", {}
    return str(folder), {"unit_rows": 90, "unit_bytes": 1500}


def read(cluster, folder, source, sizes=None, name="one", contents=TextShards, **options):
    """The index, texts and rejected rows; in one unit unless `sizes` says how large units are."""
    config = resolve({"corpus": {"source": source} | options | (sizes or {"unit_rows": 10**9, "unit_bytes": 10**9})})
    storage = Storage(str(folder / name))
    found = SourceReader(storage, contents(config.corpus, config.embedding, str(folder / name)), 0, str(folder / name))
    if sizes is not None:
        assert len(found.units) > 2
    index = found.finish(cluster)
    texts = pa.concat_tables([storage.read_table(shard.name) for shard in index.shards]).to_pylist()
    assert [shard.texts for shard in index.shards] == [storage.rows(shard.name) for shard in index.shards]
    parts = [storage.read_table(part) for part in storage.list("rejected")]
    rejected = pa.concat_tables(parts).to_pylist() if parts else []
    return index, texts, sorted(rejected, key=lambda row: row["place"])


def assert_same(one, many):
    """The texts of two readings are the same, and what their indexes say of them."""
    same = ("fingerprint", "read", "rejected", "usable", "analysed", "rejected_reasons")
    assert {name: getattr(one[0], name) for name in same} == {name: getattr(many[0], name) for name in same}
    assert one[1] == many[1]


@pytest.mark.parametrize("kind", KINDS)
def test_many_units_are_the_source(cluster, tmp_path, kind):
    data = tmp_path / "data"
    source, sizes = written(kind, data)
    # A hub set of several files has several units whatever their size.
    one = read(cluster, tmp_path, f"{data}/*.parquet" if kind == "hub" else source)
    many = read(cluster, tmp_path, source, sizes, "many")
    assert_same(one, many)
    assert one[0].rejected > (1 if kind == "txt" else 5)
    assert one[0].fingerprint.startswith("sum:")
    if kind == "hub":
        assert [row["text_id"] for row in one[2]] == [row["text_id"] for row in many[2]]
    else:
        assert one[2] == many[2]


@pytest.mark.parametrize(
    "options", [{"sample": 50}, {"sample": 5000}, {"limit": 1}, {"limit": 95}, {"limit": 333}, {"limit": 10**6}]
)
@pytest.mark.parametrize("kind", ["parquet", "txt", "csv"])
def test_samples_and_limits_of_many_units_are_those_of_one(cluster, tmp_path, kind, options):
    source, sizes = written(kind, tmp_path / "data")
    one = read(cluster, tmp_path, source, **options)
    many = read(cluster, tmp_path, source, sizes, "many", **options)
    assert_same(one, many)
    assert one[2] == many[2]
    if "sample" in options:
        assert [shard.texts for shard in one[0].shards] == [shard.texts for shard in many[0].shards]


def test_ids_are_compared_by_partitions(cluster, tmp_path, monkeypatch):
    source, sizes = written("parquet", tmp_path / "data")
    one = read(cluster, tmp_path, source)
    monkeypatch.setattr(distinct, "PARTITION_IDS", 50)
    monkeypatch.setattr(stream, "SAMPLE_GROUP", 40)
    many = read(cluster, tmp_path, source, sizes, "many")
    assert one[1:] == many[1:]
    sampled = read(cluster, tmp_path, source, sizes, "sampled", sample=100)
    assert sampled[1] == read(cluster, tmp_path, source, name="drawn", sample=100)[1]


def test_the_ids_of_a_unit_are_exact_however_full_their_table_is():
    ids, keys = SeenIds(few=4), [digest_of_id(str(k)) for k in range(3000)]
    for k, key in enumerate(keys):
        assert ids.add(key)
        assert len(ids) == k + 1
        assert not ids.add(keys[k // 2])
        assert not ids.add(key)
    assert len(ids) == 3000
    assert len(ids._table) <= 3000 * 12 * 3
    assert all(SeenIds(few=10_000).add(key) for key in keys)
    same = SeenIds(few=4)
    near = [bytes(7) + b"\1" + bytes([0, 0, 0, k]) for k in range(50)]  # Their first eight bytes are the same.
    assert all(same.add(key) for key in near[:25])
    assert [same.add(key) for key in near] == [False] * 25 + [True] * 25


@pytest.mark.parametrize("sample", [None, 20, 10_000])
def test_a_long_unit_s_ids_are_sorted_in_runs(tmp_path, monkeypatch, sample):
    items = [Text(f"id {k}", "", False, None, place=f"file:{k}", digest=digest_of_id(f"id {k}")) for k in range(100)]
    found = {}
    for run in (7, 50, 1000):
        monkeypatch.setattr(reading, "IDS_OF_A_RUN", run)
        ids = reading.UnitIds(sample, 3)
        assert list(ids.noted(items)) == items
        table = pq.read_table(pa.BufferReader(ids.file()))
        own = table.column("digest").to_pylist()
        assert all(own[k : k + run] == sorted(own[k : k + run]) for k in range(0, 100, run))
        assert table.column("digest").to_pylist() == [digest_of_id(one) for one in table.column("text_id").to_pylist()]
        found[run] = table.sort_by("row").drop_columns("digest").to_pylist(), ids.candidates.to_pylist()
    assert found[7] == found[50] == found[1000]
    assert found[7][0] == [{"row": k, "text_id": f"id {k}", "place": f"file:{k}"} for k in range(100)]
    least = sorted(range(100), key=lambda k: keyed_hash(f"id {k}", 3))[: sample or 0]
    assert [row["row"] for row in found[7][1]] == least


def test_the_first_copy_of_an_id_stays_though_its_unit_is_read_last(cluster, tmp_path):
    source, sizes = written("parquet", tmp_path / "data")

    class Slow(TextShards):
        def items(self, unit, *how):
            time.sleep(1.5 if unit.number == 0 else 0)
            yield from super().items(unit, *how)

    arrived, as_read = [], reading.as_read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "as_read", lambda storage, unit: arrived.append(unit) or as_read(storage, unit))
        slow = read(cluster, tmp_path, source, sizes, "slow", contents=Slow)
    assert arrived[0] != 0
    assert 0 in arrived
    assert slow[1:] == read(cluster, tmp_path, source)[1:]


def test_reading_stops_at_once_whatever_its_tasks_still_read(cluster, tmp_path):
    source, sizes = written("parquet", tmp_path / "data")

    class Endless(TextShards):
        def items(self, unit, *how):
            time.sleep(60 if unit.number > 1 else 0)
            yield from super().items(unit, *how)

    config = resolve({"corpus": {"source": source} | sizes})
    found = SourceReader(
        Storage(str(tmp_path / "run")), Endless(config.corpus, config.embedding, ""), 0, str(tmp_path / "run")
    )
    begun = []

    def interrupted(units):
        if units:
            begun.append(time.monotonic())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        found.finish(cluster, SimpleNamespace(resize=int, advance=interrupted))
    assert time.monotonic() - begun[0] < 30
    assert read(cluster, tmp_path, source)[0].usable > 500  # Ray goes on.


@pytest.mark.parametrize("sample", [None, 20])
def test_what_an_earlier_session_has_read_is_not_read_again(cluster, tmp_path, sample):
    source, sizes = written("parquet", tmp_path / "data")
    begun = tmp_path / "begun"
    begun.mkdir()

    class Counted(TextShards):
        def items(self, unit, *how):
            (begun / f"{unit.number}-{os.getpid()}-{time.monotonic_ns()}").touch()
            yield from super().items(unit, *how)

    def times_begun():
        """How often each unit's rows were read since the last call."""
        paths = list(begun.iterdir())
        for path in paths:
            path.unlink()
        return Counter(int(path.name.split("-")[0]) for path in paths)

    options = {"contents": Counted, "sample": sample}
    whole = read(cluster, tmp_path, source, sizes, "whole", **options)
    times = times_begun()
    assert len(times) > 6
    assert set(times.values()) == ({1} if sample is None else {1, 2})  # Rows of a sample are read once more.
    settings = resolve({"corpus": {"source": source, "sample": sample} | sizes})
    storage = Storage(str(tmp_path / "stopped"))
    reader = SourceReader(storage, Counted(settings.corpus, settings.embedding, storage.root), 0, storage.root)

    class Stopping:
        """A stage in which the user presses Ctrl-C when three units have been read."""

        units = 0

        def resize(self, units):
            pass

        def advance(self, units):
            self.units += units
            if self.units == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reader.finish(cluster, Stopping())
    time.sleep(2)  # Tasks that had begun may end.
    finished = [number for number in times if storage.exists(reading.unit_name(number))]
    assert 3 <= len(finished) < len(times)
    times_begun()
    assert read(cluster, tmp_path, source, sizes, "stopped", **options) == whole
    assert times_begun() == times - Counter(finished)
    storage.remove(SHARDED)  # As where it stops right before its end.
    assert read(cluster, tmp_path, source, sizes, "stopped", **options) == whole
    assert not times_begun()


@pytest.mark.parametrize("sample", [None, 100])
def test_tasks_that_die_while_reading_are_done_again(cluster, tmp_path, sample):
    once = str(tmp_path / "once")
    source, sizes = written("parquet", tmp_path / "data")

    class Dying(TextShards):
        def items(self, unit, *how):
            for number, item in enumerate(super().items(unit, *how)):
                if number == 5 and unit.number % 6 == 0:
                    with contextlib.suppress(FileExistsError):
                        os.close(os.open(f"{once}-{unit.number}", os.O_CREAT | os.O_EXCL))
                        os._exit(1)
                yield item

    died = read(cluster, tmp_path, source, sizes, "died", contents=Dying, sample=sample)
    assert len(list(tmp_path.glob("once-*"))) > 1
    assert died[1:] == read(cluster, tmp_path, source, sample=sample)[1:]


@pytest.mark.parametrize("where", ["repeated", "without_repeated", "sampled", "choose", "regroup"])
@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.soak), True])
def test_tasks_of_the_exchange_that_die_are_done_again(cluster, tmp_path, monkeypatch, where, after):
    """Before they begin, or when all is written and nobody has heard of it."""
    once = str(tmp_path / "once")
    source, sizes = written("parquet", tmp_path / "data")
    module = distinct if where in ("repeated", "sampled") else reading
    function, sample = getattr(module, where), None if "repeated" in where else 100

    def dying(*how):
        found = function(*how) if after else None
        with contextlib.suppress(FileExistsError):
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            os._exit(1)
        return found if after else function(*how)

    monkeypatch.setattr(module, where, dying)
    died = read(cluster, tmp_path, source, sizes, "died", sample=sample)
    monkeypatch.undo()
    assert os.path.exists(once)
    assert died[1:] == read(cluster, tmp_path, source, sample=sample)[1:]


def test_empty_units_change_nothing(cluster, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for k in range(5):
        rows = {"id": [f"{k}-{i}" for i in range(30)], "text": ["fine" if k == 3 else " "] * 30}
        pq.write_table(pa.table(rows), data / f"{k}.parquet")
    pq.write_table(pa.table({"id": pa.array([], pa.string()), "text": pa.array([], pa.string())}), data / "9.parquet")
    index, texts, rejected = read(cluster, tmp_path, str(data), {"unit_rows": 30}, max_rejected=1)
    assert [row["text_id"] for row in texts] == [f"3-{i}" for i in range(30)]
    assert (index.read, len(rejected)) == (150, 120)
    (data / "3.parquet").unlink()
    with pytest.raises(UsageError, match="120 rows"):
        read(cluster, tmp_path, str(data), {"unit_rows": 30}, "nothing")


def test_a_unit_that_no_task_has_read_leaves_the_run_incomplete(cluster, tmp_path, monkeypatch):
    source, sizes = written("parquet", tmp_path / "data")
    monkeypatch.setattr(stream, "run_with_ray_data", lambda *arguments: iter(()))
    with pytest.raises(IncompleteRun, match="units"):
        read(cluster, tmp_path, source, sizes)


@pytest.mark.parametrize("embedded", [False, True])
def test_a_damaged_file_is_named_and_leaves_the_folder_free_unless_texts_were_embedded_there(cluster, tmp_path, embedded):
    data = tmp_path / "data"
    data.mkdir()
    for k in range(6):
        (data / f"{k}.jsonl").write_text(as_lines({"id": f"{k}-{i}", "text": "x" * 40} for i in range(40)))
    (data / "5.jsonl.gz").write_bytes(gzip.compress((data / "5.jsonl").read_bytes())[:-20])
    (data / "5.jsonl").unlink()
    storage = Storage(str(tmp_path / "bad"))

    class Embedding(TextShards):
        """A part is left by whoever embeds while units are read."""

        def items(self, unit, *how):
            if embedded:
                storage.write("texts/part-0.parquet", b"")
            yield from super().items(unit, *how)

    with pytest.raises(UsageError, match=r"5\.jsonl\.gz'"):
        read(cluster, tmp_path, str(data), {"unit_bytes": 1000}, "bad", contents=Embedding)
    assert storage.exists(PLANNED) == embedded


def test_a_column_that_one_parquet_file_lacks_is_told_before_anything_is_read(cluster, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for k in range(4):
        pq.write_table(pa.table({"id": [f"{k}"], "text" if k < 3 else "body": ["x"]}), data / f"{k}.parquet")
    with pytest.raises(UsageError, match=r"'3\.parquet' .*'text'.*'id', 'body'.*--text-column"):
        read(cluster, tmp_path, str(data), {"unit_rows": 1}, "run")
    assert not (tmp_path / "run").exists()


def test_a_changed_source_is_refused_while_it_is_read_by_another_session(cluster, tmp_path):
    source, sizes = written("parquet", tmp_path / "data")
    read(cluster, tmp_path, source, sizes, "run")
    (tmp_path / "run" / "shards" / "index.json").unlink()  # As if the session had ended before.
    pq.write_table(pa.table({"id": ["new"], "text": ["new"]}), tmp_path / "data" / "b.parquet")
    with pytest.raises(UsageError, match="changed"):
        read(cluster, tmp_path, source, sizes, "run")


@pytest.mark.parametrize("sample", [None, 20])
@pytest.mark.parametrize("first", [2, 4])
def test_most_rows_of_many_units_decide_the_width_of_vectors(cluster, tmp_path, first, sample):
    data = tmp_path / "data"
    data.mkdir()
    widths = [first, *[4] * 40, 3, *[4] * 20, *[2] * 30, *[4] * 9]
    for k in range(5):
        own = [[1.0 + n, *[1.0] * (width - 1)] for n, width in enumerate(widths) if n % 5 == k]
        columns = {"id": [f"{k}-{n}" for n in range(len(own))], "v": pa.array(own, pa.list_(pa.float64()))}
        pq.write_table(pa.table(columns | {"n": [5] * len(own)}), data / f"{k}.parquet")
    found = []
    for name, rows in (("one", 10**9), ("many", 10)):
        given = {"source": str(data), "embedding_column": "v", "length_column": "n", "unit_rows": rows, "sample": sample}
        config = resolve({"corpus": {key: value for key, value in given.items() if value}, "out": str(tmp_path / name)})
        storage = Storage(config.out)
        stream = SourceReader(storage, Vectors("texts/given", config.corpus, config.out), 0, config.out)
        index = stream.finish(cluster)
        kept = [row for part in storage.list("texts/given") for row in storage.read_table(part).to_pylist()]
        rejected = [row["place"] for part in storage.list("rejected") for row in storage.read_table(part).to_pylist()]
        found.append((index.fingerprint, index.analysed, index.rejected_reasons, kept, sorted(rejected)))
        assert (len(stream.units) > 5) == (name == "many")
    assert found[0] == found[1]
    assert len(found[0][4]) == sum(width != 4 for width in widths)
    assert {len(row["embedding"]) for row in found[0][3]} == {4}
