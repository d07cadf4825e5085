"""A finished run is never destroyed: exactly what is damaged or missing is made again, and good files stay as they are."""

import json
import random
import shutil
from pathlib import Path

import pytest
from whole_run import as_lines, audited, documented, flipped

from tempscale_jobs.runs import inventory
from tempscale_jobs.runs.storage import Storage

_PASSING = ("status.json", ".lock")
"""Files that every call writes."""


def files_of(out):
    """The content of each file of a run, by its name."""
    found = {str(file.relative_to(out)): file.read_bytes() for file in Path(out).rglob("*") if file.is_file()}
    return {name: data for name, data in found.items() if name not in _PASSING}


def written(out):
    """What changes where a file is written, by name."""
    return {name: ((out / name).stat().st_ino, (out / name).stat().st_mtime_ns) for name in files_of(out)}


def damage(file, how, other=b""):
    """Damage a file in one of the ways that disks, crashes and people know."""
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "cut":
        file.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        file.write_bytes(flipped(data, 8 * (len(data) // 2)))
    else:
        file.write_bytes(other)


WAYS = ("missing", "empty", "cut", "flipped", "exchanged")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    texts = documented("pyarrow")
    (folder / "texts.jsonl").write_text(as_lines(texts[:90]))
    (folder / "asked.jsonl").write_text(as_lines(texts[90:120]))
    return folder


def settings_of(out, folder, model, **more):
    return {
        "out": str(out), "corpus": {"source": str(folder / "texts.jsonl")} | more.pop("corpus", {}),
        "queries": {"source": str(folder / "asked.jsonl")}, "embedding": {"models": [model], "shard_texts": 30},
        "analysis": {"socm_groups": 12, "probe_sample": 20, "intervals": [0, 32, 64]} | more.pop("analysis", {}),
        "execution": {"workers": 1}, "gate": {"thresholds": ["cosine_mean <= 1"]},
    } | more  # fmt: skip


@pytest.fixture(scope="module")
def audits(tmp_path_factory, ray_session, corpus, small_model):
    """Finished audits by their ways: groups of texts read in units, and all pairs of a sample with the corpus's worst."""
    folder = tmp_path_factory.mktemp("audits")
    ways = {
        "groups": {"corpus": {"unit_rows": 40, "unit_bytes": 20_000}},
        "sample": {"analysis": {"socm_sample": 24, "socm_top_over": "corpus", "worst_pairs": 5}},
    }
    for name, more in ways.items():
        audited(settings_of(folder / name, corpus, small_model, **more))
    return folder, ways


@pytest.mark.parametrize("name", ["groups", "sample"])
def test_each_damage_of_each_file_is_noticed(audits, tmp_path, name):
    folder, _ = audits
    other = (folder / "groups" / "tables" / "socm.parquet").read_bytes()
    shutil.copytree(folder / name, tmp_path / "run")
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["groups", "sample"])
def test_what_is_damaged_is_made_again_and_nothing_else(audits, corpus, small_model, tmp_path, name, seed):
    folder, ways = audits
    run, generator = tmp_path / "run", random.Random(f"{name} {seed}")
    shutil.copytree(folder / name, run)
    before = files_of(folder / name)
    hit = [file for file in before if not file.startswith(("history/", "begun.json"))]
    hit = sorted(hit)[seed::3]
    hit = [file for file in hit if file not in ("partials/inventory.json",)]
    for file in hit:
        damage(run / file, generator.choice(WAYS), generator.choice([*before.values()]))
    whole = written(run)
    audited(settings_of(run, corpus, small_model, **ways[name]))
    after = files_of(run)
    assert {file for file in before if after.get(file) != before[file]} == set()
    assert set(after) == set(before)
    again = {file for file, when in written(run).items() if file not in hit and whole[file] != when}
    print(sorted(again))
