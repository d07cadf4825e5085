"""Every kind of store gives the bytes that the same rows give as Parquet, in one unit or many."""

import json
import os
import re
import sys
from dataclasses import replace

import numpy as np
import postgres_server
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import stored_tables
import torch
from command_line import in_process
from whole_run import corrected, digests, tuned

from tempscale.correction.fit import fit
from tempscale.optional import install
from tempscale_jobs.config.sections import Corpus, Execution
from tempscale_jobs.corpus import arrays, sources, stores, units
from tempscale_jobs.corpus.rows import Counts
from tempscale_jobs.corpus.stored import Read, StoredVectors
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.corpus.vectors import Vectors
from tempscale_jobs.errors import Changed, UsageError
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import cluster as sessions

pytestmark = pytest.mark.usefixtures("ray_session")
KINDS = [*stored_tables.KINDS, "postgres"]


@pytest.fixture(scope="module")
def cluster(ray_session):
    with sessions.session(Execution.model_validate({"workers": 2})) as found:
        yield found


@pytest.fixture(scope="module")
def written(tmp_path_factory, request):
    """The address of a kind, written once."""
    rows, addresses = stored_tables.table(), {}

    def address(kind):
        if kind not in addresses and kind == "postgres":
            database = request.getfixturevalue("database")
            postgres_server.fill(database, "docs", rows)
            addresses[kind] = f"{database}?table=docs"
        elif kind not in addresses:
            folder = tmp_path_factory.mktemp(kind)
            addresses[kind] = (stored_tables.parquet if kind == "parquet" else stored_tables.KINDS[kind])(folder, rows)
        return addresses[kind]

    return address


def section(source, **more):
    return Corpus.model_validate({"source": source, "embedding_column": "embedding", "length_column": "tokens"} | more)


def read(source, out, cluster, **more):
    """The parts of texts/ and the index, read in units."""
    storage, settings = Storage(str(out)), section(source, **more)
    index = SourceReader(storage, Vectors("texts", settings, str(out)), 0, str(out)).finish(cluster)
    return index, {name: value for name, value in digests(out).items() if name.startswith("texts/")}


@pytest.mark.parametrize("kind", KINDS)
def test_the_parts_of_one_unit_and_of_many_are_those_of_parquet(tmp_path, written, cluster, kind):
    for name, more in (("whole", {}), ("units", {"unit_rows": 70}), ("sample", {"unit_rows": 70, "sample": 40})):
        index, parts = read(written(kind), tmp_path / f"{name}-{kind}", cluster, **more)
        expected, same = read(written("parquet"), tmp_path / f"{name}-parquet", cluster, **more)
        assert index.fingerprint == expected.fingerprint
        assert (index.read, index.analysed) == (expected.read, expected.analysed)
        assert len(parts) > (name == "units")
        if kind not in ("lance", "delta", "iceberg"):  # Their units follow their own fragments.
            assert parts == same


@pytest.mark.parametrize("kind", KINDS)
def test_corrected_vectors_are_those_of_parquet(tmp_path, written, kind):
    vectors = torch.from_numpy(stored_tables.matrix(stored_tables.table()))
    units, lengths = torch.nn.functional.normalize(vectors), torch.arange(len(vectors)) + 1
    correction = fit("centre", units, lengths, units, lengths)
    (tmp_path / "c.json").write_text(json.dumps(correction.as_data()))
    found = []
    for source in ("parquet", kind):
        data = {"out": str(tmp_path / source), "correction": str(tmp_path / "c.json"), "execution": {"workers": 1}}
        corrected(data | {"embeddings": {"source": written(source), "unit_rows": 100}})
        parts = sorted((tmp_path / source / "vectors").glob("*.parquet"))
        rows = [row for part in parts for row in pq.read_table(part, columns=["id", "text", "embedding"]).to_pylist()]
        found.append(rows)
    assert len(found[0]) == stored_tables.ROWS
    assert found[0] == found[1]


