"""The page: what it says follows the tables, nothing in it is code, and nothing is asked for from outside."""

import re
from html import unescape

import polars as pl
import pytest
from pages import EDGES, HOSTILE, RUN, SCHEDULES, Page, rendered, specs_of, tables_of, without_errors

from tempscale_jobs.audit.words import headline, labelled, protocol
from tempscale_jobs.report.text import beyond_noise, interval_name, labels, number, share, with_error

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


@pytest.mark.words
def test_each_sentence_has_its_figures_and_their_errors():
    length, prefix, effect, second, assumptions = words()
    for figure in ("0.1300 ± 0.0078", "0.0500 ± 0.0078", "0.080 ± 0.020", "400+", "0–99"):
        assert figure in length
    for figure in ("31 texts", "0.1000 ± 0.0078 when cut to 32", "0.1200 ± 0.0078 when cut to 256", "0.0200 ± 0.0078"):
        assert figure in prefix
    assert "the collapse gap by −0.0170 ± 0.0059; no difference beyond noise in mean cosine" in effect
    assert "0.660 ± 0.020 over the 780 pairs of 40 texts" in second
    for figure in ("89.0 ± 3.9 %", "2.1 %", "12.5 ± 5.9 %"):
        assert figure in assumptions
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
    page = rendered(tables_of(gap=None, prefix=None, socm=None), RUN)
    assert "SOCM was not measured" in page
    assert "Most collapsed pairs" not in page


BANDED = ("m0-cosine", "m0-probe", "m0-socm", "m0-effects")


def ends_drawn(spec):
    """Whether a layer of a figure is drawn from the low to the high end of what is not known."""
    places = [place for layer in spec["layer"] for place in layer["encoding"].values() if isinstance(place, dict)]
    return any(place.get("field") == "low" for place in places)


@pytest.mark.words
def test_unknown_errors_are_told_as_unknown_and_not_as_no_difference():
    tables = without_errors(tables_of())
    length, prefix, effect, second, _ = told(tables)
    for sentence in (length, prefix, effect, second):
        assert "too few texts to tell" in sentence
        assert "beyond noise" not in sentence
    assert "the collapse gap (0.08 ± ?, between" in prefix
    page = rendered(tables, RUN)
    assert page.count("0.08 ± ?") == 1  # In the table; sentences keep a value and its error on one line.
    specs, known = specs_of(page), specs_of(rendered(tables_of(), RUN))
    points = specs["m0-effects"]["layer"][1]["data"]["values"]
    assert [(point["low"], point["high"]) for point in points] == [(None, None)] * 2
    assert not any(ends_drawn(specs[name]) for name in BANDED)
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
    specs = specs_of(rendered(tables_of(), RUN | {"config": RUN["config"] | {"analysis": {"intervals": edges}}}))
    names = ["0–49", "100–399", "400–899"]
    for chart in ("m0-cosine", "m0-socm"):
        assert list(dict.fromkeys(row["x"] for row in specs[chart]["data"]["values"])) == names
    cells = specs["m0-heatmap"]["concat"][0]["data"]["values"]
    assert sorted({row["a"] for row in cells}) == sorted({row["b"] for row in cells}) == names
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
    page = Page(rendered(tables_of(), RUN)).text
    for number_of_pairs in ("7,140 pairs of the corpus", "456 passed", "78 the bound by Frobenius"):
        assert number_of_pairs in page


@pytest.mark.words
def test_texts_that_a_model_rejected_are_not_counted_as_analysed():
    run = RUN | {"corpus": RUN["corpus"] | {"rejected_by_models": 3}}
    text = Page(rendered(changed(texts=pl.lit(117, pl.Int64)), run)).text
    assert "· 117 of 120 texts (" in text
    assert "117 texts analysed, 3 rejected by the model" in text
    assert "9,001 rows read, 1 rejected, 9,000 usable texts, of which 120 taken" in text
    assert "120 analysed" not in text
    assert "· 120 texts ·" in Page(rendered(tables_of(), RUN)).text


# --- numbers and names ------------------------------------------------------------------------------------------------


def test_a_figure_without_an_error_is_never_beyond_noise():
    assert not beyond_noise(5.0, None)
    assert beyond_noise(0.2, 0.1)
    assert not beyond_noise(0.195, 0.1)


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
    page = rendered(tables, RUN | {"corpus": RUN["corpus"] | {"analysed": 1, "read": 1, "usable": 1}})
    assert "· 1 text ·" in page
    assert not re.search(r"(?<![\d,])1 (texts|pairs|rows|tokens)\b", Page(page).text)


