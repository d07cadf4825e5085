"""The page: what it says follows the tables, nothing in it is code, and nothing is asked for from outside."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import polars as pl
import pytest

from jobs import headline, report, schema

HOSTILE = """</script><script>alert("x")</script><img src=x onerror=alert(1)> & 'q' \u2028 {{ 7*7 }}"""
EDGES = (0, 100, 400)


def key(tau, model="MiniLM"):
    return {"model": model, "temperature": str(tau), "tau": tau, "schema_version": 1}


def measured(name, value, error):
    short = name.removesuffix("_mean")
    return {name: value, f"{short}_se": None if error is None else error / 2, f"{short}_se_superpopulation": error}


def tables_of(gap=0.08, gap_error=0.01, prefix=0.02, change=-0.017, socm=0.66, text="a plain text", model="MiniLM"):
    """The tables of a run with these figures at τ 1.0, and at τ 0.8 `change` added to the gap."""
    cells, summary, probe, seconds, pairs, scatter = [], [], [], [], [], []
    for tau, gap_now in ((1.0, gap), (0.8, None if gap is None else gap + change)):
        for a in EDGES:
            for b in EDGES:
                if a <= b:
                    mean = 0.05 + (gap_now or 0.0) * (EDGES.index(a) + EDGES.index(b)) / 4
                    cells.append(
                        key(tau, model) | {"interval_a": a, "interval_b": b, "texts_a": 40, "texts_b": 40, "pairs": 780}
                        | measured("cosine_mean", mean, 0.004)
                        | {"cosine_std": 0.1, "cosine_p05": -0.1, "cosine_p50": mean, "cosine_p95": 0.3}
                    )  # fmt: skip
                    if socm is not None:
                        seconds.append(
                            key(tau, model) | {"interval_a": a, "interval_b": b, "pairs": 780}
                            | {"d_mu_mean": 0.45, "d_sigma_mean": 1.2} | measured("socm_mean", socm, 0.01)
                            | {"socm_p50": 0.6, "socm_p95": 0.9, "socm_over_1_share": 0.02, "exact": True}
                        )  # fmt: skip
        summary.append(
            key(tau, model)
            | {"texts": 120, "corpus_texts": 9000, "tokens": 30000, "truncated_share": 0.125}
            | measured("cosine_mean", 0.0621, 0.003) | measured("collapse_gap", gap_now, None if gap is None else gap_error)
            | {"gap_shortest": None if gap is None else 0, "gap_longest": None if gap is None else 400}
            | measured("prefix_gap", prefix, None if prefix is None else 0.004)
            | {"effective_rank": 77.7, "spread_mean": 2.4}
            | {"spread_over_2_share": 0.89, "within_cosine_over_third_share": 0.5}
            | {"socm_texts": 0 if socm is None else 40} | measured("socm_mean", socm, None if socm is None else 0.01)
            | {"socm_over_1_share": None if socm is None else 0.021}
        )  # fmt: skip
        if prefix is not None:
            probe += [
                key(tau, model) | {"prefix_tokens": t, "texts": 31} | measured("cosine_mean", v, 0.004)
                for t, v in ((32, 0.1), (256, 0.1 + prefix))
            ]
        if socm is not None:
            for ranking in ("socm", "same_mean"):
                ids = {"text_id_a": "one", "text_id_b": text, "tokens_a": 12, "tokens_b": 345}
                pairs.append(
                    key(tau, model) | {"ranking": ranking, "rank": 1} | ids | {"d_mu": 0.4, "d_sigma": 1.3, "socm": 0.987}
                )
            plane = {"d_mu": 0.4, "d_sigma": 1.25}
            scatter.append(key(tau, model) | {"kind": "bin", **plane, "d_mu_width": 0.1, "d_sigma_width": 0.1, "pairs": 5})
            scatter.append(key(tau, model) | {"kind": "pair", **plane, "d_mu_width": 0.0, "d_sigma_width": 0.0, "pairs": 1})
    effects = []
    if gap is not None:
        effects = [
            key(0.8, model) | {"reference": "1.0", "figure": "collapse_gap", "reference_value": gap, "value": gap + change}
            | measured("change", change, 0.003) | {"texts": 80},
            key(0.8, model) | {"reference": "1.0", "figure": "cosine_mean", "reference_value": 0.06, "value": 0.061}
            | measured("change", 0.001, 0.003) | {"texts": 120},
        ]  # fmt: skip
    rows = {
        schema.LENGTH_COLLAPSE: cells, schema.COLLAPSE_SUMMARY: summary, schema.PREFIX_PROBE: probe, schema.SOCM: seconds,
        schema.SOCM_PAIRS: pairs, schema.SOCM_SCATTER: scatter, schema.TEMPERATURE_EFFECT: effects,
        schema.EXCERPTS: [{"text_id": i, "characters": 999, "excerpt": text} for i in ("one", text)],
    }  # fmt: skip
    return {table.name: pl.DataFrame(pl.from_arrow(table.build_rows(r))) for table, r in rows.items()}


RUN = {
    "finished": "2026-01-02T03:04:05+00:00",
    "config": {"seed": 0},
    "corpus": {
        "source": "texts.jsonl",
        "analysed": 120,
        "usable": 9000,
        "read": 9001,
        "rejected": 1,
        "rejected_reasons": {},
    },
    "steps": {"embed": {"seconds": 1.0, "peak_memory_bytes": 5}},
}


def words(**figures):
    return headline.headline(tables_of(**figures))


class Page(HTMLParser):
    """Every start tag with its attributes, and the text outside scripts."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self._script = [], "", False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._script = tag in ("script", "style")

    def handle_endtag(self, tag):
        self._script = self._script and tag not in ("script", "style")

    def handle_data(self, data):
        if not self._script:
            self.text += data


