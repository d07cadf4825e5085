"""What follows from an audit: each line rests on a figure beyond noise, and names a command that exists."""

import re
import shlex

import pytest
from pages import EDGES, RUN, rendered, tables_of, without_errors

from tempscale_jobs.audit import words
from tempscale_jobs.audit.advice import advice
from tempscale_jobs.report.again import again
from tempscale_jobs.report.text import Edges, interval_name
from tempscale_jobs.urls import masked

SOURCE = "https://user:secret@host/texts.jsonl?token=abc"
SPLIT, WIN, ITSELF = (
    "Split long texts",
    "Texts of 0–99 tokens are returned more often",
    "Longer prefixes of the same texts are closer",
)


def lines(tables=None, model=None, run=None, **figures):
    found = words.labelled(tables_of(**figures) if tables is None else tables, EDGES)
    record = RUN | {"models": {"MiniLM": {"max_length": 256} | (model or {})}} | (run or {})
    return advice(found, found["collapse_summary"].row(0, named=True), record)


def starts(found):
    return [next(start for start in (SPLIT, WIN, ITSELF, line.text) if line.text.startswith(start)) for line in found]


@pytest.mark.words
def test_what_is_wrong_comes_first_and_three_lines_at_most():
    found = lines(exposed=(1.5, 1.0, 0.5))
    assert starts(found) == [SPLIT, WIN]
    assert "12.5 ± 5.9 %" in found[0].text
    assert "at 256 tokens" in found[0].text
    assert "33.3 % of the corpus and take 50.0 % of all results (exposure 1.500 ± 0.098)" in found[1].text
    assert f"{ITSELF} together, by 0.0200 ± 0.0078" in found[1].text  # One command answers both.
    assert found[1].command.split()[:2] == ["tempscale", "tune"]
    alike = {"cosine_beside": 0.41, "cosine_mean": 0.06, "factor": 2.31, "correlation": 0.3, "alike": True, "whole": True}
    found = lines(exposed=(1.5, 1.0, 0.5), model={"source_order": alike})
    assert len(found) == 3
    for figure in ("0.41", "0.06", "2.3"):
        assert figure in found[0].text
    assert found[0].command == ""  # Nobody but the user knows the column's name.


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"exposed": (1.01, 1.0, 0.99)}, [SPLIT, ITSELF]),
        ({"exposed": (0.5, 1.0, 1.5)}, [SPLIT, "Texts of 400+ tokens are returned more often"]),
        ({"prefix": 0.001}, [SPLIT, "Long texts are closer together"]),
        ({"prefix": -0.02, "gap": -0.08}, [SPLIT]),
        ({"prefix": None, "gap": 0.001}, [SPLIT]),
    ],
)
def test_a_line_needs_its_reason_beyond_noise(figures, expected):
    found = lines(**figures)
    assert len(found) == len(expected)
    for line, start in zip(found, expected, strict=True):
        assert line.text.startswith(start)


def test_an_interval_ends_at_the_window_unless_longer_texts_are_embedded_in_chunks():
    assert "100–256 tokens" in lines(exposed=(0.5, 1.5, 0.5))[1].text
    whole = {"config": RUN["config"] | {"embedding": RUN["config"].get("embedding", {}) | {"long": "chunk"}}}
    assert "100–399 tokens" in lines(exposed=(0.5, 1.5, 0.5), run=whole)[0].text
    cases = (((256,), "100–256"), ((256, 512), "100–399"), ((512,), "100–399"), ((64,), "100–399"), ((0,), "100–399"))
    for windows, name in cases:
        models = {str(k): {"max_length": window} for k, window in enumerate(windows)}
        assert interval_name(100, Edges.of(RUN | {"models": models})) == name
    assert interval_name(400, Edges.of(RUN | {"models": {"m": {"max_length": 512}}})) == "400–512"


def test_without_a_reason_nothing_needs_to_be_done():
    tables = tables_of(gap=0.001, prefix=0.001, exposed=(1.01, 1.0, 0.99))
    tables |= {"collapse_summary": tables["collapse_summary"].with_columns(truncated_share=0.01)}
    (line,) = lines(tables)
    assert "0.001 ± 0.020" in line.text
    words = shlex.split(line.command)
    assert words[words.index("--baseline") + 1] == "latest"
    assert words[-2] == "--out"
    assert words[-1].endswith("/{night}")
    (unsearched,) = lines(tables | {"exposure": tables["exposure"].clear()})
    assert "not measured" in unsearched.text
    assert "not measured" not in line.text


@pytest.mark.words
def test_what_was_not_measured_asks_for_more_texts():
    (found, *_) = lines(gap=None)
    assert "120 texts" in found.text
    assert "9,000 usable texts" in found.text
    words = shlex.split(found.command)
    given = ["--corpus", "texts.jsonl", "--intervals", "0,100,400", "--sample", "1200"]
    assert words[:-1] == ["tempscale", "audit", *given, "--out"]
    assert words[-1].startswith("runs/audit-more-")
    whole = {"corpus": RUN["corpus"] | {"usable": 120}}
    assert "--intervals 0,16,32,64,128" in lines(gap=None, run=whole)[0].command
    finer = whole | {"config": {"out": "runs/audit", "analysis": {"intervals": [0, 16, 32, 64, 128]}}}
    assert lines(gap=None, run=finer)[0].command == ""
    unknown = without_errors(tables_of())
    assert "collapse gap of 0.080 is beyond noise is not known" in lines(unknown)[0].text
    assert lines(unknown, run=whole)[0].command == ""  # Intervals make no documents.


def test_where_length_was_not_measured_no_choice_of_a_temperature_is_printed():
    """It needs two intervals of so many texts as well, and would end with 2."""
    found = lines(gap=None, exposed=(1.5, 1.0, 0.5))
    assert starts(found)[1:] == [SPLIT, WIN]
    assert not any("tempscale tune" in line.command for line in found)
    assert any("tempscale tune" in line.command for line in lines(exposed=(1.5, 1.0, 0.5)))


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


@pytest.mark.parametrize(("source", "commands"), [("a b.jsonl", 2), (masked(SOURCE), 0)])
def test_commands_are_of_the_same_corpus_and_model_and_none_is_printed_that_has_a_secret(source, commands):
    """With *** for its secret no command would run."""
    config = {
        "out": "runs/audit", "corpus": {"source": source, "text_column": "the body", "document_column": None},
        "embedding": {"models": ["models/mine"], "long": "truncate"}, "analysis": {"intervals": [0, 100, 400]},
    }  # fmt: skip
    found = lines(exposed=(1.5, 1.0, 0.5), run={"config": config, "corpus": RUN["corpus"] | {"source": source}})
    assert len(found) == (2 if commands else 3)  # One command answers two of the three.
    assert not any("secret" in line.text for line in found)
    printed = [shlex.split(line.command) for line in found if line.command]
    assert len(printed) == commands
    for line in printed:
        for option, value in (("--corpus", source), ("--text-column", "the body"), ("--model", "models/mine")):
            assert line[line.index(option) + 1] == value


def test_the_report_and_the_terminal_say_the_same():
    tables = tables_of(exposed=(1.5, 1.0, 0.5))
    page = rendered(tables, RUN)
    named = words.labelled(tables, EDGES)
    for line in advice(named, named["collapse_summary"].row(0, named=True), RUN):
        assert line.text in page.replace("\u00a0", " ")
        assert line.command in re.sub("</?span>", "", page)
