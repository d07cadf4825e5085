"""What a flipped bit or a cut end has hit in a run is named and made again, with the same bytes."""

import io
from contextlib import closing

import pytest
from rich.console import Console

from tempscale_jobs import lifecycle
from tempscale_jobs.errors import Damaged
from tempscale_jobs.runs import mending
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage

CELL = "cells/model=m/temperature=1.0/task=t"
TEXT = "texts/model=m/temperature={}/part-00000001.parquet"
COMPARED = "verify/partials/compared/model=v/temperature=1.0"
KEPT = [
    "begun.json", "shards/index.json", "shards/plan.json", "shards/unit-00000000.json", "shards/part-00000000.parquet",
    "texts/model=m/temperature=1.0/part-00000000.parquet", TEXT.format("1.0"), TEXT.format("0.8"),
    "texts/model=other/temperature=1.0/part-00000001.parquet", "rejected/model=m/part-00000001.parquet",
    "rejected/part-00000000.parquet", "partials/groups/model=m/temperature=1.0/part-00000001.parquet",
    "partials/cosine/model=m/temperature=1.0/closed.json", "tables/socm.parquet", "history/part-x.parquet",
    "cache/x.parquet", "queries/shards/index.json", "queries/shards/plan.json", "queries/shards/unit-00000000.json",
    "queries/shards/part-00000000.parquet", f"queries/{TEXT.format('1.0')}",
    "partials/pairs/model=m/temperature=1.0/part-00000001.parquet", f"{CELL}/items.parquet", f"{CELL}/result.json",
    "cells/model=m/temperature=1.0/task=other/result.json",
    "measured/neighbours/model=m/temperature=1.0/part-00000000.parquet", "measured/run.json",
    *(f"{below}/shards/{name}.json" for below in ("other", "verify") for name in ("index", "plan")),
    *(f"{below}/shards/part-00000000.parquet" for below in ("other", "verify")),
    "verify/rejected/model=v/part-00000001.parquet", *(f"{COMPARED}/part-0000000{k}.parquet" for k in (1, 2)),
]  # fmt: skip


@pytest.fixture
def full(tmp_path):
    """A folder with files of all kinds."""
    storage = Storage(str(tmp_path / "run"))
    for name in KEPT:
        storage.write(name, b"1")
    return storage


def mended(storage, command, name):
    """What is missing after a file was damaged."""
    assert mending.mend(storage, command, Damaged("bits", f"{storage.root}/{name}"))
    return sorted(set(KEPT) - set(storage.list("")))


@pytest.mark.parametrize(
    ("command", "name", "others"),
    [
        ("audit", TEXT.format("0.8"), []),
        ("audit", "queries/texts/model=m/temperature=1.0/part-00000001.parquet", []),
        ("audit", "tables/socm.parquet", []),
        ("audit", "partials/groups/model=m/temperature=1.0/part-00000001.parquet", []),
        ("audit", "partials/cosine/model=m/temperature=1.0/closed.json", []),
        ("audit", "shards/unit-00000000.json", ["shards/index.json"]),
        ("audit", "shards/index.json", []),
        ("audit", "queries/shards/index.json", []),
        (
            "audit", "queries/shards/part-00000000.parquet",
            ["queries/shards/index.json", "queries/shards/unit-00000000.json"],
        ),
        # What is left of the source is read again, and written over what is there.
        ("audit", "shards/part-00000000.parquet", ["shards/index.json", "shards/unit-00000000.json"]),
        ("audit", "rejected/part-00000000.parquet", ["shards/index.json", "shards/unit-00000000.json"]),
        # A piece is done with all its parts, so one of them goes with what it rejected.
        ("audit", "rejected/model=m/part-00000001.parquet", [TEXT.format("0.8")]),
        ("evaluate", f"{CELL}/items.parquet", [f"{CELL}/result.json"]),
        ("pairs", "partials/pairs/model=m/temperature=1.0/part-00000001.parquet", []),
        ("tune", "measured/neighbours/model=m/temperature=1.0/part-00000000.parquet", []),
        ("tune", "measured/run.json", []),
        ("verify", "other/shards/part-00000000.parquet", ["other/shards/index.json"]),
        ("audit", "verify/shards/part-00000000.parquet", ["verify/shards/index.json"]),
        ("audit", f"{COMPARED}/part-00000002.parquet", []),
        (
            "audit", "verify/rejected/model=v/part-00000001.parquet",
            [f"{COMPARED}/part-00000001.parquet"],
        ),
    ],
)  # fmt: skip
def test_only_what_is_damaged_goes_and_what_keeps_it_from_being_made_again(full, command, name, others):
    assert mended(full, command, name) == sorted([name, *others])


