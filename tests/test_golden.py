"""The words of one help page, of one audit in the terminal and of a report of every command; see `golden_words`.

No other test of tier 1 asserts a sentence that these files have. The reports are of tables by hand. How other commands end
is compared where they are tested.
"""

import pytest
from command_line import in_process
from golden_words import ending, masked, same
from reports_by_hand import REPORTS, texts_of


def test_help(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = in_process("audit", "--help")
    assert code == 0
    same("help.txt", out)


def test_what_an_audit_prints(small_audit, small_model):
    same("audit-ending.txt", masked((small_audit / "printed.txt").read_text("utf-8"), small_audit, small_model))


@pytest.mark.parametrize("command", REPORTS)
def test_what_its_report_says(command):
    same(f"{command}.txt", "\n".join(texts_of(REPORTS[command]())) + "\n")


def test_how_an_audit_ends_fits_a_terminal(small_audit, capsys):
    assert (small_audit / "printed.txt").read_text("utf-8").endswith(ending("audit", small_audit / "run", capsys))
