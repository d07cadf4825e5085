"""The page: what it says follows the tables, nothing in it is code, and nothing is asked for from outside."""

import re
from types import SimpleNamespace

import polars as pl
import pytest
from pages import EDGES, HOSTILE, RUN, SCHEDULES, Page, rendered, specs_of, tables_of, without_errors

from tempscale_jobs.audit import report
from tempscale_jobs.audit.words import closing_figures, headline, labelled, protocol
from tempscale_jobs.report.text import beyond_noise, interval_name, labels, number, share, with_error
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.proof


def told(tables, edges=EDGES):
    """The sentences of the only model."""
    (sentences,) = headline(labelled(tables), edges).values()
    return sentences


def words(**figures):
    return told(tables_of(**figures))


def test_a_clear_collapse_is_said_with_its_error():
    length, prefix, effect, second, assumptions = words()
    assert length == (
        "Longer texts lie closer together. At τ 1.0 two texts of 400+ tokens have a mean cosine of 0.1300 ± 0.0078, "
        "two of 0–99 tokens 0.0500 ± 0.0078: a collapse gap of 0.080 ± 0.020."
    )
    assert prefix == (
        "Length itself brings texts closer together within the probed range: the same 31 texts have a mean cosine of "
        "0.1000 ± 0.0078 cut to 32 tokens and 0.1200 ± 0.0078 cut to 256, a prefix gap of 0.0200 ± 0.0078. "
        "It has the same sign as the collapse gap (0.080 ± 0.020, between different texts of 0–99 and of 400+ tokens); "
        "outside 32 to 256 tokens the probe does not tell length from topic."
    )
    assert "it moves the collapse gap by −0.0170 ± 0.0059; no difference beyond noise in mean cosine." in effect
    assert "mean SOCM 0.660 ± 0.020 over the 780 pairs of 40 texts at τ 1.0." in second
    assert "89.0 ± 3.9 % of the texts have tr Σ > 2" in assumptions
    assert "2.1 % of the pairs have SOCM above 1; 12.5 ± 5.9 % of the texts were truncated." in assumptions


def test_what_is_within_noise_is_called_no_difference():
    length, prefix, effect, *_ = words(gap=0.015, prefix=0.005, change=0.002)
    assert length.startswith("Longer texts do not collapse measurably: no difference beyond noise")
    assert prefix.startswith("Length itself has no effect beyond noise")
    assert "no difference beyond noise" in effect
    assert "it moves" not in effect


def test_the_opposite_of_collapse_is_not_called_collapse():
    length, prefix, *_ = words(gap=-0.08, prefix=-0.03)
    assert length.startswith("Longer texts lie further apart")
    assert "−0.080 ± 0.020" in length
    assert prefix.startswith("Length itself drives texts apart")


def test_what_was_not_measured_is_said():
    length, prefix, effect, second, assumptions = words(gap=None, prefix=None, socm=None)
    assert "cannot be measured: fewer than two length intervals have at least 30 texts" in length
    assert prefix.startswith("It is not known whether length itself moves texts: too few texts are long enough")
    assert "nothing was measured under both" in effect
    assert "not measured" in second
    assert assumptions.endswith("assume never happens; 12.5 ± 5.9 % of the texts were truncated.")
    page = rendered(tables_of(gap=None, prefix=None, socm=None), RUN)
    assert "SOCM was not measured" in page
    assert "Most collapsed pairs" not in page


