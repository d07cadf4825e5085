"""The answer in a sentence or three, the four figures and their trend; runs beside an audit; figures as files."""

import polars as pl
import pytest
from pages import EDGES, RUN, nights, tables_of, without_errors

from tempscale_jobs.audit import report, verdict, words
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.page import page as page_of
from tempscale_jobs.report.text import FIGURES
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.proof


def test_without_errors_nothing_is_known():
    tables = words.labelled(without_errors(tables_of()), EDGES)
    row, found = tables["collapse_summary"].row(0, named=True), Findings.read(tables["findings"])
    shown = verdict.figures(row, found, EDGES, pl.DataFrame(), "m0")
    assert [figure.says for figure in shown][1:3] == ["not known", "not known"]


def charts_of(run):
    """The charts of a report by their keys, small ones too."""
    made = report.report_of(tables_of(), run)
    charts = {section.key: section.drawing for section in made.walk() if section.drawing is not None}
    charts |= {figure.key: figure.trend for part in made.parts for figure in part.figures if figure.trend is not None}
    return {key: drawing.chart.to_dict(validate=False) for key, drawing in charts.items()}


def test_a_trend_is_drawn_from_the_second_night_on_and_says_what_became_of_each():
    assert not [key for key in charts_of(RUN | {"trend": nights(1)}) if "trend" in key or "nights" in key]
    failed = {"gate": "failed", "gate_reason": "it rose"}
    specs = charts_of(RUN | {"trend": nights(3, **failed)})
    small = specs["m0-trend-collapse_gap"]["layer"][1]
    values = specs["m0-trend-collapse_gap"]["layer"][0]["data"]["values"]
    assert [row["value"] for row in values] == pytest.approx([0.08, 0.081, 0.082])
    assert values[0]["high"] - values[0]["value"] == pytest.approx(1.96 * 0.004)
    assert small["encoding"]["y"]["axis"] is None
    large = specs["m0-nights-collapse_gap"]["data"]["values"]
    assert [(row["state"], row["why"]) for row in large] == [("passed", ""), ("passed", ""), ("failed", "it rose")]


def test_of_another_model_only_the_large_figure_speaks_and_marks_it():
    older = {"model": "older", "model_fingerprint": "f0"}
    before = [row | older | {"night": f"2026-10-{day:02d}"} for day, row in enumerate(nights(2), 1)]
    specs = charts_of(RUN | {"trend": [*before, *nights(2)]})
    assert len(specs["m0-trend-cosine_mean"]["layer"][0]["data"]["values"]) == 2
    assert specs["m0-nights-cosine_mean"]["layer"][3]["data"]["values"] == [{"night": "2026-11-01", "model": "MiniLM"}]


@pytest.mark.parametrize(("verdict_", "failed"), [("passed", []), ("failed", ["<b>it</b> rose", "so did that"])])
def test_the_gate_is_on_the_first_screen(verdict_, failed):
    row = {"figure": "cosine_mean", "model": "MiniLM", "temperature": "1.0", "value": 0.1, "check": "threshold"}
    row |= {"limit": "<= 1", "baseline_value": None, "change": None, "noise": 0.0, "verdict": "held"}
    run = RUN | {"gate": {"verdict": verdict_, "failed": failed, "not_compared": [], "checks": 2}}
    run["config"] = run["config"] | {"gate": {"false_alarms": 0.01}}
    made = report.report_of(tables_of() | {"gate": pl.DataFrame([row])}, run)
    said = {"passed": "The gate held: 2 checks.", "failed": "The gate failed: <b>it</b> rose. 1 more check failed too."}
    assert (made.notes, made.alerts) == (([said["passed"]], []) if verdict_ == "passed" else ([], [said["failed"]]))
    (gate,) = made.before
    assert (gate.folded, gate.sentences) == (verdict_ == "passed", failed)
    assert gate.table.rows[0][:5] == ("mean cosine\ncosine_mean", "MiniLM at τ 1.0", "held", "0.1", "<= 1")


@pytest.mark.usefixtures("with_figures")
def test_every_figure_is_left_as_svg_and_png_and_old_ones_go(tmp_path):
    storage = Storage(str(tmp_path / "run"))
    storage.write("figures/old.png", b"")
    page = page_of(report.report_of(tables_of(), RUN | {"trend": nights(2)}), {})
    page.write_to(storage)
    names = {"cosine", "heatmap", "probe", "effects", "scatter", "socm"} | {f"nights-{key}" for key in FIGURES}
    assert set(page.figures) == names
    assert {*storage.list("figures")} == {f"figures/{name}.{kind}" for name in names for kind in ("svg", "png")}
    assert storage.read("figures/cosine.png").startswith(b"\x89PNG")
    assert "400+" in storage.read("figures/cosine.svg").decode()
    assert len(storage.read("report.html")) < 3_000_000
    one, other = tables_of(model="a/b"), tables_of(model="a b")
    tables = {name: pl.concat([one[name], other[name]]) for name in one} | {"excerpts": one["excerpts"]}
    of_models = page_of(report.report_of(tables, RUN), {}).figures
    assert {name for name in of_models if name.endswith("cosine")} == {"a-b-m0-cosine", "a-b-m1-cosine"}
