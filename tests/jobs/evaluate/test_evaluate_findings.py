"""What an evaluation found, as values: changes of scores on both sides of their noise, of tasks, types, lengths and ends."""

import polars as pl
import pytest
from pages import key

from tempscale_jobs.evaluate.findings import decide
from tempscale_jobs.report.findings import changed

TASK = {"task": "t", "split": "test", "subset": "default"}
FIRST = {"change": 0.0, "change_se": 0.0}


def frame(rows):
    return pl.DataFrame(rows, infer_schema_length=None)


def cell(change, error, score=0.5, **where):
    moved = {"score": score, "score_se": 0.1, "items": 40, "change": change, "change_se": error}
    return TASK | moved | where


def state(tables, figure, temperature="0.5"):
    return decide(tables).of(figure, "MiniLM", temperature).state


@pytest.mark.parametrize(
    ("change", "error", "expected"),
    [(0.04, 0.02, "up"), (-0.04, 0.02, "down"), (0.03, 0.02, "noise"), (0.3, None, "unknown"), (None, None, "absent")],
)
def test_the_change_of_a_score_is_decided_from_its_error(change, error, expected):
    rows = [key(1.0) | cell(0.0, 0.0), key(0.5) | cell(change, error), key(0.5) | cell(0.0, 0.1, None, task="missing")]
    found = decide({"evaluation": frame(rows)})
    moved = found.of(changed("score, t/test"), "MiniLM", "0.5")
    assert (moved.state, moved.value, moved.error) == (expected, change, error)
    score = found.of("score, t/test", "MiniLM", "1.0")
    assert (score.state, score.value, score.error, score.rests_on) == ("measured", 0.5, 0.1, "40 items")
    assert len(found.rows) == 3  # Two scores and one change: nothing of the missing cell, nor of the first temperature.


def test_splits_and_subsets_have_findings_of_their_own():
    rows = [key(1.0) | cell(0.0, 0.0), key(0.5) | cell(0.1, 0.01), key(0.5) | cell(-0.1, 0.01, subset="en")]
    tables = {"evaluation": frame(rows)}
    assert [state(tables, changed(f"score, {name}")) for name in ("t/test", "t/test/en")] == ["up", "down"]


@pytest.mark.parametrize(
    ("errors", "expected"), [((0.01, 0.5), "up"), ((0.5, 0.01), "noise"), ((None, 0.01), "up"), ((None, None), "unknown")]
)
def test_a_mean_over_tasks_has_the_error_of_items_or_else_of_tasks(errors, expected):
    mean = {"over": "type", "type": "STS", "tasks": 3, "score": 0.6, "change": 0.04}
    mean |= dict(zip(("change_se", "change_spread_se"), errors, strict=True))
    tables = {"evaluation": frame([key(1.0) | cell(0.0, 0.0)]), "evaluation_types": frame([key(0.5) | mean])}
    assert state(tables, changed("mean score, STS")) == expected
    found = decide(tables).of(changed("mean score, STS"), "MiniLM", "0.5")
    assert ("spread" in found.rests_on) == (errors[0] is None)
    other = {"evaluation_types": frame([key(0.5) | mean | {"over": "tasks", "type": None}])}
    assert state(tables | other, changed("mean score")) == expected


@pytest.mark.parametrize(("items", "error", "expected"), [(30, 0.01, "up"), (30, 0.04, "noise"), (29, 0.01, "unknown")])
def test_a_length_needs_thirty_items(items, error, expected):
    row = TASK | {"interval": 24, "items": items, "change": 0.04, "change_se": error}
    first = key(1.0) | row | FIRST
    tables = {"evaluation": frame([key(1.0) | cell(0.0, 0.0)]), "evaluation_lengths": frame([first, key(0.5) | row])}
    assert state(tables, changed("score, t/test, from 24 tokens")) == expected
    assert state(tables, changed("score, t/test, from 24 tokens"), "1.0") == "absent"


@pytest.mark.parametrize(("change", "error", "expected"), [(12.0, 2.0, "up"), (-3.0, 2.0, "noise"), (3.0, 0.0, "unknown")])
def test_an_end_without_any_spread_tells_nothing(change, error, expected):
    row = TASK | {"figure": "rank", "end": "longest", "items": 8, "change": change, "change_se": error}
    tables = {"evaluation": frame([key(1.0) | cell(0.0, 0.0)]), "evaluation_ends": frame([key(0.5) | row])}
    assert state(tables, changed("rank of the longest fifth, t/test")) == expected
