"""Nights by whole runs: judged, recorded, held to other things."""

import json

import polars as pl
import pytest
from nights_by_hand import EDGES
from rich.console import Console
from whole_run import as_lines, audited, documented

from tempscale_jobs.cli import runs
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights import record as history
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def small(tmp_path_factory, ray_session, small_model):
    """A finished run that was held to nothing, and how to ask for it again."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "corpus.jsonl").write_text(as_lines(documented("pyarrow")[:60]))

    def data(out="run", **more):
        return {
            "out": str(folder / out), "corpus": {"source": str(folder / "corpus.jsonl")}, "execution": {"workers": 1},
            "embedding": {"models": [small_model], "temperatures": [1.0]},
            "analysis": {"socm_sample": 0, "probe_sample": 0, "neighbours": 0, "intervals": list(EDGES)},
        } | more  # fmt: skip

    audited(data())
    return folder, data


def ended(data):
    """The exit code of an audit, as the command line gives it."""
    return runs.audit.__wrapped__(resolve(data), Console(stderr=True), resume=True, plan=False)


def test_a_run_held_to_nothing_ends_with_0_and_has_a_record_of_its_own(small):
    folder, data = small
    assert ended(data()) == 0
    done = json.loads((folder / "run" / "run.json").read_text())
    notes = ("unknown_noise", "first_nights", "gone_models", "not_compared", "unreadable_nights", "without_baseline")
    assert done["gate"] == {"verdict": "none", "failed": [], "checks": 0} | {name: [] for name in notes}
    assert history.load(Storage(str(folder / "run" / "history")))["run"].to_list() == [done["run"]]
    assert pl.read_parquet(folder / "run" / "tables" / "gate.parquet").is_empty()


def test_a_complete_run_is_judged_again_without_measuring_again(small, capsys):
    folder, data = small
    tables = [file for file in (folder / "run" / "tables").iterdir() if file.name != "gate.parquet"]
    before = [file.stat().st_mtime_ns for file in tables]
    assert ended(data(gate={"thresholds": ["cosine_mean <= 0.01"]})) == 1
    assert "(cosine_mean) of tiny-bert at" in capsys.readouterr().out
    done = json.loads((folder / "run" / "run.json").read_text())
    assert done["gate"]["verdict"] == "failed"
    assert done["config"]["gate"]["thresholds"] == ["cosine_mean <= 0.01"]
    assert history.load(Storage(str(folder / "run" / "history")))["gate"].to_list() == ["failed"]
    assert ended(data(gate={"thresholds": ["cosine_mean <= 0.99"]})) == 0
    # A finished run may be a baseline, also its own.
    assert ended(data(gate={"baseline": str(folder / "run"), "drift": {"cosine_mean": 0.0}})) == 0
    table = pl.read_parquet(folder / "run" / "tables" / "gate.parquet")
    assert (table["verdict"].to_list(), table["change"].to_list()) == (["held"], [0])
    assert [file.stat().st_mtime_ns for file in tables] == before


def test_a_gate_for_a_temperature_that_is_not_measured_is_refused():
    for named in (0.9, "0.9", "0.90"):
        with pytest.raises(UsageError, match=r"gate.temperatures.* 0\.9"):
            resolve({"gate": {"thresholds": ["texts >= 1"], "temperatures": [named]}})
    assert resolve({"gate": {"temperatures": ["0.80", 1.0]}}).gate.holds_for("0.8")


def test_the_night_stands_in_out_and_source():
    found = resolve({"out": "s3://b/nights/{night}", "night": "2026-11-22", "corpus": {"source": "s3://b/{night}/*"}})
    assert (found.out, found.corpus.source) == ("s3://b/nights/2026-11-22", "s3://b/2026-11-22/*")
    queries = {"queries": {"source": "q/{night}.jsonl"}, "night": "2026-11-22"}
    assert resolve({"out": "x"} | queries).queries.source == "q/2026-11-22.jsonl"
    for out, record in (
        ("s3://b/nights/{night}", "s3://b/nights/history"), ("{night}", "history"), ("/{night}", "/history"),
        ("runs/mine", "runs/mine/history"),
    ):  # fmt: skip
        assert resolve({"out": out}).record.history == record
    assert resolve({"out": "runs/mine"}).night is None
    for wrong in ("22.11.2026", "2026-13-01", "tonight"):
        with pytest.raises(UsageError, match="--night"):
            resolve({"night": wrong})


def test_what_a_night_is_held_to_never_asks_for_a_fresh_run():
    held = {"gate": {"baseline": "latest", "drift": {"cosine_mean": 0.01}}, "night": "2026-11-22", "record": {"name": "x"}}
    assert resolve(held).identity() == resolve({}).identity()
