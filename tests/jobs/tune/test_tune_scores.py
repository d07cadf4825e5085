"""A temperature chosen by scores, on items made by hand: who is in which part, what beats noise, and by how much."""

from collections import Counter

import numpy as np
import oracles
import polars as pl
import pytest
from scipy import stats

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.errors import UsageError
from tempscale_jobs.tune import scores
from tempscale_jobs.tune.scores import Half, Parts, Scored, choose

FIRST, OTHER = "1.0", "0.8"


def table(values, task="one", subset="default", ids=None, windows=None, gold=None):
    """Items of one task and subset as `evaluation_items` has them; `values` by candidate."""
    rows = []
    for candidate, own in values.items():
        for k, value in enumerate(own):
            score = {"value": float(value), "predicted": None, "gold": None, "right": None}
            if gold is not None:
                score |= {"value": None, "predicted": float(value), "gold": float(gold[k])}
            rows.append(
                {"temperature": candidate, "task": task, "split": "test", "subset": subset}
                | {"item": f"i{k}" if ids is None else ids[k], "window": None if windows is None else windows[k]} | score
            )  # fmt: skip
    types = {"window": pl.Boolean, "right": pl.List(pl.Boolean)} | dict.fromkeys(("value", "predicted", "gold"), pl.Float64)
    return pl.DataFrame(rows, schema_overrides=types)


def split(items, tasks, share, seed, relevant=None):
    none = pl.DataFrame(schema={"task": pl.String})
    return scores.split(Scored(items, none if relevant is None else relevant), tasks, share, seed)


def halves(dev, held, gold=None):
    """Parts of one task, given rather than drawn; `gold` of the same pairs in both."""
    as_arrays = lambda values: {name: np.asarray(own, float) for name, own in values.items()}  # noqa: E731
    return Parts({"one": [Half(as_arrays(dev), gold)]}, {"one": [Half(as_arrays(held), gold)]}, [])


# ---------------------------------------------------------------------------------------------- the parts


def test_an_item_is_in_the_same_part_and_place_under_every_candidate():
    number = np.arange(200)
    own = {FIRST: number, OTHER: number + 1000, "0.5": number + 2000}
    for items in (table(own), table(own).sample(fraction=1, shuffle=True, seed=4)):
        parts = split(items, ["one"], 0.5, 3)
        ((dev,), (held,)) = parts.dev["one"], parts.held["one"]
        for half in (dev, held):
            np.testing.assert_array_equal(half.values[OTHER], half.values[FIRST] + 1000)
            np.testing.assert_array_equal(half.values["0.5"], half.values[FIRST] + 2000)
        assert sorted([*dev.values[FIRST], *held.values[FIRST]]) == number.tolist()
        assert parts.left_out == []


def test_the_part_follows_from_the_id_alone_and_the_seed():
    held = lambda items, seed: set(split(items, ["one"], 0.5, seed).held["one"][0].values[FIRST])  # noqa: E731
    of = lambda n: table({FIRST: np.arange(n), OTHER: np.arange(n)})  # noqa: E731
    first, again, other = (held(of(300), seed) for seed in (0, 0, 1))
    assert first == again
    assert 100 < len(first ^ other) < 200
    assert held(of(250), 0) == {k for k in first if k < 250}


@pytest.mark.parametrize(("share", "drawn"), [(0.2, 1), (0.5, 1), (0.7, 1), (0.5, 0.5)])
def test_about_the_asked_share_is_held_out(share, drawn):
    """Of texts of low keyed hash too: a classification of one's own is tested on those, under the run's seed."""
    ids = [f"t{k}" for k in range(2000) if keyed_hash(f"t{k}", 7) / 2**64 < drawn]
    n, values = len(ids), np.zeros(len(ids))
    parts = split(table({FIRST: values, OTHER: values + 1}, ids=ids), ["one"], share, 7)
    assert len(parts.held["one"][0]) + len(parts.dev["one"][0]) == n
    assert abs(len(parts.held["one"][0]) - share * n) < 4 * np.sqrt(n * share * (1 - share))


