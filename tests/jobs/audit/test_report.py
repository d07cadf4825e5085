"""The report of an audit: what it says follows the tables, and nothing in its page is code."""

import polars as pl
import pytest
from pages import RUN, SCHEDULES, Page, rendered, tables_of, without_errors
from reports_by_hand import section_of, texts_of

from tempscale_jobs.audit.report import report_of
from tempscale_jobs.audit.words import plain_figures
from tempscale_jobs.report.text import interval_name, labels, number, share, with_error

pytestmark = pytest.mark.proof


def both(one, other):
    """The tables of two models; the texts of both are the same."""
    return {name: pl.concat([one[name], other[name]]) for name in one} | {"excerpts": one["excerpts"]}


BANDED = ("m0-cosine", "m0-probe", "m0-socm", "m0-effects")


def charts_of(tables, run=RUN):
    """The charts of a report by their keys, with their tables."""
    return {section.key: section.drawing for section in report_of(tables, run).walk() if section.drawing is not None}


def ends_drawn(drawing):
    """Whether a layer of a figure is drawn from the low to the high end of what is not known."""
    layers = drawing.chart.to_dict(validate=False)["layer"]
    places = [place for layer in layers for place in layer["encoding"].values() if isinstance(place, dict)]
    return any(place.get("field") == "low" for place in places)


def test_unknown_errors_are_shown_as_unknown():
    tables = without_errors(tables_of())
    gaps = section_of(report_of(tables, RUN), "All numbers, by temperature").table.rows[1]
    assert gaps[:2] == ("collapse gap", "0.08 ± ?")
    drawn, known = charts_of(tables), charts_of(tables_of())
    points = drawn["m0-effects"].chart.to_dict(validate=False)["layer"][1]["data"]["values"]
    assert [(point["low"], point["high"]) for point in points] == [(None, None)] * 2
    assert not any(ends_drawn(drawn[name]) for name in BANDED)
    assert all(ends_drawn(known[name]) for name in BANDED)


def test_a_run_without_a_top_component_and_reciprocity_says_nothing_of_them():
    """An older version measured neither; in closed form there is no reciprocity."""
    tables, names = tables_of(exposed=(1.0, 1.0, 1.0)), ["top_component", "reciprocity"]
    summary, nearest = tables["collapse_summary"], tables["exposure"].filter(k=1)
    for older, kept in ((summary.drop(names), 0), (summary.with_columns(reciprocity=None), 1), (summary, 2)):
        report = report_of(tables | {"collapse_summary": older}, RUN)
        section = section_of(report, "All numbers, by temperature")
        cells = {row[0]: row[1] for row in section.table.rows}
        assert [cells["top component"], cells["reciprocity"]] == [*["0.123", "0.456"][:kept], *["–"] * (2 - kept)]
        starts = ["Top component at τ 1.0", "Reciprocity at τ 1.0"]
        assert [s.partition(":")[0] for s in section.sentences if s.startswith(tuple(starts))] == starts[:kept]
    said = plain_figures(summary.row(0, named=True), {"exposure": nearest})[1]
    assert "of a text and its nearest text, in 45.6 % each is the nearest text of the other" in said


def test_intervals_are_named_by_the_configured_edges():
    edges = [0, 50, 100, 400, 900, 901]  # Of these, [50, 100) and [900, ∞) hold no text.
    drawn = charts_of(tables_of(), RUN | {"config": RUN["config"] | {"analysis": {"intervals": edges}}})
    names = ["0–49", "100–399", "400–899"]
    for chart in ("m0-cosine", "m0-socm"):
        assert [row[0] for row in drawn[chart].table.rows] == names
    assert list(drawn["m0-heatmap"].table.heads[2:]) == [row[1] for row in drawn["m0-heatmap"].table.rows[:3]] == names
    assert [interval_name(edge, edges) for edge in (900, 901)] == ["900", "901+"]


def test_texts_that_a_model_rejected_are_not_counted_as_analysed_and_one_text_is_singular():
    run = RUN | {"corpus": RUN["corpus"] | {"rejected_by_models": 3}, "models": {"MiniLM": {}}}
    tables = tables_of()
    summary = tables["collapse_summary"].with_columns(texts=pl.lit(117, pl.Int64))
    assert "· 117 of 120 texts (" in report_of(tables | {"collapse_summary": summary}, run).where
    alone = RUN | {"corpus": RUN["corpus"] | {"analysed": 1, "read": 1, "usable": 1}}
    assert "· 1 text ·" in report_of(tables | {"collapse_summary": summary.with_columns(texts=1)}, alone).where


