"""The command line as a user meets it: help, sentences, exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import in_process, tempscale

import tempscale as tempscale_package
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.option import settings

PANELS = {
    "Measure": ["audit", "verify", "pairs", "diagnose", "evaluate"], "Temperature": ["tune", "export"],
    "Correction": ["correct"],
    "Nights": ["history", "compare", "submit"], "Upkeep": ["report", "cache"],
}  # fmt: skip


@pytest.mark.parametrize("command", [command for panel in PANELS.values() for command in panel])
def test_each_help_fits_the_terminal(command, monkeypatch):
    """What the help of `audit` says is in tests/golden/help.txt."""
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = in_process(command, "--help")
    assert code == 0
    assert f"Usage: tempscale {command}" in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_help_of_an_audit_is_a_dozen_options_and_help_all_has_every_one(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    (code, short, _), (code_of_all, whole, _) = (in_process("audit", word) for word in ("--help", "--help-all"))
    assert code == code_of_all == 0
    options, every = (re.findall(r"^│ (--[\w-]+)", page, re.M) for page in (short, whole))
    assert len(options) <= 16
    assert {"--corpus", "--sample", "--model", "--tau", "--out", "--plan", "--help-all"} <= set(options) < set(every)
    declared = {option.typed for setting in settings(AuditConfig) for option, _ in setting.options}
    assert declared <= set(every)
    assert max(map(len, whole.splitlines())) <= 100
    assert in_process("audit", "--help")[1] == short, "the help with all options changes no later one"


def test_the_commands_stand_in_panels():
    _, out, _ = in_process("--help")
    panels = re.split(r"╭─ (\w+) ─+╮", out)[1:]
    found = {name: re.findall(r"│ (\w+) ", page) for name, page in zip(panels[::2], panels[1::2], strict=True)}
    assert found == {"Options": []} | PANELS


@pytest.mark.parametrize(
    ("command", "texts"),
    [
        ("tune", ["(default: --layers)", "(default: runs/tune)"]),
        ("evaluate", ["[NAME=]TYPE:PATH"]),
        ("export", ["by_layer = [1.0, 0.9, …]"]),
    ],
)
def test_help_says_what_a_command_does_without_an_option_and_brackets_are_text(monkeypatch, command, texts):
    """The same of `audit` is in tests/golden/help.txt."""
    monkeypatch.setenv("COLUMNS", "400")
    _, out, _ = in_process(command, "--help")
    assert all(text in out for text in texts)
    assert not re.search(r"--(temperature|paper|tune-batches)\b[^\n]*\(default", out)


@pytest.mark.parametrize("module", ["tempscale", "tempscale_jobs"])
def test_the_version_however_python_is_started(module):
    run = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, f"tempscale {tempscale_package.__version__}\n", "")
    run = subprocess.run([sys.executable, "-m", module, "audit", "--smaple"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 2
    assert "Usage: tempscale audit" in run.stderr


@pytest.mark.proof
def test_python_m_tempscale_without_the_jobs_is_a_sentence(tmp_path):
    (tmp_path / "tempscale").symlink_to(Path(tempscale_package.__file__).parent)
    run = subprocess.run(
        [sys.executable, "-S", "-m", "tempscale"],  # -S: without what is installed.
        env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 2
    assert re.fullmatch("error: .*tempscale_jobs.*\n", run.stderr)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("tempscale ", {"audit", "submit", "report"}),
        ("tempscale audit --ba", {"--baseline"}),
        ("tempscale tune --no-l", {"--no-layers"}),
    ],
)
def test_a_shell_completes_commands_and_options(typed, found):
    shell = {"_TEMPSCALE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    code = "import tempscale_jobs.cli.app as c\ntry: c.main()\nfinally: import sys; print(*sys.modules, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", code], env=os.environ | shell, capture_output=True, text=True, timeout=120)
    assert found <= set(run.stdout.split())
    assert not set(run.stderr.split()) & {"torch", "ray", "transformers", "pyarrow"}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("audti", "audti"),
        ("audit --smaple 3", "--smaple"),
        ("audit --sample many", "--sample"),
        ("audit --sample 0", "corpus.sample (--sample) = 0"),
        ("audit --tau 0.8 --tau 0.8", "twice"),
        ("audit --temperature none.toml", "'none.toml'"),
        ("report /no/such/run", "/no/such/run"),
        ("pairs", "--pairs"),
    ],
)
def test_wrong_usage_is_a_sentence_and_exit_code_2(line, named, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, _, err = in_process(*line.split())
    assert code == 2, err
    assert "Traceback" not in err
    assert named in err


@pytest.mark.proof
def test_wrong_input_is_a_sentence_and_exit_code_2(tmp_path, minilm):
    """What the first rows of a source tell is in test_refused_before_ray.py."""
    good, full = tmp_path / "good.jsonl", tmp_path / "full"
    good.write_text('{"id": 1, "text": "one text"}\n')
    full.mkdir()
    (full / "precious.txt").write_text("not a run")
    for option, value, named in (
        ("--address", "127.0.0.1:1", "127.0.0.1:1"), ("--address", "ray://127.0.0.1:1", "ray://"), ("--out", full, full),
        ("--out", full / "precious.txt", "precious.txt"),
    ):  # fmt: skip
        arguments = ["audit", "--corpus", str(good), "--out", str(tmp_path / "run"), option, str(value)]
        # Where Ray is looked for, as a user runs it: here one may be running.
        code, _, err = (tempscale if option == "--address" else in_process)(*arguments)
        assert code == 2, (arguments, err)
        assert str(named) in err.replace("\n", " "), err
        assert "Traceback" not in err
    assert [file.name for file in full.iterdir()] == ["precious.txt"]
    assert (full / "precious.txt").read_text() == "not a run"


@pytest.mark.proof
def test_the_plan_names_what_a_run_costs_and_writes_nothing(tmp_path, minilm):
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"id": k, "text": f"text number {k} " * (1 + k % 40)}) + "\n" for k in range(300)))
    code, out, err = tempscale("audit", "--corpus", str(corpus), "--sample", "200", "--out", str(tmp_path / "run"), "--plan")
    assert code == 0, err
    for named in ("200 of 300", "19,900", "tokens", "time", "memory", "disk"):
        assert named in out
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_ray")
@pytest.mark.proof
def test_a_ray_that_does_not_start_is_an_incomplete_run(monkeypatch):
    import ray

    from tempscale_jobs.config.sections import Execution
    from tempscale_jobs.errors import IncompleteRun
    from tempscale_jobs.workers import cluster as sessions

    def slow(**_):
        raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "init", slow)
    with pytest.raises(IncompleteRun), sessions.session(Execution.model_validate({"workers": 1})):
        pass