def test_windows_go_with_their_text():
    ids = [name for k in range(60) for name in (f"t{k}", f"t{k}[0:9]", f"t{k}[9:18]", f"odd[{k}]")]
    windows = [flag for _ in range(60) for flag in (False, True, True, False)]
    text = np.repeat(np.arange(60), 4)
    own = np.where(np.arange(240) % 4 == 3, 1000 + text, text)
    parts = split(table({FIRST: own, OTHER: own}, ids=ids, windows=windows), ["one"], 0.5, 0)
    dev, held = (Counter(half[0].values[FIRST].tolist()) for half in (parts.dev["one"], parts.held["one"]))
    assert not dev.keys() & held.keys()
    assert all(count == (3 if value < 1000 else 1) for part in (dev, held) for value, count in part.items())
    # A text that is no window keeps its brackets: were `odd[7]` the text `odd`, all sixty would go together.
    assert all(any(value >= 1000 for value in part) for part in (dev, held))


def test_tasks_without_items_enough_are_left_out_and_none_left_is_refused():
    few = table({FIRST: np.zeros(15), OTHER: np.ones(15)}, task="few")  # 15 never give 10 and 10.
    many = table({FIRST: np.zeros(80), OTHER: np.ones(80)}, task="many")
    parts = split(pl.concat([few, many]), ["few", "many", "grouped"], 0.5, 0)
    assert (list(parts.dev), parts.left_out) == (["many"], ["few", "grouped"])
    with pytest.raises(UsageError, match=r"few, grouped$"):
        choose(split(few, ["few", "grouped"], 0.5, 0), [FIRST, OTHER], 0)
    nothing = pl.DataFrame(schema={"task": pl.String})
    with pytest.raises(UsageError, match=r": grouped$"):
        choose(split(nothing, ["grouped"], 0.5, 0), [FIRST, OTHER], 0)
    # A classification of three experiments.
    right = np.ones((60, 3))
    assert split(classified({FIRST: right, OTHER: right}), ["one"], 0.5, 0).left_out == ["one"]


def test_items_without_a_value_or_a_cosine_cannot_choose():
    rows = table({FIRST: np.zeros(80), OTHER: np.ones(80)}).with_columns(value=pl.lit(None, pl.Float64))
    assert split(rows, ["one"], 0.5, 0) == Parts({}, {}, ["one"])
    good = table({FIRST: np.zeros(80), OTHER: np.ones(80)}, subset="good")
    ((dev,), (held,)) = (each["one"] for each in split(pl.concat([rows, good]), ["one"], 0.5, 0)[:2])
    assert len(dev) + len(held) == 80


# ---------------------------------------------------------------------------------------------- the choice


def test_noise_is_chosen_about_as_often_as_its_level_allows(monkeypatch):
    """The best of four that differ by nothing: one side of a 95 % interval, 2.5 %, for items are seen once more."""
    monkeypatch.setattr(scores, "RESAMPLES", 999)
    names, draws, chosen, led = [FIRST, OTHER, "0.7", "0.5"], 400, 0, 0
    for seed in range(draws):
        random = np.random.default_rng(seed)
        dev, held = ({name: random.normal(0.5, 0.2, 80) for name in names} for _ in range(2))
        rows = choose(halves(dev, held), names, seed)
        led += any(row["held_low"] is not None for row in rows[1:])
        chosen += not rows[0]["chosen"]
    assert stats.binom.ppf(0.001, draws, 0.75) <= led <= stats.binom.ppf(0.999, draws, 0.75)
    assert 0 < chosen <= stats.binom.ppf(0.999, draws, 0.03)  # A percentile interval of 80 is a little too narrow.


