"""A small audit's tables by hand, its report, and what a browser sees of it: for the tests of pages."""

import json
import re
import shutil
import subprocess
from html import escape
from html.parser import HTMLParser
from urllib.parse import unquote

import polars as pl
import pytest

from tempscale_jobs.audit import report
from tempscale_jobs.report.page import page as page_of
from tempscale_jobs.tables.audit import (
    COLLAPSE_SUMMARY,
    COLLAPSED_TEXTS,
    EXCERPTS,
    EXPOSURE,
    LENGTH_COLLAPSE,
    NEAR_DUPLICATES,
    PREFIX_PROBE,
    SOCM,
    SOCM_PAIRS,
    SOCM_SCATTER,
    SOCM_SEARCH,
    TEMPERATURE_EFFECT,
)

STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
EVIL = "\x1b[2J\x1b]0;owned\x07 \x9b31m\u2028\x00"
"""Characters that a terminal may obey, and a text of them."""
HOSTILE = """</script><script>alert("x")</script><img src=x onerror=alert(1)> & 'q' \u2028 {{ 7*7 }}"""
EDGES = (0, 100, 400)


def key(tau, model="MiniLM"):
    """`tau` is a number, or a schedule's text."""
    return {"model": model, "temperature": str(tau), "tau": None if isinstance(tau, str) else tau, "schema_version": 1}


def measured(name, value, error):
    short = name.removesuffix("_mean")
    return {name: value, f"{short}_se": None if error is None else error / 2, f"{short}_se_superpopulation": error}