def test_a_clear_collapse_is_said_with_its_error():
    length, prefix, effect, second, assumptions = words()
    assert length == (
        "Longer texts lie closer together. At τ 1.0 two texts of 400+ tokens have a mean cosine of 0.1300 ± 0.0078, "
        "two of 0–99 tokens 0.0500 ± 0.0078: a collapse gap of 0.080 ± 0.020."
    )
    assert prefix.startswith("Length itself does part of this: the same 31 texts, cut to 32 and to 256 tokens")
    assert "by 0.0200 ± 0.0078" in prefix
    assert "it moves the collapse gap by −0.0170 ± 0.0059; no difference beyond noise in mean cosine." in effect
    assert "mean SOCM 0.660 ± 0.020 over all pairs of 40 texts" in second
    assert "89 % of the texts have tr Σ > 2" in assumptions
    assert "2.1 % of the pairs have SOCM above 1; 12.5 % of the texts were truncated." in assumptions


def test_what_is_within_noise_is_called_no_difference():
    length, prefix, effect, *_ = words(gap=0.015, prefix=0.005, change=0.002)
    assert length.startswith("Longer texts do not collapse measurably: no difference beyond noise")
    assert prefix.startswith("Of length itself there is no effect beyond noise")
    assert "no difference beyond noise" in effect
    assert "it moves" not in effect


def test_the_opposite_of_collapse_is_not_called_collapse():
    length, prefix, *_ = words(gap=-0.08, prefix=-0.03)
    assert length.startswith("Longer texts lie further apart")
    assert "−0.080 ± 0.020" in length
    assert prefix.startswith("Length itself drives texts apart")


def test_what_was_not_measured_is_said():
    length, prefix, effect, second, assumptions = words(gap=None, prefix=None, socm=None)
    assert "cannot be measured: fewer than two length intervals hold at least 30 texts" in length
    assert "fewer than 30 texts are long enough" in prefix
    assert "no difference beyond noise" in effect
    assert "not measured" in second
    assert assumptions.endswith("take never to happen; 12.5 % of the texts were truncated.")
    page = report.render(tables_of(gap=None, prefix=None, socm=None), RUN)
    assert "SOCM was not measured" in page
    assert "Most collapsed pairs" not in page


