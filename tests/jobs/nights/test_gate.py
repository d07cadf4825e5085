"""The gate: thresholds, drift beyond size and noise, what cannot be compared, and how often noise alone fails a night."""

import math

import numpy as np
import pytest
from nights_by_hand import errors, summary
from scipy import stats

from tempscale_jobs.config.nights import FIGURES, SHARES, WITH_ERRORS, Gate, Threshold
from tempscale_jobs.config.strict import checked
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights import gate
from tempscale_jobs.nights.gate import Baseline
from tempscale_jobs.report.text import NAMES
from tempscale_jobs.tables.audit import COLLAPSE_SUMMARY
from tempscale_jobs.tables.columns import KEY


def held_to(**data):
    return checked(Gate, data)


def night(**figures):
    """A row with every figure null but those given; errors 0 unless given."""
    row = dict.fromkeys(c.name for c in COLLAPSE_SUMMARY.columns)
    row |= {"model": "m", "temperature": "1.0", "tau": 1.0, "schema_version": 1, "texts": 1000, "corpus_texts": 1000}
    return row | figures


def judged(gate_, row, baseline=None, label="the night of 2026-11-01"):
    return gate.judge(gate_, [row], [Baseline(baseline, label)])


def only(rows):
    (row,) = rows
    return row


# ------------------------------------------------------------------------------------------------- reading


def test_every_figure_of_the_summary_may_be_named_and_nothing_else():
    columns = {c.name for c in COLLAPSE_SUMMARY.columns} - {c.name for c in KEY}
    places = {"gap_shortest", "gap_longest", "gap_texts", "prefix_shortest", "prefix_longest", "prefix_texts"}
    places |= {"socm_freedom", "documents", "gap_documents", "prefix_documents"}
    assert set(FIGURES) == {c for c in columns - places if not c.endswith(("_se", "_se_superpopulation"))}
    for figure in set(WITH_ERRORS) - set(SHARES):
        assert f"{figure.removesuffix('_mean')}_se_superpopulation" in columns
    assert set(SHARES.values()) <= columns
    assert set(NAMES) == set(FIGURES)


@pytest.mark.parametrize(
    ("text", "held", "missed"),
    [
        ("collapse_gap <= 0.15", (0.14, 0.15), (0.16,)),
        ("collapse_gap<=.15", (0.15,), (0.1500001,)),
        ("collapse_gap < 0.15", (0.14,), (0.15, 0.16)),
        ("texts >= 1e3", (1000, 1001), (999,)),
        ("texts > 1000", (1001,), (999, 1000)),
        ("prefix_gap >= -0.01", (-0.01,), (-0.02,)),
    ],
)
def test_a_threshold_is_read_and_held_to(text, held, missed):
    holds = Threshold.read(text).holds
    assert (all(map(holds, held)), any(map(holds, missed))) == (True, False)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"thresholds": ["collapse_gap"]}, "'collapse_gap'"),
        ({"thresholds": ["colapse_gap <= 0.1"]}, "colapse_gap <= 0.1"),
        ({"thresholds": ["collapse_gap == 0.1"]}, "collapse_gap == 0.1"),
        ({"thresholds": ["collapse_gap <= 0.1", "collapse_gap<=.1"]}, "twice"),
        ({"thresholds": ["texts >= -1e400"]}, "texts >= -1e400"),
        ({"thresholds": ["collapse_gap <= nan"]}, "collapse_gap <= nan"),
        ({"drift": {"cosine_mean": math.inf}}, "cosine_mean"),
        ({"drift": {"effective_rank": 1.0}}, "effective_rank"),
        ({"drift": {"nonsense": 1.0}}, "nonsense"),
        ({"drift": {"cosine_mean": -0.1}}, "cosine_mean"),
        ({"false_alarms": 0.0}, "false_alarms"),
        ({"false_alarms": math.nan}, "false_alarms"),
        ({"on_other_model": "pass"}, "on_other_model"),
        ({"unknown": "new-series"}, "unknown"),
        ({"webhook_env": "https://hooks.example/T0/SECRET"}, "webhook_env"),
        ({"temperatures": [3.0]}, "temperatures"),
    ],
)
def test_what_cannot_be_held_to_is_named(data, named):
    with pytest.raises(UsageError) as error:
        held_to(**data)
    assert named in str(error.value)
    assert "SECRET" not in str(error.value)


# ---------------------------------------------------------------------------------------------- thresholds