def test_a_candidate_that_the_held_out_part_does_not_confirm_is_refused():
    random = np.random.default_rng(0)
    before, noise = random.random(50), random.normal(0, 0.1, 50)
    dev = {FIRST: before, OTHER: before + 0.2 + noise, "0.5": before + 0.05}
    held = {FIRST: before, OTHER: before + noise - noise.mean(), "0.5": before + 0.3}
    rows = choose(halves(dev, held), list(dev), 0)
    # Even though another candidate is better there: the held-out part chooses nothing.
    assert [row["chosen"] for row in rows] == [True, False, False]
    assert rows[1]["held_low"] < 0 < rows[1]["held_high"]
    assert "noise" in rows[1]["reason"]
    worse = choose(halves({FIRST: before, OTHER: before - 0.1}, {FIRST: before, OTHER: before + 1}), [FIRST, OTHER], 0)
    assert (worse[0]["chosen"], worse[1]["held_low"]) == (True, None)
    # Of equal candidates the earliest is taken.
    same = {FIRST: before, OTHER: before + 0.1, "0.7": before + 0.1, "0.6": before}
    assert [row["chosen"] for row in choose(halves(same, same), list(same), 0)] == [False, True, False, False]


# ---------------------------------------------------------------------------------------------- pairs and several tasks


def pairs(seed, n=120, noise=1.0):
    """Cosines that follow gold scores loosely, and closely."""
    random = np.random.default_rng(seed)
    gold = np.round(random.uniform(0, 5, n))
    return {FIRST: gold + random.normal(0, 3 * noise, n), OTHER: gold + random.normal(0, noise, n)}, gold


@pytest.fixture
def fewer_resamples(monkeypatch):
    """Rank correlations take a second a thousand."""
    monkeypatch.setattr(scores, "RESAMPLES", 1999)


@pytest.mark.proof
def test_pairs_are_scored_by_spearman(fewer_resamples):
    own, gold = pairs(0)
    parts = split(table(own, gold=gold), ["one"], 0.5, 0)
    ((dev,), (held,)) = parts.dev["one"], parts.held["one"]
    for half in (dev, held):  # The gold of each pair goes with it.
        place = [own[FIRST].tolist().index(value) for value in half.values[FIRST]]
        np.testing.assert_array_equal(half.gold, gold[place])
        np.testing.assert_array_equal(half.values[OTHER], own[OTHER][place])
    first, row = choose(parts, [FIRST, OTHER], 0)
    for name, half in (("dev", dev), ("held", held)):
        expected = [stats.spearmanr(half.values[candidate], half.gold).statistic for candidate in (FIRST, OTHER)]
        assert (first[f"{name}_score"], row[f"{name}_score"]) == (pytest.approx(expected[0]), pytest.approx(expected[1]))
        assert row[f"{name}_change"] == pytest.approx(expected[1] - expected[0])
    assert row["chosen"]


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:The BCa confidence interval")  # Of scipy, about an interval that nobody asks for.
def test_few_gold_scores_do_not_hide_a_gain(fewer_resamples):
    """Of ten pairs, three of them alike, one resample in 35 has one gold score only, and no correlation."""
    gold = np.array([1.0] * 3 + [0.0] * 7)
    random = np.random.default_rng(0)
    own = {FIRST: random.permutation(10.0 * (1 - gold)) + np.arange(10) / 100, OTHER: gold + np.arange(10) / 100}
    first, row = choose(halves(own, own, gold), [FIRST, OTHER], 0)
    assert np.isfinite([row["held_low"], row["held_high"]]).all()
    assert row["chosen"] == (row["held_low"] > 0)
    assert row["held_score"] > 0.7 > first["held_score"]


@pytest.mark.proof
@pytest.mark.parametrize("of_pairs", [False, True])
def test_the_interval_is_that_of_a_plain_paired_bootstrap(of_pairs, fewer_resamples):
    own, gold = pairs(1, 80)
    if not of_pairs:  # Leaning to one side, as scores do: no normal law would do.
        gold = None
        own[OTHER] = own[FIRST] + np.random.default_rng(2).exponential(1, 80) - 0.7
    row = choose(halves(own, own, gold), [FIRST, OTHER], 0)[1]
    assert row["chosen"]
    random, found = np.random.default_rng(99), []
    for _ in range(2000):
        draw = random.integers(0, 80, 80)
        if of_pairs:
            one, two = (stats.rankdata(own[name][draw]) for name in (FIRST, OTHER))
            target = stats.rankdata(gold[draw])
            found.append(np.corrcoef(two, target)[0, 1] - np.corrcoef(one, target)[0, 1])
        else:
            found.append((own[OTHER] - own[FIRST])[draw].mean())
    low, high = np.quantile(found, [0.025, 0.975])
    assert row["held_low"] == pytest.approx(low, abs=0.08 * (high - low))
    assert row["held_high"] == pytest.approx(high, abs=0.08 * (high - low))


