"""What a choice found, as values: each candidate's changes on both sides of their noise, and what decides the best one's."""

import polars as pl
import pytest
from pages import key

from tempscale_jobs.report.findings import changed
from tempscale_jobs.tune.findings import decide
from tempscale_jobs.tune.words import answer

SCORES = {
    "correction": None, "dev_items": 60, "dev_score": 0.5, "dev_change": 0.0, "dev_change_se": 0.0, "held_items": 40,
    "held_score": 0.4, "held_change": 0.0, "held_change_se": 0.0, "held_low": None, "held_high": None,
}  # fmt: skip
COLLAPSE = {
    "correction": None, "prefix_gap": 0.03, "prefix_gap_change": 0.0, "prefix_gap_change_se": 0.0, "exposure_long": 0.8,
    "exposure_long_change": 0.0, "exposure_long_change_se": 0.0,
}  # fmt: skip


def decided(name, *rows):
    return decide({name: pl.DataFrame(rows, infer_schema_length=None)})


def test_each_candidate_is_compared_with_the_first():
    moved = {"dev_change": 0.1, "dev_change_se": 0.02, "held_change": -0.1, "held_change_se": 0.06}
    found = decided("tuning_scores", key(1.0) | SCORES, key(0.8) | SCORES | moved)
    first = [(one.figure, one.state, one.value) for one in found.rows[:2]]
    assert first == [("held_score", "measured", 0.4), ("dev_score", "measured", 0.5)]
    held, dev = (found.of(changed(f"{name}_score"), "MiniLM", "0.8") for name in ("held", "dev"))
    assert [(one.state, one.value) for one in (held, dev)] == [("noise", -0.1), ("up", 0.1)]
    assert held.rests_on == "40 items of the held-out part"
    assert dev.not_shown


@pytest.mark.parametrize(("low", "high", "state"), [(0.01, 0.2, "up"), (-0.2, -0.01, "down"), (-0.01, 0.2, "noise")])
def test_the_bootstrap_decides_of_the_best_candidate_as_it_decides_the_choice(low, high, state):
    """Its error alone would say otherwise."""
    best = {"held_change": (low + high) / 2, "held_change_se": 1e-6 if state == "noise" else 9.0}
    found = decided("tuning_scores", key(1.0) | SCORES, key(0.8) | SCORES | best | {"held_low": low, "held_high": high})
    assert found.of(changed("held_score"), "MiniLM", "0.8").state == state


@pytest.mark.parametrize(
    ("before", "after", "error", "passed"),
    [
        (0.52, 1.29, 0.1, True),
        (0.52, 1.29, 0.3, False),
        (0.52, 1.05, 0.01, False),
        (1.4, 0.5, 0.1, True),
        (0.5, 0.9, 0.1, False),
    ],
)  # fmt: skip
def test_a_candidate_that_passes_the_fair_exposure_is_called_so(before, after, error, passed):
    moved = {
        "exposure_long": after,
        "exposure_long_change": after - before,
        "exposure_long_change_se": error,
        "chosen": True,
    }
    rows = [key(1.0) | COLLAPSE | {"exposure_long": before, "chosen": False}, key(0.8) | COLLAPSE | moved]
    found = decided("tuning_collapse", *rows).of(changed("exposure_long"), "MiniLM", "0.8")
    assert ("overshoots" in found.not_shown) == passed
    choice = {"chosen": "0.8", "changed": True, "reason": "it is fairest"}
    answered = answer({"choice": choice}, {"tuning_collapse": pl.DataFrame(rows, infer_schema_length=None)})
    assert ("overshoots" in answered) == passed


def test_without_labels_gap_and_exposure_are_compared_and_corrections_stand_apart():
    fair = {"correction": "length", "prefix_gap": None, "prefix_gap_change": None, "prefix_gap_change_se": None}
    fair |= {"exposure_long_change": 0.15, "exposure_long_change_se": 0.05}
    lower = {"prefix_gap_change": -0.02, "prefix_gap_change_se": 0.005}
    lower |= {"exposure_long_change": 0.1, "exposure_long_change_se": None}
    found = decided("tuning_collapse", key(1.0) | COLLAPSE, key(0.8) | COLLAPSE | lower, key(1.0) | COLLAPSE | fair)
    states = {(one.figure, one.temperature): one.state for one in found.rows}
    assert states == {
        ("prefix_gap", "1.0"): "measured", ("exposure_long", "1.0"): "measured",
        (changed("prefix_gap"), "0.8"): "down", (changed("exposure_long"), "0.8"): "unknown",
        (f"{changed('prefix_gap')} with length", "1.0"): "absent", (f"{changed('exposure_long')} with length", "1.0"): "up",
    }  # fmt: skip
