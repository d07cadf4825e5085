"""What a page says of the texts that are found most: who searches is named, and who only is a neighbour."""

import pytest
from pages import EDGES, RUN, tables_of
from reports_by_hand import filled, texts_of

from tempscale_jobs.audit import report
from tempscale_jobs.tables.audit import NAMED_TEXTS, REMOVAL

TITLES = {"corpus": "Texts that are most often a neighbour", "queries": "Texts that are returned most"}


def tables(asked_by, kinds=("hub, tiny", "copy"), goes=(True, False)):
    """A run in which the first of two texts fills 600 of 10,000 places."""
    counts = {"asked_by": asked_by, "k": 10, "askers": 1000}
    named = [
        counts | {"rank": k, "text_id": f"text {k}", "kinds": kind, "times": 600, "goes": may_go, "excerpt": f"begins {k}"}
        for k, (kind, may_go) in enumerate(zip(kinds, goes, strict=True))
    ]
    removal = [
        counts | {"interval": edge, "texts": 120, "removed": sum(goes) if edge in (None, 0) else 0, "askers_changed": 600}
        | {"never": 30 if asked_by == "queries" else None, "never_share": 0.25, "times_before": 10.0}
        | {"times_after": {None: 11.0, 0: 9.0, 100: 12.0, 400: 11.0}[edge]}
        for edge in (None, *EDGES)
    ]  # fmt: skip
    return tables_of() | filled(NAMED_TEXTS, *named) | filled(REMOVAL, *removal)


def made(asked_by, **given):
    run = RUN | {"models": {"MiniLM": {"max_length": 256}}}
    return report.report_of(
        tables(asked_by, **given), run | ({"queries": {"read": 1000, "rejected": 0}} if asked_by == "queries" else {})
    )


def section(page):
    found = [part for part in page.walk() if part.title in TITLES.values()]
    return " ".join(text for part in found[0].walk() for text in part.texts()) if found else "", found


@pytest.mark.parametrize("asked_by", TITLES)
def test_the_section_names_them_and_who_gains(asked_by):
    page = made(asked_by)
    said, (found,) = section(page)
    assert found.title == TITLES[asked_by]
    assert "100–256 tokens gain most" in said
    assert "600 of 1,000" in said
    assert "remove.txt" in said
    assert ("30 of 120 texts (25.0 %)" in said) == (asked_by == "queries")
    assert any(word in said.lower() for word in ("search", "result", "quer")) == (asked_by == "queries")
    assert "begins 0" in "\n".join(texts_of(page))


@pytest.mark.parametrize("asked_by", TITLES)
def test_a_hub_is_on_the_first_screen_with_its_share(asked_by):
    said = [text for text, _ in made(asked_by).parts[0].to_do if "remove.txt" in text]
    assert len(said) == 1
    assert "1 text takes 6.0 %" in said[0]
    assert f"{RUN['config']['out']}/remove.txt" in said[0]
    assert ("search" in said[0] or "quer" in said[0]) == (asked_by == "queries")


def test_copies_alone_are_not_on_the_first_screen():
    page = made("queries", kinds=("copy", "copy"), goes=(False, True))
    assert not any("remove.txt" in text for text, _ in page.parts[0].to_do)
    assert "2 texts of those found most have near-duplicates" in section(page)[0]


def test_where_none_goes_nothing_is_said_of_its_file():
    page = made("queries", kinds=(), goes=())
    said = section(page)[0]
    assert "remove.txt" not in said
    assert "none of 1,000 queries" in said
    assert section(made("corpus", kinds=(), goes=()))[1] == []


def test_a_run_of_a_quick_or_an_older_audit_has_no_section():
    page = report.report_of(tables_of(), RUN)
    assert section(page)[1] == []