def tables_of(
    gap=0.08, gap_error=0.01, prefix=0.02, change=-0.017, socm=0.66, text="a plain text", model="MiniLM", taus=(1.0, 0.8),
    exposed=None, asked_by=("corpus",), queries=120, closer=0.001, lengths=(0.0, 0.0, -0.017),
):  # fmt: skip
    """The tables of a run with these figures at τ 1.0, and at τ 0.8 `change` added to the gap.

    `closer` is added to the mean cosine of all pairs, and each of `lengths` to that inside an interval. `exposed` is the
    exposure of each interval; none was measured without it.
    """
    first, second = taus
    rows = {table: [] for table in (
        LENGTH_COLLAPSE, COLLAPSE_SUMMARY, PREFIX_PROBE, SOCM, SOCM_PAIRS, SOCM_SCATTER, TEMPERATURE_EFFECT, EXPOSURE,
        NEAR_DUPLICATES, SOCM_SEARCH, COLLAPSED_TEXTS,
    )}  # fmt: skip
    rows[EXCERPTS] = [{"text_id": i, "characters": 999, "excerpt": text} for i in ("one", text)]
    both = {"text_id_a": "one", "text_id_b": text, "tokens_a": 12, "tokens_b": 345}
    for tau, gap_now in ((first, gap), (second, None if gap is None else gap + change)):
        own = key(tau, model)
        for a, b in [(a, b) for a in EDGES for b in EDGES if a <= b]:
            mean = 0.05 + (gap_now or 0.0) * (EDGES.index(a) + EDGES.index(b)) / 4
            cell = own | {"interval_a": a, "interval_b": b}
            rows[LENGTH_COLLAPSE].append(
                cell | {"texts_a": 40, "texts_b": 40, "pairs": 780, "near_duplicates": 3}
                | measured("cosine_mean", mean, 0.004)
                | {"cosine_std": 0.1, "cosine_p05": -0.1, "cosine_p50": mean, "cosine_p95": 0.3}
            )  # fmt: skip
            if socm is not None:
                rows[SOCM].append(
                    cell | {"pairs": 780, "d_mu_mean": 0.45, "d_sigma_mean": 1.2} | measured("socm_mean", socm, 0.01)
                    | {"socm_p50": 0.6, "socm_p50_se": None, "socm_p95": 0.9, "socm_p95_se": None, "exact": True}
                    | {"groups": None, "d_sigma_error": 0.0} | measured("socm_over_1_share", 0.02, None)
                )  # fmt: skip
        has_gap, has_prefix, has_socm = (figure is not None for figure in (gap, prefix, socm))
        rows[COLLAPSE_SUMMARY].append(
            own | {"texts": 120, "documents": None, "corpus_texts": 9000, "rejected": 0, "tokens": 30000, "rows": 9001}
            | dict.fromkeys(("gap_documents", "prefix_documents", "verified_texts", "wrong_share"))
            | measured("rejected_share", 1 / 9001, 0.0) | measured("truncated_share", 0.125, 0.03)
            | measured("cosine_mean", 0.0621, 0.003) | measured("collapse_gap", gap_now, gap_error if has_gap else None)
            | {"gap_shortest": 0 if has_gap else None, "gap_longest": 400 if has_gap else None}
            | {"gap_texts": 40 if has_gap else None, "prefix_texts": 31 if has_prefix else None}
            | {"prefix_shortest": 32 if has_prefix else None, "prefix_longest": 256 if has_prefix else None}
            | measured("prefix_gap", prefix, 0.004 if has_prefix else None)
            | measured("spread_mean", 2.4, 0.05) | {"effective_rank": 77.7, "near_duplicate_pairs": 18}
            | measured("exposure_short", exposed and exposed[0], exposed and 0.05)
            | measured("exposure_long", exposed and exposed[-1], exposed and 0.05)
            | {"k_occurrence_skewness": exposed and 1.25, "reciprocity": exposed and 0.456, "top_component": 0.123}
            | measured("spread_over_2_share", 0.89, 0.02) | measured("within_cosine_over_third_share", 0.5, 0.04)
            | {"socm_texts": 40 if has_socm else 0, "socm_freedom": 39 if has_socm else None}
            | {"socm_pairs": 780 if has_socm else None, "socm_groups": None}
            | measured("socm_mean", socm, 0.01 if has_socm else None)
            | measured("socm_over_1_share", 0.021 if has_socm else None, None)
        )  # fmt: skip
        for ranking, value in (("nearness", 0.456), ("hub", 37.0)):
            figures = {"ranking": ranking, "rank": 1, "text_id": text, "tokens": 345, "value": value}
            rows[COLLAPSED_TEXTS].append(own | figures)
        rows[NEAR_DUPLICATES].append(own | both | {"rank": 1, "cosine": 0.987})
        rows[EXPOSURE] += [
            own | {"asked_by": by, "queries": queries, "k": k, "interval": edge, "texts": 40, "texts_share": 1 / 3}
            | {"slots_share": value / 3, "k_occurrence_skewness": 1.25} | measured("exposure", value, 0.05)
            | {"reciprocity": 0.456 if by == "corpus" else None}
            for by in asked_by for k in (1, 10) for edge, value in zip(EDGES, exposed or (), strict=False)
        ]  # fmt: skip
        for tokens, value in ((32, 0.1), (256, 0.1 + (prefix or 0.0))) if has_prefix else ():
            rows[PREFIX_PROBE].append(own | {"prefix_tokens": tokens, "texts": 31} | measured("cosine_mean", value, 0.004))
        if has_socm:
            for ranking in ("socm", "same_mean"):
                bounds = {"threshold": 0.9, "pairs": 7140, "kept_by_traces": 456, "kept_by_factors": 78, "texts": 90}
                rows[SOCM_SEARCH].append(own | {"ranking": ranking} | bounds)
                figures = {"d_mu": 0.4, "d_sigma": 1.3, "socm": 0.987, "cosine": 0.2}
                rows[SOCM_PAIRS].append(own | both | {"over": "corpus", "ranking": ranking, "rank": 1} | figures)
            for kind, width, pairs in (("bin", 0.1, 5), ("pair", 0.0, 1)):
                plane = {"d_mu": 0.4, "d_sigma": 1.25, "d_mu_width": width, "d_sigma_width": width}
                rows[SOCM_SCATTER].append(own | {"kind": kind, "pairs": pairs} | plane)
    if gap is not None:
        for figure, edge, before, by, texts in (
            ("collapse_gap", None, gap, change, 80), ("cosine_mean", None, 0.06, closer, 120),
            *(("cosine_mean", edge, 0.06, moved, 40) for edge, moved in zip(EDGES, lengths, strict=False)),
        ):  # fmt: skip
            figures = {"reference": str(first), "figure": figure, "interval": edge, "texts": texts}
            figures |= {"reference_value": before, "value": before + by}
            rows[TEMPERATURE_EFFECT].append(key(second, model) | figures | measured("change", by, 0.003))
    return {table.name: pl.DataFrame(pl.from_arrow(table.build_rows(r))) for table, r in rows.items()}