def test_a_figure_without_an_error_is_never_beyond_noise():
    assert not headline.beyond_noise(5.0, None)
    assert headline.beyond_noise(0.2, 0.1)
    assert not headline.beyond_noise(0.195, 0.1)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.12345, 0.01, "0.123 ± 0.020"),
        (-0.5, 0.25, "−0.50 ± 0.49"),
        (None, None, "–"),
        (0.6543, None, "0.654"),
        (0.25, 0.0, "0.25"),
        (12.0, 9.0, "12 ± 18"),
    ],
)
def test_a_number_is_rounded_by_its_error(value, error, text):
    assert headline.with_error(value, error) == text


def test_small_numbers_are_not_shown_as_zero():
    assert headline.number(0.00004) == "<0.001"
    assert headline.number(-0.00004) == ">−0.001"
    assert headline.number(0.0) == "0"
    assert headline.number(12345.6) == "12,346"


def test_hostile_text_stays_text():
    run = RUN | {"corpus": RUN["corpus"] | {"source": HOSTILE, "rejected_reasons": {HOSTILE: 1}}, "config": {"id": HOSTILE}}
    html = report.render(tables_of(text=HOSTILE, model=HOSTILE), run)
    calm = report.render(tables_of(), RUN)
    page, expected = Page(html), Page(calm)
    assert [tag for tag, _ in page.tags if tag in ("script", "img", "iframe", "svg")] == ["script"] * 3
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert len(page.tags) == len(expected.tags) + 1  # the line of the rejected reason
    assert page.text.count('</script><script>alert("x")</script>') >= 8
    assert "{{ 7*7 }}" in page.text
    specs = re.search(r'<script type="application/json" id="specs">(.*?)</script>', html, re.S).group(1)
    assert len(json.loads(specs)) == 6


def test_the_page_asks_for_nothing_from_outside():
    page = Page(report.render(tables_of(), RUN))
    assert len(page.tags) > 100
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        assert "src" not in attributes
        assert "href" not in attributes


def test_without_excerpts_no_text_is_shown():
    tables = tables_of(text="the secret of the merger")
    del tables["excerpts"]
    tables["socm_pairs"] = tables["socm_pairs"].with_columns(text_id_b=pl.lit("two"))
    html = report.render(tables, RUN)
    assert "secret" not in html
    assert "left out on request" in html


def test_equal_tables_give_the_same_page_and_other_figures_another():
    page = report.render(tables_of(), RUN)
    assert report.render(tables_of(), RUN) == page
    assert "0.080 ± 0.020" in page
    assert "0.080 ± 0.020" not in report.render(tables_of(gap=0.09), RUN)


def test_every_model_has_its_own_section_and_charts():
    one, other = tables_of(model="one/a b"), tables_of(model="ÄÖ<b>", gap=0.2)
    tables = {name: pl.concat([one[name], other[name]]) for name in one}
    tables["excerpts"] = one["excerpts"]
    html = report.render(tables, RUN)
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids)) == 13
    assert "one/a b: Longer texts" in page.text
    assert "ÄÖ<b>: Longer texts" in page.text


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_a_real_browser_draws_every_chart_and_nothing_overflows(tmp_path, width):
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine: the page is not drawn")
    probe = """<script>window.onerror = m => document.title = "ERROR " + m;
    setTimeout(() => { const d = document.documentElement;
      const charts = document.querySelectorAll(".chart svg").length;
      document.body.dataset.seen = [d.clientWidth, d.scrollWidth, charts].join(" "); }, 4000);
    </script></body>"""
    page = tmp_path / "page.html"
    html = report.render(tables_of(text=HOSTILE), RUN)
    page.write_text(html.rpartition("</body>")[0] + probe + "</html>", "utf-8")  # Vega's own code names a body, too.
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path}/profile",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", f"--window-size={width},2000",
        "--virtual-time-budget=9000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    seen = re.search(r'data-seen="(\d+) (\d+) (\d+)"', dom)
    assert seen, dom[-2000:]
    client, scroll, charts = map(int, seen.groups())
    assert "<title>ERROR" not in dom
    assert charts == 6
    assert scroll <= client
