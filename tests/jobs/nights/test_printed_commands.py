"""Every command that a night prints is run as it is printed; what each line means is in audit/test_again.py."""

import html
import json
import re
import shlex
from pathlib import Path

import pytest
from command_line import in_process
from left_behind import files_of
from whole_run import as_lines, documented, read_record

pytestmark = pytest.mark.proof

TOML = """
out = "nights of it/{night}"
[corpus]
source = "it's $HOME {night}.jsonl"
sample = 60
[embedding]
models = [MODEL]
max_length = 64
temperatures = [1.0]
[analysis]
intervals = [0, 24]
socm_sample = 20
probe_sample = 30
[gate]
thresholds = ["texts >= 10", "texts <= 70"]
baseline = "latest"
[execution]
workers = 1
"""


def printed(out, folder):
    """The commands of the report, which has those on the terminal."""
    on_screen = {line.strip() for line in out.splitlines() if line.strip().startswith("tempscale ")}
    page = (folder / "report.html").read_text("utf-8")
    quoted = [re.sub("<[^>]+>", "", found) for found in re.findall("<(?:code|pre).*?</(?:code|pre)>", page, re.DOTALL)]
    in_page = {html.unescape(line) for text in quoted for line in text.splitlines()}
    assert on_screen
    assert on_screen <= in_page
    return sorted(line for line in in_page if line.startswith("tempscale "))


def test_a_night_prints_commands_that_end_well_and_keep_cache_thresholds_and_record(
    tmp_path, small_model, ray_session, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("night ly.toml").write_text(TOML.replace("MODEL", json.dumps(small_model)))
    Path("it's $HOME 2026-11-24.jsonl").write_text(as_lines(documented("pyarrow")[:90]))
    code, out, err = in_process("audit", "night ly.toml", "--cache", "ca che", "--night", "2026-11-24")
    assert code == 0, err
    advised = [line for line in printed(out, Path("nights of it/2026-11-24")) if line.startswith("tempscale audit")]
    before = files_of("nights of it/history")
    assert before
    assert len(advised) >= 2
    for line in advised:
        words = shlex.split(line)
        code, _, err = in_process(*words[1:])
        assert code in (0, 1), err  # More texts than the threshold allows are a failed gate.
        record = read_record(words[words.index("--out") + 1])
        assert record["config"]["gate"]["thresholds"] == ["texts >= 10", "texts <= 70"]
        assert record["config"]["execution"]["cache"] == "ca che"
        assert record["gate"]["checks"] >= 2
        assert in_process(*words[1:])[0] == code  # The same command once more.
    assert files_of("nights of it/history") == before
