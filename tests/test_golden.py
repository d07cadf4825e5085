"""The words of one help page, of one audit in the terminal and of a report of every command, as tests/golden/ holds them.

No other test of tier 1 asserts a sentence that these files have. Of the terminal, figures, times and paths are masked,
because other tests prove them; the reports are of tables by hand. After a change of words, `TEMPSCALE_GOLDEN=write python
-m pytest tests/test_golden.py` writes the files again: read what changed before you commit it.
"""

import os
import re
from pathlib import Path

import pytest
from command_line import in_process
from reports_by_hand import REPORTS, texts_of

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("TEMPSCALE_GOLDEN") == "write"


def masked(text, *names):
    """The words of a text, a line for each that it has, without what another machine or day would change."""
    for name in names:
        text = text.replace(str(name), "PATH")
    text = re.sub(r"(run-\w+)-[0-9a-f]{4}\b", r"\1", text)
    text = re.sub(r"\bpyarrow\.[\w.]+", "ID", text)
    text = re.sub(r"[−+±]?\d[\d,.:]*", "#", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    # A slow machine tells progress, as in «SOCM: 309 of 619, about 5 s left», and which pieces are slow.
    return "\n".join(line for line in lines if line and ": # of #" not in line and not line.startswith("slow: ")) + "\n"


def same(name, text):
    if WRITE:
        (GOLDEN / name).write_text(text, "utf-8")
    assert text == (GOLDEN / name).read_text("utf-8"), f"read the difference, then write tests/golden/{name} again"


def test_help(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = in_process("audit", "--help")
    assert code == 0
    same("help.txt", out)


def test_what_an_audit_prints(small_audit, small_model):
    same("terminal.txt", masked((small_audit / "printed.txt").read_text("utf-8"), small_audit, small_model))


@pytest.mark.parametrize("command", REPORTS)
def test_what_its_report_says(command):
    same(f"{command}.txt", "\n".join(texts_of(REPORTS[command]())) + "\n")
