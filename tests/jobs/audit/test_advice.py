"""What follows from an audit: each line rests on a figure beyond noise, and names a command that exists."""

import re
import shlex

import pytest
import typer.testing
from pages import RUN, rendered, tables_of, without_errors

from tempscale_jobs.audit import words
from tempscale_jobs.audit.advice import advice
from tempscale_jobs.audit.again import again
from tempscale_jobs.cli.app import app
from tempscale_jobs.config.audit import AuditConfig, resolve
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import described
from tempscale_jobs.urls import masked

SOURCE = "https://user:secret@host/texts.jsonl?token=abc"
SPLIT, WIN, ITSELF = "Split long texts", "Texts of 0–99 tokens win searches", "Length itself draws texts together"


def lines(tables=None, model=None, run=None, **figures):
    found = words.labelled(tables_of(**figures) if tables is None else tables)
    record = RUN | {"models": {"MiniLM": {"max_length": 256} | (model or {})}} | (run or {})
    return advice(found, found["collapse_summary"].row(0, named=True), record)


def starts(found):
    return [next(start for start in (SPLIT, WIN, ITSELF, line.text) if line.text.startswith(start)) for line in found]


def test_what_is_wrong_comes_first_and_three_lines_at_most():
    found = lines(exposed=(1.5, 1.0, 0.5))
    assert starts(found) == [SPLIT, WIN]
    assert "12.5 ± 5.9 % of all texts are cut there" in found[0].text
    assert "at 256 tokens" in found[0].text
    assert "33.3 % of the corpus and take 50.0 % of all results (exposure 1.500 ± 0.098)" in found[1].text
    assert f"{ITSELF}, by 0.0200 ± 0.0078 in mean cosine" in found[1].text  # One command answers both.
    assert found[1].command.split()[:2] == ["tempscale", "tune"]
    alike = {"cosine_beside": 0.41, "cosine_mean": 0.06, "factor": 2.31, "correlation": 0.3, "alike": True, "whole": True}
    found = lines(exposed=(1.5, 1.0, 0.5), model={"source_order": alike})
    assert len(found) == 3
    assert "(a cosine of 0.41, 0.06 in the mean)" in found[0].text
    assert "factor of 2.3" in found[0].text
    assert found[0].command == ""  # Nobody but the user knows the column's name.


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"exposed": (1.01, 1.0, 0.99)}, [SPLIT, ITSELF]),
        ({"exposed": (0.5, 1.0, 1.5)}, [SPLIT, "Texts of 400+ tokens win searches"]),
        ({"prefix": 0.001}, [SPLIT, "Long texts lie closer together"]),
        ({"prefix": -0.02, "gap": -0.08}, [SPLIT]),
        ({"prefix": None, "gap": 0.001}, [SPLIT]),
    ],
)
def test_a_line_needs_its_reason_beyond_noise(figures, expected):
    found = lines(**figures)
    assert len(found) == len(expected)
    for line, start in zip(found, expected, strict=True):
        assert line.text.startswith(start)


def test_texts_that_were_cut_are_not_called_texts_of_the_windows_length():
    found = lines(exposed=(0.5, 1.5, 0.5))
    assert found[1].text.startswith("Texts of 100 tokens or more, cut at 256, win searches: they are ")
    whole = {"config": RUN["config"] | {"embedding": RUN["config"].get("embedding", {}) | {"long": "chunk"}}}
    assert lines(exposed=(0.5, 1.5, 0.5), run=whole)[0].text.startswith("Texts of 100–399 tokens win searches")


def test_without_a_reason_nothing_needs_to_be_done():
    tables = tables_of(gap=0.001, prefix=0.001, exposed=(1.01, 1.0, 0.99))
    whole = tables["collapse_summary"].with_columns(truncated_share=0.01)
    (line,) = lines(tables | {"collapse_summary": whole})
    assert line.text.startswith("Nothing needs to be done about length: the collapse gap is 0.001 ± 0.020")
    words = shlex.split(line.command)
    assert words[words.index("--baseline") + 1] == "latest"
    assert words[-2] == "--out"
    assert words[-1].endswith("/{night}")


def test_what_was_not_measured_asks_for_more_texts():
    found = lines(gap=None)
    assert found[0].text == (
        "Length was not measured, because fewer than two length intervals have 30 of its 120 texts: analyse more of the "
        "9,000 usable texts."
    )
    words = shlex.split(found[0].command)
    given = ["--corpus", "texts.jsonl", "--intervals", "0,100,400", "--sample", "1200"]
    assert words[:-1] == ["tempscale", "audit", *given, "--out"]
    assert words[-1].startswith("runs/audit-more-")
    found = lines(without_errors(tables_of()))
    assert found[0].text.startswith(
        "How far the collapse gap of 0.080 is beyond noise is not known, because its texts are of too"
    )
    whole = {"corpus": RUN["corpus"] | {"usable": 120}}
    assert "finer length intervals would tell" in lines(gap=None, run=whole)[0].text
    assert "--intervals 0,16,32,64,128" in lines(gap=None, run=whole)[0].command
    finer = whole | {"config": {"out": "runs/audit", "analysis": {"intervals": [0, 16, 32, 64, 128]}}}
    assert lines(gap=None, run=finer)[0].command == ""
    # Intervals make no documents.
    assert lines(without_errors(tables_of()), run=whole)[0].text.endswith(
        "of too few documents: a larger corpus would tell."
    )


def test_what_was_not_searched_is_not_called_fair():
    tables = tables_of(gap=0.001, prefix=0.001)
    tables |= {"collapse_summary": tables["collapse_summary"].with_columns(truncated_share=0.01)}
    (line,) = lines(tables | {"exposure": tables["exposure"].clear()})
    assert "and search results were not measured" in line.text


