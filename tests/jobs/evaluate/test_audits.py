"""Finished audits beside scores (S2 Fig 5, Tables 1 and 2): against numbers worked out here."""

import math
from types import SimpleNamespace

import numpy as np
import oracles
import pyarrow as pa
import pytest
from nights_by_hand import finished_audit, summary_row
from prepared import laid_out, scoped

from tempscale import Temperature
from tempscale.collapse.length import interval_of
from tempscale.stats.errors import documents_error
from tempscale_jobs.audit import summary
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import UsageError
from tempscale_jobs.evaluate.audits import AuditFigures, against_backbones, correlations, measures
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.socm import finish
from tempscale_jobs.steps.socm_tables import Sample
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import COLLAPSE_SUMMARY

BY_LENGTH = "by_length(0: 1.0, 32: 0.8)"


def figures(socm, error, spread, cosine=0.5):
    names = ("socm_mean", "socm_se_superpopulation", "spread_mean", "cosine_mean")
    return dict(zip(names, (socm, error, spread, cosine), strict=True))


@pytest.fixture
def finished(tmp_path):
    """A function that leaves a finished audit of some rows."""
    return lambda name, rows, **record: finished_audit(tmp_path / name, *rows, **record)


def sampled(root, model, slug, values, groups=None, documents=None):
    """Leave the texts' own means of SOCM as the step leaves them."""
    columns = {"text_id": list(values), "group": [0] * len(values), "inside": list(values.values())}
    place = f"partials/socm/model={model}/temperature={slug}"
    columns |= {"overall": columns["inside"], "document": documents or [None] * len(values)}
    Storage(root).write_table(f"{place}/text_means.parquet", parts.TEXT_MEANS.build(columns))
    Storage(root).write_json(f"{place}/done.json", {"groups": groups, "correction": 0.5})


def score(model, value, temperature="1.0", task=None):
    return {"model": "of a score", "fingerprint": model * 2, "temperature": temperature, "task": task, "score": value}


# --- what audits measured ---------------------------------------------------------------------------------------------


def test_every_model_and_temperature_of_every_folder_is_told(finished):
    rows = [summary_row("a", **figures(0.3, 0.01, 1.5)), summary_row("a", BY_LENGTH, **figures(0.2, 0.02, 1.4, 0.6))]
    one = finished("one", rows)
    two = finished("two", [summary_row("b", cosine_mean=0.25), summary_row("c", **figures(0.1, None, 0.9))], command="audit")
    assert measures([two, one]) == [
        AuditFigures("b", "bb", "1.0", None, None, None, 0.25, two),
        AuditFigures("c", "cc", "1.0", 0.1, None, 0.9, 0.5, two),
        AuditFigures("a", "aa", "1.0", 0.3, 0.01, 1.5, 0.5, one),
        AuditFigures("a", "aa", BY_LENGTH, 0.2, 0.02, 1.4, 0.6, one),
    ]
    assert measures([]) == []


def test_folders_that_hold_no_finished_audit_are_named(finished, tmp_path):
    Storage(str(tmp_path / "begun")).write_json("begun.json", {})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("no json")
    Storage(str(tmp_path / "other")).write_json("run.json", {"loss": 0.1})
    finished("pairs", [summary_row("a")], command="pairs")
    finished("given", [summary_row("given")], models={"given": {"fingerprint": ""}})
    good = finished("good", [summary_row("g")])
    named = {
        "absent": "run.json", "begun": "not finished", "broken": "no audit", "other": "no audit", "pairs": "tempscale pairs",
        "given": "embeddings",
    }  # fmt: skip
    for name, what in named.items():
        with pytest.raises(UsageError, match=f"^'{tmp_path / name}' .*{what}"):
            measures([good, str(tmp_path / name)])
    with pytest.raises(UsageError, match=r"'memory://\*\*\*@audits/none'"):
        measures(["memory://me:secret@audits/none"])


def test_the_same_model_and_temperature_twice_is_a_mistake(finished):
    one = finished("one", [summary_row("a"), summary_row("b")])
    two = finished("two", [summary_row("b", "0.8"), summary_row("b")])
    three = finished("three", [summary_row("c")], models={"c": {"fingerprint": "aa"}})
    for folders, named in (
        ([one, two], f"'{one}' and '{two}' .* 'b' under temperature 1.0"),
        ([one, three], rf"'{one}' and '{three}' .* 'a' \(also called 'c'\) under temperature 1.0"),
        ([one, f"{one}/"], f"^'{one}/' .*twice"),
    ):
        with pytest.raises(UsageError, match=named):
            measures(folders)


