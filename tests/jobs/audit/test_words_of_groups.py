"""What is said of groups of texts: what is beyond noise for all groups together, and which groups were joined."""

import polars as pl
import pytest

from tempscale_jobs.audit import by_group
from tempscale_jobs.audit.findings import _groups, exposed_group, staying_group
from tempscale_jobs.report.findings import Findings

KEY = {"model": "m", "temperature": "1.0", "tau": 1.0}
NEXT = 2.2
"""Errors from what is expected: beyond noise for one group, not for several together."""


def row(group, texts=100, exposure=(1.0, 0.1), stays=(0.2, 0.02, 0.2), asked_by="corpus"):
    return KEY | {
        "by": "lang", "group": group, "asked_by": asked_by, "k": 10, "texts": texts, "texts_share": 0.2,
        "slots_share": 0.2 * exposure[0], "exposure": exposure[0], "exposure_se_superpopulation": exposure[1],
        "stays": stays[0], "stays_se": stays[1], "stays_expected": stays[2],
    }  # fmt: skip


def said(*rows, joined=None):
    table = pl.DataFrame(rows)
    found = Findings(_groups(KEY, table))
    cosines = pl.DataFrame(schema={"model": pl.String, "temperature": pl.String, "by": pl.String})
    tables = {"group_exposure": table, "group_cosine": cosines, "findings": found.frame()}
    (section,) = by_group.sections("m0", tables, KEY, {"lang": joined} if joined else {})
    assert section.title == "By lang"
    return found, section


def test_groups_are_tested_together_and_small_ones_not_at_all():
    rows = [row("de", exposure=(1 + NEXT * 0.1, 0.1)), row("en"), row("fr"), row("it", 20, exposure=(3.0, 0.1))]
    found, _ = said(*rows)
    states = [found.at(exposed_group(one), KEY).state for one in rows]
    assert states == ["noise", "noise", "noise", "unknown"]
    alone, _ = said(rows[0])
    assert alone.at(exposed_group(rows[0]), KEY).state == "up"


def test_what_stays_is_compared_with_what_is_expected():
    rows = [row("de", stays=(0.5, 0.02, 0.2)), row("en", stays=(0.2, 0.02, 0.2)), row("fr", stays=(None, None, None))]
    found, section = said(*rows)
    assert [found.at(staying_group(one), KEY).state for one in rows] == ["up", "noise", "absent"]
    assert section.sentences == [
        "Results asked by the texts: no group takes more or less than its share beyond noise.",
        "Results of each group's own texts: 50.0 ± 3.9 % stay in lang=de, where 20.0 % would if groups did not matter.",
    ]


def test_three_groups_are_named_and_the_others_counted():
    rows = [row(f"g{k}", exposure=(2 + k, 0.1)) for k in range(5)]
    _, section = said(*rows)
    first = section.sentences[0]
    assert first.startswith(
        "Results asked by the texts: lang=g4 takes 120.0 %, with 20.0 % of the texts (exposure 6.00 ± 0.20)"
    )
    assert first.count("lang=g") == 3
    assert first.endswith("2 other groups also differ beyond noise.")


@pytest.mark.parametrize(
    ("joined", "sentence"),
    [
        (
            {"groups": 2, "joined": 1, "names": ["it"]},
            "1 group of fewer than 30 texts, or beyond the 50 largest, is (others): it.",
        ),
        (
            {"groups": 2, "joined": 1200, "names": [*"abcdefghij"]},
            "1,200 groups of fewer than 30 texts, or beyond the 50 largest, are joined as (others): a, b, c, d, e, f, g, h, "
            "i, j and 1,190 more.",
        ),
    ],
)  # fmt: skip
def test_joined_groups_are_counted_and_ten_of_them_named(joined, sentence):
    assert said(row("de"), row("en"), joined=joined)[1].sentences[0] == sentence


def test_no_sentence_speaks_of_joined_groups_where_there_are_none():
    _, section = said(row("de"), row("en"), joined={"groups": 2, "joined": 0, "names": []})
    assert len(section.sentences) == 2


def test_a_long_name_is_cut_and_each_group_has_a_line():
    _, section = said(row("x" * 60), row("en"))
    (chart,) = section.parts
    assert [line[0].split("\n")[0] for line in chart.drawing.table.rows] == ["x" * 39 + "…", "en"]