@pytest.mark.parametrize(
    ("shown", "given", "text"),
    [
        (with_error, (0.12345, 0.01), "0.123 ± 0.020"), (with_error, (-0.5, 0.25), "−0.50 ± 0.49"),
        (with_error, (None, None), "–"), (with_error, (0.6543, None), "0.654 ± ?"), (with_error, (0.25, 0.0), "0.25"),
        (with_error, (12.0, 9.0), "12 ± 18"), (with_error, (12345.6, 900.0), "12,346 ± 1,764"),
        (with_error, (0.5, 1e-9), "0.500000 ± <0.000001"), (with_error, (0.5, 1e-6), "0.500000 ± 0.000002"),
        (with_error, (-0.00001, 0.01), "0.000 ± 0.020"), (with_error, (-0.002, 0.001), "−0.0020 ± 0.0020"),
        (number, (0.00004,), "<0.001"), (number, (-0.00004,), ">−0.001"), (number, (0.0,), "0"), (number, (-0.0,), "0"),
        (number, (12345.6,), "12,346"), (number, (999.7,), "1,000"), (number, (-999.7,), "−1,000"),
        (number, (999.4,), "999"), (number, (99.97,), "100"), (share, (0.004,), "0.4 %"),
        (share, (0.0001,), "<0.1 %"), (share, (0.9999,), ">99.9 %"), (share, (0.0,), "0 %"), (share, (1.0,), "100 %"),
        (share, (0.125,), "12.5 %"), (share, (None,), "–"),
    ],
)  # fmt: skip
def test_figures_are_rounded_by_their_error_and_are_0_or_100_per_cent_only_where_they_are(shown, given, text):
    assert shown(*given) == text


def test_labels_are_short_and_distinct():
    long = [f"by_head([{', '.join(['1.0'] * 12)}], [{tau}, {', '.join(['0.9'] * 12)}])" for tau in (0.5, 0.6)]
    found = labels(["1.0", "log_length(64)", *long, "by_layer(" + "1.0, " * 11 + "0.85)"])
    assert list(found.values()) == [
        "τ 1.0", "log_length(64)", "by_head([1.0, 1.0, 1.0, …0.9, 0.9, 0.9]) #1",
        "by_head([1.0, 1.0, 1.0, …0.9, 0.9, 0.9]) #2", "by_layer(1.0, 1.0, 1.0, …1.0, 1.0, 0.85)",
    ]  # fmt: skip


def test_without_excerpts_no_text_is_shown():
    tables = tables_of(text="the secret of the merger")
    del tables["excerpts"]
    for name in ("socm_pairs", "near_duplicates"):
        tables[name] = tables[name].with_columns(text_id_b=pl.lit("two"))
    tables["collapsed_texts"] = tables["collapsed_texts"].with_columns(text_id=pl.lit("two"))
    report = report_of(tables, RUN)
    assert not any("secret" in text for text in texts_of(report))
    assert section_of(report, "Worst texts").sentences == ["Their texts were left out on request."]


@pytest.mark.parametrize("models", [("ad", "cc"), ("one/a b", "ÄÖ<b>")])
def test_of_several_models_each_has_its_findings_and_charts_under_its_name(models):
    """The letters of 'ad' and 'cc' have the same weighted sum."""
    one, other = tables_of(model=models[0]), tables_of(model=models[1], gap=0.2)
    report = report_of(both(one, other), RUN)
    assert [part.name for part in report.parts] == list(models)
    for part, gap in zip(report.parts, ("0.080 ± 0.020", "0.200 ± 0.020"), strict=True):
        assert gap in part.answer
        (words,) = [section for section in part.sections if section.title == "In words"]
        assert gap in words.sentences[0]
        assert len(words.sentences) == 4
        keys = [section.key for whole in part.sections for section in whole.walk() if section.key]
        assert len(keys) == 6
        assert all(key.startswith(f"{part.id}-") for key in keys)
    page = Page(rendered(both(one, other), RUN)).text
    assert page.index(models[0]) < page.index("0.200") < page.index("Mean cosine of two texts")


def test_schedules_are_named_and_long_ones_written_out_once():
    run = RUN | {"steps": {f"SOCM, τ {SCHEDULES[1]}": {"seconds": 2.0}}}
    shown = "\n".join(texts_of(report_of(tables_of(taus=SCHEDULES), run)))
    label = labels(SCHEDULES)[SCHEDULES[1]]
    assert len(SCHEDULES[1]) > 400
    assert len(label) == 40
    assert shown.count(SCHEDULES[1]) == shown.count(f"{label}: {SCHEDULES[1]}") == 1
    assert f"SOCM, {label}: 2.0" in shown
    assert "τ by_" not in shown
    drawn = charts_of(tables_of(taus=SCHEDULES))
    assert drawn["m0-cosine"].table.heads[1:] == ("by_layer(1.0, 0.9)", label)
    assert [row[0] for row in drawn["m0-heatmap"].table.rows[::3]] == ["by_layer(1.0, 0.9)", label]
