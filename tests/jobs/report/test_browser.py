"""The report in a real browser, headless: what is drawn at three widths, in light and dark, and what one can do."""

import pytest
from pages import HOSTILE, RUN, SCHEDULES, drawn, nights, rendered, tables_of, without_errors

from tempscale_jobs.report import text

pytestmark = pytest.mark.proof


@pytest.mark.parametrize(("width", "taus"), [(390, (1.0, 0.8)), (390, SCHEDULES), (768, (1.0, 0.8)), (1280, SCHEDULES)])
def test_every_chart_is_drawn_and_nothing_overflows_or_complains(tmp_path, width, taus):
    page = rendered(tables_of(text=HOSTILE, taus=taus), RUN | {"trend": nights(4, taus=taus)})
    seen = drawn(page, tmp_path, width)
    assert not seen["console"]
    assert seen["charts"] == seen["drawn"] == 6 + 4 + 4  # Figures; the four over the nights, small and large.
    assert seen["client"] == width
    assert seen["scroll"] <= width
    assert seen["over"] <= 1  # Charts as wide as the page keep their legends inside it, to a pixel.
    assert not seen["small"]
    for label in text.labels(map(str, taus)).values():
        assert seen["texts"].count(label) == 6  # Four legends and two titles, not cut once more by the browser.


def test_what_has_no_error_is_drawn(tmp_path):
    seen = drawn(rendered(without_errors(tables_of()), RUN), tmp_path, 390)
    assert not seen["console"]
    assert seen["drawn"] == 6
    assert "0.00" in "".join(seen["texts"])


def test_texts_are_searched_as_one_types(tmp_path):
    ask = """
      const field = document.querySelector(".find input"), rows = [...document.querySelectorAll(".m0-row")];
      const left = () => rows.filter(row => row.offsetParent).length;
      seen.all = left();
      for (const words of ["no such words", "plain   TEXT", ""]) {
        field.value = words; field.dispatchEvent(new window.Event("input"));
        seen[words] = [left(), document.querySelector(".find output").textContent];
      }"""
    tables = tables_of(text="Some Plain words of a text")
    seen = drawn(rendered(tables, RUN), tmp_path, 768, ask)
    assert seen["all"] == 10  # Two temperatures: a text of two rankings, a pair of near-duplicates, a pair of two rankings.
    assert seen["no such words"] == [0, "0 of 10 rows"]
    assert seen["plain   TEXT"] == [10, "10 of 10 rows"]
    assert seen[""] == [10, ""]


def test_charts_take_the_colours_of_the_page_in_the_dark(tmp_path):
    ask = """
      seen.ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
      seen.fill = document.querySelector("#m0-cosine svg text").getAttribute("fill");"""
    page = rendered(tables_of(), RUN)
    dark, light = drawn(page, tmp_path, 768, ask, dark=True), drawn(page, tmp_path, 768, ask)
    assert dark["ink"] == dark["fill"] != light["ink"] == light["fill"]


def test_the_keyboard_reaches_what_a_mouse_can(tmp_path):
    ask = """
      const stops = [...document.querySelectorAll("a, input, summary, [tabindex='0']")];
      seen.first = stops[0].textContent;
      seen.scrolled = [...document.querySelectorAll(".scroll")]
        .every(box => box.tabIndex === 0 && box.getAttribute("aria-label"));
      seen.lost = [...document.querySelectorAll("nav a, .skip, .gate a")]
        .filter(link => !document.getElementById(link.getAttribute("href").slice(1))).length;
      seen.named = [...document.querySelectorAll(".chart")].every(chart => chart.getAttribute("aria-label").length > 10);
      stops[0].focus();
      seen.shown = stops[0].getBoundingClientRect().left >= 0;"""
    seen = drawn(rendered(tables_of(exposed=(0.8, 1.0, 1.2)), RUN), tmp_path, 768, ask)
    assert seen["first"] == "Skip to the findings"
    assert seen["scrolled"]
    assert seen["named"]
    assert seen["shown"]
    assert seen["lost"] == 0


def test_nothing_leaves_the_page(tmp_path):
    """Its policy stops what even a hole in the escaping could ask for."""
    ask = """
      seen.fetched = await window.fetch("http://127.0.0.1:9/").then(() => "yes", error => error.message);
      seen.blocked = 0;
      document.addEventListener("securitypolicyviolation", () => seen.blocked++);
      await window.fetch("http://127.0.0.1:9/").catch(() => 0);
      await new Promise(resolve => setTimeout(resolve, 100));"""
    seen = drawn(rendered(tables_of(), RUN), tmp_path, 768, ask)
    assert seen["fetched"] == "Failed to fetch"
    assert seen["blocked"] >= 1
