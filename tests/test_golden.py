"""The words of one help page, of one audit in the terminal and of its report; see `golden_words`.

No other test of tier 1 asserts a sentence that these files have. How other commands end is compared where they are tested.
"""

import re

from command_line import in_process
from golden_words import ending, masked, same
from pages import Page


def test_help(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = in_process("audit", "--help")
    assert code == 0
    same("help.txt", out)


def test_what_an_audit_prints(small_audit, small_model):
    same("terminal.txt", masked((small_audit / "printed.txt").read_text("utf-8"), small_audit, small_model))


def test_what_its_report_says(small_audit, small_model):
    page = (small_audit / "run" / "report.html").read_text("utf-8")
    page = Page(re.sub(r'<span class="excerpt">.*?</span>', "", page, flags=re.DOTALL))
    said, of_this_machine, _ = page.text.partition("corpus fingerprint")
    assert of_this_machine
    same("report.txt", masked(said, small_audit, small_model))


def test_how_an_audit_ends_fits_a_terminal(small_audit, capsys):
    assert (small_audit / "printed.txt").read_text("utf-8").endswith(ending("audit", small_audit / "run", capsys))