# --- correlations -----------------------------------------------------------------------------------------------------


def test_measures_are_correlated_with_scores_task_by_task(finished):
    # SOCM falls as the mean score rises but for one swap: Σd² from perfect is 2, ρ = −(1 − 6·2/60) = −0.8. Of 24 pairings
    # one has ρ = 1, three .8 (one swap of neighbours), and as many −1 and −.8: p = 8/24. t = .8·√(2/.36) = 1.8856.
    socm, spread = (0.4, 0.3, 0.2, 0.1), (1.0, 1.2, 1.4, 1.6)
    names = "abcd"
    rows = [
        summary_row(m, t, **figures(s, 0.01, p)) for m, s, p in zip(names, socm, spread, strict=True) for t in ("1.0", "0.8")
    ]
    measured = measures([finished("one", rows[:2]), finished("two", rows[2:])])
    means = dict(zip(names, (50.0, 52.0, 51.0, 60.0), strict=True))
    scores = [score(m, value) for m, value in means.items()]
    scores += [score(m, 1.0, task="flat") for m in names]
    scores += [score(m, -value, task="down") for m, value in list(means.items())[:3]]
    scores += [score("a", 1.0, task="rare"), score("b", 2.0, task="rare"), score("other", 3.0, task="rare")]
    found = correlations(measured, scores)
    keys = [(r["temperature"], r["task"], r["measure"], r["models"]) for r in found]
    assert keys == [
        ("1.0", task, measure, models)
        for task, models in ((None, 4), ("flat", 4), ("down", 3))
        for measure in ("socm_mean", "spread_mean")
    ]
    assert [r["rho"] for r in found[:2]] == pytest.approx([-0.8, 0.8])
    assert [r["p_exact"] for r in found[:2]] == [8 / 24] * 2
    # At two degrees of freedom P(|T| > t) = 1 − t/√(2 + t²).
    t = 0.8 * math.sqrt(2 / 0.36)
    assert [r["p_t"] for r in found[:2]] == pytest.approx([1 - t / math.sqrt(2 + t * t)] * 2)
    for flat in found[2:4]:
        assert (flat["rho"], flat["p_exact"], flat["p_t"]) == (None, None, None)
    # Ranks of SOCM 3, 2, 1 and of −score 3, 1, 2.
    assert (found[4]["rho"], found[4]["p_exact"]) == (pytest.approx(0.5), 1.0)
    assert set(found[0]) == {"temperature", "task", "measure", "models", "rho", "p_exact", "p_t"}


def test_a_correlation_keeps_to_models_that_have_both_under_its_temperature(finished):
    socm = (0.1, 0.2, 0.3, None, 0.5)
    rows = [summary_row(m, "0.8", **figures(s, 0.01, None)) for m, s in zip("abcde", socm, strict=True)]
    measured = measures([finished("one", [*rows, summary_row("a", **figures(0.9, 0.1, 2.0))])])
    scores = [score(m, s, "0.8") for m, s in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 0.0), ("e", None))]
    scores += [score("c", -9.0), score("b", -9.0), score("a", -9.0)]  # Under a temperature where one model was measured.
    (only,) = correlations(measured, scores)
    assert (only["temperature"], only["measure"], only["models"], only["rho"]) == ("0.8", "socm_mean", 3, 1.0)
    assert only["p_exact"] == 2 / 6
    assert correlations(measured, []) == correlations([], scores) == []


# --- against backbones ------------------------------------------------------------------------------------------------

TUNED = {"t1": 0.30, "t2": 0.26, "t3": 0.16, "t4": 0.24}
BASE = {"t4": 0.40, "t1": 0.52, "t3": 0.36, "t2": 0.44}
"""Differences −.22, −.18, −.20, −.16 by text: mean −.19, variance .002/3, error 2·√(.002/3/4) = .02582."""
PAIRED, UNPAIRED = 2 * math.sqrt(0.002 / 3 / 4), 0.05
CHANGES = ("socm_change", "socm_change_se", "spread_change", "score_change")


