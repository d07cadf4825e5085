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
    """SOCM and d_Σ of all pairs in float64."""
    d_mu = np.array([oracles.d_mu(clouds[i], clouds[j]) for i, j in zip(FIRST, SECOND, strict=True)])
    d_sigma = np.array([oracles.d_sigma(clouds[i], clouds[j]) for i, j in zip(FIRST, SECOND, strict=True)])
    return {"socm": (1 - d_mu) * d_sigma, "same_mean": d_sigma}


@pytest.fixture
def files(tmp_path, clouds):
    run = Run(Storage(str(tmp_path)), [Model("m", "m", "", 64)], [Temperature(1.0)], "2026-11-30")
    for number, own in enumerate(np.array_split(np.arange(TEXTS), 6)):
        moments = with_principal_rows([covariance_factor(torch.from_numpy(clouds[k])) for k in own])
        table = factor_table([f"t{k}" for k in own], [len(clouds[k]) for k in own], moments)
        run.storage.write_table(run.part(KIND, run.models[0], run.temperatures[0], number), table)
    return FactorFiles.of(run, run.models[0], run.temperatures[0], KIND)


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


def search(files, near, thresholds=(0.0, 0.0)):
    wanted = PairPlaces(np.array([f"t{k}" for k in range(TEXTS)], dtype=object), FIRST, SECOND)
    masks = {"socm": np.ones(len(FIRST), bool), "same_mean": near}
    candidates = {
        name: Candidates(mask, threshold) for (name, mask), threshold in zip(masks.items(), thresholds, strict=True)
    }
    return most_collapsed(Here(), files, wanted, candidates, Analysis.model_validate({"worst_pairs": WANTED}))


@pytest.mark.parametrize("given", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_pairs_are_those_of_all_pairs_and_few_are_exact(files, brute, asked, monkeypatch, seed, given):
    """With thresholds that are not known, half as large as the last value that is wanted, and that value."""
    monkeypatch.setattr(factor_pairs, "_ROWS", (4, 12))
    monkeypatch.setattr(factor_pairs, "_FEW", 1)
    near = np.random.default_rng(seed).random(len(FIRST)) < 0.3
    truth = {"socm": brute["socm"], "same_mean": np.where(near, brute["same_mean"], -1)}
    thresholds = [given * np.sort(values)[-WANTED] for values in truth.values()]
    found = search(files, near, thresholds)
    ids, tokens = np.array([f"t{k}" for k in range(TEXTS)], dtype=object), np.zeros(TEXTS)
    for ranking, values in truth.items():
        best = np.argsort(-values)[:WANTED]
        rows = found.best(ranking, np.zeros(len(FIRST)), Named(ids, tokens), WANTED)
        names = [tuple(sorted((f"t{FIRST[k]}", f"t{SECOND[k]}"))) for k in best]
        assert [(row["text_id_a"], row["text_id_b"]) for row in rows] == names
        score = "socm" if ranking == "socm" else "d_sigma"
        assert [row[score] for row in rows] == pytest.approx(values[best], abs=1e-5)
    assert WANTED <= len(found.places) < len(FIRST) / 4
    assert sum(pairs for rows, pairs in asked if rows == 12) < sum(pairs for rows, pairs in asked if rows == 4)


def test_pairs_of_factors_shorter_than_the_first_round_are_decided_in_it(files, asked, monkeypatch):
    monkeypatch.setattr(factor_pairs, "_FEW", 1)  # 64 rows are all rows here.
    found = search(files, np.zeros(len(FIRST), bool))
    assert found.left["socm"].sum() == WANTED
    assert found.left["same_mean"].sum() == 0


def test_few_pairs_are_measured_without_a_bound(files, brute, asked, monkeypatch):
    monkeypatch.setattr(factor_pairs, "_FEW", len(FIRST))
    found = search(files, np.ones(len(FIRST), bool))
    assert {rows for rows, _ in asked} == {None}
    assert sum(pairs for _, pairs in asked) == len(FIRST)
    np.testing.assert_allclose(found.values.value, brute["socm"], atol=1e-5)


def test_tasks_have_so_many_pairs_at_most_and_the_same_values(files, asked, monkeypatch):
    near = np.ones(len(FIRST), bool)
    together = search(files, near).values
    monkeypatch.setattr(factor_pairs, "_TASK_PAIRS", 100)
    asked.clear()
    apart = search(files, near).values
    assert max(pairs for _, pairs in asked) <= 100
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