def test_tasks_weigh_alike_whatever_their_items_and_subsets():
    random = np.random.default_rng(3)
    sizes = {("many", "a"): (300, 0.3), ("few", "a"): (40, 0.1), ("few", "b"): (60, -0.02)}
    tables = []
    for place, (n, gain) in sizes.items():
        before = random.random(n)
        tables.append(table({FIRST: before, OTHER: before + gain + random.normal(0, 0.1, n)}, *place))
    parts = split(pl.concat(tables), ["many", "few"], 0.5, 0)
    first, row = choose(parts, [FIRST, OTHER], 0)
    weights = np.array([1 / 2, 1 / 4, 1 / 4])
    for name, part in (("dev", parts.dev), ("held", parts.held)):
        own = [half.values for task in ("many", "few") for half in part[task]]
        moved = [values[OTHER] - values[FIRST] for values in own]
        errors = np.array([each.std(ddof=1) / np.sqrt(len(each)) for each in moved])
        assert row[f"{name}_items"] == first[f"{name}_items"] == sum(map(len, moved))
        assert row[f"{name}_score"] == pytest.approx(weights @ [values[OTHER].mean() for values in own], rel=1e-12)
        assert first[f"{name}_score"] == pytest.approx(weights @ [values[FIRST].mean() for values in own], rel=1e-12)
        assert row[f"{name}_change"] == pytest.approx(weights @ [each.mean() for each in moved], rel=1e-12)
        assert row[f"{name}_change_se"] == pytest.approx(np.sqrt(((weights * errors) ** 2).sum()), rel=1e-12)
        assert (first[f"{name}_change"], first[f"{name}_change_se"]) == (0, 0)
    # The interval, by a normal law: over hundreds of items that is near.
    error = row["held_change_se"]
    assert row["held_low"] == pytest.approx(row["held_change"] - 1.96 * error, abs=0.15 * error)
    assert row["held_high"] == pytest.approx(row["held_change"] + 1.96 * error, abs=0.15 * error)


def test_each_task_is_resampled_by_itself():
    """Were both drawn alike, items that differ in opposite ways would cancel, and the interval would be one point."""
    moved = np.random.default_rng(5).normal(0, 0.3, 100)
    before = np.zeros(100)
    both = {name: [Half({FIRST: before, OTHER: 0.2 + sign * moved}, None)] for name, sign in (("one", 1), ("two", -1))}
    row = choose(Parts(both, both, []), [FIRST, OTHER], 0)[1]
    expected = np.sqrt(2) * moved.std(ddof=1) / 10 / 2
    assert (row["held_high"] - row["held_low"]) / 2 == pytest.approx(1.96 * expected, rel=0.1)


def test_queries_that_share_a_document_have_its_error_and_a_wider_interval():
    """Twenty documents with six queries each, which move alike."""
    ids, generator = [f"i{k}" for k in range(120)], np.random.default_rng(6)
    document = {name: f"d{k % 20}" for k, name in enumerate(ids)}
    moved = generator.normal(0, 0.2, 20)[np.arange(120) % 20] + generator.normal(0, 0.05, 120)
    relevant = pl.DataFrame(
        {"task": "one", "split": "test", "subset": "default", "query": ids, "document": document.values()}
    )
    items = table({FIRST: np.zeros(120), OTHER: moved}, ids=ids)
    errors, widths = [], []
    for known in (None, relevant, relevant.with_columns(document=pl.col("query"))):
        ((half,),) = (split(items, ["one"], 0.5, 0, known).held["one"],)
        errors.append(half.change(OTHER, FIRST, 0).se)
        low, high = np.quantile(half.resampled(OTHER, FIRST, np.random.default_rng(0)), [0.025, 0.975])
        widths.append((high - low) / 3.92)
    held = [name for name in ids if keyed_hash(f"held out {name}", 0) / 2**64 < 0.5]
    own = moved[[ids.index(name) for name in held]]
    assert errors[0] == errors[2] == pytest.approx(own.std(ddof=1) / np.sqrt(len(own)))
    assert errors[1] == pytest.approx(oracles.sharing_error(own, [{document[name]} for name in held]))
    assert errors[1] > 1.4 * errors[0]
    np.testing.assert_allclose(widths, errors, rtol=0.05)


