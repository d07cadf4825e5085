"""What pairs show, as values: each figure of the summary, and the change of SOCM on both sides of its noise."""

import polars as pl
import pytest
from pages import key

from tempscale_jobs.pairs.findings import decide
from tempscale_jobs.report.findings import changed

SUMMARY = {
    "pairs": 90, "texts": 50, "socm_mean": 0.4, "socm_se": 0.01, "d_mu_mean": 0.3, "d_sigma_mean": 0.6,
    "socm_over_1_share": 0.0, "truncated_share": 0.25, "reference": None, "socm_change": None, "socm_change_se": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "error", "state"),
    [(-0.1, 0.05, "down"), (0.1, 0.05, "up"), (-0.097, 0.05, "noise"), (0.2, None, "unknown")],
)
def test_a_change_of_socm_is_decided_from_its_error_and_other_figures_are_measured(change, error, state):
    moved = {"reference": "1.0", "socm_mean": 0.4 + change, "socm_change": change, "socm_change_se": error}
    rows = [key(1.0) | SUMMARY, key(0.8) | SUMMARY | moved]
    found = decide({"pairs_summary": pl.DataFrame(rows, infer_schema_length=None)})
    mean, move = found.of("socm_mean", "MiniLM", "0.8"), found.of(changed("socm_mean"), "MiniLM", "0.8")
    assert (mean.state, mean.value, mean.error) == ("measured", 0.4 + change, 0.01)
    assert (move.state, move.value, move.error, move.tau) == (state, change, error, 0.8)
    assert "90 pairs of 50 texts" in move.rests_on
    assert found.of("truncated_share", "MiniLM", "1.0").value == 0.25
    assert found.of(changed("socm_mean"), "MiniLM", "1.0").state == "absent"