@pytest.mark.parametrize(
    ("gap", "prefix", "start", "end"),
    [
        (0.08, 0.02, "Length itself brings texts closer together", "It has the same sign as the collapse gap (0.080"),
        (0.08, 0.001, "Length itself has no effect beyond noise", "So no part of the collapse gap (0.080"),
        (0.08, -0.02, "Length itself drives texts apart", "which length within this range does not explain"),
        (0.01, 0.02, "Length itself brings texts closer together", "400+ tokens) is no difference beyond noise"),
        (0.01, 0.001, "Length itself has no effect beyond noise", "400+ tokens) is no difference beyond noise"),
        (0.01, -0.02, "Length itself drives texts apart", "400+ tokens) is no difference beyond noise"),
        (-0.08, 0.02, "Length itself brings texts closer together", "It has the opposite sign to the collapse gap (−0.080"),
        (-0.08, 0.001, "Length itself has no effect beyond noise", "So no part of the collapse gap (−0.080"),
        (-0.08, -0.02, "Length itself drives texts apart", "It has the same sign as the collapse gap (−0.080"),
        (None, 0.02, "Length itself brings texts closer together", "There is no collapse gap to compare it with"),
        (None, 0.001, "Length itself has no effect beyond noise", "There is no collapse gap to compare it with"),
        (None, -0.02, "Length itself drives texts apart", "There is no collapse gap to compare it with"),
        (0.08, None, "It is not known how much of that is due to length itself", "or it was left out."),
        (0.01, None, "It is not known whether length itself moves texts", "or it was left out."),
        (-0.08, None, "It is not known how much of that is due to length itself", "or it was left out."),
        (None, None, "It is not known whether length itself moves texts", "or it was left out."),
    ],
)
def test_the_probe_claims_nothing_beyond_what_was_probed(gap, prefix, start, end):
    sentence = words(gap=gap, prefix=prefix)[1]
    assert sentence.startswith(start)
    assert end in sentence
    assert "other things" not in sentence
    if prefix is not None:
        assert "cut to 32 tokens" in sentence
        assert "within the probed range" in sentence
        assert sentence.endswith("; outside 32 to 256 tokens the probe does not tell length from topic.")
    if None not in (gap, prefix):
        assert "between different texts of 0–99 and of 400+ tokens)" in sentence


def test_the_caption_of_the_probe_claims_nothing_beyond_what_was_probed():
    page = rendered(tables_of(), RUN)
    assert "is not due to length itself" not in page
    assert "A flat line means that between these lengths length itself does nothing" in page


def test_unknown_errors_are_told_as_unknown_and_not_as_no_difference():
    length, prefix, effect, second, _ = told(without_errors(tables_of()))
    assert length.startswith("It is not known whether longer texts lie closer together: too few texts to tell.")
    assert prefix.startswith("The effect of length itself is not known, too few texts to tell: the same 31 texts")
    assert "Too few texts to tell how the collapse gap (0.08 ± ?, between" in prefix
    assert "on the same texts: too few texts to tell for the collapse gap, mean cosine." in effect
    assert "mean SOCM 0.66 ± ? over the 780 pairs of 40 texts at τ 1.0, too few texts to tell" in second
    assert not any("beyond noise" in sentence for sentence in (length, prefix, effect, second))
    page = rendered(without_errors(tables_of()), RUN)
    assert page.count("0.08 ± ?") == 1  # In the table; sentences keep a value and its error on one line.
    specs = specs_of(page)
    points = specs["m0-effects"]["layer"][1]["data"]["values"]
    assert [(point["low"], point["high"]) for point in points] == [(None, None)] * 2
    assert not any(ends_drawn(specs[name]) for name in BANDED)


BANDED = ("m0-cosine", "m0-probe", "m0-socm", "m0-effects")


def ends_drawn(spec):
    """Whether a layer of a figure is drawn from the low to the high end of what is not known."""
    return any(
        place.get("field") == "low"
        for layer in spec["layer"]
        for place in layer["encoding"].values()
        if isinstance(place, dict)
    )


def test_known_errors_are_drawn():
    specs = specs_of(rendered(tables_of(), RUN))
    assert all(ends_drawn(specs[name]) for name in BANDED)


def test_a_probe_of_too_few_texts_beside_a_known_gap():
    tables = tables_of()
    tables["collapse_summary"] = tables["collapse_summary"].with_columns(
        prefix_gap_se_superpopulation=pl.lit(None, pl.Float64)
    )
    assert told(tables)[1].endswith(
        "So it does not tell how much of the collapse gap (0.080 ± 0.020, between different texts of 0–99 and of 400+ "
        "tokens) is due to length itself."
    )


def test_intervals_are_named_by_the_configured_edges():
    edges = [0, 50, 100, 400, 900, 901]  # Of these, [50, 100) and [900, ∞) hold no text.
    assert "two texts of 400–899 tokens" in told(tables_of(), edges)[0]
    assert "two of 0–49 tokens" in told(tables_of(), edges)[0]
    assert "of 0–49 and of 400–899 tokens" in told(tables_of(), edges)[1]
    specs = specs_of(rendered(tables_of(), RUN | {"config": RUN["config"] | {"analysis": {"intervals": edges}}}))
    names = ["0–49", "100–399", "400–899"]
    for chart in ("m0-cosine", "m0-socm"):
        assert list(dict.fromkeys(row["x"] for row in specs[chart]["data"]["values"])) == names
    cells = specs["m0-heatmap"]["concat"][0]["data"]["values"]
    assert sorted({row["a"] for row in cells}) == sorted({row["b"] for row in cells}) == names
    assert [interval_name(edge, edges) for edge in (900, 901)] == ["900", "901+"]