def test_an_exact_threshold_over_every_text_has_no_noise():
    row = night(collapse_gap=0.16, collapse_gap_se=0.0, collapse_gap_se_superpopulation=0.05, gap_texts=100)
    found = only(judged(held_to(thresholds=["collapse_gap <= 0.15"], exact=True), row))
    assert (found["verdict"], found["noise"]) == ("failed", 0)
    other = only(judged(held_to(thresholds=["collapse_gap <= 0.15"]), row))
    assert (other["verdict"], other["noise"]) == ("held", pytest.approx(0.05 * stats.t.ppf(0.99, 99)))
    assert all(named in found["reason"] for named in ("collapse_gap", "m at τ 1.0", "0.16", "<= 0.15"))
    for text, verdict in (("texts < 1000", "failed"), ("texts <= 1000", "held")):
        for exact in (False, True):
            assert only(judged(held_to(thresholds=[text], exact=exact), row))["verdict"] == verdict


def test_an_exact_threshold_on_a_sample_fails_only_beyond_the_samples_noise():
    ask = held_to(thresholds=["collapse_gap <= 0.15"], exact=True)
    row = night(collapse_gap=0.16, collapse_gap_se=0.01, collapse_gap_se_superpopulation=0.05, gap_texts=51)
    found = only(judged(ask, row))
    # One check, one side, 1 %: t with 50 degrees of freedom.
    assert found["noise"] == pytest.approx(0.01 * stats.t.ppf(0.99, 50), rel=1e-12)
    assert found["verdict"] == "held"
    assert "by 0.01," in found["reason"]
    assert "0.024" in found["reason"]
    assert only(judged(ask, row | {"collapse_gap": 0.175}))["verdict"] == "failed"


def test_a_share_has_the_noise_of_a_binomial_and_none_where_every_text_was_used():
    ask = held_to(thresholds=["truncated_share <= 0.05"], exact=True)
    whole = only(judged(ask, night(truncated_share=0.0501)))
    assert (whole["verdict"], whole["noise"]) == ("failed", 0)
    sample = only(judged(ask, night(truncated_share=0.0501, texts=1000, corpus_texts=4000)))
    expected = stats.t.ppf(0.99, 999) * math.sqrt(0.0501 * 0.9499 / 1000) * math.sqrt(0.75)
    assert sample["noise"] == pytest.approx(expected, rel=1e-12)
    assert sample["verdict"] == "held"
    others = only(judged(held_to(thresholds=["truncated_share <= 0.05"]), night(truncated_share=0.0501)))
    assert others["noise"] == pytest.approx(expected / math.sqrt(0.75), rel=1e-12)


def test_a_figure_that_was_not_measured_does_not_hold():
    found = judged(held_to(thresholds=["socm_mean <= 0.2"]), night())
    assert only(found)["verdict"] == "not measured"
    verdict, failed = gate.verdict(found)
    assert (verdict, failed) == ("failed", [found[0]["reason"]])
    assert "(socm_mean) of m at τ 1.0" in found[0]["reason"]


def test_nothing_to_hold_to_is_no_verdict():
    assert gate.verdict(judged(held_to(), night(), night())) == ("none", [])


# ------------------------------------------------------------------------------------------------ drift


def moved(by, size=0.02, error=0.001, texts=100):
    figures = {"cosine_se": 0.0, "cosine_se_superpopulation": error, "texts": texts}
    ask = held_to(baseline="latest", drift={"cosine_mean": size})
    return only(judged(ask, night(cosine_mean=0.3 + by, **figures), night(cosine_mean=0.3, **figures)))


def test_a_drift_counts_beyond_its_size_and_its_noise_both_ways():
    assert moved(0.0)["verdict"] == "held"
    assert moved(0.019)["verdict"] == "held"
    for by in (0.021, -0.021):
        found = moved(by)
        assert found["verdict"] == "failed"
        assert found["change"] == pytest.approx(by)
        assert ("rose" if by > 0 else "fell") in found["reason"]
        assert "from 0.3 in the night of 2026-11-01" in found["reason"]
    large_error = moved(0.021, error=0.01)
    assert large_error["noise"] == pytest.approx(stats.t.ppf(0.995, 99) * 0.01 * math.sqrt(2), rel=1e-12)
    assert large_error["verdict"] == "held"
    assert moved(0.1, error=0.01)["verdict"] == "failed"