def test_embeddings_of_ones_own_are_not_tuned_and_ask_for_queries_by_their_options():
    corpus = {"source": "v.parquet", "embedding_column": "vector", "length_column": "tokens", "dims": 64}
    own = {"config": {"out": "runs/audit", "corpus": corpus, "analysis": {"intervals": [0, 100, 400]}}}
    found = lines(exposed=(1.5, 1.0, 0.5), run=own)
    assert starts(found) == [WIN]
    assert "--queries-embedding-column" in found[0].text
    assert found[0].command == ""
    assert "--queries" not in lines(exposed=(1.5, 1.0, 0.5))[0].text


def test_what_only_a_file_says_is_no_line_of_options():
    corpus = {"source": "v.parquet", "embedding_column": "vector", "bits": True}
    run = {"config": {"out": "o", "corpus": corpus}, "models": {"given": {}}, "corpus": {"source": "v.parquet", "usable": 9}}
    assert again(run, "given", "audit", beside="x") == ""
    started = run | {"command_line": {"file": "v.toml", "options": {}}}
    assert shlex.split(again(started, "given", "audit", beside="x"))[:3] == ["tempscale", "audit", "v.toml"]


@pytest.fixture
def understood(monkeypatch):
    """A function that returns the configuration that a command line is understood as."""

    def understood(line):
        kind, found = {"audit": AuditConfig, "tune": TuneConfig}[shlex.split(line)[1]], []
        read = kind.read

        def keep(given):
            found.append(read(given))
            raise UsageError("that is all")

        with monkeypatch.context() as patch:
            patch.setattr(kind, "read", keep)
            typer.testing.CliRunner().invoke(app, shlex.split(line)[1:])
        return found[0]

    return understood


@pytest.mark.parametrize(
    "data",
    [
        {"corpus": {"sample": 300}, "analysis": {"socm_groups": 12, "socm_ranked": 32, "probe_sample": 48}},
        {
            "out": "runs/mine",
            "corpus": {"source": "a b.jsonl", "text_column": "body", "limit": 70},
            "queries": {"source": "q.jsonl"},
            "embedding": {
                "models": ["m/a", "m/b"],
                "max_length": "limit",
                "temperatures": [1.0, 0.9, 0.7],
                "prompts": "none",
            },
            "analysis": {"intervals": [0, 50], "neighbours": 5, "cosine": "moments"},
        },
        {"embedding": {"models": ["m/a", "m/b"], "temperatures": [1.0], "max_length": 128, "precision": "auto"}},
    ],
)
def test_a_command_is_understood_as_the_run_with_what_it_changes(data, understood):
    config = resolve(data)
    names = config.embedding.models or ["MiniLM"]
    run = {"config": described(config), "models": dict.fromkeys(names), "corpus": {"source": config.corpus.source}}
    line = again(run, names[-1], "audit", "--long", "chunk", beside="chunks")
    found = understood(line)
    assert found.corpus == config.corpus
    assert found.queries == config.queries
    expected = {"models": config.embedding.models[-1:], "long": "chunk"}
    assert found.embedding == config.embedding.model_copy(update=expected)
    for name in ("intervals", "neighbours", "cosine"):
        assert getattr(found.analysis, name) == getattr(config.analysis, name)
    assert found.out.startswith(f"{config.out}-chunks-")
    assert found.out != understood(again(run, names[-1], "audit", "--long", "truncate", beside="chunks")).out
    tuned = understood(again(run, names[-1], "tune", beside="tune"))
    assert tuned.out.startswith(f"{config.out}-tune-")
    assert tuned.corpus.source == config.corpus.source
    assert tuned.embedding.models == config.embedding.models[-1:]
    assert tuned.embedding.max_length == config.embedding.max_length
    whole = understood(again(run, None, "audit", beside="whole", whole=True))
    assert whole.corpus.sample is None
    assert whole.embedding.models == config.embedding.models


CONFIG = {
    "out": "runs/audit", "corpus": {"source": "a b.jsonl", "text_column": "the body", "id_column": "key",
               "document_column": None},
    "embedding": {"models": ["models/mine"], "long": "truncate"}, "analysis": {"intervals": [0, 100, 400]},
}  # fmt: skip


def test_commands_are_of_the_same_corpus_and_model():
    found = lines(exposed=(1.5, 1.0, 0.5), run={"config": CONFIG, "corpus": RUN["corpus"] | {"source": "a b.jsonl"}})
    assert len([line for line in found if line.command]) == 2
    for line in found:
        name, command, *options = shlex.split(line.command)
        assert name == "tempscale"
        assert command in ("audit", "tune")
        for option, value in (("--corpus", "a b.jsonl"), ("--text-column", "the body"), ("--id-column", "key")):
            assert options[options.index(option) + 1] == value
        assert options[options.index("--model") + 1] == "models/mine"


def test_a_command_with_a_secret_is_not_printed_since_without_it_none_would_run():
    corpus = {"corpus": RUN["corpus"] | {"source": masked(SOURCE)}}
    found = lines(exposed=(1.5, 1.0, 0.5), run=corpus | {"config": CONFIG})
    assert len(found) == 3  # Two of which one command answers.
    for line in found:
        assert line.command == ""
        assert line.text.endswith(".")
        assert "secret" not in line.text


def test_the_report_and_the_terminal_say_the_same():
    tables = tables_of(exposed=(1.5, 1.0, 0.5))
    page = rendered(tables, RUN)
    for line in advice(words.labelled(tables), words.labelled(tables)["collapse_summary"].row(0, named=True), RUN):
        assert line.text in page.replace("\u00a0", " ")
        assert line.command in re.sub("</?span>", "", page)
