"""The report of what is measured before SOCM and the probe begin; it is written again, whole, at the end."""

import json
import shutil

import pytest
from left_behind import Interrupt
from pages import Page
from whole_run import as_lines, audited, digests, documented

from tempscale_jobs.runs.inventory import damaged
from tempscale_jobs.runs.observing import Observer
from tempscale_jobs.runs.storage import Storage

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("ray_session")]

SO_FAR = "This run is not complete"


@pytest.fixture(scope="module")
def settings(tmp_path_factory, small_model):
    """A function of a folder and of the way to choose pairs for SOCM."""
    corpus = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    corpus.write_text(as_lines(documented("pyarrow")[:120]))

    def settings(out, **analysis):
        return {
            "out": str(out), "corpus": {"source": str(corpus)}, "embedding": {"models": [small_model], "max_length": 128},
            "analysis": {"intervals": [0, 64, 100], "probe_sample": 20} | analysis, "execution": {"workers": 1},
        }  # fmt: skip

    return settings


def words(out):
    return Page((out / "report.html").read_text("utf-8")).text


class Kept(Observer):
    """Keeps the report as it is when a stage begins."""

    def __init__(self, out, stage):
        super().__init__()
        self._out, self._stage, self.page = out, stage, None

    def stage(self, name, total):
        super().stage(name, total)
        if name.startswith(self._stage) and self.page is None:
            self.page = words(self._out)


@pytest.mark.parametrize(
    ("analysis", "next_stage"),
    [
        pytest.param({"socm_sample": 16}, "covariance factors", marks=pytest.mark.soak), ({"socm_groups": 10}, "SOCM"),
        pytest.param(
            {"socm_sample": 0, "probe_sample": 0, "socm_top_over": "corpus", "worst_pairs": 5},
            "texts of largest",
            marks=pytest.mark.soak,
        ),
    ],
    ids=["sample", "groups", "worst pairs"],
)  # fmt: skip
def test_a_stopped_run_has_a_report_and_goes_on_to_the_same_tables(settings, tmp_path, analysis, next_stage):
    kept = Kept(tmp_path / "whole", next_stage)
    audited(settings(tmp_path / "whole", **analysis), observers=[kept])
    assert SO_FAR in kept.page
    assert "mean cosine" in kept.page
    assert SO_FAR not in words(tmp_path / "whole")
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        audited(settings(stopped, **analysis), observers=[Interrupt(next_stage)])
    assert SO_FAR in words(stopped)
    assert not (stopped / "run.json").exists()
    assert not (stopped / "tables").exists()
    written = (stopped / "report.html").stat().st_mtime_ns
    again = Kept(stopped, next_stage)
    audited(settings(stopped, **analysis), observers=[again])
    assert SO_FAR in again.page, "a run that goes on makes it again"
    assert (stopped / "report.html").stat().st_mtime_ns > written
    assert SO_FAR not in words(stopped)
    assert digests(stopped) == digests(tmp_path / "whole")
    record = json.loads((stopped / "run.json").read_text())
    assert damaged(Storage(str(stopped)), record) == []
    assert "to_come" not in record


def test_a_finished_run_that_is_mended_shows_no_report_so_far(settings, tmp_path):
    out = tmp_path / "run"
    audited(settings(out, socm_sample=16))
    before = digests(out)
    shutil.rmtree(out / "partials" / "probe")
    kept = Kept(out, "prefix probe")
    audited(settings(out, socm_sample=16), observers=[kept])
    assert kept.page is not None
    assert SO_FAR not in kept.page
    assert digests(out) == before