@pytest.mark.proof
@pytest.mark.parametrize("kind", KINDS)
def test_the_tables_of_an_audit_are_those_of_parquet(tmp_path, written, kind):
    tables = []
    for source in ("parquet", kind):
        out = tmp_path / source
        options = ("--embedding-column", "embedding", "--length-column", "tokens", "--workers", "1", "--out", str(out))
        code, _, err = in_process("audit", "--corpus", written(source), *options)
        assert code in (0, 1), err
        tables.append({name: value for name, value in digests(out).items() if name.startswith("tables/")})
    assert tables[0]
    assert tables[0] == tables[1]


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["npz", "postgres", "qdrant"])
def test_what_verify_finds_is_what_it_finds_in_parquet(tmp_path, written, small_model, kind):
    tables = []
    for source in ("parquet", kind):
        out = tmp_path / source
        options = ("--model", small_model, "--sample", "100", "--by", "source", "--workers", "1", "--out", str(out))
        code, _, err = in_process("verify", "--embeddings", written(source), *options)
        assert code == 1, err
        tables.append({name: value for name, value in digests(out).items() if name.startswith("tables/")})
    assert tables[0]
    assert tables[0] == tables[1]


@pytest.mark.proof
def test_what_tune_measures_of_texts_in_a_database_is_what_it_measures_in_parquet(tmp_path, written, small_model):
    tables = []
    for source in ("parquet", "postgres"):
        out = tmp_path / source
        tuned({
            "out": str(out), "corpus": {"source": written(source)}, "execution": {"workers": 1},
            "embedding": {"models": [small_model], "temperatures": [1.0, 0.8]},
            "choosing": {"layers": False, "intervals": [0, 10]},
        })  # fmt: skip
        tables.append({name: value for name, value in digests(out).items() if name.startswith("tables/")})
    assert tables[0]
    assert tables[0] == tables[1]


# --- a source that changes, and mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_a_file_that_changes_is_refused(tmp_path, cluster, kind):
    rows = stored_tables.table()
    source = stored_tables.KINDS[kind](tmp_path, rows)
    settings, out = section(source, unit_rows=70), tmp_path / "out"
    reader = SourceReader(Storage(str(out)), Vectors("texts", settings, str(out)), 0, str(out))
    moved = tmp_path / "moved"
    moved.mkdir()
    vectors = rows.column("embedding").to_pylist()
    vectors[-1] = [9.0] * stored_tables.DIM
    other = rows.set_column(4, "embedding", pa.array(vectors, rows.schema.field("embedding").type))
    stored_tables.KINDS[kind](moved, other)
    os.replace(moved / f"all.{kind}", tmp_path / f"all.{kind}")
    with pytest.raises(Changed):
        reader.finish(cluster)


def saved(folder, array, name="v.npy"):
    np.save(folder / name, array)
    return str(folder / name)


VECTORS, TOKENS = np.ones((4, 3), np.float32), np.arange(4)
MISTAKES = {
    "another setting": (lambda folder: f"{saved(folder, VECTORS)}?idz=x.parquet", "no setting 'idz'"),
    "an empty setting": (lambda folder: f"{saved(folder, VECTORS)}?ids=", "'ids' is empty"),
    "no file": (lambda folder: f"{folder}/none.npy", "is not there"),
    "no ids": (lambda folder: f"{saved(folder, VECTORS)}?ids={folder}/none.parquet", "is not there"),
    "ids as JSON": (lambda folder: f"{saved(folder, VECTORS)}?ids={folder}/ids.json", "must be a Parquet file"),
    "too few ids": (lambda folder: f"{saved(folder, VECTORS)}?ids={tokens_of(folder, 3)}", "has 3 rows, and 'v.npy' 4"),
    "one dimension": (lambda folder: saved(folder, np.ones(4)), r"its shape is \(4,\)"),
    "objects": (lambda folder: saved(folder, np.array([[{}]])), "Python objects"),
    "complex numbers": (lambda folder: saved(folder, np.ones((2, 2), complex)), "holds complex128"),
    "on a server": (lambda folder: "s3://bucket/v.npy", "must be on a disk"),
    "cut": (lambda folder: cut(saved(folder, np.ones((400, 3)))), "v.npy"),
    "compressed": (
        lambda folder: compressed(folder, np.savez_compressed, embedding=VECTORS, tokens=TOKENS), "is compressed"
    ),
    "columns of other lengths": (
        lambda folder: compressed(folder, np.savez, embedding=VECTORS, tokens=TOKENS[:3]), "different numbers of rows"
    ),
    "three dimensions": (
        lambda folder: compressed(folder, np.savez, embedding=np.ones((2, 2, 2)), tokens=TOKENS[:2]), r"is \(2, 2, 2\)"
    ),
    "nothing": (lambda folder: compressed(folder, np.savez, embedding=VECTORS[:0], tokens=TOKENS[:0]), "is empty"),
    "objects in an archive": (
        lambda folder: compressed(folder, np.savez, embedding=np.array([[{}]]), tokens=TOKENS[:1]), "Python objects"
    ),
    "no zip": (lambda folder: cut(compressed(folder, np.savez, embedding=VECTORS, tokens=TOKENS)), "zip"),
}  # fmt: skip


