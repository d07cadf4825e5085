"""A finished run is never destroyed: exactly what is damaged or missing is made again, and good files stay as they are."""

import itertools
import json
import random
import shutil

import pytest
from left_behind import WAYS, damage, files_of, is_end, piece_of, writes
from whole_run import audited

from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs import inventory
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.proof

SOAK = pytest.mark.soak


@pytest.mark.parametrize("name", ["groups", pytest.param("sample", marks=SOAK)])
def test_each_damage_of_each_file_is_noticed(finished_audit, tmp_path, name):
    other = (finished_audit("groups") / "tables" / "socm.parquet").read_bytes()
    shutil.copytree(finished_audit(name), tmp_path / "run")
    storage = Storage(str(tmp_path / "run"))
    record = inventory.record(storage)
    assert inventory.damaged(storage, record) == []
    known = json.loads((tmp_path / "run" / "partials" / "inventory.json").read_text())["files"]
    assert set(files_of(tmp_path / "run")) == {
        *known, "run.json", "begun.json", "partials/inventory.json", "tables/gate.parquet",
        *(name for name in files_of(tmp_path / "run") if name.startswith("history/")),
    }  # fmt: skip
    noticed = set()
    for file, how in zip(["run.json", *known], itertools.cycle(WAYS), strict=False):
        kept = (tmp_path / "run" / file).read_bytes()
        damage(tmp_path / "run" / file, how, other)
        if (tmp_path / "run" / file).exists() and (tmp_path / "run" / file).read_bytes() == kept:
            continue
        assert inventory.record(storage) == record
        assert inventory.damaged(storage, record) == [file], how
        (tmp_path / "run" / file).write_bytes(kept)
        noticed.add(how)
    assert noticed == set(WAYS)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("name", "seed"), [("groups", 0), pytest.param("groups", 1, marks=SOAK), pytest.param("sample", 0, marks=SOAK)]
)
def test_what_is_damaged_is_made_again_and_nothing_else(finished_audit, settings_of, tmp_path, name, seed):
    """Every third file of a finished run at once, each in a way drawn from all."""
    run, generator = tmp_path / "run", random.Random(f"{name} {seed}")
    shutil.copytree(finished_audit(name), run)
    before = files_of(run)
    hit = sorted(file for file in before if not file.startswith(("history/", "begun.json", "partials/inventory")))[seed::3]
    for file in hit:
        damage(run / file, generator.choice(WAYS), generator.choice([*before.values()]))
    kept = writes(run)
    audited(settings_of(run, name))
    after = files_of(run)
    assert set(after) == set(before)
    assert [file for file in before if after[file] != before[file]] == []
    assert inventory.damaged(Storage(str(run)), inventory.record(Storage(str(run)))) == []
    now, pieces = writes(run), {piece_of(file) for file in hit}
    again = {file for file in before if now[file] != kept.get(file) and piece_of(file) not in pieces and not is_end(file)}
    # What tiles found of neighbours is not kept, so they are computed again where these are; each call notes its night.
    assert {file for file in again if "/tile-" not in file and not file.startswith("history/")} == set()


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("fresh", [False, True])
def test_damage_beside_a_run_never_touches_it(finished_audit, settings_of, tmp_path, fresh):
    """A bit of an older part of the record in the run's own folder, and what lies in the folder besides."""
    run = tmp_path / "run"
    shutil.copytree(finished_audit("groups"), run)
    (own,) = (run / "history").iterdir()
    older = run / "history" / "part-20200101T000000-older.parquet"
    older.write_bytes(own.read_bytes())
    damage(older, "flipped")
    before, kept = files_of(run), writes(run)
    audited(settings_of(run, "groups"), fresh=fresh)
    judged = json.loads((run / "run.json").read_text())["gate"]
    assert judged["verdict"] == "passed"
    assert len(judged["unreadable_nights"]) == 1
    assert older.name in judged["unreadable_nights"][0]
    assert older.read_bytes() == before[str(older.relative_to(run))]
    if not fresh:
        now = writes(run)
        allowed = {"run.json", "report.html", "tables/gate.parquet", "partials/inventory.json", f"history/{own.name}"}
        assert {name for name in before if now[name] != kept[name]} <= allowed


@pytest.mark.parametrize("gone", ["source", "embeddings", "record"])
@pytest.mark.parametrize("name", ["tables/socm.parquet", "texts", "partials/cosine"])
def test_what_cannot_be_made_again_is_said_and_nothing_is_changed(finished_audit, settings_of, tmp_path, name, gone):
    """The source is another than the run read, the embeddings were pruned, or its record is gone with its copy."""
    run, storage = tmp_path / "run", Storage(str(tmp_path / "run"))
    shutil.copytree(finished_audit("groups"), run)
    if gone == "source":
        record = storage.read_json("run.json")
        record["corpus"]["source_state"] = {"another": "state"}
        storage.write_json("run.json", record)
    elif gone == "embeddings":
        storage.remove("texts")
        storage.write_json("pruned.json", {"removed": ["texts"], "at": "2026-11-26"})
        assert inventory.damaged(storage, storage.read_json("run.json")) == []
        if name == "texts":
            return
    else:
        for own in ("run.json", "partials/inventory.json"):
            damage(run / own, "cut")
    for file in storage.list(name)[:1]:
        storage.remove(file)
    kept = writes(run)
    with pytest.raises(UsageError):
        audited(settings_of(run, "groups"))
    assert writes(run) == kept


@pytest.mark.parametrize("name", ["partials/inventory.json", "run.json", "report.html"])
def test_what_needs_no_step_is_made_again_without_one(finished_audit, settings_of, tmp_path, name):
    for how in WAYS:
        run = tmp_path / how
        shutil.copytree(finished_audit("groups"), run)
        before = files_of(run)
        damage(run / name, how, before["begun.json"])
        kept = writes(run)
        # No Ray is reached: there is nothing for it to do.
        audited(settings_of(run, "groups", address="127.0.0.1:1"))
        assert files_of(run) == before, how
        now = writes(run)
        assert {file for file in before if now[file] != kept.get(file)} - {name} <= {
            "tables/gate.parquet", "partials/inventory.json", *(file for file in before if file.startswith("history/")),
        }  # fmt: skip
