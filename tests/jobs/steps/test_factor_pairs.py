"""The most collapsed pairs from factors in parts: against d×d matrices of all pairs, whatever bounds leave out."""

import numpy as np
import oracles
import pytest
import torch

from tempscale import Temperature
from tempscale.second_order.moments import covariance_factor
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import factor_pairs
from tempscale_jobs.steps.factor_pairs import Candidates, FactorFiles, PairPlaces, most_collapsed
from tempscale_jobs.steps.factors import factor_table, with_principal_rows
from tempscale_jobs.steps.socm_tables import Named

TEXTS, DIM, KIND, WANTED = 40, 24, "partials/some", 6
FIRST, SECOND = np.triu_indices(TEXTS, 1)


class Here:
    """A cluster of this process alone, which keeps the order of the pieces."""

    def ordered(self, pieces):
        return pieces


@pytest.fixture(scope="module")
def clouds():
    """Token embeddings of texts of many lengths, whose axes differ in length."""
    random, scales = np.random.default_rng(0), np.linspace(2, 0.05, DIM)
    lengths = random.integers(1, 40, TEXTS)
    return [(random.normal(size=(n, DIM)) * scales * random.uniform(0.3, 1) + 0.5).astype(np.float32) for n in lengths]


@pytest.fixture(scope="module")
def brute(clouds):
    """d_μ and d_Σ of all pairs in float64."""
    pairs = [(clouds[i], clouds[j]) for i, j in zip(FIRST, SECOND, strict=True)]
    return np.array([oracles.d_mu(*pair) for pair in pairs]), np.array([oracles.d_sigma(*pair) for pair in pairs])


@pytest.fixture
def kept(tmp_path):
    """A function that leaves the factors of texts in parts; without `turned` their rows are those of tokens."""

    def keep(texts, turned=True):
        run = Run(Storage(str(tmp_path)), [Model("m", "m", "", 64)], [Temperature(1.0)], "2026-11-30")
        for number, places in enumerate(np.array_split(np.arange(len(texts)), 6)):
            moments = [covariance_factor(torch.from_numpy(texts[k])) for k in places]
            lengths = [len(texts[k]) for k in places]
            table = factor_table([f"t{k}" for k in places], lengths, with_principal_rows(moments) if turned else moments)
            run.storage.write_table(run.part(KIND, run.models[0], run.temperatures[0], number), table)
        return FactorFiles.of(run, run.models[0], run.temperatures[0], KIND)

    return keep


@pytest.fixture
def files(kept, clouds):
    return kept(clouds)


@pytest.fixture
def asked(monkeypatch):
    """The numbers of pairs that each pass asked for, with its rows; tasks run in this process."""
    passes = []

    def run_tasks(cluster, function, pieces):
        for piece in pieces:
            passes.append((piece.arguments[3], len(piece.arguments[2][0])))
            yield piece, function(*piece.arguments)

    monkeypatch.setattr(factor_pairs, "run_tasks", run_tasks)
    return passes


def search(files, near, thresholds=(0.0, 0.0), **analysis):
    texts = len(files.part)
    first, second = np.triu_indices(texts, 1)
    wanted = PairPlaces(np.array([f"t{k}" for k in range(texts)], dtype=object), first, second)
    masks = {"socm": np.ones(len(first), bool), "same_mean": near}
    candidates = {name: Candidates(mask, least) for (name, mask), least in zip(masks.items(), thresholds, strict=True)}
    return most_collapsed(Here(), files, wanted, candidates, Analysis.model_validate({"worst_pairs": WANTED} | analysis))