@pytest.mark.parametrize("command", ["audit", "pairs"])
@pytest.mark.parametrize(
    "name", ["../another/tables/x.parquet", "history/part-x.parquet", "cache/x.parquet", "begun.json", "2026-11-01/run.json"]
)
def test_what_is_not_the_runs_own_is_not_mended(full, command, name):
    error = Damaged("bits", f"{full.root}/{name}")
    with pytest.raises(Damaged) as raised:
        mending.mend(full, command, error)
    assert raised.value is error
    assert full.list("") == sorted(KEPT)


def test_a_finished_run_is_opened_again_for_its_sources_and_without_what_is_damaged(full):
    """Its tables are written again anyway; the text is one that a step must find missing."""
    record = {"corpus": {"source_state": {"size": 3}}, "queries": {"source_state": {"size": 5}}, "sizes": {"texts": 7}}
    record |= {"verified": {"source_state": {"size": 9}}}
    mending.reopen(full, record, ["tables/socm.parquet", TEXT.format("0.8")])
    states = [full.read_json(f"{below}shards/plan.json")["source_state"] for below in ("", "queries/", "verify/")]
    assert states == [{"size": 3}, {"size": 5}, {"size": 9}]
    assert full.read_json("shards/sizes.json") == {"texts": 7}
    assert set(KEPT) - set(full.list("")) == {TEXT.format("0.8")}


def test_without_a_plan_the_state_of_the_source_is_that_of_its_index_and_without_both_all_is_made_again(full):
    full.remove("shards/plan.json")
    full.write_json("shards/index.json", {"source_state": {"size": 3}})
    mending.mend(full, "audit", Damaged("bits", f"{full.root}/shards/part-00000000.parquet"))
    assert full.read_json("shards/plan.json")["source_state"] == {"size": 3}
    assert full.exists(TEXT.format("1.0"))
    full.remove("shards/plan.json")
    mending.mend(full, "audit", Damaged("bits", f"{full.root}/shards/index.json"))
    assert not full.exists("texts")
    assert full.exists("begun.json")
    assert full.exists("history/part-x.parquet")


@pytest.mark.parametrize(("wanted", "last"), [(2, "/run/2"), (7, "/run/7"), (2, "")])
def test_many_files_are_mended_and_one_that_is_damaged_again_or_is_not_its_own_is_not(wanted, last):
    """Each call finds another damaged file, until the last one; only the first call starts over."""
    calls, printed = [], io.StringIO()

    @lifecycle.mended
    def command(config, journal, *, fresh=False):
        calls.append(fresh)
        if len(calls) > wanted + 3:
            raise AssertionError("it goes on for ever")
        error = Damaged(f"file{len(calls)}", f"/run/{len(calls)}" if len(calls) <= wanted else last)
        error.mended = "made again" if error.path else ""
        raise error

    with closing(Journal(Console(file=printed))) as journal, pytest.raises(Damaged) as raised:
        command(None, journal, fresh=True)
    assert calls == [True] + [False] * wanted
    assert all(f"file{number}" in printed.getvalue() for number in range(1, wanted + 1))
    assert (raised.value.path, raised.value.mended) == (last, "")
