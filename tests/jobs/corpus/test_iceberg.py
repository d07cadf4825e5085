"""Iceberg tables by their library: from a folder and a catalogue, one snapshot, deleted rows, files elsewhere refused."""

import re
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import stored_tables

from tempscale.optional import install
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import iceberg, sources, stores, units
from tempscale_jobs.corpus.vectors import Vectors
from tempscale_jobs.errors import UsageError

pytest.importorskip("pyiceberg")


def section(source, **more):
    return Corpus.model_validate({"source": source, "embedding_column": "embedding", "length_column": "tokens"} | more)


def ids(given):
    return [record.values["id"] for record in sources.records(given, Vectors("texts", given, "").columns)]


@pytest.fixture
def table(tmp_path, monkeypatch):
    """The folder of a table, and the table; the catalogue `local` is known by the environment."""
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    source = stored_tables.iceberg(tmp_path, stored_tables.table())
    for key, value in stored_tables.iceberg_catalogue(tmp_path).items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LOCAL__{key.upper()}", value)
    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())  # The library reads the environment when it is imported.
    return source, catalog.load_catalog("local", **stored_tables.iceberg_catalogue(tmp_path)).load_table("texts.docs")


EXPECTED = stored_tables.table().column("id").to_pylist()


def test_a_folder_and_a_catalogue_give_the_same_rows_without_deleted_ones(table):
    source, made = table
    assert ids(section(source)) == ids(section("iceberg:local.texts.docs")) == EXPECTED
    made.delete("id == '1000003'")
    for again in (source, "iceberg:local.texts.docs"):
        assert sorted(ids(section(again))) == [name for name in EXPECTED if name != "1000003"]


def delete_by_file(made, places):
    """Delete rows of the first data file by a file of their places, as other engines do and pyiceberg does not."""
    from pyiceberg import manifest
    from pyiceberg.typedef import Record

    class OfDeletes(manifest.ManifestWriterV2):
        def content(self):
            return manifest.ManifestContent.DELETES

    data = min(made.scan().plan_files(), key=lambda task: task.file.file_path).file
    file = f"{made.location()}/data/deleted.parquet"
    names = {"file_path": (pa.string(), 2147483546), "pos": (pa.int64(), 2147483545)}  # The format's own ids.
    fields = [pa.field(name, kind, False, {"PARQUET:field_id": str(number)}) for name, (kind, number) in names.items()]
    pq.write_table(pa.table([[data.file_path] * len(places), places], pa.schema(fields)), file.removeprefix("file://"))
    with made.transaction() as changes, changes.update_snapshot().fast_append() as update:
        deleted = manifest.DataFile.from_args(
            content=manifest.DataFileContent.POSITION_DELETES, file_path=file, file_format=manifest.FileFormat.PARQUET,
            partition=Record(), record_count=len(places), file_size_in_bytes=1000,
        )  # fmt: skip
        place = made.io.new_output(f"{made.location()}/metadata/deleted.avro")
        with OfDeletes(made.spec(), made.schema(), place, update._snapshot_id, "null") as writer:
            entry = {"status": manifest.ManifestEntryStatus.ADDED, "snapshot_id": update._snapshot_id, "data_file": deleted}
            writer.add_entry(manifest.ManifestEntry.from_args(**entry))
        written, before = writer.to_manifest_file(), update._existing_manifests
        update._existing_manifests = lambda: [*before(), written]


def test_rows_that_a_file_of_places_deletes_are_neither_counted_nor_read(table):
    source, made = table
    delete_by_file(made, [0, 2])
    made.refresh()
    left = made.scan().to_arrow().column("id").to_pylist()
    assert len(left) == len(EXPECTED) - 2
    parts = iceberg.parts(source, ["id"], (70, 1 << 20))
    assert [part.rows for part in parts] == [len(batch_ids(source, part)) for part in parts]
    assert sum(part.rows for part in parts) == len(left)
    assert [part.number for part in parts] == [0, parts[0].rows]
    assert sorted(ids(section(source))) == sorted(left)


def batch_ids(source, part):
    return [name for batch in iceberg.batches(source, part.at, ["id"], (0, part.rows)) for name in batch["id"].to_pylist()]


def test_a_table_without_a_snapshot_has_no_parts(tmp_path):
    from pyiceberg.catalog import load_catalog

    (tmp_path / "warehouse").mkdir()
    catalogue = load_catalog("local", **stored_tables.iceberg_catalogue(tmp_path))
    catalogue.create_namespace("texts")
    made = catalogue.create_table("texts.docs", stored_tables.table().schema)
    source = f"iceberg:{made.location().removeprefix('file://')}"
    assert iceberg.parts(source, ["id"], (70, 1 << 20)) == []
    assert ids(section(source)) == []


def test_rows_are_those_of_the_planned_snapshot_and_afterwards_the_table_has_changed(table):
    source, made = table
    given = section(source, unit_rows=70)
    columns, state = Vectors("texts", given, "").columns, sources.identity(given)
    planned = units.plan(given, columns, given)
    made.append(stored_tables.table().slice(0, 3))
    found = [record.values["id"] for unit in planned for record in units.records(given, unit, columns)]
    assert found == EXPECTED
    assert sources.changes(given, state) == ["snapshot"]
    with pytest.raises(UsageError, match="changed"):
        sources.check_unchanged(given, "out", state)


def test_a_table_that_names_a_file_elsewhere_is_refused(table, tmp_path):
    source, made = table
    stored_tables.pq.write_table(stored_tables.table().slice(0, 2), tmp_path / "private.parquet")
    made.add_files([f"file://{tmp_path}/private.parquet"])
    with pytest.raises(UsageError, match=r"private\.parquet"):
        ids(section(source))


def test_a_table_without_rows_has_none(tmp_path):
    source = stored_tables.iceberg(tmp_path, stored_tables.table().slice(0, 0))
    given = section(source)
    with pytest.raises(UsageError, match="no row"):
        sources.check_rows(given, "out", ids(given))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("iceberg:{folder}/nothing", "no Iceberg table"),
        ("iceberg:docs", "names no table"),
        ("iceberg:local.texts.none", "none"),
        ("iceberg:elsewhere.texts.docs", "elsewhere"),
        ("{table}?version=1", "'version'"),
    ],
)
def test_a_mistake_is_one_sentence(table, tmp_path, source, told):
    with pytest.raises(UsageError, match=told):
        ids(section(source.format(folder=tmp_path, table=table[0])))


def test_a_missing_column_and_a_missing_library_are_named(table, monkeypatch):
    source, _ = table
    with pytest.raises(UsageError, match="--embedding-column"):
        ids(section(source, embedding_column="nothing"))
    monkeypatch.setitem(sys.modules, "pyiceberg.table", None)
    with pytest.raises(UsageError, match=re.escape(install("pyiceberg"))):
        stores.of(source).columns(source)


def test_the_files_of_a_table_are_refused_with_its_address(table):
    folder = table[0].removeprefix("iceberg:")
    with pytest.raises(UsageError, match=re.escape(f"iceberg:{folder}")):
        ids(section(f"{folder}/data"))
    assert iceberg.kind(folder) is None
