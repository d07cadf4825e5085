"""What is read of a finished run by other commands: what is missing or no record of a run is damage, and ends with 2."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from command_line import in_process
from whole_run import flipped

from tempscale_jobs.config.nights import Gate, RecordOfNights
from tempscale_jobs.errors import Damaged, UsageError
from tempscale_jobs.lifecycle import Lifecycle
from tempscale_jobs.nights.night import check_record
from tempscale_jobs.runs import folder, inventory, mending
from tempscale_jobs.runs.folder import Run
from tempscale_jobs.runs.storage import Storage

TABLES = ("collapse_summary", "length_collapse", "exposure")


def audit(root, has_inventory, without=()):
    """A finished audit, or what is left of one."""
    config = {"analysis": {"intervals": [0]}, "corpus": {}, "embedding": {}}
    storage, record = Storage(str(root)), {"run": "r", "config": config, "models": {}}
    storage.write_json("begun.json", {"identity": {}, "run": "r", "started": "2026-11-01T00:00:00"})
    for name in TABLES:
        storage.write_table(f"tables/{name}.parquet", pa.table({"model": ["m"]}))
    if has_inventory:
        inventory.write(storage, record)
    storage.write_json("run.json", record)
    for name in without:
        storage.remove(f"tables/{name}.parquet")
    return storage


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("has_inventory", [True, False])
def test_a_table_that_is_missing_is_damage_where_it_is_read(tmp_path, table, has_inventory):
    storage = audit(tmp_path / "run", has_inventory, [table])
    with pytest.raises(Damaged) as raised:
        inventory.results(storage)[1][table]
    assert raised.value.path == f"{storage.root}/tables/{table}.parquet"
    assert table not in inventory.results(audit(tmp_path / "other", False, [table]))[1]


@pytest.mark.parametrize("command", ["report", "compare"])
@pytest.mark.parametrize("has_inventory", [True, False])
def test_a_run_without_one_of_its_tables_ends_what_reads_it_with_2(tmp_path, command, has_inventory):
    storage = audit(tmp_path / "run", has_inventory, ["collapse_summary"])
    code, _, err = in_process(command, *[storage.root] * (2 if command == "compare" else 1))
    assert code == 2, err
    with pytest.raises(UsageError):
        check_record(RecordOfNights(), Gate(baseline=storage.root), str(tmp_path / "out"))


def test_the_run_json_of_another_run_is_damage(tmp_path):
    storage = audit(tmp_path / "run", True)
    record = storage.read_json("run.json")
    storage.write_json("run.json", record | {"run": "another"})
    assert inventory.record(storage) == record
    assert inventory.damaged(storage, record) == ["run.json"]


def test_a_report_that_is_drawn_again_with_other_bytes_is_no_damage_any_more(tmp_path):
    storage = audit(tmp_path / "run", False)
    storage.write("report.html", b"of another version")
    inventory.write(storage, storage.read_json("run.json"))
    storage.write("report.html", b"")

    def opened():
        config = SimpleNamespace(command="audit", identity=dict)
        return Lifecycle(config, Run(storage, [], [], "2026-11-01", complete=True), None, None)

    life = opened()
    assert life.damaged_drawings == {"report.html"}
    storage.write("report.html", b"as this version draws it")
    life.note_restored(stage := SimpleNamespace(note=""), life.damaged_drawings)
    assert "report.html" in stage.note
    assert opened().damaged == set()


@pytest.mark.parametrize("content", ["[]", "5", "null", '"x"', "{}", '{"identity": []}'])
@pytest.mark.parametrize("name", ["run.json", "begun.json", "pruned.json"])
def test_what_is_no_record_of_a_run_is_damage(tmp_path, name, content):
    storage = audit(tmp_path / "run", True)
    record = storage.read_json("run.json")
    storage.write(name, content.encode())
    if name == "run.json":
        assert in_process("report", storage.root)[0] == in_process("compare", storage.root, storage.root)[0] == 2
        assert inventory.record(storage) == record
        assert inventory.damaged(storage, record) == ["run.json"]
    elif name == "begun.json":
        with pytest.raises(Damaged):
            inventory.record(storage)
        with pytest.raises(UsageError, match=r"begun\.json"):
            folder.begun_record(storage, False)
        assert folder.begun_record(storage, True) == {"identity": {}}
    else:
        with pytest.raises(UsageError):
            inventory.damaged(storage, record)


@pytest.mark.parametrize("table", TABLES)
def test_what_a_run_of_an_older_version_lacks_is_made_again(tmp_path, table):
    """It has no inventory, so that the first look at it notes what is there."""
    storage = audit(tmp_path / "run", False, [table])
    record = inventory.record(storage)
    assert inventory.damaged(storage, record) == []
    error = Damaged("missing", f"{storage.root}/tables/{table}.parquet")
    mending.mend(storage, "audit", error)
    assert inventory.damaged(storage, record) == [f"tables/{table}.parquet"]
    storage.write_table(f"tables/{table}.parquet", pa.table({"model": ["m"]}))
    inventory.write(storage, record)
    assert inventory.damaged(storage, record) == []


@pytest.mark.parametrize("name", ["factors/model=m/part-0.parquet", "partials/budget/m.json"])
def test_damage_that_no_step_has_read_is_found_at_the_end_and_not_written_down_as_right(tmp_path, name):
    """A part of a step that had ended before the run was stopped: its later steps have ended, too."""
    storage = audit(tmp_path / "run", False)
    storage.write_table("factors/model=m/part-0.parquet", pa.table({"factor": [[0.5, 0.25, 1.5]] * 40}))
    storage.write_json("partials/budget/m.json", {"token_budget": 1024})
    record = storage.read_json("run.json")
    inventory.write(storage, record)
    written = storage.read(name)
    for bit in (8 * 40 + 3, 8 * (len(written) // 3)):
        storage.write(name, flipped(written, bit))
        with pytest.raises(Damaged) as raised:
            inventory.write(storage, record)
        assert raised.value.path == f"{storage.root}/{name}"
    storage.write(name, written)
    inventory.write(storage, record)
    assert inventory.damaged(storage, record) == []