def test_whose_texts_fill_the_results_is_said_with_its_error():
    _, _, found, *_ = words(exposed=(0.62, 1.05, 1.33))
    assert found == (
        "Search results (the 10 nearest texts of each text) at τ 1.0: texts of 0–99 tokens are 33.3 % of the corpus and "
        "take 20.7 % (exposure 0.620 ± 0.098); texts of 400+ tokens are 33.3 % of the corpus and take 44.3 % "
        "(exposure 1.330 ± 0.098)."
    )
    _, _, fair, *_ = words(exposed=(0.95, 1.0, 1.05))
    assert fair == (
        "Search results (the 10 nearest texts of each text) at τ 1.0: no length interval takes more or less than its share."
    )


def test_an_exposure_that_one_interval_of_several_reaches_by_chance_is_not_told():
    # 2.2 errors from 1: beyond noise for one interval, not for the largest of three.
    _, _, found, *_ = words(exposed=(0.89, 1.0, 1.11))
    assert "no length interval takes more" in found


def test_the_results_of_queries_are_told_beside_those_of_the_corpus():
    _, _, own, asked, *_ = words(exposed=(1.0, 1.0, 1.5), asked_by=("corpus", "queries"), queries=1409)
    assert "of each text)" in own
    assert "(the 10 nearest texts of 1,409 queries) at τ 1.0: texts of 400+ tokens" in asked
    assert all("Search results" not in sentence for sentence in words())


def test_how_the_pairs_of_a_corpus_were_found_is_told():
    page = Page(rendered(tables_of(), RUN)).text
    assert (
        "of all 7,140 pairs of the corpus, 456 passed the bound by traces and 78 the bound by Frobenius norms; these were "
        "computed exactly" in page
    )
    assert "0.987" in page


def test_texts_that_a_model_rejected_are_not_counted_as_analysed():
    tables = tables_of()
    tables["collapse_summary"] = tables["collapse_summary"].with_columns(texts=pl.lit(117, pl.Int64))
    run = RUN | {"corpus": RUN["corpus"] | {"rejected_by_models": 3}}
    text = Page(rendered(tables, run)).text
    assert "· 117 of 120 texts (the rest rejected by the model) ·" in text
    assert "117 texts analysed, 3 rejected by the model because they have no finite embedding" in text
    assert "9,001 rows read, 1 rejected, 9,000 usable texts, of which 120 taken" in text
    assert "120 analysed" not in text
    assert "· 120 texts ·" in Page(rendered(tables_of(), RUN)).text


def test_a_figure_without_an_error_is_never_beyond_noise():
    assert not beyond_noise(5.0, None)
    assert beyond_noise(0.2, 0.1)
    assert not beyond_noise(0.195, 0.1)


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.12345, 0.01, "0.123 ± 0.020"),
        (-0.5, 0.25, "−0.50 ± 0.49"),
        (None, None, "–"),
        (0.6543, None, "0.654 ± ?"),
        (0.25, 0.0, "0.25"),
        (12.0, 9.0, "12 ± 18"),
        (12345.6, 900.0, "12,346 ± 1,764"),
        (0.5, 1e-9, "0.500000 ± <0.000001"),
        (0.5, 1e-6, "0.500000 ± 0.000002"),
        (-0.00001, 0.01, "0.000 ± 0.020"),
        (-0.002, 0.001, "−0.0020 ± 0.0020"),
    ],
)
def test_a_number_is_rounded_by_its_error(value, error, text):
    assert with_error(value, error) == text


def test_small_numbers_are_not_shown_as_zero():
    assert number(0.00004) == "<0.001"
    assert number(-0.00004) == ">−0.001"
    assert number(0.0) == "0"
    assert number(-0.0) == "0"
    assert number(12345.6) == "12,346"


@pytest.mark.parametrize(("value", "text"), [(999.7, "1,000"), (-999.7, "−1,000"), (999.4, "999"), (99.97, "100")])
def test_numbers_are_never_written_with_an_exponent(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.004, "0.4 %"),
        (0.0001, "<0.1 %"),
        (0.9999, ">99.9 %"),
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.125, "12.5 %"),
        (None, "–"),
    ],
)
def test_a_share_is_0_or_100_per_cent_only_where_it_is(value, text):
    assert share(value) == text


