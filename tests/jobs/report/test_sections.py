"""What all reports do: the answer first, few figures, a table for each chart, provenance folded at the end."""

import pytest
from pages import Page, specs_of
from reports_by_hand import REPORTS, texts_of

from tempscale_jobs.report.page import page
from tempscale_jobs.report.sections import Drawing, Section, Table, drawn, group, tabled
from tempscale_jobs.report.terms import explained, meanings


@pytest.fixture(scope="module", params=REPORTS)
def report(request):
    return REPORTS[request.param]()


def test_the_first_screen_has_an_answer_and_at_most_four_figures(report):
    assert all(part.answer for part in report.parts)
    assert all(len(part.figures) <= 4 for part in report.parts)


def test_every_chart_has_its_figures_as_a_table_and_a_title_and_a_name_of_its_own(report):
    drawn = [section for section in report.walk() if section.drawing is not None]
    assert len({section.key for section in drawn}) == len(drawn)
    for section in drawn:
        table = section.drawing.table
        assert table.rows, section.title
        assert {len(row) for row in table.rows} == {len(table.heads)}, section.title
        assert len(section.title) > 12
        assert section.note


def test_how_it_was_made_is_folded_at_the_end(report):
    last = [*report.before, *(section for part in report.parts for section in part.sections), *report.after][-1]
    if report.title != "The record of nights":
        assert (last.title, last.folded) == ("How this was made", True)


def test_the_page_has_every_text_of_the_report_and_every_chart_and_asks_for_nothing(report):
    made = page(report, {"out": "runs/x"})
    seen = Page(made.html)
    shown = " ".join(seen.text.replace("\u00a0", " ").split())
    for text in texts_of(report):
        for cell in text.split(" | "):
            if cell != report.parts[0].name:  # The only model is named in the line below the title.
                assert " ".join(cell.split()) in shown or all(" ".join(line.split()) in shown for line in cell.split("\n"))
    ids = [attributes["id"] for _, attributes in seen.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert set(specs_of(made.html)) == set(ids) - {"specs"} >= {s.key for s in report.walk() if s.drawing is not None}
    for tag, attributes in seen.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        assert not {"src", "href"} & set(attributes)
    assert page(report, {"out": "runs/x"}).html == made.html


def test_what_is_empty_makes_no_section():
    assert drawn("m0", "cosine", None) == tabled("nights", Table(("a",), [])) == group("Length", [], []) == []
    (section,) = drawn("m0", "value7", Drawing(None, Table(("a",), [("b",)])), "value", task="{t}", texts="0–9: 5")
    assert (section.key, section.title) == ("m0-value7", "{t}: score by length")
    assert section.note.endswith("of each length: 0–9: 5.")
    (whole,) = group("Length", [section], sentences=["so"], folded=True)
    assert whole == Section("Length", ["so"], parts=[section], folded=True)
    assert [each.title for each in whole.walk()] == ["Length", "{t}: score by length"]


def test_a_symbol_is_explained_where_it_is_written_and_not_in_a_path_or_in_small_letters():
    first, second = explained(["Exposure of texts in /runs/S2/s2.", "See S2, Fig 17: exposure is 1."])
    assert first == "Exposure of texts in /runs/S2/s2."
    assert second == "See S2 (arXiv 2604.27398), Fig 17: exposure is 1."
    assert [meaning.partition(":")[0] for meaning in meanings(["S1/x Hubness s2 τ"], ["τ"])] == ["hubness"]
