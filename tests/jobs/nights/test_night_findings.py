"""What changed between two audits and from night to night, as values and as JSON of the command line."""

import json

import polars as pl
import pytest
from command_line import in_process
from nights_by_hand import EDGES, finished_audit, night_row, recorded, summary_row

from tempscale_jobs.nights import record as history
from tempscale_jobs.nights.findings import of_comparison, of_nights, on_the_same_texts
from tempscale_jobs.report.findings import Findings, changed
from tempscale_jobs.tables.nights import COMPARED_FIGURES


def compared(**values):
    row = dict.fromkeys(column.name for column in COMPARED_FIGURES.columns)
    row |= {"model": "m", "temperature": "1.0", "tau": 1.0, "figure": "cosine_mean", "same_texts": 90}
    return of_comparison(pl.DataFrame([row | values]))


@pytest.mark.parametrize(
    ("change", "error", "state"),
    [
        (0.1, 0.05, "up"), (-0.1, 0.05, "down"), (0.09, 0.05, "noise"), (0.1, None, "unknown"), (None, None, "absent"),
        (1e-6, None, "noise"), (1e-6, 0.0, "noise"), (-2e-6, 0.0, "down"),  # Processors differ in the last digits.
    ],
)  # fmt: skip
def test_a_change_between_runs_is_decided_from_its_error(change, error, state):
    found = compared(change=change, change_se=error, change_same_texts=-0.2, change_same_texts_se=0.01)
    moved, same = (found.of(name("cosine_mean"), "m", "1.0") for name in (changed, on_the_same_texts))
    assert (moved.state, moved.value, moved.error) == (state, change, error)
    assert (same.state, same.rests_on) == ("down", "90 texts")
    assert len(compared(change=change, change_se=error).rows) == 1  # Without embeddings nothing is known of the same texts.


def test_a_comparison_prints_one_document_and_leaves_the_same_findings(tmp_path):
    known = {"tau": 1.0, "texts": 90}
    record = {
        "corpus": {"fingerprint": "sum:1", "analysed": 90}, "versions": {}, "tempscale": "0",
        "models": {"one": {"fingerprint": "f", "max_length": 64}},
        "config": {"corpus": {}, "analysis": {"intervals": EDGES}, "embedding": {}}, "started": "2026-11-01T02:15:00+00:00",
    }  # fmt: skip
    before = summary_row("one", **known, cosine_mean=0.1, cosine_se_superpopulation=0.01)
    after = summary_row("one", **known, cosine_mean=0.25, cosine_se_superpopulation=0.02, socm_mean=0.4)
    a, b = (finished_audit(tmp_path / name, row, **record) for name, row in (("a", before), ("b", after)))
    code, out, err = in_process("compare", a, b, "--json", "--out", str(tmp_path / "out"))
    assert code == 0, err
    data = json.loads(out)
    assert (data["run"], data["baseline"]) == (b, a)
    assert set(data["answers"]) == {"runs", "one, τ 1.0"}
    assert "rose from 0.1 to 0.25" in data["answers"]["one, τ 1.0"]
    (finding,) = data["findings"]  # SOCM was measured in one of them.
    assert (finding["figure"], finding["state"]) == (changed("cosine_mean"), "up")
    assert finding["value"] == pytest.approx(0.15)
    assert finding["error"] == pytest.approx((0.01**2 + 0.02**2) ** 0.5)
    assert Findings.read(pl.read_parquet(tmp_path / "out" / "findings.parquet")).as_data() == data["findings"]


def night(day, cosine, gate="passed", **more):
    reason = "the gap grew" if gate == "failed" else ""
    return night_row(f"2026-11-0{day}", gate, gate_reason=reason) | {"model": "m", "cosine_mean": cosine} | more


def test_the_last_night_is_compared_with_the_last_that_passed(tmp_path):
    """The error of the change is that of two nights: √2 · .01."""
    gap = {"collapse_gap_se_superpopulation": 0.01, "gap_shortest": 0}
    first = night(1, 0.3, collapse_gap=0.1, gap_longest=100, **gap)
    last = night(3, 0.34, collapse_gap=0.3, gap_longest=200, **gap)
    found = of_nights(history.load(recorded(tmp_path, first, night(2, 0.9, "failed"), last)))
    moved = found.of(changed("cosine_mean"), "m", "1.0")
    assert (moved.state, moved.value) == ("up", pytest.approx(0.04))
    assert moved.error == pytest.approx(0.01 * 2**0.5)
    assert "2026-11-01" in moved.rests_on
    measured = [found.of(name, "m", "1.0") for name in ("cosine_mean", "collapse_gap", "socm_mean")]
    assert [(one.state, one.value) for one in measured] == [("measured", 0.34), ("measured", 0.3), ("absent", None)]
    assert found.of(changed("collapse_gap"), "m", "1.0").state == "absent"  # It is between other lengths.
    within = of_nights(history.load(recorded(tmp_path / "within", first, night(3, 0.32))))
    assert within.of(changed("cosine_mean"), "m", "1.0").state == "noise"
    alone = of_nights(history.load(recorded(tmp_path / "alone", first)))
    assert alone.of(changed("cosine_mean"), "m", "1.0").state == "absent"


def test_the_record_prints_one_document_with_each_series(tmp_path):
    recorded(tmp_path, night(1, 0.3), night(2, 0.5, "failed"), night(2, 0.7, name="docs", run="docs2", folder="docs"))
    code, out, err = in_process("history", str(tmp_path), "--json")
    assert code == 0, err
    data = json.loads(out)
    assert data["answers"] == {"the night of 2026-11-02": "failed: the gap grew", "docs, the night of 2026-11-02": "passed"}
    values = {row["figure"]: row.get("value") for row in data["findings"]}
    assert values["cosine_mean"] == 0.5
    assert values["cosine_mean, docs"] == 0.7
    assert values[changed("cosine_mean")] == pytest.approx(0.2)
    code, _, err = in_process("history", str(tmp_path), "--json", "--accept", "2026-11-02")
    assert code == 2
    assert "--json" in err