RUN = {
    "finished": "2026-01-02T03:04:05+00:00",
    "config": {"out": "runs/audit", "seed": 0, "analysis": {"intervals": list(EDGES)}},
    "corpus": {"source": "texts.jsonl", "analysed": 120, "usable": 9000, "read": 9001, "rejected": 1,
               "rejected_reasons": {}},
    "steps": {"embed": {"seconds": 1.0, "peak_memory_bytes": 5}},
}  # fmt: skip


SCHEDULES = ("by_layer(1.0, 0.9)", f"by_head({', '.join([str([0.85] * 12)] * 5)}, {[0.8] * 12})")


def without_errors(tables):
    """The same tables where too few texts were there to tell any error."""
    return {n: t.with_columns(pl.lit(None, pl.Float64).alias(c) for c in t.columns if "_se" in c) for n, t in tables.items()}


def specs_of(html):
    return json.loads(re.search(r'<script type="application/json" id="specs">(.*?)</script>', html, re.S).group(1))


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


def rendered(tables, run, **more):
    """The report as HTML."""
    return page_of(report.report_of(tables, run, **more), run["config"]).html


def nights(count, taus=(1.0, 0.8), model="MiniLM", **last):
    """The `trend` of run.json after so many nights, whose figures rise a little; `last` changes the last night's rows."""
    rows = []
    for number in range(count):
        for tau in taus:
            figures = {"cosine_mean": 0.05, "collapse_gap": 0.08, "prefix_gap": 0.02, "socm_mean": 0.6}
            row = {"night": f"2026-11-{number + 1:02d}", "model": model, "model_fingerprint": "f1", "temperature": str(tau)}
            row |= {"texts": 120, "gate": "passed", "gate_reason": "", "accepted": False}
            for name, value in figures.items():
                row |= {name: value + 0.001 * number, f"{name.removesuffix('_mean')}_se_superpopulation": 0.004}
            rows.append(row | (last if number == count - 1 else {}))
    return rows


WAIT = """<script>
const seen = {logged: []}, inner = () => document.querySelector("iframe").contentWindow;
(async () => {
  const until = Date.now() + 20000, page = () => inner().document;
  const ids = () => Object.keys(JSON.parse(page().getElementById("specs").textContent));
  const ready = () => page().readyState === "complete" && page().getElementById("specs")
    && ids().every(id => page().querySelector(`[id="${id}"] svg`));
  while (Date.now() < until && !ready()) await new Promise(resolve => setTimeout(resolve, 50));
  const root = page().documentElement, all = query => [...page().querySelectorAll(query)];
  seen.client = root.clientWidth; seen.scroll = root.scrollWidth;
  seen.charts = all(".chart").length; seen.drawn = all(".chart svg").length;
  seen.over = Math.max(...all(".chart svg").filter(svg => !/heatmap|scatter/.test(svg.closest(".chart").id))
    .map(svg => svg.getBoundingClientRect().right - svg.closest(".chart").getBoundingClientRect().right));
  seen.small = all("svg text").filter(text => text.textContent.trim() && text.getBoundingClientRect().height < 7).length;
  seen.texts = all("svg text").map(text => text.textContent);
  await (async (window, document) => { ASK })(inner(), page());
  document.body.dataset.seen = encodeURIComponent(JSON.stringify(seen));
})();
</script>"""


def browser():
    """Chromium; the test is skipped where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on this machine: the page is not drawn")
    return found


def drawn(page, folder, width, ask="", dark=False):
    """What a browser sees of a page; in a frame, since a window of Chromium is never narrower than 500 pixels.

    `ask` is JavaScript that runs once the charts are drawn, with the page's `window` and `document`, and adds to `seen`.
    """
    (folder / "inner.html").write_text(page, "utf-8")
    frame = f'<iframe srcdoc="{escape(page)}" style="width: {width}px; height: 2000px; border: 0"></iframe>'
    (folder / "page.html").write_text(
        f'<!doctype html><meta charset="utf-8"><body>{frame}{WAIT.replace("ASK", ask)}</body>', "utf-8"
    )
    command = [
        browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}/profile",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,2000",
        "--hide-scrollbars", "--virtual-time-budget=30000", "--enable-logging=stderr", "--dump-dom",
        *(["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []),
        (folder / "page.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    seen = re.search(r'data-seen="([^"]+)"', done.stdout)
    assert seen, (done.stdout[-2000:], done.stderr[-2000:])
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(unquote(seen.group(1))) | {"console": console}
