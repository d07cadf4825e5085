"""The words that a command prints and a page says, compared with the files in tests/golden/.

Figures, times and paths are masked, because other tests prove them. After a change of words run the test with
`TEMPSCALE_GOLDEN=write`, which writes the file again: read what changed before you commit it.
"""

import os
import re
from pathlib import Path
from types import SimpleNamespace

from tempscale_jobs.cli.start import print_end
from tempscale_jobs.outlets import WIDTH
from tempscale_jobs.runs.storage import Storage

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("TEMPSCALE_GOLDEN") == "write"
_WIDER = ("  tempscale ", "report  ", "tables  ", "vectors  ")
"""How lines begin that may be wider than a terminal: a command that is copied, and a path."""


def masked(text, *names):
    """The words of a text, a line for each that it has, without what another machine or day would change."""
    text = _unwrapped(text)
    for name in names:
        text = text.replace(str(name), "PATH")
    text = re.sub(r"(run-\w+)-[0-9a-f]{4}\b", r"\1", text)
    text = re.sub(r"\bpyarrow\.[\w.]+", "ID", text)
    text = re.sub(r"[−+±]?\d[\d,.:]*", "#", text)
    lines = (" ".join(line.split()) for line in text.splitlines())
    # A slow machine tells progress, as in «SOCM: 309 of 619, about 5 s left», and which pieces are slow.
    progress = re.compile(r"slow: |(?!✓).*: # of #")
    return "\n".join(line for line in lines if line and not progress.match(line)) + "\n"


def _unwrapped(text):
    """A text whose sentences are on one line each, since where a line breaks depends on the figures in it."""
    joined, is_ending = [], False
    for line in text.splitlines():
        is_ending = is_ending or not line
        goes_on = line.startswith(" " * 15) or (is_ending and line != "" and not line.startswith(_WIDER))
        if goes_on and joined and joined[-1] and not joined[-1].startswith(_WIDER):
            joined[-1] += f" {line.strip()}"
        else:
            joined.append(line)
    return "\n".join(joined)


def same(name, text):
    """Compare a text with a golden file."""
    if WRITE:
        (GOLDEN / name).write_text(text, "utf-8")
    assert text == (GOLDEN / name).read_text("utf-8"), f"read the difference, then write tests/golden/{name} again"


def ending(command, out, capsys):
    """What a command prints when its run in a folder is done: at most eight lines that no terminal wraps."""
    capsys.readouterr()
    config = SimpleNamespace(command=command, execution=SimpleNamespace(log_format="text"))
    print_end(config, SimpleNamespace(storage=Storage(str(out))), as_json=False)
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == ""
    assert 2 <= len(lines[1:]) <= 8, text
    assert [line for line in lines if len(line) > WIDTH and not line.startswith(_WIDER)] == []
    return text
