"""What the lines of a long stage say of its rate and the time left."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from tempscale_jobs.runs import journal
from tempscale_jobs.runs.pace import Pace


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(journal.time, "monotonic", lambda: now[0])
    return now


def test_the_rate_counts_only_what_this_session_does(clock):
    out = io.StringIO()
    stage = journal.Stage("embed", 1000, SimpleNamespace(console=Console(file=out, width=20), observers=()))
    stage.advance(400)  # An earlier session's.
    clock[0] = 50.0
    stage.advance(100)  # Workers started and functions were compiled before this one.
    clock[0] = 100.0
    stage.advance(100)
    assert out.getvalue() == "  embed: 600 of 1,000, 2/s, about 3 min left\n"
    clock[0] = 130.0
    stage.advance(100)  # Too soon for another line.
    assert out.getvalue().count("\n") == 1


def test_the_rate_is_that_of_the_last_half_minute(clock):
    """Ten a second for a minute, then one a second: half a minute later nothing of the fast time is left."""
    pace = Pace(10_000)
    pace.add(0)
    for clock[0] in range(1, 61):
        pace.add(10)
    assert pace.rate() == pytest.approx(10)
    assert pace.left() == pytest.approx((10_000 - 600) / 10)
    for clock[0] in range(61, 91):
        pace.add(1)
    assert pace.rate() == pytest.approx(1)
    assert pace.left() == pytest.approx(10_000 - 630)


def test_pieces_are_weighted_by_their_work(clock):
    """Long texts come last: a tenth of the texts is most of the work."""
    pace = Pace(work=90 * 1 + 10 * 100)
    pace.add(0, 0)
    for clock[0] in range(1, 91):
        pace.add(1, 1)
    assert pace.rate() == pytest.approx(1)
    assert pace.left() == pytest.approx(1000)
    clock[0] = 95
    assert pace.left() == pytest.approx(995)  # While nothing is finished, the time goes on.


def test_before_half_a_minute_the_time_left_is_what_was_expected(clock):
    pace = Pace(100, expected=200)
    assert pace.left() == 200
    clock[0] = 10
    pace.add(0)
    for clock[0] in range(11, 30):
        pace.add(1)
    assert pace.left() == 200 - 29
    clock[0] = 30
    pace.add(1)
    assert pace.left() == pytest.approx(80)
    late = Pace(100, expected=20)
    clock[0] = 100
    assert late.left() == 0


def test_what_was_expected_is_of_the_whole_and_ends(clock):
    resumed = Pace(100, expected=200)
    resumed.add(90)
    assert resumed.left() == pytest.approx(20)
    soon = Pace(100, expected=12)
    soon.add(0)
    for clock[0] in range(1, 25):
        soon.add(2)
    assert soon.left() == pytest.approx(26)


def test_pieces_of_workers_that_end_together_give_no_rate(clock):
    """Two workers, pieces of 100 that take 25 s each: eight a second, and not two hundred."""
    pace = Pace(4000)
    pace.add(0)
    for clock[0] in (25.0, 25.5):
        pace.add(100)
    assert pace.rate() is None
    for clock[0] in (50.0, 50.5):
        pace.add(100)
    assert pace.rate() == pytest.approx(8, rel=0.5)


def test_nothing_is_said_that_is_not_known(clock):
    assert journal.in_words(Pace()) == ""
    pace = Pace(100)
    pace.add(0)
    pace.add(5)
    assert journal.in_words(pace) == ""
    clock[0] = 10
    pace.add(5)
    assert journal.in_words(pace) == ", 30.0/min, about 3 min left"