@pytest.mark.parametrize("given", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("analysis", [{}, {"socm_alpha": 2.0, "socm_beta": 0.5}], ids=["plain", "exponents"])
def test_the_best_pairs_are_those_of_all_pairs_and_few_are_exact(files, brute, asked, monkeypatch, seed, given, analysis):
    """With thresholds that are not known, half as large as the last value that is wanted, and that value."""
    monkeypatch.setattr(factor_pairs, "_ROWS", (4, 12))
    monkeypatch.setattr(factor_pairs, "_FEW", 1)
    near = np.random.default_rng(seed).random(len(FIRST)) < 0.3
    d_mu, d_sigma = brute
    socm = (1 - d_mu) ** analysis.get("socm_alpha", 1) * d_sigma ** analysis.get("socm_beta", 1)
    truth = {"socm": socm, "same_mean": np.where(near, d_sigma, -1)}
    found = search(files, near, [given * np.sort(values)[-WANTED] for values in truth.values()], **analysis)
    ids, tokens = np.array([f"t{k}" for k in range(TEXTS)], dtype=object), np.zeros(TEXTS)
    for ranking, values in truth.items():
        best = np.argsort(-values)[:WANTED]
        rows = found.best(ranking, np.zeros(len(FIRST)), Named(ids, tokens), WANTED)
        names = [tuple(sorted((f"t{FIRST[k]}", f"t{SECOND[k]}"))) for k in best]
        assert [(row["text_id_a"], row["text_id_b"]) for row in rows] == names
        score = "socm" if ranking == "socm" else "d_sigma"
        assert [row[score] for row in rows] == pytest.approx(values[best], abs=1e-5)
    assert WANTED <= len(found.places) < len(FIRST) / 3
    assert sum(pairs for rows, pairs in asked if rows == 12) < sum(pairs for rows, pairs in asked if rows == 4)


@pytest.mark.parametrize("noise", [1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("seed", range(4))
def test_of_texts_that_are_nearly_the_same_no_wanted_pair_is_lost_to_rounding(kept, asked, monkeypatch, seed, noise):
    """Their d_Σ are about as small as what float32 loses of a trace."""
    monkeypatch.setattr(factor_pairs, "_FEW", 1)
    random = np.random.default_rng(seed)
    text = random.normal(size=(30, DIM)) + 0.5
    files = kept([(text + noise * random.normal(size=text.shape)).astype(np.float32) for _ in range(TEXTS)])
    near = np.ones(len(FIRST), bool)
    found = search(files, near)
    monkeypatch.setattr(factor_pairs, "_FEW", len(FIRST))
    every = search(files, near)
    for ranking in ("socm", "same_mean"):
        scores = found.scores(ranking)
        assert len(scores) >= WANTED
        best = np.sort(every.scores(ranking))[-WANTED:]
        assert np.sort(scores)[-WANTED:] == pytest.approx(best, abs=1e-6)
        assert set(np.flatnonzero(every.scores(ranking) >= best[0])) <= set(found.places[found.remaining[ranking]])


def test_factors_in_any_order_of_rows_are_bounded_too(kept, clouds, brute, asked, monkeypatch):
    """Those of a run that another version began, and with the published code's ε, which makes d_Σ smaller."""
    monkeypatch.setattr(factor_pairs, "_ROWS", (4, 12))
    monkeypatch.setattr(factor_pairs, "_FEW", 1)
    found = search(kept(clouds, turned=False), np.ones(len(FIRST), bool), socm_regularization=1e-9)
    best = np.argsort(-brute[1])[:WANTED]
    assert set(best) <= set(found.places[found.remaining["same_mean"]])


def test_pairs_of_factors_shorter_than_the_first_round_are_decided_in_it(files, asked, monkeypatch):
    monkeypatch.setattr(factor_pairs, "_FEW", 1)  # 64 rows are all rows here.
    found = search(files, np.zeros(len(FIRST), bool))
    assert WANTED <= found.remaining["socm"].sum() <= 2 * WANTED
    assert found.remaining["same_mean"].sum() == 0


def test_few_pairs_are_measured_without_a_bound(files, brute, asked, monkeypatch):
    monkeypatch.setattr(factor_pairs, "_FEW", len(FIRST))
    found = search(files, np.ones(len(FIRST), bool))
    assert {rows for rows, _ in asked} == {None}
    assert sum(pairs for _, pairs in asked) == len(FIRST)
    np.testing.assert_allclose(found.values.value, (1 - brute[0]) * brute[1], atol=1e-5)


def test_tasks_have_so_many_pairs_at_most_and_the_same_values(files, asked, monkeypatch):
    near = np.ones(len(FIRST), bool)
    together = search(files, near).values
    monkeypatch.setattr(factor_pairs, "_TASK_PAIRS", 100)
    asked.clear()
    apart = search(files, near).values
    assert max(pairs for _, pairs in asked) <= 100
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