def tokens_of(folder, rows):
    pq.write_table(pa.table({"tokens": TOKENS[:rows]}), folder / "t.parquet")
    return f"{folder}/t.parquet"


def cut(file):
    with open(file, "r+b") as stream:
        stream.truncate(os.path.getsize(file) // 2)
    return file


def compressed(folder, save, **arrays):
    save(folder / "v.npz", **arrays)
    return str(folder / "v.npz")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_about_arrays_are_refused(tmp_path, mistake):
    make, told = MISTAKES[mistake]
    source = make(tmp_path)
    for look in (lambda given: list(sources.records(given, Vectors("texts", given, "").columns)), sources.state):
        if look is sources.state and mistake not in ("another setting", "an empty setting", "no file", "no ids"):
            continue
        with pytest.raises(UsageError, match=told):
            look(section(source, id_column=None))


def test_vectors_are_read_without_the_columns_beside_them(tmp_path):
    pq.write_table(pa.table({"other": TOKENS}), tmp_path / "o.parquet")
    for beside in (f"{tmp_path}/o.parquet", saved(tmp_path, TOKENS, "i.npy")):
        (batch,) = arrays.batches(f"{saved(tmp_path, VECTORS)}?ids={beside}", "", ["embedding"], (1, 4))
        assert (batch.num_rows, batch.schema.names) == (3, ["embedding"])


def test_ids_alone_may_be_a_file_of_numpy(tmp_path):
    source = f"{saved(tmp_path, VECTORS)}?ids={saved(tmp_path, np.array(['a', 'b', 'c', 'd']), 'i.npy')}"
    columns = StoredVectors(section(source), Read(text=False), "").columns
    rows = [record.values for record in sources.records(section(source), columns)]
    assert [row["id"] for row in rows] == list("abcd")
    np.testing.assert_array_equal(np.stack([row["embedding"] for row in rows]), VECTORS)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4", np.int8])
def test_numbers_of_other_kinds_are_the_same_numbers(tmp_path, dtype):
    values = np.arange(1, 13).reshape(4, 3).astype(dtype)
    np.savez(tmp_path / "v.npz", id=np.arange(4), embedding=values, tokens=np.ones(4, np.int32))
    found = [
        record.values for record in sources.records(section(f"{tmp_path}/v.npz"), Vectors("t", section("x"), "").columns)
    ]
    assert [row["id"] for row in found] == list(range(4))
    np.testing.assert_array_equal(np.stack([row["embedding"] for row in found]).astype(float), values.astype(float))


# --- files of FAISS -----------------------------------------------------------------------------------------------------


def faiss_values(source, **more):
    given = Corpus.model_validate({"source": source, "embedding_column": "embedding", "text_column": "id"} | more)
    return [record.values for record in sources.records(given, Vectors("texts", given, "").columns)]


@pytest.mark.parametrize("how", ["flat", "with ids", "ivf", "hnsw"])
def test_vectors_of_faiss_come_with_their_ids_in_order(tmp_path, how):
    faiss = pytest.importorskip("faiss")
    rows = stored_tables.table()
    vectors, ids = stored_tables.matrix(rows), list(map(int, rows.column("id").to_pylist()))
    if how == "ivf":
        source = stored_tables.faiss_ivf(tmp_path, rows)
    else:
        index = faiss.IndexHNSWFlat(stored_tables.DIM, 8) if how == "hnsw" else faiss.IndexFlatL2(stored_tables.DIM)
        if how == "with ids":
            index = faiss.IndexIDMap2(index)
            index.add_with_ids(vectors[::-1].copy(), np.array(ids[::-1]))
        else:
            index.add(vectors)
            ids = list(range(len(ids)))
        source = str(tmp_path / "a.faiss")
        faiss.write_index(index, source)
    found = faiss_values(source)
    assert [row["id"] for row in found] == ids
    np.testing.assert_array_equal(np.stack([row["embedding"] for row in found]), vectors)


def written_index(folder, index, rows=20):
    import faiss

    vectors = np.random.default_rng(0).standard_normal((rows, 8)).astype(np.float32)
    if not index.is_trained:
        index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(folder / "a.faiss"))
    return str(folder / "a.faiss")


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("compressed", "IndexScalarQuantizer"), ("cut", "a.faiss"), ("no file", "none.faiss"), ("too few ids", "19"),
        ("ids of its own", "ids of its own"),
    ],
)  # fmt: skip
def test_mistakes_about_faiss_are_refused(tmp_path, mistake, told):
    faiss = pytest.importorskip("faiss")
    np.save(tmp_path / "ids.npy", np.arange({"too few ids": 19, "ids of its own": 100}.get(mistake, 20)))
    source = {
        "compressed": lambda: written_index(tmp_path, faiss.IndexScalarQuantizer(8, faiss.ScalarQuantizer.QT_8bit)),
        "cut": lambda: cut(written_index(tmp_path, faiss.IndexFlatL2(8))),
        "no file": lambda: f"{tmp_path}/none.faiss",
        "ids of its own": lambda: f"{stored_tables.faiss_ivf(tmp_path, stored_tables.table(100))}?ids={tmp_path}/ids.npy",
        "too few ids": lambda: f"{written_index(tmp_path, faiss.IndexFlatL2(8))}?ids={tmp_path}/ids.npy",
    }[mistake]()
    with pytest.raises(UsageError, match=told):
        faiss_values(source)


