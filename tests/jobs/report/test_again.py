"""A printed command is read by our own command line as the run that it is about, whatever was typed and however it was."""

import json
import shlex
import subprocess

import pytest
from command_line import parsed

from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.config.evaluate import EvaluateConfig
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.report.again import again, repeated
from tempscale_jobs.report.shell import shell_line
from tempscale_jobs.runs.folder import described, typed

pytestmark = pytest.mark.proof

KINDS = {"audit": AuditConfig, "tune": TuneConfig, "diagnose": DiagnoseConfig, "evaluate": EvaluateConfig}
NAMES = (
    "plain.parquet", "two words.jsonl", "it's.csv",
    'say "hi".csv', "$HOME.txt", "a*[1]?.parquet", "-x.parquet", "τ é 漢.csv",
    "a\nb.jsonl", "a\tb \\n.jsonl", "a  b.jsonl", "`id`;!x.csv", "\x1b[31m.csv", "#x ~.csv",
)  # fmt: skip


def split_by_bash(line):
    """The words of a line as bash understands them."""
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


def understood(line):
    """The command of a line and the configuration that it means."""
    ((command, parameters),) = parsed(split_by_bash(line))
    return command, KINDS[command].read(parameters)


def finished(words):
    """The configuration of a typed command, and as much of the run.json that it leaves as a printed command needs."""
    command, config = understood(shell_line(words))
    models = config.embedding.models or ["MiniLM"]
    source = getattr(getattr(config, "corpus", None), "source", None)
    record = {
        "command": command, "config": described(config), "command_line": typed(config), "models": dict.fromkeys(models),
        "corpus": {"source": source, "usable": 5_000, "analysed": 100},
    }  # fmt: skip
    return config, json.loads(json.dumps(record))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_any_name_of_a_file_survives_the_shell(name):
    words = ["tempscale", "audit", "--corpus", name, "--out", f"runs/{name}", "--cache", f"c {name}"]
    assert split_by_bash(shell_line(words)) == words
    assert len(shell_line(words).splitlines()) == 1
    config, run = finished(words)
    _, found = understood(again(run, None, "audit", "--long", "chunk", beside="chunks"))
    assert found.corpus == config.corpus
    assert found.execution == config.execution
    assert found.out.startswith(f"runs/{name}-chunks-")
    _, tuned = understood(again(run, None, "tune", beside="tune"))
    assert tuned.corpus == config.corpus


def test_bytes_of_a_name_that_are_no_utf_8_survive_too():
    assert split_by_bash(shell_line(["x", "a\udcff\udce9b.csv"])) == ["x", "a\udcff\udce9b.csv"]


