"""A finished run is never destroyed: exactly what is damaged or missing is made again, and good files stay as they are."""

import json
import random
import shutil

import pytest
from left_behind import WAYS, damage, files_of, is_end, writes
from whole_run import audited

from tempscale_jobs.runs import inventory
from tempscale_jobs.runs.storage import Storage


@pytest.mark.parametrize("name", ["groups", "sample"])
def test_each_damage_of_each_file_is_noticed(audits, tmp_path, name):
    other = (audits / "groups" / "tables" / "socm.parquet").read_bytes()
    shutil.copytree(audits / name, tmp_path / "run")
    storage = Storage(str(tmp_path / "run"))
    record = inventory.record(storage)
    assert inventory.damaged(storage, record) == []
    known = json.loads((tmp_path / "run" / "partials" / "inventory.json").read_text())["files"]
    assert set(files_of(tmp_path / "run")) == {
        *known, "run.json", "begun.json", "partials/inventory.json", "tables/gate.parquet",
        *(name for name in files_of(tmp_path / "run") if name.startswith("history/")),
    }  # fmt: skip
    for file in ["run.json", *known]:
        for how in WAYS:
            kept = (tmp_path / "run" / file).read_bytes()
            damage(tmp_path / "run" / file, how, other)
            if (tmp_path / "run" / file).exists() and (tmp_path / "run" / file).read_bytes() == kept:
                continue
            assert inventory.record(storage) == record
            assert inventory.damaged(storage, record) == [file], how
            (tmp_path / "run" / file).write_bytes(kept)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["groups", "sample"])
def test_what_is_damaged_is_made_again_and_nothing_else(audits, settings_of, tmp_path, name, seed):
    """Every third file of a finished run at once, each in a way drawn from all."""
    run, generator = tmp_path / "run", random.Random(f"{name} {seed}")
    shutil.copytree(audits / name, run)
    before = files_of(run)
    hit = sorted(file for file in before if not file.startswith(("history/", "begun.json", "partials/inventory")))[seed::3]
    for file in hit:
        damage(run / file, generator.choice(WAYS), generator.choice([*before.values()]))
    kept = writes(run)
    audited(settings_of(run, name))
    after = files_of(run)
    assert set(after) == set(before)
    assert [file for file in before if after[file] != before[file]] == []
    now = writes(run)
    again = [file for file in before if file not in hit and now[file] != kept[file] and not is_end(file)]
    print(again)
