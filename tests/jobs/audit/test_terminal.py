"""What the terminal says of a finished audit: the answer first, in at most eight lines that no terminal wraps."""

import io

import polars as pl
import pytest
from golden_words import ending
from pages import RUN, tables_of
from rich.console import Console

from tempscale_jobs.audit import terminal
from tempscale_jobs.outlets import WIDTH
from tempscale_jobs.report import screen
from tempscale_jobs.report.screen import Ending, lines_of
from tempscale_jobs.runs.storage import Storage

NOT_CHECKED = {"verdict": "none", "failed": []}
REASON = "figure of MiniLM at 1.0 rose by 0.05, from 0.1 in the night of 2026-11-24 (run 0123456789ab) to 0.15: too much"
FAILED = {"verdict": "failed", "failed": [REASON] * 2, "checks": 7, "not_compared": [], "first_nights": []}
PASSED = FAILED | {"verdict": "passed", "failed": []}
TYPED = {"file": None, "options": {"--corpus": ["--corpus", "texts.jsonl"], "--quick": ["--quick"]}}


def said(gate=NOT_CHECKED, tables=None, **record):
    return terminal.ending(tables or tables_of(exposed=(0.6, 1.0, 1.5)), RUN | {"gate": gate} | record, "runs/audit")


def texts(ending):
    return [line for line, _ in lines_of(ending)]


@pytest.mark.parametrize("gate", [NOT_CHECKED, FAILED, PASSED], ids=["no gate", "failed", "passed"])
def test_an_audit_is_at_most_eight_lines_with_the_answer_what_to_do_and_the_report(gate):
    lines = texts(said(gate))
    assert len(lines) <= 8
    assert all(len(line) <= WIDTH for line in lines if not line.startswith("  tempscale "))
    assert sum(line.startswith("  tempscale ") for line in lines) == 1
    assert lines[-1] == "report  runs/audit/report.html"
    answer = next(k for k, line in enumerate(lines) if line.startswith("Collapse by length? Yes: "))
    assert (answer > 0) == (gate is FAILED)
    assert (f"The gate failed: {REASON[:40]}" in lines[0]) == (gate is FAILED)
    assert ("The gate passed: 7 checks." in lines) == (gate is PASSED)


def test_a_figure_of_the_answer_is_not_said_twice_and_one_that_was_not_measured_not_at_all():
    assert [figure.split(" 0.")[0] for figure in said().figures] == ["mean cosine", "mean SOCM"]
    unmeasured = said(tables=tables_of(socm=None, prefix=None))
    assert [figure.split(" 0.")[0] for figure in unmeasured.figures] == ["mean cosine"]


def test_a_quick_audit_ends_with_the_command_of_a_whole_one():
    quick = said(config=RUN["config"] | {"quick": True}, command_line=TYPED, models={"MiniLM": {}})
    (command,) = quick.commands
    assert command.startswith("tempscale audit --corpus texts.jsonl --intervals 0,100,400 --out runs/audit-whole-")
    assert "--quick" not in command


def test_the_last_words_on_the_screen_are_plain_text(tmp_path, capsys):
    storage = Storage(str(tmp_path / "a[/b]"))
    one, other = tables_of(), tables_of(model="[/b]model[red]")
    for name, table in one.items():
        storage.write_table(f"tables/{name}.parquet", pl.concat([table, other[name]]).to_arrow())
    storage.write_json("run.json", RUN | {"gate": NOT_CHECKED})
    out = ending("audit", storage.root, capsys)
    assert "a[/b]/report.html" in out
    assert "[/b]model[red]: " in out


def test_what_is_too_much_loses_its_figures_and_then_its_last_sentences():
    sentence = "A sentence of a few words that fills a line on a terminal of eighty columns wholly."
    full = Ending(
        [f"{sentence} " * 3], "report  r", [sentence] * 2, f"{sentence} " * 2, ["tempscale audit"], f"{sentence} " * 3, True
    )
    lines = texts(full)
    assert len(lines) <= 8
    assert lines[-1] == "report  r"
    assert "  tempscale audit" in lines
    long = texts(Ending(["word " * 100], "report  r"))
    assert len(long) == 5  # With a fourth line of the answer, since there is room.
    assert long[3].endswith(" …")
    assert all(len(line) <= WIDTH for line in long)


def test_a_failed_gate_is_red_where_there_are_colours(monkeypatch):
    printed = {}
    for name, terminal_or_not in (("terminal", True), ("file", False)):
        console = Console(
            file=io.StringIO(), force_terminal=terminal_or_not, color_system="standard" if terminal_or_not else None
        )
        monkeypatch.setattr(screen, "Screen", lambda console=console: console)
        screen.print_ending(Ending(["No."], "report  r", gate="The gate failed.", is_failed=True))
        printed[name] = console.file.getvalue()
    assert "\x1b[1;31mThe gate failed." in printed["terminal"]
    assert printed["file"] == "\nThe gate failed.\nNo.\nreport  r\n"