def test_beside_a_night_that_knows_of_documents_the_other_has_no_smaller_error():
    """Last month nobody named them: its error is that of independent texts, tonight's three times as large."""
    ask = held_to(baseline="latest", drift={"cosine_mean": 0.0})
    before = night(cosine_mean=0.30, cosine_se_superpopulation=0.001)
    after = night(cosine_mean=0.31, cosine_se_superpopulation=0.003, documents=50)
    for one, other in ((before, after), (after, before)):
        found = only(judged(ask, one, other))
        assert found["noise"] == pytest.approx(stats.t.ppf(0.995, 49) * 0.003 * math.sqrt(2), rel=1e-12)


@pytest.mark.parametrize("known", [{"gap_texts": 50, "gap_shortest": 0, "gap_longest": 500}, {}])
def test_a_move_of_exactly_its_size_is_held_and_an_error_of_zero_known_whatever_is_known_of_the_texts(known):
    before, after = (night(exposure_long=value, exposure_long_se_superpopulation=0.0, **known) for value in (1.0, 1.25))
    for size, verdict in ((0.25, "held"), (0.2499, "failed")):
        ask = held_to(baseline="latest", drift={"exposure_long": size})
        assert only(judged(ask, after, before))["verdict"] == verdict


def test_a_check_without_noise_takes_no_share_of_the_false_alarms():
    row = night(collapse_gap=0.16, collapse_gap_se=0.01, gap_texts=51)
    alone = only(judged(held_to(thresholds=["collapse_gap <= 0.15"]), row))
    first, _ = judged(held_to(thresholds=["collapse_gap <= 0.15", "texts >= 10"]), row)
    assert first["noise"] == alone["noise"]


def test_many_checks_share_the_false_alarms():
    figures = {"cosine_mean": 0.3, "cosine_se_superpopulation": 0.01, "socm_mean": 0.1, "socm_texts": 1000}
    row = night(**figures, socm_se_superpopulation=0.01)
    rows = judged(held_to(baseline="latest", drift={"cosine_mean": 0.0, "socm_mean": 0.0}), row, row)
    assert [r["noise"] for r in rows] == pytest.approx([stats.t.ppf(1 - 0.01 / 4, 999) * 0.01 * math.sqrt(2)] * 2)


def test_what_cannot_be_compared_is_no_drift_and_says_why():
    ask = held_to(baseline="latest", drift={"collapse_gap": 0.0, "prefix_gap": 0.0, "socm_mean": 0.0})
    ends = {"gap_shortest": 0, "gap_longest": 400, "prefix_shortest": 32, "prefix_longest": 256}
    sized = {"gap_texts": 50, "prefix_texts": 50, "socm_texts": 50}
    figures = dict.fromkeys(("collapse_gap", "prefix_gap", "socm_mean"), 0.1)
    error = {f"{name}_se_superpopulation": 0.001 for name in ("collapse_gap", "prefix_gap", "socm")}
    before = night(**ends, **sized, **figures, **error)
    after = before | {"gap_longest": 500, "collapse_gap": 0.9, "socm_se_superpopulation": None, "socm_mean": 0.9}
    gap, prefix, socm = judged(ask, after, before)
    assert gap["verdict"] == "not comparable"
    assert ("400" in gap["reason"], "500" in gap["reason"]) == (True, True)
    assert prefix["verdict"] == "held"
    assert socm["verdict"] == "unknown noise"
    assert gate.verdict([gap, prefix, socm]) == ("passed", [])


def test_a_figure_that_was_there_and_is_no_longer_fails():
    ask = held_to(baseline="latest", drift={"prefix_gap": 0.02})
    gone = only(judged(ask, night(), night(prefix_gap=0.1, prefix_gap_se_superpopulation=0.01)))
    assert gone["verdict"] == "not measured"
    assert "0.1 in the night of 2026-11-01" in gone["reason"]
    new = only(judged(ask, night(prefix_gap=0.1, prefix_gap_se_superpopulation=0.01), night()))
    assert new["verdict"] == "not comparable"


