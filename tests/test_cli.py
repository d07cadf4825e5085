"""The command line as a user meets it: help, sentences, exit codes."""

import json
import subprocess
import sys

import pytest


def tempscale(*arguments):
    run = subprocess.run([sys.executable, "-m", "jobs", *arguments], capture_output=True, text=True, timeout=120)
    return run.returncode, run.stdout, run.stderr


def in_process(*arguments):
    """The same command without a new process, whose imports would take most of the time."""
    from typer.testing import CliRunner

    from jobs.cli import app

    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_help_teaches():
    code, out, _ = tempscale("--help")
    assert code == 0
    assert "audit" in out
    code, out, _ = tempscale("audit", "--help")
    assert code == 0
    out = " ".join(out.replace("│", " ").split())
    for word in (
        "--corpus",
        "--tau",
        "--resume",
        "--fresh",
        "--plan",
        "--no-text",
        "Exit codes",
        "Examples",
        "(default: 1.0 0.8)",
    ):
        assert word in out, word
    code, out, _ = tempscale("pairs", "--help")
    assert code == 0
    out = " ".join(out.replace("│", " ").split())
    for word in ("--pairs", "[required]", "--column-a", "--paper", "hard negatives", "Exit codes", "Examples", "--tau"):
        assert word in out, word


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["audit", "--smaple", "3"], ["--smaple"]),
        (["audti"], ["audti"]),
        (["audit", "--sample", "many"], ["--sample", "valid integer"]),
        (["audit", "--sample", "0"], ["corpus.sample (--sample) = 0"]),
        (["audit", "--tau", "0"], ["temperature 0.0 is out of range"]),
        (["audit", "--tau", "nan"], ["out of range"]),
        (["audit", "--tau", "0.8", "--tau", "0.8"], ["name one twice"]),
        (["audit", "--intervals", "10,5"], ["must start at 0"]),
        (["audit", "none.toml"], ["'none.toml' is not there"]),
        (["audit", "--temperature", "none.toml"], ["'none.toml' is not there"]),
        (["report", "/no/such/run"], ["holds no finished run"]),
        (["pairs"], ["Missing option '--pairs'"]),
        (["pairs", "--pairs", "none.csv"], ["pairs 'none.csv' is not there"]),
    ],
)
def test_wrong_usage_is_a_sentence_and_exit_code_2(arguments, words):
    code, _, err = tempscale(*arguments)
    assert code == 2, err
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_wrong_input_is_a_sentence_and_exit_code_2(tmp_path, minilm, no_ray):
    good = tmp_path / "good.jsonl"
    good.write_text('{"id": 1, "text": "one text"}\n')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("not a run")
    no_weights = tmp_path / "no-weights"
    no_weights.mkdir()
    (no_weights / "config.json").write_text('{"model_type": "bert"}')
    unsupported = tmp_path / "unsupported"
    unsupported.mkdir()
    (unsupported / "config.json").write_text('{"model_type": "deberta-v2"}')
    (unsupported / "model.safetensors").write_bytes(b"")
    cases = [
        (["--corpus", str(tmp_path / "none.parquet")], "is not there"),
        (["--corpus", str(good), "--text-column", "body"], "has no column 'body'; it has 'id', 'text'"),
        (["--corpus", str(good), "--model", str(tmp_path / "no-model")], "is not a folder"),
        (["--corpus", str(good), "--model", str(no_weights)], "no *.safetensors weights"),
        (["--corpus", str(good), "--model", str(unsupported)], "family 'deberta-v2' is not supported"),
        (["--corpus", str(good), "--max-length", "513"], "takes 3 to 512 tokens"),
        (["--corpus", str(good), "--out", str(tmp_path / "full")], "is not empty and is no tempscale run"),
        (["--corpus", str(good), "--out", str(good)], "is a file"),
        (["--corpus", str(good), "--address", "127.0.0.1:1"], "cannot be reached"),
        (["--corpus", str(good), "--address", "ray://127.0.0.1:1"], "does not run through Ray's client"),
    ]  # fmt: skip
    for number, (arguments, words) in enumerate(cases):
        out = [] if "--out" in arguments else ["--out", str(tmp_path / f"run{number}")]
        # The last, where Ray is looked for, as a user runs it.
        code, _, err = (tempscale if number == len(cases) - 1 else in_process)("audit", *arguments, *out)
        assert code == 2, (arguments, err)
        assert words in err.replace("\n", " "), err
        assert "Traceback" not in err
    assert (tmp_path / "full" / "precious.txt").read_text() == "not a run"
    assert not list((tmp_path / "full").glob("*.json"))


def test_a_mistyped_corpus_does_not_block_the_folder(tmp_path, minilm):
    good = tmp_path / "good.jsonl"
    good.write_text('{"id": 1, "text": ""}\n')
    out = ["--out", str(tmp_path / "run")]
    for source, words in (("gone.jsonl", "is not there"), ("good.jsonl", "no usable text")):
        code, _, err = in_process("audit", "--corpus", str(tmp_path / source), *out)
        assert code == 2
        assert words in err.replace("\n", " ")


def test_the_plan_names_what_a_run_costs_and_writes_nothing(tmp_path, minilm):
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text("".join(json.dumps({"id": k, "text": f"text number {k} " * (1 + k % 40)}) + "\n" for k in range(300)))
    code, out, err = tempscale("audit", "--corpus", str(corpus), "--sample", "200", "--out", str(tmp_path / "run"), "--plan")
    assert code == 0, err
    assert "200 of 300 usable" in out
    assert "19,900 cosines" in out
    for word in ("tokens", "time", "memory", "disk"):
        assert word in out
    assert not (tmp_path / "run").exists()


def test_a_polite_kill_is_an_interrupt_whatever_ray_does_with_it():
    """Ray takes SIGTERM when it starts; the handler of before is put back."""
    import signal

    from jobs.engine import _signals_kept

    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with _signals_kept():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler is signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_ray_that_does_not_start_is_an_incomplete_run(no_ray, monkeypatch):
    import ray

    from jobs import engine
    from jobs.errors import IncompleteRun
    from jobs.execution_config import Execution

    def slow(**_):
        raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "init", slow)
    with (
        pytest.raises(IncompleteRun, match="Ray did not start on this machine"),
        engine.session(Execution.model_validate({"workers": 1})),
    ):
        pass