def test_a_small_share_of_broken_assumptions_is_not_told_as_none():
    tables = tables_of()
    tables["collapse_summary"] = tables["collapse_summary"].with_columns(
        spread_over_2_share=0.004, spread_over_2_share_se_superpopulation=0.001
    )
    assert told(tables)[-1].startswith("Assumptions: 0.40 ± 0.20 % of the texts have tr Σ > 2")


def test_one_text_and_one_pair_are_singular():
    tables = tables_of()
    one = pl.lit(1, pl.Int64)
    tables["collapse_summary"] = tables["collapse_summary"].with_columns(texts=one, socm_texts=one + 1)
    assert "over the 1 pair of 2 texts" in told(tables)[3]
    page = rendered(tables, RUN | {"corpus": RUN["corpus"] | {"analysed": 1, "read": 1, "usable": 1}})
    assert "· 1 text ·" in page
    assert "1 row read, 1 rejected, 1 usable text, of which 1 taken" in page
    assert not re.search(r"(?<![\d,])1 (texts|pairs|rows|tokens)\b", Page(page).text)


def test_hostile_text_stays_text():
    run = RUN | {
        "corpus": RUN["corpus"] | {"source": HOSTILE, "rejected_reasons": {HOSTILE: 1}},
        "config": RUN["config"] | {"id": HOSTILE},
    }
    html = rendered(tables_of(text=HOSTILE, model=HOSTILE), run)
    calm = rendered(tables_of(), RUN)
    page, expected = Page(html), Page(calm)
    assert [tag for tag, _ in page.tags if tag in ("script", "img", "iframe", "svg")] == ["script"] * 3
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    # A command has a span for each of its words.
    tags, expected_tags = ([tag for tag, _ in own.tags if tag != "span"] for own in (page, expected))
    assert len(tags) == len(expected_tags) + 1  # the line of the rejected reason
    assert page.text.count('</script><script>alert("x")</script>') >= 8
    assert "{{ 7*7 }}" in page.text
    assert len(specs_of(html)) == 6


def test_the_page_asks_for_nothing_from_outside():
    page = Page(rendered(tables_of(), RUN))
    assert len(page.tags) > 100
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), tag
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith("#")


def test_without_excerpts_no_text_is_shown():
    tables = tables_of(text="the secret of the merger")
    del tables["excerpts"]
    for name in ("socm_pairs", "near_duplicates"):
        tables[name] = tables[name].with_columns(text_id_b=pl.lit("two"))
    tables["collapsed_texts"] = tables["collapsed_texts"].with_columns(text_id=pl.lit("two"))
    html = rendered(tables, RUN)
    assert "secret" not in html
    assert "left out on request" in html


def test_equal_tables_give_the_same_page_and_other_figures_another():
    page = rendered(tables_of(), RUN)
    assert rendered(tables_of(), RUN) == page
    assert "0.080 ± 0.020" in page
    assert "0.080 ± 0.020" not in rendered(tables_of(gap=0.09), RUN)


def test_every_model_has_its_own_section_and_charts():
    one, other = tables_of(model="one/a b"), tables_of(model="ÄÖ<b>", gap=0.2)
    tables = {name: pl.concat([one[name], other[name]]) for name in one}
    tables["excerpts"] = one["excerpts"]
    html = rendered(tables, RUN)
    page = Page(html)
    ids = [attributes["id"] for _, attributes in page.tags if attributes.get("id")]
    assert len(ids) == len(set(ids)) == 32


def test_of_several_models_each_has_its_findings_under_its_name():
    one, other = tables_of(model="ad"), tables_of(model="cc", gap=0.2)
    tables = {name: pl.concat([one[name], other[name]]) for name in one} | {"excerpts": one["excerpts"]}
    html = rendered(tables, RUN)
    lists = re.findall(r'<h3>(\w\w)</h3>\s*<ul class="finding">(.*?)</ul>', html, re.S)
    assert [name for name, _ in lists] == ["ad", "cc"]
    assert "a collapse gap of 0.200" in lists[1][1]
    assert [items.count("<li>") for _, items in lists] == [5, 5]
    verdicts = re.findall(r'<h2 class="of">(.*?)</h2>\s*<p class="verdict">(.*?)</p>', html, re.S)
    assert [name for name, _ in verdicts] == ["ad", "cc"]
    assert "by 0.200" in verdicts[1][1]
    assert '<h2 class="of">' not in rendered(one, RUN)
    ids = [attributes["id"] for _, attributes in Page(html).tags if attributes.get("id")]
    assert len(ids) == len(set(ids)) == 32  # The letters of 'ad' and 'cc' have the same weighted sum.