NAN = float("nan")
KNOWN = {"cosine_mean": 0.3, "cosine_se_superpopulation": 0.001}
UNKNOWN = {
    "no error tonight": (KNOWN, {"cosine_se_superpopulation": None}),
    "no error in the baseline": (KNOWN | {"cosine_se_superpopulation": None}, {}),
    "an error that is no number": (KNOWN, {"cosine_se_superpopulation": NAN}),
    "an infinite error": (KNOWN | {"cosine_se_superpopulation": math.inf}, {}),
    "two texts": (KNOWN, {"texts": 2}),
    "nobody knows how many texts": (KNOWN | {"texts": None}, {}),
    "one document": (KNOWN | {"documents": 1}, {}),
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_a_change_of_unknown_noise_is_a_finding_and_fails_where_that_is_asked_for(why):
    before, more = UNKNOWN[why]
    tonight = night(**KNOWN | {"cosine_mean": 0.9} | more)
    for unknown, expected in (("pass", "unknown noise"), ("fail", "failed")):
        ask = held_to(baseline="latest", drift={"cosine_mean": 0.02}, unknown=unknown)
        rows = judged(ask, tonight, night(**before))
        assert only(rows)["verdict"] == expected
        assert (only(rows)["noise"], only(rows)["change"]) == (None, pytest.approx(0.6))
        assert gate.verdict(rows)[0] == ("passed" if unknown == "pass" else "failed")
        # Whatever its noise is, a change within its size is none.
        assert only(judged(ask, tonight | {"cosine_mean": 0.31}, night(**before)))["verdict"] == "held"


def test_a_check_of_unknown_noise_takes_no_share_of_the_false_alarms():
    ask = held_to(baseline="latest", drift={"cosine_mean": 0.0, "spread_mean": 0.0})
    row = night(**KNOWN, spread_mean=1.0, spread_se_superpopulation=None)
    cosine, spread = judged(ask, row | {"cosine_mean": 0.31, "spread_mean": 1.5}, row)
    assert cosine["noise"] == pytest.approx(stats.t.ppf(0.995, 999) * 0.001 * math.sqrt(2), rel=1e-12)
    assert spread["verdict"] == "unknown noise"


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf, None])
def test_a_figure_that_is_no_number_holds_no_threshold_and_no_drift(value):
    for text in ("cosine_mean <= 0.5", "cosine_mean >= 0.1", "cosine_mean < 0.5", "cosine_mean > 0.1"):
        row = night(**KNOWN | {"cosine_mean": value})
        assert only(judged(held_to(thresholds=[text]), row))["verdict"] == "not measured"
    drifted = only(judged(held_to(baseline="latest", drift={"cosine_mean": 9.0}), row, night(**KNOWN)))
    assert drifted["verdict"] == "not measured"


def test_groups_have_one_degree_of_freedom_less_than_there_are():
    ask = held_to(thresholds=["socm_mean <= 0.2"])
    row = night(socm_mean=0.21, socm_se=0.01, socm_se_superpopulation=0.01, socm_texts=480, socm_freedom=31.0)
    assert only(judged(ask, row))["noise"] == pytest.approx(0.01 * stats.t.ppf(0.99, 31), rel=1e-12)


def test_a_share_that_was_nothing_may_become_something():
    ask = held_to(baseline="latest", drift={"truncated_share": 0.0})
    found = only(judged(ask, night(truncated_share=0.004), night(truncated_share=0.0)))
    # As if both were one share of 0.002, of 1,000 texts each.
    expected = stats.t.ppf(0.995, 999) * math.sqrt(2 * 0.002 * 0.998 / 1000)
    assert found["noise"] == pytest.approx(expected, rel=1e-12)
    assert found["verdict"] == "held"
    assert only(judged(ask, night(truncated_share=0.02), night(truncated_share=0.0)))["verdict"] == "failed"


# ---------------------------------------------------------------------------------------- false alarms


def population(seed, texts=4000, dim=12):
    """Unit vectors round a few topics, longer ones nearer to a common direction; lengths; which were cut."""
    random = np.random.default_rng(seed)
    tokens = random.integers(5, 160, texts)
    vectors = random.normal(size=(5, dim))[random.integers(0, 5, texts)] * 0.7 + random.normal(size=(texts, dim))
    vectors += (tokens / 160)[:, None] * random.normal(size=dim)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), tokens, random.random(texts) < 0.06


def drawn(everything, random, texts=400):
    """The summary of a corpus drawn from the population, with two further figures of the same kinds of error."""
    vectors, tokens, truncated = everything
    chosen = random.integers(0, len(vectors), texts)
    row = summary(vectors[chosen], tokens[chosen], truncated=truncated[chosen])
    sample = chosen[:60]
    socm = summary(vectors[sample][:, ::-1], tokens[sample])
    row |= {"socm_mean": socm["cosine_mean"], "socm_texts": 60}
    return row | errors("socm", socm["cosine_se_superpopulation"], 60, 60)