STARTED = {
    "columns": ["--corpus", "c.csv", "--text-column", "the body", "--id-column", "key", "--document-column", "doc"],
    "own vectors": ["--corpus", "v.parquet", "--embedding-column", "v", "--length-column", "n", "--dims", "64"],
    "vectors and queries": [
        "--corpus", "v.parquet", "--embedding-column", "v", "--queries", "q.parquet", "--queries-embedding-column", "w",
    ],
    "queries": ["--corpus", "c.csv", "--queries", "asked?.jsonl", "--neighbours", "3"],
    "model": ["--corpus", "c.csv", "--model", "m/a b", "--max-length", "limit", "--prompts", "none", "--precision", "auto"],
    "schedule": ["--corpus", "c.csv", "--tau", "1.0", "--temperature", "log.toml", "--tau", "0.9"],
    "one run": ["--corpus", "c.csv", "--seed", "7", "--cache", "s3://b/c", "--workers", "3", "--no-text", "--compile"],
    "sizes": ["--corpus", "c.csv", "--limit", "70", "--socm-sample", "40", "--intervals", "0,50", "--cosine", "moments"],
    "paper": ["--corpus", "c.csv", "--paper", "--socm-top-over", "corpus", "--no-length-correction"],
    "a file": ["audit.toml"], "a file and more": ["-dash.toml", "--sample", "50", "--tau", "0.7"],
    "a night": ["night.toml", "--cache", "cache", "--night", "2026-11-22"],
    "nights": ["--corpus", "a-{night}.csv", "--out", "n/{night}", "--baseline", "latest", "--history", "h"],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the commands name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.toml").write_text("log_length = 64\n")
    text = (
        '[corpus]\nsource = "c.csv"\nsample = 20\nmax_characters = 900\n[embedding]\ntemperatures = [1.0, {log_length = 64}]'
    )
    for file in ("audit.toml", "-dash.toml"):
        (tmp_path / file).write_text(text)
    gate = '\n[gate]\nthresholds = ["texts >= 1"]\nbaseline = "latest"\n[record]\nname = "mine"\nhistory = "elsewhere"\n'
    (tmp_path / "night.toml").write_text('out = "nights/{night}"\n' + text.replace("c.csv", "c-{night}.csv") + gate)
    return tmp_path


def typed_words(words):
    """The words as they are typed: a file that looks like an option comes behind the end of the options."""
    return ["tempscale", "audit", *([*words[1:], "--", words[0]] if words[0] == "-dash.toml" else words)]


@pytest.mark.parametrize(("name", "words"), STARTED.items(), ids=STARTED)
def test_what_was_typed_or_is_in_the_file_is_measured_again(folder, name, words):
    config, run = finished(typed_words(words))
    _, found = understood(again(run, None, "audit", "--exposure-sample", "123", beside="other"))
    for section in ("corpus", "queries", "embedding", "seed", "keep_text", "execution"):
        assert getattr(found, section) == getattr(config, section), section
    assert found.analysis == config.analysis.model_copy(update={"exposure_sample": 123})
    assert found.gate.thresholds == config.gate.thresholds
    # Its folder and its record are its own: nothing of the nights is touched.
    assert found.out.startswith(f"{config.out}-other-")
    assert found.record.history == f"{found.out}/history"
    # More of the texts are asked for, whatever said how many.
    _, found = understood(again(run, None, "audit", "--sample", "1000", beside="more"))
    assert found.corpus == config.corpus.model_copy(update={"sample": 1000, "limit": None})
    if "vectors" in name:
        return
    command, found = understood(again(run, list(run["models"])[-1], "tune", beside="tune"))
    assert command == "tune"
    for column in ("source", "text_column", "id_column", "document_column"):
        assert getattr(found.corpus, column) == getattr(config.corpus, column)
    assert found.embedding.models == config.embedding.models
    assert found.embedding.max_length == config.embedding.max_length
    assert found.choosing.intervals == config.analysis.intervals
    assert found.out.startswith(f"{config.out}-tune-")


@pytest.mark.parametrize("name", ["columns", "own vectors", "queries", "model", "sizes"])
def test_a_run_that_did_not_record_what_was_typed_is_measured_again_from_its_configuration(folder, name):
    config, run = finished(typed_words(STARTED[name]))
    _, found = understood(again(run | {"command_line": None}, None, "audit", "--exposure-sample", "123", beside="other"))
    for section in ("corpus", "queries", "embedding"):
        assert getattr(found, section) == getattr(config, section), section
    for setting in ("intervals", "neighbours", "cosine"):
        assert getattr(found.analysis, setting) == getattr(config.analysis, setting)


@pytest.mark.parametrize("name", ["a night", "nights"])
def test_a_night_is_repeated_as_it_was_typed_so_that_every_night_has_cache_and_thresholds(folder, name):
    _, run = finished(typed_words(STARTED[name]))
    words = shlex.split(repeated(run))
    expected = [word for word in STARTED[name] if word not in ("--night", "2026-11-22")]
    assert sorted(words[2:]) == sorted(expected)
    _, found = understood(repeated(run))
    assert found.night is not None
    assert found.gate.baseline == "latest"


@pytest.mark.parametrize("words", [[], ["--workers", "2"], ["--text-column", "text"]])
def test_what_goes_on_from_the_quick_start_has_its_sizes_and_takes_as_long(words):
    config, run = finished(["tempscale", "audit", *words])
    line = again(run, None, "audit", "--long", "chunk", beside="chunks")
    _, found = understood(line)
    assert len(line) < 120
    assert found.corpus == config.corpus
    assert found.analysis == config.analysis
    assert found.embedding.long == "chunk"
    assert understood(again(run, None, "audit", "--sample", "1000", beside="more"))[1].corpus.sample == 1000
    _, tuned = understood(again(run, None, "tune", beside="tune"))
    assert tuned.corpus.source == config.corpus.source


@pytest.mark.parametrize(
    ("words", "command", "kept"),
    [
        (["diagnose", "--corpus", "c d.csv", "--tau", "1"], "tune", ["--corpus", "c d.csv"]),
        (["diagnose", "--corpus", "c.csv", "--texts", "90"], "diagnose", ["--corpus", "c.csv"]),
        (["diagnose", "--corpus", "c.csv", "--model", "m/a"], "audit", ["--model", "m/a"]),
        (["evaluate", "--task", "SciFact", "--task", "sts:p.csv", "--tau", "1"], "tune", ["--task", "SciFact"]),
        (["evaluate", "--task", "SciFact", "--model", "m/a", "--tau", "1"], "tune", ["--model", "m/a"]),
    ],
)
def test_a_diagnosis_and_an_evaluation_are_gone_on_from(words, command, kept):
    _, run = finished(["tempscale", *words])
    changed = ("--texts", "80") if command == "diagnose" else ()
    found, config = understood(again(run, next(iter(run["models"])), command, *changed, beside="next"))
    assert found == command
    line = split_by_bash(again(run, next(iter(run["models"])), command, *changed, beside="next"))
    assert " ".join(kept) in " ".join(line)
    assert "next" in config.out
    if "--tau" in words:
        assert "--tau" not in line


def test_one_model_of_several_is_named_and_the_folders_of_two_commands_are_two():
    _, run = finished(["tempscale", "audit", "--corpus", "c.csv", "--model", "m/a", "--model", "m/b", "--out", "o/"])
    lines = [again(run, name, "audit", beside="x") for name in ("m/a", "m/b")]
    found = [understood(line)[1] for line in lines]
    assert [config.embedding.models for config in found] == [["m/a"], ["m/b"]]
    assert found[0].out != found[1].out
    assert all(config.out.startswith("o-x-") for config in found)
    assert again(run, "m/a", "audit", beside="x") == lines[0]


def test_a_tune_without_a_corpus_has_no_audit_that_goes_on_from_it():
    _, run = finished(["tempscale", "tune", "--task", "SciFact"])
    assert again(run, "MiniLM", "audit", "--tau", "1.0", beside="audit") == ""
    _, run = finished(["tempscale", "tune", "--corpus", "c d.csv", "--intervals", "0,40", "--tau", "1", "--tau", "0.5"])
    line = again(run, "MiniLM", "audit", "--tau", "1.0", "--temperature", "t/temperature.json", beside="audit")
    words = split_by_bash(line)
    assert words[words.index("--corpus") + 1] == "c d.csv"
    assert [words[k + 1] for k, word in enumerate(words) if word == "--tau"] == ["1.0"]
    assert words[words.index("--intervals") + 1] == "0,40"


def test_what_only_a_file_says_is_no_line_of_options():
    corpus = {"source": "v.parquet", "embedding_column": "vector", "bits": True}
    run = {"config": {"out": "o", "corpus": corpus}, "models": {"given": {}}, "corpus": {"source": "v.parquet", "usable": 9}}
    assert again(run, "given", "audit", beside="x") == ""
    started = run | {"command_line": {"file": "v.toml", "options": {}}}
    assert shlex.split(again(started, "given", "audit", beside="x"))[:3] == ["tempscale", "audit", "v.toml"]