@pytest.fixture
def pair(finished):
    """A backbone and what was trained from it, audited together, under two temperatures."""
    rows = [summary_row("base", **figures(0.43, 0.04, 1.8)), summary_row("base", BY_LENGTH, **figures(0.5, 0.04, 1.9))]
    rows += [summary_row("tuned", **figures(0.24, 0.03, 1.1)), summary_row("tuned", "0.8", **figures(0.2, 0.03, 1.0))]
    return finished("pair", rows)


def test_a_model_stands_beside_its_backbone_with_paired_errors(pair):
    sampled(pair, "base", "1.0", BASE)
    sampled(pair, "tuned", "1.0", TUNED)
    scores = [score("base", 40.0), score("tuned", 55.5), score("tuned", 99.0, task="one"), score("tuned", 54.0, "0.8")]
    found = against_backbones(measures([pair]), scores, {"tuned": "base"})
    assert [(r["model"], r["temperature"], r["backbone"]) for r in found] == [
        ("base", "1.0", None), ("base", BY_LENGTH, None), ("tuned", "1.0", "base"), ("tuned", "0.8", "base"),
    ]  # fmt: skip
    values = ("socm_mean", "socm_se", "spread_mean", "score")
    assert [tuple(r[name] for name in values) for r in found] == [
        (0.43, 0.04, 1.8, 40.0), (0.5, 0.04, 1.9, None), (0.24, 0.03, 1.1, 55.5), (0.2, 0.03, 1.0, 54.0),
    ]  # fmt: skip
    assert [found[2][name] for name in CHANGES] == pytest.approx([-0.19, PAIRED, -0.7, 15.5])
    # A backbone has none of its own, and was not measured at 0.8.
    for other in (*found[:2], found[3]):
        assert [other[name] for name in CHANGES] == [None] * 4
    assert set(found[0]) == {"model", "temperature", "backbone", *values, *CHANGES}


THREE = {text: TUNED[text] for text in ("t1", "t2", "t3")}
UNLIKE = {
    "no partials": ({}, {}), "other texts": (BASE, THREE | {"t5": 0.24}), "fewer texts": (BASE, THREE),
    "by interval": (BASE, TUNED), "means are gone": (BASE, TUNED),
    "too few": ({"t1": 0.52, "t2": 0.44}, {"t1": 0.30, "t2": 0.26}),
}  # fmt: skip
"""Means of both models' texts whose differences by text have no error."""


@pytest.mark.parametrize("why", UNLIKE)
def test_without_the_same_texts_errors_add_in_squares(pair, why):
    # √(.03² + .04²) = .05.
    groups = {"0": {"correction": 1.0, "texts": 4}} if why == "by interval" else None
    for model, values in zip(("base", "tuned"), UNLIKE[why], strict=True):
        if values:
            sampled(pair, model, "1.0", values, groups)
    if why == "means are gone":
        Storage(pair).remove("partials/socm/model=base/temperature=1.0/text_means.parquet")
    found = {(r["model"], r["temperature"]): r for r in against_backbones(measures([pair]), [], {"tuned": "base"})}
    assert found["tuned", "1.0"]["socm_change_se"] == pytest.approx(UNPAIRED)
    assert found["tuned", "1.0"]["socm_change"] == pytest.approx(-0.19)


def test_models_of_two_audits_are_compared_with_errors_that_add(finished):
    of_base = [summary_row("base", **figures(0.43, 0.04, 1.8)), summary_row("deep", **figures(0.4, None, 1.0))]
    of_tuned = [summary_row("tuned", **figures(0.24, 0.03, None)), summary_row("flat", **figures(None, None, 2.0))]
    base, tuned = finished("base", of_base), finished("tuned", of_tuned)
    sampled(base, "base", "1.0", BASE)
    sampled(tuned, "tuned", "1.0", TUNED)
    backbones = {"tuned": "base", "flat": "base", "base": "deep"}
    rows = {r["model"]: r for r in against_backbones(measures([tuned, base]), [score("base", 1.0)], backbones)}
    found = {model: [row[name] for name in CHANGES] for model, row in rows.items()}
    assert found["tuned"] == [pytest.approx(-0.19), pytest.approx(UNPAIRED), None, None]
    assert found["flat"] == [None, None, pytest.approx(0.2), None]
    # Of a chain each stands beside the one before; an error that is not known is not told.
    assert found["base"] == [pytest.approx(0.03), None, pytest.approx(0.8), None]
    assert rows["deep"]["backbone"] is None


