"""What the lines of a long stage say of its rate and the time left."""

from __future__ import annotations

import io

from rich.console import Console

from tempscale_jobs.runs import journal


def test_the_rate_counts_only_what_this_session_does(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(journal.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    stage = journal.Stage("embed", 1000, Console(file=out, width=20))
    stage.advance(400)  # An earlier session's.
    clock[0] = 100.0
    stage.advance(200)
    assert out.getvalue() == "  embed: 600 of 1,000, 2/s, about 3 min left\n"
    clock[0] = 130.0
    stage.advance(100)  # Too soon for another line.
    assert out.getvalue().count("\n") == 1
