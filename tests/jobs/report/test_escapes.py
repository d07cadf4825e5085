"""Escapes on the terminal, in JSON and on pages, by hand."""

import io
import json
import unicodedata
from types import SimpleNamespace

import pytest
from pages import EVIL, HOSTILE, STEERS, Page, specs_of
from rich.console import Console

from tempscale_jobs.errors import visible
from tempscale_jobs.report import page
from tempscale_jobs.report.screen import Screen, print_table
from tempscale_jobs.report.sections import Drawing, Figure, Part, Report, Section, Table
from tempscale_jobs.report.shell import folder_for
from tempscale_jobs.runs import sealed


def test_a_screen_prints_escapes(capsys):
    Screen(width=200).print(f"a {EVIL}b\n\tc", markup=False)
    print_table(Screen(width=200), [f"head {EVIL}"], [[f"cell {EVIL}"]])
    said = capsys.readouterr().out
    assert not STEERS.search(said)
    assert said.startswith("a \\x1b[2J\\x1b]0;owned\\x07 \\x9b31m\\u2028\\x00b\n")
    assert "cell \\x1b[2J" in said


def test_escapes_are_those_of_python():
    assert visible("a\x1b\n\x85b\ud800") == "a\\x1b\\n\\x85b\\ud800"
    assert visible("a\n\tb", "\n\t") == "a\n\tb"
    assert visible("naïve — 漢字") == "naïve — 漢字"


def test_what_is_escaped_are_unicodes_own_categories():
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        assert (visible(chr(code)) != chr(code)) == (category in ("Cc", "Cs", "Zl", "Zp")), hex(code)


def test_every_character_that_steers_is_an_escape_in_json_which_is_the_same_json():
    value = {"a": EVIL, "b": ["\x85", {"c": "".join(map(chr, [*range(0xA0), 0x2028, 0x2029]))}]}
    data = sealed.dumps(value)
    assert not STEERS.search(data.decode())
    assert sealed.loads(data) == value


def test_what_looks_like_markup_in_a_table_is_text():
    console = Console(file=io.StringIO(), width=100)
    print_table(console, ["[bold]head[/]"], [["[red]cell[/red] a[/b]"]])
    assert console.file.getvalue().split() == ["[bold]head[/]", "[red]cell[/red]", "a[/b]"]


def test_no_text_of_a_figure_ends_the_script_that_holds_it():
    given = {"title": "</script><script>alert(1)</script>", "sub": "<!-- \u2028 & \u2029"}
    text = page.safe_json(given)
    assert "<" not in text
    assert json.loads(text) == given


def test_the_texts_of_a_page_and_of_its_figures_are_shown_and_not_obeyed():
    """A value that a template prints, and all texts of a specification: names, values and those in lists."""
    given = {"data": [{"id": "a\x1b[2Jb", "value": 1.5}], "title": ["\x9bm", None, True]}
    shown = page.shown_in(given)
    assert shown == {"data": [{"id": r"a\x1b[2Jb", "value": 1.5}], "title": [r"\x9bm", None, True]}
    made = page.page(report_of(EVIL, SimpleNamespace(to_dict=lambda validate: given)), {"out": EVIL})
    html = made.html.replace(page.vega_bundle(), "")
    assert html.count("\\x1b[2J") > 12
    assert "5\u00a0±\u00a02" in html
    assert not STEERS.search(html)
    assert list(made.figures.values()) == [shown]


def report_of(text, chart):
    """A report that has the text in every place."""
    table = Table((text, "figure"), [(f"{text}\n{text}", f"{text} 5 ± 2")])
    figure = Figure(text, text, text, text, [text], "m0-trend", Drawing(chart, table))
    section = Section(text, [text, text], text, "m0-chart", Drawing(chart, table), table, [Section(text)], searched=True)
    part = Part("m0", text, text, [figure], [(text, text)], [section])
    return Report(text, text, [part, part], [text], [text], [Section(text)], [Section(text)])


def test_markup_in_a_text_stays_text():
    chart = SimpleNamespace(to_dict=lambda validate: {"title": HOSTILE})
    hostile, plain = (page.page(report_of(text, chart), {"out": text}).html for text in (HOSTILE, "plain"))
    seen, expected = Page(hostile), Page(plain)
    tags = [[tag for tag, _ in own.tags if tag not in ("span",)] for own in (seen, expected)]  # A command has one a word.
    assert tags[0] == tags[1]
    assert not any(name.startswith("on") for _, attributes in seen.tags for name in attributes)
    assert seen.text.count('</script><script>alert("x")</script>') >= 20
    assert "{{ 7*7 }}" in seen.text
    assert specs_of(hostile)["m0-chart"] == {"title": HOSTILE.replace("\u2028", "\\u2028")}


@pytest.mark.parametrize(
    ("root", "before"),
    [("runs/a", "runs/a-"), ("runs/a/", "runs/a-"), ("s3://b", "s3://b/"), ("s3://b/", "s3://b/"), ("s3://b/x", "s3://b/x-"),
     ("/", "/"), ("-o", "./-o-"), ("file:///r", "file:///r-")],
)  # fmt: skip
def test_a_new_folder_is_where_the_run_may_write(root, before):
    found = folder_for(["audit"], root, "more")
    assert found.startswith(f"{before}more-")
    assert found != folder_for(["pairs"], root, "more")


@pytest.mark.parametrize("columns", ["0", "-3", "1", "40"])
def test_a_terminal_of_no_width_shows_what_is_printed(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    Screen().print("error: sentence", soft_wrap=True)
    assert "sentence" in capsys.readouterr().out


def test_cells_of_tables_show_no_secret(capsys):
    print_table(Screen(width=200), ["folder"], [["s3://KEY:SECRET@bucket/x"]])
    printed = capsys.readouterr().out
    assert "SECRET" not in printed
    assert "bucket/x" in printed
