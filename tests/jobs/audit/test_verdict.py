"""What the first sentence says of temperatures: a narrower gap is less collapse only where long texts move apart."""

import polars as pl
import pytest
from pages import EDGES, tables_of

from tempscale_jobs.audit.findings import decide
from tempscale_jobs.audit.verdict import answer
from tempscale_jobs.report.text import Edges


def said(tables):
    """The answer, without what is said before temperatures."""
    row = tables["collapse_summary"].row(0, named=True)
    edges = Edges(EDGES)
    return answer(row, decide(tables, edges), edges).partition("256 tokens than to 32, by 0.0200 ± 0.0078.")[2].strip()


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ((0.0, 0.0, -0.017), "by 0.0170 ± 0.0059: long texts move apart, by 0.0170 ± 0.0059."),
        ((-0.01, 0.005, -0.017), "by 0.0170 ± 0.0059: long texts move apart, by 0.0170 ± 0.0059."),
        (
            (0.0096, 0.0, -0.0006),
            "by 0.0170 ± 0.0059, which is no gain: texts of 0–99 tokens move together, by 0.0096 ± 0.0059, and long texts "
            "do not move apart beyond noise.",
        ),
        ((0.001, 0.0, -0.002), "by 0.0170 ± 0.0059, which is no gain: long texts do not move apart beyond noise."),
        ((0.0, 0.02, -0.017), "by 0.0170 ± 0.0059, but texts of 100–399 tokens move together, by 0.0200 ± 0.0059."),
    ],
)  # fmt: skip
def test_a_narrower_gap_is_less_collapse_only_where_long_texts_move_apart_and_none_together(lengths, expected):
    assert said(tables_of(lengths=lengths)) == f"0.8 narrows this gap, the collapse gap, {expected}"


def test_of_two_temperatures_the_one_that_is_a_gain_is_named():
    """It narrows the gap less than the other."""
    gain, none = tables_of(taus=(1.0, 0.9), change=-0.01), tables_of(change=-0.03, lengths=(0.03, 0.0, 0.0))
    summary = pl.concat([gain["collapse_summary"], none["collapse_summary"].tail(1)])
    effects = pl.concat([gain["temperature_effect"], none["temperature_effect"]])
    both = gain | {"collapse_summary": summary, "temperature_effect": effects}
    assert said(both).startswith("0.9 narrows this gap, the collapse gap, by 0.0100 ± 0.0059: long texts move apart")


def test_where_no_temperature_narrows_a_gap_what_draws_texts_together_is_said():
    tables = tables_of(change=0.001, closer=0.0087)
    assert said(tables) == (
        "No temperature tried narrows this gap, the collapse gap, beyond noise. 0.8 draws texts together, by "
        "0.0087 ± 0.0059 in mean cosine over all pairs."
    )
    assert said(tables_of(change=0.001)) == "No temperature tried narrows this gap, the collapse gap, beyond noise."


def test_where_there_is_no_gap_a_temperature_that_draws_texts_together_is_said_so():
    assert said(tables_of(gap=0.009, gap_error=0.02, closer=0.0087)) == (
        "0.8 draws texts together, by 0.0087 ± 0.0059 in mean cosine over all pairs."
    )
    assert said(tables_of(gap=0.009, gap_error=0.02)) == ""


def test_a_run_of_an_older_version_does_not_know_the_lengths():
    tables = tables_of(closer=0.0087)
    tables["temperature_effect"] = tables["temperature_effect"].filter(pl.col("interval").is_null()).drop("interval")
    assert said(tables) == (
        "0.8 narrows this gap, the collapse gap, by 0.0170 ± 0.0059, but raises the mean cosine of all texts."
    )
