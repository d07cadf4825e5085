"""The report of an audit: what it says follows the tables, and nothing in its page is code."""

import re

import polars as pl
import pytest
from pages import EDGES, RUN, SCHEDULES, Page, rendered, tables_of, without_errors
from reports_by_hand import section_of, texts_of

from tempscale_jobs.audit.report import report_of
from tempscale_jobs.audit.words import headline, labelled, protocol
from tempscale_jobs.report.text import interval_name, labels, number, share, with_error

pytestmark = pytest.mark.proof


def told(tables, edges=EDGES):
    """The sentences of the only model."""
    (sentences,) = headline(labelled(tables, edges), edges).values()
    return sentences


def words(**figures):
    return told(tables_of(**figures))


def both(one, other):
    """The tables of two models; the texts of both are the same."""
    return {name: pl.concat([one[name], other[name]]) for name in one} | {"excerpts": one["excerpts"]}


def changed(**columns):
    """The usual tables with other columns of collapse_summary."""
    tables = tables_of()
    return tables | {"collapse_summary": tables["collapse_summary"].with_columns(**columns)}


def test_a_rare_share_has_its_error():
    rare = changed(spread_over_2_share=0.004, spread_over_2_share_se_superpopulation=0.001)
    assert "0.40 ± 0.20 %" in told(rare)[-1]


LENGTH = {
    0.08: "Longer texts are closer", 0.01: "Longer texts: no difference", -0.08: "Longer texts are further apart",
    None: "Length collapse cannot be measured",
}  # fmt: skip
PREFIX = {
    0.02: "Longer prefixes of the same texts are closer", 0.001: "Longer prefixes of the same texts: no difference",
    -0.02: "Longer prefixes of the same texts are further", None: "Prefixes of the same texts were not compared",
}  # fmt: skip


@pytest.mark.words
@pytest.mark.parametrize(
    ("gap", "prefix", "beside"),
    [
        (0.08, 0.02, "the same sign as the collapse gap (0.080"), (0.08, 0.001, "does not show the collapse gap (0.080"),
        (0.08, -0.02, "the opposite sign to the collapse gap (0.080"), (0.01, 0.02, "no difference beyond noise"),
        (0.01, 0.001, "400+ tokens) is no difference beyond noise"), (0.01, -0.02, "no difference beyond noise"),
        (-0.08, 0.02, "the opposite sign to the collapse gap (−0.080"),
        (-0.08, 0.001, "does not show the collapse gap (−0.08"),
        (-0.08, -0.02, "the same sign as the collapse gap (−0.080"), (None, 0.02, "no collapse gap to compare"),
        (None, 0.001, "no collapse gap to compare"), *((gap, None, "was left out") for gap in (0.08, 0.01, -0.08, None)),
    ],
)  # fmt: skip
def test_no_sentence_claims_more_than_is_beyond_noise_and_inside_what_was_probed(gap, prefix, beside):
    length, probed, effect, *_ = words(gap=gap, prefix=prefix, change=0.002)
    assert length.startswith(LENGTH[gap])
    assert probed.startswith(PREFIX[prefix])
    assert beside in probed
    assert "it moves" not in effect
    if prefix is not None:
        assert probed.endswith("Of texts below 32 or above 256 tokens the probe says nothing.")
        assert "length itself" not in probed
    if None not in (gap, prefix):
        assert "between different texts of 0–99 and of 400+ tokens)" in probed


@pytest.mark.words
def test_what_was_not_measured_has_no_figure_and_no_table():
    *_, effect, second, assumptions = words(gap=None, prefix=None, socm=None)
    assert "nothing was measured under both" in effect
    assert "not measured" in second
    assert "SOCM" not in assumptions
    shown = [*texts_of(report_of(tables_of(gap=None, prefix=None, socm=None), RUN))]
    assert "SOCM was not measured." in shown
    assert "Pairs of highest SOCM" not in shown


BANDED = ("m0-cosine", "m0-probe", "m0-socm", "m0-effects")


def charts_of(tables, run=RUN):
    """The charts of a report by their keys, with their tables."""
    return {section.key: section.drawing for section in report_of(tables, run).walk() if section.drawing is not None}


def ends_drawn(drawing):
    """Whether a layer of a figure is drawn from the low to the high end of what is not known."""
    layers = drawing.chart.to_dict(validate=False)["layer"]
    places = [place for layer in layers for place in layer["encoding"].values() if isinstance(place, dict)]
    return any(place.get("field") == "low" for place in places)


@pytest.mark.words
def test_unknown_errors_are_told_as_unknown_and_not_as_no_difference():
    tables = without_errors(tables_of())
    length, prefix, effect, second, _ = told(tables)
    for sentence in (length, prefix, effect, second):
        assert "too few texts to tell" in sentence
        assert "beyond noise" not in sentence
    assert "the collapse gap (0.08 ± ?, between" in prefix
    assert ["0.08 ± ?" in row for row in section_of(report_of(tables, RUN), "Figures by temperature").table.rows][:2] == [
        0,
        1,
    ]
    drawn, known = charts_of(tables), charts_of(tables_of())
    points = drawn["m0-effects"].chart.to_dict(validate=False)["layer"][1]["data"]["values"]
    assert [(point["low"], point["high"]) for point in points] == [(None, None)] * 2
    assert not any(ends_drawn(drawn[name]) for name in BANDED)
    assert all(ends_drawn(known[name]) for name in BANDED)
    beside_a_known_gap = told(changed(prefix_gap_se_superpopulation=pl.lit(None, pl.Float64)))[1]
    assert "does not show the collapse gap (0.080 ± 0.020" in beside_a_known_gap