def test_labels_are_short_and_distinct():
    long = [f"by_head([{', '.join(['1.0'] * 12)}], [{tau}, {', '.join(['0.9'] * 12)}])" for tau in (0.5, 0.6)]
    found = labels(["1.0", "log_length(64)", *long, "by_layer(" + "1.0, " * 11 + "0.85)"])
    assert list(found.values()) == [
        "τ 1.0", "log_length(64)", "by_head([1.0, 1.0, 1.0, …0.9, 0.9, 0.9]) #1",
        "by_head([1.0, 1.0, 1.0, …0.9, 0.9, 0.9]) #2", "by_layer(1.0, 1.0, 1.0, …1.0, 1.0, 0.85)",
    ]  # fmt: skip


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.words
def test_hostile_text_stays_text():
    corpus = RUN["corpus"] | {"source": HOSTILE, "rejected_reasons": {HOSTILE: 1}}
    run = RUN | {"corpus": corpus, "config": RUN["config"] | {"id": HOSTILE}}
    html = rendered(tables_of(text=HOSTILE, model=HOSTILE), run)
    page, expected = Page(html), Page(rendered(tables_of(), RUN))
    assert [tag for tag, _ in page.tags if tag in ("script", "img", "iframe", "svg")] == ["script"] * 3
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    # A command has a span for each of its words.
    tags, expected_tags = ([tag for tag, _ in own.tags if tag != "span"] for own in (page, expected))
    assert len(tags) == len(expected_tags) + 1  # the line of the rejected reason
    assert page.text.count('</script><script>alert("x")</script>') >= 8
    assert "{{ 7*7 }}" in page.text
    assert len(specs_of(html)) == 6
    assert len(expected.tags) > 100
    for tag, attributes in page.tags + expected.tags:  # Nothing is asked for from outside.
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")


def test_without_excerpts_no_text_is_shown():
    tables = tables_of(text="the secret of the merger")
    del tables["excerpts"]
    for name in ("socm_pairs", "near_duplicates"):
        tables[name] = tables[name].with_columns(text_id_b=pl.lit("two"))
    tables["collapsed_texts"] = tables["collapsed_texts"].with_columns(text_id=pl.lit("two"))
    assert "secret" not in rendered(tables, RUN)


@pytest.mark.parametrize("models", [("ad", "cc"), ("one/a b", "ÄÖ<b>")])
def test_of_several_models_each_has_its_findings_and_charts_under_its_name(models):
    """The letters of 'ad' and 'cc' have the same weighted sum."""
    one, other = tables_of(model=models[0]), tables_of(model=models[1], gap=0.2)
    html = rendered(both(one, other), RUN)
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids)) == 32
    lists = re.findall(r'<h3>([^<]*)</h3>\s*<ul class="finding">(.*?)</ul>', html, re.S)
    verdicts = re.findall(r'<h2 class="of">(.*?)</h2>\s*<p class="verdict">(.*?)</p>', html, re.S)
    for found in (lists, verdicts):
        assert [unescape(name) for name, _ in found] == list(models)
        assert "0.200 ± 0.020" in found[1][1].replace("\u00a0", " ")
        assert "0.200 ± 0.020" not in found[0][1].replace("\u00a0", " ")
    assert [items.count("<li>") for _, items in lists] == [5, 5]
    assert '<h2 class="of">' not in rendered(one, RUN)


def test_schedules_are_named_and_long_ones_written_out_once():
    html = rendered(tables_of(taus=SCHEDULES), RUN | {"steps": {f"SOCM, τ {SCHEDULES[1]}": {"seconds": 2.0}}})
    text = Page(html).text
    label = labels(SCHEDULES)[SCHEDULES[1]]
    assert len(SCHEDULES[1]) > 400
    assert len(label) == 40
    assert html.count(SCHEDULES[1]) == text.count(f"{label}: {SCHEDULES[1]}") == 1
    assert f"SOCM, {label} 2.0" in text
    assert "τ by_" not in html
    specs = specs_of(html)
    assert specs["m0-cosine"]["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["by_layer(1.0, 0.9)", label]
    assert [panel["title"]["text"] for panel in specs["m0-heatmap"]["concat"]] == ["by_layer(1.0, 0.9)", label]


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
