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
    assert late.left() is None
    assert journal.in_words(late) == ""


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


def test_a_piece_that_takes_longer_than_the_others_says_no_time_left(clock):
    pace = Pace(4)
    pace.add(0)
    for clock[0] in (10.0, 20.0, 30.0):
        pace.add(1)
    assert pace.left() == pytest.approx(10)
    clock[0] = 41.0
    assert pace.left() is None


def shown(console, name, note):
    with console.capture() as printed:
        console.print(journal._closing(name, note, 12.34), soft_wrap=True)
    return printed.get()


def test_a_stage_that_has_ended_is_one_line_and_a_long_note_goes_on_below_it():
    console = Console(file=io.StringIO(), width=200)
    assert shown(console, "embed MiniLM", "300 texts under τ 1.0, 0.8") == (
        "  ✓    12.3 s  embed MiniLM: 300 texts under τ 1.0, 0.8\n"
    )
    assert shown(console, "tables", "") == "  ✓    12.3 s  tables\n"
    first, *more = shown(console, "gate", "word " * 40).splitlines()
    assert max(map(len, (first, *more))) <= 80
    assert all(line.startswith(" " * 15) and not line.startswith(" " * 16) for line in more)
    assert " ".join((first + " ".join(more)).split()).endswith("word word")


def test_colours_are_those_of_a_terminal_without_no_color(monkeypatch):
    terminal = {"file": io.StringIO(), "force_terminal": True, "color_system": "standard", "width": 80}
    assert "\x1b[32m" in shown(Console(**terminal), "tables", "14 tables")
    assert "\x1b" not in shown(Console(file=io.StringIO(), width=80), "tables", "14 tables")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in shown(Console(**terminal), "tables", "14 tables")


def test_the_bar_and_its_words_never_wrap(clock):
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    stage = journal.Stage("embed a model of a very long name", 1_999_000, SimpleNamespace(console=console, observers=()))
    try:
        stage.advance(1000)
        for clock[0] in (10.0, 20.0, 30.0):
            stage.advance(12_345)
        stage.tell("bounds over all pairs, τ 0.8")
        plain = Console(file=io.StringIO(), width=80)
        plain.print(stage._bar.make_tasks_table(stage._bar.tasks))
        (line,) = plain.file.getvalue().splitlines()
        assert "embed a model o…: 38,035" in line
        assert "of 1,999,000, 1,234/s" in line
        assert line.rstrip().endswith("left")
    finally:
        stage.close()
