"""The report in a real browser, headless: what is drawn at three widths, in light and dark, and what one can do."""

import pytest
from pages import HOSTILE, RUN, SCHEDULES, drawn, nights, rendered, tables_of, without_errors
from reports_by_hand import REPORTS

from tempscale_jobs.report import text
from tempscale_jobs.report.page import page as page_of

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


@pytest.mark.parametrize("command", REPORTS)
def test_nothing_scrolls_sideways_on_a_phone_and_each_chart_folds_its_figures(tmp_path, command):
    ask = """
      seen.folded = all(".data").every(data => !data.open) && all(".section").some(section => !section.open);
      all("details").forEach(details => details.open = true);
      seen.wide = all(".scroll, figure, pre, .tile, code")
        .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.textContent.slice(0, 80));"""
    made = page_of(REPORTS[command](), {"out": "runs/x" * 40}).html
    seen = drawn(made, tmp_path, 390, ask)
    assert not seen["console"]
    assert seen["drawn"] == seen["charts"] == made.count('<details class="data" open>') + made.count("-trend-") // 2
    assert seen["folded"]
    assert seen["wide"] == []
    assert seen["scroll"] <= 390


def test_what_has_no_error_is_drawn(tmp_path):
    seen = drawn(rendered(without_errors(tables_of()), RUN), tmp_path, 390)
    assert not seen["console"]
    assert seen["drawn"] == 6
    assert "0.00" in "".join(seen["texts"])


def test_texts_are_searched_as_one_types(tmp_path):
    ask = """
      const field = document.querySelector(".find input"), section = field.closest(".section");
      const rows = [...section.querySelectorAll("tbody tr")];
      section.open = true;
      const left = () => rows.filter(row => row.offsetParent).length;
      seen.all = left();
      for (const words of ["no such words", "plain   TEXT", ""]) {
        field.value = words; field.dispatchEvent(new window.Event("input"));
        seen[words] = [left(), document.querySelector(".find output").textContent];
      }"""
    seen = drawn(rendered(tables_of(text="Some Plain words of a text"), RUN), tmp_path, 768, ask)
    assert seen["all"] == 10  # Two temperatures: a text of two rankings, a pair of near-duplicates, a pair of two rankings.
    assert seen["no such words"] == [0, "0 of 10 rows"]
    assert seen["plain   TEXT"] == [10, "10 of 10 rows"]
    assert seen[""] == [10, ""]


def test_charts_take_the_colours_of_the_page_in_the_dark(tmp_path):
    ask = """
      seen.ink = window.getComputedStyle(document.body).color;
      seen.fill = window.getComputedStyle(document.querySelector("#m0-cosine svg text")).fill;"""
    page = rendered(tables_of(), RUN)
    dark, light = drawn(page, tmp_path, 768, ask, dark=True), drawn(page, tmp_path, 768, ask)
    assert dark["ink"] == dark["fill"] != light["ink"] == light["fill"]


def test_the_keyboard_reaches_what_a_mouse_can(tmp_path):
    ask = """
      seen.scrolled = all(".scroll").every(box => box.tabIndex === 0 && box.getAttribute("aria-label"));
      seen.named = all(".chart").every(chart => chart.getAttribute("aria-label").length > 10);
      const section = document.querySelector(".section:not([open])");
      section.querySelector("summary").focus();
      seen.reached = document.activeElement.textContent.trim();
      document.activeElement.click();
      seen.opened = section.open;"""
    seen = drawn(rendered(tables_of(exposed=(0.8, 1.0, 1.2)), RUN), tmp_path, 768, ask)
    assert seen["scrolled"]
    assert seen["named"]
    assert seen["reached"] == "Which cosine is high"
    assert seen["opened"]


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