def test_backbones_that_cannot_be_meant_are_named(finished, pair):
    again = finished("again", [summary_row("tuned")], models={"tuned": {"fingerprint": "another"}})
    for backbones, folders, named in (
        ({"tuned": "bse"}, [pair], "'bse', .*: 'base', 'tuned'"),
        ({"tund": "base"}, [pair], "'tund', .*: 'base', 'tuned'"),
        ({"tuned": "base"}, [], "'tuned', .*: none"),
        ({"tuned": "tuned"}, [pair], "'tuned' as its own"),
        ({"tuned": "base"}, [pair, again], "'tuned', .* 2 models"),
    ):
        with pytest.raises(UsageError, match=named):
            against_backbones(measures(folders), [], backbones)


# --- what the steps of an audit leave ---------------------------------------------------------------------------------

EDGES, TEXTS = (0, 32), 60


def stepped(root, temperature):
    """A finished audit of two models, its SOCM left by the step itself; returns each model's own means by text.

    Models have other tokens, so each has its texts in another order. What collapses under one does under the other.
    """
    random = np.random.default_rng(5)
    settings = {"out": str(root), "embedding": {"temperatures": [temperature]}}
    shared, rows, means, orders = random.random((TEXTS, TEXTS)), [], {}, []
    models = [Model(label, label, label * 2, 512) for label in ("base", "tuned")]
    found = resolve(settings | {"corpus": {"source": "docstrings:scipy"}})
    run = Run(Storage(str(root)), models, found.temperatures(), "2026-11-22", True)
    for model in models:
        tokens = np.sort(random.integers(5, 64, TEXTS))
        ids = np.array([f"t{k}" for k in random.permutation(TEXTS)], dtype=object)
        own = shared + 0.3 * random.random((TEXTS, TEXTS))
        number = [int(text[1:]) for text in ids]
        d_mu, d_sigma = ((matrix + matrix.T)[np.ix_(number, number)] / 4 for matrix in (own, own**2))
        for matrix in (d_mu, d_sigma):
            np.fill_diagonal(matrix, np.nan)
        value = (1 - d_mu) * d_sigma
        interval = interval_of(tokens, EDGES)
        layout = laid_out(ids, tokens, interval, EDGES)
        sample = Sample(ids, tokens, interval, d_mu, d_sigma, value)
        (tau,) = run.temperatures
        finish(scoped(run, model, layout, **settings), tau, sample, np.eye(TEXTS))
        samples = {}
        summed = summary.socm_figures(run, model, tau, layout, samples)
        summed["socm_se_superpopulation"] = samples["socm_mean"].errors()[0]
        rows.append(summary_row(model.label, tau.canonical, spread_mean=1.0) | summed)
        means[model.label] = dict(zip(ids, (sum(v for v in own if v == v) / (TEXTS - 1) for own in value), strict=True))
        orders.append(ids.tolist())
    assert orders[0] != orders[1]
    run.storage.write_table("tables/collapse_summary.parquet", COLLAPSE_SUMMARY.build_rows(rows))
    fingerprints = {model.label: {"fingerprint": model.fingerprint} for model in models}
    record = {"models": fingerprints, "config": {"corpus": {}}}
    run.storage.write_json("run.json", record)
    return means


@pytest.mark.parametrize("temperature", [1.0, {"by_length": {0: 1.0, 32: 0.8}}])
def test_errors_are_paired_by_what_the_step_left(tmp_path, temperature):
    means = stepped(tmp_path, temperature)
    base, tuned = against_backbones(measures([str(tmp_path)]), [], {"tuned": "base"})
    for told in (base, tuned):
        own = list(means[told["model"]].values())
        assert told["socm_mean"] == pytest.approx(sum(own) / TEXTS, abs=1e-12)
        assert told["socm_se"] == pytest.approx(oracles.within_error(own))
    differences = [means["tuned"][text] - means["base"][text] for text in means["base"]]
    assert tuned["socm_change"] == pytest.approx(sum(differences) / TEXTS, abs=1e-12)
    assert tuned["socm_change_se"] == pytest.approx(oracles.within_error(differences))
    # The same texts move both: errors that added in squares would be far larger.
    assert 0 < tuned["socm_change_se"] < 0.7 * math.hypot(base["socm_se"], tuned["socm_se"])


