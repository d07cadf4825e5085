"""Every command that a night prints is run as it is printed; what each line means is in audit/test_again.py."""

import html
import json
import re
import shlex

import pytest
from command_line import in_process
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
NIGHTS = ("2026-11-24", "2026-11-25")


def printed(out, folder):
    """The commands of the report, which has those on the terminal."""
    on_screen = {line.strip() for line in out.splitlines() if line.strip().startswith("tempscale ")}
    page = (folder / "report.html").read_text("utf-8")
    quoted = [re.sub("<[^>]+>", "", found) for found in re.findall("<(?:code|pre).*?</(?:code|pre)>", page, re.DOTALL)]
    in_page = {html.unescape(line) for text in quoted for line in text.splitlines()}
    assert on_screen
    assert on_screen <= in_page
    return sorted(line for line in in_page if line.startswith("tempscale "))


def recorded(folder):
    """The bytes of the record of nights, by file."""
    return {path: path.read_bytes() for path in (folder / "nights of it" / "history").rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def place(tmp_path_factory, small_model, ray_session):
    """A folder with two nights by a configuration file, and what each printed."""
    folder = tmp_path_factory.mktemp("printed place")
    (folder / "night ly.toml").write_text(TOML.replace("MODEL", json.dumps(small_model)))
    texts = documented("pyarrow")[:90]
    for night in NIGHTS:
        (folder / f"it's $HOME {night}.jsonl").write_text(as_lines(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ended = [in_process("audit", "night ly.toml", "--cache", "ca che", "--night", night) for night in NIGHTS]
    return folder, ended


def test_a_night_prints_commands_that_end_well_and_keep_cache_thresholds_and_record(place, monkeypatch):
    folder, ended = place
    monkeypatch.chdir(folder)
    before = recorded(folder)
    assert len(before) >= 2
    lines = []
    for night, (code, out, err) in zip(NIGHTS, ended, strict=True):
        assert code == 0, err
        lines.append([line for line in printed(out, folder / "nights of it" / night) if line.startswith("tempscale audit")])
    assert len(lines[0]) >= 2
    for line in lines[0]:
        words = shlex.split(line)
        code, _, err = in_process(*words[1:])
        assert code in (0, 1), err  # More texts than the threshold allows are a failed gate.
        record = read_record(words[words.index("--out") + 1])
        assert record["config"]["gate"]["thresholds"] == ["texts >= 10", "texts <= 70"]
        assert record["config"]["execution"]["cache"] == "ca che"
        assert record["gate"]["checks"] >= 2
        assert in_process(*words[1:])[0] == code  # The same command once more.
    assert recorded(folder) == before