def test_labels_are_short_and_distinct():
    long = [f"by_head([{', '.join(['1.0'] * 12)}], [{tau}, {', '.join(['0.9'] * 12)}])" for tau in (0.5, 0.6)]
    found = labels(["1.0", "log_length(64)", *long, "by_layer(" + "1.0, " * 11 + "0.85)"])
    assert list(found.values()) == [
        "τ 1.0",
        "log_length(64)",
        "by_head([1.0, 1.0, 1.0, …0.9, 0.9, 0.9]) #1",
        "by_head([1.0, 1.0, 1.0, …0.9, 0.9, 0.9]) #2",
        "by_layer(1.0, 1.0, 1.0, …1.0, 1.0, 0.85)",
    ]


def test_schedules_are_named_and_long_ones_written_out_once():
    html = rendered(tables_of(taus=SCHEDULES), RUN | {"steps": {f"SOCM, τ {SCHEDULES[1]}": {"seconds": 2.0}}})
    text = Page(html).text
    label = labels(SCHEDULES)[SCHEDULES[1]]
    assert len(SCHEDULES[1]) > 400
    assert len(label) == 40
    assert html.count(SCHEDULES[1]) == text.count(f"{label}: {SCHEDULES[1]}") == 1
    assert "At by_layer(1.0, 0.9) two texts of" in text
    assert f"{label} against by_layer(1.0, 0.9), on the same texts: it moves the collapse gap" in text
    assert f"SOCM, {label} 2.0" in text
    assert "τ by_" not in html
    specs = specs_of(html)
    assert specs["m0-cosine"]["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["by_layer(1.0, 0.9)", label]
    assert [panel["title"]["text"] for panel in specs["m0-heatmap"]["concat"]] == ["by_layer(1.0, 0.9)", label]


def test_the_last_words_on_the_screen_are_plain_text(tmp_path, capsys):
    storage = Storage(str(tmp_path / "a[/b]"))
    tables = tables_of(model="[/b]model[red]", taus=SCHEDULES)
    storage.write_table("tables/collapse_summary.parquet", tables["collapse_summary"].to_arrow())
    storage.write_json("run.json", RUN | {"gate": {"verdict": "none"}})
    report.close(SimpleNamespace(storage=storage))
    out = capsys.readouterr().out
    assert "a[/b]/report.html" in out
    assert "[/b]model[red]" in out
    assert SCHEDULES[0] in " ".join(out.split())
    assert SCHEDULES[1] not in " ".join(out.split())


def test_numbers_are_named_as_tau_on_the_screen():
    ((temperatures, _),) = closing_figures(tables_of()).values()
    assert temperatures == ["τ 1.0", "τ 0.8"]


# --- how the texts were encoded ---------------------------------------------------------------------------------------


def test_window_and_prompts_are_said_and_which_intervals_they_leave_empty():
    known = {"max_length": 256, "prompts": {"document": "passage: ", "query": "query: "}}
    assert protocol(known, [0, 100, 256, 300, 400], chunked=False) == [
        "Texts are encoded with at most 256 tokens, «passage:» before every document, «query:» before every query.",
        "Intervals from 300 tokens on are empty, because every text is cut at 256.",
    ]
    assert protocol({"max_length": 256}, [0, 100, 300], chunked=False)[1:] == [
        "The interval from 300 tokens on is empty, because every text is cut at 256."
    ]
    assert protocol({"max_length": 256}, [0, 300], chunked=True) == ["Texts are encoded with at most 256 tokens."]
    same = {"max_length": 64, "prompts": {"document": "about: ", "query": "about: "}}
    assert protocol(same, [0], chunked=False) == ["Texts are encoded with at most 64 tokens, «about:» before every text."]
    assert protocol({}, [0, 300], chunked=False) == []


@pytest.mark.parametrize(("similarity", "words"), [("dot", "by dot product"), ("euclidean", "by euclidean distance")])
def test_a_model_that_is_not_compared_by_cosine_is_named(similarity, words):
    (_, sentence) = protocol({"max_length": 64, "similarity": similarity}, [0], chunked=False)
    assert words in sentence
    assert "every neighbour, leaves their norms out" in sentence