@pytest.mark.parametrize(("drawn", "paired"), [("same", True), ("other", False)])
def test_errors_of_groups_are_paired_where_the_groups_are_the_same(tmp_path, drawn, paired):
    stepped(tmp_path, 1.0)
    storage, random, replicates = Storage(str(tmp_path)), np.random.default_rng(3), {}
    shared = random.normal(0.5, 0.01, 20)
    for label in ("base", "tuned"):
        at = f"partials/socm/model={label}/temperature={Temperature.of(1.0).slug}"
        replicates[label] = shared + random.normal(0, 0.001, 20)
        means = {"socm_mean": [0.5, 0.6] if label == "base" else [0.55, 0.7]}
        done = {"way": "groups", "groups": 20, "drawn": drawn if label == "base" else "same", "interval_means": means}
        storage.write_json(f"{at}/done.json", done | {"interval_covariance": [[4e-4, -4e-4], [-4e-4, 4e-4]]})
        storage.write_table(f"{at}/replicates.parquet", pa.table({"socm_mean": replicates[label]}))
    base, tuned = against_backbones(measures([str(tmp_path)]), [], {"tuned": "base"})
    moved = replicates["tuned"] - replicates["base"]
    # Means moved by .05 and .1 in the two intervals: 4e-4·(.1 − .05)² besides.
    expected = math.sqrt(19 / 20 * np.square(moved - moved.mean()).sum() + 4e-4 * 0.05**2)
    in_squares = math.hypot(base["socm_se"], tuned["socm_se"])
    assert tuned["socm_change_se"] == pytest.approx(expected if paired else in_squares)


# --- beside the scores of a run ---------------------------------------------------------------------------------------


def test_scores_of_a_run_stand_beside_what_audits_measured(finished):
    """SOCM .1, .2, .3 against scores .9, .5, .7 of one task: d = 2, 1, 1, so ρ = 1 − 6·6/(3·8) = −.5."""
    pytest.importorskip("mteb")
    from tempscale_jobs.evaluate.summary import ComparedAudits, compare

    rows = [summary_row(m, **figures(s, 0.01, 1 + s)) for m, s in zip("abc", (0.1, 0.2, 0.3), strict=True)]
    audit = finished("audit", rows)
    models = [Model(name, name, name * 2, 512) for name in "abc"]
    run = SimpleNamespace(models=models, temperatures=[Temperature(1.0)])
    evaluation = SimpleNamespace(run=run, units=[SimpleNamespace(name="x"), SimpleNamespace(name="y")])
    scores = {("a", "x"): 0.9, ("b", "x"): 0.5, ("c", "x"): 0.7, ("a", "y"): 0.1, ("c", "y"): 0.4}  # b has no score of y.
    cells = {(m, "1.0", task): SimpleNamespace(score=lambda value=value: value) for (m, task), value in scores.items()}
    found, models = compare(evaluation, ComparedAudits([audit], {"c": "a"}), cells)
    # Of y, and of the mean over both, only two models are known.
    assert {(one["task"], one["models"]) for one in found} == {("x", 3)}
    assert {one["measure"]: one["rho"] for one in found} == pytest.approx({"socm_mean": -0.5, "spread_mean": -0.5})
    by_model = {one["model"]: one for one in models}
    assert [by_model[m]["score"] for m in "abc"] == [pytest.approx(0.5), None, pytest.approx(0.55)]
    assert by_model["c"]["backbone"] == "a"
    assert by_model["c"]["score_change"] == pytest.approx(0.05)
    assert by_model["c"]["socm_change"] == pytest.approx(0.2)
    assert by_model["c"]["socm_change_se"] == pytest.approx(math.hypot(0.01, 0.01))
    assert by_model["a"]["score_change"] is None
    assert by_model["a"]["tau"] == 1.0
    assert compare(evaluation, ComparedAudits([], {}), {}) == ([], [])


def test_a_change_of_models_on_texts_in_documents_has_the_error_of_documents(pair):
    values, documents = np.random.default_rng(0).normal(size=(2, 60)), np.repeat(np.arange(20), 3)
    for model, own in zip(("base", "tuned"), values, strict=True):
        sampled(pair, model, "1.0", {f"t{k}": value for k, value in enumerate(own)}, documents=documents.tolist())
    tuned = against_backbones(measures([pair]), [], {"tuned": "base"})[2]
    expected = documents_error([values[0] - values[1]], [2.0], [documents])
    assert tuned["socm_change_se"] == pytest.approx(expected)
    assert expected != pytest.approx(oracles.within_error(values[0] - values[1]), rel=0.01)
