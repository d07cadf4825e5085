"""A temperature chosen without labels: every figure by hand and every reason to refuse a candidate."""

import numpy as np
import polars as pl
import pytest
from scipy.stats import t as student

from tempscale_jobs.errors import UsageError
from tempscale_jobs.tune.collapse import Noise, Seen, by_interval, choose, exposure, fairer, kept, prefix_gap
from tempscale_jobs.tune.words import evidence

pytestmark = pytest.mark.proof

EDGES, KEEP = [0, 32, 64], 0.9
N, PROBED, K = 40, 40, 4
SHORT, LONG = ([f"{end}{k:02d}" for k in range(N)] for end in "sl")
RANDOM = np.random.default_rng(0)
INSIDE = {end: level + RANDOM.normal(0, 0.05, N) for end, level in (("s", 0.3), ("l", 0.6))}
PREFIXES = {32: 0.3 + RANDOM.normal(0, 0.05, PROBED), 64: 0.5 + RANDOM.normal(0, 0.05, PROBED)}
NOISE = np.tile([-1.0, 1.0], N // 2) / np.sqrt(N / (N - 1))
"""Mean 0 and sample standard deviation 1."""


def exposed(long, near=None):
    """Four nearest of each text, of whom `long` of each are long ones; `near` replaces some texts' own."""
    found = {}
    for own, others in ((SHORT, LONG), (LONG, SHORT)):
        for k, text in enumerate(own):
            mine, strangers = ([each[(k + step) % N] for step in range(1, K + 1)] for each in (own, others))
            many, few = (mine, strangers) if own is LONG else (strangers, mine)
            found[text] = {*many[:long], *few[: K - long]}
    return found | (near or {})


def made(short=0.0, long=0.0, gap=0.0, near=None, spread=0.01, documents=None):
    """What a candidate leaves that moves the means of both intervals and the prefix gap, each text by ± `spread` more.

    `documents` gives the document of a text from its id.
    """
    of = documents or (lambda text: None)
    texts = [
        {"text_id": text, "group": group, "inside": value, "document": of(text)}
        for ids, group, moved in ((SHORT, 0, INSIDE["s"] + short + spread * NOISE * (short != 0)),
                                  (LONG, 64, INSIDE["l"] + long + spread * NOISE * (long != 0)))
        for text, value in zip(ids, moved, strict=True)
    ]  # fmt: skip
    probe = [
        {"text_id": text, "group": prefix, "inside": value, "document": of(text)}
        for prefix, moved in ((64, PREFIXES[64] + gap + spread * NOISE * (gap != 0)), (32, PREFIXES[32]))
        for text, value in zip(LONG, moved, strict=True)
    ]
    types = {"group": pl.Int32, "document": pl.Int64}
    return Seen(pl.DataFrame(texts, schema_overrides=types), pl.DataFrame(probe, schema_overrides=types), near or exposed(2))


def verdicts(*candidates, keep=KEEP, first=None):
    """The rows of a choice among the candidates, behind the reference."""
    return choose([first or made(), *candidates], keep, EDGES)[0]


def se(spread=0.01, n=N):
    """2·sd/√n: each pair counts in the means of two texts."""
    return 2 * spread / np.sqrt(n)


# ---------------------------------------------------------------------------------------------- figures


def test_interval_means_and_changes_by_hand():
    first, own = made(), made(short=0.02, long=-0.05, spread=0.03)
    few = first.texts.head(29).with_columns(group=pl.lit(32, pl.Int32), inside=0.9, text_id="m" + pl.col("text_id"))
    # In another order, and with an interval of 29 texts that takes no part.
    own, first = (each._replace(texts=pl.concat([few, each.texts])) for each in (own, first))
    own = own._replace(texts=own.texts.sample(fraction=1, shuffle=True, seed=1))
    short, long = by_interval(own, first)
    assert (short["interval"], short["texts"], long["interval"], long["texts"]) == (0, N, 64, N)
    assert short["cosine_mean"] == pytest.approx(INSIDE["s"].mean() + 0.02)
    assert long["cosine_mean"] == pytest.approx(INSIDE["l"].mean() - 0.05)
    assert (short["change"], long["change"]) == (pytest.approx(0.02), pytest.approx(-0.05))
    assert (short["change_se"], long["change_se"]) == (pytest.approx(se(0.03)), pytest.approx(se(0.03)))


def test_the_prefix_gap_and_its_change_by_hand():
    first, own = made(), made(gap=-0.08, spread=0.02)
    between = first.probe.filter(pl.col("group") == 32).with_columns(group=pl.lit(48, pl.Int32), inside=0.99)
    first, own = (each._replace(probe=pl.concat([between, each.probe])) for each in (first, own))
    own = own._replace(probe=own.probe.sample(fraction=1, shuffle=True, seed=2))
    before = (PREFIXES[64] - PREFIXES[32]).mean()
    assert prefix_gap(first, first) == (pytest.approx(before), (0, 0))
    gap, change = prefix_gap(own, first)
    assert gap == pytest.approx(before - 0.08)
    assert change == (pytest.approx(-0.08), pytest.approx(se(0.02)))
    none = first.probe.clear()
    assert prefix_gap(own._replace(probe=none), first._replace(probe=none)) == (None, (None, None))


def test_exposure_by_hand():
    names = ["a", "b", "c", "d", "e"]
    near = {"a": {"b", "e"}, "b": {"a", "c"}, "c": {"a", "e"}, "d": {"a", "e"}, "e": {"d", "a"}}
    other = near | {"b": {"a", "e"}, "d": {"a", "b"}, "e": {"a", "b"}}
    alone = pl.DataFrame({"text_id": names, "document": [None] * 5}, schema_overrides={"document": pl.Int64})
    first, own = (Seen(alone, pl.DataFrame(), each) for each in (near, other))
    # Of 10 slots d and e, two of the five texts, take 4, and 3.
    assert exposure(first, first, {"d", "e"}) == (pytest.approx((4 / 10) / (2 / 5)), (0, 0))
    value, change = exposure(own, first, {"d", "e"})
    assert value == pytest.approx((3 / 10) / (2 / 5))
    moved = np.array([0, 1, 0, -1, -1]) / 2 / (2 / 5)  # Of a to e.
    assert change == (pytest.approx(moved.mean()), pytest.approx(moved.std(ddof=1) / np.sqrt(len(names))))
    together = alone.with_columns(document=pl.Series([1, 1, 2, 3, 4]))
    _, change = exposure(own._replace(texts=together), first, {"d", "e"})
    assert change == (pytest.approx(moved.mean()), None)  # Four documents are too few to tell.


def test_what_short_texts_keep_by_hand():
    first = Seen(pl.DataFrame(), pl.DataFrame(), {"a": {"b", "c", "d", "e"}, "b": {"a", "c"}, "c": {"a", "b"}})
    own = first._replace(near={"a": {"c", "x", "y", "z"}, "b": {"a", "c"}, "c": {"y", "z"}})
    assert kept(own, first, {"a", "b"}) == pytest.approx((1 / 4 + 2 / 2) / 2)
    assert kept(first, first, {"a", "b", "c"}) == 1


# ---------------------------------------------------------------------------------------------- who may be chosen


@pytest.mark.parametrize(("documents", "chosen"), [(8, False), (40, True)])
def test_with_too_few_documents_nothing_is_chosen_because_no_error_is_known(documents, chosen):
    """A candidate that raises every mean looks harmless where its rise has no error."""
    place = {text: k for k, text in enumerate([*LONG, *SHORT])}
    of = lambda text: place[text] % documents  # noqa: E731
    first, row = verdicts(made(gap=-0.1, documents=of), first=made(documents=of))
    assert first["eligible"]
    assert row["chosen"] is row["eligible"] is chosen
    assert ("documents" in row["reason"]) is not chosen
    names = ({"temperature": temperature, "correction": None} for temperature in ("1.0", "0.5"))
    rows = [own | name for own, name in zip((first, row), names, strict=True)]
    run = {"choice": {"by": "collapse", "texts": N, "probed": N}}
    told = " ".join(evidence(run, {"tuning_collapse": pl.DataFrame(rows, infer_schema_length=None)}))
    assert ("documents" in told) is not chosen
    assert "lose" not in told  # Nothing is known of the neighbours that short texts lose.


def test_a_change_that_few_documents_show_must_be_larger():
    """Student's t of twelve documents: 2.2 errors where many texts need 1.96."""
    few, many = (Noise.of(made(documents=own), 1) for own in (lambda text: int(text[1:]) % 12, None))
    assert many.worse == pytest.approx(student.isf(0.025, N - 1))
    assert many.better == many.worse
    assert few.worse > 2.1
    assert Noise.of(made(), 5).better == pytest.approx(student.isf(0.005, N - 1))


@pytest.mark.words
def test_what_lessens_the_gap_beyond_noise_is_chosen():
    first, row = verdicts(made(gap=-0.1))
    assert (first["chosen"], row["chosen"], row["eligible"]) == (False, True, True)
    assert row["reason"].startswith("betters the prefix gap")
    assert row["prefix_gap"] == pytest.approx(first["prefix_gap"] - 0.1)
    assert (first["prefix_gap_change"], first["rise"], first["short_kept"], first["exposure_long"]) == (0, 0, 1, 1)
    assert row.keys() == first.keys()
    first, less, none = verdicts(made(gap=-1.5 * se()), made())
    assert [row["chosen"] for row in (first, less, none)] == [True, False, False]
    assert less["reason"].startswith("betters neither")
    assert less["eligible"]
    # Of those that better it the smallest gap.
    rows = verdicts(made(gap=-0.1), made(gap=-0.15), made(gap=-0.12), made(gap=-0.3, short=0.1))
    assert [row["chosen"] for row in rows] == [False, False, True, False, False]
    assert [row["eligible"] for row in rows] == [True, True, True, True, False]


@pytest.mark.parametrize(("end", "edge", "name"), [("short", 0, "0–31"), ("long", 64, "64+")])
def test_who_raises_an_interval_beyond_its_error_may_not_be_chosen(end, edge, name):
    rows = verdicts(made(gap=-0.2, **{end: 2.1 * se()}), made(gap=-0.1, **{end: 1.9 * se()}))
    assert [row["eligible"] for row in rows] == [True, False, True]
    assert [row["chosen"] for row in rows] == [False, False, True]
    assert (rows[1]["rise"], rows[1]["rise_interval"]) == (pytest.approx(2.1), edge)
    assert f"of {name} tokens" in rows[1]["reason"]
    # To flatten the curve by raising short texts is no gain, however far the long ones fall.
    row = verdicts(made(gap=-0.2, short=0.05, long=-0.3))[1]
    assert (row["eligible"], row["chosen"], row["rise_interval"]) == (False, False, 0)
    assert verdicts(made(gap=-0.2, short=-0.05, long=-0.3))[1]["chosen"]


def test_short_texts_must_keep_their_neighbours():
    """Four of the forty short texts have other neighbours: the others keep 90 %."""
    moved = {text: {LONG[0], LONG[1], SHORT[20], SHORT[21]} for text in SHORT[:4]}
    row = verdicts(made(gap=-0.1, near=exposed(2, moved)))[1]
    assert row["short_kept"] == pytest.approx(np.mean([len(exposed(2)[t] & exposed(2, moved)[t]) / K for t in SHORT]))
    assert 0.9 <= row["short_kept"] < 1
    assert row["chosen"]
    more = {text: {LONG[0], LONG[1], SHORT[20], SHORT[21]} for text in SHORT[4:16]}
    lost = verdicts(made(gap=-0.1, near=exposed(2, more)))[1]
    assert (lost["eligible"], lost["chosen"]) == (False, False)
    assert f"keep {100 * lost['short_kept']:.1f} %" in lost["reason"]
    assert verdicts(made(gap=-0.1, near=exposed(2, more)), keep=lost["short_kept"])[1]["chosen"]
    # What long texts lose is no one's concern here.
    others = {text: {LONG[0], LONG[1], SHORT[0], SHORT[1]} for text in LONG[5:]}
    assert verdicts(made(gap=-0.1, near=exposed(2, others)))[1]["short_kept"] == 1


def turned(names, to_long):
    """One neighbour of each of these texts becomes a long one, or a short one."""
    near = exposed(2)
    for name in names:
        gone = min(near[name] & set(SHORT if to_long else LONG))
        near[name] = near[name] - {gone} | {min(set(LONG if to_long else SHORT) - near[name] - {name})}
    return near


def test_exposure_must_come_nearer_to_fair_from_either_side():
    few, many = (made(near=turned(LONG[:30], to_long)) for to_long in (False, True))
    for first, changed in ((few, 1), (many, -1)):
        row = verdicts(made(), first=first)[1]
        assert np.sign(row["exposure_long_change"]) == changed
        assert row["chosen"]
        assert row["reason"].startswith("betters the exposure")
    # Farther from fair is worse, whatever the gap gains.
    row = verdicts(made(gap=-0.2, near=turned(SHORT[:2] + LONG, True)), first=made(near=turned(LONG[:10], True)))[1]
    assert row["exposure_long_change"] > 1.96 * row["exposure_long_change_se"] > 0
    assert (row["eligible"], row["chosen"]) == (True, False)
    assert row["reason"].startswith("worsens the exposure")
    # From a little too little to far too much: nearer to fair is meant, on a scale of ratios.
    little, much = made(near=turned(LONG[:6], False)), made(near=turned([*SHORT, *LONG[:20]], True))
    row = verdicts(much, first=little, keep=0.0)[1]
    assert row["exposure_long"] > 1.3
    assert row["exposure_long_change"] > 5 * row["exposure_long_change_se"] > 0
    assert (row["chosen"], row["reason"].startswith("worsens the exposure")) == (False, True)
    # Ratios have no place for 0: −0.5 and +0.5 in errors of 0.1.
    none, some = ({"exposure_long": value, "exposure_long_change_se": 0.1} for value in (0.0, 0.5))
    assert (fairer(none, some), fairer(some, none), fairer(none, none)) == pytest.approx((-5, 5, 0))


@pytest.mark.words
def test_a_worse_gap_is_refused_and_both_gains_are_told():
    few = made(near=turned(LONG[:30], False))
    worse, both = (verdicts(made(gap=gap), first=few)[1] for gap in (0.1, -0.1))
    assert (worse["eligible"], worse["chosen"]) == (True, False)
    assert worse["reason"].startswith("worsens the prefix gap")
    assert both["reason"].startswith("betters the prefix gap and the exposure of long texts")


def test_the_error_is_shared_among_all_candidates():
    """A gain of 2.2 errors stands alone, and not among five; 2.72 does. Bonferroni: 2.02 of one, 2.71 of five."""
    assert verdicts(made(gap=-2.2 * se()))[1]["chosen"]
    among = [made()] * 4
    assert not verdicts(made(gap=-2.2 * se()), *among)[1]["chosen"]
    z = student.isf(0.05 / 2 / 5, N - 1)
    assert verdicts(made(gap=-(z + 0.01) * se()), *among)[1]["chosen"]
    assert not verdicts(made(gap=-(z - 0.01) * se()), *among)[1]["chosen"]


def test_without_a_probe_exposure_alone_decides():
    few = made(near=turned(LONG[:30], False))
    first, fairer, same = (each._replace(probe=each.probe.clear()) for each in (few, made(), made(long=-0.1, near=few.near)))
    rows = verdicts(same, fairer, first=first)
    assert [row["chosen"] for row in rows] == [False, False, True]
    assert {row[name] for row in rows for name in ("prefix_gap", "prefix_gap_change", "prefix_gap_change_se")} == {None}


def test_texts_of_one_length_tell_nothing_and_say_so():
    first = made()
    one = first._replace(texts=first.texts.filter((pl.col("group") == 0) | (pl.col("text_id") < "l29")))
    with pytest.raises(UsageError, match=r"30 texts.*--sample.*--intervals"):
        choose([one, one], KEEP, EDGES)


def test_of_better_candidates_one_that_passes_the_fair_exposure_is_chosen_only_if_all_do():
    """From an exposure of .5, one to 1.5 with the smaller gap and one to 1."""
    first, past, fair = made(near=exposed(1)), made(gap=-0.08, near=exposed(3)), made(gap=-0.05, near=exposed(2))
    reference, *rows = verdicts(past, fair, keep=0.0, first=first)
    assert [row["exposure_long"] for row in (reference, *rows)] == pytest.approx([0.5, 1.5, 1.0])
    assert [row["eligible"] for row in rows] == [True, True]
    assert [row["chosen"] for row in rows] == [False, True]
    assert "overshoot" in rows[1]["reason"]
    assert verdicts(past, keep=0.0, first=first)[1]["chosen"]