# ---------------------------------------------------------------------------------------------- classifications


def classified(right, task="one"):
    """Items of a classification: `right` by candidate, (texts, experiments)."""
    rows = [
        {"temperature": candidate, "task": task, "split": "test", "subset": "default", "item": f"i{k}", "window": False,
         "predicted": None, "gold": None, "value": float(np.mean(own)), "right": [bool(one) for one in own]}
        for candidate, texts in right.items()
        for k, own in enumerate(texts)
    ]  # fmt: skip
    types = {"predicted": pl.Float64, "gold": pl.Float64}
    return pl.DataFrame(rows, schema_overrides=types)


def test_a_classifications_experiments_are_parted_as_its_texts_are():
    right = np.random.default_rng(0).random((60, 10)) < 0.7
    parts = split(classified({FIRST: right, OTHER: ~right}), ["one"], 0.5, 0)
    ((dev,), (held,)) = parts.dev["one"], parts.held["one"]
    chosen = np.array([keyed_hash(f"held out i{k}", 0) / 2**64 < 0.5 for k in range(60)])
    np.testing.assert_allclose(dev.values[FIRST], right[~chosen][:, 0::2].mean(1))
    np.testing.assert_allclose(held.values[FIRST], right[chosen][:, 1::2].mean(1))
    np.testing.assert_allclose(held.drawn[OTHER], 1 - right[chosen][:, 1::2].mean(0))
    moved = held.drawn[OTHER] - held.drawn[FIRST]
    change = held.change(OTHER, FIRST, 0)
    differences = held.values[OTHER] - held.values[FIRST]
    assert change.value == pytest.approx(differences.mean())
    expected = differences.var(ddof=1) / len(differences) + moved.var(ddof=1) / len(moved)
    assert change.se == pytest.approx(np.sqrt(expected))


@pytest.mark.proof
def test_lucky_draws_to_learn_from_do_not_confirm_a_candidate():
    """No candidate is better; each experiment is harder or easier for each by chance, alike for all texts of it."""
    generator, confirmed, times = np.random.default_rng(5), 0, 60
    for _ in range(times):
        skill = {name: 0.7 + generator.normal(0, 0.03, 10) for name in (FIRST, "a", "b", "c", "d")}
        easy = generator.random((400, 1))
        right = {name: (easy + generator.normal(0, 0.2, (400, 10))) / 1.4 + 0.1 < own for name, own in skill.items()}
        rows = choose(split(classified(right), ["one"], 0.5, 0), list(right), 0)
        confirmed += not rows[0]["chosen"]
    # One-sided 2.5 %: a binomial bound that a share of 10 % or more would break.
    assert confirmed <= stats.binom(times, 0.025).ppf(0.999)


def test_windows_of_one_text_are_resampled_together():
    sources = 40
    ids = [f"t{k}[{j}:{j + 5}]" for k in range(sources) for j in range(10)]
    shared = np.repeat(np.random.default_rng(1).normal(0, 1, sources), 10)
    rows = table({FIRST: np.zeros(400), OTHER: shared}, ids=ids, windows=[True] * 400)
    half = split(rows, ["one"], 0.5, 0).held["one"][0]
    texts = half.values[OTHER][::10]
    wanted = texts.std(ddof=1) / np.sqrt(len(texts))
    assert half.change(OTHER, FIRST, 0).se == pytest.approx(wanted, rel=1e-9)
    assert half.resampled(OTHER, FIRST, np.random.default_rng(0)).std() == pytest.approx(wanted, rel=0.08)