@pytest.mark.parametrize(("module", "source"), [("faiss", "a.faiss"), ("qdrant_client", "qdrant:a/b?pickles=trusted")])
def test_a_missing_library_is_named(tmp_path, monkeypatch, module, source):
    (tmp_path / "a.faiss").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=re.escape(install(module))):
        stores.of(source).columns(source)


def test_rows_of_texts_and_vectors_go_into_a_part_and_back(tmp_path):
    columns = {"id": ["a", "b"], "text": ["x", "y"], "embedding": [[1.0, 2.0], [3.0, 4.0, 5.0]], "day": [None, 7.0]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    contents = StoredVectors(section(str(tmp_path / "a.parquet"), id_column="id"), Read(by=("day",)), "")
    assert contents.begin(None) is None
    (unit,) = units.plan(contents.corpus, contents.columns, contents.corpus)
    rows = list(contents.items(replace(unit, limit=None), Counts(), None))
    assert [(row.text_id, row.groups, row.vector.tolist()) for row in rows] == [
        ("a", [None], [1, 2]),
        ("b", ["7.0"], [3, 4, 5]),
    ]
    again = list(contents.items_of(contents.table(rows)))
    assert [row.vector.tolist() for row in again] == [row.vector.tolist() for row in rows]
    assert [row[:2] + row[3:7] for row in again] == [row[:2] + row[3:7] for row in rows]