@pytest.mark.words
def test_intervals_are_named_by_the_configured_edges():
    edges = [0, 50, 100, 400, 900, 901]  # Of these, [50, 100) and [900, ∞) hold no text.
    length, prefix, *_ = told(tables_of(), edges)
    assert "two texts of 400–899 tokens" in length
    assert "two of 0–49 tokens" in length
    assert "of 0–49 and of 400–899 tokens" in prefix
    drawn = charts_of(tables_of(), RUN | {"config": RUN["config"] | {"analysis": {"intervals": edges}}})
    names = ["0–49", "100–399", "400–899"]
    for chart in ("m0-cosine", "m0-socm"):
        assert [row[0] for row in drawn[chart].table.rows] == names
    assert list(drawn["m0-heatmap"].table.heads[2:]) == [row[1] for row in drawn["m0-heatmap"].table.rows[:3]] == names
    assert [interval_name(edge, edges) for edge in (900, 901)] == ["900", "901+"]


@pytest.mark.words
def test_whose_texts_fill_the_results_is_said_with_its_error():
    found = words(exposed=(0.62, 1.05, 1.33))[2]
    for figure in ("33.3 %", "20.7 % (exposure 0.620 ± 0.098)", "44.3 % (exposure 1.330 ± 0.098)"):
        assert figure in found
    # The last is 2.2 errors from 1: beyond noise for one interval, not for the largest of three.
    for fair in ((0.95, 1.0, 1.05), (0.89, 1.0, 1.11)):
        assert "no length takes more or less than its share beyond noise" in words(exposed=fair)[2]
    own, asked = words(exposed=(1.0, 1.0, 1.5), asked_by=("corpus", "queries"), queries=1409)[2:4]
    assert "of each text)" in own
    assert "of 1,409 queries) at τ 1.0: texts of 400+ tokens" in asked
    assert all("Search results" not in sentence for sentence in words())
    (searched, _) = section_of(report_of(tables_of(), RUN), "Pairs of highest SOCM").sentences
    for number_of_pairs in ("7,140 pairs of the corpus", "456 passed", "78 the bound by Frobenius"):
        assert number_of_pairs in searched


@pytest.mark.words
def test_texts_that_a_model_rejected_are_not_counted_as_analysed():
    run = RUN | {"corpus": RUN["corpus"] | {"rejected_by_models": 3}, "models": {"MiniLM": {}}}
    report = report_of(changed(texts=pl.lit(117, pl.Int64)), run)
    assert "· 117 of 120 texts (" in report.where
    made = "\n".join(texts_of(report))
    assert "117 texts analysed, 3 rejected by the model" in made
    assert "9,001 rows read, 1 rejected, 9,000 usable texts, of which 120 taken" in made
    assert "· 120 texts ·" in report_of(tables_of(), RUN).where


# --- numbers and names ------------------------------------------------------------------------------------------------


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


@pytest.mark.words
def test_one_text_and_one_pair_are_singular():
    one = pl.lit(1, pl.Int64)
    tables = changed(texts=one, socm_texts=one + 1)
    assert "over the 1 pair of 2 texts" in told(tables)[3]
    report = report_of(tables, RUN | {"corpus": RUN["corpus"] | {"analysed": 1, "read": 1, "usable": 1}})
    assert "· 1 text ·" in report.where
    assert not re.search(r"(?<![\d,])1 (texts|pairs|rows|tokens)\b", "\n".join(texts_of(report)))


def test_labels_are_short_and_distinct():
    long = [f"by_head([{', '.join(['1.0'] * 12)}], [{tau}, {', '.join(['0.9'] * 12)}])" for tau in (0.5, 0.6)]
    found = labels(["1.0", "log_length(64)", *long, "by_layer(" + "1.0, " * 11 + "0.85)"])
    assert list(found.values()) == [
        "τ 1.0", "log_length(64)", "by_head([1.0, 1.0, 1.0, …0.9, 0.9, 0.9]) #1",
        "by_head([1.0, 1.0, 1.0, …0.9, 0.9, 0.9]) #2", "by_layer(1.0, 1.0, 1.0, …1.0, 1.0, 0.85)",
    ]  # fmt: skip


# --- the page ---------------------------------------------------------------------------------------------------------


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
        assert len(words.sentences) == 5
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


@pytest.mark.words
def test_window_and_prompts_are_said_and_which_intervals_they_leave_empty():
    known = {"max_length": 256, "prompts": {"document": "passage: ", "query": "query: "}}
    encoded, empty = protocol(known, [0, 100, 256, 300, 400], chunked=False)
    for named in ("256 tokens", "«passage:» before every document", "«query:» before every query"):
        assert named in encoded
    assert "300" in empty
    assert "256" in empty
    assert len(protocol({"max_length": 256}, [0, 100, 300], chunked=False)) == 2
    assert len(protocol({"max_length": 256}, [0, 300], chunked=True)) == 1
    assert protocol({}, [0, 300], chunked=False) == []
    same = {"max_length": 64, "prompts": {"document": "about: ", "query": "about: "}}
    assert "«about:» before every text" in protocol(same, [0], chunked=False)[0]
    for similarity, how in (("dot", "dot product"), ("euclidean", "euclidean distance")):
        assert how in protocol({"max_length": 64, "similarity": similarity}, [0], chunked=False)[1]
