"""What follows from an audit: each line rests on a figure beyond noise, and names a command that exists."""

import shlex

import pytest
import typer.testing
from pages import RUN, rendered, tables_of, without_errors

from tempscale_jobs.audit import words
from tempscale_jobs.audit.advice import advice
from tempscale_jobs.cli.app import app

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
    assert starts(found) == [SPLIT, WIN, ITSELF]
    assert "12.5 ± 5.9 % of them are cut there" in found[0].text
    assert "at 256 tokens" in found[0].text
    assert "33.3 % of the corpus and take 50.0 % of all results (exposure 1.500 ± 0.098)" in found[1].text
    assert "by 0.0200 ± 0.0078 in mean cosine" in found[2].text
    alike = {"cosine_beside": 0.41, "cosine_mean": 0.06, "factor": 2.31, "correlation": 0.3, "alike": True, "whole": True}
    found = lines(exposed=(1.5, 1.0, 0.5), model={"source_order": alike})
    assert len(found) == 3
    assert "(a cosine of 0.41, 0.06 in the mean)" in found[0].text
    assert "factor of 2.3" in found[0].text
    assert found[0].command.endswith("--document-column COLUMN")


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ({"exposed": (1.01, 1.0, 0.99)}, [SPLIT, ITSELF]),
        ({"exposed": (0.5, 1.0, 1.5)}, [SPLIT, "Texts of 400+ tokens win searches", ITSELF]),
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


def test_without_a_reason_nothing_needs_to_be_done():
    tables = tables_of(gap=0.001, prefix=0.001, exposed=(1.01, 1.0, 0.99))
    whole = tables["collapse_summary"].with_columns(truncated_share=0.01)
    (line,) = lines(tables | {"collapse_summary": whole})
    assert line.text.startswith("Nothing needs to be done about length: the collapse gap is 0.001 ± 0.020")
    assert line.command.endswith("--out 'nights/{night}' --baseline latest")


def test_what_was_not_measured_asks_for_more_texts():
    found = lines(gap=None)
    assert found[0].text == (
        "Length was not measured, because fewer than two length intervals have 30 of its 120 texts: analyse more of the "
        "9,000 usable texts."
    )
    assert found[0].command.endswith("--sample 1200")
    found = lines(without_errors(tables_of()))
    assert "because its texts are of too few documents" in found[0].text


def test_commands_are_of_the_same_corpus_and_model_are_known_and_tell_no_secret():
    config = {
        "corpus": {"source": SOURCE, "text_column": "the body", "id_column": "key", "document_column": None},
        "embedding": {"models": ["models/mine"], "long": "truncate"}, "analysis": {"intervals": [0, 100, 400]},
    }  # fmt: skip
    found = lines(exposed=(1.5, 1.0, 0.5), run={"config": config, "corpus": RUN["corpus"] | {"source": SOURCE}})
    for line in found:
        assert "secret" not in line.command + line.text
        assert "abc" not in line.command
        name, command, *options = shlex.split(line.command)
        assert name == "tempscale"
        assert options[options.index("--text-column") + 1] == "the body"
        assert options[options.index("--id-column") + 1] == "key"
        assert options[options.index("--model") + 1] == "models/mine"
        told = typer.testing.CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
        for option in options:
            assert not option.startswith("--") or option in told


def test_the_report_and_the_terminal_say_the_same():
    tables = tables_of(exposed=(1.5, 1.0, 0.5))
    page = rendered(tables, RUN)
    for line in advice(words.labelled(tables), words.labelled(tables)["collapse_summary"].row(0, named=True), RUN):
        assert line.text in page.replace("\u00a0", " ")
        assert line.command in page