@pytest.mark.proof
def test_of_quiet_nights_no_more_fail_than_is_stated():
    """Sizes are 0, so that noise alone decides; 0.01 of the nights may fail, over four checks together."""
    everything, nights, failed = population(1), 3000, 0
    figures = ("cosine_mean", "collapse_gap", "socm_mean", "truncated_share")
    ask = held_to(baseline="latest", drift=dict.fromkeys(figures, 0.0))
    for seed in range(nights):
        random = np.random.default_rng(seed)
        rows = judged(ask, drawn(everything, random), drawn(everything, random))
        assert len(rows) == 4
        assert not {row["verdict"] for row in rows} - {"held", "failed"}
        failed += gate.verdict(rows)[0] == "failed"
    assert stats.binomtest(failed, nights, 0.01, alternative="greater").pvalue > 0.001, f"{failed} of {nights}"
    # And it is not deaf: at the same noise four times as many may fail at 4 %, and some do at 1 %.
    assert failed > 0


@pytest.mark.proof
def test_of_quiet_nights_no_more_miss_a_threshold_at_the_truth_than_is_stated():
    """Fresh texts every night, every one of them used; limits are the figures of the population that they come from."""
    everything, nights, failed = population(1), 3000, {False: 0, True: 0}
    whole = summary(*everything[:2], truncated=everything[2])
    limits = [f"{name} <= {whole[name]!r}" for name in ("cosine_mean", "collapse_gap", "truncated_share")]
    for seed in range(nights):
        row = drawn(everything, np.random.default_rng(seed))
        for exact in failed:
            failed[exact] += gate.verdict(judged(held_to(thresholds=limits, exact=exact), row))[0] == "failed"
    assert stats.binomtest(failed[False], nights, 0.01, alternative="greater").pvalue > 0.001, f"{failed} of {nights}"
    assert failed[False] > 0
    assert failed[True] > 0.5 * nights


def population_of_documents(seed, documents=600, dim=12):
    """Documents of 2 to 14 texts, 8 in the mean: each text is half its document; where one is long, others are."""
    random = np.random.default_rng(seed)
    found = []
    for own in random.normal(size=(documents, dim)):
        size, lean = random.integers(2, 15), random.integers(5, 130)
        tokens = lean + random.integers(0, 30, size)
        vectors = 0.8 * own + random.normal(size=(size, dim)) + (tokens / 160)[:, None] * np.eye(dim)[0]
        cut = random.random(size) < random.choice([0.0, 0.3])
        found.append((vectors / np.linalg.norm(vectors, axis=1, keepdims=True), tokens, cut))
    return found


def drawn_documents(everything, random, named, documents=60):
    """The summary of a corpus of documents drawn from the population, its documents named or not."""
    chosen = [everything[k] for k in random.integers(0, len(everything), documents)]
    vectors, tokens, truncated = (np.concatenate(part) for part in zip(*chosen, strict=True))
    document = np.repeat(np.arange(documents), [len(own) for _, own, _ in chosen])
    return summary(vectors, tokens, truncated=truncated, document=document if named else None)


@pytest.mark.proof
@pytest.mark.parametrize("named", [True, False])
def test_of_quiet_nights_of_documents_no_more_fail_than_is_stated_if_documents_are_named(named):
    """With texts taken for independent, many times as many fail; that is why --document-column is there."""
    everything, nights, failed = population_of_documents(1), 1200, 0
    ask = held_to(baseline="latest", drift=dict.fromkeys(("cosine_mean", "collapse_gap", "truncated_share"), 0.0))
    for seed in range(nights):
        random = np.random.default_rng(seed)
        failed += gate.verdict(judged(ask, *(drawn_documents(everything, random, named) for _ in "ab")))[0] == "failed"
    if named:
        assert stats.binomtest(failed, nights, 0.01, alternative="greater").pvalue > 0.001, f"{failed} of {nights}"
    else:
        assert failed > 0.1 * nights


@pytest.mark.parametrize("documents", [None, 40])
@pytest.mark.parametrize(("after", "verdict"), [(0.02, "held"), (0.06, "failed")])
def test_rejected_rows_drift_as_a_share_of_the_rows(documents, after, verdict):
    def of(share):
        error = math.sqrt(share * (1 - share) / 2000)
        return night(rejected_share=share, rejected_share_se_superpopulation=error, rows=2000, documents=documents)

    row = only(judged(held_to(baseline="latest", drift={"rejected_share": 0.0}), of(after), of(0.015)))
    pooled = (after + 0.015) / 2
    assert row["verdict"] == verdict
    errors = [max(math.sqrt(pooled * (1 - pooled) / 2000), math.sqrt(p * (1 - p) / 2000)) for p in (0.015, after)]
    expected = errors if documents else [math.sqrt(pooled * (1 - pooled) / 2000)] * 2
    freedom = 999 if documents is None else documents - 1
    assert row["noise"] == pytest.approx(-stats.t.ppf(0.005, freedom) * math.hypot(*expected))
